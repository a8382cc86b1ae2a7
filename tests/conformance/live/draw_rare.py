"""Rare features added to a drawn cluster.

Host networks, inline disks, migrated volume plugins, generic ephemeral volumes, huge pages, pods
that are terminating, finished or being resized, unusual disruption budgets, and pods that are
nominated while their victims terminate slowly.

The random stream is separate, so the rest of the cluster does not change. Left out is what the API
server rejects while its feature gate is off, as it is by default in 1.36: tolerations with Gt and
Lt (TaintTolerationComparisonOperators), and pods of a host network with their own user namespaces
(UserNamespacesHostNetworkSupport). Claims for devices come from `draw_devices`.
"""

from collections.abc import Iterable
from typing import Any

from tests.seeded_random import SeededRandom

Json = dict[str, Any]

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
IN_TREE = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
}
"""In-tree volume plugins that were removed from Kubernetes, and the CSI drivers that replace them."""
HUGE = "hugepages-2Mi"
GRACE_S = 600
RANKS = ("high", "high-never", "mid", "low")


def add_rarities(seed: int, case: Json) -> None:
    rng = SeededRandom(f"live rarities {seed}")
    pods = [*case["bound"], *case["pending"]]
    _host_networks(rng, pods)
    _tolerances(rng, pods)
    if rng.one_in(2):
        _inline_disks(rng, pods)
        _limits_of_drivers(rng, case)
        _volumes_in_tree(rng, case)
    if rng.one_in(3):
        _huge_pages(rng, case)
    if rng.one_in(2):
        _attachments(rng, seed, case)
    if rng.one_in(3):
        _ephemeral_volumes(rng, seed, case)
    if "pdbs" in case:
        if not rng.one_in(4):
            _easy_to_please(case["pending"][-1])
            _fill_up(rng, seed, case)
        _odd_budgets(rng, case)
        if rng.one_in(2):
            _slow_victims(rng, seed, case)
    if rng.one_in(3):
        _lives_of_pods(rng, case)
    if "pdbs" in case:
        _say_who_came_first(rng, case)


# ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _host_networks(rng: SeededRandom, pods: Iterable[Json]) -> None:
    """Pods of the host network: their containers' ports are the node's. Sidecars hold ports as
    well, other init containers do not.
    """
    for pod in pods:
        spec = pod["spec"]
        first, early = spec["containers"][0], spec.get("initContainers")
        if early and "ports" not in first and rng.one_in(2):
            early[0]["ports"] = [{"containerPort": 80, "hostPort": rng.choice((8080, 8081))}]
        if rng.one_in(8):
            spec["hostNetwork"] = True
            if "ports" not in first and not (early and "ports" in early[0]):
                first["ports"] = [
                    {"containerPort": rng.choice((8080, 8081)), "protocol": rng.choice(("TCP", "UDP"))}
                ]
            for container in (*(early or ()), *spec["containers"]):
                for port in container.get("ports", ()):
                    port["containerPort"] = port.get("hostPort", port["containerPort"])


