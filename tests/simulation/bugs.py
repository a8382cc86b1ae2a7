"""Planted bugs. Each patches one thing, and some seed or scenario must report it with the message of its invariant.

Where the scheduler's own audit or the oracle checker would report it first, they are switched off
too, so that the checkers of the server's objects are what is tested.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
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
from policysched.kube.client.api import ApiClient, ApiErrors
from policysched.kube.client.transport import Transport
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode import devices, storage
from policysched.kube.leader_election import LeaderElector
from policysched.kube.watch.reflector import Reflector
from policysched.kube.write import bind as binding
from policysched.kube.write.bind import Binder
from policysched.kube.write.bind_queue import PendingBind
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.report_content import EventContent
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import AccessibleNodes
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement
from policysched.runtime import scheduler_app
from policysched.scheduler import prebind
from policysched.scheduler.commands import Bind, ReportPodEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import BindConfirmed, BindRefused, PodUpdated
from policysched.scheduler.extenders import calls
from policysched.scheduler.gangs import gang_preemption as gang_room
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
from policysched.scheduler.preemption.gang_candidates import (
    GangPlacement,
    MemberPlacement,
    NoGangPlacement,
)
from policysched.scheduler.queue.gangs import QueuedGang
from policysched.scheduler.queue.ordered_queue import FairShareQueue
from policysched.scheduler.queue.queue import SchedulingQueue
from policysched.scheduler.steps import Steps
from tests.reference.builtins import FILTERS as ORACLE_FILTERS
from tests.simulation import world
from tests.simulation.churn import UNKNOWN_SCHEDULER
from tests.simulation.oracle_checker import OracleChecker
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS

Plant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def all_patches(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _without_oracle_checks() -> AbstractContextManager[Any]:
    """Skip the comparisons with the reference implementation."""
    return all_patches(
        patch.object(OracleChecker, "_check_gang_member", lambda *_: None),
        patch.object(OracleChecker, "_compare", lambda *_: None),
    )


# ── leadership ────────────────────────────────────────────────────────────────────────────────


def leadership_is_not_checked_at_the_write() -> AbstractContextManager[Any]:
    def unfenced(self: ApiClient, transport: Transport, *, may_write: object = None) -> None:
        del may_write
        self._transport, self._may_write = transport, None

    return patch.object(ApiClient, "__init__", unfenced)


def a_bind_outlives_a_stall_of_its_process() -> AbstractContextManager[Any]:
    return patch.object(scheduler_app.SchedulerApp, "_make_fence", lambda _: lambda: True)


# ── ledger, cache and watches ──────────────────────────────────────────────────────────────────────


def an_unanswered_bind_is_withdrawn() -> AbstractContextManager[Any]:
    async def carry_out(self: Binder, pending: PendingBind) -> BindConfirmed | BindRefused:
        bind = pending.bind
        path = f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}/binding"
        try:
            await self._api.post_discarding_response(
                path, binding.binding_body(bind), params={"timeout": "5s"}, timeout_s=7.0
            )
        except ApiErrors as error:
            return BindRefused(bind.uid, str(error))
        return BindConfirmed(bind.uid, bind.node)

    return patch.object(Binder, "_attempt", carry_out)


def a_bind_omits_the_uid() -> AbstractContextManager[Any]:
    def body(bind: Bind) -> bytes:
        return orjson.dumps({"metadata": {"name": bind.name}, "target": {"kind": "Node", "name": bind.node}})

    return patch.object(binding, "binding_body", body)


def the_ledger_does_not_subtract_removed_pods() -> AbstractContextManager[Any]:
    def take(self: Ledger, uid: PodUid) -> Placement:
        del self._states[uid]
        return self._placements.pop(uid)

    return patch.object(Ledger, "_remove_placement", take)


def the_ledger_does_not_count_assumed_pods() -> AbstractContextManager[Any]:
    """The ledger's recount and the oracle checker are switched off: only the server's objects show it."""
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

    return all_patches(
        patch.object(Ledger, "_put_placement", forgetful_put),
        patch.object(Ledger, "_remove_placement", forgetful_take),
        patch.object(Ledger, "confirm", confirm),
        patch.object(Ledger, "check", lambda _: []),
        _without_oracle_checks(),
    )


def the_overlay_omits_earlier_gang_members() -> AbstractContextManager[Any]:
    def place(self: Overlay, pod: Any, node: Any) -> None:
        self._added[pod.uid] = (pod, node)

    return patch.object(Overlay, "add_pod", place)


def gangs_are_placed_partially() -> AbstractContextManager[Any]:
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


def a_deleted_node_stays_in_the_cache() -> AbstractContextManager[Any]:
    return patch.object(ClusterCache, "drop_node", lambda *_: frozenset())


def nominations_are_never_cleared() -> AbstractContextManager[Any]:
    return patch.object(SchedulerCore, "clear_nomination", lambda *_: None)


def capacity_holds_never_expire() -> AbstractContextManager[Any]:
    """The ledger's own check is switched off: only the liveness checker shows it."""

    def advance(self: KubeletRejections, now_ns: int) -> None:
        while (due_ns := self._expiries.first_key()) is not None and due_ns <= now_ns:
            self._expiries.pop()

    return all_patches(
        patch.object(KubeletRejections, "advance", advance),
        patch.object(KubeletRejections, "check", lambda _: iter(())),
    )


