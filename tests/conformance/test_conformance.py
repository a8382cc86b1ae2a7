"""The built-ins decide as the recorded kube-schedulers 1.36 and 1.37 did."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policysched.kube.write.report_content import truncate_note
from policysched.scheduler.preemption import candidate_search, victim_selection
from policysched.scheduler.preemption.running_gangs import ReprieveOrder, reprieve_order
from policysched.scheduler.unschedulable_message import unavailable_message
from tests.builders import node_manifest, pod_manifest
from tests.conformance.cluster_case import CASES, load, write_compact
from tests.conformance.compare import Compared, compare, main, report
from tests.conformance.kube_default import kube_default
from tests.reference import builtins
from tests.reference.builtin_interface import FilterReasons, NodeScore

NOT_RECORDED = {"node_name", "node_declared_features", "dynamic_resources"}
"""Parts of the message that no recorded case triggers: no waiting pod names a node, and none needs
a kubelet feature or devices. The live comparison draws such pods.
"""


def compared(name: str) -> Compared:
    return compare(load(CASES / f"{name}.jsonl"))


def has_disagreements(name: str) -> bool:
    """Whether a case disagrees; the cases after the first one that does are not compared. An exception is no disagreement."""
    for case in load(CASES / f"{name}.jsonl"):
        for disagreement in compare([case]).disagreements:
            assert not re.search("cannot be compared|internal error", disagreement.sentence), disagreement
            return True
    return False


def test_cases_are_read_as_they_were_written_except_unused_fields(tmp_path: Path) -> None:
    case = small_case()
    path = tmp_path / "cases.jsonl.xz"
    with_more = {**case, "nodes": [{**node, "managedFields": [{"manager": "x"}]} for node in case["nodes"]]}

    write_compact([with_more, case], path)

    assert load(path) == [case, case]


def written(folder: Path, *cases: dict[str, Any]) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    return path


def small_case(**expected: Any) -> dict[str, Any]:
    """A case with one node and one pod that fits."""
    manifest = pod_manifest("web", cpu="1")
    decision = {"pod": "web", "nodeName": "a", "feasible": ["a"], **expected}
    return {
        "name": "small",
        "nodes": [node_manifest("a")],
        "bound": [],
        "pending": [manifest],
        "expected": [decision],
    }


@pytest.mark.parametrize(
    ("name", "pods", "scored", "messages"),
    [("default", 660, 364, 150), ("wide", 300, 160, 61), ("volume", 138, 35, 73)],
)
def test_every_recorded_pod_agrees_in_all_aspects(name: str, pods: int, scored: int, messages: int) -> None:
    result = compared(name)

    assert result.disagreements == [], report(name, result, verbose=False)
    assert (result.pods, result.agreeing, result.comparable) == (pods, pods, pods)
    assert result.asked == {
        "feasible nodes": pods,
        "weighted scores": scored,
        "totals": scored,
        "place": pods,
        "victims": messages,
        "message": messages,
    }
    assert result.agree == result.asked


def test_victims_and_preemption_messages_agree_with_the_recordings() -> None:
    result = compared("preempt")

    assert result.disagreements == [], report("preempt", result, verbose=True)
    assert (result.pods, result.agreeing, result.preempting, result.asked["message"]) == (70, 70, 44, 12)
    assert result.diced <= 4


def test_decisions_of_kube_scheduler_1_37_agree_and_not_with_the_defaults_of_1_36() -> None:
    cases = load(CASES / "live-1.37.jsonl.xz")

    result = compare(cases)

    assert result.disagreements == [], report("live-1.37", result, verbose=True)
    assert (result.cases, result.pods, result.agreeing) == (40, 175, 175)
    assert {aspect: result.asked[aspect] for aspect in ("weighted scores", "devices", "message")} == {
        "weighted scores": 49,
        "devices": 36,
        "message": 103,
    }
    assert compare(cases[:5], kube_default("1.36")).disagreements


@pytest.mark.parametrize(
    ("module", "part", "planted"),
    [
        (
            victim_selection,
            "reprieve_order",
            lambda pods, gang_of, _, order: reprieve_order(pods, gang_of, (), order),
        ),
        (victim_selection, "reprieve_order", lambda *inputs: _reversed(reprieve_order(*inputs))),
        (candidate_search, "NO_VICTIMS", "Nobody to evict"),
        (candidate_search, "NOT_HELPFUL", "No help"),
    ],
    ids=["budgets do not count", "the least important is spared first", "other words", "other words still"],
)
def test_a_planted_bug_in_preemption_is_detected(
    module: object, part: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, part, planted)

    assert has_disagreements("preempt")


def _reversed(order: ReprieveOrder) -> ReprieveOrder:
    return replace(order, units=order.units[::-1])


def test_a_filter_that_rejects_too_much_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_everywhere(*_: object) -> FilterReasons:
        return FilterReasons(("node(s) were unschedulable",), resolvable=False)

    monkeypatch.setitem(builtins.FILTERS, "node_unschedulable", refuse_everywhere)

    assert has_disagreements("default")


@pytest.mark.parametrize("name", sorted(builtins.FILTERS.keys() - NOT_RECORDED))
def test_a_filter_that_rejects_nothing_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builtins.FILTERS, name, lambda *_: None)

    assert has_disagreements("volume" if "volume" in name else "default")


@pytest.mark.parametrize("name", ["volume_binding"])
def test_a_filter_without_its_prefilter_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a recording shows it: the prefilter's message differs from the filter's, or no
    other filter rejects the node.
    """
    monkeypatch.setattr(f"policysched.builtins.{name}.kernel.VolumeBindingFilter.prefilter", lambda *_: None)

    assert has_disagreements("volume")


