"""Planted bugs: each patches one thing, and some seed must show it in the words of the invariant that it is planted for.

Where the scheduler's own audit or the oracle would see it first, they are told to look away, so that what is left are the
server's objects: that is said at the bug.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import orjson

from policysched.builtins.kernels import FILTER_KERNELS
from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.pod_index import PodIndex
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.daemon.policy_feed import LastGoodStore
from policysched.evaluate.columns.gang_members import GangMembers
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.plan.victims import CompiledVictims
from policysched.kube.client.api import ApiErrors
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode import devices, storage
from policysched.kube.leader_election import LeaderElector
from policysched.kube.watch.reflector import Reflector
from policysched.kube.write import bind as binding
from policysched.kube.write.bind import Binder
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.report_content import EventContent
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import AccessibleNodes
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement
from policysched.runtime import scheduler_app
from policysched.sandbox.faults import FaultRates
from policysched.scheduler import prebind
from policysched.scheduler.commands import Bind, ReportPodEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import BindConfirmed, BindRefused, PodUpdated
from policysched.scheduler.extenders import calls
from policysched.scheduler.gangs import placement as gang_room
from policysched.scheduler.kubelet_rejections import KubeletRejections
from policysched.scheduler.pod_events import PodEvents
from policysched.scheduler.policies.assumed_load import AssumedLoadTracker
from policysched.scheduler.policies.policy_states import PolicyStates
from policysched.scheduler.policies.recovery_tracker import RecoveryTracker
from policysched.scheduler.policies.registry import PolicyRegistry
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.preemption import candidates
from policysched.scheduler.preemption.candidates import Candidate
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.preemption.gang_placement import GangPlacement, MemberPlacement, NoGangPlacement
from policysched.scheduler.queue.gangs import QueuedGang
from policysched.scheduler.queue.ordered_queue import FairShareQueue
from policysched.scheduler.queue.queue import SchedulingQueue
from policysched.scheduler.steps import Steps
from tests.reference.builtins import FILTERS as ORACLE_FILTERS
from tests.simulation import world
from tests.simulation.churn import UNKNOWN_SCHEDULER
from tests.simulation.fault_profile import FaultProfile, draw_fault_profile
from tests.simulation.oracle_checker import OracleChecker
from tests.simulation.texts import BAD, GOOD, SCHEDULERS
from tests.simulation.world import run_seed

Plant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def _all(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


def _without_second_opinion() -> AbstractContextManager[Any]:
    """The oracle looks away: what it says of a pod is not compared with what was decided."""
    return _all(
        patch.object(OracleChecker, "_check_gang_member", lambda *_: None),
        patch.object(OracleChecker, "_compare", lambda *_: None),
    )


# ── the ledger, the cache and what follows them ──────────────────────────────────────────────────────────────────────


def a_bind_without_an_answer_is_withdrawn() -> AbstractContextManager[Any]:
    async def carry_out(self: Binder, bind: Bind) -> BindConfirmed | BindRefused:
        path = f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}/binding"
        try:
            await self._api.post_discarding_response(
                path, binding.binding_body(bind), params={"timeout": "5s"}, timeout_s=7.0
            )
        except ApiErrors as error:
            return BindRefused(bind.uid, str(error))
        return BindConfirmed(bind.uid, bind.node)

    return patch.object(Binder, "_bind_until_answered", carry_out)


def a_bind_does_not_name_the_uid() -> AbstractContextManager[Any]:
    def body(bind: Bind) -> bytes:
        return orjson.dumps({"metadata": {"name": bind.name}, "target": {"kind": "Node", "name": bind.node}})

    return patch.object(binding, "binding_body", body)


def the_ledger_forgets_to_subtract() -> AbstractContextManager[Any]:
    def take(self: Ledger, uid: PodUid) -> Placement:
        del self._states[uid]
        return self._placements.pop(uid)

    return patch.object(Ledger, "_remove_placement", take)


def the_ledger_forgets_what_is_assumed() -> AbstractContextManager[Any]:
    """Its own recount is switched off, and so is the oracle: what is left are the server's objects."""
    put, take = Ledger._put_placement, Ledger._remove_placement

    def forgetful_put(self: Ledger, placement: Placement, state: PlacementState) -> None:
        put(self, placement, state)
        if state is PlacementState.ASSUMED:
            self._usage[placement.node].subtract(placement.pod)

    def forgetful_take(self: Ledger, uid: PodUid) -> Placement:
        if self._states[uid] is PlacementState.ASSUMED:
            self._usage[self._placements[uid].node].add(self._placements[uid].pod)
        return take(self, uid)

    def confirm(self: Ledger, pod: Any, node: Any) -> None:
        if pod.uid in self._placements:
            self._remove_placement(pod.uid)
        put(self, Placement(pod, node), PlacementState.BOUND)

    return _all(
        patch.object(Ledger, "_put_placement", forgetful_put),
        patch.object(Ledger, "_remove_placement", forgetful_take),
        patch.object(Ledger, "confirm", confirm),
        patch.object(Ledger, "check", lambda _: []),
        _without_second_opinion(),
    )


