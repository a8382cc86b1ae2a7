"""Volumes for random clusters, and pods that use them, as manifests that a real API server accepts.

Few names in each namespace, so that pods share claims. Volumes of one class have different sizes,
so that the smallest sufficient volume is unique: kube-scheduler chooses randomly among equal ones.
A claim whose volume is yet to be provisioned is used by one pod only, because nothing provisions
volumes here. A claim with ReadWriteOncePod is used by at most one pod on a node: kube-scheduler
counts only one, so with two of them it evicts one and then cannot place the pod.
"""

from collections.abc import Sequence
from typing import Any

from tests.seeded_random import SeededRandom

Json = dict[str, Any]

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
ZONES = ("z1", "z2", "z3")
BOUND, WAIT, MAKE, TRACK, NOW, NONE = "bound", "wait", "make", "track", "now", "none"
"""The state of a claim: bound; waiting for a volume that is created manually or provisioned (with
or without capacity tracking by the driver); unbound with immediate binding; or missing.
"""
_GI = 2**30


def add_volumes(seed: int, case: Json) -> None:
    """For most of the clusters. The random stream is separate, so the rest of the cluster does not
    change.
    """
    rng = SeededRandom(f"live volumes {seed}")
    if rng.one_in(4):
        return
    nodes = [node["metadata"]["name"] for node in case["nodes"]]
    driver, tracking = f"d{seed}.example.com", f"t{seed}.example.com"
    namespaces = sorted({pod["metadata"]["namespace"] for pod in (*case["bound"], *case["pending"])})
    claims = [_claim(rng, seed, space, number) for space in namespaces for number in range(rng.randint(1, 4))]
    held = [_volume_of(rng, seed, claim, nodes, driver) for claim in claims if _fate(claim) == BOUND]
    free = [_free_volume(rng, seed, number, nodes) for number in range(rng.randint(2, 9))]
    case["objects"] += [
        *_classes(rng, seed, driver, tracking),
        *(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSIDriver",
                "metadata": {"name": name},
                "spec": {
                    "storageCapacity": name == tracking,
                    "attachRequired": True,
                    # Not drawn by the dice, so that what earlier seeds draw stays.
                    **({"preventPodSchedulingIfMissing": True} if seed % 7 == 6 else {}),
                },
            }
            for name in (driver, tracking)
        ),
        *_capacities(rng, seed),
        *(claim for claim in claims if _fate(claim) != NONE),
        *held,
        *free,
        *_csi_nodes(rng, nodes, (driver, tracking)),
    ]
    used: set[str] = set()
    for pod in case["bound"]:
        if not rng.one_in(3):
            _use(rng, pod, [claim for claim in claims if _fate(claim) == BOUND], used)
            used |= {claim["metadata"]["name"] for claim in claims if _alone(claim) and _uses(pod, claim)}
    used -= {claim["metadata"]["name"] for claim in claims if _alone(claim)}
    for pod in case["pending"]:
        if not rng.one_in(3):
            _use(rng, pod, claims, used)


def _fate(claim: Json) -> str:
    return str(claim["metadata"]["labels"]["fate"])


def _alone(claim: Json) -> bool:
    return "ReadWriteOncePod" in claim["spec"]["accessModes"]


def _uses(pod: Json, claim: Json) -> bool:
    named = [
        volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"].get("volumes", ())
    ]
    return claim["metadata"]["name"] in named


def _use(rng: SeededRandom, pod: Json, claims: Sequence[Json], used: set[str]) -> None:
    """Use one or two claims of the pod's namespace."""
    space = pod["metadata"]["namespace"]
    matching = [
        claim
        for claim in claims
        if claim["metadata"]["namespace"] == space and claim["metadata"]["name"] not in used
    ]
    chosen = rng.sample(matching, min(len(matching), rng.choice((1, 1, 2))))
    used |= {claim["metadata"]["name"] for claim in chosen if _fate(claim) in (MAKE, TRACK)}
    volumes = [
        {"name": f"v{place}", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
        for place, claim in enumerate(chosen)
    ]
    if volumes:
        pod["spec"]["volumes"] = [*pod["spec"].get("volumes", ()), *volumes]


# ── classes, drivers ───────────────────────────────────────────────────────────────────────────────────────────────


def _classes(rng: SeededRandom, seed: int, driver: str, tracking: str) -> list[Json]:
    classes = [
        _class(seed, WAIT, "kubernetes.io/no-provisioner"),
        _class(seed, MAKE, driver),
        _class(seed, TRACK, tracking),
        {**_class(seed, NOW, driver), "volumeBindingMode": "Immediate"},
    ]
    if rng.one_in(2):
        values = rng.sample(ZONES, rng.randint(1, 2))
        classes[1]["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": values}]}]
    return classes


