"""Random clusters as manifests that a real API server accepts. The same seed always gives the same
cluster.

Names, ports, labels, domains and images are few, so that pods conflict. In most clusters all pods
have one priority; in some, the nodes are full of unimportant pods with disruption budgets, and the
last pending pod has a higher priority. Volumes come from `draw_volumes`, rare features from
`draw_rare`, devices from `draw_devices`.
"""

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Any, TypeVar

from tests.conformance.live.draw_devices import add_devices
from tests.conformance.live.draw_rare import add_rarities
from tests.conformance.live.draw_volumes import add_volumes

Json = dict[str, Any]
Item = TypeVar("Item")

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


class Dice(Random):
    def one_in(self, count: int) -> bool:
        return self.randrange(count) == 0

    def some(self, items: Sequence[Item], most: int, *, least: int = 0) -> list[Item]:
        return self.sample(items, self.randint(least, min(most, len(items))))


class Drawn(StrEnum):
    """What is drawn: common features only, rare ones as well (`draw_rare`), or devices too
    (`draw_devices`).
    """

    PLAIN = "plain"
    RARE = "rare"
    ALL = "all"


def draw(seed: int, drawn: Drawn = Drawn.ALL) -> Json:
    """A case in the format of the recorded ones, without expectations."""
    dice = Dice(f"live {seed}")
    crowded = dice.one_in(6)
    nodes = [_node(dice, f"s{seed}-n{index}") for index in range(dice.randint(3, 9))]
    names = [node["metadata"]["name"] for node in nodes]
    owners = _owners(dice, seed)
    bound = [
        _on(_pod(dice, f"s{seed}-b{index}", names, owners, small=True), dice.choice(names))
        for index in range(dice.randint(0, 20))
    ]
    pending = [_pod(dice, f"s{seed}-p{index}", names, owners) for index in range(dice.randint(3, 6))]
    case: Json = {
        "name": f"seed {seed}",
        "nodes": nodes,
        "objects": [*_namespaces(), *_services(dice, seed), *owners],
        "bound": bound,
        "pending": pending,
    }
    if crowded:
        _crowd(dice, seed, case)
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


def _services(dice: Dice, seed: int) -> list[Json]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": f"s{seed}-{index}", "namespace": dice.choice(tuple(NAMESPACES))},
            "spec": {"selector": _labels(dice, least=1), "ports": [{"port": 80}]},
        }
        for index in range(dice.randrange(4))
    ]


def _owners(dice: Dice, seed: int) -> list[Json]:
    """Workloads whose controllers do not run: only their selectors matter."""
    owners = []
    for kind, api in (("ReplicaSet", "apps/v1"), ("StatefulSet", "apps/v1"), ("ReplicationController", "v1")):
        if dice.one_in(2):
            labels = _labels(dice, least=1)
            template = {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "app:1"}]},
            }
            selector: Json = labels if kind == "ReplicationController" else {"matchLabels": labels}
            meta = {"name": f"s{seed}-{kind.lower()}", "namespace": dice.choice(tuple(NAMESPACES))}
            spec = {"selector": selector, "template": template, "replicas": 1}
            owners.append({"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec})
    return owners


def _labels(dice: Dice, *, least: int = 0) -> dict[str, str]:
    return {key: dice.choice(LABELS[key]) for key in dice.some(tuple(LABELS), 3, least=least)}


# ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _node(dice: Dice, name: str) -> Json:
    room = {
        "cpu": dice.choice(("2", "4", "4", "8", "3500m")),
        "memory": dice.choice(("4Gi", "8Gi", "8Gi", "16Gi", "6000M")),
        "ephemeral-storage": dice.choice(("20Gi", "100Gi")),
        "pods": dice.choice(("110", "110", "110", "3", "6")),
    }
    for resource in dice.some((GPU, FPGA), 2):
        room[resource] = str(dice.randint(0, 4))
    labels = {HOST: name} if not dice.one_in(12) else {}
    if not dice.one_in(6):
        labels[ZONE] = dice.choice(("z1", "z2", "z3"))
    labels |= {key: dice.choice(NODE_LABELS[key]) for key in dice.some(tuple(NODE_LABELS), 3)}
    taints = [_taint(dice, key) for key in dice.some(TAINTS, 2)] if dice.one_in(3) else []
    status: Json = {
        "capacity": room,
        "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        "images": [
            {"names": [_whole_name(image)], "sizeBytes": IMAGES[image] * 1_000_000 + dice.randrange(1000)}
            for image in dice.some(tuple(IMAGES), 4)
        ],
    }
    if dice.one_in(2):
        status["declaredFeatures"] = [FEATURE]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, **({"unschedulable": True} if dice.one_in(12) else {})},
        "status": status,
    }


def _whole_name(image: str) -> str:
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def _taint(dice: Dice, key: str) -> Json:
    return {"key": key, "value": dice.choice(("", "a", "b")), "effect": dice.choice(EFFECTS)}


# ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pod(dice: Dice, name: str, nodes: Sequence[str], owners: Sequence[Json], *, small: bool = False) -> Json:
    owner = dice.choice(owners) if owners and dice.one_in(3) else None
    labels, namespace = _labels(dice), dice.choice(("default", "default", *NAMESPACES))
    if owner is not None:
        labels |= owner["spec"]["template"]["metadata"]["labels"]
        namespace = owner["metadata"]["namespace"]
    by_pod = dice.one_in(8)  # Pod-level requests have to be at least the sum of the containers' requests.
    small = small or by_pod
    spec: Json = {"terminationGracePeriodSeconds": 0, "containers": _containers(dice, small=small)}
    if dice.one_in(4):
        spec["initContainers"] = [_container(dice, "i0", small=small), _container(dice, "i1", small=small)]
        if dice.one_in(2):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if dice.one_in(8):
        spec["runtimeClassName"] = RUNTIME
    elif by_pod:
        spec["resources"] = {
            "requests": {"cpu": dice.choice(("1", "2")), "memory": dice.choice(("1Gi", "3Gi"))}
        }
        if dice.one_in(2):
            spec["resources"]["requests"].popitem()
    if dice.one_in(3):
        spec["tolerations"] = [_toleration(dice) for _ in range(dice.randint(1, 2))]
    if dice.one_in(8):
        spec["nodeSelector"] = {"disk": dice.choice(NODE_LABELS["disk"])}
    affinity: Json = {"nodeAffinity": _node_affinity(dice, nodes)} if dice.one_in(4) else {}
    if dice.one_in(3):
        affinity |= _pod_affinity(dice, labels)
    if affinity:
        spec["affinity"] = affinity
    if dice.one_in(4):
        spec["topologySpreadConstraints"] = _constraints(dice)
    if dice.one_in(8):
        image = {"reference": dice.choice(tuple(IMAGES)), "pullPolicy": "IfNotPresent"}
        spec["volumes"] = [{"name": "data", "image": image}]
    if dice.one_in(10):
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


