"""Random clusters for the property tests of the evaluator: small alphabets, so that values coincide.

Hypothesis draws the number of nodes and pods and a seed for each; this module derives all fields
from the seed, which is much faster than drawing every field. Everything is a manifest decoded by
`kube.decode.pods`, so that it covers what the API server can return: zero and missing
resources, sidecars and init containers, overhead, pod-level resources, odd quantities.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import (
    ALL_NODES,
    DecayingStateRow,
    MetricSamples,
    PairEndpoint,
    Sample,
    Samples,
    StateRow,
)
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_pod, normalized_image_name
from policysched.lang.ir.decay import Decay
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.model.quantity import INT64_MAX
from policysched.model.workloads import SelectorOwner, SelectorOwnerKind
from tests.builders import pending, placed, selector_owner, world
from tests.seeded_random import SeededRandom

Json = dict[str, Any]

SECOND_NS = 10**9
MONDAY_NS = 1_767_607_200 * SECOND_NS  # 2026-01-05, 10:00 UTC
TIMES_NS = tuple(MONDAY_NS + hours * 3600 * SECOND_NS for hours in (0, 4, 11, 20, 24 * 5 + 3, 24 * 6 + 14))

QUANTITIES = {
    "cpu": ("0", "1m", "100m", "250m", "333m", "1", "1.5", "2500m", "4"),
    "memory": ("0", "1", "64Mi", "200Mi", "1Gi", "1.5Gi", "1G", "8Gi", "1234567890"),
    "ephemeral-storage": ("0", "1Gi", "10G", "100Gi"),
    "nvidia.com/gpu": ("0", "1", "2", "4"),
    "example.com/fpga": ("0", "1", "2", "4"),
}
LABEL_KEYS = ("pool", "gen", "rack")
LABEL_VALUES = ("a", "b", "1", "2", "10", "-3", "gold", "")
ZONES: tuple[dict[str, str], ...] = (
    *({"topology.kubernetes.io/zone": zone} for zone in ("z1", "z1", "z2", "")),
    {},
)
TAINT_KEYS = ("dedicated", "spot", "node.kubernetes.io/unschedulable")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMAGES = ("app:1", "db:1", "ml", "registry:5000/big")
FEATURES = ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport", "SomethingNewer")
NODE_NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")
NAMESPACES = ("default", "batch")
METRICS = ("rx", "load")


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster, pods to schedule, and the other arguments of an evaluation."""

    cache: ClusterCache
    pods: tuple[Pod, ...]
    facts: QueuedPodInfo
    samples: Samples
    now_ns: int


@st.composite
def scenes(draw: st.DrawFn, *, nodes_max: int = 6, placed_max: int = 6, pods: int = 3) -> Scene:
    numbers = st.integers(0, 2**32 - 1)
    names = NODE_NAMES[: draw(st.integers(0, nodes_max))]
    rng = ClusterRandom(draw(numbers))
    count = draw(st.integers(0, placed_max)) if names else 0
    return _scene(
        rng,
        nodes=[random_node(ClusterRandom(draw(numbers)), name) for name in names],
        on_nodes=[
            (random_pod(ClusterRandom(draw(numbers)), f"placed-{index}"), rng.choice(names))
            for index in range(count)
        ],
        pods=[random_pod(ClusterRandom(draw(numbers)), f"pod-{index}") for index in range(pods)],
        now_ns=draw(st.sampled_from(TIMES_NS)),
    )


def scene_of(number: int, *, pods: int = 3) -> Scene:
    """A scene without Hypothesis, determined by the number."""
    rng = ClusterRandom(number)
    names = NODE_NAMES[: rng.randint(1, len(NODE_NAMES))]
    return _scene(
        rng,
        nodes=[random_node(rng, name) for name in names],
        on_nodes=[
            (random_pod(rng, f"placed-{index}"), rng.choice(names)) for index in range(rng.randrange(6))
        ],
        pods=[random_pod(rng, f"pod-{index}") for index in range(pods)],
        now_ns=rng.choice(TIMES_NS),
    )


def _scene(
    rng: "ClusterRandom", *, nodes: list[Node], on_nodes: list[tuple[Pod, str]], pods: list[Pod], now_ns: int
) -> Scene:
    spaces = [Namespace(name, rng.labels(), rng.labels()) for name in NAMESPACES if not rng.one_in(4)]
    on_them = [placed(replace(pod, ready=index % 2 == 0), name) for index, (pod, name) in enumerate(on_nodes)]
    cache = world(nodes, [*on_them, *_waiting(pods)], spaces, random_selector_owners(rng))
    for node in nodes:
        for text in cards(f"object {node.name} {dict(node.allocatable)}").values():
            cache.put_node_object("cards", node.name, text)
    return Scene(
        cache=cache,
        pods=tuple(pods),
        facts=QueuedPodInfo(now_ns - rng.choice((0, 1, 30, 3600)) * SECOND_NS, rng.randrange(4)),
        samples=random_samples(rng, now_ns),
        now_ns=now_ns,
    )