def _tolerances(rng: SeededRandom, pods: Iterable[Json]) -> None:
    """Tolerations for unschedulable nodes, as DaemonSet pods have."""
    for pod in pods:
        if rng.one_in(10):
            toleration = {"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}
            pod["spec"]["tolerations"] = [*pod["spec"].get("tolerations", ()), toleration]


def _huge_pages(rng: SeededRandom, case: Json) -> None:
    for node in case["nodes"]:
        if not rng.one_in(3):
            node["status"]["capacity"][HUGE] = rng.choice(
                ("4Mi", "8Mi", "64Mi")
            )  # the same object is the allocatable amounts
    for pod in (*case["bound"], *case["pending"]):
        requests = pod["spec"]["containers"][0]["resources"].get("requests", {})
        if "memory" in requests and rng.one_in(3):  # The API server requires CPU or memory in addition.
            size = rng.choice(("2Mi", "4Mi"))
            requests[HUGE] = size
            pod["spec"]["containers"][0]["resources"].setdefault("limits", {})[HUGE] = size


def _lives_of_pods(rng: SeededRandom, case: Json) -> None:
    """Some pods on nodes are terminating, some have finished, and some are being resized. No pod
    terminates forever in cases where the preemptor is decided once its victims are gone.
    """
    case["leaving"] = []
    may_leave = "pdbs" not in case or case.get("lingers")
    for pod in case["bound"]:
        match rng.randrange(8):
            case 0 if may_leave:
                case["leaving"].append(pod["metadata"]["name"])
            case 1:
                pod["status"] = {"phase": rng.choice(("Succeeded", "Failed"))}
            case 2 if "resources" not in pod["spec"]:
                pod["status"] = {"phase": "Running", "containerStatuses": _resized(rng, pod)}
            case _:
                pass


def _resized(rng: SeededRandom, pod: Json) -> list[Json]:
    """The allocated resources of a container count while they exceed its requests."""
    changes = []
    for container in pod["spec"]["containers"]:
        requests = dict(container["resources"].get("requests", {}))
        given = {**requests, "cpu": rng.choice(("50m", "500m", "2"))}
        changes.append(
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "sha256:0",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {}},
                "allocatedResources": given if rng.one_in(2) else requests,
                "resources": {"requests": given},
            }
        )
    return changes


# ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _inline_disks(rng: SeededRandom, pods: Iterable[Json]) -> None:
    """Inline disks with few names, so that pods conflict on them, and volume types that only the
    kubelet reads.
    """
    for pod in pods:
        volumes = [{"name": f"d{place}", **_inline_disk(rng)} for place in range(rng.choice((0, 0, 1, 1, 2)))]
        if volumes:
            pod["spec"]["volumes"] = [*pod["spec"].get("volumes", ()), *volumes]


def _inline_disk(rng: SeededRandom) -> Json:
    name, read_only = rng.choice(("d1", "d2", "d3")), {"readOnly": True} if rng.one_in(2) else {}
    match rng.randrange(8):
        case 0 | 1:
            return {"gcePersistentDisk": {"pdName": name, **read_only}}
        case 2:
            return {"awsElasticBlockStore": {"volumeID": rng.choice(("vol-1", "vol-2", "aws://z1/vol-1"))}}
        case 3:
            target = {"targetPortal": "10.0.0.9:3260", "iqn": f"iqn.2026-01.com.example:{name}", "lun": 0}
            return {"iscsi": {**target, **read_only}}
        case 4:
            monitors = rng.sample(("m1:6789", "m2:6789", "m3:6789"), rng.randint(1, 2))
            pool = {"pool": "fast"} if rng.one_in(3) else {}
            return {"rbd": {"monitors": monitors, "image": name, **pool, **read_only}}
        case 5:
            uri = f"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/{name}"
            return {"azureDisk": {"diskName": name, "diskURI": uri, "kind": "Managed"}}
        case 6:
            return {"cinder": {"volumeID": name}}
        case _:
            return rng.choice(
                (
                    {"emptyDir": {}},
                    {"configMap": {"name": "c"}},
                    {"hostPath": {"path": "/x"}},
                    {"csi": {"driver": "x.example.com"}},
                )
            )


def _limits_of_drivers(rng: SeededRandom, case: Json) -> None:
    """Nodes whose kubelet has migrated disks to drivers, with the attach limits of these."""
    known = {obj["metadata"]["name"]: obj for obj in case["objects"] if obj["kind"] == "CSINode"}
    for node in case["nodes"]:
        name = node["metadata"]["name"]
        if rng.one_in(3):
            continue
        plugins = rng.sample(sorted(IN_TREE), rng.randint(1, len(IN_TREE)))
        if name not in known:
            known[name] = {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": {"name": name},
                "spec": {"drivers": []},
            }
            case["objects"].append(known[name])
        if not rng.one_in(4):
            known[name]["metadata"]["annotations"] = {MIGRATED: ",".join(plugins)}
        known[name]["spec"]["drivers"] += [
            {
                "name": IN_TREE[plugin],
                "nodeID": name,
                "topologyKeys": [],
                "allocatable": {"count": rng.choice((0, 1, 2, 3))},
            }
            for plugin in plugins
        ]


