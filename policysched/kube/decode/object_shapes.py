"""The shape of each kind that is read, in the API's own field names. Only what a reader looks at is here, and a test
holds the two together."""

from collections.abc import Mapping

from policysched.kube.decode.shapes import (
    FLAG,
    INT32,
    INT64,
    QUANTITIES,
    QUANTITY,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TIME,
    Fields,
    Leaf,
    ListOf,
    MapOf,
    Shape,
    fields,
    one_of,
)

_VERSION = Leaf(
    'a version such as "1234"',
    lambda value: isinstance(value, str | int) and not isinstance(value, bool),
)
_SELECTOR_OPERATOR = one_of("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATOR = one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_INCLUSION = one_of("Honor", "Ignore")


def _requirements(operator: Leaf) -> ListOf:
    return ListOf(fields({"key": TEXT, "operator": operator}, values=TEXTS))


_LABEL_SELECTOR = fields(matchLabels=TEXT_MAP, matchExpressions=_requirements(_SELECTOR_OPERATOR))
_NODE_TERM = fields(matchExpressions=_requirements(_NODE_OPERATOR), matchFields=_requirements(_NODE_OPERATOR))
_NODE_SELECTOR = fields(nodeSelectorTerms=ListOf(_NODE_TERM))
_NODE_AFFINITY = fields(
    requiredDuringSchedulingIgnoredDuringExecution=_NODE_SELECTOR,
    preferredDuringSchedulingIgnoredDuringExecution=ListOf(
        fields({"weight": INT32, "preference": _NODE_TERM})
    ),
)
_POD_TERM = fields(
    {"topologyKey": TEXT},
    labelSelector=_LABEL_SELECTOR,
    namespaceSelector=_LABEL_SELECTOR,
    namespaces=TEXTS,
    matchLabelKeys=TEXTS,
    mismatchLabelKeys=TEXTS,
)
_POD_AFFINITY = fields(
    requiredDuringSchedulingIgnoredDuringExecution=ListOf(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=ListOf(
        fields({"weight": INT32, "podAffinityTerm": _POD_TERM})
    ),
)
_SPREAD = fields(
    {"topologyKey": TEXT, "maxSkew": INT32, "whenUnsatisfiable": one_of("DoNotSchedule", "ScheduleAnyway")},
    labelSelector=_LABEL_SELECTOR,
    matchLabelKeys=TEXTS,
    minDomains=INT32,
    nodeAffinityPolicy=_INCLUSION,
    nodeTaintsPolicy=_INCLUSION,
)

_OWNERS = ListOf(fields(apiVersion=TEXT, kind=TEXT, name=TEXT, controller=FLAG))
_OWNERS_BY_UID = ListOf(fields({"uid": TEXT}, controller=FLAG))


def _metadata(**more: Shape) -> Fields:
    return fields(
        {"name": TEXT},
        namespace=TEXT,
        uid=TEXT,
        labels=TEXT_MAP,
        annotations=TEXT_MAP,
        resourceVersion=_VERSION,
        creationTimestamp=TIME,
        deletionTimestamp=TIME,
        generation=INT64,
        **more,
    )


_RESOURCES = fields(requests=QUANTITIES, limits=QUANTITIES)
_CONTAINER = fields(
    name=TEXT,
    image=TEXT,
    resources=_RESOURCES,
    restartPolicy=TEXT,
    restartPolicyRules=ListOf(fields(action=TEXT)),
    ports=ListOf(fields(hostPort=INT32, containerPort=INT32, hostIP=TEXT, protocol=TEXT)),
)

# Volumes of plugins of old, in a pod and in a PersistentVolume.
_IN_TREE: Mapping[str, Shape] = {
    "gcePersistentDisk": fields({"pdName": TEXT}, readOnly=FLAG),
    "awsElasticBlockStore": fields({"volumeID": TEXT}),
    "azureDisk": fields(kind=TEXT, diskURI=TEXT),
    "cinder": fields(volumeID=TEXT),
    "portworxVolume": fields(volumeID=TEXT),
}
_VOLUME = fields(
    {"name": TEXT},
    persistentVolumeClaim=fields(claimName=TEXT),
    ephemeral=fields(),
    image=fields(reference=TEXT),
    iscsi=fields({"iqn": TEXT}, readOnly=FLAG),
    rbd=fields({"image": TEXT}, pool=TEXT, monitors=TEXTS, readOnly=FLAG),
    **_IN_TREE,
)

_RUN = fields(startedAt=TIME, finishedAt=TIME, containerID=TEXT, exitCode=INT32, reason=TEXT)
_STATE = fields(running=_RUN, terminated=_RUN)
_CONTAINER_STATUS = fields(
    {"name": TEXT},
    containerID=TEXT,
    restartCount=INT32,
    state=_STATE,
    lastState=_STATE,
    resources=_RESOURCES,
    allocatedResources=QUANTITIES,
)

_POD = fields(
    {
        "metadata": _metadata(ownerReferences=_OWNERS),
        "spec": fields(
            containers=ListOf(_CONTAINER),
            initContainers=ListOf(_CONTAINER),
            overhead=QUANTITIES,
            resources=_RESOURCES,
            affinity=fields(
                nodeAffinity=_NODE_AFFINITY, podAffinity=_POD_AFFINITY, podAntiAffinity=_POD_AFFINITY
            ),
            activeDeadlineSeconds=INT64,
            volumes=ListOf(_VOLUME),
            schedulerName=TEXT,
            priority=INT32,
            preemptionPolicy=TEXT,
            serviceAccountName=TEXT,
            nodeSelector=TEXT_MAP,
            tolerations=ListOf(fields(key=TEXT, operator=TEXT, value=TEXT, effect=TEXT)),
            schedulingGates=ListOf(fields({"name": TEXT})),
            topologySpreadConstraints=ListOf(_SPREAD),
            nodeName=TEXT,
            hostNetwork=FLAG,
            hostUsers=FLAG,
            resourceClaims=ListOf(
                fields({"name": TEXT}, resourceClaimName=TEXT, resourceClaimTemplateName=TEXT)
            ),
            schedulingGroup=fields(),
            workloadRef=fields(),
        ),
    },
    status=fields(
        phase=one_of("Pending", "Running", "Succeeded", "Failed", "Unknown"),
        reason=TEXT,
        message=TEXT,
        qosClass=TEXT,
        nominatedNodeName=TEXT,
        startTime=TIME,
        conditions=ListOf(fields(type=TEXT, status=TEXT, reason=TEXT)),
        containerStatuses=ListOf(_CONTAINER_STATUS),
        initContainerStatuses=ListOf(_CONTAINER_STATUS),
        resourceClaimStatuses=ListOf(fields({"name": TEXT}, resourceClaimName=TEXT)),
    ),
)

_NODE = fields(
    {"metadata": _metadata()},
    spec=fields(
        taints=ListOf(
            fields({"key": TEXT, "effect": one_of("NoSchedule", "PreferNoSchedule", "NoExecute")}, value=TEXT)
        ),
        unschedulable=FLAG,
    ),
    status=fields(
        allocatable=QUANTITIES,
        capacity=QUANTITIES,
        images=ListOf(fields(names=TEXTS, sizeBytes=INT64)),
        conditions=ListOf(fields({"type": TEXT, "status": TEXT})),
        addresses=ListOf(fields({"address": TEXT})),
        declaredFeatures=TEXTS,
    ),
)

_DISRUPTION_BUDGET = fields(
    {"metadata": _metadata()},
    spec=fields(selector=_LABEL_SELECTOR),
    status=fields(disruptionsAllowed=INT32, disruptedPods=MapOf(TIME)),
)

_BY_LABELS = fields({"metadata": _metadata()}, spec=fields(selector=TEXT_MAP))
_BY_SELECTOR = fields({"metadata": _metadata()}, spec=fields(selector=_LABEL_SELECTOR))

_PERSISTENT_VOLUME = fields(
    {
        "metadata": _metadata(),
        "spec": fields(
            nodeAffinity=fields(required=_NODE_SELECTOR),
            claimRef=fields(namespace=TEXT, name=TEXT, uid=TEXT),
            capacity=QUANTITIES,
            accessModes=TEXTS,
            volumeMode=one_of("Filesystem", "Block"),
            storageClassName=TEXT,
            volumeAttributesClassName=TEXT,
            csi=fields(driver=TEXT, volumeHandle=TEXT),
            **_IN_TREE,
        ),
    },
    status=fields(phase=TEXT),
)

_CLAIM = fields(
    {
        "metadata": _metadata(ownerReferences=_OWNERS_BY_UID),
        "spec": fields(
            resources=fields(requests=QUANTITIES),
            accessModes=TEXTS,
            volumeMode=one_of("Filesystem", "Block"),
            storageClassName=TEXT,
            volumeAttributesClassName=TEXT,
            selector=_LABEL_SELECTOR,
            volumeName=TEXT,
        ),
    },
    status=fields(phase=TEXT),
)

_STORAGE_CLASS = fields(
    {"metadata": _metadata()},
    provisioner=TEXT,
    volumeBindingMode=one_of("Immediate", "WaitForFirstConsumer"),
    allowedTopologies=ListOf(
        fields(matchLabelExpressions=ListOf(fields({"key": TEXT}, values=TEXTS))),
    ),
)

_CSI_NODE = fields(
    {"metadata": _metadata()},
    spec=fields(drivers=ListOf(fields({"name": TEXT}, allocatable=fields(count=INT32)))),
)

_CSI_DRIVER = fields({"metadata": _metadata()}, spec=fields(storageCapacity=FLAG))

_STORAGE_CAPACITY = fields(
    {"metadata": _metadata(), "storageClassName": TEXT},
    maximumVolumeSize=QUANTITY,
    capacity=QUANTITY,
    nodeTopology=_LABEL_SELECTOR,
)

_VOLUME_ATTACHMENT = fields(
    {
        "metadata": _metadata(),
        "spec": fields({"nodeName": TEXT}, attacher=TEXT, source=fields(persistentVolumeName=TEXT)),
    }
)

SHAPES: Mapping[str, Shape] = {
    "Pod": _POD,
    "Node": _NODE,
    "Namespace": fields({"metadata": _metadata()}),
    "PodDisruptionBudget": _DISRUPTION_BUDGET,
    "Service": _BY_LABELS,
    "ReplicationController": _BY_LABELS,
    "ReplicaSet": _BY_SELECTOR,
    "StatefulSet": _BY_SELECTOR,
    "PersistentVolume": _PERSISTENT_VOLUME,
    "PersistentVolumeClaim": _CLAIM,
    "StorageClass": _STORAGE_CLASS,
    "CSINode": _CSI_NODE,
    "CSIDriver": _CSI_DRIVER,
    "CSIStorageCapacity": _STORAGE_CAPACITY,
    "VolumeAttachment": _VOLUME_ATTACHMENT,
}
"""By kind."""

NAMED = fields({"metadata": fields({"name": TEXT})})
"""What is read of an object of any other kind."""
