"""Which object an event is about, and what of it counts while it is left out (`failed_objects`)."""

from dataclasses import replace
from typing import Any

from policysched.evaluate import NotCounted
from policysched.model.devices import DeviceObject, ResourceClaim
from policysched.model.pod_groups import PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.model.storage import CsiDriver, CsiNode, PersistentVolume, StorageCapacity, StorageObject
from policysched.scheduler import events as e
from policysched.scheduler.blame import ObjectId, metric_id

NODE_OBJECT = "object of a node: "

UPDATES = (
    e.PodUpdated,
    e.NodeUpdated,
    e.NodeObjectUpdated,
    e.NamespaceUpdated,
    e.DisruptionBudgetUpdated,
    e.SelectorOwnerUpdated,
    e.StorageObjectUpdated,
    e.DeviceObjectUpdated,
    e.PodGroupUpdated,
    e.WorkloadUpdated,
    e.SamplesArrived,
)
DELETIONS = (
    e.PodDeleted,
    e.NodeDeleted,
    e.NodeObjectDeleted,
    e.NamespaceDeleted,
    e.DisruptionBudgetDeleted,
    e.SelectorOwnerDeleted,
    e.StorageObjectDeleted,
    e.DeviceObjectDeleted,
    e.PodGroupDeleted,
    e.WorkloadDeleted,
)
_STORAGE_KINDS = {CsiNode: "CSINode", CsiDriver: "CSIDriver", StorageCapacity: "CSIStorageCapacity"}


def object_of(event: e.Event) -> ObjectId | None:
    """The object that the event is about, or the pod that an answer is about."""
    match event:
        case e.PodUpdated():
            return ObjectId("Pod", event.pod.pod.namespace, event.pod.pod.uid)
        case e.PodDeleted() | e.PrebindWritten() | e.PrebindRefused():
            return ObjectId("Pod", "", event.uid)
        case e.BindConfirmed() | e.BindRefused() | e.BindLost() | e.BindDelayed():
            return ObjectId("Pod", "", event.uid)
        case e.Evicted() | e.EvictionRefused():
            return ObjectId("Pod", "", event.preemptor)
        case e.NodeUpdated():
            return ObjectId("Node", "", event.node.name)
        case e.NodeDeleted():
            return ObjectId("Node", "", event.name)
        case e.NodeObjectUpdated() | e.NodeObjectDeleted():
            return ObjectId(f"{NODE_OBJECT}{event.kind}", "", event.name)
        case e.NamespaceUpdated():
            return ObjectId("Namespace", event.namespace.name, event.namespace.name)
        case e.NamespaceDeleted():
            return ObjectId("Namespace", event.name, event.name)
        case e.DisruptionBudgetUpdated():
            return ObjectId("PodDisruptionBudget", event.budget.namespace, event.budget.name)
        case e.DisruptionBudgetDeleted():
            return ObjectId("PodDisruptionBudget", event.namespace, event.name)
        case e.SelectorOwnerUpdated():
            owner = event.selector_owner
            return ObjectId(owner.kind, owner.namespace, owner.name)
        case e.StorageObjectUpdated():
            return _id_of(event.storage_object)
        case e.DeviceObjectUpdated():
            return _id_of(event.device_object)
        case e.SelectorOwnerDeleted() | e.StorageObjectDeleted() | e.DeviceObjectDeleted():
            return ObjectId(event.kind, event.namespace, event.name)
        case e.PodGroupUpdated():
            return _id_of_group(event.group.key)
        case e.PodGroupDeleted():
            return _id_of_group(event.key)
        case e.WorkloadUpdated() | e.WorkloadDeleted():
            return ObjectId("Workload", event.namespace, event.name)
        case e.SamplesArrived():
            return metric_id(event.policy, event.metric, None)
        case _:
            return None


def _id_of(changed: StorageObject | CsiNode | DeviceObject) -> ObjectId:
    if isinstance(changed, PersistentVolume) and changed.claim_ref is not None:
        # The claim's namespace is charged.
        return ObjectId("PersistentVolume", changed.claim_ref.claim.namespace, changed.name)
    kind = _STORAGE_KINDS.get(type(changed), type(changed).__name__)
    named: Any = getattr(changed, "key", changed)
    return ObjectId(kind, getattr(named, "namespace", ""), named.name)


def _id_of_group(key: PodGroupKey) -> ObjectId:
    return ObjectId(f"PodGroup.{key.api}", key.namespace, key.name)


def id_of_counted(error: NotCounted) -> ObjectId | None:
    if error.pod is not None:
        return ObjectId("Pod", error.pod.namespace, error.pod.uid)
    return None if error.node is None else ObjectId("Node", "", error.node)


def description(event: e.Event | None, error: Exception, object_id: ObjectId) -> str:
    if isinstance(error, NotCounted) and error.pod is not None:
        return f"Pod {error.pod.full_name}"
    if isinstance(event, e.PodUpdated) and not isinstance(error, NotCounted):
        return f"Pod {event.pod.pod.full_name}"
    return " ".join(part for part in object_id if part)


def what_it_uses(event: e.Event) -> e.Event | None:
    """The object without what others can do without. None: it uses nothing."""
    match event:
        case e.PodUpdated(observed) if observed.node is not None:
            return e.PodUpdated(_room_of(observed))
        case e.DeviceObjectUpdated(ResourceClaim() as claim) if claim.allocation is not None:
            return e.DeviceObjectUpdated(replace(claim, constraints=(), configs=(), device_statuses=()))
        case e.SamplesArrived(policy, metric):
            return e.SamplesFailed(policy, metric)
        case _:
            return None


def _room_of(observed: ObservedPod) -> ObservedPod:
    """The pod with what takes room on its node: amounts, ports and volumes."""
    pod = replace(
        observed.pod,
        labels={},
        annotations={},
        node_selector={},
        affinity=None,
        pod_affinity=None,
        spread=(),
        tolerations=(),
        images=(),
        image_volumes=(),
        gates=(),
        required_features=frozenset(),
        uncovered=(),
        device_claims=(),
        extended=(),
        group_references=(),
        group=None,
        group_problem=None,
    )
    return replace(observed, pod=pod, container_events=())