def _volumes_in_tree(rng: SeededRandom, case: Json) -> None:
    """Bound volumes of the removed plugins. No GCE disk has two zones without names of its own:
    kube-scheduler would end every attempt of a pod that uses one with a translation error.
    """
    for obj in case["objects"]:
        if obj["kind"] != "PersistentVolume" or "csi" not in obj["spec"] or not rng.one_in(2):
            continue
        name = obj["metadata"]["name"]
        del obj["spec"]["csi"]
        between_zones = any("__" in value for value in obj["metadata"].get("labels", {}).values())
        match rng.randrange(3):
            case 0:
                obj["spec"]["awsElasticBlockStore"] = {"volumeID": f"aws://z1/vol-{name[-3:]}"}
            case 1 if not between_zones:
                obj["spec"]["gcePersistentDisk"] = {"pdName": name}
            case _:
                obj["spec"]["cinder"] = {"volumeID": name}


def _attachments(rng: SeededRandom, seed: int, case: Json) -> None:
    """Volumes that are attached to a node without a pod that uses them there: some are used by pods
    elsewhere, and some only fill the attach limit of a driver.
    """
    volumes = [obj for obj in case["objects"] if obj["kind"] == "PersistentVolume" and "csi" in obj["spec"]]
    nodes = [node["metadata"]["name"] for node in case["nodes"]]
    pairs = [(rng.choice(volumes), rng.choice(nodes)) for _ in range(rng.randrange(4) if volumes else 0)]
    limited = [
        (obj["metadata"]["name"], driver["name"])
        for obj in case["objects"]
        if obj["kind"] == "CSINode"
        for driver in obj["spec"]["drivers"]
        if "allocatable" in driver
    ]
    for place, (node, driver) in enumerate(limited):
        for number in range(rng.choice((0, 1, 2))):
            stranger = _stranger(f"s{seed}-x{place}-{number}", driver)
            case["objects"].append(stranger)
            pairs.append((stranger, node))
    for number, (volume, node) in enumerate(pairs):
        case["objects"].append(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "VolumeAttachment",
                "metadata": {"name": f"s{seed}-{number}"},
                "spec": {
                    "attacher": volume["spec"]["csi"]["driver"],
                    "nodeName": node,
                    "source": {"persistentVolumeName": volume["metadata"]["name"]},
                },
            }
        )


def _stranger(name: str, driver: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "of-strangers",
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": driver, "volumeHandle": name},
        },
    }


def _ephemeral_volumes(rng: SeededRandom, seed: int, case: Json) -> None:
    """Generic ephemeral volumes: their claims are created together with the pod (`owned`, by the
    pod's name). Some claims do not exist yet, and some exist without an owner; but not for pods on
    nodes, because kube-scheduler gives up on every pod with volumes as soon as it meets such a pod.
    """
    classes = [obj["metadata"]["name"] for obj in case["objects"] if obj["kind"] == "StorageClass"]
    case["owned"] = {}
    for pod in (*case["bound"], *case["pending"]) if classes else ():
        if not rng.one_in(4):
            continue
        name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
        claim_spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": rng.choice(classes),
            "resources": {"requests": {"storage": "1Gi"}},
        }
        volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec}}}
        pod["spec"]["volumes"] = [*pod["spec"].get("volumes", ()), volume]
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"{name}-scratch", "namespace": space, "labels": {"fate": "ephemeral"}},
            "spec": claim_spec,
        }
        match rng.randrange(4):
            case 0:
                pass
            case 1 if pod in case["pending"]:
                case["objects"].append(claim)
            case _:
                case["owned"][name] = [claim]


