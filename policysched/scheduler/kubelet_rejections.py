"""Pods that a kubelet did not take, and the room of its node that we cannot see.

A pod that fails at once gives its room back, and its node looks as empty as before; what its controller makes next would
go there again, and fail again. So where a kubelet counts less room than we do (a static pod without its mirror yet, a
pod of another scheduler, containers that still end), the difference is held back: the node counts as that much smaller,

    none ──rejected──► held ──pods that we did not place appear there, or it shrinks──► less held
      ▲                 │ ▲
      │           time is up  └──rejected again: held twice as long, ten minutes at most──┐
      └──forgotten──── remembered ────────────────────────────────────────────────────────┘

and the time is bounded, for we may never see what it was. A pod that is refused for another reason than room holds back
its own, once for all pods of its owner, so that pods that no kubelet takes cannot close a cluster.
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
"""A node, and what it is held back for: a resource, or the owner of pods."""


@dataclass(slots=True)
class _CapacityHold:
    """`amounts` by resource, none once the time is up; `repeat_count` it came to this in a row."""

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
        """Those of which something is held back now."""
        return [name for name, holds in self._holds.items() if any(one.amounts for one in holds.values())]

    # ── what happens ───────────────────────────────────────────────────────────────────────────────────────────────

    def pod_rejected(
        self, seen: ObservedPod, rejection: KubeletRejection, held: Placement, now_ns: int
    ) -> None:
        """The kubelet of the node did not take the pod, whose room is free again by our count."""
        core = self._core
        if seen.pod.scheduler in core.policies.running:
            core.counters.count_kubelet_rejection(rejection.reason, seen.pod.scheduler)
        node = core.cache.reported_node(held.node)
        if node is None:
            return
        what, amounts = self._capacity_to_hold(node, held.pod, rejection)
        hold = self._holds.setdefault(node.name, {}).setdefault(what, _CapacityHold())
        if not hold.repeat_count or now_ns >= hold.until_ns:
            hold.repeat_count += 1
            core.commands.append(_log_rejection(seen.pod, node, rejection, amounts, self._hold_ns(hold)))
        hold.amounts, hold.until_ns = amounts, now_ns + self._hold_ns(hold)
        self._expiries.put((node.name, what), hold.until_ns)
        self._apply(node.name, now_ns)

    def external_pod_placed(self, pod: Pod, node: NodeName, now_ns: int) -> None:
        """A pod that we did not place is on the node: what was held back may have been for it."""
        changed = False
        for resource, hold in self._holds.get(node, {}).items():
            if resource in hold.amounts:
                changed |= _reduce(hold, resource, 1 if resource == _PODS else pod.requests.get(resource, 0))
        if changed:
            self._apply(node, now_ns)

    def node_updated(self, node: Node, now_ns: int) -> None:
        """The node is about to be known as this: where it says itself that it has less, less is held back."""
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
        for what in self._holds.pop(name, {}):
            self._expiries.discard((name, what))

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now_ns: int) -> None:
        """Let go what was held back long enough, and forget what has not come again."""
        while (due_ns := self._expiries.first_key()) is not None and due_ns <= now_ns:
            key = self._expiries.pop()
            assert key is not None, "something is due and nothing stands in the heap"
            node, what = key
            hold = self._holds[node][what]
            if hold.amounts:
                hold.amounts = {}
                self._expiries.put(key, due_ns + self._hold_max_ns)
                self._apply(node, now_ns)
                continue
            del self._holds[node][what]
            if not self._holds[node]:
                del self._holds[node]

    def next_time_ns(self) -> int | None:
        return self._expiries.first_key()

    def check(self) -> Iterator[str]:
        """One sentence for each node that is not as small as it is to be."""
        cache = self._core.cache
        for name, node in cache.nodes.items():
            shown, held = cache.reported_node(name), self._held_capacity(name)
            assert shown is not None, f"{name} is known and was never shown"
            right = {one: max(0, amount - held.get(one, 0)) for one, amount in shown.allocatable.items()}
            if dict(node.allocatable) != right:
                yield f"node {name} counts with {dict(node.allocatable)}, {held} held back of {dict(shown.allocatable)}"
        for name, holds in self._holds.items():
            for what in holds:
                if (name, what) not in self._expiries:
                    yield f"node {name} is held back for {what} without an end"

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _capacity_to_hold(self, node: Node, pod: Pod, why: KubeletRejection) -> tuple[str, dict[str, int]]:
        if why.shortage is None:
            owner = f"{pod.owner_kind} {pod.namespace}/{pod.owner_name}" if pod.owner_name else pod.full_name
            return owner, {**{one: amount for one, amount in pod.requests.items() if amount}, _PODS: 1}
        resource, usage = why.shortage.resource, self._core.cache.ledger.usage(node.name)
        asked = 1 if resource == _PODS else pod.requests.get(resource, 0)
        used = len(usage.pods) if resource == _PODS else usage.requested.get(resource, 0)
        # Where its words do not say what it has left, it is less than the pod asked for.
        free = max(0, asked - 1) if why.shortage.free is None else why.shortage.free
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
    """Whether this pod is what brings its node over what it has: somebody filled it while we thought there was room."""
    node, usage = cache.reported_node(placement.node), cache.ledger.usage(placement.node)
    if node is None:
        return False
    for resource, asked in {**placement.pod.requests, _PODS: 1}.items():
        has = node.allocatable.get(resource, 0)
        used = len(usage.pods) if resource == _PODS else usage.requested.get(resource, 0)
        if asked and used > has >= used - asked:
            return True
    return False


def _reduce(hold: _CapacityHold, resource: str, amount: int) -> bool:
    if amount <= 0:
        return False
    left = hold.amounts.pop(resource) - amount
    if left > 0:
        hold.amounts[resource] = left
    return True


def _log_rejection(pod: Pod, node: Node, why: KubeletRejection, amounts: dict[str, int], span_ns: int) -> Log:
    held = ", ".join(f"{amount} of {resource}" for resource, amount in sorted(amounts.items()))
    return Log(
        "warning",
        "a kubelet did not take a pod that was bound to its node",
        {
            "pod": pod.full_name,
            "node": node.name,
            "reason": why.reason,
            "held_back": held or "nothing",
            "for_s": span_ns / SECOND_NS if amounts else 0,
        },
    )
