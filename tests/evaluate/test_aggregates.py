"""Aggregates over the candidates: worked examples, nested aggregates, and sums that replace one term."""

import pytest

from policysched import evaluate
from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.pods import QueuedPodInfo
from tests import reference
from tests.bench.clusters import NOW_NS
from tests.builders import node, placed, pod, world
from tests.language.check.checking import codes
from tests.reference.checked import program

FACTS = QueuedPodInfo(NOW_NS, 0)


def raw_scores(program: Program, cache: ClusterCache, cpu: str = "1") -> dict[str, float]:
    """The raw values of the score `s`, by node. Both implementations must agree on it."""
    scheduled_pod = pod("web", cpu=cpu, memory="1Gi")
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    evaluator.build_columns(compiled)
    fast = evaluator.explain(compiled, scheduled_pod, now_ns=NOW_NS, facts=FACTS, samples={})
    slow = reference.evaluate(program, scheduled_pod, cache, now_ns=NOW_NS, facts=FACTS, samples={})
    assert fast.scores == slow.scores
    return {str(name): float(cell.raw or 0) for name, cell in fast.scores["s"].items()}


def three_nodes() -> ClusterCache:
    """Nodes with 2, 4 and 4 cores, of which 1, 1 and 0 are requested."""
    return world(
        nodes=[node("small", cpu="2"), node("busy", cpu="4"), node("idle", cpu="4")],
        pods=[placed(pod("a", cpu="1"), "small"), placed(pod("b", cpu="1"), "busy")],
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sum of node.pods over nodes", {"small": 2, "busy": 2, "idle": 2}),
        (
            "min of (stddev of node.pods over nodes after placing) over nodes",
            {"small": 0.0, "busy": 0.0, "idle": 0.0},
        ),
        (
            "max of abs(node.pods - mean of node.pods over nodes) over nodes after placing",
            {"small": 1.0, "busy": 1.0, "idle": 0.0},
        ),
        ("max of node.requested.cpu over nodes", {"small": 1000, "busy": 1000, "idle": 1000}),
        ("mean of node.free.cpu over nodes", {"small": 8000 / 3, "busy": 8000 / 3, "idle": 8000 / 3}),
        ("stddev of node.allocatable.cpu / 1 over nodes", dict.fromkeys(("small", "busy", "idle"), 942.8090415820634)),
        ("max of node.requested.cpu over nodes after placing", {"small": 2000, "busy": 2000, "idle": 1000}),
        ("min of node.free.cpu over nodes after placing", {"small": 0, "busy": 1000, "idle": 1000}),
        ("sum of node.pods over nodes after placing", {"small": 3, "busy": 3, "idle": 3}),
        (
            "mean of node.requested.cpu / node.allocatable.cpu else 0 over nodes after placing",
            {"small": 1.25 / 3, "busy": 1 / 3, "idle": 1 / 3},
        ),
        (
            "stddev of node.requested.cpu / node.allocatable.cpu else 0 over nodes after placing",
            {"small": 0.4249182927993987, "busy": 0.23570226039551584, "idle": 0.11785113019775793},
        ),
    ],
)  # fmt: skip
def test_a_candidate_is_scored_by_the_cluster_after_placement(value: str, expected: dict[str, float]) -> None:
    policy = program(f"score s weight 1 higher {value} normalize max")

    scores = raw_scores(policy, three_nodes())

    assert scores == pytest.approx(expected, rel=1e-8)


def test_nodes_that_a_filter_rejects_are_not_counted() -> None:
    policy = program(
        'filter roomy require node.name != "idle"',
        "score s weight 1 higher min of node.requested.cpu over nodes normalize max",
    )

    assert raw_scores(policy, three_nodes()) == {"small": 1000, "busy": 1000}


def test_a_single_candidate_has_no_others() -> None:
    policy = program(
        "score s weight 1 higher max of node.requested.cpu over nodes after placing normalize max"
    )

    assert raw_scores(policy, world(nodes=[node("a", cpu="4")])) == {"a": 1000}


def test_integer_sums_saturate() -> None:
    policy = program(
        "score s weight 1 higher sum of node.allocatable.memory * 2000000000 over nodes after placing normalize max"
    )
    cluster = world(nodes=[node(f"n{index}", memory="4Gi") for index in range(3)])

    assert raw_scores(policy, cluster) == pytest.approx(dict.fromkeys(("n0", "n1", "n2"), 2**63 - 1))


def test_a_cached_evaluation_follows_every_placement() -> None:
    """After each replica, the evaluation they share equals the reference implementation."""
    policy = program(
        "filter roomy require node.free.cpu >= pod.requests.cpu",
        "score s weight 1 lower stddev of node.requested.cpu / node.allocatable.cpu else 1 over nodes after placing normalize minmax",
    )
    cache = three_nodes()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(policy)
    evaluator.build_columns(compiled)
    chosen: list[NodeName | None] = []

    for index in range(9):
        replica = pod(f"web-{index}", cpu="1")
        expected = reference.evaluate(policy, replica, cache, now_ns=NOW_NS, facts=FACTS, samples={})
        verdict = evaluator.evaluate(compiled, replica, now_ns=NOW_NS, facts=FACTS, samples={})
        assert verdict.selected == expected.selected
        chosen.append(verdict.selected)
        if verdict.selected is not None:
            cache.assume(replica, verdict.selected)

    assert chosen[0] == "idle"
    assert chosen[8] is None, "eight cores were free"