def _waiting(pods: list[Pod]) -> list[ObservedPod]:
    """Pending pods, some of them those to schedule. Has a seed of its own, so that other choices do not change."""
    rng = ClusterRandom(f"waiting {[(pod.labels, pod.requests) for pod in pods]}")
    cached = [pending(pod) for pod in pods if rng.one_in(2)]
    others = [pending(random_pod(rng, f"waiting-{index}")) for index in range(rng.randrange(4))]
    return cached + [replace(other, deleting=rng.one_in(3)) for other in others]


class ClusterRandom(SeededRandom):
    def labels(self) -> dict[str, str]:
        return {key: self.choice(LABEL_VALUES) for key in self.some(LABEL_KEYS, 3)}

    def amounts(self, *names: str, least: int = 0) -> dict[str, str]:
        """Some of these resources, each in one of its few quantities."""
        return {name: self.choice(QUANTITIES[name][least:]) for name in self.some(names, len(names))}


def cards(seed: str) -> dict[str, str]:
    """An annotation with a list of records, valid or not. Has a seed of its own, so that other choices do not change."""
    rng = ClusterRandom(seed)
    if rng.one_in(5):
        return {}
    if rng.one_in(8):
        return {"cards": rng.choice(("", "[", "7", '{"items": 3}', "null", '[{"health": 1}]', "[[]]"))}
    listed = [_card(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return {"cards": json.dumps({"items": listed} if rng.one_in(2) else listed)}


def _card(rng: ClusterRandom) -> Json:
    card: Json = {
        "health": rng.choice(("Healthy", "Healthy", "Ill", "a")),
        "freeMemory": rng.choice((0, 1, 512, "1024", 4096, 2**43)),
        "speed": rng.choice((0, 0.1, 0.2, 1.5, -3.25, 1e300, "7")),
    }
    if not rng.one_in(3):
        card["clock"] = rng.choice((0, 1, 7, -4, 2**62, -(2**62), None))
    return card


# ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_node(rng: ClusterRandom, name: str) -> Node:
    if rng.one_in(10):
        allocatable = rng.amounts("cpu", "memory")
    else:
        allocatable = {
            "cpu": rng.choice(("2", "4", "8")),
            "memory": rng.choice(("4Gi", "8Gi", "10000000001")),
        }
    allocatable |= rng.amounts("ephemeral-storage", "nvidia.com/gpu", "example.com/fpga")
    allocatable |= rng.choice((*({"pods": "110"},) * 6, {"pods": "2"}, {"pods": "0"}, {}))
    sizes = (0, 30 * 2**20, 400 * 2**20, 999_999_999, 5 * 10**9)
    images = [normalized_image_name(name) for name in rng.some(IMAGES, 3)]
    return wire.decode_node(
        {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, **rng.choice(ZONES), **rng.labels()},
                "annotations": {**rng.labels(), **cards(f"{name} {allocatable}")},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "taints": [_taint(rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))],
                "unschedulable": rng.one_in(10),
            },
            "status": {
                "allocatable": allocatable or {"pods": "1"},
                "images": [{"names": [image], "sizeBytes": rng.choice(sizes)} for image in images],
                "conditions": [{"type": "Ready", "status": rng.choice(("True", "False", "Unknown"))}],
                "declaredFeatures": rng.some(FEATURES, 3),
            },
        }
    )


def _taint(rng: ClusterRandom) -> Json:
    return {
        "key": rng.choice(TAINT_KEYS),
        "effect": rng.choice(EFFECTS),
        "value": rng.choice(("", "a", "b")),
    }


# ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_pod(rng: ClusterRandom, name: str) -> Pod:
    spec: Json = {
        "schedulerName": rng.choice(("test", "test", "other")),
        "priority": rng.choice((0, 0, 10, -5, 1000)),
        "serviceAccountName": rng.choice(("default", "trainer")),
        "containers": [_container(rng, f"c{index}") for index in range(rng.choice((1, 1, 2)))],
        "tolerations": [_toleration(rng) for _ in range(rng.choice((0, 0, 1, 2)))],
    }
    if rng.one_in(4):
        sidecar = {"restartPolicy": "Always"} if rng.one_in(2) else {}
        spec["initContainers"] = [_container(rng, "i0") | sidecar, _container(rng, "i1")]
    if rng.one_in(6):
        spec["overhead"] = rng.amounts("cpu", "memory")
    if rng.one_in(6):
        spec["resources"] = {"requests": rng.amounts("cpu", "memory")}
    if rng.one_in(10):
        spec["nodeSelector"] = rng.labels()
    if rng.one_in(3):
        spec["affinity"] = {"nodeAffinity": _node_affinity(rng)}
    if rng.one_in(2):
        spec["affinity"] = spec.get("affinity", {}) | random_affinity(rng)
    if rng.one_in(3):
        spec["topologySpreadConstraints"] = random_constraints(rng)
    if rng.one_in(10):
        spec["activeDeadlineSeconds"] = 600
    if rng.one_in(6):
        spec["volumes"] = [{"name": "v", "image": {"reference": rng.choice(IMAGES)}}]
    if rng.one_in(10):
        spec["hostUsers"], spec["hostNetwork"] = False, not rng.one_in(3)
    if rng.one_in(10):
        action = rng.choice(("Restart", "RestartAllContainers"))
        spec["containers"][0]["restartPolicyRules"] = [{"action": action}]
    api, owner = rng.choice(
        (("", ""), *OWNERS, ("batch/v1", "Job"), ("apps.kruise.io/v1beta1", "StatefulSet"))
    )
    owners = []
    if owner:
        owners = [{"apiVersion": api, "kind": owner, "name": f"{owner.lower()}-1", "controller": True}]
    return decode_pod(
        {
            "metadata": {
                "name": name,
                "namespace": rng.choice(NAMESPACES),
                "uid": f"uid-{name}-{rng.randrange(1000)}",
                "labels": rng.labels(),
                "annotations": {**rng.labels(), **cards(f"{name} {spec}")},
                "ownerReferences": owners,
                "creationTimestamp": rng.choice(("2026-01-05T09:00:00Z", "2026-01-05T09:59:59Z")),
                **({"deletionTimestamp": "2026-01-05T09:59:59Z"} if rng.one_in(10) else {}),
            },
            "spec": spec,
        }
    ).pod


def _container(rng: ClusterRandom, name: str) -> Json:
    requests = rng.amounts("cpu", "memory") if rng.one_in(2) else {}
    if rng.one_in(12):
        requests |= rng.amounts("ephemeral-storage", "nvidia.com/gpu", "example.com/fpga")
    return {
        "name": name,
        "image": rng.choice(IMAGES),
        "resources": {
            "requests": requests,
            "limits": rng.amounts("cpu", "memory", least=5) if rng.one_in(4) else {},
        },
        "ports": [_host_port(rng)] if rng.one_in(4) else [],
    }


