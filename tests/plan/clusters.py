"""Random clusters for the properties that hold `plan` to `oracle`: small alphabets, so that coincidences happen.

Everything is drawn as manifests and read through `kube.wire`, so that what is compared is what the API server can say:
zero and missing resources, sidecars and init containers, overhead, pod-level resources, odd quantities.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from policysched.cluster.cache import Cache
from policysched.cluster.objects import MetricSamples, Namespace, NodeName, Pod, PodFacts, Sample, Samples
from policysched.kube import wire
from tests.words import placed, world

Json = dict[str, Any]

SECOND_NS = 10**9
NOW_NS = 1_767_607_200 * SECOND_NS  # Monday 2026-01-05, 10:00 UTC

CPUS = ("0", "1m", "100m", "250m", "333m", "1", "1.5", "2500m", "4")
MEMORIES = ("0", "1", "64Mi", "200Mi", "1Gi", "1.5Gi", "1G", "8Gi", "1234567890")
DISKS = ("0", "1Gi", "10G", "100Gi")
COUNTS = ("0", "1", "2", "4")
QUANTITIES = {
    "cpu": CPUS,
    "memory": MEMORIES,
    "ephemeral-storage": DISKS,
    "nvidia.com/gpu": COUNTS,
    "example.com/fpga": COUNTS,
}
LABEL_KEYS = ("pool", "gen", "rack")
LABEL_VALUES = ("a", "b", "1", "2", "10", "-3", "gold", "")
TAINT_KEYS = ("dedicated", "spot", "node.kubernetes.io/unschedulable")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
IMAGES = ("app:1", "db:1", "ml", "registry:5000/big")
NODE_NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")
NAMESPACES = ("default", "batch")
METRICS = ("rx", "load")

labels = st.dictionaries(st.sampled_from(LABEL_KEYS), st.sampled_from(LABEL_VALUES), max_size=3)


def amounts(*names: str, least: int = 0) -> st.SearchStrategy[dict[str, str]]:
    """Some of these resources, each in one of its few quantities."""
    return st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(QUANTITIES[name][least:]) for name in names}
    )


# ── nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def node_manifests(draw: st.DrawFn, name: str) -> Json:
    allocatable = draw(
        st.one_of(
            st.fixed_dictionaries(
                {
                    "cpu": st.sampled_from(("2", "4", "8")),
                    "memory": st.sampled_from(("4Gi", "8Gi", "10000000001")),
                }
            ),
            amounts("cpu", "memory"),
        )
    )
    allocatable |= draw(amounts("ephemeral-storage", "nvidia.com/gpu", "example.com/fpga"))
    allocatable |= draw(st.sampled_from(({"pods": "110"}, {"pods": "2"}, {"pods": "0"}, {})))
    sizes = st.sampled_from((0, 30 * 2**20, 400 * 2**20, 999_999_999, 5 * 10**9))
    images = draw(
        st.dictionaries(st.sampled_from(tuple(map(wire.normalized_image_name, IMAGES))), sizes, max_size=3)
    )
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **draw(labels)},
            "annotations": draw(labels),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "taints": draw(st.lists(taints(), max_size=2)),
            "unschedulable": draw(st.sampled_from((False, False, False, True))),
        },
        "status": {
            "allocatable": allocatable or {"pods": "1"},
            "images": [{"names": [image], "sizeBytes": size} for image, size in images.items()],
            "conditions": [{"type": "Ready", "status": draw(st.sampled_from(("True", "False", "Unknown")))}],
        },
    }


def taints() -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {"key": st.sampled_from(TAINT_KEYS), "effect": st.sampled_from(EFFECTS)},
        optional={"value": st.sampled_from(("", "a", "b"))},
    )


# ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def containers(draw: st.DrawFn, name: str, *, init: bool) -> Json:
    asked = draw(amounts("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"))
    limits = draw(st.one_of(st.just({}), amounts("cpu", "memory", least=5)))
    ports = draw(st.lists(host_ports(), max_size=1))
    sidecar = init and draw(st.booleans())
    return {
        "name": name,
        "image": draw(st.sampled_from(IMAGES)),
        "resources": {"requests": asked, "limits": limits},
        "ports": ports,
        **({"restartPolicy": "Always"} if sidecar else {}),
    }


def host_ports() -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {"containerPort": st.just(80), "hostPort": st.sampled_from((8080, 8081))},
        optional={
            "protocol": st.sampled_from(("TCP", "UDP")),
            "hostIP": st.sampled_from(("0.0.0.0", "10.0.0.1", "10.0.0.2")),
        },
    )


def tolerations() -> st.SearchStrategy[Json]:
    exists = st.fixed_dictionaries(
        {"operator": st.just("Exists")},
        optional={"key": st.sampled_from(TAINT_KEYS), "effect": st.sampled_from(EFFECTS)},
    )
    equal = st.fixed_dictionaries(
        {"key": st.sampled_from(TAINT_KEYS), "value": st.sampled_from(("", "a", "b"))},
        optional={"operator": st.just("Equal"), "effect": st.sampled_from(EFFECTS)},
    )
    return st.one_of(exists, equal)


@st.composite
def requirements(draw: st.DrawFn) -> Json:
    operator = draw(st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")))
    key = draw(st.sampled_from((*LABEL_KEYS, "kubernetes.io/hostname")))
    match operator:
        case "In" | "NotIn":
            values = draw(st.lists(st.sampled_from((*LABEL_VALUES, *NODE_NAMES)), min_size=1, max_size=3))
        case "Gt" | "Lt":
            values = [draw(st.sampled_from(("0", "1", "5", "-7", "x")))]
        case _:
            values = []
    return {"key": key, "operator": operator, "values": values}


@st.composite
def terms(draw: st.DrawFn) -> Json:
    term: Json = {}
    if draw(st.integers(0, 9)):
        term["matchExpressions"] = draw(st.lists(requirements(), max_size=2))
    if not draw(st.integers(0, 3)):
        name, operator = draw(st.sampled_from(NODE_NAMES)), draw(st.sampled_from(("In", "In", "NotIn")))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return term


@st.composite
def node_affinities(draw: st.DrawFn) -> Json:
    affinity: Json = {}
    if draw(st.booleans()):
        listed = draw(st.lists(terms(), min_size=1, max_size=2))
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": listed}
    if draw(st.booleans()):
        preferred = st.fixed_dictionaries({"weight": st.sampled_from((1, 30, 100)), "preference": terms()})
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = draw(st.lists(preferred, max_size=3))
    return affinity


@st.composite
def pod_manifests(draw: st.DrawFn, name: str) -> Json:
    several = draw(st.sampled_from((1, 1, 2)))
    spec: Json = {
        "schedulerName": draw(st.sampled_from(("test", "test", "other"))),
        "priority": draw(st.sampled_from((0, 0, 10, -5, 1000))),
        "serviceAccountName": draw(st.sampled_from(("default", "trainer"))),
        "containers": [draw(containers(f"c{index}", init=False)) for index in range(several)],
        "tolerations": draw(st.lists(tolerations(), max_size=2)),
    }
    if not draw(st.integers(0, 3)):
        spec["initContainers"] = [draw(containers("i0", init=True))]
    if not draw(st.integers(0, 5)):
        spec["overhead"] = draw(amounts("cpu", "memory"))
    if not draw(st.integers(0, 5)):
        spec["resources"] = {"requests": draw(amounts("cpu", "memory"))}
    if not draw(st.integers(0, 4)):
        spec["nodeSelector"] = draw(labels)
    if not draw(st.integers(0, 2)):
        spec["affinity"] = {"nodeAffinity": draw(node_affinities())}
    if not draw(st.integers(0, 9)):
        spec["activeDeadlineSeconds"] = 600
    owner = draw(st.sampled_from(("", "ReplicaSet", "Job")))
    owners = [{"kind": owner, "name": f"{owner.lower()}-1", "controller": True}] if owner else []
    return {
        "metadata": {
            "name": name,
            "namespace": draw(st.sampled_from(NAMESPACES)),
            "uid": f"uid-{name}",
            "labels": draw(labels),
            "annotations": draw(labels),
            "ownerReferences": owners,
            "creationTimestamp": draw(st.sampled_from(("2026-01-05T09:00:00Z", "2026-01-05T09:59:59Z"))),
        },
        "spec": spec,
    }


# ── clusters ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster as it stands, pods to decide, and what else a decision is given."""

    cache: Cache
    pods: tuple[Pod, ...]
    facts: PodFacts
    samples: Samples
    now_ns: int


