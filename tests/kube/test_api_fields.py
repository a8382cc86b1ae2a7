"""Every field of the API that could decide a pod's node is read, named as not supported, or known not to matter."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest

from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from policysched.kube.decode import core_objects
from policysched.kube.decode.devices import DEVICE_DECODERS
from policysched.kube.decode.object_schemas import OBJECT_SCHEMAS
from policysched.kube.decode.pods import decode_pod
from tests.devices import claim_manifest, class_manifest, slice_manifest
from tests.kube.api_fields import MAP_OF, ROOTS, ApiTypes, recorded
from tests.kube.test_shapes import example

Field = tuple[str, str]
"""A type and one of its fields."""


IRRELEVANT: tuple[tuple[str, str], ...] = (
    (
        "The kubelet and the container runtime read them on the node.",
        """
        core.PodSpec.automountServiceAccountToken core.PodSpec.dnsConfig core.PodSpec.dnsPolicy
        core.PodSpec.enableServiceLinks core.PodSpec.hostAliases core.PodSpec.hostIPC core.PodSpec.hostPID
        core.PodSpec.hostname core.PodSpec.hostnameOverride core.PodSpec.imagePullSecrets
        core.PodSpec.readinessGates core.PodSpec.restartPolicy core.PodSpec.securityContext
        core.PodSpec.setHostnameAsFQDN core.PodSpec.shareProcessNamespace core.PodSpec.subdomain
        core.PodSpec.terminationGracePeriodSeconds
        core.Container.args core.Container.command core.Container.env core.Container.envFrom
        core.Container.imagePullPolicy core.Container.lifecycle core.Container.livenessProbe
        core.Container.readinessProbe core.Container.resizePolicy core.Container.securityContext
        core.Container.startupProbe core.Container.stdin core.Container.stdinOnce
        core.Container.terminationMessagePath core.Container.terminationMessagePolicy core.Container.tty
        core.Container.volumeDevices core.Container.workingDir
        core.VolumeMount.mountPath core.VolumeMount.mountPropagation core.VolumeMount.name
        core.VolumeMount.readOnly core.VolumeMount.recursiveReadOnly core.VolumeMount.subPath
        core.VolumeMount.subPathExpr
        core.ContainerRestartRule.exitCodes core.ContainerPort.name core.ImageVolumeSource.pullPolicy
        """,
    ),
    (
        "kube-scheduler does not read it either; a kubelet of another system rejects the pod.",
        "core.PodSpec.os",
    ),
    ("Added to a placed pod only.", "core.PodSpec.ephemeralContainers"),
    (
        "Admission writes what follows from it into the pod: priority, overhead, nodeSelector, serviceAccountName.",
        "core.PodSpec.priorityClassName core.PodSpec.runtimeClassName core.PodSpec.serviceAccount",
    ),
    (
        "Which claim of the pod a container uses; the pod's claims are read as a whole.",
        "core.ResourceRequirements.claims",
    ),
    (
        "When and how a placed pod is evicted; a placement does not depend on it.",
        """
        core.PodSpec.evictionResponders
        core.Toleration.tolerationSeconds core.Taint.timeAdded
        resource.DeviceToleration.tolerationSeconds resource.DeviceTaint.timeAdded
        """,
    ),
    (
        "Configuration for the driver, which is copied into the allocation whole.",
        "resource.DeviceClaimConfiguration.opaque",
    ),
    (
        "The node's network, cloud and kubelet configuration.",
        """
        core.NodeSpec.configSource core.NodeSpec.externalID core.NodeSpec.podCIDR core.NodeSpec.podCIDRs
        core.NodeSpec.providerID
        """,
    ),
    (
        "Volumes that no plugin of the default profile restricts or counts, in kube-scheduler neither.",
        """
        core.Volume.azureFile core.Volume.cephfs core.Volume.configMap core.Volume.csi core.Volume.downwardAPI
        core.Volume.emptyDir core.Volume.fc core.Volume.flexVolume core.Volume.flocker core.Volume.gitRepo
        core.Volume.glusterfs core.Volume.hostPath core.Volume.nfs core.Volume.photonPersistentDisk
        core.Volume.projected core.Volume.quobyte core.Volume.scaleIO core.Volume.secret core.Volume.storageos
        core.Volume.vsphereVolume
        """,
    ),
    (
        "For the reader of a ResourcePoolStatusRequest.",
        "resource.ResourceSliceSpec.partitionTypeAttribute",
    ),
    (
        "How a volume is mounted; it is told apart from others by the fields that are read.",
        """
        core.RBDVolumeSource.fsType core.RBDVolumeSource.keyring core.RBDVolumeSource.secretRef
        core.RBDVolumeSource.user core.PortworxVolumeSource.fsType core.PortworxVolumeSource.readOnly
        core.PersistentVolumeClaimVolumeSource.readOnly
        core.ISCSIVolumeSource.chapAuthDiscovery core.ISCSIVolumeSource.chapAuthSession
        core.ISCSIVolumeSource.fsType core.ISCSIVolumeSource.initiatorName core.ISCSIVolumeSource.iscsiInterface
        core.ISCSIVolumeSource.lun core.ISCSIVolumeSource.portals core.ISCSIVolumeSource.secretRef
        core.ISCSIVolumeSource.targetPortal
        core.GCEPersistentDiskVolumeSource.fsType core.GCEPersistentDiskVolumeSource.partition
        core.CinderVolumeSource.fsType core.CinderVolumeSource.readOnly core.CinderVolumeSource.secretRef
        core.AzureDiskVolumeSource.cachingMode core.AzureDiskVolumeSource.diskName
        core.AzureDiskVolumeSource.fsType core.AzureDiskVolumeSource.readOnly
        core.AWSElasticBlockStoreVolumeSource.fsType core.AWSElasticBlockStoreVolumeSource.partition
        core.AWSElasticBlockStoreVolumeSource.readOnly
        """,
    ),
)
"""Fields that decide no placement, and why."""


class NotedReads(dict[str, Any]):
    """An object of the API that notes which of its fields are asked for, whether it has them or not."""

    def __init__(self, value: Mapping[str, Any], kind: str, types: ApiTypes, read: set[Field]) -> None:
        fields = types.get(kind, {})
        super().__init__(
            {name: noting(item, fields.get(name, ""), types, read) for name, item in value.items()}
        )
        self._kind, self._read = kind, read

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add((self._kind, key))
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._read.add((self._kind, key))
        return super().__getitem__(key)


def noting(value: Any, kind: str, types: ApiTypes, read: set[Field]) -> Any:
    if isinstance(value, list):
        return [noting(item, kind, types, read) for item in value]
    if isinstance(value, dict) and kind.startswith(MAP_OF):
        return {name: noting(item, kind.removeprefix(MAP_OF), types, read) for name, item in value.items()}
    if isinstance(value, dict) and kind in types:
        return NotedReads(value, kind, types, read)
    return value


def whole_claim() -> dict[str, Any]:
    exact = {
        "deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": "true"}}],
        "tolerations": [{"key": "a"}],
        "capacity": {"requests": {"memory": "1Gi"}},
    }
    requests = [{"name": "r", "exactly": exact}, {"name": "s", "firstAvailable": [{**exact, "name": "t"}]}]
    claim = claim_manifest("c", *requests)
    claim["spec"]["devices"]["constraints"] = [{"requests": ["r"]}]
    claim["spec"]["devices"]["config"] = [{"requests": ["r"], "opaque": {"driver": "d", "parameters": {}}}]
    return claim


def whole_slice() -> dict[str, Any]:
    policy = {"default": "1", "validRange": {"min": "1"}}
    device = {
        "name": "g0",
        "attributes": {"model": {"string": "a"}, "size": {"int": 1}, "old": {"version": "1.0.0"}},
        "capacity": {"memory": {"value": "1Gi", "requestPolicy": policy}},
        "consumesCounters": [{"counterSet": "s", "counters": {"memory": {"value": "1"}}}],
        "taints": [{"key": "a", "effect": "NoSchedule"}],
    }
    counters = [{"name": "s", "counters": {"memory": {"value": "1"}}}]
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
    return slice_manifest(None, device, sharedCounters=counters, nodeSelector=terms)


def fields_read(types: ApiTypes) -> set[Field]:
    """The fields that the decoders ask for in objects that have everything."""
    read: set[Field] = set()
    pod = example(OBJECT_SCHEMAS["Pod"])
    pod["spec"]["volumes"].append({"name": "disk", "azureDisk": {"kind": "Managed", "diskURI": "u"}})
    decoders: list[tuple[dict[str, Any], str, Callable[[Any], object]]] = [
        (pod, "core.PodSpec", decode_pod),
        (example(OBJECT_SCHEMAS["Node"]), "core.NodeSpec", core_objects.decode_node),
        (whole_claim(), "resource.ResourceClaimSpec", DEVICE_DECODERS["ResourceClaim"]),
        (whole_slice(), "resource.ResourceSliceSpec", DEVICE_DECODERS["ResourceSlice"]),
        (class_manifest("gpu", "true"), "resource.DeviceClassSpec", DEVICE_DECODERS["DeviceClass"]),
    ]
    for obj, kind, decode in decoders:
        decode({**obj, "spec": noting(obj["spec"], kind, types, read)})
    return read


def unexplained(
    types: ApiTypes, read: Collection[Field], irrelevant: Collection[str], unsupported: Collection[str]
) -> Iterator[str]:
    """The fields that are not read, not named and not known not to matter, below those that are read."""
    pending, visited = list(ROOTS), set[str]()
    while pending:
        kind = pending.pop()
        if kind in visited:
            continue
        visited.add(kind)
        for field, referred in types[kind].items():
            name = f"{kind}.{field}"
            if (kind, field) in read:
                child = referred.removeprefix(MAP_OF)
                if child and any(known == child for known, _ in read):
                    pending.append(child)
            elif name not in irrelevant and name not in unsupported:
                yield name


def unread_fields() -> list[str]:
    return [field for feature in UNSUPPORTED_FEATURES for field in feature.api_fields]


def irrelevant_fields() -> list[str]:
    return [field for _, fields in IRRELEVANT for field in fields.split()]


def unexplained_fields(types: ApiTypes) -> list[str]:
    return sorted(unexplained(types, fields_read(types), irrelevant_fields(), unread_fields()))


def test_every_field_is_read_or_named_or_irrelevant() -> None:
    assert unexplained_fields(recorded()) == []


def test_no_reason_is_given_for_a_field_that_is_read_or_does_not_exist() -> None:
    types = recorded()
    existing = {f"{kind}.{field}" for kind, fields in types.items() for field in fields}
    read = {f"{kind}.{field}" for kind, field in fields_read(types)}

    listed = [*irrelevant_fields(), *unread_fields()]
    assert listed
    assert len(listed) == len(set(listed))
    assert set(listed) <= existing - read


@pytest.mark.parametrize(
    "planted",
    ["core.PodSpec.futureGroup", "resource.Device.futureMappings", "core.Toleration.futureOperator"],
)
def test_planted_field_of_a_later_release_is_reported(planted: str) -> None:
    kind, field = planted.rsplit(".", 1)
    types = recorded()
    later = {**types, kind: {**types[kind], field: ""}}

    assert unexplained_fields(later) == [planted]


def test_planted_decoder_that_ignores_a_field_is_reported() -> None:
    types = recorded()
    read = fields_read(types) - {("resource.Device", "nodeAllocatableResources")}

    missed = list(unexplained(types, read, irrelevant_fields(), unread_fields()))
    assert missed == ["resource.Device.nodeAllocatableResources"]