def _containers(dice: Dice, *, small: bool) -> list[Json]:
    containers = [_container(dice, f"c{index}", small=small) for index in range(dice.choice((1, 1, 2)))]
    if dice.one_in(5):
        port: Json = {
            "containerPort": 80,
            "hostPort": dice.choice((8080, 8081)),
            "protocol": dice.choice(("TCP", "UDP")),
        }
        containers[0]["ports"] = [port | dice.choice(({}, {"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}))]
    return containers


def _container(dice: Dice, name: str, *, small: bool) -> Json:
    requests: dict[str, str] = {}
    if not dice.one_in(4):
        requests["cpu"] = dice.choice(("100m", "250m") if small else ("100m", "500m", "1", "1500m"))
    if not dice.one_in(4):
        requests["memory"] = dice.choice(("64Mi", "256Mi") if small else ("128Mi", "1Gi", "2500M"))
    if dice.one_in(6):
        requests["ephemeral-storage"] = dice.choice(("1Gi", "8Gi"))
    resources: Json = {"requests": requests}
    if dice.one_in(8):
        resources["limits"] = {dice.choice((GPU, FPGA)): dice.choice(("1", "2"))}
    return {"name": name, "image": dice.choice(tuple(IMAGES)), "resources": resources}


def _toleration(dice: Dice) -> Json:
    effect = {"effect": dice.choice(EFFECTS)} if dice.one_in(2) else {}
    if dice.one_in(2):
        return {"operator": "Exists", **({} if dice.one_in(4) else {"key": dice.choice(TAINTS)}), **effect}
    return {"key": dice.choice(TAINTS), "operator": "Equal", "value": dice.choice(("", "a", "b")), **effect}


def _node_affinity(dice: Dice, nodes: Sequence[str]) -> Json:
    affinity: Json = {}
    if dice.one_in(2):
        affinity[_REQUIRED] = {
            "nodeSelectorTerms": [_node_term(dice, nodes) for _ in range(dice.randint(1, 2))]
        }
    if not affinity or dice.one_in(2):
        affinity[_PREFERRED] = [
            {"weight": dice.choice((1, 30, 100)), "preference": _node_term(dice, nodes)}
            for _ in range(dice.randint(1, 3))
        ]
    return affinity


def _node_term(dice: Dice, nodes: Sequence[str]) -> Json:
    term: Json = {}
    if not dice.one_in(5):
        term["matchExpressions"] = [_node_requirement(dice) for _ in range(dice.randint(1, 2))]
    if dice.one_in(5):
        operator = dice.choice(("In", "In", "NotIn"))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [dice.choice(nodes)]}]
    return term


def _node_requirement(dice: Dice) -> Json:
    key = dice.choice((*NODE_LABELS, ZONE))
    operator = dice.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    requirement: Json = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        requirement["values"] = dice.some((*NODE_LABELS.get(key, ()), "z1", "z2"), 3, least=1)
    elif operator in ("Gt", "Lt"):
        requirement |= {"key": "gen", "values": [dice.choice(("1", "2", "9"))]}
    return requirement


# ── pod affinity and spreading ─────────────────────────────────────────────────────────────────────────────────────


def _pod_affinity(dice: Dice, own: dict[str, str]) -> Json:
    affinity: Json = {}
    for kind in dice.some(("podAffinity", "podAntiAffinity"), 2, least=1):
        affinity[kind] = {}
        if dice.one_in(3):
            affinity[kind][_REQUIRED] = [_pod_term(dice, own) for _ in range(dice.choice((1, 1, 2)))]
        if not affinity[kind] or dice.one_in(2):
            affinity[kind][_PREFERRED] = [
                {"weight": dice.choice((1, 7, 50, 100)), "podAffinityTerm": _pod_term(dice, own)}
                for _ in range(dice.randint(1, 2))
            ]
    return affinity


def _pod_term(dice: Dice, own: dict[str, str]) -> Json:
    term: Json = {"topologyKey": dice.choice(DOMAIN_KEYS), "labelSelector": _selector(dice)}
    if dice.one_in(5):
        term["namespaces"] = dice.some(tuple(NAMESPACES), 2, least=1)
    if dice.one_in(4):
        term["namespaceSelector"] = dice.choice(
            ({}, {"matchLabels": {"team": "x"}}, {"matchLabels": {"env": "dev"}})
        )
    used = {expression["key"] for expression in term["labelSelector"].get("matchExpressions", ())}
    free = [key for key in own if key not in used and key not in term["labelSelector"].get("matchLabels", {})]
    if free and dice.one_in(4):
        term[dice.choice(("matchLabelKeys", "mismatchLabelKeys"))] = [dice.choice(free)]
    return term


def _selector(dice: Dice) -> Json:
    key = dice.choice(tuple(LABELS))
    match dice.randrange(6):
        case 0:
            return {}
        case 1:
            return {"matchExpressions": [{"key": key, "operator": dice.choice(("Exists", "DoesNotExist"))}]}
        case 2:
            operator, values = dice.choice(("In", "NotIn")), dice.some(LABELS[key], 2, least=1)
            return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
        case _:
            return {"matchLabels": {key: dice.choice(LABELS[key])}}


def _constraints(dice: Dice) -> list[Json]:
    return [_constraint(dice, key) for key in dice.some((HOST, ZONE, "pool"), 2, least=1)]


def _constraint(dice: Dice, key: str) -> Json:
    hard = dice.one_in(2)
    constraint: Json = {
        "topologyKey": key,
        "maxSkew": dice.choice((1, 1, 2, 4)),
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": _selector(dice),
    }
    if hard and dice.one_in(4):
        constraint["minDomains"] = dice.choice((1, 2, 4))
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if dice.one_in(3):
            constraint[policy] = dice.choice(("Honor", "Ignore"))
    selector = constraint["labelSelector"]
    used = {
        *selector.get("matchLabels", ()),
        *(expression["key"] for expression in selector.get("matchExpressions", ())),
    }
    free = [label for label in LABELS if label not in used]
    if dice.one_in(5) and free:
        constraint["matchLabelKeys"] = [dice.choice(free)]
    return constraint


# ── preemption ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _crowd(dice: Dice, seed: int, case: Json) -> None:
    """Full nodes: unimportant pods, budgets for some, and one pending pod with a higher priority at
    the end.
    """
    names = [node["metadata"]["name"] for node in case["nodes"]]
    for index in range(dice.randint(8, 20)):
        pod = _pod(dice, f"s{seed}-low{index}", names, (), small=True)
        pod["spec"].pop("resources", None)
        pod["spec"]["priorityClassName"] = dice.choice(("low", "low", "mid"))
        pod["spec"]["containers"][0]["resources"] = {
            "requests": {"cpu": dice.choice(("500m", "1", "2")), "memory": dice.choice(("512Mi", "2Gi"))}
        }
        case["bound"].append(_on(pod, dice.choice(names)))
    urgent = _pod(dice, f"s{seed}-urgent", names, ())
    urgent["spec"].pop("resources", None)
    urgent["spec"]["priorityClassName"] = dice.choice(("high", "high", "high", "high-never"))
    urgent["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": dice.choice(("2", "3", "3900m")), "memory": dice.choice(("1Gi", "3Gi"))}
    }
    case["pending"] = [*case["pending"][:2], urgent]
    case["pdbs"] = [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"s{seed}-{index}", "namespace": dice.choice(tuple(NAMESPACES))},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": _labels(dice, least=1)}},
            "status": {
                "disruptionsAllowed": dice.choice((0, 0, 1, 2)),
                "currentHealthy": 3,
                "desiredHealthy": 1,
                "expectedPods": 3,
            },
        }
        for index in range(dice.randrange(4))
    ]