def a_deleted_pod_requeues_nothing() -> AbstractContextManager[Any]:
    wake = SchedulingQueue.requeue

    def deaf(self: SchedulingQueue, events: Any, now_ns: int, **more: Any) -> None:
        wake(
            self, [event for event in events if event is not ClusterEvent.ASSIGNED_POD_DELETE], now_ns, **more
        )

    return patch.object(SchedulingQueue, "requeue", deaf)


def a_watch_skips_changes_after_410_gone() -> AbstractContextManager[Any]:
    read = Reflector._list

    async def skip(self: Reflector[Any], page_size: int) -> None:
        if not self.lists_total:
            return await read(self, page_size)
        async for page in self._api.pages(self._resource.path, self._resource.params, page_size=0):
            self._version = page.resource_version
        return None

    return patch.object(Reflector, "_list", skip)


def a_condition_patch_omits_the_resource_version() -> AbstractContextManager[Any]:
    honest = Reporter._condition_body

    def body(self: Reporter, *what: Any, **more: Any) -> Any:
        written = honest(self, *what, **more)
        del written["metadata"]["resourceVersion"]
        return written

    return patch.object(Reporter, "_condition_body", body)


def a_broken_policy_is_activated() -> AbstractContextManager[Any]:
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


def policy_updates_are_ignored() -> AbstractContextManager[Any]:
    offer = PolicyRegistry.apply_update

    def once(self: PolicyRegistry, event: Any, now_ns: int) -> Any:
        return (
            offer(self, event, now_ns)
            if self._first_offer or len(self.running) < len(SCHEDULERS)
            else ([], [])
        )

    return patch.object(PolicyRegistry, "apply_update", once)


# ── ports, volumes and devices ─────────────────────────────────────────────────────────


def host_ports_are_not_checked() -> AbstractContextManager[Any]:
    """Ignored by the plan and by the reference implementation."""
    return _without_filter("node_ports")


def volume_node_affinity_is_ignored() -> AbstractContextManager[Any]:
    """The node affinity of volumes is not decoded, so pods go to nodes that cannot access them."""
    return patch.object(storage, "decode_node_selector", lambda _: None)


def read_write_once_pod_claims_are_shared() -> AbstractContextManager[Any]:
    return _without_filter("volume_restrictions")


def _without_filter(builtin: str) -> AbstractContextManager[Any]:
    return all_patches(
        patch.dict(FILTER_KERNELS, {builtin: lambda *_: None}),  # type: ignore[arg-type]
        patch.dict(ORACLE_FILTERS, {builtin: lambda *_: None}),
    )


def a_pod_is_bound_before_its_claims() -> AbstractContextManager[Any]:
    return patch.object(Prebinder, "_volumes_bound", lambda *_: True)