def the_overlay_does_not_see_earlier_members() -> AbstractContextManager[Any]:
    def place(self: Overlay, pod: Any, node: Any) -> None:
        self._added[pod.uid] = (pod, node)

    return patch.object(Overlay, "add_pod", place)


def gangs_are_placed_in_part() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "needed_count", property(lambda _: 0))


def columns_miss_a_cordon() -> AbstractContextManager[Any]:
    put_node = ClusterCache.put_node

    def put(self: ClusterCache, node: Node) -> Any:
        known, changed = self.nodes.get(node.name), set(self._changed_nodes)
        events = put_node(self, node)
        if known is not None and known.unschedulable != node.unschedulable:
            self._changed_nodes = changed
        return events

    return patch.object(ClusterCache, "put_node", put)


def a_node_that_leaves_is_kept() -> AbstractContextManager[Any]:
    return patch.object(ClusterCache, "drop_node", lambda *_: frozenset())


def a_nomination_is_never_taken_back() -> AbstractContextManager[Any]:
    return patch.object(SchedulerCore, "clear_nomination", lambda *_: None)


def what_is_held_back_is_never_let_go() -> AbstractContextManager[Any]:
    """Nor does its own check say that there is no end to it: what is left is what is held back at rest."""

    def advance(self: KubeletRejections, now_ns: int) -> None:
        while (due_ns := self._expiries.first_key()) is not None and due_ns <= now_ns:
            self._expiries.pop()

    return _all(
        patch.object(KubeletRejections, "advance", advance),
        patch.object(KubeletRejections, "check", lambda _: iter(())),
    )


def freed_room_wakes_nobody() -> AbstractContextManager[Any]:
    wake = SchedulingQueue.requeue

    def deaf(self: SchedulingQueue, events: Any, now_ns: int, **more: Any) -> None:
        wake(self, [one for one in events if one is not ClusterEvent.ASSIGNED_POD_DELETE], now_ns, **more)

    return patch.object(SchedulingQueue, "requeue", deaf)


def after_a_410_the_watch_goes_on_from_now() -> AbstractContextManager[Any]:
    read = Reflector._list

    async def skip(self: Reflector[Any], page_size: int) -> None:
        if not self.lists_total:
            return await read(self, page_size)
        async for page in self._api.pages(self._resource.path, self._resource.params, page_size=0):
            self._version = page.resource_version
        return None

    return patch.object(Reflector, "_list", skip)


def a_condition_does_not_name_the_version_that_it_goes_by() -> AbstractContextManager[Any]:
    honest = Reporter._condition_body

    def body(self: Reporter, *what: Any, **more: Any) -> Any:
        said = honest(self, *what, **more)
        del said["metadata"]["resourceVersion"]
        return said

    return patch.object(Reporter, "_condition_body", body)


def a_broken_policy_becomes_active_without_its_broken_rule() -> AbstractContextManager[Any]:
    compiled = world.compiled

    def lenient(texts: Any) -> Any:
        mended = {
            key: GOOD[key][0].replace("weight 3", "weight 4").replace("timeout = 20s", "timeout = 21s")
            if text in BAD[key]
            else text
            for key, text in texts.items()
        }
        return compiled(mended)

    return patch.object(world, "compiled", lenient)


