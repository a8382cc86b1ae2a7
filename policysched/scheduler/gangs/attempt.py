"""One attempt for a gang, whole: all members that fit are found on one state of the cluster.

Member by member is asked for on an overlay in which those before it are placed already; only when they are enough is
anything assumed, and then all of them in the same step; where they are not, room may be made for as many as are needed.
Members that agree on what the policy reads fail together: once one of them finds no node the others are not asked, and
once too few remain the trial ends.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from policysched.evaluate import TopologyDomain
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import unavailable_message
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.placement import gang_overlay, members_in_attempt_order
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.gangs.topology import candidate_domains
from policysched.scheduler.outcome import PLACED_POD_EVENTS, AttemptFailure, AttemptSuccess
from policysched.scheduler.pending_reports import PendingReason
from policysched.scheduler.preemption.default_preemption import (
    DefaultPreemption,
    NoPreemption,
    PreemptionStarted,
)
from policysched.scheduler.questions import AttemptEvaluator
from policysched.scheduler.queue.admission import QueueAdmission
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.settlement import AttemptCommit
from policysched.scheduler.steps import Steps, evaluation_cost


@dataclass(slots=True)
class _GangSearchResult:
    """How far a gang's trial has come: members with a node, and one failure for each kind that has none."""

    fits: list[tuple[PendingPod, AttemptSuccess]] = field(default_factory=list)
    failures: dict[Hashable, AttemptFailure] = field(default_factory=dict)
    domain: TopologyDomain | None = None  # the domain that all of them were to be in
    other_domain_failures: list[AttemptFailure] = field(default_factory=list)  # in other domains


