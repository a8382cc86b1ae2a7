"""Planted bugs of preemption, queue order, load, indexes and gangs.

Each function returns the patch (`planted`).
"""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.cluster.ledger import Ledger
from policysched.cluster.pod_index import PodIndex
from policysched.evaluate.columns.gang_members import GangMembers
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.plan.victims import CompiledVictims
from policysched.model.identifiers import PodUid
from policysched.scheduler.extenders import calls
from policysched.scheduler.gangs.backtracking import BacktrackLimit
from policysched.scheduler.gangs.evicting_search import EvictingSearch
from policysched.scheduler.policies.assumed_load_tracker import AssumedLoadTracker
from policysched.scheduler.policies.recovery_tracker import RecoveryTracker
from policysched.scheduler.policy_permissions import PolicyPermissions, VictimCeiling
from policysched.scheduler.preemption import default_preemption, running_gangs, victim_selection
from policysched.scheduler.preemption.eviction_tracker import EvictionTracker
from policysched.scheduler.preemption.gang_placement import (
    GangPlacement,
    MemberPlacement,
    NoGangPlacement,
)
from policysched.scheduler.preemption.victim_selection import Candidate
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.ordered_queue import FairShareQueue
from policysched.scheduler.queue.policy_queues import PolicyQueues
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.steps import Steps
from tests.simulation.planted import all_patches, without_oracle_checks

# ── preemption ──────────────────────────────────────────────────────────────────────────────────────


def the_victims_condition_of_a_policy_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(
        CompiledVictims,
        "predicate",
        lambda _, observed: lambda victim: victim.priority < observed.pod.priority,
    )


def every_namespace_is_served() -> AbstractContextManager[Any]:
    return patch.object(PolicyPermissions, "namespace_rejection", lambda *_: None)


def the_settings_protect_nobody() -> AbstractContextManager[Any]:
    return patch.object(VictimCeiling, "protects", lambda *_: False)


def pods_of_equal_priority_are_evicted() -> AbstractContextManager[Any]:
    return all_patches(
        patch.object(
            CompiledVictims,
            "predicate",
            lambda _, observed: lambda victim: victim.scheduler == observed.pod.scheduler,
        ),
        patch.object(Ledger, "lowest_priority", -1),
    )


def disruption_budgets_are_ignored() -> AbstractContextManager[Any]:
    return patch.object(running_gangs, "split_by_budget", lambda pods, *_: ([], list(pods)))


def a_first_hold_evicts_pods() -> AbstractContextManager[Any]:
    return patch.object(default_preemption, "fits_after_first_holds", lambda *_: False)


def more_pods_are_evicted_than_needed() -> AbstractContextManager[Any]:
    """No victim that would still fit is reprieved."""

    def candidate(self: victim_selection.VictimSelection) -> Steps[Candidate]:
        self.victim_uids = {pod.uid for pod in self._pods}
        return original(self)

    original = victim_selection.VictimSelection.candidate
    return patch.object(victim_selection.VictimSelection, "candidate", candidate)


def running_gangs_are_evicted_in_part() -> AbstractContextManager[Any]:
    return patch.object(running_gangs.RunningGangs, "__call__", lambda *_: None)


def a_preemptor_is_not_requeued_after_its_evictions() -> AbstractContextManager[Any]:
    """After its victims have terminated the preemptor is not attempted again."""

    def evicted(self: EvictionTracker, preemptor: PodUid, victims: Any, now_ns: int) -> None:
        eviction = self._evicting.get(preemptor)
        if eviction is not None:
            self._record_deletions(eviction, victims, leaving=victims)

    return patch.object(EvictionTracker, "on_evicted", evicted)


def preemption_places_a_gang_partially() -> AbstractContextManager[Any]:
    run = EvictingSearch.run

    def content(self: EvictingSearch, limit: BacktrackLimit) -> Steps[GangPlacement | NoGangPlacement]:
        outcome = yield from run(self, limit)
        return GangPlacement(tuple(self.placements)) if self.placements else outcome

    return patch.object(EvictingSearch, "run", content)


def gang_preemption_ignores_earlier_members() -> AbstractContextManager[Any]:
    def take(self: EvictingSearch, member: MemberPlacement) -> Steps[None]:
        self.placements.append(member)
        yield from ()

    return patch.object(EvictingSearch, "apply_placement", take)


# ── queue order, load and indexes ───────────────────────────────────────────────────────────────────


def a_fair_share_queue_is_not_reordered() -> AbstractContextManager[Any]:
    return patch.object(FairShareQueue, "_reposition_changed", lambda _: None)


def a_pod_overtakes_others_in_backoff() -> AbstractContextManager[Any]:
    return patch.object(SchedulingQueue, "yield_to_earlier", lambda *_, **__: False)


def an_overdrawn_namespace_overtakes_itself() -> AbstractContextManager[Any]:
    return patch.object(
        PolicyQueues,
        "waits_for",
        lambda self, entry, earlier: (
            earlier.priority > entry.priority or not self._time.is_overdrawn(earlier.namespace)
        ),
    )


def any_attempt_in_vain_costs_a_namespace_its_place() -> AbstractContextManager[Any]:
    return patch.object(
        DecisionTime,
        "overdrawn_until_ns",
        lambda self, namespace: self.now_ns if namespace in self._paid_ns else None,
    )


def a_namespace_stays_in_doubt_whatever_is_placed() -> AbstractContextManager[Any]:
    return patch.object(DecisionTime, "note_placed", lambda *_: None)


def assumed_load_is_not_counted() -> AbstractContextManager[Any]:
    return patch.object(AssumedLoadTracker, "pod_placed", lambda *_: None)


def placed_gang_members_are_overlooked() -> AbstractContextManager[Any]:
    """By the plan. The oracle checker is switched off."""
    return all_patches(patch.object(GangMembers, "rows_of", lambda *_: {}), without_oracle_checks())


def recovery_conditions_are_ignored() -> AbstractContextManager[Any]:
    return patch.object(RecoveryTracker, "apply_samples", lambda _self, _policy, _metric, samples: samples)


def missing_metrics_are_not_awaited() -> AbstractContextManager[Any]:
    """By the plan. The oracle checker is switched off."""
    return all_patches(patch.object(Evaluation, "_detect_outages", lambda *_: None), without_oracle_checks())


def the_pod_index_keeps_deleted_pods() -> AbstractContextManager[Any]:
    return patch.object(PodIndex, "drop", lambda *_: None)


def extender_rejections_are_ignored() -> AbstractContextManager[Any]:
    return patch.object(calls, "nodes_passing_extenders", lambda nodes, _: nodes)


# ── gangs ───────────────────────────────────────────────────────────────────────────────────────────


def gang_topology_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "levels", ())


def a_gang_times_out_too_early() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "timeout_ns", property(lambda _: 10**9))