def the_second_offer_of_policies_is_ignored() -> AbstractContextManager[Any]:
    offer = PolicyRegistry.apply_update

    def once(self: PolicyRegistry, event: Any, now_ns: int) -> Any:
        return (
            offer(self, event, now_ns)
            if self._first_offer or len(self.running) < len(SCHEDULERS)
            else ([], [])
        )

    return patch.object(PolicyRegistry, "apply_update", once)


# ── what no node may be given twice, and where no pod may go ─────────────────────────────────────────────────────────


def host_ports_are_not_looked_at() -> AbstractContextManager[Any]:
    """Neither by the plan nor by the oracle."""
    return _nobody_asks("node_ports")


def volumes_are_within_reach_of_every_node() -> AbstractContextManager[Any]:
    """Nobody reads whose disk it is: a pod goes anywhere with what is on one node."""
    return patch.object(storage, "decode_node_selector", lambda _: None)


def claims_for_one_pod_are_shared() -> AbstractContextManager[Any]:
    return _nobody_asks("volume_restrictions")


def _nobody_asks(builtin: str) -> AbstractContextManager[Any]:
    return _all(
        patch.dict(FILTER_KERNELS, {builtin: lambda *_: None}),  # type: ignore[arg-type]
        patch.dict(ORACLE_FILTERS, {builtin: lambda *_: None}),
    )


def a_pod_is_bound_before_its_claims_are() -> AbstractContextManager[Any]:
    return patch.object(Prebinder, "_volumes_bound", lambda *_: True)


def a_promised_volume_is_promised_again() -> AbstractContextManager[Any]:
    """The API server refuses the second one's claim: what is left is that both were on their way."""
    return patch.object(VolumeCache, "reserve", lambda *_: None)


def devices_are_within_reach_of_every_node() -> AbstractContextManager[Any]:
    """Nobody reads whose they are: a pod goes anywhere with what is in one node."""
    return patch.object(devices, "_reach", lambda _: AccessibleNodes(all_nodes=True))


def a_promised_device_is_promised_again() -> AbstractContextManager[Any]:
    return patch.object(DeviceCache, "reserve", lambda *_: None)


def devices_are_free_before_their_writes_are_answered() -> AbstractContextManager[Any]:
    """Where the pod is gone meanwhile; and nobody notices before the server's objects show it."""
    return _all(
        patch.object(prebind, "_has_unanswered_device_writes", lambda _: False),
        patch.object(DeviceCache, "check", lambda _: []),
    )


# ── pods of others ───────────────────────────────────────────────────────────────────────────────────────────────────


def pods_of_nobody_are_taken_for_ours() -> AbstractContextManager[Any]:
    def seen(obj: Any) -> PodUpdated:
        found = wire.decode_pod(obj)
        ours = found.pod.scheduler == UNKNOWN_SCHEDULER
        return PodUpdated(replace(found, pod=replace(found.pod, scheduler="beta")) if ours else found)

    return patch.object(scheduler_app, "PODS", replace(scheduler_app.PODS, updated_event=seen))


def pods_of_nobody_are_told_why_they_wait() -> AbstractContextManager[Any]:
    """Taken for ours, and no bind leaves."""
    return _all(pods_of_nobody_are_taken_for_ours(), patch.object(Binder, "put", lambda *_: None))


def pods_of_nobody_have_events() -> AbstractContextManager[Any]:
    updated = PodEvents.updated

    def updated_with_event(self: PodEvents, observed: ObservedPod, now_ns: int, *, synced: bool) -> None:
        updated(self, observed, now_ns, synced=synced)
        pod = observed.pod
        if pod.scheduler == UNKNOWN_SCHEDULER:
            about = (pod.uid, pod.namespace, pod.name, "beta")
            self._core.commands.append(ReportPodEvent(*about, "Normal", "Seen", "is nobody's"))

    return patch.object(PodEvents, "updated", updated_with_event)


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


def each_try_of_an_event_makes_another() -> AbstractContextManager[Any]:
    create = Reporter._create_event

    async def anew(self: Reporter, words: EventContent, series: Any) -> None:
        series.name = f"{words.regarding.name}.{self._random.getrandbits(64):016x}"
        await create(self, words, series)

    return patch.object(Reporter, "_create_event", anew)


