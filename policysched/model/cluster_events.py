"""Cluster events that can make an unschedulable pod schedulable.

A built-in declares the events that requeue a pod which it rejected; for an expression they follow from the attributes
that it reads. The values are kube-scheduler's event names, as in the `event` label of
`scheduler_queue_incoming_pods_total`. Events without a counterpart in kube-scheduler are marked "ours only".
"""

from enum import Enum


class ClusterEvent(Enum):
    # Members are singletons; Enum's own hash is slow and is computed thousands of times a second.
    __hash__ = object.__hash__

    NODE_ADD = "NodeAdd"
    NODE_DELETE = "NodeDelete"
    NODE_ALLOCATABLE = "NodeAllocatableChange"
    NODE_LABEL = "NodeLabelChange"
    NODE_ANNOTATION = "NodeAnnotationChange"
    NODE_OBJECT = "NodeObjectChange"  # a custom resource with the node's name; ours only
    NODE_TAINT = "NodeTaintChange"  # spec.unschedulable counts as one, as in kube-scheduler
    NODE_CONDITION = "NodeConditionChange"
    NODE_IMAGE = "NodeImageChange"
    NODE_FEATURE = "NodeDeclaredFeatureChange"
    ASSIGNED_POD_ADD = "AssignedPodAdd"
    ASSIGNED_POD_UPDATE = "AssignedPodUpdate"
    POD_READY = "PodReadyChange"  # a placed pod became ready, or is no longer, and nothing else of it changed; ours only
    ASSIGNED_POD_DELETE = "AssignedPodDelete"  # also a finished pod, and an assumed pod that is forgotten
    UNSCHEDULED_POD_ADD = "UnschedulablePodAdd"  # another member of the gang was created
    UNSCHEDULED_POD_UPDATE = "UnschedulablePodUpdate"  # the pod itself was updated
    POD_COUNT = "PodCountChange"  # the set of pods, placed or not; ours only
    FINISHED_POD = "EndedPodChange"  # a pod finished, is terminating, or was deleted after that; ours only
    NAMESPACE = "NamespaceUpdate"
    SELECTOR_OWNER_UPDATE = "SelectorOwnerUpdate"  # a Service or controller that selects pods; ours only
    VOLUME_ADD = "PersistentVolumeAdd"
    VOLUME_UPDATE = "PersistentVolumeUpdate"  # also a reservation that was released
    CLAIM_ADD = "PersistentVolumeClaimAdd"  # CLAIM_*: requeues only the pods that use the claim
    CLAIM_UPDATE = "PersistentVolumeClaimUpdate"
    STORAGE_CLASS_ADD = "storage.k8s.io/StorageClassAdd"
    STORAGE_CLASS_UPDATE = "storage.k8s.io/StorageClassUpdate"  # allowedTopologies
    CSI_NODE_ADD = "storage.k8s.io/CSINodeAdd"
    CSI_NODE_UPDATE = "storage.k8s.io/CSINodeUpdate"  # a higher limit or other migrated plugins
    CSI_DRIVER_UPDATE = (
        "storage.k8s.io/CSIDriverUpdate"  # it no longer tracks capacity, or is no longer needed on nodes
    )
    STORAGE_CAPACITY_ADD = "storage.k8s.io/CSIStorageCapacityAdd"
    STORAGE_CAPACITY_UPDATE = "storage.k8s.io/CSIStorageCapacityUpdate"  # more capacity
    ATTACHMENT_DELETE = "storage.k8s.io/VolumeAttachmentDelete"
    RESOURCE_CLAIM_ADD = "resource.k8s.io/ResourceClaimAdd"  # as CLAIM_ADD
    RESOURCE_CLAIM_UPDATE = "resource.k8s.io/ResourceClaimUpdate"
    DEVICES_FREED = "DevicesFreed"  # a claim was deallocated; a claim update in kube-scheduler
    DEVICE_CLASS_ADD = "resource.k8s.io/DeviceClassAdd"
    DEVICE_CLASS_UPDATE = "resource.k8s.io/DeviceClassUpdate"
    RESOURCE_SLICE_ADD = "resource.k8s.io/ResourceSliceAdd"
    RESOURCE_SLICE_UPDATE = "resource.k8s.io/ResourceSliceUpdate"
    SAMPLES = "SamplesArrived"
    STATE = "StateFed"  # a `state` value changed; ours only
    QUOTA = "QuotaReleased"  # what the pod's quotas lacked was released, or may be taken back; ours only
    TIME = "TimePassed"
    POLICY = "PolicyChange"


_WITHIN_NAMESPACE = frozenset({ClusterEvent.SELECTOR_OWNER_UPDATE})


def may_help(event: ClusterEvent, namespace: str, cause: str | None) -> bool:
    """Whether the event can help pods of the namespace. `cause`: the namespace of the object that changed, if it is known."""
    return event not in _WITHIN_NAMESPACE or cause in (None, namespace)
