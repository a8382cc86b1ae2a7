"""The cluster as last seen, one change at a time.

Every change answers which `ClusterEvent`s it amounts to, so that the queue knows whom it could help, and notes which
nodes it touched, so that columns refresh those rows and no others.
"""

from collections.abc import Mapping
from dataclasses import replace

from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.nominations import Nominations
from policysched.cluster.objects import (
    DisruptionBudget,
    Namespace,
    Node,
    NodeName,
    ObservedPod,
    Placement,
    Pod,
    PodSet,
    PodSetKind,
    PodUid,
)
from policysched.cluster.pod_sets import PodSets
from policysched.cluster.shares import Shares
from policysched.lang.events import ClusterEvent

Events = frozenset[ClusterEvent]
_NOTHING: Events = frozenset()


class Cache:
    """Nodes, namespaces and unfinished pods by their keys, and the ledger of who holds which room.

    A pod's way through `put_pod`: not bound, then bound (the ledger confirms), then finished or dropped (the ledger
    removes). An event that shows a bound pod as not bound is late and changes nothing: a binding is never undone under
    one UID. A pod bound to a node that is not known is kept, and counted when its node comes.
    """

    def __init__(self) -> None:
        self.nodes: dict[NodeName, Node] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.namespaces_version = 0  # moves with every change of one
        self.pods: dict[PodUid, ObservedPod] = {}
        self.budgets: dict[tuple[str, str], DisruptionBudget] = {}
        self.pod_sets = PodSets()
        self._nominations = Nominations()
        # Nodes as they are shown, and what is held back of each.
        self._held: dict[NodeName, tuple[Node, Mapping[str, int]]] = {}
        self.ledger = Ledger()
        self._node_objects: dict[NodeName, dict[str, str]] = {}
        self._changed_nodes: set[NodeName] = set()

    def changed_nodes(self) -> set[NodeName]:
        """The nodes that changed, came, went, or whose pods did, since the last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed

    @property
    def shares(self) -> Shares:
        """What each namespace holds of the cluster."""
        return self.ledger.shares

    @property
    def nominated(self) -> Mapping[PodUid, ObservedPod]:
        """Pods on no node that are nominated to one, with `nominated_node` as it holds for us."""
        return self._nominations.by_pod

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_pod(self, seen: ObservedPod) -> Events:
        uid = seen.pod.uid
        if seen.finished:
            return self.drop_pod(uid)
        known = self.pods.get(uid)
        if known is not None and known == seen:
            if known.version != seen.version:
                # The value itself stays the same one, by which others tell that nothing changed.
                self.pods[uid] = replace(known, version=seen.version, generation=seen.generation)
            return _NOTHING
        if known is not None and known.node is not None and seen.node is None:
            return _NOTHING
        self.pods[uid] = seen
        if seen.node is None:
            self._nominations.shown(seen)
            return frozenset({_UNSCHEDULED_UPDATE if known else ClusterEvent.UNSCHEDULED_POD_ADD})
        self._nominations.forget(uid)
        return self._confirm(seen.pod, seen.node)

    def drop_pod(self, uid: PodUid) -> Events:
        """The pod is gone or has finished: it holds nothing any more."""
        self.pods.pop(uid, None)
        self._nominations.forget(uid)
        return self._freed(self.ledger.remove(uid))

    def nominate(self, uid: PodUid, node: NodeName | None) -> Events:
        """The pod is to have this node once there is room (None: it is not any more), whatever the watch still shows.
        A nomination taken back may leave room for others."""
        before, seen = self._nominations.node_of(uid), self.pods[uid]
        assert seen.node is None, f"{seen.pod.full_name} is on {seen.node} and cannot be nominated"
        self._nominations.promise(seen, node)
        return _NOTHING if before in (None, node) else frozenset({ClusterEvent.ASSIGNED_POD_DELETE})

    def assume(self, pod: Pod, node: NodeName) -> Events:
        self.ledger.assume(pod, node)
        self._changed_nodes.add(node)
        return frozenset({ClusterEvent.ASSIGNED_POD_ADD})

    def prepare(self, uid: PodUid) -> None:
        self.ledger.prepare(uid)

    def confirm(self, pod: Pod, node: NodeName) -> Events:
        """A bind was answered with yes; the watch will show the same, before or after."""
        return self._confirm(pod, node)

    def withdraw(self, uid: PodUid) -> Events:
        return self._freed(self.ledger.withdraw(uid))

    def _confirm(self, pod: Pod, node: NodeName) -> Events:
        before = self.ledger.placement(pod.uid)
        was_bound = self.ledger.state(pod.uid) is PlacementState.BOUND
        self.ledger.confirm(pod, node)
        if before is None:
            self._changed_nodes.add(node)
            return frozenset({ClusterEvent.ASSIGNED_POD_ADD})
        if before == Placement(pod, node):
            return _NOTHING
        self._changed_nodes.update((before.node, node))
        if before.node != node:
            return frozenset({ClusterEvent.ASSIGNED_POD_ADD, ClusterEvent.ASSIGNED_POD_DELETE})
        shrunk = any(pod.requests.get(name, 0) < amount for name, amount in before.pod.requests.items())
        changed = {ClusterEvent.ASSIGNED_POD_UPDATE} if was_bound else set()
        return frozenset(changed | ({ClusterEvent.ASSIGNED_POD_DELETE} if shrunk else set()))

    def _freed(self, placement: Placement | None) -> Events:
        if placement is None:
            return _NOTHING
        self._changed_nodes.add(placement.node)
        return frozenset({ClusterEvent.ASSIGNED_POD_DELETE})

    # ── nodes and namespaces ───────────────────────────────────────────────────────────────────────────────────────

    def put_node(self, node: Node) -> Events:
        """With the custom resources that bear its name, which may have come before it; a node of another cache brings
        those that it had there."""
        node = replace(node, objects={**node.objects, **self._node_objects.get(node.name, {})})
        _, held = self._held.get(node.name, (node, None))
        if held is not None:
            self._held[node.name] = node, held
            node = _smaller(node, held)
        return self._put_node(node)

    def hold_back(self, name: NodeName, amounts: Mapping[str, int]) -> Events:
        """The node counts as so much smaller than the API server shows it, by resource, until this is called anew."""
        shown = self.shown_node(name)
        if shown is None:
            return _NOTHING
        if amounts:
            self._held[name] = shown, dict(amounts)
            return self._put_node(_smaller(shown, amounts))
        self._held.pop(name, None)
        return self._put_node(shown)

    def shown_node(self, name: NodeName) -> Node | None:
        """The node as the API server shows it, with nothing held back."""
        return self._held[name][0] if name in self._held else self.nodes.get(name)

    def _put_node(self, node: Node) -> Events:
        known = self.nodes.get(node.name)
        if known == node:
            return _NOTHING
        if known is not None:
            self.shares.resize(known.allocatable, -1)
        self.shares.resize(node.allocatable, 1)
        self.nodes[node.name] = node
        self._changed_nodes.add(node.name)
        if known is None:
            return frozenset({ClusterEvent.NODE_ADD})
        return frozenset(event for event, differs in _NODE_DIFFERENCES if differs(known, node))

    def drop_node(self, name: NodeName) -> Events:
        """A node that leaves helps nobody who was refused for want of room, but its domain may be gone with it, and so
        may be what was placed in it."""
        self._held.pop(name, None)
        gone = self.nodes.pop(name, None)
        if gone is None:
            return _NOTHING
        self.shares.resize(gone.allocatable, -1)
        self._changed_nodes.add(name)
        return frozenset({ClusterEvent.NODE_DELETE})

    def put_node_object(self, kind: str, name: NodeName, text: str) -> Events:
        """A custom resource that bears the node's name, as JSON. The node may be yet to come."""
        self._node_objects.setdefault(name, {})[kind] = text
        return self._renew_objects(name)

    def drop_node_object(self, kind: str, name: NodeName) -> Events:
        held = self._node_objects.get(name, {})
        held.pop(kind, None)
        if not held:
            self._node_objects.pop(name, None)
        return self._renew_objects(name)

    def _renew_objects(self, name: NodeName) -> Events:
        shown = self.shown_node(name)
        return _NOTHING if shown is None else self.put_node(replace(shown, objects={}))

    def put_namespace(self, namespace: Namespace) -> Events:
        if self.namespaces.get(namespace.name) == namespace:
            return _NOTHING
        self.namespaces[namespace.name] = namespace
        self.namespaces_version += 1
        return frozenset({ClusterEvent.NAMESPACE})

    def drop_namespace(self, name: str) -> Events:
        if self.namespaces.pop(name, None) is None:
            return _NOTHING
        self.namespaces_version += 1
        return frozenset({ClusterEvent.NAMESPACE})

    # ── Services and controllers ───────────────────────────────────────────────────────────────────────────────────

    def put_pod_set(self, one: PodSet) -> Events:
        """Which pods belong together, and so are spread where they do not say how, may be others now."""
        return frozenset({ClusterEvent.POD_SET}) if self.pod_sets.put(one) else _NOTHING

    def drop_pod_set(self, kind: PodSetKind, namespace: str, name: str) -> Events:
        return frozenset({ClusterEvent.POD_SET}) if self.pod_sets.drop(kind, namespace, name) else _NOTHING

    # ── budgets ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_budget(self, budget: DisruptionBudget) -> None:
        """Wakes nobody: a budget says whom to evict rather, not who may go where."""
        self.budgets[budget.namespace, budget.name] = budget

    def drop_budget(self, namespace: str, name: str) -> None:
        self.budgets.pop((namespace, name), None)