def nobody_is_told_of_a_bind() -> AbstractContextManager[Any]:
    say = Reporter.record_event

    def hushed(self: Reporter, words: EventContent) -> None:
        if words.reason != "Scheduled":
            say(self, words)

    return patch.object(Reporter, "record_event", hushed)


# ── leaders and lives ────────────────────────────────────────────────────────────────────────────────────────────────


def who_lost_the_lease_goes_on_deciding() -> AbstractContextManager[Any]:
    """It neither notices that its renewals fail nor that another has the Lease."""

    async def keep(self: LeaderElector) -> None:
        self._leads_until_s = float("inf")
        await asyncio.Event().wait()

    return patch.object(LeaderElector, "_renew_until_lost", keep)


def a_restart_forgets_the_last_known_good_policies() -> AbstractContextManager[Any]:
    async def nothing(self: LastGoodStore) -> Mapping[str, str]:
        return {}

    return patch.object(LastGoodStore, "read", nothing)


def a_restart_forgets_what_its_states_were_fed() -> AbstractContextManager[Any]:
    return patch.object(PolicyStates, "restore", lambda *_: [])


def a_run_is_fed_each_time_that_it_is_shown() -> AbstractContextManager[Any]:
    see = PolicyStates.pod_updated

    def forgetful(self: PolicyStates, seen: ObservedPod, now_ns: int) -> str | None:
        self.pod_deleted(seen.pod.uid)
        return see(self, seen, now_ns)

    return patch.object(PolicyStates, "pod_updated", forgetful)


# ── making room ──────────────────────────────────────────────────────────────────────────────────────────────────────


def what_a_policy_says_of_victims_is_not_looked_at() -> AbstractContextManager[Any]:
    return patch.object(
        CompiledVictims, "predicate", lambda _, seen: lambda victim: victim.priority < seen.pod.priority
    )


def equals_are_evicted() -> AbstractContextManager[Any]:
    return _all(
        patch.object(
            CompiledVictims,
            "predicate",
            lambda _, seen: lambda victim: victim.scheduler == seen.pod.scheduler,
        ),
        patch.object(Ledger, "lowest_priority", -1),
    )


def budgets_are_not_looked_at() -> AbstractContextManager[Any]:
    return patch.object(candidates, "split_by_budget", lambda pods, _: ([], list(pods)))


def everybody_has_to_go() -> AbstractContextManager[Any]:
    """Nobody is laid back who would still fit."""

    def candidate(node: Any, in_order: Any, _victims: Any, violations: int, cluster: Any) -> Candidate:
        return honest(node, in_order, in_order, violations, cluster)

    honest = candidates._candidate
    return patch.object(candidates, "_candidate", candidate)


def who_has_made_room_does_not_come() -> AbstractContextManager[Any]:
    """Victims end, and the pod that they ended for is not tried again."""

    def evicted(self: DefaultPreemption, preemptor: PodUid, victims: Any, now_ns: int) -> None:
        eviction = self._evicting.get(preemptor)
        if eviction is not None:
            self._record_deletions(eviction, victims)

    return patch.object(DefaultPreemption, "evicted", evicted)


def room_is_made_for_a_part_of_a_gang() -> AbstractContextManager[Any]:
    run = gang_room._GangSearch.run

    def content(self: gang_room._GangSearch) -> Steps[GangPlacement | NoGangPlacement]:
        found = yield from run(self)
        return GangPlacement(tuple(self.placements)) if self.placements else found

    return patch.object(gang_room._GangSearch, "run", content)


def room_for_a_member_is_thought_of_without_those_before_it() -> AbstractContextManager[Any]:
    def take(self: gang_room._GangSearch, seat: MemberPlacement) -> None:
        self.placements.append(seat)

    return patch.object(gang_room._GangSearch, "_apply_placement", take)


# ── who is first, and what is assumed ────────────────────────────────────────────────────────────────────────────────


def a_fair_queue_does_not_follow_the_shares() -> AbstractContextManager[Any]:
    return patch.object(FairShareQueue, "_reposition_changed", lambda _: None)


def metrics_assume_nothing() -> AbstractContextManager[Any]:
    return patch.object(AssumedLoadTracker, "pod_placed", lambda *_: None)


