"""Pods that a kubelet rejected, and the capacity of its node that is held back because of them.

A rejected pod fails at once and frees its requests, so its node looks as empty as before, and the pod's replacement
would go there and fail again. A kubelet can count less free capacity than the cache: a static pod without a mirror pod
yet, a pod of another scheduler, containers that still terminate. That difference is held back from the node:

    none ──rejected──► held ──external pods appear there, or the node shrinks──► less held
      ▲                 │ ▲
      │          expired │ └──rejected again: held twice as long, ten minutes at most──┐
      └──forgotten── remembered ───────────────────────────────────────────────────────┘

The hold expires, because its cause may never become visible. A pod that is rejected for another reason than capacity
holds back its own requests, once for all pods of its owner, so that pods that no kubelet accepts cannot fill a cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from policysched.cluster.cache import ClusterCache
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pod_status import KubeletRejection, ObservedPod
from policysched.model.pods import Placement, Pod
from policysched.scheduler.commands import Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.movable_heap import MovableHeap

_PODS = "pods"
_HoldKey = tuple[NodeName, str]
"""A node, and the cause of the hold: a resource, or the owner of pods."""


@dataclass(slots=True)
class _CapacityHold:
    """`amounts` by resource, empty after it expired; `repeat_count`: rejections in a row."""

    amounts: dict[str, int] = field(default_factory=dict)
    until_ns: int = 0
    repeat_count: int = 0


class KubeletRejections:
    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._holds: dict[NodeName, dict[str, _CapacityHold]] = {}
        self._expiries: MovableHeap[_HoldKey] = MovableHeap()

    @property
    def nodes_with_holds(self) -> list[NodeName]:
        """Nodes with capacity held back now."""
        return [name for name, holds in self._holds.items() if any(hold.amounts for hold in holds.values())]

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def pod_rejected(
        self, observed: ObservedPod, rejection: KubeletRejection, held: Placement, now_ns: int
    ) -> None:
        """The kubelet rejected the pod, whose requests the cache counts as free again."""
        core = self._core
        if observed.pod.scheduler in core.policies.running:
            core.records.counters.count_kubelet_rejection(rejection.reason, observed.pod.scheduler)
        node = core.cache.reported_node(held.node)
        if node is None:
            return
        cause, amounts = self._capacity_to_hold(node, held.pod, rejection)
        hold = self._holds.setdefault(node.name, {}).setdefault(cause, _CapacityHold())
        if not hold.repeat_count or now_ns >= hold.until_ns:
            hold.repeat_count += 1
            core.commands.append(_log_rejection(observed.pod, node, rejection, amounts, self._hold_ns(hold)))
        hold.amounts, hold.until_ns = amounts, now_ns + self._hold_ns(hold)
        self._expiries.put((node.name, cause), hold.until_ns)
        self._apply(node.name, now_ns)

    def external_pod_placed(self, pod: Pod, node: NodeName, now_ns: int) -> None:
        """Another scheduler's pod is on the node: the capacity may have been held back for it."""
        changed = False
        for resource, hold in self._holds.get(node, {}).items():
            if resource in hold.amounts:
                changed |= _reduce(hold, resource, 1 if resource == _PODS else pod.requests.get(resource, 0))
        if changed:
            self._apply(node, now_ns)

    def node_updated(self, node: Node, now_ns: int) -> None:
        """Called before the cache has the node: hold back less of what the node itself reports less of."""
        before = self._core.cache.reported_node(node.name)
        if before is None:
            return
        changed = False
        for resource, hold in self._holds.get(node.name, {}).items():
            if resource in hold.amounts:
                smaller = before.allocatable.get(resource, 0) - node.allocatable.get(resource, 0)
                changed |= _reduce(hold, resource, max(0, smaller))
        if changed:
            self._apply(node.name, now_ns)

    def node_deleted(self, name: NodeName) -> None:
        for cause in self._holds.pop(name, {}):
            self._expiries.discard((name, cause))

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now_ns: int) -> None:
        """Release holds that expired, and forget those that were not repeated."""
        while (due_ns := self._expiries.first_key()) is not None and due_ns <= now_ns:
            key = self._expiries.pop()
            assert key is not None, "an expiry is due and the heap is empty"
            node, cause = key
            hold = self._holds[node][cause]
            if hold.amounts:
                hold.amounts = {}
                self._expiries.put(key, due_ns + self._hold_max_ns)
                self._apply(node, now_ns)
                continue
            del self._holds[node][cause]
            if not self._holds[node]:
                del self._holds[node]

    def next_time_ns(self) -> int | None:
        return self._expiries.first_key()

    def check(self) -> Iterator[str]:
        """One sentence for each node whose allocatable is not reduced by exactly what is held back."""
        cache = self._core.cache
        for name, node in cache.nodes.items():
            reported, held = cache.reported_node(name), self._held_capacity(name)
            assert reported is not None, f"{name} is in the cache and was never reported"
            right = {
                resource: max(0, amount - held.get(resource, 0))
                for resource, amount in reported.allocatable.items()
            }
            if dict(node.allocatable) != right:
                yield f"node {name} has allocatable {dict(node.allocatable)}, with {held} held back of {dict(reported.allocatable)}"
        for name, holds in self._holds.items():
            for cause in holds:
                if (name, cause) not in self._expiries:
                    yield f"node {name} has a hold for {cause} without an expiry"

    # ── helpers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _capacity_to_hold(
        self, node: Node, pod: Pod, rejection: KubeletRejection
    ) -> tuple[str, dict[str, int]]:
        if rejection.shortage is None:
            owner = f"{pod.owner_kind} {pod.namespace}/{pod.owner_name}" if pod.owner_name else pod.full_name
            return owner, {
                **{resource: amount for resource, amount in pod.requests.items() if amount},
                _PODS: 1,
            }
        resource, usage = rejection.shortage.resource, self._core.cache.ledger.usage(node.name)
        requested_amount = 1 if resource == _PODS else pod.requests.get(resource, 0)
        used = len(usage.pods) if resource == _PODS else usage.requested.get(resource, 0)
        # Without a number in the message, less than the pod's request is free.
        free = max(0, requested_amount - 1) if rejection.shortage.free is None else rejection.shortage.free
        hidden = node.allocatable.get(resource, 0) - used - free
        return resource, {resource: hidden} if hidden > 0 else {}

    def _apply(self, name: NodeName, now_ns: int) -> None:
        self._core.queue.requeue(self._core.cache.reduce_allocatable(name, self._held_capacity(name)), now_ns)

    def _held_capacity(self, name: NodeName) -> dict[str, int]:
        total: dict[str, int] = {}
        for hold in self._holds.get(name, {}).values():
            for resource, amount in hold.amounts.items():
                total[resource] = total.get(resource, 0) + amount
        return total

    def _hold_ns(self, hold: _CapacityHold) -> int:
        first_ns = round(self._core.limits.rejection_hold_s * SECOND_NS)
        return min(first_ns << min(hold.repeat_count - 1, 32), self._hold_max_ns)

    @property
    def _hold_max_ns(self) -> int:
        return round(self._core.limits.rejection_hold_max_s * SECOND_NS)


