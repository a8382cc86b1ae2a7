"""Pods that a kubelet rejected for lack of capacity, and the capacity of its node that is held back because of them.

A rejected pod fails at once and frees its requests, so its node looks as empty as before, and the pod's replacement
would go there and fail again. A kubelet can count less free capacity than the cache: a static pod without a mirror pod
yet, a pod of another scheduler, containers that still terminate. That difference is held back from the node:

    none ──rejected──► held ──external pods appear there, or the node shrinks──► less held
      ▲                 │ ▲
      │          expired │ └──rejected again: held twice as long, ten minutes at most──┐
      └──forgotten── remembered ───────────────────────────────────────────────────────┘

The hold expires, because its cause may never become visible. It counts like a nominated pod of the rejected pod's
priority (`core.capacity_holds`): pods of higher priority ignore it, as they would preempt. A first hold causes no eviction: it
may be over with containers that still terminate. One that was repeated does, as its cause stays. The rejections of one
namespace, and those of one controller in it, hold back a bounded share of the nodes. Any other reason of a kubelet is not about capacity and holds nothing
back: the pod's operating system, a sysctl, node affinity, a NUMA node.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from policysched.cluster.cache import ClusterCache
from policysched.cluster.node_usage import FURTHER_PODS, REQUESTED_MAX
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import KubeletRejection, ObservedPod, ResourceShortage
from policysched.model.pods import Placement, Pod
from policysched.scheduler.blame import change_id, raises_for
from policysched.scheduler.commands import Log
from policysched.scheduler.core import HeldCapacity, SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.movable_heap import MovableHeap

NAMESPACE_SHARE = 4
"""The rejections of one namespace hold back at most one node in this many, and may always hold back one."""
OWNER_SHARE = 8
"""The same for the pods of one controller. A pod without one is its own owner."""
STAND_INS_MAX = 100
"""Of a node, which can list any number of resources: each decision visits every stand-in (6 us)."""

_PODS = "pods"
_COUNTED_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", _PODS})
"""With a reason of their own in the metric, as in the kubelet's. A node can list any number of others in its status."""
_OF_UNKNOWN_RESOURCE = KubeletRejection("OutOfUnknownResource", None)
"""For a resource that the node does not have, which nothing is held back of: whoever names a node in a pod also names the
resource (`hugepages-3Mi`), and would make a series of metrics and a line of the log for each."""
_HoldKey = tuple[NodeName, str]
"""A node, and the cause of the hold: a resource, or a description of a rejection that holds nothing back."""
_Owner = tuple[str, str, str]
"""The namespace, and the kind and name of the controller, or of the pod itself."""