def a_reserved_volume_is_reserved_again() -> AbstractContextManager[Any]:
    """The API server refuses the second claim; what remains visible is that both writes were in flight."""
    return patch.object(VolumeCache, "reserve", lambda *_: None)


def device_node_selection_is_ignored() -> AbstractContextManager[Any]:
    """The node of a device is not decoded, so pods go to nodes that cannot access it."""
    return patch.object(devices, "_reach", lambda _: AccessibleNodes(all_nodes=True))


def a_reserved_device_is_reserved_again() -> AbstractContextManager[Any]:
    return patch.object(DeviceCache, "reserve", lambda *_: None)


def devices_are_released_before_their_writes_are_answered() -> AbstractContextManager[Any]:
    """When the pod is deleted meanwhile. The cache's own check is switched off."""
    return all_patches(
        patch.object(prebind, "_has_unanswered_device_writes", lambda _: False),
        patch.object(DeviceCache, "check", lambda _: []),
    )


# ── pods of other schedulers ───────────────────────────────────────────────────────────────────────────────────────────────────


def pods_of_unknown_schedulers_are_scheduled() -> AbstractContextManager[Any]:
    def decode(obj: Any) -> PodUpdated:
        observed = wire.decode_pod(obj)
        is_unknown = observed.pod.scheduler == UNKNOWN_SCHEDULER
        return PodUpdated(
            replace(observed, pod=replace(observed.pod, scheduler="beta")) if is_unknown else observed
        )

    return patch.object(scheduler_app, "PODS", replace(scheduler_app.PODS, updated_event=decode))


def pods_of_unknown_schedulers_get_conditions() -> AbstractContextManager[Any]:
    """They are scheduled, and no bind is sent."""
    return all_patches(
        pods_of_unknown_schedulers_are_scheduled(), patch.object(Binder, "put", lambda *_: None)
    )


def pods_of_unknown_schedulers_get_events() -> AbstractContextManager[Any]:
    updated = PodEvents.updated

    def updated_with_event(self: PodEvents, observed: ObservedPod, now_ns: int, *, synced: bool) -> None:
        updated(self, observed, now_ns, synced=synced)
        pod = observed.pod
        if pod.scheduler == UNKNOWN_SCHEDULER:
            about = (pod.uid, pod.namespace, pod.name, "beta")
            self._core.commands.append(ReportPodEvent(*about, "Normal", "Seen", "is nobody's"))

    return patch.object(PodEvents, "updated", updated_with_event)


# ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────


def each_retry_of_an_event_creates_another() -> AbstractContextManager[Any]:
    create = Reporter._create_event

    async def anew(self: Reporter, words: EventContent, series: Any) -> None:
        series.name = f"{words.regarding.name}.{self._random.getrandbits(64):016x}"
        await create(self, words, series)

    return patch.object(Reporter, "_create_event", anew)


def scheduled_events_are_not_recorded() -> AbstractContextManager[Any]:
    say = Reporter.record_event

    def hushed(self: Reporter, words: EventContent) -> None:
        if words.reason != "Scheduled":
            say(self, words)

    return patch.object(Reporter, "record_event", hushed)


# ── leaders and restarts ────────────────────────────────────────────────────────────────────────────────────────────────


def a_leader_that_lost_the_lease_keeps_deciding() -> AbstractContextManager[Any]:
    """The leader does not notice that renewals fail, nor that another replica holds the Lease."""

    async def keep(self: LeaderElector) -> None:
        self._leads_until_s = float("inf")
        await asyncio.Event().wait()

    return all_patches(
        patch.object(LeaderElector, "_renew_until_lost", keep),
        patch.object(LeaderElector, "may_write", LeaderElector.leads),
    )


def a_restart_ignores_the_last_known_good_policies() -> AbstractContextManager[Any]:
    async def nothing(self: LastGoodStore) -> Mapping[str, str]:
        return {}

    return patch.object(LastGoodStore, "read", nothing)


def a_restart_forgets_the_policy_state() -> AbstractContextManager[Any]:
    return patch.object(PolicyStates, "restore", lambda *_: [])