# ── preemption ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _easy_to_please(urgent: Json) -> None:
    """Most requests other than room would keep such a pod from preempting."""
    spec = urgent["spec"]
    for field in (
        "affinity",
        "nodeSelector",
        "topologySpreadConstraints",
        "initContainers",
        "volumes",
        "hostNetwork",
    ):
        spec.pop(field, None)
    spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in ("dedicated", "spot")]
    spec["containers"] = [{**spec["containers"][0], "ports": []}]
    for field in ("restartPolicy", "restartPolicyRules"):
        spec["containers"][0].pop(field, None)


def _fill_up(rng: SeededRandom, seed: int, case: Json) -> None:
    """Budgets decide which victims are chosen."""
    for node in case["nodes"]:
        name = node["metadata"]["name"]
        for number in range(rng.randint(1, 4)):
            case["bound"].append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": f"{name}-filler{number}",
                        "namespace": rng.choice(("default", "blue", "green")),
                        "labels": {"app": rng.choice(("web", "db", "cache"))},
                    },
                    "spec": {
                        "nodeName": name,
                        "terminationGracePeriodSeconds": 0,
                        "priorityClassName": rng.choice(("low", "mid")),
                        "containers": [
                            {
                                "name": "c0",
                                "image": "app:1",
                                "resources": {"requests": {"cpu": rng.choice(("500m", "1", "1500m"))}},
                            }
                        ],
                    },
                }
            )


def _say_who_came_first(rng: SeededRandom, case: Json) -> None:
    """Different start times; otherwise kube-scheduler compares "now" with "now" when it orders
    equal pods.
    """
    seconds = rng.sample(range(3600), len(case["bound"]))
    for pod, second in zip(case["bound"], seconds, strict=True):
        at = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"
        pod["status"] = {**pod.get("status", {}), "startTime": at}


def _odd_budgets(rng: SeededRandom, case: Json) -> None:
    for budget in case["pdbs"]:
        match rng.randrange(5):
            case 0:
                budget["spec"]["selector"] = {}
            case 1:
                operator = {"key": "app", "operator": "NotIn", "values": ["web"]}
                budget["spec"]["selector"] = {"matchExpressions": [operator]}
            case 2 | 3:
                budget["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
                names = [pod["metadata"]["name"] for pod in case["bound"]]
                chosen = rng.sample(names, len(names) // 2)
                budget["status"]["disruptionsAllowed"] = 0
                budget["status"]["disruptedPods"] = dict.fromkeys(chosen, "2026-01-01T00:00:00Z")
            case _:
                pass


def _slow_victims(rng: SeededRandom, seed: int, case: Json) -> None:
    """Victims terminate slowly, so that the preemptor stays nominated while other pods are decided."""
    case["lingers"] = True
    for pod in (*case["bound"], *case["pending"]):
        pod["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    # Highest priority first: a pod that takes a node from a nominated pod would make that one
    # pending again.
    ranks = sorted(rng.choices(RANKS, k=rng.randint(2, 4)), key=RANKS.index)
    for number, rank in enumerate(ranks):
        case["pending"].append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"s{seed}-next{number}",
                    "namespace": "default",
                    "labels": {"app": rng.choice(("web", "db"))},
                },
                "spec": {
                    "terminationGracePeriodSeconds": GRACE_S,
                    "priorityClassName": rank,
                    "affinity": {"nodeAffinity": _one_of_some(rng, case)},
                    "containers": [
                        {
                            "name": "c0",
                            "image": "app:1",
                            "resources": {
                                "requests": {
                                    "cpu": rng.choice(("100m", "300m", "500m", "1")),
                                    "memory": rng.choice(("64Mi", "1Gi")),
                                }
                            },
                        }
                    ],
                },
            }
        )


def _one_of_some(rng: SeededRandom, case: Json) -> Json:
    """Few nodes, so that a nomination affects the others."""
    names = [node["metadata"]["name"] for node in case["nodes"]]
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in rng.sample(names, min(len(names), rng.randint(1, 3)))
    ]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