@dataclass(slots=True)
class _CapacityHold:
    """`amount` 0: nothing is held, or no longer. `repeat_count`: rejections in a row. `owner` and `priority` are those of
    the rejected pod; of several, the highest priority."""

    amount: int = 0
    priority: int = 0
    owner: _Owner | None = None
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
        return list(self._core.capacity_holds)

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def pod_rejected(
        self, observed: ObservedPod, rejection: KubeletRejection, placement: Placement, now_ns: int
    ) -> None:
        """The kubelet rejected the pod, whose requests the cache counts as free again."""
        core, node = self._core, self._core.cache.nodes.get(placement.node)
        shortage = rejection.shortage
        if shortage is not None and (node is None or shortage.resource not in node.allocatable):
            rejection, shortage = _OF_UNKNOWN_RESOURCE, None
        if observed.pod.scheduler in core.policies.running:
            is_counted = shortage is None or shortage.resource in _COUNTED_RESOURCES
            reason = rejection.reason if is_counted else "OutOfOtherResource"
            core.records.counters.count_kubelet_rejection(reason, observed.pod.scheduler)
        if node is None:
            return
        if shortage is None:
            self._hold(
                f"{rejection.reason} in {placement.pod.namespace}", 0, observed.pod, node, rejection, now_ns
            )
        elif self._may_hold(_owner_of(placement.pod), node.name):
            hidden_amount = self._hidden_amount(node, placement.pod, shortage)
            self._hold(shortage.resource, hidden_amount, observed.pod, node, rejection, now_ns)
        else:
            self._hold(
                f"beyond the share of {placement.pod.namespace} or its owner",
                0,
                observed.pod,
                node,
                rejection,
                now_ns,
            )

    def _hold(
        self, cause: str, amount: int, pod: Pod, node: Node, rejection: KubeletRejection, now_ns: int
    ) -> None:
        """`cause` is a resource where `amount` is not 0. The log has one line for each cause and time."""
        hold = self._holds.setdefault(node.name, {}).setdefault(cause, _CapacityHold())
        hold.priority = max(pod.priority, hold.priority) if hold.amount else pod.priority
        hold.owner = _owner_of(pod)
        if not hold.repeat_count or now_ns >= hold.until_ns:
            hold.repeat_count += 1
            self._core.commands.append(
                Log(
                    "warning",
                    "a kubelet rejected a pod that was bound to its node",
                    {
                        "pod": pod.full_name,
                        "node": node.name,
                        "reason": rejection.reason,
                        "held_back": f"{amount} of {cause}" if amount else "nothing",
                        "for_s": self._hold_ns(hold) / SECOND_NS if amount else 0,
                    },
                )
            )
        hold.amount, hold.until_ns = amount, now_ns + self._hold_ns(hold)
        self._expiries.put((node.name, cause), hold.until_ns)
        self._apply(node.name, now_ns, pod.namespace)

    def external_pod_placed(self, pod: Pod, node: NodeName, now_ns: int) -> None:
        """Another scheduler's pod is on the node: the capacity may have been held back for it."""
        changed = False
        for resource, hold in self._holds.get(node, {}).items():
            changed |= _reduce(hold, 1 if resource == _PODS else pod.requests.get(resource, 0))
        if changed:
            self._apply(node, now_ns, pod.namespace)

    def node_updated(self, node: Node, now_ns: int) -> None:
        """Called before the cache has the node: hold back less of what the node itself reports less of."""
        before = self._core.cache.nodes.get(node.name)
        if before is None:
            return
        changed = False
        for resource, hold in self._holds.get(node.name, {}).items():
            changed |= _reduce(hold, before.allocatable.get(resource, 0) - node.allocatable.get(resource, 0))
        if changed:
            self._apply(node.name, now_ns, None)

    def node_deleted(self, name: NodeName) -> None:
        self._core.capacity_holds.pop(name, None)
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
            if hold.amount:
                hold.amount = 0
                self._expiries.put(key, due_ns + self._hold_max_ns)
                namespace = "" if hold.owner is None else hold.owner[0]
                with raises_for(change_id(namespace)):
                    self._apply(node, now_ns, namespace)
                continue
            del self._holds[node][cause]
            if not self._holds[node]:
                del self._holds[node]

    def next_time_ns(self) -> int | None:
        return self._expiries.first_key()

    def check(self) -> Iterator[str]:
        """One sentence for each node whose held capacity is not what evaluations count, or never expires."""
        for name, holds in self._holds.items():
            for cause in holds:
                if (name, cause) not in self._expiries:
                    yield f"node {name} has a hold for {cause} without an expiry"
        for name in self._holds.keys() | self._core.capacity_holds.keys():
            counted, right = self._core.capacity_holds.get(name, ()), self._pods_of(name)
            if counted != right:
                yield f"node {name} has holds {right}, and {counted} are counted"

    # ── helpers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_hold(self, owner: _Owner, name: NodeName) -> bool:
        """Whether the namespace and the owner hold back few enough nodes, with this one."""
        owners = [
            (node, hold.owner)
            for node, holds in self._holds.items()
            for hold in holds.values()
            if hold.amount and hold.owner is not None and hold.owner[0] == owner[0]
        ]
        of_namespace = {node for node, _ in owners}
        of_owner = {node for node, other in owners if other == owner}
        return all(
            name in nodes or len(nodes) < max(1, len(self._core.cache.nodes) // share)
            for nodes, share in ((of_namespace, NAMESPACE_SHARE), (of_owner, OWNER_SHARE))
        )

    def _hidden_amount(self, node: Node, pod: Pod, shortage: ResourceShortage) -> int:
        """What the cache counts as free and the kubelet does not."""
        resource, usage = shortage.resource, self._core.cache.ledger.usage(node.name)
        requested_amount = 1 if resource == _PODS else pod.requests.get(resource, 0)
        used = len(usage.pods) if resource == _PODS else usage.requested.get(resource, 0)
        # Without a number in the message, less than the pod's request is free.
        free = max(0, requested_amount - 1 if shortage.free is None else shortage.free)
        return max(0, node.allocatable.get(resource, 0) - used - free)

    def _apply(self, name: NodeName, now_ns: int, cause: str | None) -> None:
        """`cause`: the namespace of the pod by which the hold changed; None: the node itself changed."""
        core, before = self._core, self._core.capacity_holds.pop(name, ())
        after = self._pods_of(name)
        if after:
            core.capacity_holds[name] = after
        if before != after:
            core.queue.requeue({ClusterEvent.ASSIGNED_POD_DELETE}, now_ns, cause=cause)

    def _pods_of(self, name: NodeName) -> tuple[HeldCapacity, ...]:
        """What is held back of the node, as a stand-in for each priority."""
        amounts: dict[tuple[int, bool], dict[str, int]] = {}
        for resource, hold in sorted(self._holds.get(name, {}).items()):
            if hold.amount:
                amounts.setdefault((hold.priority, hold.repeat_count > 1), {})[resource] = hold.amount
        holds: list[HeldCapacity] = []
        for (priority, is_repeated), requests in sorted(amounts.items()):
            further_pods = requests.pop(_PODS, 1) - 1
            if further_pods:
                requests[FURTHER_PODS] = min(further_pods, REQUESTED_MAX)
            uid = f"capacity-hold/{name}/{priority}/{'again' if is_repeated else 'first'}"
            holds.append(HeldCapacity(_stand_in(uid, priority, requests), is_repeated))
        return tuple(holds[-STAND_INS_MAX:])  # of the highest priorities

    def _hold_ns(self, hold: _CapacityHold) -> int:
        first_ns = round(self._core.limits.rejection_hold_s * SECOND_NS)
        return min(first_ns << min(hold.repeat_count - 1, 32), self._hold_max_ns)

    @property
    def _hold_max_ns(self) -> int:
        return round(self._core.limits.rejection_hold_max_s * SECOND_NS)


def overcommits_node(cache: ClusterCache, placement: Placement) -> bool:
    """Whether this placement exceeds the allocatable of its node: another scheduler filled it at the same time."""
    node, usage = cache.nodes.get(placement.node), cache.ledger.usage(placement.node)
    if node is None:
        return False
    for resource, requested_amount in {**placement.pod.requests, _PODS: 1}.items():
        has = node.allocatable.get(resource, 0)
        used = len(usage.pods) if resource == _PODS else usage.requested.get(resource, 0)
        if requested_amount and used > has >= used - requested_amount:
            return True
    return False


def _owner_of(pod: Pod) -> _Owner:
    if pod.owner_name:
        return pod.namespace, pod.owner_kind, pod.owner_name
    return pod.namespace, "Pod", pod.name


def _reduce(hold: _CapacityHold, amount: int) -> bool:
    """Reduce the hold by this amount. False: nothing changes."""
    if amount <= 0 or not hold.amount:
        return False
    hold.amount = max(0, hold.amount - amount)
    return True


def _stand_in(name: str, priority: int, requests: dict[str, int]) -> Pod:
    """A pod in no namespace and without labels, so that no selector of a namespace matches it."""
    return Pod(
        uid=PodUid(name),
        name=name,
        namespace="",
        labels={},
        annotations={},
        scheduler="",
        priority=priority,
        preemption_policy="Never",
        created_ns=0,
        deadline_ns=None,
        owner_api="",
        owner_kind="",
        owner_name="",
        service_account="",
        requests=requests,
        limits={},
        scoring_requests=(0, 0),
        scoring_requests_placed=(0, 0),
        qos=0,
        node_selector={},
        affinity=None,
        tolerations=(),
        host_ports=(),
        images=(),
        image_volumes=(),
        gates=(),
        pod_affinity=None,
        spread=(),
        terminating=False,
        required_features=frozenset(),
        uncovered=(),
    )