def each_pod_update_counts_the_run_again() -> AbstractContextManager[Any]:
    see = PolicyStates.pod_updated

    def forgetful(self: PolicyStates, observed: ObservedPod, now_ns: int) -> str | None:
        self.pod_deleted(observed.pod.uid)
        return see(self, observed, now_ns)

    return patch.object(PolicyStates, "pod_updated", forgetful)


# ── preemption ──────────────────────────────────────────────────────────────────────────────────────────────────────


def the_victims_condition_of_a_policy_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(
        CompiledVictims,
        "predicate",
        lambda _, observed: lambda victim: victim.priority < observed.pod.priority,
    )


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
    return patch.object(candidates, "split_by_budget", lambda pods, _: ([], list(pods)))


def more_pods_are_evicted_than_needed() -> AbstractContextManager[Any]:
    """No victim that would still fit is reprieved."""

    def candidate(node: Any, in_order: Any, _victims: Any, violations: int, cluster: Any) -> Candidate:
        return honest(node, in_order, in_order, violations, cluster)

    honest = candidates._candidate
    return patch.object(candidates, "_candidate", candidate)


def a_preemptor_is_not_requeued_after_its_evictions() -> AbstractContextManager[Any]:
    """After its victims have terminated the preemptor is not attempted again."""

    def evicted(self: DefaultPreemption, preemptor: PodUid, victims: Any, now_ns: int) -> None:
        eviction = self._evicting.get(preemptor)
        if eviction is not None:
            self._record_deletions(eviction, victims)

    return patch.object(DefaultPreemption, "on_evicted", evicted)


def preemption_places_a_gang_partially() -> AbstractContextManager[Any]:
    run = gang_room._GangSearch.run

    def content(self: gang_room._GangSearch) -> Steps[GangPlacement | NoGangPlacement]:
        outcome = yield from run(self)
        return GangPlacement(tuple(self.placements)) if self.placements else outcome

    return patch.object(gang_room._GangSearch, "run", content)


def gang_preemption_ignores_earlier_members() -> AbstractContextManager[Any]:
    def take(self: gang_room._GangSearch, member: MemberPlacement) -> None:
        self.placements.append(member)

    return patch.object(gang_room._GangSearch, "_apply_placement", take)


# ── queue order, load and indexes ────────────────────────────────────────────────────────────────────────────────


def a_fair_share_queue_is_not_reordered() -> AbstractContextManager[Any]:
    return patch.object(FairShareQueue, "_reposition_changed", lambda _: None)


def a_pod_overtakes_others_in_backoff() -> AbstractContextManager[Any]:
    return patch.object(SchedulingQueue, "yield_to_earlier", lambda *_: False)


def assumed_load_is_not_counted() -> AbstractContextManager[Any]:
    return patch.object(AssumedLoadTracker, "pod_placed", lambda *_: None)


def placed_gang_members_are_overlooked() -> AbstractContextManager[Any]:
    """By the plan. The oracle checker is switched off."""
    return all_patches(patch.object(GangMembers, "rows_of", lambda *_: {}), _without_oracle_checks())


def recovery_conditions_are_ignored() -> AbstractContextManager[Any]:
    return patch.object(RecoveryTracker, "apply_samples", lambda _self, _policy, _metric, samples: samples)


def missing_metrics_are_not_awaited() -> AbstractContextManager[Any]:
    """By the plan. The oracle checker is switched off."""
    return all_patches(patch.object(Evaluation, "_detect_outages", lambda *_: None), _without_oracle_checks())


def the_pod_index_keeps_deleted_pods() -> AbstractContextManager[Any]:
    return patch.object(PodIndex, "drop", lambda *_: None)


def extender_rejections_are_ignored() -> AbstractContextManager[Any]:
    return patch.object(calls, "nodes_passing_extenders", lambda nodes, _: nodes)


# ── gangs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def gang_topology_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "topology", property(lambda _: None, lambda *_: None))


def a_gang_times_out_too_early() -> AbstractContextManager[Any]:
    return patch.object(QueuedGang, "timeout_ns", property(lambda _: 10**9))
