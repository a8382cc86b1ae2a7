"""Measures of a cluster after a simulation: utilisation, spread, link headroom and waiting."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, pstdev
from typing import Any

from policysched.cluster.metric_samples import Samples
from policysched.cluster.node_usage import NodeUsage
from policysched.comparison.outcomes import Outcomes
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import queued_at_creation
from policysched.lang.ir.declarations import ResourceSpec
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import TypeKind
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod

HISTOGRAM_BINS = 10
_ALWAYS_MEASURED = ("cpu", "memory")
_NEVER_MEASURED = frozenset({"pods", "ephemeral-storage"})
_TOPOLOGY_KEYS = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Shares of nodes, as ratios. `total` is that of all nodes together; `histogram` counts nodes by tenths, the last bin
    has those above 90 %."""

    total: float
    mean: float
    deviation: float
    highest: float
    lowest: float
    histogram: tuple[int, ...]

    def record(self) -> dict[str, Any]:
        numbers = {
            "total": self.total,
            "mean": self.mean,
            "deviation": self.deviation,
            "highest": self.highest,
            "lowest": self.lowest,
        }
        return {name: round(value, 6) for name, value in numbers.items()} | {
            "histogram": list(self.histogram)
        }


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly a topology key spreads pods. `pods` by domain; `skew` is the mean, over controllers with at least two
    pods, of the difference between their fullest and their emptiest domain."""

    pods: Mapping[str, int]
    skew: float | None

    def record(self) -> dict[str, Any]:
        fullest = dict(sorted(self.pods.items(), key=lambda item: (-item[1], item[0]))[:20])
        return {
            "domains": len(self.pods),
            "pods": fullest,
            "skew": None if self.skew is None else round(self.skew, 6),
        }


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pods that stay pending: how many, and since when they wait (s)."""

    pods: int
    oldest_s: float
    mean_s: float

    def record(self) -> dict[str, Any]:
        return {"pods": self.pods, "oldest_s": round(self.oldest_s, 3), "mean_s": round(self.mean_s, 3)}


@dataclass(frozen=True, slots=True)
class PlacementWaits:
    """How long the placed pods had waited (s). Unknown where the clock does not move."""

    mean_s: float
    p99_s: float
    longest_s: float

    def record(self) -> dict[str, Any]:
        numbers = {"mean_s": self.mean_s, "p99_s": self.p99_s, "longest_s": self.longest_s}
        return {name: round(value, 3) for name, value in numbers.items()}


@dataclass(frozen=True, slots=True)
class Measures:
    """`utilisation`: requested to allocatable, by resource. `link_headroom`: what is free, by resource of the policy that
    is a bandwidth. `empty_nodes` have no pod but those of DaemonSets."""

    utilisation: Mapping[str, Distribution]
    link_headroom: Mapping[str, Distribution]
    spread: Mapping[str, Spread]
    waiting: Waiting
    nodes: int
    empty_nodes: int
    placement_waits: PlacementWaits | None = None

    def record(self) -> dict[str, Any]:
        return {
            "utilisation": {name: share.record() for name, share in self.utilisation.items()},
            "link_headroom": {name: share.record() for name, share in self.link_headroom.items()},
            "spread": {key: spread.record() for key, spread in self.spread.items()},
            "waiting": self.waiting.record(),
            "placement_waits": None if self.placement_waits is None else self.placement_waits.record(),
            "nodes": self.nodes,
            "empty_nodes": self.empty_nodes,
        }


def measure(
    program: Program,
    files: ClusterFiles,
    result: Outcomes,
    *,
    samples: Samples,
    now_ns: int,
    waits_ns: Sequence[int] = (),
) -> Measures:
    """Of the cluster with the outcomes applied. `waits_ns`: how long each placed pod had waited, where the clock moved."""
    placed = _placed_pods(files, result)
    decided = [(pod, node) for pod, node in placed if pod.full_name in result]
    pods_by_node: dict[str, list[Pod]] = defaultdict(list)
    for pod, node in placed:
        pods_by_node[node].append(pod)
    waiting_s = [
        (now_ns - queued_at_creation(observed.pod, now_ns)) / 1e9
        for observed in files.pods
        if (outcome := result.get(observed.pod.full_name)) is not None and outcome.kind == "pending"
    ]
    return Measures(
        utilisation=_utilisation(files.nodes, pods_by_node),
        link_headroom={
            name: _headroom(program, resource, files, pods_by_node, samples, now_ns)
            for name, resource in program.resources.items()
            if resource.type.kind is TypeKind.BANDWIDTH and files.nodes
        },
        spread={
            key: _spread(files.nodes, key, decided)
            for key in _TOPOLOGY_KEYS
            if any(key in node.labels for node in files.nodes)
        },
        waiting=Waiting(len(waiting_s), max(waiting_s, default=0.0), fmean(waiting_s) if waiting_s else 0.0),
        nodes=len(files.nodes),
        empty_nodes=sum(
            all(pod.owner_kind == "DaemonSet" for pod in pods_by_node.get(node.name, ()))
            for node in files.nodes
        ),
        placement_waits=_placement_waits(sorted(waits_ns)) if waits_ns else None,
    )


