"""Planted bugs of the ledger, the cache, watches, volumes and devices.

Each function returns the patch (`planted`).
"""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import orjson

from policysched.builtins.kernels import FILTER_KERNELS
from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.evaluate.columns.overlay import Overlay
from policysched.kube.client.api import ApiErrors
from policysched.kube.decode import devices, storage
from policysched.kube.watch.reflector import Reflector
from policysched.kube.write import bind as binding
from policysched.kube.write.bind import Binder
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.pending_binds import PendingBind
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import AccessibleNodes
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Placement
from policysched.scheduler import prebind
from policysched.scheduler.commands import Bind
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import BindConfirmed, BindRefused
from policysched.scheduler.kubelet_rejections import KubeletRejections
from policysched.scheduler.policies.registry import PolicyRegistry
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.reference.builtins import FILTERS as ORACLE_FILTERS
from tests.simulation import world
from tests.simulation.planted import all_patches, without_oracle_checks
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS

# ── ledger, cache and watches ───────────────────────────────────────────────────────────────────────


def the_event_of_a_node_raises() -> AbstractContextManager[Any]:
    def put_node(self: ClusterCache, node: Node) -> Any:
        if node.unschedulable:
            raise OverflowError("planted")
        return right(self, node)

    right = ClusterCache.put_node
    return patch.object(ClusterCache, "put_node", put_node)


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
        without_oracle_checks(),
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
    original = Reporter._condition_body

    def body(self: Reporter, *what: Any, **more: Any) -> Any:
        written = original(self, *what, **more)
        del written["metadata"]["resourceVersion"]
        return written

    return patch.object(Reporter, "_condition_body", body)


def a_broken_policy_is_activated() -> AbstractContextManager[Any]:
    compiled = world.compiled

    def lenient(texts: Any) -> Any:
        mended = {
            key: GOOD[key][0].replace("weight 3", "weight 4").replace("timeout = 20s", "timeout = 21s")
            if text in BAD.get(key, ())
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


# ── ports, volumes and devices ──────────────────────────────────────────────────────────────────────


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