def test_elements_of_a_list_are_compared_with_all_candidates() -> None:
    cache = world(
        nodes=[
            node("one", annotations={"cards": '[{"clock": 10}, {"clock": 40}]'}),
            node("two", annotations={"cards": '[{"clock": 50}]'}),
            node("none"),
        ]
    )
    policy = program(
        "record card { clock: int }",
        'input cards: list<card> = node.annotations["cards"] default [] invalid default',
        "score s weight 1 higher sum(floor(card.clock * 100 / max of (max(card.clock over cards) else 1) over nodes else 0) over cards) normalize max",
    )

    assert raw_scores(policy, cache) == {"one": 100, "two": 100, "none": 0}


def test_elements_of_a_list_are_compared_with_the_candidates_after_placement() -> None:
    cache = world(
        nodes=[
            node("one", annotations={"cards": '[{"clock": 1}, {"clock": 2}]'}),
            node("two", annotations={"cards": '[{"clock": 3}]'}),
        ],
        pods=[placed(pod("a"), "one")],
    )
    policy = program(
        "record card { clock: int }",
        'input cards: list<card> = node.annotations["cards"] default [] invalid default',
        "score s weight 1 higher sum(card.clock * max of node.pods over nodes after placing over cards) normalize max",
    )

    assert raw_scores(policy, cache) == {"one": 6, "two": 3}


def test_a_list_of_the_pod_cannot_be_compared_with_the_candidates() -> None:
    lines = (
        "record wish { clock: int }",
        'input wishes: list<wish> = pod.annotations["wishes"] default [] invalid default',
        "score s weight 1 higher sum(wish.clock * mean of node.pods over nodes over wishes) normalize max",
    )

    assert "PS220" in codes(*lines)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("mean of abs(node.pods - mean of node.pods over nodes) over nodes", dict.fromkeys(("small", "busy", "idle"), 4 / 9)),
        (
            "mean of abs(node.pods - mean of node.pods over nodes) over nodes after placing",
            {"small": 2 / 3, "busy": 2 / 3, "idle": 0},
        ),
        ("max of (stddev of node.pods over nodes after placing) over nodes", dict.fromkeys(("small", "busy", "idle"), 0.816496580927726)),
        (
            "max of (if node.free.cpu >= 2 then min of node.free.cpu over nodes after placing else 0) over nodes",
            dict.fromkeys(("small", "busy", "idle"), 1000),
        ),
        (
            "mean of max(node.pods, max of (node.pods + max of node.pods over nodes) over nodes) over nodes after placing",
            {"small": 4, "busy": 4, "idle": 2},
        ),
    ],
)  # fmt: skip
def test_a_nested_aggregate_sees_the_placement_of_the_outer_one(
    value: str, expected: dict[str, float]
) -> None:
    policy = program(f"score s weight 1 higher {value} normalize max")

    scores = raw_scores(policy, three_nodes())

    assert scores == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    "value",
    [
        "mean of abs(used - mean of used over nodes) over nodes after placing",
        "sum of max(node.requested.memory, max of node.requested.memory over nodes) over nodes after placing",
    ],
)
def test_candidates_with_many_numbers_of_a_nested_aggregate_share_close_ones(value: str) -> None:
    policy = program(
        "let used: float = node.requested.memory / node.allocatable.memory else 1",
        f"score s weight 1 higher {value} normalize max",
    )
    sizes = range(40)
    cluster = world(
        nodes=[node(f"n{size}", memory=f"{1000 + 37 * size}Mi") for size in sizes],
        pods=[placed(pod(f"p{size}", memory=f"{11 * size}Mi"), f"n{size}") for size in sizes],
    )

    scores = raw_scores(policy, cluster)

    assert len(set(scores.values())) > 20


def test_quantized_numbers_stay_close_to_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = program(
        "let used: float = node.requested.memory / node.allocatable.memory else 1",
        "score s weight 1 higher mean of abs(used - mean of used over nodes) over nodes after placing normalize max",
    )
    cache = world(nodes=[node(f"n{size}", memory=f"{1000 + 137 * size}Mi") for size in range(9)])

    exact = raw_scores(policy, cache)
    for module in ("policysched.lang.ir", "policysched.evaluate.vector", "tests.reference"):
        monkeypatch.setattr(f"{module}.aggregates.STEP_BITS", 2)
    stepped = raw_scores(policy, cache)

    assert stepped != exact
    assert stepped == pytest.approx(exact, abs=0.02)