def _placement_waits(waits_ns: Sequence[int]) -> PlacementWaits:
    """Of the sorted waits."""
    p99_ns = waits_ns[ceil(len(waits_ns) * 0.99) - 1]
    return PlacementWaits(fmean(waits_ns) / 1e9, p99_ns / 1e9, waits_ns[-1] / 1e9)


def _placed_pods(files: ClusterFiles, result: Outcomes) -> list[tuple[Pod, str]]:
    placed = []
    for observed in files.pods:
        outcome = result.get(observed.pod.full_name)
        node = observed.node if outcome is None else outcome.node
        if node is not None and not observed.finished:
            placed.append((observed.pod, node))
    return placed


def _utilisation(nodes: Sequence[Node], pods_by_node: Mapping[str, Sequence[Pod]]) -> dict[str, Distribution]:
    offered: Counter[str] = Counter()
    for node in nodes:
        offered.update(dict(node.allocatable))
    requested = {
        node.name: sum((Counter(dict(pod.requests)) for pod in pods_by_node.get(node.name, ())), Counter())
        for node in nodes
    }
    wanted: Counter[str] = sum(requested.values(), Counter())
    names = [
        name
        for name in (*_ALWAYS_MEASURED, *sorted(offered.keys() - set(_ALWAYS_MEASURED)))
        if offered[name] and name not in _NEVER_MEASURED and (wanted[name] or name in _ALWAYS_MEASURED)
    ]
    return {
        name: _distribution(
            [
                (requested[node.name][name], node.allocatable[name])
                for node in nodes
                if node.allocatable.get(name)
            ]
        )
        for name in names
    }


def _headroom(
    program: Program,
    resource: ResourceSpec,
    files: ClusterFiles,
    pods_by_node: Mapping[str, Sequence[Pod]],
    samples: Samples,
    now_ns: int,
) -> Distribution:
    """What the pods leave of each node's capacity. A node without a capacity is left out."""
    spaces = {space.name: space for space in files.namespaces}
    capacity_of, request_of = (
        compile_scalar(resource.capacity, program),
        compile_scalar(resource.request, program),
    )

    def context(pod: Pod) -> EvalContext:
        space = spaces.get(pod.namespace) or Namespace(pod.namespace, {}, {})
        return EvalContext(pod, space, now_ns=now_ns, samples=samples)

    any_pod = next((observed.pod for observed in files.pods), None)
    shares: list[tuple[float, float]] = []
    for node in files.nodes:
        if any_pod is None:
            break
        usage = NodeUsage()
        for pod in pods_by_node.get(node.name, ()):
            usage.add(pod)
        capacity = capacity_of(context(any_pod).with_node(node, usage))
        if isinstance(capacity, int | float) and capacity > 0:
            requests = [request_of(context(pod)) for pod in usage.pods.values()]
            used = sum(max(0, ceil(amount)) for amount in requests if isinstance(amount, int | float))
            shares.append((max(0.0, capacity - used), capacity))
    return _distribution(shares)


def _distribution(shares: Sequence[tuple[float, float]]) -> Distribution:
    """Of (part, whole) by node."""
    ratios = [part / amount for part, amount in shares]
    if not ratios:
        return Distribution(0.0, 0.0, 0.0, 0.0, 0.0, (0,) * HISTOGRAM_BINS)
    bins = Counter(min(HISTOGRAM_BINS - 1, int(ratio * HISTOGRAM_BINS)) for ratio in ratios)
    total = sum(part for part, _ in shares) / sum(amount for _, amount in shares)
    return Distribution(
        total,
        fmean(ratios),
        pstdev(ratios),
        max(ratios),
        min(ratios),
        tuple(bins[number] for number in range(HISTOGRAM_BINS)),
    )


def _spread(nodes: Iterable[Node], key: str, placed: Iterable[tuple[Pod, str]]) -> Spread:
    domain_of: dict[str, str] = {node.name: node.labels[key] for node in nodes if key in node.labels}
    pods: Counter[str] = Counter(dict.fromkeys(domain_of.values(), 0))
    by_controller: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for pod, node in placed:
        domain = domain_of.get(node)
        if domain is not None:
            pods[domain] += 1
            if pod.owner_name:
                by_controller[pod.namespace, pod.owner_kind, pod.owner_name][domain] += 1
    skews = [
        max(counts.values()) - (min(counts.values()) if len(counts) == len(pods) else 0)
        for counts in by_controller.values()
        if counts.total() > 1
    ]
    return Spread(pods, fmean(skews) if skews else None)
