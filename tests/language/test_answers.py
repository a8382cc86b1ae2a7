"""What extenders' answers do to what the rules say."""

from typing import Literal

from policysched.lang.ir.extender_results import (
    ExtenderRejection,
    ExtenderResult,
    add_extender_scores,
    extender_rejection,
    nodes_passing_extenders,
)
from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import NodeSubsetVerdict
from policysched.text import Source, Span

SPAN = Span(Source("test", ""), 0, 0)


def extender(
    name: str, weight: int | None = None, missing: int | Literal["neutral"] | None = None
) -> Extender:
    return Extender(name, weight, missing, SPAN)


def judged(**totals: int) -> NodeSubsetVerdict:
    return NodeSubsetVerdict(None, totals, {}, 1000)


def scores(**scores_by_node: int) -> ExtenderResult:
    return ExtenderResult({}, scores_by_node)


def refuses(*nodes: str, words: str = "no") -> ExtenderResult:
    return ExtenderResult({node: ExtenderRejection(words, resolvable=True) for node in nodes}, {})


def test_an_extender_score_counts_ten_times_its_weight() -> None:
    totals = add_extender_scores(judged(a=100, b=30), [extender("x", 3, 0)], {"x": scores(a=1, b=10)})

    assert totals == {"a": 100 + 3 * 10, "b": 30 + 3 * 100}


def test_a_missing_score_follows_the_missing_clause() -> None:
    answers = {"x": scores(a=10, b=5)}

    assert add_extender_scores(judged(a=0, b=0, c=0), [extender("x", 1, 0)], answers)["c"] == 0
    assert add_extender_scores(judged(a=0, b=0, c=0), [extender("x", 1, 100)], answers)["c"] == 100
    assert add_extender_scores(judged(a=0, b=0, c=0), [extender("x", 1, 40)], answers)["c"] == 40


def test_neutral_is_the_floor_of_the_mean_of_the_candidates_that_have_one_and_fifty_where_none_has() -> None:
    neutral = extender("x", 2, "neutral")

    # b and c are left: 10 and 55 of 100 make 32.5; what `gone` has does not count, for it is no candidate.
    mean = add_extender_scores(judged(b=0, c=0, d=0), [neutral], {"x": scores(b=1, c=5, gone=10)})
    nothing = add_extender_scores(judged(a=7), [neutral], {"x": scores()})

    assert mean == {"b": 20, "c": 100, "d": 60}
    assert nothing == {"a": 7 + 2 * 50}


def test_an_extender_without_scores_or_weight_adds_nothing() -> None:
    totals = add_extender_scores(judged(a=7), [extender("x", 5, 100), extender("y")], {"y": scores(a=10)})

    assert totals == {"a": 7}


def test_a_node_passes_if_no_extender_rejects_it_and_the_first_rejection_decides() -> None:
    asked = [extender("x"), extender("y")]
    answers = {"y": refuses("a", "b", words="from y"), "x": refuses("b", words="from x")}

    assert nodes_passing_extenders(("a", "b", "c"), answers) == ("c",)
    assert [
        rejection.rule if rejection else None
        for rejection in (extender_rejection(node, asked, answers) for node in "abc")
    ] == [
        "y",
        "x",
        None,
    ]
    by_x = extender_rejection("b", asked, answers)
    assert by_x is not None and by_x.event_reasons == ("from x",)