def members_that_are_on_nodes_are_overlooked() -> AbstractContextManager[Any]:
    """By the plan; the oracle looks away."""
    return _all(patch.object(GangMembers, "rows_of", lambda *_: {}), _without_second_opinion())


def a_node_that_cools_for_a_moment_is_let_in() -> AbstractContextManager[Any]:
    return patch.object(RecoveryTracker, "apply_samples", lambda _self, _policy, _metric, samples: samples)


def metrics_that_lack_are_not_waited_for() -> AbstractContextManager[Any]:
    """By the plan; the oracle looks away."""
    return _all(patch.object(Evaluation, "_detect_outages", lambda *_: None), _without_second_opinion())


def the_census_forgets_nobody() -> AbstractContextManager[Any]:
    return patch.object(PodIndex, "drop", lambda *_: None)


def extenders_are_asked_and_not_listened_to() -> AbstractContextManager[Any]:
    return patch.object(calls, "nodes_passing_extenders", lambda nodes, _: nodes)


# ── gangs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_gang_does_not_keep_together() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "topology", property(lambda _: None, lambda *_: None))


def a_gang_fails_before_its_time() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "timeout_ns", property(lambda _: 10**9))


PLANTED: Mapping[Plant, str] = {
    a_bind_without_an_answer_is_withdrawn: r"in pods of ours and has",
    a_bind_does_not_name_the_uid: r"is on .*, we decided on",
    the_ledger_forgets_to_subtract: r"ledger (priorities|claims): kept",
    the_ledger_forgets_what_is_assumed: r"in pods of ours and has",
    the_overlay_does_not_see_earlier_members: r"is to be bound to .*, the oracle says",
    gangs_are_placed_in_part: r"half a gang",
    columns_miss_a_cordon: r"the plan (finds|chose|counts)",
    a_node_that_leaves_is_kept: r"in the cache, but not on the API server",
    a_nomination_is_never_taken_back: r"keeps room of .*, where nobody ends",
    what_is_held_back_is_never_let_go: r"is still held back",
    freed_room_wakes_nobody: r"waits? and the oracle finds",
    after_a_410_the_watch_goes_on_from_now: r"missing from the cache",
    a_condition_does_not_name_the_version_that_it_goes_by: r"is on .* and its PodScheduled is",
    a_broken_policy_becomes_active_without_its_broken_rule: r"that does not check",
    the_second_offer_of_policies_is_ignored: r"the ConfigMap has",
    host_ports_are_not_looked_at: r"has a host port twice",
    volumes_are_within_reach_of_every_node: r"which is on \[",
    claims_for_one_pod_are_shared: r"is for one pod at a time",
    a_pod_is_bound_before_its_claims_are: r"is not bound",
    a_promised_volume_is_promised_again: r"^volume .* is promised to .* claims",
    devices_are_within_reach_of_every_node: r"has device .*, which is in",
    a_promised_device_is_promised_again: r"^device .* is promised to .* claims",
    devices_are_free_before_their_writes_are_answered: r"is in two claims",
    pods_of_nobody_are_taken_for_ours: r"is nobody's and was bound",
    pods_of_nobody_are_told_why_they_wait: r"is not ours and was told",
    pods_of_nobody_have_events: r"is nobody's and has events",
    each_try_of_an_event_makes_another: r"was bound, and that was said [2-9] times",
    nobody_is_told_of_a_bind: r"was bound, and that was said 0 times",
    who_lost_the_lease_goes_on_deciding: r"decides, and the Lease is",
    a_restart_forgets_the_last_known_good_policies: r"decides without .*, which were kept",
    a_restart_forgets_what_its_states_were_fed: r"was kept with",
    a_run_is_fed_each_time_that_it_is_shown: r"was fed",
    what_a_policy_says_of_victims_is_not_looked_at: r"its label .* forbids that",
    equals_are_evicted: r"whose priority is not higher",
    budgets_are_not_looked_at: r"which breaks a budget",
    everybody_has_to_go: r"need not go",
    who_has_made_room_does_not_come: r"waits and the oracle finds",
    room_is_made_for_a_part_of_a_gang: r"places, and .* are made for it",
    room_for_a_member_is_thought_of_without_those_before_it: r"room is made for",
    a_fair_queue_does_not_follow_the_shares: r"goes before",
    metrics_assume_nothing: r"with what is assumed there",
    members_that_are_on_nodes_are_overlooked: r"flow to its peers",
    a_node_that_cools_for_a_moment_is_let_in: r"was over the limit",
    metrics_that_lack_are_not_waited_for: r"whose load is not known",
    the_census_forgets_nobody: r"(active|ended) pods: index has",
    extenders_are_asked_and_not_listened_to: r"which an extender refuses",
    a_gang_does_not_keep_together: r"is to keep together and goes to",
    a_gang_fails_before_its_time: r"has failed for good after",
}
"""With what some seed must say of each: the words of the invariant that it is planted for."""