class GangAttempts:
    """`attempt_gang` is one attempt, for as many members as are due."""

    def __init__(
        self,
        core: SchedulerCore,
        questions: AttemptEvaluator,
        settlement: AttemptCommit,
        admission: QueueAdmission,
        preemption: DefaultPreemption,
    ) -> None:
        self._core = core
        self._evaluator = questions
        self._commit = settlement
        self._admission = admission
        self._preemption = preemption

    def attempt_gang(self, gang: QueuedGang, now_ns: int) -> Steps[None]:
        """The gang was just popped from the queue. Afterwards it, or what of it is left, stands somewhere again."""
        gang.ordered_last = False
        if self._preemption.defer_gang_attempt(gang):
            self._park_gang_until_evicted(gang, now_ns)
            return
        gang.attempts += 1
        for pod in gang.pending_members.values():
            pod.attempts += 1
        needed = gang.needed_count
        found = yield from self._search(gang, now_ns)
        placed = found.fits if len(found.fits) >= needed else []
        for pod, success in placed:
            self._commit.assume(pod, success, now_ns)
        if placed:
            gang.attempts, gang.overdue = 0, False
        if not gang.pending_members:
            self._admission.refresh_gang(gang, now_ns, "GangScheduled")
            return
        if gang.overdue:
            self._preemption.clear_gang_nominations(gang, now_ns)
            self._admission.gang_timed_out(gang, now_ns)
            return
        room: PreemptionStarted | NoPreemption | None = None
        if needed and not placed:
            room = yield from self._preempt_for_gang(gang, found, now_ns)
        if room is None:
            self._preemption.clear_gang_nominations(gang, now_ns)
        self._park_gang(gang, found, placed, needed, room, now_ns)

    def _search(self, gang: QueuedGang, now_ns: int) -> Steps[_GangSearchResult]:
        """Members with a node. Where they are to keep together, in the first domain that takes as many as are needed; if
        none does, as far as it went in the one that took most."""
        if gang.topology is None:
            return (yield from self._search_domain(gang, None, now_ns))
        tried = []
        kin = self._evaluator.gang_equivalence_keys(gang.members_in_order())
        for within in candidate_domains(self._core, gang, gang.topology, kin, now_ns):
            found = yield from self._search_domain(gang, within, now_ns)
            if found.fits and len(found.fits) >= gang.needed_count:
                return found
            tried.append(found)
        if not tried:
            tried.append((yield from self._search_domain(gang, TopologyDomain(gang.topology, None), now_ns)))
        best = max(tried, key=lambda one: len(one.fits))
        best.other_domain_failures = [
            failure for one in tried if one is not best for failure in one.failures.values()
        ]
        return best

    def _search_domain(
        self, gang: QueuedGang, within: TopologyDomain | None, now_ns: int
    ) -> Steps[_GangSearchResult]:
        core, found = self._core, _GangSearchResult(domain=within)
        members, vacancies, needed = members_in_attempt_order(core, gang), gang.vacancies, gang.needed_count
        kin = self._evaluator.gang_equivalence_keys(members)
        alike = Counter(kin.values())
        possible = len(members)
        overlay = gang_overlay(core, gang)
        for pod in members:
            if vacancies is not None and len(found.fits) >= vacancies:
                break  # the maximum keeps the others from being asked
            if possible < needed:
                break
            if kin[pod.uid] in found.failures:
                continue
            yield evaluation_cost(len(core.cache.nodes))
            result = self._evaluator.evaluate(pod, overlay, now_ns, within)
            if isinstance(result, AttemptSuccess):
                result = replace(
                    result, prebind_work=self._evaluator.add_to_overlay(pod, result.node, overlay, now_ns)
                )
                found.fits.append((pod, result))
                alike[kin[pod.uid]] -= 1
            else:
                found.failures[kin[pod.uid]] = result
                possible -= alike[kin[pod.uid]]
        return found

    def _preempt_for_gang(
        self, gang: QueuedGang, found: _GangSearchResult, now_ns: int
    ) -> Steps[PreemptionStarted | NoPreemption | None]:
        """None: nobody is evicted, and nothing is said of it."""
        if not any(one.node_count for one in found.failures.values()):
            return None
        room = yield from self._preemption.preempt_for_gang(
            gang,
            self._evaluator.gang_equivalence_keys(gang.members_in_order()),
            lambda pod, overlay, within: self._evaluator.evaluate(pod, overlay, now_ns, within),
            lambda pod, node, overlay: self._evaluator.add_to_overlay(pod, node, overlay, now_ns),
            now_ns,
        )
        return room

    def _park_gang_until_evicted(self, gang: QueuedGang, now_ns: int) -> None:
        """The answers to its evictions bring it back, whatever happens meanwhile."""
        self._core.queue.park(
            gang,
            gang.id,
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=next(iter(gang.pending_members.values())).pending_message,
        )

    def _park_gang(
        self,
        gang: QueuedGang,
        found: _GangSearchResult,
        placed: list[tuple[PendingPod, AttemptSuccess]],
        needed: int,
        room: PreemptionStarted | NoPreemption | None,
        now_ns: int,
    ) -> None:
        """What is left of a gang waits as one for whatever could help any of its members."""
        core = self._core
        failures = list(found.failures.values())
        all_failures = [*failures, *found.other_domain_failures]
        expiries = [one.valid_until_ns for one in all_failures if one.valid_until_ns is not None]
        wakes = frozenset[ClusterEvent]().union(*(one.requeue_events for one in all_failures))
        if any(uid in core.cache.nominated for uid in gang.pending_members):
            wakes |= PLACED_POD_EVENTS  # whose room they wait for
        if isinstance(room, NoPreemption) and room.valid_until_ns is not None:
            expiries.append(room.valid_until_ns)
        reason, message = _gang_message(
            gang, found, needed, bool(placed), room.message if isinstance(room, NoPreemption) else ""
        )
        for pod in gang.pending_members.values():
            self._admission.rekey(pod, now_ns)
            gang.reorder_member(pod)
        gang.update_order_key()
        core.queue.apply_backoff(gang, now_ns)
        core.queue.park(
            gang,
            gang.id,
            now_ns=now_ns,
            requeue_events=wakes,
            valid_until_ns=min(expiries, default=None),
            reason=reason,
            message=message,
        )
        told = AttemptFailure(reason, message, 0, {}, frozenset(), None)
        if failures:
            told = AttemptFailure(
                reason, message, failures[0].node_count, failures[0].counts, frozenset(), None
            )
        for pod in gang.pending_members.values():
            self._commit.record_failure(pod, told, now_ns)
            core.report_pending(pod, reason, message, now_ns)


def _gang_message(
    gang: QueuedGang, found: _GangSearchResult, needed: int, some_placed: bool, preemption: str
) -> tuple[PendingReason, str]:
    """Why those wait who are left. The first kind of member that found no node speaks for all, with what is to be said of
    `preemption`."""
    first = next(iter(found.failures.values()), None)
    if first is None:
        return "PolicyPending", gang.full_message
    message = first.message
    if preemption and first.node_count:
        message = unavailable_message(first.node_count, first.counts, preemption)
    if some_placed or needed == 0:
        return first.reason, f"gang {gang.name}: {message}"
    count, where = len(found.fits) + len(gang.placed_members), ""
    if found.domain is not None and found.domain.value is not None:
        where = f" in {found.domain.key}={found.domain.value}"
    return (
        first.reason,
        f"gang {gang.name}: {count} of {gang.minimum} members fit now{where}: {message}",
    )