@pytest.mark.parametrize("name", sorted(builtins.SCORES.keys() - NOT_RECORDED - {"volume_binding"}))
def test_a_score_that_is_one_point_off_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = builtins.SCORES[name]

    def one_off(pod, candidates, params, facts):
        scores = right(pod, candidates, params, facts)
        if scores is None:
            return None
        return {
            node: NodeScore(score.raw, score.score - 1 if score.score else 1)
            for node, score in scores.items()
        }

    monkeypatch.setitem(builtins.SCORES, name, one_off)

    assert has_disagreements("default")


# ── command line ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_line_counts_the_pods_that_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, small_case(), small_case(finalScores={"a": 1}))

    status = main([str(path)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    assert lines[0] == "cases.jsonl: 2 pods in 2 cases"
    assert lines[1].split() == ["feasible", "nodes", "2", "of", "2"]
    assert lines[3].split() == ["totals", "0", "of", "1"]
    assert lines[-1] == "1 of 2 pods agree on everything but wording"


def test_files_that_agree_exit_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([str(written(tmp_path, small_case()))])

    assert status == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 pods agree on everything but wording"


def test_another_message_is_shown_and_does_not_count_as_disagreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = small_case(
        nodeName=None, feasible=[], message="0/1 nodes are available: 1 no.", reason="Unschedulable"
    )
    case["pending"] = [pod_manifest("web", cpu="64")]

    status = main([str(written(tmp_path, case)), "--verbose"])

    printed = capsys.readouterr().out
    assert status == 0
    assert "recorded `0/1 nodes are available: 1 no.`" in printed
    assert ["message", "0", "of", "1"] in [line.split() for line in printed.splitlines()]


def test_a_pod_that_is_not_covered_or_cannot_be_read_counts_as_disagreeing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims, unread = small_case(), small_case()
    claims["pending"][0]["spec"]["resourceClaims"] = [{"name": "gpu"}]
    unread["pending"][0]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "much"}}

    status = main([str(written(tmp_path, claims, unread, {"name": "empty", "expected": [{"pod": "x"}]}))])

    printed = capsys.readouterr().out
    assert status == 1
    assert "cannot be compared, refused before any node: the pod uses spec.resourceClaims" in printed
    assert "small/pod 0: feasible nodes: cannot be compared: Malformed" in printed
    assert printed.endswith("0 of 3 pods agree on everything but wording\n")


def test_only_a_pod_recorded_as_waiting_is_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = small_case(nodeName=None, waits=True)
    del waiting["expected"][0]["feasible"]

    status = main([str(written(tmp_path, waiting, small_case()))])

    printed = capsys.readouterr().out
    assert status == 0
    assert "not compared" in printed
    assert printed.endswith("1 of 1 pods agree on everything but wording\n")


