"""The cluster as last seen, one change at a time.

Every change answers which `ClusterEvent`s it amounts to, so that the queue knows whom it could help, and notes which
nodes it touched, so that columns refresh those rows and no others.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.node_storage import NodeStorage
from policysched.cluster.nominations import Nominations
from policysched.cluster.pod_index import PodIndex, compact_ended_pod
from policysched.cluster.pod_sets import PodSets
from policysched.cluster.shares import NamespaceShares
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import (
    DeviceClass,
    DeviceKind,
    DeviceObject,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement, Pod
from policysched.model.storage import (
    CsiDriver,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
    StorageKind,
    StorageObject,
    VolumeAttachment,
)
from policysched.model.workloads import DisruptionBudget, PodSet, PodSetKind

Events = frozenset[ClusterEvent]
_NO_EVENTS: Events = frozenset()


class ClusterCache:
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
        self._reduced_nodes: dict[NodeName, tuple[Node, Mapping[str, int]]] = {}
        self.ledger = Ledger()
        self.active_pods = PodIndex()
        self.ended_pods = PodIndex()  # pods that have finished or are terminating
        self._node_objects: dict[NodeName, dict[str, str]] = {}
        self.volumes = VolumeCache()
        self.devices = DeviceCache()
        self._node_storage = NodeStorage()
        self._changed_nodes: set[NodeName] = set()

    def changed_nodes(self) -> set[NodeName]:
        """The nodes that changed, came, went, or whose pods or devices did, since the last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed | self.devices.stamps.changed_nodes()

    @property
    def shares(self) -> NamespaceShares:
        """What each namespace holds of the cluster."""
        return self.ledger.shares

    @property
    def nominated(self) -> Mapping[PodUid, ObservedPod]:
        """Pods on no node that are nominated to one, with `nominated_node` as it holds for us."""
        return self._nominations.by_pod

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_pod(self, observed: ObservedPod) -> Events:
        uid = observed.pod.uid
        if observed.finished:
            self.ended_pods.put(compact_ended_pod(observed.pod))
            return self._remove_pod(uid)
        known = self.pods.get(uid)
        if known is not None and known == observed:
            if known.version != observed.version:
                # The value itself stays the same one, by which others tell that nothing changed.
                self.pods[uid] = replace(known, version=observed.version, generation=observed.generation)
            return _NO_EVENTS
        if known is not None and known.node is not None and observed.node is None:
            return _NO_EVENTS
        self.pods[uid] = observed
        if observed.deleting:
            self.active_pods.drop(uid)
            self.ended_pods.put(compact_ended_pod(observed.pod))
        else:
            self.active_pods.put(observed.pod)
            self.ended_pods.drop(uid)
        if observed.node is None:
            self._nominations.put_observed(observed)
            return frozenset({_UNSCHEDULED_UPDATE if known else ClusterEvent.UNSCHEDULED_POD_ADD})
        self._nominations.forget(uid)
        return self._confirm(observed.pod, observed.node)

    def drop_pod(self, uid: PodUid) -> Events:
        """The pod is gone: it holds nothing any more."""
        self.ended_pods.drop(uid)
        return self._remove_pod(uid)

    def _remove_pod(self, uid: PodUid) -> Events:
        self.pods.pop(uid, None)
        self.active_pods.drop(uid)
        self._nominations.forget(uid)
        return self._placement_removed(self.ledger.remove(uid))

    def nominate(self, uid: PodUid, node: NodeName | None) -> Events:
        """The pod is to have this node once there is room (None: it is not any more), whatever the watch still shows.
        A nomination taken back may leave room for others."""
        before, observed = self._nominations.nominated_node(uid), self.pods[uid]
        assert observed.node is None, f"{observed.pod.full_name} is on {observed.node} and cannot be nominated"
        self._nominations.set_nomination(observed, node)
        return _NO_EVENTS if before in (None, node) else frozenset({ClusterEvent.ASSIGNED_POD_DELETE})

    def assume(self, pod: Pod, node: NodeName) -> Events:
        self.ledger.assume(pod, node)
        self._changed_nodes.add(node)
        return frozenset({ClusterEvent.ASSIGNED_POD_ADD})

    def mark_prebound(self, uid: PodUid) -> None:
        self.ledger.mark_prebound(uid)

    def confirm(self, pod: Pod, node: NodeName) -> Events:
        """A bind was answered with yes; the watch will show the same, before or after."""
        return self._confirm(pod, node)

    def withdraw(self, uid: PodUid) -> Events:
        return self._placement_removed(self.ledger.withdraw(uid))

    def _confirm(self, pod: Pod, node: NodeName) -> Events:
        before = self.ledger.placement(pod.uid)
        was_bound = self.ledger.state(pod.uid) is PlacementState.BOUND
        self.ledger.confirm(pod, node)
        if before is None:
            self._changed_nodes.add(node)
            return frozenset({ClusterEvent.ASSIGNED_POD_ADD})
        if before == Placement(pod, node):
            return _NO_EVENTS
        self._changed_nodes.update((before.node, node))
        if before.node != node:
            return frozenset({ClusterEvent.ASSIGNED_POD_ADD, ClusterEvent.ASSIGNED_POD_DELETE})
        shrunk = any(pod.requests.get(name, 0) < amount for name, amount in before.pod.requests.items())
        changed = {ClusterEvent.ASSIGNED_POD_UPDATE} if was_bound else set()
        return frozenset(changed | ({ClusterEvent.ASSIGNED_POD_DELETE} if shrunk else set()))

    def _placement_removed(self, placement: Placement | None) -> Events:
        if placement is None:
            return _NO_EVENTS
        self._changed_nodes.add(placement.node)
        return frozenset({ClusterEvent.ASSIGNED_POD_DELETE})

    # ── nodes and namespaces ───────────────────────────────────────────────────────────────────────────────────────

    def put_node(self, node: Node) -> Events:
        """With what bears its name (custom resources, its storage), which may have come before it; a node of another cache
        brings what it had there."""
        node = replace(node, objects={**node.objects, **self._node_objects.get(node.name, {})})
        node = self._node_storage.with_storage(node)
        _, held = self._reduced_nodes.get(node.name, (node, None))
        if held is not None:
            self._reduced_nodes[node.name] = node, held
            node = _with_reduced_allocatable(node, held)
        return self._put_node(node)

    def reduce_allocatable(self, name: NodeName, amounts: Mapping[str, int]) -> Events:
        """The node counts as so much smaller than the API server shows it, by resource, until this is called anew."""
        shown = self.reported_node(name)
        if shown is None:
            return _NO_EVENTS
        if amounts:
            self._reduced_nodes[name] = shown, dict(amounts)
            return self._put_node(_with_reduced_allocatable(shown, amounts))
        self._reduced_nodes.pop(name, None)
        return self._put_node(shown)

    def reported_node(self, name: NodeName) -> Node | None:
        """The node as the API server shows it, with nothing held back."""
        return self._reduced_nodes[name][0] if name in self._reduced_nodes else self.nodes.get(name)

    def _put_node(self, node: Node) -> Events:
        known = self.nodes.get(node.name)
        if known == node:
            return _NO_EVENTS
        if known is not None:
            self.shares.adjust_total(known.allocatable, -1)
        self.shares.adjust_total(node.allocatable, 1)
        self.nodes[node.name] = node
        self._changed_nodes.add(node.name)
        if known is None:
            return frozenset({ClusterEvent.NODE_ADD})
        return frozenset(event for event, differs in _NODE_DIFFERENCES if differs(known, node))

    def drop_node(self, name: NodeName) -> Events:
        """A node that leaves helps nobody who was refused for want of room, but its domain may be gone with it, and so
        may be what was placed in it."""
        self._reduced_nodes.pop(name, None)
        gone = self.nodes.pop(name, None)
        if gone is None:
            return _NO_EVENTS
        self.shares.adjust_total(gone.allocatable, -1)
        self.devices.allocation_cache.forget_node(name)
        self._changed_nodes.add(name)
        return frozenset({ClusterEvent.NODE_DELETE})

    def put_node_object(self, kind: str, name: NodeName, text: str) -> Events:
        """A custom resource that bears the node's name, as JSON. The node may be yet to come."""
        self._node_objects.setdefault(name, {})[kind] = text
        return self._refresh_node_objects(name)

    def drop_node_object(self, kind: str, name: NodeName) -> Events:
        held = self._node_objects.get(name, {})
        held.pop(kind, None)
        if not held:
            self._node_objects.pop(name, None)
        return self._refresh_node_objects(name)

    def _refresh_node_objects(self, name: NodeName) -> Events:
        shown = self.reported_node(name)
        return _NO_EVENTS if shown is None else self.put_node(replace(shown, objects={}))

    def put_csi_node(self, csi: CsiNode) -> Events:
        """Helps where a driver may attach more than before, or another plugin is left to its driver."""
        return self._storage_changed(csi.name, self._node_storage.put_csi(csi))

    def drop_csi_node(self, name: NodeName) -> Events:
        """Wakes nobody in kube-scheduler, and nor here: the kubelet's CSINode goes with its node."""
        return self._storage_changed(name, self._node_storage.drop_csi(name))

    def put_attachment(self, attachment: VolumeAttachment) -> Events:
        return self._storage_changed(attachment.node, self._node_storage.put_attachment(attachment))

    def drop_attachment(self, name: str) -> Events:
        node = self._node_storage.attachment_node(name)
        return (
            _NO_EVENTS
            if node is None
            else self._storage_changed(node, self._node_storage.drop_attachment(name))
        )

    def _storage_changed(self, name: NodeName, events: Events) -> Events:
        shown = self.reported_node(name)
        if shown is not None:
            self.put_node(replace(shown, csi=None, attachments=frozenset()))
        return events

    def put_storage(self, storage_object: StorageObject | CsiNode) -> Events:
        """Any object of storage, to where it belongs."""
        match storage_object:
            case PersistentVolume():
                return self.volumes.put_volume(storage_object)
            case PersistentVolumeClaim():
                return self.volumes.put_claim(storage_object)
            case StorageClass():
                return self.volumes.put_class(storage_object)
            case CsiDriver():
                return self.volumes.put_driver(storage_object)
            case StorageCapacity():
                return self.volumes.put_capacity(storage_object)
            case CsiNode():
                return self.put_csi_node(storage_object)
            case VolumeAttachment():
                return self.put_attachment(storage_object)
            case _:
                assert_never(storage_object)

    def drop_storage(self, kind: StorageKind, namespace: str, name: str) -> Events:
        """`namespace` is empty for what has none."""
        match kind:
            case "PersistentVolume":
                return self.volumes.drop_volume(name)
            case "PersistentVolumeClaim":
                return self.volumes.drop_claim(VolumeClaimKey(namespace, name))
            case "StorageClass":
                return self.volumes.drop_class(name)
            case "CSIDriver":
                return self.volumes.drop_driver(name)
            case "CSIStorageCapacity":
                return self.volumes.drop_capacity(namespace, name)
            case "CSINode":
                return self.drop_csi_node(NodeName(name))
            case "VolumeAttachment":
                return self.drop_attachment(name)
            case _:
                assert_never(kind)

    def put_device_object(self, device_object: DeviceObject) -> Events:
        """A claim for devices, a slice of them, or a class."""
        match device_object:
            case ResourceClaim():
                return self.devices.put_claim(device_object)
            case ResourceSlice():
                return self.devices.put_slice(device_object)
            case DeviceClass():
                return self.devices.put_class(device_object)
            case _:
                assert_never(device_object)

    def drop_device_object(self, kind: DeviceKind, namespace: str, name: str) -> Events:
        """`namespace` is empty for what has none."""
        match kind:
            case "ResourceClaim":
                return self.devices.drop_claim(ResourceClaimKey(namespace, name))
            case "ResourceSlice":
                return self.devices.drop_slice(name)
            case "DeviceClass":
                return self.devices.drop_class(name)
            case _:
                assert_never(kind)

    def put_namespace(self, namespace: Namespace) -> Events:
        if self.namespaces.get(namespace.name) == namespace:
            return _NO_EVENTS
        self.namespaces[namespace.name] = namespace
        self.namespaces_version += 1
        return frozenset({ClusterEvent.NAMESPACE})

    def drop_namespace(self, name: str) -> Events:
        if self.namespaces.pop(name, None) is None:
            return _NO_EVENTS
        self.namespaces_version += 1
        return frozenset({ClusterEvent.NAMESPACE})

    # ── Services and controllers ───────────────────────────────────────────────────────────────────────────────────

    def put_pod_set(self, pod_set: PodSet) -> Events:
        """Which pods belong together, and so are spread where they do not say how, may be others now."""
        return frozenset({ClusterEvent.POD_SELECTOR_UPDATE}) if self.pod_sets.put(pod_set) else _NO_EVENTS

    def drop_pod_set(self, kind: PodSetKind, namespace: str, name: str) -> Events:
        return (
            frozenset({ClusterEvent.POD_SELECTOR_UPDATE})
            if self.pod_sets.drop(kind, namespace, name)
            else _NO_EVENTS
        )

    # ── budgets ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_budget(self, budget: DisruptionBudget) -> None:
        """Wakes nobody: a budget says whom to evict rather, not who may go where."""
        self.budgets[budget.namespace, budget.name] = budget

    def drop_budget(self, namespace: str, name: str) -> None:
        self.budgets.pop((namespace, name), None)


def _with_reduced_allocatable(node: Node, held: Mapping[str, int]) -> Node:
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
