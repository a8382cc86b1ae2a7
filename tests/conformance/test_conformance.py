"""The built-ins decide as a kube-scheduler 1.36 was recorded to decide."""

from typing import Any

import pytest

from policysched.lang.message import truncated, unavailable_message
from policysched.oracle import builtins
from policysched.oracle.builtin import NodeScore, Reasons
from policysched.schedule import candidates
from tests.conformance.cluster_case import CASES, load
from tests.conformance.compare import Comparison, compare, report
from tests.conformance.kube_default import kube_default

NOT_RECORDED = {"node_name", "node_declared_features"}
"""No pod that waits names a node, and no recorded one needs a feature of the kubelet: the live comparison has such."""


def compared(name: str) -> Comparison:
    return compare(load(CASES / f"{name}.jsonl"), kube_default())


@pytest.mark.parametrize(
    ("name", "decisions", "scored", "messages", "whole"),
    [("default", 660, 364, 150, 660), ("wide", 300, 160, 61, 300)],
)
def test_every_covered_plugin_agrees_with_the_recordings(
    name: str, decisions: int, scored: int, messages: int, whole: int
) -> None:
    found = compared(name)

    assert found.differences == [], report(name, found, verbose=False)
    assert (found.decisions, found.scored, found.messages) == (decisions, scored, messages)
    assert found.whole >= whole


def test_who_is_evicted_and_what_is_said_of_it_agree_with_the_recordings() -> None:
    found = compared("preempt")

    assert found.differences == [], report("preempt", found, verbose=True)
    assert (found.decisions, found.whole, found.preempted, found.messages) == (70, 70, 44, 12)
    assert found.diced <= 4


@pytest.mark.parametrize(
    ("part", "planted"),
    [
        ("split_by_budget", lambda pods, _budgets: ([], list(pods))),
        ("split_by_budget", lambda pods, _budgets: ([], list(reversed(pods)))),
        ("NO_VICTIMS", "Nobody to evict"),
        ("NOT_HELPFUL", "No help"),
    ],
    ids=["budgets do not count", "the least important is spared first", "other words", "other words still"],
)
def test_a_mistake_in_preemption_is_noticed(part: str, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, part, planted)

    assert compared("preempt").differences


def test_a_filter_that_refuses_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_everywhere(*_: object) -> Reasons:
        return Reasons(("node(s) were unschedulable",), resolvable=False)

    monkeypatch.setitem(builtins.FILTERS, "node_unschedulable", refuse_everywhere)

    assert compared("default").differences


@pytest.mark.parametrize("name", sorted(builtins.FILTERS.keys() - NOT_RECORDED))
def test_a_filter_that_refuses_nothing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builtins.FILTERS, name, lambda *_: None)

    assert compared("default").differences


@pytest.mark.parametrize("name", sorted(builtins.SCORES))
def test_a_score_that_is_one_point_off_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = builtins.SCORES[name]

    def one_off(pod, candidates, params, facts):
        scores = right(pod, candidates, params, facts)
        if scores is None:
            return None
        return {node: NodeScore(one.raw, one.score - 1 if one.score else 1) for node, one in scores.items()}

    monkeypatch.setitem(builtins.SCORES, name, one_off)

    assert compared("default").differences


def test_reasons_are_sorted_as_texts_and_end_with_a_period() -> None:
    counts = {"node(s) were unschedulable": 2, "Insufficient cpu": 10, "Too many pods": 1}

    message = unavailable_message(12, counts)

    expected = "0/12 nodes are available: 1 Too many pods, 10 Insufficient cpu, 2 node(s) were unschedulable."
    assert message == expected


def test_a_cluster_without_nodes_has_its_own_words() -> None:
    assert unavailable_message(0, {}) == "no nodes available to schedule pods"


def test_what_was_tried_afterwards_stands_behind_the_reasons() -> None:
    message = unavailable_message(1, {"Too many pods": 1}, "preemption: not helpful.")

    assert message == "0/1 nodes are available: 1 Too many pods. preemption: not helpful."


def test_a_note_is_cut_at_1024_bytes_and_never_inside_a_character() -> None:
    short, long, wide = "a" * 1024, "a" * 1025, "…" * 1000

    assert truncated(short) == short
    assert truncated(long) == "a" * 1020 + " ..."
    assert truncated(wide) == "…" * 340 + " ..."
