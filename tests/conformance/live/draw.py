"""Random clusters as manifests that a real API server accepts. The same seed always gives the same
cluster.

Names, ports, labels, domains and images are few, so that pods conflict. In most clusters all pods
have one priority; in some, the nodes are full of unimportant pods with disruption budgets, and the
last pending pod has a higher priority. Volumes come from `draw_volumes`, rare features from
`draw_rare`, devices from `draw_devices`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from tests.conformance.live.draw_devices import add_devices
from tests.conformance.live.draw_rare import add_rarities
from tests.conformance.live.draw_volumes import add_volumes
from tests.seeded_random import SeededRandom

Json = dict[str, Any]

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NAMESPACES: dict[str, dict[str, str]] = {
    "default": {},
    "blue": {"team": "x"},
    "green": {"team": "y", "env": "dev"},
}
LABELS = {"app": ("web", "db", "cache"), "tier": ("front", "back"), "rev": ("1", "2")}
NODE_LABELS = {"disk": ("ssd", "hdd"), "pool": ("a", "b", "c"), "gen": ("1", "2", "10")}
DOMAIN_KEYS = (HOST, ZONE, ZONE, "pool")
TAINTS = ("dedicated", "spot")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMAGES = {"app:1": 90, "db:1": 700, "ml": 4000, "registry.test:5000/base": 240, "data:1": 1200}
"""Megabytes."""
GPU, FPGA = "example.com/gpu", "example.com/fpga"
FEATURE = "RestartAllContainersOnContainerExits"
RUNTIME = "heavy"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class Drawn(StrEnum):
    """What is drawn: common features only, rare ones as well (`draw_rare`), or devices too
    (`draw_devices`).
    """

    PLAIN = "plain"
    RARE = "rare"
    ALL = "all"


def draw(seed: int, drawn: Drawn = Drawn.ALL) -> Json:
    """A case in the format of the recorded ones, without expectations."""
    rng = SeededRandom(f"live {seed}")
    crowded = rng.one_in(6)
    nodes = [_node(rng, f"s{seed}-n{index}") for index in range(rng.randint(3, 9))]
    names = [node["metadata"]["name"] for node in nodes]
    owners = _owners(rng, seed)
    bound = [
        _on(_pod(rng, f"s{seed}-b{index}", names, owners, small=True), rng.choice(names))
        for index in range(rng.randint(0, 20))
    ]
    pending = [_pod(rng, f"s{seed}-p{index}", names, owners) for index in range(rng.randint(3, 6))]
    case: Json = {
        "name": f"seed {seed}",
        "nodes": nodes,
        "objects": [*_namespaces(), *_services(rng, seed), *owners],
        "bound": bound,
        "pending": pending,
    }
    if crowded:
        _crowd(rng, seed, case)
    add_volumes(seed, case)
    if drawn is not Drawn.PLAIN:
        add_rarities(seed, case)
    if drawn is Drawn.ALL:
        add_devices(seed, case)
    return case


def _namespaces() -> list[Json]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in NAMESPACES.items()
        if name != "default"
    ]


def _services(rng: SeededRandom, seed: int) -> list[Json]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"s{seed}-{index}", "namespace": rng.choice(tuple(NAMESPACES))},
            "spec": {"selector": _labels(rng, least=1), "ports": [{"port": 80}]},
        }
        for index in range(rng.randrange(4))
    ]


def _owners(rng: SeededRandom, seed: int) -> list[Json]:
    """Workloads whose controllers do not run: only their selectors matter."""
    owners = []
    for kind, api in (("ReplicaSet", "apps/v1"), ("StatefulSet", "apps/v1"), ("ReplicationController", "v1")):
        if rng.one_in(2):
            labels = _labels(rng, least=1)
            template = {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "app:1"}]},
            }
            selector: Json = labels if kind == "ReplicationController" else {"matchLabels": labels}
            meta = {"name": f"s{seed}-{kind.lower()}", "namespace": rng.choice(tuple(NAMESPACES))}
            spec = {"selector": selector, "template": template, "replicas": 1}
            owners.append({"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec})
    return owners


def _labels(rng: SeededRandom, *, least: int = 0) -> dict[str, str]:
    return {key: rng.choice(LABELS[key]) for key in rng.some(tuple(LABELS), 3, least=least)}


# ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _node(rng: SeededRandom, name: str) -> Json:
    room = {
        "cpu": rng.choice(("2", "4", "4", "8", "3500m")),
        "memory": rng.choice(("4Gi", "8Gi", "8Gi", "16Gi", "6000M")),
        "ephemeral-storage": rng.choice(("20Gi", "100Gi")),
        "pods": rng.choice(("110", "110", "110", "3", "6")),
    }
    for resource in rng.some((GPU, FPGA), 2):
        room[resource] = str(rng.randint(0, 4))
    labels = {HOST: name} if not rng.one_in(12) else {}
    if not rng.one_in(6):
        labels[ZONE] = rng.choice(("z1", "z2", "z3"))
    labels |= {key: rng.choice(NODE_LABELS[key]) for key in rng.some(tuple(NODE_LABELS), 3)}
    taints = [_taint(rng, key) for key in rng.some(TAINTS, 2)] if rng.one_in(3) else []
    status: Json = {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        "images": [
            {"names": [_whole_name(image)], "sizeBytes": IMAGES[image] * 1_000_000 + rng.randrange(1000)}
            for image in rng.some(tuple(IMAGES), 4)
        ],
    }
    if rng.one_in(2):
        status["declaredFeatures"] = [FEATURE]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, **({"unschedulable": True} if rng.one_in(12) else {})},
        "status": status,
    }


def _whole_name(image: str) -> str:
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def _taint(rng: SeededRandom, key: str) -> Json:
    return {"key": key, "value": rng.choice(("", "a", "b")), "effect": rng.choice(EFFECTS)}


# ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pod(
    rng: SeededRandom, name: str, nodes: Sequence[str], owners: Sequence[Json], *, small: bool = False
) -> Json:
    owner = rng.choice(owners) if owners and rng.one_in(3) else None
    labels, namespace = _labels(rng), rng.choice(("default", "default", *NAMESPACES))
    if owner is not None:
        labels |= owner["spec"]["template"]["metadata"]["labels"]
        namespace = owner["metadata"]["namespace"]
    by_pod = rng.one_in(8)  # Pod-level requests have to be at least the sum of the containers' requests.
    small = small or by_pod
    spec: Json = {"terminationGracePeriodSeconds": 0, "containers": _containers(rng, small=small)}
    if rng.one_in(4):
        spec["initContainers"] = [_container(rng, "i0", small=small), _container(rng, "i1", small=small)]
        if rng.one_in(2):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if rng.one_in(8):
        spec["runtimeClassName"] = RUNTIME
    elif by_pod:
        spec["resources"] = {
            "requests": {"cpu": rng.choice(("1", "2")), "memory": rng.choice(("1Gi", "3Gi"))}
        }
        if rng.one_in(2):
            spec["resources"]["requests"].popitem()
    if rng.one_in(3):
        spec["tolerations"] = [_toleration(rng) for _ in range(rng.randint(1, 2))]
    if rng.one_in(8):
        spec["nodeSelector"] = {"disk": rng.choice(NODE_LABELS["disk"])}
    affinity: Json = {"nodeAffinity": _node_affinity(rng, nodes)} if rng.one_in(4) else {}
    if rng.one_in(3):
        affinity |= _pod_affinity(rng, labels)
    if affinity:
        spec["affinity"] = affinity
    if rng.one_in(4):
        spec["topologySpreadConstraints"] = _constraints(rng)
    if rng.one_in(8):
        image = {"reference": rng.choice(tuple(IMAGES)), "pullPolicy": "IfNotPresent"}
        spec["volumes"] = [{"name": "data", "image": image}]
    if rng.one_in(10):
        rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
        spec["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    meta: Json = {"name": name, "namespace": namespace, "labels": labels}
    if owner is not None:
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
        }
        meta["ownerReferences"] = [
            {**reference, "uid": f"uid-of-{owner['metadata']['name']}", "controller": True}
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _on(pod: Json, node: str) -> Json:
    return {**pod, "spec": {**pod["spec"], "nodeName": node}}


def _containers(rng: SeededRandom, *, small: bool) -> list[Json]:
    containers = [_container(rng, f"c{index}", small=small) for index in range(rng.choice((1, 1, 2)))]
    if rng.one_in(5):
        port: Json = {
            "containerPort": 80,
            "hostPort": rng.choice((8080, 8081)),
            "protocol": rng.choice(("TCP", "UDP")),
        }
        containers[0]["ports"] = [port | rng.choice(({}, {"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}))]
    return containers


def _container(rng: SeededRandom, name: str, *, small: bool) -> Json:
    requests: dict[str, str] = {}
    if not rng.one_in(4):
        requests["cpu"] = rng.choice(("100m", "250m") if small else ("100m", "500m", "1", "1500m"))
    if not rng.one_in(4):
        requests["memory"] = rng.choice(("64Mi", "256Mi") if small else ("128Mi", "1Gi", "2500M"))
    if rng.one_in(6):
        requests["ephemeral-storage"] = rng.choice(("1Gi", "8Gi"))
    resources: Json = {"requests": requests}
    if rng.one_in(8):
        resources["limits"] = {rng.choice((GPU, FPGA)): rng.choice(("1", "2"))}
    return {"name": name, "image": rng.choice(tuple(IMAGES)), "resources": resources}


def _toleration(rng: SeededRandom) -> Json:
    effect = {"effect": rng.choice(EFFECTS)} if rng.one_in(2) else {}
    if rng.one_in(2):
        return {"operator": "Exists", **({} if rng.one_in(4) else {"key": rng.choice(TAINTS)}), **effect}
    return {"key": rng.choice(TAINTS), "operator": "Equal", "value": rng.choice(("", "a", "b")), **effect}


def _node_affinity(rng: SeededRandom, nodes: Sequence[str]) -> Json:
    affinity: Json = {}
    if rng.one_in(2):
        affinity[_REQUIRED] = {
            "nodeSelectorTerms": [_node_term(rng, nodes) for _ in range(rng.randint(1, 2))]
        }
    if not affinity or rng.one_in(2):
        affinity[_PREFERRED] = [
            {"weight": rng.choice((1, 30, 100)), "preference": _node_term(rng, nodes)}
            for _ in range(rng.randint(1, 3))
        ]
    return affinity


def _node_term(rng: SeededRandom, nodes: Sequence[str]) -> Json:
    term: Json = {}
    if not rng.one_in(5):
        term["matchExpressions"] = [_node_requirement(rng) for _ in range(rng.randint(1, 2))]
    if rng.one_in(5):
        operator = rng.choice(("In", "In", "NotIn"))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [rng.choice(nodes)]}]
    return term


def _node_requirement(rng: SeededRandom) -> Json:
    key = rng.choice((*NODE_LABELS, ZONE))
    operator = rng.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    requirement: Json = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        requirement["values"] = rng.some((*NODE_LABELS.get(key, ()), "z1", "z2"), 3, least=1)
    elif operator in ("Gt", "Lt"):
        requirement |= {"key": "gen", "values": [rng.choice(("1", "2", "9"))]}
    return requirement


# ── pod affinity and spreading ─────────────────────────────────────────────────────────────────────────────────────


def _pod_affinity(rng: SeededRandom, own: dict[str, str]) -> Json:
    affinity: Json = {}
    for kind in rng.some(("podAffinity", "podAntiAffinity"), 2, least=1):
        affinity[kind] = {}
        if rng.one_in(3):
            affinity[kind][_REQUIRED] = [_pod_term(rng, own) for _ in range(rng.choice((1, 1, 2)))]
        if not affinity[kind] or rng.one_in(2):
            affinity[kind][_PREFERRED] = [
                {"weight": rng.choice((1, 7, 50, 100)), "podAffinityTerm": _pod_term(rng, own)}
                for _ in range(rng.randint(1, 2))
            ]
    return affinity


def _pod_term(rng: SeededRandom, own: dict[str, str]) -> Json:
    term: Json = {"topologyKey": rng.choice(DOMAIN_KEYS), "labelSelector": _selector(rng)}
    if rng.one_in(5):
        term["namespaces"] = rng.some(tuple(NAMESPACES), 2, least=1)
    if rng.one_in(4):
        term["namespaceSelector"] = rng.choice(
            ({}, {"matchLabels": {"team": "x"}}, {"matchLabels": {"env": "dev"}})
        )
    used = {expression["key"] for expression in term["labelSelector"].get("matchExpressions", ())}
    free = [key for key in own if key not in used and key not in term["labelSelector"].get("matchLabels", {})]
    if free and rng.one_in(4):
        term[rng.choice(("matchLabelKeys", "mismatchLabelKeys"))] = [rng.choice(free)]
    return term


def _selector(rng: SeededRandom) -> Json:
    key = rng.choice(tuple(LABELS))
    match rng.randrange(6):
        case 0:
            return {}
        case 1:
            return {"matchExpressions": [{"key": key, "operator": rng.choice(("Exists", "DoesNotExist"))}]}
        case 2:
            operator, values = rng.choice(("In", "NotIn")), rng.some(LABELS[key], 2, least=1)
            return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
        case _:
            return {"matchLabels": {key: rng.choice(LABELS[key])}}


def _constraints(rng: SeededRandom) -> list[Json]:
    return [_constraint(rng, key) for key in rng.some((HOST, ZONE, "pool"), 2, least=1)]


def _constraint(rng: SeededRandom, key: str) -> Json:
    hard = rng.one_in(2)
    constraint: Json = {
        "topologyKey": key,
        "maxSkew": rng.choice((1, 1, 2, 4)),
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": _selector(rng),
    }
    if hard and rng.one_in(4):
        constraint["minDomains"] = rng.choice((1, 2, 4))
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if rng.one_in(3):
            constraint[policy] = rng.choice(("Honor", "Ignore"))
    selector = constraint["labelSelector"]
    used = {
        *selector.get("matchLabels", ()),
        *(expression["key"] for expression in selector.get("matchExpressions", ())),
    }
    free = [label for label in LABELS if label not in used]
    if rng.one_in(5) and free:
        constraint["matchLabelKeys"] = [rng.choice(free)]
    return constraint


# ── preemption ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _crowd(rng: SeededRandom, seed: int, case: Json) -> None:
    """Full nodes: unimportant pods, budgets for some, and one pending pod with a higher priority at
    the end.
    """
    names = [node["metadata"]["name"] for node in case["nodes"]]
    for index in range(rng.randint(8, 20)):
        pod = _pod(rng, f"s{seed}-low{index}", names, (), small=True)
        pod["spec"].pop("resources", None)
        pod["spec"]["priorityClassName"] = rng.choice(("low", "low", "mid"))
        pod["spec"]["containers"][0]["resources"] = {
            "requests": {"cpu": rng.choice(("500m", "1", "2")), "memory": rng.choice(("512Mi", "2Gi"))}
        }
        case["bound"].append(_on(pod, rng.choice(names)))
    urgent = _pod(rng, f"s{seed}-urgent", names, ())
    urgent["spec"].pop("resources", None)
    urgent["spec"]["priorityClassName"] = rng.choice(("high", "high", "high", "high-never"))
    urgent["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": rng.choice(("2", "3", "3900m")), "memory": rng.choice(("1Gi", "3Gi"))}
    }
    case["pending"] = [*case["pending"][:2], urgent]
    case["pdbs"] = [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"s{seed}-{index}", "namespace": rng.choice(tuple(NAMESPACES))},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": _labels(rng, least=1)}},
            "status": {
                "disruptionsAllowed": rng.choice((0, 0, 1, 2)),
                "currentHealthy": 3,
                "desiredHealthy": 1,
                "expectedPods": 3,
            },
        }
        for index in range(rng.randrange(4))
    ]