def test_verbose_prints_every_disagreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, *[small_case(finalScores={"a": 1})] * 20)

    main([str(path)])
    short = capsys.readouterr().out
    main([str(path), "--verbose"])
    full = capsys.readouterr().out

    assert (short.count("recorded 1"), full.count("recorded 1")) == (10, 40), (
        "both the reference and the plan"
    )
    assert "and 30 more: --verbose" in short


def test_a_file_without_recordings_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text("{not json\n", encoding="utf-8")

    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_bad_line_is_reported_by_its_number_and_the_others_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps(small_case()).encode()
    path, empty = tmp_path / "cases.jsonl", tmp_path / "empty.jsonl"
    path.write_bytes(b"\n".join([good, b"", b"{not json", b"[]", b'"\xff"', good]))
    empty.write_bytes(b"")

    status = main([str(tmp_path / "gone.jsonl"), str(path), str(empty)])

    output = capsys.readouterr()
    assert status == 2
    assert [line.partition(": ")[0] for line in output.err.splitlines()] == [
        str(tmp_path / "gone.jsonl"),
        *(f"{path}:{number}" for number in (3, 4, 5)),
    ]
    assert "empty.jsonl: 0 pods in 0 cases" in output.out
    assert output.out.endswith("2 of 2 pods agree on everything but wording\n")


def test_keys_of_a_case_have_any_order_and_optional_keys_may_be_absent() -> None:
    pods = [{**pod_manifest(name, cpu="4")} for name in ("first", "second")]
    pods[0]["spec"] = {**pods[0]["spec"], "tolerations": None, "affinity": None, "priorityClassName": None}
    pods[1]["spec"] = {**pods[1]["spec"], "priorityClassName": "system-node-critical"}
    case = {
        "expected": [
            {"pod": "second", "nodeName": None, "feasible": [], "victims": [], "message": ""},
            {"feasible": ["a"], "nodeName": "a", "pod": "first"},
        ],
        "objects": None,
        "pending": pods,
        "nodes": [node_manifest("a", cpu="4")],
    }

    comparison = compare([case], kube_default())

    assert (comparison.pods, comparison.agree["feasible nodes"], comparison.agree["place"]) == (2, 2, 2)
    assert {disagreement.pod for disagreement in comparison.disagreements} == {
        "(a case without a name)/second"
    }, "policysched would evict"


@pytest.mark.parametrize(
    "more",
    [
        {"pending": 3, "expected": [{"pod": "x"}]},
        {"expected": [{"pod": "somebody", "nodeName": None}]},
        {"objects": [{"kind": "LimitRange", "metadata": {"name": "least"}}]},
        {"nodes": None},
    ],
    ids=["no list", "another pod", "limits", "no nodes"],
)
def test_a_case_that_raises_disagrees_and_the_next_is_compared(more: dict[str, Any]) -> None:
    comparison = compare([{**small_case(), **more}, small_case()], kube_default())

    assert (comparison.pods, comparison.agreeing) == (2, 1)
    assert "cannot be compared" in comparison.disagreements[0].sentence


# ── messages ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_reasons_are_sorted_as_texts_and_end_with_a_period() -> None:
    counts = {"node(s) were unschedulable": 2, "Insufficient cpu": 10, "Too many pods": 1}

    message = unavailable_message(12, counts)

    expected = "0/12 nodes are available: 1 Too many pods, 10 Insufficient cpu, 2 node(s) were unschedulable."
    assert message == expected


def test_a_cluster_without_nodes_has_its_own_message() -> None:
    assert unavailable_message(0, {}) == "no nodes available to schedule pods"


def test_the_preemption_message_follows_the_reasons() -> None:
    message = unavailable_message(1, {"Too many pods": 1}, "preemption: not helpful.")

    assert message == "0/1 nodes are available: 1 Too many pods. preemption: not helpful."


def test_an_event_note_is_cut_at_1024_bytes_between_characters() -> None:
    short, long, wide = "a" * 1024, "a" * 1025, "…" * 1000

    assert truncate_note(short) == short
    assert truncate_note(long) == "a" * 1020 + " ..."
    assert truncate_note(wide) == "…" * 340 + " ..."
