"""The schema of each decoded kind, with the API's field names.

A schema has only fields that a decoder reads; tests/kube/test_shapes.py compares both.
"""

from collections.abc import Mapping

from policysched.kube.decode.schema import (
    BOOLEAN,
    INT32,
    INT64,
    QUANTITIES,
    QUANTITY,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TIME,
    ListSchema,
    MapSchema,
    ObjectSchema,
    ScalarSchema,
    Schema,
    enum_of,
    object_of,
)

_VERSION = ScalarSchema(
    'a version such as "1234"',
    lambda value: isinstance(value, str | int) and not isinstance(value, bool),
)
_SELECTOR_OPERATOR = enum_of("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATOR = enum_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_INCLUSION = enum_of("Honor", "Ignore")


def _requirements(operator: ScalarSchema) -> ListSchema:
    return ListSchema(object_of({"key": TEXT, "operator": operator}, values=TEXTS))


_LABEL_SELECTOR = object_of(matchLabels=TEXT_MAP, matchExpressions=_requirements(_SELECTOR_OPERATOR))
_NODE_TERM = object_of(
    matchExpressions=_requirements(_NODE_OPERATOR), matchFields=_requirements(_NODE_OPERATOR)
)
_NODE_SELECTOR = object_of(nodeSelectorTerms=ListSchema(_NODE_TERM))
_NODE_AFFINITY = object_of(
    requiredDuringSchedulingIgnoredDuringExecution=_NODE_SELECTOR,
    preferredDuringSchedulingIgnoredDuringExecution=ListSchema(
        object_of({"weight": INT32, "preference": _NODE_TERM})
    ),
)
_POD_TERM = object_of(
    {"topologyKey": TEXT},
    labelSelector=_LABEL_SELECTOR,
    namespaceSelector=_LABEL_SELECTOR,
    namespaces=TEXTS,
    matchLabelKeys=TEXTS,
    mismatchLabelKeys=TEXTS,
)
_POD_AFFINITY = object_of(
    requiredDuringSchedulingIgnoredDuringExecution=ListSchema(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=ListSchema(
        object_of({"weight": INT32, "podAffinityTerm": _POD_TERM})
    ),
)
_SPREAD = object_of(
    {"topologyKey": TEXT, "maxSkew": INT32, "whenUnsatisfiable": enum_of("DoNotSchedule", "ScheduleAnyway")},
    labelSelector=_LABEL_SELECTOR,
    matchLabelKeys=TEXTS,
    minDomains=INT32,
    nodeAffinityPolicy=_INCLUSION,
    nodeTaintsPolicy=_INCLUSION,
)

_OWNERS = ListSchema(object_of(apiVersion=TEXT, kind=TEXT, name=TEXT, controller=BOOLEAN))
_WRITERS = ListSchema(object_of(manager=TEXT, fieldsV1=object_of(**{"f:status": object_of()})))
_OWNERS_BY_UID = ListSchema(object_of({"uid": TEXT}, controller=BOOLEAN))


def _metadata(**more: Schema) -> ObjectSchema:
    return object_of(
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


_RESOURCES = object_of(requests=QUANTITIES, limits=QUANTITIES)
_CONTAINER = object_of(
    name=TEXT,
    image=TEXT,
    resources=_RESOURCES,
    restartPolicy=TEXT,
    restartPolicyRules=ListSchema(object_of(action=TEXT)),
    ports=ListSchema(object_of(hostPort=INT32, containerPort=INT32, hostIP=TEXT, protocol=TEXT)),
    volumeMounts=ListSchema(object_of(bindMountOptions=TEXTS)),
)

# In-tree volume plugins, in a pod and in a PersistentVolume.
_IN_TREE: Mapping[str, Schema] = {
    "gcePersistentDisk": object_of({"pdName": TEXT}, readOnly=BOOLEAN),
    "awsElasticBlockStore": object_of({"volumeID": TEXT}),
    "azureDisk": object_of(kind=TEXT, diskURI=TEXT),
    "cinder": object_of(volumeID=TEXT),
    "portworxVolume": object_of(volumeID=TEXT),
}
_VOLUME = object_of(
    {"name": TEXT},
    persistentVolumeClaim=object_of(claimName=TEXT),
    ephemeral=object_of(),
    image=object_of(reference=TEXT),
    iscsi=object_of({"iqn": TEXT}, readOnly=BOOLEAN),
    rbd=object_of({"image": TEXT}, pool=TEXT, monitors=TEXTS, readOnly=BOOLEAN),
    **_IN_TREE,
)

_RUN = object_of(startedAt=TIME, finishedAt=TIME, containerID=TEXT, exitCode=INT32, reason=TEXT)
_STATE = object_of(running=_RUN, terminated=_RUN)
_CONTAINER_STATUS = object_of(
    {"name": TEXT},
    containerID=TEXT,
    restartCount=INT32,
    state=_STATE,
    lastState=_STATE,
    resources=_RESOURCES,
    allocatedResources=QUANTITIES,
)

_POD = object_of(
    {
        "metadata": _metadata(ownerReferences=_OWNERS, managedFields=_WRITERS),
        "spec": object_of(
            containers=ListSchema(_CONTAINER),
            initContainers=ListSchema(_CONTAINER),
            overhead=QUANTITIES,
            resources=_RESOURCES,
            affinity=object_of(
                nodeAffinity=_NODE_AFFINITY, podAffinity=_POD_AFFINITY, podAntiAffinity=_POD_AFFINITY
            ),
            activeDeadlineSeconds=INT64,
            volumes=ListSchema(_VOLUME),
            schedulerName=TEXT,
            priority=INT32,
            preemptionPolicy=TEXT,
            serviceAccountName=TEXT,
            nodeSelector=TEXT_MAP,
            tolerations=ListSchema(object_of(key=TEXT, operator=TEXT, value=TEXT, effect=TEXT)),
            schedulingGates=ListSchema(object_of({"name": TEXT})),
            topologySpreadConstraints=ListSchema(_SPREAD),
            nodeName=TEXT,
            hostNetwork=BOOLEAN,
            hostUsers=BOOLEAN,
            resourceClaims=ListSchema(
                object_of({"name": TEXT}, resourceClaimName=TEXT, resourceClaimTemplateName=TEXT)
            ),
            schedulingGroup=object_of(podGroupName=TEXT),
            workloadRef=object_of(),
        ),
    },
    status=object_of(
        phase=enum_of("Pending", "Running", "Succeeded", "Failed", "Unknown"),
        reason=TEXT,
        message=TEXT,
        qosClass=TEXT,
        nominatedNodeName=TEXT,
        resources=_RESOURCES,
        allocatedResources=QUANTITIES,
        startTime=TIME,
        conditions=ListSchema(object_of(type=TEXT, status=TEXT, reason=TEXT)),
        containerStatuses=ListSchema(_CONTAINER_STATUS),
        initContainerStatuses=ListSchema(_CONTAINER_STATUS),
        resourceClaimStatuses=ListSchema(object_of({"name": TEXT}, resourceClaimName=TEXT)),
    ),
)

_NODE = object_of(
    {"metadata": _metadata()},
    spec=object_of(
        taints=ListSchema(
            object_of(
                {"key": TEXT, "effect": enum_of("NoSchedule", "PreferNoSchedule", "NoExecute")}, value=TEXT
            )
        ),
        unschedulable=BOOLEAN,
    ),
    status=object_of(
        allocatable=QUANTITIES,
        capacity=QUANTITIES,
        images=ListSchema(object_of(names=TEXTS, sizeBytes=INT64)),
        conditions=ListSchema(object_of({"type": TEXT, "status": TEXT})),
        addresses=ListSchema(object_of({"address": TEXT})),
        declaredFeatures=TEXTS,
    ),
)

_DISRUPTION_BUDGET = object_of(
    {"metadata": _metadata()},
    spec=object_of(selector=_LABEL_SELECTOR),
    status=object_of(disruptionsAllowed=INT32, disruptedPods=MapSchema(TIME)),
)

_BY_LABELS = object_of({"metadata": _metadata()}, spec=object_of(selector=TEXT_MAP))
_BY_SELECTOR = object_of({"metadata": _metadata()}, spec=object_of(selector=_LABEL_SELECTOR))

_PERSISTENT_VOLUME = object_of(
    {
        "metadata": _metadata(),
        "spec": object_of(
            nodeAffinity=object_of(required=_NODE_SELECTOR),
            claimRef=object_of(namespace=TEXT, name=TEXT, uid=TEXT),
            capacity=QUANTITIES,
            accessModes=TEXTS,
            volumeMode=enum_of("Filesystem", "Block"),
            storageClassName=TEXT,
            volumeAttributesClassName=TEXT,
            csi=object_of(driver=TEXT, volumeHandle=TEXT),
            **_IN_TREE,
        ),
    },
    status=object_of(phase=TEXT),
)

_CLAIM = object_of(
    {
        "metadata": _metadata(ownerReferences=_OWNERS_BY_UID),
        "spec": object_of(
            resources=object_of(requests=QUANTITIES),
            accessModes=TEXTS,
            volumeMode=enum_of("Filesystem", "Block"),
            storageClassName=TEXT,
            volumeAttributesClassName=TEXT,
            selector=_LABEL_SELECTOR,
            volumeName=TEXT,
        ),
    },
    status=object_of(phase=TEXT),
)

_STORAGE_CLASS = object_of(
    {"metadata": _metadata()},
    provisioner=TEXT,
    volumeBindingMode=enum_of("Immediate", "WaitForFirstConsumer"),
    allowedTopologies=ListSchema(
        object_of(matchLabelExpressions=ListSchema(object_of({"key": TEXT}, values=TEXTS))),
    ),
)

_CSI_NODE = object_of(
    {"metadata": _metadata()},
    spec=object_of(drivers=ListSchema(object_of({"name": TEXT}, allocatable=object_of(count=INT32)))),
)

_CSI_DRIVER = object_of(
    {"metadata": _metadata()}, spec=object_of(storageCapacity=BOOLEAN, preventPodSchedulingIfMissing=BOOLEAN)
)

_STORAGE_CAPACITY = object_of(
    {"metadata": _metadata(), "storageClassName": TEXT},
    maximumVolumeSize=QUANTITY,
    capacity=QUANTITY,
    nodeTopology=_LABEL_SELECTOR,
)

_VOLUME_ATTACHMENT = object_of(
    {
        "metadata": _metadata(),
        "spec": object_of({"nodeName": TEXT}, attacher=TEXT, source=object_of(persistentVolumeName=TEXT)),
    }
)

_CONDITIONS = ListSchema(object_of(type=TEXT, status=TEXT, reason=TEXT, message=TEXT))

_DISRUPTION_MODE = ScalarSchema(
    "`Pod`, `PodGroup`, or a map with `single` or `all`",
    lambda value: (
        value in ("Pod", "PodGroup") or (isinstance(value, Mapping) and bool({"single", "all"} & set(value)))
    ),
)

_POD_GROUP = object_of(
    {"metadata": _metadata()},
    spec=object_of(
        schedulingPolicy=object_of(basic=object_of(), gang=object_of({"minCount": INT32})),
        schedulingConstraints=object_of(topology=ListSchema(object_of({"key": TEXT}))),
        disruptionMode=_DISRUPTION_MODE,
        priority=INT32,
        preemptionPolicy=TEXT,
        resourceClaims=ListSchema(object_of()),
        parentCompositePodGroupName=TEXT,
        workloadRef=object_of(workloadName=TEXT),
        podGroupTemplateRef=object_of(workload=object_of(workloadName=TEXT)),
    ),
    status=object_of(conditions=_CONDITIONS),
)

_THIRD_PARTY_POD_GROUP = object_of(
    {"metadata": _metadata()},
    spec=object_of(minMember=INT32, minResources=QUANTITIES, scheduleTimeoutSeconds=INT32),
    status=object_of(phase=TEXT, running=INT32, succeeded=INT32, failed=INT32, conditions=_CONDITIONS),
)

OBJECT_SCHEMAS: Mapping[str, Schema] = {
    "Pod": _POD,
    "Node": _NODE,
    "Namespace": object_of({"metadata": _metadata()}),
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
    "PodGroup.scheduling.k8s.io": _POD_GROUP,
    "PodGroup.scheduling.x-k8s.io": _THIRD_PARTY_POD_GROUP,
    "PodGroup.scheduling.volcano.sh": _THIRD_PARTY_POD_GROUP,
}
"""The schema of each kind."""

NAMED_OBJECT_SCHEMA = object_of({"metadata": object_of({"name": TEXT})})
"""The schema of objects of any other kind."""