@st.composite
def scenes(draw: st.DrawFn, *, nodes_max: int = 5, placed_max: int = 5, pods: int = 2) -> Scene:
    names = NODE_NAMES[: draw(st.integers(0, nodes_max))]
    cache = world(
        nodes=[wire.node(draw(node_manifests(name))) for name in names],
        namespaces=[
            Namespace(name, draw(labels), draw(labels)) for name in NAMESPACES if draw(st.booleans())
        ],
    )
    if names:
        for index in range(draw(st.integers(0, placed_max))):
            one = wire.pod(draw(pod_manifests(f"placed-{index}"))).pod
            cache.put_pod(placed(one, draw(st.sampled_from(names))))
    return Scene(
        cache=cache,
        pods=tuple(wire.pod(draw(pod_manifests(f"pod-{index}"))).pod for index in range(pods)),
        facts=draw(facts()),
        samples=draw(samples()),
        now_ns=NOW_NS,
    )


def facts() -> st.SearchStrategy[PodFacts]:
    waited_s = st.sampled_from((0, 1, 30, 3600))
    return st.builds(
        lambda waited, attempts: PodFacts(NOW_NS - waited * SECOND_NS, attempts), waited_s, st.integers(0, 3)
    )


def samples() -> st.SearchStrategy[Samples]:
    """Of the metrics `rx` and `load`: some nodes without a sample, some polls and some samples too old."""
    ages_s = st.sampled_from((0, 10, 90, 91, 600))
    values = st.sampled_from((0.0, 0.25, 0.5, 0.85, 1.0, 8e8, 1e9, 123456789.0, -1.0))
    sample = st.builds(lambda value, age: Sample(value, NOW_NS - age * SECOND_NS), values, ages_s)
    of_nodes = st.dictionaries(st.sampled_from(tuple(map(NodeName, NODE_NAMES))), sample, max_size=6)
    metric = st.builds(lambda found, age: MetricSamples(found, NOW_NS - age * SECOND_NS), of_nodes, ages_s)
    return st.dictionaries(st.sampled_from(METRICS), metric, max_size=2)