def overcommits_node(cache: ClusterCache, placement: Placement) -> bool:
    """Whether this placement exceeds the allocatable of its node: another scheduler filled it at the same time."""
    node, usage = cache.reported_node(placement.node), cache.ledger.usage(placement.node)
    if node is None:
        return False
    for resource, requested_amount in {**placement.pod.requests, _PODS: 1}.items():
        has = node.allocatable.get(resource, 0)
        used = len(usage.pods) if resource == _PODS else usage.requested.get(resource, 0)
        if requested_amount and used > has >= used - requested_amount:
            return True
    return False


def _reduce(hold: _CapacityHold, resource: str, amount: int) -> bool:
    if amount <= 0:
        return False
    left = hold.amounts.pop(resource) - amount
    if left > 0:
        hold.amounts[resource] = left
    return True


def _log_rejection(
    pod: Pod, node: Node, rejection: KubeletRejection, amounts: dict[str, int], span_ns: int
) -> Log:
    held = ", ".join(f"{amount} of {resource}" for resource, amount in sorted(amounts.items()))
    return Log(
        "warning",
        "a kubelet rejected a pod that was bound to its node",
        {
            "pod": pod.full_name,
            "node": node.name,
            "reason": rejection.reason,
            "held_back": held or "nothing",
            "for_s": span_ns / SECOND_NS if amounts else 0,
        },
    )
