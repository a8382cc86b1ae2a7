"""Scores from 0 to 100, their weighted sum, and ties."""

from hashlib import blake2b

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, pod, world
from tests.reference import evaluate
from tests.reference.checked import metric, program

RX = metric("rx", "bandwidth", "bit/s")


def three_nodes() -> ClusterCache:
    return world([node("a", cpu="2"), node("b", cpu="4"), node("c", cpu="8")])


def scored(
    *lines: str, cache: ClusterCache | None = None, rx: dict[str, float] | None = None
) -> dict[str, int]:
    """The score of each node by the rule `s`; empty if the rule skipped the pod."""
    samples = {
        "rx": MetricSamples({NodeName(name): Sample(number, 0) for name, number in (rx or {}).items()}, 0)
    }
    explanation = evaluate(
        program(*lines),
        pod("p"),
        cache or three_nodes(),
        now_ns=0,
        facts=QueuedPodInfo(0, 0),
        samples=samples,
    )
    return {name: cell.score for name, cell in explanation.scores.get("s", {}).items()}


def totals(rule: str, candidate: Pod, cache: ClusterCache) -> dict[str, int]:
    return dict(evaluate(program(rule), candidate, cache, now_ns=0, facts=QueuedPodInfo(0, 0)).totals)


def test_a_range_is_fixed_and_lower_inverts_the_score() -> None:
    higher = scored("score s weight 1 higher node.allocatable.cpu normalize range(2, 5)")
    lower = scored("score s weight 1 lower node.allocatable.cpu normalize range(2, 5)")

    assert higher == {"a": 0, "b": 66, "c": 100}
    assert lower == {"a": 100, "b": 34, "c": 0}


def test_max_normalizes_by_the_largest_value() -> None:
    higher = scored("score s weight 1 higher node.allocatable.cpu normalize max")
    nothing = scored('score s weight 1 higher node.allocatable["gpu"] normalize max')
    nothing_lower = scored('score s weight 1 lower node.allocatable["gpu"] normalize max')

    assert higher == {"a": 25, "b": 50, "c": 100}
    assert nothing == {"a": 0, "b": 0, "c": 0}
    assert nothing_lower == {"a": 100, "b": 100, "c": 100}


def test_minmax_scales_between_the_extremes_and_equal_values_score_100() -> None:
    higher = scored("score s weight 1 higher node.allocatable.cpu normalize minmax")
    alike = scored("score s weight 1 lower node.allocatable.memory normalize minmax")

    assert higher == {"a": 0, "b": 33, "c": 100}
    assert alike == {"a": 100, "b": 100, "c": 100}


def test_prefer_scores_100_or_0() -> None:
    assert scored("score s weight 1 prefer node.allocatable.cpu >= 4") == {"a": 0, "b": 100, "c": 100}


def test_a_missing_value_gets_the_score_of_the_missing_clause() -> None:
    line = "score s weight 1 lower rx normalize range(0Mbps, 1Gbps) missing"
    rx = {"a": 0.0, "b": 0.75e9}

    assert scored(RX, f"{line} worst", rx=rx)["c"] == 0
    assert scored(RX, f"{line} best", rx=rx)["c"] == 100
    assert scored(RX, f"{line} 7", rx=rx)["c"] == 7
    assert scored(RX, f"{line} neutral", rx=rx) == {"a": 100, "b": 25, "c": 62}
    assert scored(RX, f"{line} neutral", rx={}) == {"a": 50, "b": 50, "c": 50}


def test_nodes_without_a_true_when_score_0_and_do_not_count() -> None:
    some = scored("score s weight 1 when node.allocatable.cpu < 8 higher node.allocatable.cpu normalize max")
    none = scored("score s weight 1 when pod.priority > 5 higher node.allocatable.cpu normalize max")

    assert some == {"a": 50, "b": 100, "c": 0}
    assert none == {}


def test_the_node_with_the_highest_weighted_sum_is_selected() -> None:
    policy = program(
        "score big   weight 2 higher node.allocatable.cpu normalize max",
        "score small weight 3 lower  node.allocatable.cpu normalize max",
    )

    explanation = evaluate(policy, pod("p"), three_nodes(), now_ns=0, facts=QueuedPodInfo(0, 0))

    assert explanation.totals == {"a": 2 * 25 + 3 * 75, "b": 2 * 50 + 3 * 50, "c": 200}
    assert explanation.selected == "a"


def test_ties_are_broken_by_the_hashes_of_node_and_pod() -> None:
    policy = program("score s weight 1 prefer true")
    cache = world([node(f"n{index}") for index in range(20)])

    chosen = {
        uid: evaluate(policy, pod("p", uid=uid), cache, now_ns=0, facts=QueuedPodInfo(0, 0)).selected
        for uid in (f"uid-{index}" for index in range(30))
    }

    def mark(text: str) -> int:
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    assert chosen == {uid: max(cache.nodes, key=lambda name: mark(name) ^ mark(uid)) for uid in chosen}
    assert len(set(chosen.values())) > 3


def test_image_volumes_count_unless_disabled() -> None:
    cache = world([node("a", images={"data:1": 500 * 2**20}), node("b")])
    volumes = {"volumes": [{"name": "v", "image": {"reference": "data:1"}}]}

    counted = totals("score image_locality weight 1", pod(spec=volumes), cache)
    by_size = totals("score image_locality weight 1 { image_volumes = size }", pod(spec=volumes), cache)
    not_counted = totals("score image_locality weight 1 { image_volumes = no }", pod(spec=volumes), cache)

    # 500 MiB on one of two nodes: 250 MiB; of 23 to 2000 MiB for two images 227 / 1977, for one 227 / 977.
    assert counted == {"a": 11, "b": 0}
    assert by_size == {"a": 23, "b": 0}
    assert not_counted == {"a": 0, "b": 0}


def test_the_formula_balance_scores_the_balance_only() -> None:
    cache = world([node("a", cpu="4", memory="4Gi")])
    requesting = pod(cpu="2", memory="1Gi")

    change = totals("score node_resources_balanced_allocation weight 1", requesting, cache)
    balance = totals(
        "score node_resources_balanced_allocation weight 1 { formula = balance }", requesting, cache
    )

    # Half of the cpu and a quarter of the memory: a deviation of 0.125.
    assert balance == {"a": 87}
    assert change == {"a": 50 + (50 + 87 - 100) // 2}