def _host_port(rng: ClusterRandom) -> Json:
    port = {
        "containerPort": 80,
        "hostPort": rng.choice((8080, 8081)),
        "protocol": rng.choice(("TCP", "UDP")),
    }
    return port | rng.choice(({}, {"hostIP": "0.0.0.0"}, {"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}))


def _toleration(rng: ClusterRandom) -> Json:
    effect = {"effect": rng.choice(EFFECTS)} if rng.one_in(2) else {}
    if rng.one_in(2):
        key = {} if rng.one_in(4) else {"key": rng.choice(TAINT_KEYS)}
        return {"operator": "Exists", **key, **effect}
    return {"key": rng.choice(TAINT_KEYS), "value": rng.choice(("", "a", "b")), **effect}


def _node_affinity(rng: ClusterRandom) -> Json:
    affinity: Json = {}
    if rng.one_in(2):
        required = [_term(rng) for _ in range(rng.choice((1, 2)))]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": required}
    if rng.one_in(2):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": rng.choice((1, 30, 100)), "preference": _term(rng)} for _ in range(rng.randrange(4))
        ]
    return affinity


def _term(rng: ClusterRandom) -> Json:
    term: Json = {}
    if not rng.one_in(8):
        term["matchExpressions"] = [_requirement(rng) for _ in range(rng.randrange(3))]
    if rng.one_in(4):
        operator = rng.choice(("In", "In", "NotIn"))
        names = [{"key": "metadata.name", "operator": operator, "values": [rng.choice(NODE_NAMES)]}]
        term["matchFields"] = names
    return term


def _requirement(rng: ClusterRandom) -> Json:
    operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    values: list[str] = []
    if operator in ("In", "NotIn"):
        values = rng.some((*LABEL_VALUES, *NODE_NAMES), 4, least=1)
    elif operator in ("Gt", "Lt"):
        values = [rng.choice(("0", "1", "5", "-7", "x"))]
    return {
        "key": rng.choice((*LABEL_KEYS, "kubernetes.io/hostname")),
        "operator": operator,
        "values": values,
    }


# ── pods that select other pods ────────────────────────────────────────────────────────────────────────────────────

OWNERS: tuple[tuple[str, SelectorOwnerKind], ...] = (
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
)


def random_selector_owners(rng: ClusterRandom) -> list[SelectorOwner]:
    """Services and controllers that pods may name as their owner, some without a selector, some that
    do not select their pods."""
    return [random_service(rng, index) for index in range(rng.randrange(4))] + [
        selector_owner(kind, f"{kind.lower()}-1", random_selector(rng, kind), namespace=space)
        for space in NAMESPACES
        for _, kind in OWNERS
        if rng.one_in(2)
    ]


def random_service(rng: ClusterRandom, index: int) -> SelectorOwner:
    selector = dict(rng.some(tuple(rng.labels().items()), 2))
    return selector_owner("Service", f"service-{index}", selector, namespace=rng.choice(NAMESPACES))


def random_selector(rng: ClusterRandom, kind: SelectorOwnerKind) -> Json | None:
    if kind == "ReplicationController":
        return rng.choice((None, rng.labels()))
    return _label_selector(rng)


DOMAIN_KEYS = ("kubernetes.io/hostname", "rack", "pool")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def random_affinity(rng: ClusterRandom) -> Json:
    """podAffinity, podAntiAffinity or both, required or preferred."""
    manifest: Json = {}
    for kind in rng.some(("podAffinity", "podAntiAffinity"), 2, least=1):
        manifest[kind] = {}
        if rng.one_in(2):
            manifest[kind][_REQUIRED] = [_pod_term(rng) for _ in range(rng.choice((1, 1, 2)))]
        if rng.one_in(2):
            manifest[kind][_PREFERRED] = [
                {"weight": rng.choice((1, 7, 50, 50)), "podAffinityTerm": _pod_term(rng)}
                for _ in range(rng.choice((1, 2)))
            ]
    return manifest


def random_constraints(rng: ClusterRandom) -> list[Json]:
    return [_constraint(rng, key) for key in rng.some(DOMAIN_KEYS, 2, least=1)]


def _constraint(rng: ClusterRandom, key: str) -> Json:
    hard = rng.one_in(2)
    manifest: Json = {
        "topologyKey": key,
        "maxSkew": rng.choice((1, 1, 2)),
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
    }
    if not rng.one_in(8):
        manifest["labelSelector"] = _label_selector(rng)
    if rng.one_in(4):
        manifest["matchLabelKeys"] = [rng.choice(LABEL_KEYS)]
    if hard and rng.one_in(4):
        manifest["minDomains"] = rng.choice((1, 2, 4))
    for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if rng.one_in(3):
            manifest[policy] = rng.choice(("Honor", "Ignore"))
    return manifest


def _pod_term(rng: ClusterRandom) -> Json:
    term: Json = {"topologyKey": rng.choice(DOMAIN_KEYS)}
    if not rng.one_in(8):
        term["labelSelector"] = _label_selector(rng)
    if rng.one_in(4):
        term["namespaces"] = rng.some((*NAMESPACES, "elsewhere"), 2, least=1)
    if rng.one_in(3):
        term["namespaceSelector"] = {} if rng.one_in(3) else _label_selector(rng)
    for keys in ("matchLabelKeys", "mismatchLabelKeys"):
        if rng.one_in(6):
            term[keys] = [rng.choice(LABEL_KEYS)]
    return term


def _label_selector(rng: ClusterRandom) -> Json:
    if rng.one_in(4):
        return {}
    key = rng.choice(LABEL_KEYS)
    operator = rng.choice(("In", "In", "Exists", "Exists", "NotIn", "DoesNotExist"))
    values = rng.some(LABEL_VALUES, 5, least=2) if operator in ("In", "NotIn") else []
    return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}


# ── samples ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _recovering(rng: ClusterRandom, metric: str, now_ns: int) -> dict[RecoveryCondition, dict[NodeName, int]]:
    """By the conditions of the corner `recovering`: some nodes forever, some for a while, some no longer."""
    condition = {
        "rx": RecoveryCondition("rx", "<", 8e8, 6e8, 120 * SECOND_NS),
        "load": RecoveryCondition("load", "<", 0.85, 0.5, 90 * SECOND_NS),
    }[metric]
    until = (INT64_MAX, now_ns - 1, now_ns, now_ns + 1, now_ns + 40 * SECOND_NS)
    return {condition: {NodeName(name): rng.choice(until) for name in NODE_NAMES if rng.one_in(3)}}


def _decaying(
    rng: ClusterRandom, rows: Mapping[str, StateRow], now_ns: int
) -> dict[str, StateRow | DecayingStateRow]:
    """Some of the rows with half-lives and values of other ages. Has a seed of its own."""
    rng = ClusterRandom(f"decay {now_ns} {rng.getstate()[1][:3]}")
    ages_s = (-5, 0, 1, 59, 600, 3600, 86_400)

    def decaying(row: StateRow) -> DecayingStateRow:
        timed = {name: (value, now_ns - rng.choice(ages_s) * SECOND_NS) for name, value in row.values.items()}
        return DecayingStateRow(timed, Decay(rng.choice((0.0, 1.0)), rng.choice((60, 1800)) * SECOND_NS))

    return {key: decaying(row) if rng.one_in(2) else row for key, row in rows.items()}


def _state_rows(rng: ClusterRandom) -> dict[str, StateRow]:
    """Rows of a policy state: for some keys, on some nodes and for all nodes."""
    keys = [key for key in ("a", "b", "web", "1", "") if not rng.one_in(4)]
    values = (0.0, 0.25, 0.5, 1.0, 7.5, -1.0)
    return {
        key: StateRow(
            {NodeName(name): rng.choice(values) for name in (*NODE_NAMES, ALL_NODES) if not rng.one_in(3)}
        )
        for key in keys
    }


def _pairs(rng: ClusterRandom, now_ns: int) -> Samples:
    """Samples of the metrics `talk` and `chat`, between pods of the scene and others. Has a seed of its
    own, so that other choices do not change."""
    rng = ClusterRandom(f"pairs {now_ns} {rng.getstate()[1][:3]}")
    names = (
        *(f"pod-{index}" for index in range(3)),
        *(f"placed-{index}" for index in range(6)),
        *LABEL_VALUES,
    )
    return {metric: _samples_of_pairs(rng, names, now_ns) for metric in ("talk", "chat") if not rng.one_in(8)}


def _samples_of_pairs(rng: ClusterRandom, names: Sequence[str], now_ns: int) -> MetricSamples:
    peers = [(namespace, name) for namespace in NAMESPACES for name in names if not rng.one_in(4)]
    pairs: dict[PairEndpoint, dict[PairEndpoint, float | None]] = {}
    values = (None, 0.0, 0.1, 0.7, 3.0, 3e8, 4e8, 1e9, 12345678.25)
    for source in peers:
        drawn = rng.getrandbits(len(peers))  # one draw for each pair takes a tenth of a property's time
        for index, (target, value) in enumerate(zip(peers, rng.choices(values, k=len(peers)), strict=True)):
            if drawn >> index & 1:
                pairs.setdefault(source, {})[target] = pairs.setdefault(target, {})[source] = value
    return MetricSamples({}, polled_ns=now_ns - rng.choice((0, 0, 0, 90, 91)) * SECOND_NS, pairs=pairs)


def random_samples(rng: ClusterRandom, now_ns: int) -> Samples:
    """Samples of the metrics `rx` and `load`: some nodes without a sample, some polls and samples too
    old, and some nodes with assumed load, with or without a sample."""

    def at_ns() -> int:
        return now_ns - rng.choice((0, 0, 10, 10, 30, 60, 90, 91)) * SECOND_NS

    values = (0.0, 0.25, 0.5, 0.85, 1.0, 8e8, 1e9, 123456789.0, -1.0)
    states = {
        name: MetricSamples({}, 0, state_rows=_decaying(rng, _state_rows(rng), now_ns))
        for name in ("learnt", "share")
    }
    return (
        states
        | _pairs(rng, now_ns)
        | {
            metric: MetricSamples(
                values={
                    NodeName(name): Sample(rng.choice(values), at_ns())
                    for name in NODE_NAMES
                    if not rng.one_in(5)
                },
                polled_ns=now_ns - rng.choice((0, 0, 90, 91)) * SECOND_NS,
                recovering_until_ns=_recovering(rng, metric, now_ns),
                assumed={
                    NodeName(name): rng.choice((0.1, 0.5, 3e8, 1e9, -0.5, 1.7e308))
                    for name in NODE_NAMES
                    if rng.one_in(4)
                },
            )
            for metric in rng.some(METRICS, 2, least=1)
        }
    )
