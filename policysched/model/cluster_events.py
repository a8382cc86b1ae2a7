"""What can happen in a cluster that may turn a refusal into a yes.

Built-ins declare which of these could help a pod that they refused; for expressions the compiler derives it from the
attributes that they read. The values are kube-scheduler's names of the same events, as in the `event` label of
`scheduler_queue_incoming_pods_total`.
"""

from enum import Enum


class ClusterEvent(Enum):
    __hash__ = (
        object.__hash__
    )  # members are single objects, and Enum's own hash is asked thousands of times a second

    NODE_ADD = "NodeAdd"
    NODE_DELETE = "NodeDelete"
    NODE_ALLOCATABLE = "NodeAllocatableChange"
    NODE_LABEL = "NodeLabelChange"
    NODE_ANNOTATION = "NodeAnnotationChange"
    NODE_OBJECT = (
        "NodeObjectChange"  # a custom resource that bears its name; kube-scheduler has no such event
    )
    NODE_TAINT = "NodeTaintChange"  # spec.unschedulable counts as one, as in kube-scheduler
    NODE_CONDITION = "NodeConditionChange"
    NODE_IMAGE = "NodeImageChange"
    NODE_FEATURE = "NodeDeclaredFeatureChange"
    ASSIGNED_POD_ADD = "AssignedPodAdd"
    ASSIGNED_POD_UPDATE = "AssignedPodUpdate"
    ASSIGNED_POD_DELETE = "AssignedPodDelete"  # also a finished pod, and a placement of ours withdrawn
    UNSCHEDULED_POD_ADD = "UnschedulablePodAdd"  # another member of a gang appears
    UNSCHEDULED_POD_UPDATE = "UnschedulablePodUpdate"  # the pod itself was edited
    POD_COUNT = "PodCountChange"  # which pods there are, placed or not; kube-scheduler has no such event
    FINISHED_POD = "EndedPodChange"  # a pod finished, is on its way out, or was deleted after that; kube-scheduler has no such event
    NAMESPACE = "NamespaceUpdate"
    POD_SELECTOR_UPDATE = (
        "PodSetUpdate"  # a Service or controller that selects pods; kube-scheduler has no such event
    )
    VOLUME_ADD = "PersistentVolumeAdd"
    VOLUME_UPDATE = "PersistentVolumeUpdate"  # also a volume that was promised to a pod and is free again
    CLAIM_ADD = "PersistentVolumeClaimAdd"  # these two wake the pods that use the claim, and no others
    CLAIM_UPDATE = "PersistentVolumeClaimUpdate"
    STORAGE_CLASS_ADD = "storage.k8s.io/StorageClassAdd"
    STORAGE_CLASS_UPDATE = "storage.k8s.io/StorageClassUpdate"  # of its allowedTopologies
    CSI_NODE_ADD = "storage.k8s.io/CSINodeAdd"
    CSI_NODE_UPDATE = "storage.k8s.io/CSINodeUpdate"  # a higher limit, or other migrated plugins
    CSI_DRIVER_UPDATE = "storage.k8s.io/CSIDriverUpdate"  # it leaves off tracking its capacity
    STORAGE_CAPACITY_ADD = "storage.k8s.io/CSIStorageCapacityAdd"
    STORAGE_CAPACITY_UPDATE = "storage.k8s.io/CSIStorageCapacityUpdate"  # more room than before
    ATTACHMENT_DELETE = "storage.k8s.io/VolumeAttachmentDelete"
    RESOURCE_CLAIM_ADD = (
        "resource.k8s.io/ResourceClaimAdd"  # these two wake the pods that use the claim, and no others
    )
    RESOURCE_CLAIM_UPDATE = "resource.k8s.io/ResourceClaimUpdate"
    DEVICES_FREED = (
        "DevicesFreed"  # a claim gave its devices back; kube-scheduler counts it as an update of the claim
    )
    DEVICE_CLASS_ADD = "resource.k8s.io/DeviceClassAdd"
    DEVICE_CLASS_UPDATE = "resource.k8s.io/DeviceClassUpdate"
    RESOURCE_SLICE_ADD = "resource.k8s.io/ResourceSliceAdd"
    RESOURCE_SLICE_UPDATE = "resource.k8s.io/ResourceSliceUpdate"
    SAMPLES = "SamplesArrived"
    STATE = "StateFed"  # a value that a policy keeps has moved; kube-scheduler has no such event
    TIME = "TimePassed"
    POLICY = "PolicyChange"
