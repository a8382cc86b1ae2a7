"""Random volumes, claims and pods that use them, for the property tests of volumes.

Few names and few sizes, so that claims compete for volumes, volumes refer to claims that do not
exist, and nodes are full. Everything is a manifest decoded by `kube.decode.storage`.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.kube.decode import storage
from policysched.kube.decode.pods import decode_pod
from policysched.model.pods import Pod
from tests.builders import placed
from tests.evaluate.clusters import NODE_NAMES, ClusterRandom, Scene, scenes

Json = dict[str, Any]

DRIVER = "csi.example.com"
CLAIMS = ("c0", "c1", "c2", "c3")
VOLUMES = tuple(f"v{number}" for number in range(7))
CLASSES = ("wait", "make", "now", "track")
SIZES = ("1Gi", "2Gi", "5Gi")
ZONE = "topology.kubernetes.io/zone"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"


@st.composite
def storage_scenes(draw: st.DrawFn) -> Scene:
    """A scene with volumes and pods that use some."""
    scene = draw(scenes(pods=1, placed_max=3))
    rng = ClusterRandom(draw(st.integers(0, 2**32 - 1)))
    names = sorted(scene.cache.nodes)
    for name in names:
        node = scene.cache.nodes[name]
        zones = {ZONE: rng.choice(("z1", "z2"))} if not rng.one_in(4) else {}
        scene.cache.put_node(replace(node, labels={**node.labels, **zones}, taints=(), unschedulable=False))
    for obj in random_storage(rng):
        scene.cache.put_storage(storage.STORAGE_DECODERS[obj["kind"]](obj))
    for number in range(rng.randrange(4) if names else 0):
        scene.cache.put_pod(placed(random_user(rng, f"there-{number}"), rng.choice(names)))
    return replace(scene, pods=tuple(random_user(rng, f"coming-{number}") for number in range(3)))


def random_user(rng: ClusterRandom, name: str) -> Pod:
    """A pod that requests little except volumes."""
    volumes: list[Json] = [{"persistentVolumeClaim": {"claimName": claim}} for claim in rng.some(CLAIMS, 2)]
    if rng.one_in(6):
        volumes.append({"persistentVolumeClaim": {"claimName": rng.choice(CLAIMS)}})
    if rng.one_in(5):
        volumes.append({"ephemeral": {}})
    if rng.one_in(4):
        volumes += [random_disk(rng) for _ in range(rng.choice((1, 2)))]
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "schedulerName": "test",
            "containers": [{"name": "c", "image": "app:1"}],
            "volumes": [{"name": f"x{index}", **volume} for index, volume in enumerate(volumes)],
        },
    }
    return decode_pod(manifest).pod


def random_disk(rng: ClusterRandom) -> Json:
    read_only = {"readOnly": rng.one_in(2)}
    return rng.choice(
        (
            {"gcePersistentDisk": {"pdName": rng.choice("ab"), **read_only}},
            {"awsElasticBlockStore": {"volumeID": rng.choice(("vol-1", "aws://z1/vol-1")), **read_only}},
            {"iscsi": {"iqn": rng.choice("ab"), **read_only}},
            {"azureDisk": {"diskURI": rng.choice("ab")}},
            {
                "rbd": {
                    "pool": rng.choice("ab"),
                    "image": "i",
                    "monitors": rng.some(("m1", "m2"), 2, least=1),
                    **read_only,
                }
            },
        )
    )


def random_storage(rng: ClusterRandom) -> list[Json]:
    kinds = (_classes, _claims, _volumes, _csi_nodes, _drivers, _capacities, _attachments)
    return [obj for kind in kinds for obj in kind(rng)]


def _meta(name: str, **more: Any) -> Json:
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", **more}


def _classes(rng: ClusterRandom) -> list[Json]:
    allowed = {"allowedTopologies": [_topology(rng) for _ in range(rng.randrange(3))]}
    modes = {
        "wait": ("kubernetes.io/no-provisioner", "WaitForFirstConsumer", {}),
        "make": (rng.choice((DRIVER, "kubernetes.io/aws-ebs")), "WaitForFirstConsumer", allowed),
        "now": (DRIVER, "Immediate", {}),
        "track": (DRIVER, "WaitForFirstConsumer", {}),
    }
    return [
        {
            "kind": "StorageClass",
            "metadata": _meta(name),
            "provisioner": provisioner,
            "volumeBindingMode": mode,
            **more,
        }
        for name, (provisioner, mode, more) in modes.items()
        if not rng.one_in(8)
    ]


def _topology(rng: ClusterRandom) -> Json:
    keys = rng.some((ZONE, "kubernetes.io/hostname"), 2)
    values = {ZONE: ("z1", "z2"), "kubernetes.io/hostname": NODE_NAMES}
    return {"matchLabelExpressions": [{"key": key, "values": rng.some(values[key], 2)} for key in keys]}


def _claims(rng: ClusterRandom) -> list[Json]:
    names = [name for name in CLAIMS if not rng.one_in(12)]
    ephemeral = [f"coming-{number}-x{index}" for number in range(3) for index in range(4)]
    return [_claim(rng, name) for name in names] + [
        _claim(rng, name) for name in ephemeral if not rng.one_in(3)
    ]


def _claim(rng: ClusterRandom, name: str) -> Json:
    annotations: Json = {}
    spec: Json = {
        "accessModes": rng.some(("ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"), 2, least=1),
        "resources": {"requests": {"storage": rng.choice(SIZES)}} if not rng.one_in(8) else {},
        "storageClassName": rng.choice((*CLASSES, "wait", "make", "")),
    }
    if rng.one_in(3):
        spec["volumeName"] = rng.choice((*VOLUMES, "v-gone"))
        if not rng.one_in(4):
            annotations["pv.kubernetes.io/bind-completed"] = "yes"
    if rng.one_in(8):
        annotations["volume.kubernetes.io/selected-node"] = rng.choice(NODE_NAMES)
    if rng.one_in(8):
        spec["selector"] = {"matchLabels": {"disk": rng.choice(("ssd", "hdd"))}}
    if rng.one_in(10):
        spec["volumeMode"] = "Block"
    if rng.one_in(12):
        spec["volumeAttributesClassName"] = "gold"
    owners = []
    if name.startswith("coming"):
        owner = "uid-other" if rng.one_in(6) else f"uid-{name.rpartition('-')[0]}"
        owners = [{"uid": owner, "controller": True, "kind": "Pod", "name": "p"}]
    deleted = {"deletionTimestamp": "2026-01-05T09:59:59Z"} if rng.one_in(20) else {}
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": _meta(
            name, namespace="default", annotations=annotations, ownerReferences=owners, **deleted
        ),
        "spec": spec,
        "status": {"phase": "Lost" if rng.one_in(20) else "Pending"},
    }


def _volumes(rng: ClusterRandom) -> list[Json]:
    return [_volume(rng, name) for name in VOLUMES if not rng.one_in(8)]


def _volume(rng: ClusterRandom, name: str) -> Json:
    labels: Json = {"disk": rng.choice(("ssd", "hdd"))}
    if rng.one_in(3):
        labels[rng.choice((ZONE, OLD_ZONE))] = rng.choice(("z1", "z2", "z1__z2", "z1__"))
    spec: Json = {
        "capacity": {"storage": rng.choice(SIZES)},
        "accessModes": rng.some(("ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"), 3, least=1),
        "storageClassName": rng.choice(("wait", "wait", "make", "now", "")),
        "volumeMode": "Block" if rng.one_in(10) else "Filesystem",
        **_source(rng, name),
    }
    terms = rng.choice((None, None, *(_terms(rng) for _ in range(4))))
    if terms is not None:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    phase = "Available"
    if rng.one_in(3):
        claim = rng.choice(CLAIMS)
        uid = rng.choice((f"uid-{claim}", f"uid-{claim}", "", "uid-of-before"))
        spec["claimRef"] = {"namespace": "default", "name": claim, "uid": uid}
        phase = rng.choice(("Available", "Bound", "Released"))
    elif rng.one_in(6):
        phase = rng.choice(("Pending", "Released"))
    deleted = {"deletionTimestamp": "2026-01-05T09:59:59Z"} if rng.one_in(15) else {}
    return {
        "kind": "PersistentVolume",
        "metadata": _meta(name, labels=labels, **deleted),
        "spec": spec,
        "status": {"phase": phase},
    }


def _source(rng: ClusterRandom, name: str) -> Json:
    return rng.choice(
        (
            {"csi": {"driver": DRIVER, "volumeHandle": name}},
            {"csi": {"driver": DRIVER, "volumeHandle": "shared"}},
            {"awsElasticBlockStore": {"volumeID": name}},
            {"hostPath": {"path": "/mnt"}},
        )
    )


def _terms(rng: ClusterRandom) -> list[Json]:
    if rng.one_in(2):
        names = rng.some(NODE_NAMES, 2, least=1)
        return [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}]
    return [_term(rng) for _ in range(rng.choice((1, 1, 2)))]


def _term(rng: ClusterRandom) -> Json:
    term: Json = {}
    if not rng.one_in(8):
        zones = rng.some(("z1", "z2"), 2, least=1)
        operator = rng.choice(("In", "NotIn", "Exists"))
        values = [] if operator == "Exists" else zones
        term["matchExpressions"] = [{"key": ZONE, "operator": operator, "values": values}]
    if rng.one_in(6):
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]
    return term


def _csi_nodes(rng: ClusterRandom) -> list[Json]:
    migrated = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/gce-pd"}
    return [
        {
            "kind": "CSINode",
            "metadata": _meta(name, annotations=migrated if rng.one_in(2) else {}),
            "spec": {
                "drivers": [
                    {"name": driver, **({"allocatable": {"count": rng.randrange(4)}} if limited else {})}
                    for driver in rng.some((DRIVER, "ebs.csi.aws.com", "disk.csi.azure.com"), 3)
                    for limited in [not rng.one_in(4)]
                ]
            },
        }
        for name in NODE_NAMES
        if not rng.one_in(4)
    ]


def _drivers(rng: ClusterRandom) -> list[Json]:
    spec = {"storageCapacity": rng.one_in(2), "preventPodSchedulingIfMissing": rng.one_in(4)}
    return [] if rng.one_in(3) else [{"kind": "CSIDriver", "metadata": _meta(DRIVER), "spec": spec}]


def _capacities(rng: ClusterRandom) -> list[Json]:
    return [
        {
            "kind": "CSIStorageCapacity",
            "metadata": _meta(f"room-{number}", namespace="kube-system"),
            "storageClassName": rng.choice(("track", "make")),
            **rng.choice(({}, {"capacity": rng.choice(SIZES)}, {"maximumVolumeSize": "2Gi"})),
            **rng.choice(({}, {"nodeTopology": {}}, {"nodeTopology": {"matchLabels": {ZONE: "z1"}}})),
        }
        for number in range(rng.randrange(4))
    ]


def _attachments(rng: ClusterRandom) -> list[Json]:
    return [
        {
            "kind": "VolumeAttachment",
            "metadata": _meta(f"attached-{number}"),
            "spec": {
                "nodeName": rng.choice(NODE_NAMES),
                "attacher": rng.choice((DRIVER, "ebs.csi.aws.com")),
                "source": {"persistentVolumeName": rng.choice(VOLUMES)} if not rng.one_in(6) else {},
            },
        }
        for number in range(rng.randrange(4))
    ]


def change(cache: ClusterCache, rng: ClusterRandom, step: int) -> None:
    """Add, change or delete a storage object, or reserve volumes."""
    obj = rng.choice(random_storage(rng))
    obj["metadata"]["resourceVersion"] = str(step + 2)
    if rng.one_in(5):
        cache.drop_storage(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    elif rng.one_in(4) and cache.nodes:
        free = list(AvailableVolumes(cache.volumes).free_volumes("wait"))
        claims = [claim for claim in cache.volumes.claims.values() if not claim.volume_name]
        if free and claims:
            choice = VolumeChoice(((rng.choice(claims), rng.choice(free)),), (rng.choice(claims),))
            user = random_user(rng, f"promised-{step}")
            cache.volumes.reserve(user.uid, choice, rng.choice(sorted(cache.nodes)))
    else:
        cache.put_storage(storage.STORAGE_DECODERS[obj["kind"]](obj))