def _class(seed: int, fate: str, provisioner: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": f"s{seed}-{fate}"},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _capacities(rng: SeededRandom, seed: int) -> list[Json]:
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": f"s{seed}-{zone}", "namespace": "default"},
            "storageClassName": f"s{seed}-{TRACK}",
            "nodeTopology": {"matchLabels": {ZONE: zone}},
            "capacity": rng.choice(("2Gi", "4Gi", "20Gi")),
        }
        for zone in ZONES
        if not rng.one_in(3)
    ]


def _csi_nodes(rng: SeededRandom, nodes: Sequence[str], drivers: Sequence[str]) -> list[Json]:
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": node},
            "spec": {
                "drivers": [
                    {
                        "name": driver,
                        "nodeID": node,
                        "topologyKeys": [],
                        **({"allocatable": {"count": rng.choice((1, 1, 2, 3))}} if rng.one_in(2) else {}),
                    }
                    for driver in drivers
                ]
            },
        }
        for node in nodes
        if not rng.one_in(4)
    ]


# ── claims and volumes ─────────────────────────────────────────────────────────────────────────────────────────────


def _claim(rng: SeededRandom, seed: int, space: str, number: int) -> Json:
    fate = rng.choices((BOUND, WAIT, MAKE, TRACK, NOW, NONE), (6, 4, 3, 3, 1, 1))[0]
    name = f"s{seed}-{space}-{number}"
    mode = "ReadWriteOncePod" if fate == BOUND and rng.one_in(3) else "ReadWriteOnce"
    bound = {"volumeName": f"{name}-v"} if fate == BOUND else {}
    done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}} if fate == BOUND else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": space, "labels": {"fate": fate}, **done},
        "spec": {
            "accessModes": [mode],
            "storageClassName": f"s{seed}-{MAKE if fate in (BOUND, NONE) else fate}",
            "resources": {"requests": {"storage": str(rng.randint(1, 3) * _GI)}},
            **bound,
        },
        **({"status": {"phase": "Bound"}} if bound else {}),
    }


def _volume_of(rng: SeededRandom, seed: int, claim: Json, nodes: Sequence[str], driver: str) -> Json:
    """The volume that a claim is bound to, available on some or all nodes."""
    name, spec = claim["metadata"]["name"], claim["spec"]
    volume = _volume(f"{name}-v", f"s{seed}-{MAKE}", 6 * _GI, spec["accessModes"][0])
    volume["spec"]["claimRef"] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim["metadata"]["namespace"],
        "name": name,
    }
    if rng.one_in(4):
        volume["spec"]["hostPath"] = {"path": "/mnt/x"}
    else:
        volume["spec"]["csi"] = {"driver": driver, "volumeHandle": name}
    match rng.randrange(5):
        case 0:
            volume["metadata"]["labels"] = {rng.choice((ZONE, OLD_ZONE)): rng.choice((*ZONES, "z1__z2"))}
        case 1:
            volume["spec"]["nodeAffinity"] = _within(HOST, [rng.choice(nodes)])
        case 2 | 3:
            volume["spec"]["nodeAffinity"] = _within(ZONE, rng.sample(ZONES, rng.randint(1, 2)))
        case _:
            pass
    volume["status"] = {"phase": "Bound"}
    return volume


def _free_volume(rng: SeededRandom, seed: int, number: int, nodes: Sequence[str]) -> Json:
    size = rng.randint(2, 6) * _GI + number * 2**20
    volume = _volume(f"s{seed}-free{number}", f"s{seed}-{WAIT}", size, "ReadWriteOnce")
    volume["spec"]["local"] = {"path": f"/mnt/{number}"}
    where = (HOST, [rng.choice(nodes)]) if rng.one_in(2) else (ZONE, [rng.choice(ZONES)])
    volume["spec"]["nodeAffinity"] = _within(*where)
    volume["status"] = {"phase": "Released" if rng.one_in(8) else "Available"}
    return volume


def _volume(name: str, of_class: str, size_bytes: int, mode: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": str(size_bytes)},
            "accessModes": [mode],
            "storageClassName": of_class,
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }


def _within(key: str, values: Sequence[str]) -> Json:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}
    return {"required": {"nodeSelectorTerms": [term]}}
