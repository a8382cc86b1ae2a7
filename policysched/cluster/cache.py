"""The cluster cache: API objects as last observed, updated one change at a time.

Every change returns the `ClusterEvent`s that it causes, by which the queue requeues pods, and
records the nodes that it changes, so that columns refresh only those rows.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import assert_never

from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.disruption_budgets import DisruptionBudgets
from policysched.cluster.ledger import Ledger, PlacementState
from policysched.cluster.namespace_shares import NamespaceShares
from policysched.cluster.node_storage import NodeStorage
from policysched.cluster.nominations import Nominations
from policysched.cluster.pod_groups import PodGroups
from policysched.cluster.pod_index import PodIndex, compact_ended_pod
from policysched.cluster.selector_owners import SelectorOwners
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.model.cluster_events import ClusterEvent
from policysched.model.copies import changed_copy
from policysched.model.devices import (
    DeviceClass,
    DeviceKind,
    DeviceObject,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement, Pod, PodVolumeClaim, differ_in_readiness_alone
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
from policysched.model.workloads import DisruptionBudget, SelectorOwner, SelectorOwnerKind

Events = frozenset[ClusterEvent]
_NO_EVENTS: Events = frozenset()
_FEW_CHANGED_NODES, _MANY_CHANGED_NODES = 2, 32


class ClusterCache:
    """Nodes, namespaces and unfinished pods by key, and the ledger of placements.

    The life of a pod in `put_pod`: not bound, then bound (the ledger confirms), then finished or
    dropped (the ledger removes). An event that shows a bound pod as not bound is stale and is
    ignored: a pod of one UID is never unbound. A pod bound to an unknown node is kept, and counts
    as soon as the node is observed.
    """

    def __init__(self) -> None:
        self.nodes: dict[NodeName, Node] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.namespaces_version = 0  # grows with each change of a namespace
        self.pods: dict[PodUid, ObservedPod] = {}
        self.budgets = DisruptionBudgets()
        self.selector_owners = SelectorOwners()
        self.pod_groups = PodGroups()
        self._nominations = Nominations()
        # Nodes as observed, and by how much their allocatable is reduced.
        self.ledger = Ledger()
        self.active_pods = PodIndex()
        self.ended_pods = PodIndex()  # pods that have finished or are terminating
        self._node_objects: dict[NodeName, dict[str, str]] = {}
        self.volumes = VolumeCache()
        self.devices = DeviceCache()
        self._node_storage = NodeStorage()
        self._changed_nodes: set[NodeName] = set()

    def changed_nodes(self) -> set[NodeName]:
        """Nodes that were added, changed or removed, or whose pods or devices changed, since the
        last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed | self.devices.stamps.changed_nodes()

    @property
    def has_few_changed_nodes(self) -> bool:
        """Whether `changed_nodes` has what a decision changes, and not much more."""
        return len(self._changed_nodes) <= _FEW_CHANGED_NODES

    @property
    def has_many_changed_nodes(self) -> bool:
        """Whether the next decision would take some milliseconds longer, so that they are better applied before there is a pod."""
        return len(self._changed_nodes) >= _MANY_CHANGED_NODES

    @property
    def shares(self) -> NamespaceShares:
        """The share of the cluster that each namespace requests."""
        return self.ledger.shares

    def nominated_to(self, node: NodeName | None) -> Collection[PodUid]:
        """The pods that are nominated to the node; none for None."""
        return () if node is None else self._nominations.by_node.get(node, ())

    @property
    def nominated(self) -> Mapping[PodUid, ObservedPod]:
        """Pods that are nominated to a node, with their effective `nominated_node`."""
        return self._nominations.by_pod

    @property
    def nominations_version(self) -> int:
        """Grows with each change of `nominated`."""
        return self._nominations.version

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_pod(self, observed: ObservedPod) -> Events:
        uid = observed.pod.uid
        if observed.finished:
            self.ended_pods.put(compact_ended_pod(observed.pod))
            return self._remove_pod(uid)
        cached = self.pods.get(uid)
        if cached is not None and cached == observed:
            if cached.version != observed.version:
                # The Pod object stays the same: others compare it by identity.
                self.pods[uid] = changed_copy(
                    cached, version=observed.version, generation=observed.generation
                )
            return _NO_EVENTS
        if cached is not None and cached.node is not None and observed.node is None:
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
            return frozenset({_UNSCHEDULED_UPDATE if cached else ClusterEvent.UNSCHEDULED_POD_ADD})
        self._nominations.forget(uid)
        return self._confirm(observed.pod, observed.node)

    def drop_pod(self, uid: PodUid) -> Events:
        """The pod is deleted: it uses nothing any more."""
        self.ended_pods.drop(uid)
        return self._remove_pod(uid)

    def _remove_pod(self, uid: PodUid) -> Events:
        self.pods.pop(uid, None)
        self.active_pods.drop(uid)
        self._nominations.forget(uid)
        self.devices.releasing.discard(uid)
        return self._placement_removed(self.ledger.remove(uid))

    def nominate(self, uid: PodUid, node: NodeName | None) -> Events:
        """Nominate the pod to a node, or withdraw its nomination (None), whatever the watch still
        shows. A withdrawn nomination may free capacity for other pods."""
        before, observed = self._nominations.nominated_node(uid), self.pods[uid]
        assert observed.node is None, (
            f"{observed.pod.full_name} is on {observed.node} and cannot be nominated"
        )
        self._nominations.set_nomination(observed, node)
        return _NO_EVENTS if before in (None, node) else frozenset({ClusterEvent.ASSIGNED_POD_DELETE})

    def assume(self, pod: Pod, node: NodeName) -> Events:
        self.ledger.assume(pod, node)
        self._changed_nodes.add(node)
        return frozenset({ClusterEvent.ASSIGNED_POD_ADD})

    def mark_prebound(self, uid: PodUid) -> None:
        self.ledger.mark_prebound(uid)

    def confirm(self, pod: Pod, node: NodeName) -> Events:
        """A bind succeeded. The watch reports the same, earlier or later."""
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
        if differ_in_readiness_alone(before.pod, pod):
            return frozenset({ClusterEvent.POD_READY})
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
        """The node gets the custom resources and the storage of its name, which may have been
        observed earlier."""
        node = replace(node, objects={**node.objects, **self._node_objects.get(node.name, {})})
        node = self._node_storage.with_storage(node)
        cached = self.nodes.get(node.name)
        if cached == node:
            return _NO_EVENTS
        if cached is not None:
            self.shares.adjust_total(cached.allocatable, -1)
        self.shares.adjust_total(node.allocatable, 1)
        self.nodes[node.name] = node
        self._changed_nodes.add(node.name)
        if cached is None:
            return frozenset({ClusterEvent.NODE_ADD})
        return frozenset(event for event, differs in _NODE_DIFFERENCES if differs(cached, node))

    def drop_node(self, name: NodeName) -> Events:
        """Removing a node frees no capacity, but may remove a topology domain and the pods in it."""
        removed = self.nodes.pop(name, None)
        if removed is None:
            return _NO_EVENTS
        self.shares.adjust_total(removed.allocatable, -1)
        self.devices.allocation_cache.forget_node(name)
        self._changed_nodes.add(name)
        return frozenset({ClusterEvent.NODE_DELETE})

    def put_node_object(self, kind: str, name: NodeName, text: str) -> Events:
        """A custom resource with the name of a node, as JSON. The node may be observed later."""
        self._node_objects.setdefault(name, {})[kind] = text
        return self._refresh_node_objects(name)

    def drop_node_object(self, kind: str, name: NodeName) -> Events:
        objects = self._node_objects.get(name, {})
        objects.pop(kind, None)
        if not objects:
            self._node_objects.pop(name, None)
        return self._refresh_node_objects(name)

    def _refresh_node_objects(self, name: NodeName) -> Events:
        observed = self.nodes.get(name)
        return _NO_EVENTS if observed is None else self.put_node(replace(observed, objects={}))

    def put_csi_node(self, csi: CsiNode) -> Events:
        """Causes an event if a driver can attach more volumes, or the migrated plugins change."""
        return self._storage_changed(csi.name, self._node_storage.put_csi(csi))

    def drop_csi_node(self, name: NodeName) -> Events:
        """No event, as in kube-scheduler: a CSINode is deleted with its node."""
        return self._storage_changed(name, self._node_storage.drop_csi(name))

    def put_attachment(self, attachment: VolumeAttachment) -> Events:
        return self._storage_changed(attachment.node, self._node_storage.put_attachment(attachment))

    def attached_volume(self, attachment: str) -> str | None:
        return self._node_storage.attached_volume(attachment)

    def drop_attachment(self, name: str) -> Events:
        node = self._node_storage.attachment_node(name)
        return (
            _NO_EVENTS
            if node is None
            else self._storage_changed(node, self._node_storage.drop_attachment(name))
        )

    def _storage_changed(self, name: NodeName, events: Events) -> Events:
        observed = self.nodes.get(name)
        if observed is not None:
            self.put_node(replace(observed, csi=None, attachments=frozenset()))
        return events

    def put_storage(self, storage_object: StorageObject | CsiNode) -> Events:
        """Put an object of any storage kind."""
        match storage_object:
            case PersistentVolume():
                return self.volumes.put_volume(storage_object)
            case PersistentVolumeClaim():
                return self._put_volume_claim(storage_object)
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

    def _put_volume_claim(self, claim: PersistentVolumeClaim) -> Events:
        cached = self.volumes.claims.get(claim.key)
        owners = {claim.controller_uid, None if cached is None else cached.controller_uid}
        pods = [observed.pod for uid in owners if uid and (observed := self.pods.get(uid)) is not None]
        owner_matters = any(use == PodVolumeClaim(claim.key, pod.uid) for pod in pods for use in pod.claims)
        return self.volumes.put_claim(claim, owner_matters=owner_matters)

    def drop_storage(self, kind: StorageKind, namespace: str, name: str) -> Events:
        """`namespace` is empty for cluster-scoped kinds."""
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
        """Put a ResourceClaim, ResourceSlice, DeviceClass or DeviceTaintRule."""
        match device_object:
            case ResourceClaim():
                return self.devices.put_claim(device_object)
            case ResourceSlice():
                return self.devices.put_slice(device_object)
            case DeviceClass():
                return self.devices.put_class(device_object)
            case DeviceTaintRule():
                return self.devices.put_taint_rule(device_object)
            case _:
                assert_never(device_object)

    def drop_device_object(self, kind: DeviceKind, namespace: str, name: str) -> Events:
        """`namespace` is empty for cluster-scoped kinds."""
        match kind:
            case "ResourceClaim":
                return self.devices.drop_claim(ResourceClaimKey(namespace, name))
            case "ResourceSlice":
                return self.devices.drop_slice(name)
            case "DeviceClass":
                return self.devices.drop_class(name)
            case "DeviceTaintRule":
                return self.devices.drop_taint_rule(name)
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

    def put_selector_owner(self, selector_owner: SelectorOwner) -> Events:
        """The default topology spread of pods without constraints may change."""
        return (
            frozenset({ClusterEvent.SELECTOR_OWNER_UPDATE})
            if self.selector_owners.put(selector_owner)
            else _NO_EVENTS
        )

    def drop_selector_owner(self, kind: SelectorOwnerKind, namespace: str, name: str) -> Events:
        return (
            frozenset({ClusterEvent.SELECTOR_OWNER_UPDATE})
            if self.selector_owners.drop(kind, namespace, name)
            else _NO_EVENTS
        )

    # ── budgets ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_budget(self, budget: DisruptionBudget) -> None:
        """No event: a budget affects the choice of victims, not where a pod fits."""
        self.budgets.put(budget)

    def drop_budget(self, namespace: str, name: str) -> None:
        self.budgets.remove(namespace, name)


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