def _smaller(node: Node, held: Mapping[str, int]) -> Node:
    left = {resource: max(0, amount - held.get(resource, 0)) for resource, amount in node.allocatable.items()}
    return replace(node, allocatable=left)


_UNSCHEDULED_UPDATE = ClusterEvent.UNSCHEDULED_POD_UPDATE

_NODE_DIFFERENCES = (
    (ClusterEvent.NODE_ALLOCATABLE, lambda old, new: old.allocatable != new.allocatable),
    (ClusterEvent.NODE_LABEL, lambda old, new: old.labels != new.labels),
    (ClusterEvent.NODE_OBJECT, lambda old, new: old.objects != new.objects),
    (ClusterEvent.NODE_ANNOTATION, lambda old, new: old.annotations != new.annotations),
    (
        ClusterEvent.NODE_TAINT,
        lambda old, new: (old.taints, old.unschedulable) != (new.taints, new.unschedulable),
    ),
    (
        ClusterEvent.NODE_CONDITION,
        lambda old, new: (old.conditions, old.ready) != (new.conditions, new.ready),
    ),
    (ClusterEvent.NODE_IMAGE, lambda old, new: old.images != new.images),
    (ClusterEvent.NODE_FEATURE, lambda old, new: old.declared_features != new.declared_features),
)