def _many_end_and_go(weather: FaultProfile) -> FaultProfile:
    """Pods whose runs have been fed and written down are deleted, and schedulers die."""
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(0.01, 0.02),
        action_weights={"create a pod": 20.0, "delete a pod": 12.0, "kill a scheduler": 0.6},
        action_interval_s=0.4,
        fault_phase_s=90.0,
        nodes=9,
        pods=30,
        small_nodes=False,
    )


def _many_want_disks(weather: FaultProfile) -> FaultProfile:
    """Where a disk is put in, several who waited for one go for it at once."""
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(0.05, 0.2),
        action_weights={
            "create a pod": 12.0,
            "delete a pod": 10.0,
            "create a claim": 12.0,
            "put in a disk": 1.2,
        },
        action_interval_s=0.4,
        nodes=2,
        pods=10,
        small_nodes=False,
    )


def _pods_go_while_they_get_devices(weather: FaultProfile) -> FaultProfile:
    """Over roads on which writes are lost, late and repeated, to claims that do not go with their pods."""
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(0.05, 0.2, slow_share=0.2, slow_s=1.5, lost_before_share=0.35),
        action_weights={
            "create a pod": 12.0,
            "delete a pod": 4.0,
            "create a device claim": 6.0,
            "change devices": 3.0,
        },
        action_interval_s=0.4,
        fault_phase_s=90.0,
        nodes=4,
        pods=25,
        small_nodes=False,
        deleted_in_flight_share=0.6,
    )


def _undisturbed(weather: FaultProfile) -> FaultProfile:
    """Nothing befalls the one scheduler that there is but what is on its roads."""
    return replace(
        weather,
        replicas=1,
        lease_connection_reliable=True,
        deleted_in_flight_share=0.0,
        killed_in_flight_share=0.0,
        metric_outage_share=0.0,
        extender_outage_share=0.0,
        foreign_bind_interval_s=None,
    )


def _binds_without_answers(weather: FaultProfile) -> FaultProfile:
    """For small nodes whose pods come and go, while watches are cut: that a pod was bound is seen late."""
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(0.01, 0.2, late_share=0.1, lost_after_share=0.2, watch_lifetime_s=4.0),
        action_weights={"create a pod": 12.0, "create an urgent pod": 8.0, "delete a pod": 12.0},
        action_interval_s=0.4,
        fault_phase_s=90.0,
        nodes=5,
        pods=30,
        small_nodes=True,
    )


def _rejected_for_what_nobody_saw(weather: FaultProfile) -> FaultProfile:
    """Pods of others come and go while the cluster is not seen, so that nothing tells what room was held back for."""
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(0.01, 0.02, lost_before_share=0.35, watch_lifetime_s=5.0),
        action_weights={
            "create a pod": 12.0,
            "start a static pod": 6.0,
            "delete a pod": 10.0,
            "resize a node": 6.0,
        },
        action_interval_s=0.4,
        fault_phase_s=75.0,
        nodes=6,
        pods=10,
        small_nodes=True,
        foreign_bind_interval_s=1.0,
        history_changes_max=2,
    )


def _room_is_made_among_budgets(weather: FaultProfile) -> FaultProfile:
    """One after the other: of evictions that overlap nothing is said."""
    deeds = {"create a pod": 12.0, "create an urgent pod": 8.0, "delete a pod": 1.0, "create a budget": 8.0}
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(),
        action_weights=deeds,
        action_interval_s=1.0,
        fault_phase_s=60.0,
        nodes=4,
        pods=25,
        small_nodes=True,
    )


