"""Samples ahead of the local clock are tracked only for existing nodes and active queries."""

from policysched.metric_sources.clock_skew import ClockSkewTracker
from policysched.model.identifiers import NodeName

A = NodeName("a")
SHOWN = (0.5, 900)


def seen(sight: ClockSkewTracker, question: str, now_ns: int, *nodes: NodeName) -> int:
    return sight.begin_query(question, nodes, now_ns).clamp_ns(A, SHOWN, 900)


def test_a_deleted_node_is_forgotten() -> None:
    sight = ClockSkewTracker()

    seen(sight, "load", 100, A)
    sight.begin_query("load", (), 200)

    assert seen(sight, "load", 300, A) == 300


def test_each_query_has_its_own_memory_and_unused_ones_are_dropped() -> None:
    sight = ClockSkewTracker()
    seen(sight, "load", 100, A)

    others = [seen(sight, f"q{number}", 200, A) for number in range(10)]
    kept = seen(sight, "load", 300, A)
    for number in range(100):
        seen(sight, f"p{number}", 400, A)

    assert set(others) == {200}
    assert kept == 100
    assert seen(sight, "load", 500, A) == 500


def test_a_time_that_is_not_in_the_future_is_unchanged() -> None:
    sight = ClockSkewTracker()

    assert sight.begin_query("load", (A,), 1000).clamp_ns(A, SHOWN, 900) == 900