def _answers_are_lost_and_few_wait(weather: FaultProfile) -> FaultProfile:
    """Where a condition gets lost too, events may be missing, and they are not counted."""
    return replace(
        _undisturbed(weather),
        network_faults=FaultRates(0.01, lost_after_share=0.04),
        action_weights={"create a pod": 6.0, "delete a pod": 4.0},
        action_interval_s=1.5,
        fault_phase_s=60.0,
        nodes=9,
        pods=4,
        small_nodes=False,
    )


SOONER: Mapping[Plant, Callable[[FaultProfile], FaultProfile]] = {
    a_bind_without_an_answer_is_withdrawn: _binds_without_answers,
    what_is_held_back_is_never_let_go: _rejected_for_what_nobody_saw,
    each_try_of_an_event_makes_another: _answers_are_lost_and_few_wait,
    a_run_is_fed_each_time_that_it_is_shown: _many_end_and_go,
    budgets_are_not_looked_at: _room_is_made_among_budgets,
    a_restart_forgets_what_its_states_were_fed: _many_end_and_go,
    a_promised_volume_is_promised_again: _many_want_disks,
    a_promised_device_is_promised_again: _pods_go_while_they_get_devices,
    devices_are_free_before_their_writes_are_answered: _pods_go_while_they_get_devices,
}
"""What a seed's weather is made, so that rare bugs show soon."""

SHOWN_BY: Mapping[Plant, Sequence[int]] = {
    a_bind_without_an_answer_is_withdrawn: (3,),
    a_bind_does_not_name_the_uid: (3,),
    the_ledger_forgets_to_subtract: (2,),
    the_overlay_does_not_see_earlier_members: (3,),
    gangs_are_placed_in_part: (3,),
    columns_miss_a_cordon: (2,),
    a_node_that_leaves_is_kept: (2,),
    a_nomination_is_never_taken_back: (54,),
    what_is_held_back_is_never_let_go: (9,),
    freed_room_wakes_nobody: (3,),
    after_a_410_the_watch_goes_on_from_now: (2,),
    a_condition_does_not_name_the_version_that_it_goes_by: (21,),
    a_broken_policy_becomes_active_without_its_broken_rule: (8,),
    host_ports_are_not_looked_at: (6,),
    volumes_are_within_reach_of_every_node: (1,),
    claims_for_one_pod_are_shared: (1,),
    a_pod_is_bound_before_its_claims_are: (1,),
    a_promised_volume_is_promised_again: (5,),
    devices_are_within_reach_of_every_node: (4,),
    devices_are_free_before_their_writes_are_answered: (14,),
    pods_of_nobody_are_told_why_they_wait: (4,),
    each_try_of_an_event_makes_another: (8,),
    who_lost_the_lease_goes_on_deciding: (7,),
    a_restart_forgets_the_last_known_good_policies: (8,),
    a_restart_forgets_what_its_states_were_fed: (8,),
    a_run_is_fed_each_time_that_it_is_shown: (1,),
    what_a_policy_says_of_victims_is_not_looked_at: (8,),
    budgets_are_not_looked_at: (2,),
    everybody_has_to_go: (12,),
    who_has_made_room_does_not_come: (12,),
    room_is_made_for_a_part_of_a_gang: (3,),
    room_for_a_member_is_thought_of_without_those_before_it: (3,),
    a_fair_queue_does_not_follow_the_shares: (4,),
    metrics_assume_nothing: (16,),
    members_that_are_on_nodes_are_overlooked: (1,),
    a_node_that_cools_for_a_moment_is_let_in: (47,),
    metrics_that_lack_are_not_waited_for: (31,),
    the_census_forgets_nobody: (2,),
    a_gang_does_not_keep_together: (10,),
    a_gang_fails_before_its_time: (23, 120),
    extenders_are_asked_and_not_listened_to: (21,),
}
"""The seed that showed the bug last time, tried before the others; 0 is the first anyway. A hint: where it shows the bug no
more, all are searched."""


def says(bug: Plant, seed: int) -> bool:
    """Whether the seed notices the bug, which is planted, in the words of its invariant."""
    weather = SOONER.get(bug, lambda drawn: drawn)(draw_fault_profile(Random(f"{seed}/weather")))
    return any(re.search(PLANTED[bug], words) for words in run_seed(seed, weather).wrong)
