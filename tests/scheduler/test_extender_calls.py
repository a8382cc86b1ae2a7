"""Calls to extenders: when they are sent, how answers are used, and what happens without one."""

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

from policysched.lang.ir.extender_results import ExtenderRejection, ExtenderResult
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.extenders.calls import ExtenderCalls
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.extender_capabilities import ExtenderCapabilities
from tests.builders import node, placed, pod
from tests.evaluate.test_hostile import calls_of
from tests.scheduler.rig import Rig

ASKING = """\
policy test version 1
filter node_resources_fit
score flat weight 1 prefer node.name == "a"
extender gpu weight 5 missing neutral
"""
BOTH = ExtenderCapabilities(filters=True, scores=True)


class Asking(Rig):
    def __init__(
        self,
        policy: str = ASKING,
        *objects: ObservedPod | Pod | Node,
        terms: Mapping[str, ExtenderCapabilities] = {},
    ) -> None:
        self._answered: set[int] = set()
        super().__init__(policy, *objects, extenders={"gpu": BOTH, **terms})

    @property
    def extender_calls(self) -> list[c.CallExtenders]:
        return self.of(c.CallExtenders)

    def unanswered_calls(self) -> list[c.CallExtenders]:
        return [call for call in self.extender_calls if call.call_id not in self._answered]

    def answer(
        self,
        consult: c.CallExtenders,
        *,
        refused: Mapping[str, str] = {},
        hopeless: Mapping[str, str] = {},
        scores: Mapping[str, int] = {},
    ) -> None:
        """All of its extenders say so; then everything is decided that can be."""
        self._answered.add(consult.call_id)
        no = {name: ExtenderRejection(words, True) for name, words in refused.items()}
        no |= {name: ExtenderRejection(words, False) for name, words in hopeless.items()}
        self.handle(
            e.ExtendersAnswered(
                consult.call_id, {name: ExtenderResult(no, scores) for name, _ in consult.extenders}
            )
        )
        self.settle()


def nodes(*names: str, **more: str) -> list[Node]:
    return [node(name, **more) for name in names]  # type: ignore[arg-type]


def test_a_pod_is_bound_only_after_the_answer_and_where_the_scores_are_highest() -> None:
    rig = Asking(ASKING, *nodes("a", "b", "c"), pod("web"))

    rig.settle()
    before = rig.placements()
    (consult,) = rig.extender_calls
    rig.answer(consult, scores={"a": 3, "b": 9})

    # a: 100 + 5 * 30; b: 5 * 90; c has no score and counts the mean of the others, 60.
    assert before == {}
    assert (consult.name, consult.nodes, consult.extenders) == ("web", ("a", "b", "c"), (("gpu", True),))
    assert rig.placements() == {"web": "b"}
    assert rig.scheduler.decisions[-1].score == 450
    assert rig.scheduler.decisions[-1].attempt == 1


def test_a_new_policy_with_an_unknown_extender_is_rejected_and_the_others_stay_active() -> None:
    plain = "policy plain version 1\nfilter node_resources_fit\n"
    rig = Rig({"a.policy": ASKING, "b.policy": plain}, node("a"), pod("web", scheduler="plain"))

    rig.settle()

    (reports,) = [
        report.message for report in rig.of(c.ReportPolicyEvent) if report.reason == "PolicyRejected"
    ]
    assert reports.startswith("a.policy:4:10 PS906 extender `gpu` is not configured in the settings")
    assert reports.endswith("; no version of this policy is active")
    assert rig.placements() == {"web": "a"}
    assert {policy.name: policy.phase for policy in rig.scheduler.policies()} == {
        "plain": "active",
        "test": "rejected",
    }


def test_an_answer_does_not_visit_all_pods_that_wait_for_a_slot() -> None:
    """10 ms for 5,000 pods, with each answer."""

    def calls(count: int) -> int:
        rig = Asking(ASKING, *nodes("a", "b"), *[pod(f"p{number}", cpu="1m") for number in range(count)])
        rig.settle()
        (consult,) = rig.unanswered_calls()
        answer = e.ExtendersAnswered(consult.call_id, {"gpu": ExtenderResult({}, {})})
        return calls_of(lambda: rig.scheduler.handle(answer, rig.now_ns))

    assert calls(200) < 1.5 * calls(20)


def test_an_answer_evaluates_none_of_the_pods_that_wait_for_a_slot() -> None:
    """They fit no more: 3 s for 500 pods and 1,000 nodes, in one piece."""
    large = [pod(f"p{number}", cpu="3", priority=-1) for number in range(20)]
    rig = Asking(ASKING, node("a", cpu="4"), pod("first", cpu="2", priority=1), *large)
    rig.settle()
    (call,) = rig.unanswered_calls()
    core = rig.scheduler.core

    with patch.object(core.evaluator, "evaluate_nodes", side_effect=AssertionError("evaluated")):
        rig.handle(e.ExtendersAnswered(call.call_id, {"gpu": ExtenderResult({}, {})}))
    attempts = []
    while rig.scheduler.ready(rig.now_ns):
        before = sum(core.pods[one.uid].attempts for one in large)
        rig.commands += rig.scheduler.decide(rig.now_ns)
        attempts.append(sum(core.pods[one.uid].attempts for one in large) - before)
        rig.check_invariants()

    assert rig.placements() == {"first": "a"}
    assert all("Insufficient cpu" in (rig.pending_message(one.name) or "") for one in large)
    assert set(attempts) <= {0, 1}, "one attempt after another"


def test_a_pod_that_waited_for_a_slot_is_in_its_first_attempt() -> None:
    rig = Asking(ASKING, node("a"), pod("first"), pod("second"))
    rig.settle()

    rig.answer(rig.extender_calls[0])
    rig.answer(rig.extender_calls[1])

    assert [decision.attempt for decision in rig.scheduler.decisions] == [1, 1]


@pytest.mark.parametrize("is_in_debt_before", [True, False])
def test_pods_of_a_namespace_that_rests_leave_the_slot_to_others(is_in_debt_before: bool) -> None:
    """Whether it comes into debt before the slot is free, or while its pod is about to have its attempt."""
    first = pod("first", cpu="1m", priority=1)
    tenants = [pod(f"t{number}", namespace="tenant", cpu="1m") for number in range(5)]
    rig = Asking(ASKING, node("a"), first, *tenants)
    rig.pass_time(1)
    rig.observe(pod("friend", namespace="friendly", cpu="1m"))
    rig.settle()
    (call,) = rig.extender_calls
    time = rig.scheduler.core.queue.decision_time

    def come_into_debt() -> None:
        time.record_attempt("friendly")
        time.charge_failed_attempt("tenant", 10 * SECOND_NS)

    if is_in_debt_before:
        come_into_debt()
    rig.handle(e.ExtendersAnswered(call.call_id, {"gpu": ExtenderResult({}, {})}))
    if not is_in_debt_before:
        come_into_debt()
    rig.pass_time(0.3)

    assert [call.name for call in rig.extender_calls] == ["first", "friend"]


def test_namespaces_take_turns_for_a_slot() -> None:
    """Each pod waits for an answer of up to seconds: a pod of another namespace waited for those of all that had come before."""
    tenants = [pod(f"t{number}", namespace="tenant", cpu="1m") for number in range(9)]
    rig = Asking(ASKING, node("a"), *tenants)
    rig.settle()
    rig.observe(*[pod(f"f{number}", namespace="friendly", cpu="1m") for number in range(3)])
    rig.settle()

    for _ in range(7):
        rig.answer(rig.unanswered_calls()[0])

    assert [call.name for call in rig.extender_calls] == ["t0", "t1", "f0", "t2", "f1", "t3", "f2", "t4"]


def test_a_namespace_whose_calls_take_long_gets_fewer_of_them() -> None:
    """Answers of 5 s for one, of 0.1 s for the other."""
    rig = Asking(ASKING, node("a"), *[pod(f"t{number}", namespace="tenant", cpu="1m") for number in range(9)])
    rig.settle()
    rig.observe(*[pod(f"f{number}", namespace="friendly", cpu="1m") for number in range(9)])
    rig.settle()

    def answer() -> None:
        (call,) = rig.unanswered_calls()
        rig.pass_time(5 if call.namespace == "tenant" else 0.1)
        rig.answer(call)

    for _ in range(14):
        answer()
    rig.observe(pod("late", namespace="friendly", cpu="1m"))
    rig.settle()
    answer()

    names = [call.name for call in rig.extender_calls]
    assert names[:12] == ["t0", *[f"f{number}" for number in range(9)], "t1", "t2"]
    assert names[-1] == "late", "after one call, though it saved up nothing"


def test_a_pod_of_higher_priority_waits_for_no_slot_behind_others() -> None:
    """Nor behind those of its namespace."""
    rig = Asking(ASKING, node("a"), *[pod(f"low-{number}", cpu="1m") for number in range(9)])
    rig.settle()
    rig.observe(
        pod("high", cpu="1m", priority=9),
        pod("other", namespace="other", cpu="1m", priority=5),
        pod("last", cpu="1m"),
    )
    rig.settle()

    for _ in range(4):
        rig.answer(rig.unanswered_calls()[0])

    assert [call.name for call in rig.extender_calls] == ["low-0", "high", "other", "low-1", "low-2"]


def test_other_pods_are_decided_while_an_answer_is_awaited() -> None:
    plain = "policy plain version 1\nfilter node_resources_fit\n"
    rig = Rig({"a.policy": ASKING, "b.policy": plain}, node("a"), pod("web"), extenders={"gpu": BOTH})

    rig.settle()
    rig.observe(*(pod(f"other-{number}", scheduler="plain") for number in range(3)))
    rig.settle()

    assert rig.bind_order() == ["other-0", "other-1", "other-2"]


GATED = (
    ASKING
    + """\
input group: string = pod.labels["group"] optional
gang by group { min = 3  mode = gate  timeout = 10m }
"""
)


def member(name: str) -> Pod:
    return pod(name, labels={"group": "g"}, cpu="1")


def test_members_of_a_gated_gang_are_sent_one_by_one_once_enough_exist() -> None:
    rig = Asking(GATED, *nodes("a", "b", cpu="2"), member("w0"), member("w1"))
    rig.settle()
    before = len(rig.extender_calls)

    rig.observe(member("w2"))
    rig.settle()
    for number in range(3):
        rig.answer(rig.extender_calls[number], scores={"a": 9, "b": 1})

    assert (before, len(rig.extender_calls)) == (0, 3)
    assert sorted(rig.placements().values()) == ["a", "a", "b"]


def test_a_gate_that_closes_while_an_answer_is_awaited_holds_the_members() -> None:
    rig = Asking(GATED, *nodes("a"), member("w0"), member("w1"), member("w2"))
    rig.settle()

    rig.handle(e.PodDeleted(member("w2").uid))
    rig.settle()
    rig.answer(rig.extender_calls[0])
    closed = (rig.placements(), rig.counts())
    rig.observe(member("w3"))
    rig.settle()
    while rig.unanswered_calls():
        rig.answer(rig.unanswered_calls()[0])

    assert closed == ({}, {"gated": 2})
    assert len(rig.placements()) == 3


def test_a_node_that_the_extender_rejects_is_not_used_and_its_reason_is_reported() -> None:
    rig = Asking(ASKING, *nodes("a", "b"), node("c", cpu="1"), pod("web", cpu="2"))
    rig.settle()

    rig.answer(rig.extender_calls[0], refused={"a": "no GPU memory"}, hopeless={"b": "no GPU"})

    assert rig.placements() == {}
    assert rig.pending_message("web") == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 no GPU, 1 no GPU memory. "
        "preemption: not tried, because extender gpu applies to this pod."
    )


def test_of_reasons_that_differ_for_each_node_the_most_frequent_are_kept() -> None:
    """176 KB for each of the records of `/decisions`, with 1,000 nodes."""
    names = [f"n{number}" for number in range(200)]
    rig = Asking(ASKING, *nodes(*names), pod("web"))
    rig.settle()

    rig.answer(rig.extender_calls[0], refused={name: f"{name} has no room".ljust(180, ".") for name in names})

    counts = rig.scheduler.decisions[-1].counts
    assert sum(map(len, counts)) < 2_100
    assert sum(counts.values()) == 200


def test_a_rejected_pod_is_sent_again_after_any_event_or_after_a_while() -> None:
    rig = Asking(ASKING, *nodes("a"), pod("web"))
    rig.settle()
    rig.answer(rig.extender_calls[0], refused={"a": "no"})

    rig.pass_time(30)
    nothing_happened = len(rig.extender_calls)
    rig.observe(node("b"))
    rig.pass_time(2)
    node_came = len(rig.extender_calls)
    rig.answer(rig.extender_calls[-1], refused={"a": "no", "b": "no"})
    rig.pass_time(61)

    assert (nothing_happened, node_came, len(rig.extender_calls)) == (1, 2, 3)
    assert rig.extender_calls[1].nodes == ("a", "b")


def test_the_decision_is_made_on_the_cluster_as_it_is_when_the_answer_comes() -> None:
    rig = Asking(ASKING, *nodes("a", "b"), pod("web", cpu="3"))
    rig.settle()

    rig.observe(placed(pod("quicker", cpu="3", scheduler="other"), "b"))
    rig.answer(rig.extender_calls[0], scores={"a": 0, "b": 10})

    assert rig.placements() == {"web": "a"}


def test_if_all_accepted_nodes_are_full_meanwhile_the_other_nodes_are_sent() -> None:
    rig = Asking(ASKING, node("a"), pod("web", cpu="3"))
    rig.settle()

    rig.observe(placed(pod("quicker", cpu="3", scheduler="other"), "a"), node("b"))
    rig.answer(rig.extender_calls[0])
    rig.answer(rig.extender_calls[1])

    assert [call.nodes for call in rig.extender_calls] == [("a",), ("b",)]
    assert rig.placements() == {"web": "b"}


def test_an_answer_about_a_pod_that_changed_since_is_requested_again() -> None:
    first = pod("web")
    rig = Asking(ASKING, *nodes("a", "b"), first)
    rig.settle()

    rig.observe(replace(first, labels={"new": "yes"}))
    rig.settle()
    rig.answer(rig.extender_calls[0], scores={"b": 10})
    undecided = rig.placements()
    rig.answer(rig.extender_calls[1], scores={"a": 10})

    assert undecided == {}
    assert rig.placements() == {"web": "a"}


def test_a_stale_answer_is_requested_again() -> None:
    rig = Asking(ASKING, *nodes("a", "b"), pod("web"))
    rig.settle()
    (consult,) = rig.extender_calls

    rig.handle(e.ExtendersAnswered(consult.call_id, {"gpu": ExtenderResult({}, {"b": 10})}))
    rig.now_ns += 11 * 10**9
    rig.settle()

    assert (len(rig.extender_calls), rig.placements()) == (2, {})


def test_an_extender_that_fails_makes_the_pod_back_off_with_a_message() -> None:
    rig = Asking(ASKING, *nodes("a"), pod("web"))
    rig.settle()

    rig.handle(
        e.ExtendersAnswered(rig.extender_calls[0].call_id, {}, "extender gpu: filter timed out after 5 s")
    )
    rig.settle()
    at_once = len(rig.extender_calls)
    (report,) = rig.of(c.ReportPending)
    rig.pass_time(2)

    assert (report.reason, report.message) == ("SchedulerError", "extender gpu: filter timed out after 5 s")
    assert (at_once, len(rig.extender_calls)) == (1, 2)


def test_concurrent_calls_are_limited_and_further_pods_wait_for_a_slot() -> None:
    terms = {"gpu": replace(BOTH, concurrent_calls_max=2)}
    rig = Asking(ASKING, *nodes("a"), *(pod(f"web-{number}") for number in range(5)), terms=terms)
    rig.settle()
    first = [call.name for call in rig.extender_calls]

    for consult in rig.extender_calls:
        rig.answer(consult)
    for consult in rig.extender_calls[2:]:
        rig.answer(consult)
    rig.answer(rig.extender_calls[4])

    assert len(first) == 2
    assert len(rig.extender_calls) == 5
    assert len(rig.placements()) == 5


def test_a_waiting_pod_without_a_feasible_node_is_reported_and_does_not_hold_up_others() -> None:
    rig = Asking(
        ASKING, node("a", cpu="2"), pod("first", cpu="1"), pod("large", cpu="2"), pod("small", cpu="1")
    )
    rig.settle()
    by_name = {call.name: call for call in rig.extender_calls}
    assert len(by_name) == 1

    for number in range(3):  # the second and third are asked about only once it is their turn
        if number < len(rig.extender_calls):
            rig.answer(rig.extender_calls[number])

    assert rig.scheduler.check() == []
    waiting = {"first", "large", "small"} - rig.placements().keys()
    (name,) = waiting
    assert "Insufficient cpu" in (rig.pending_message(name) or "")


def test_a_pod_deleted_during_a_call_leaves_nothing_behind() -> None:
    web, other = pod("web"), pod("other")
    rig = Asking(ASKING, *nodes("a"), web, other)
    rig.settle()
    asked_first = rig.extender_calls[0]

    rig.handle(e.PodDeleted(asked_first.uid))
    rig.answer(asked_first)
    rig.answer(rig.extender_calls[1])

    (left,) = {"web", "other"} - {asked_first.name}
    assert rig.placements() == {left: "a"}


def test_extenders_for_a_resource_are_called_for_pods_that_request_it() -> None:
    terms = {"gpu": replace(BOTH, resources=frozenset({"example.com/gpu"}))}
    room = node("a", resources={"example.com/gpu": "4"})
    rig = Asking(ASKING, room, pod("plain"), pod("gpu", resources={"example.com/gpu": "1"}), terms=terms)

    rig.settle()

    assert rig.placements() == {"plain": "a"}
    assert [call.name for call in rig.extender_calls] == ["gpu"]


def test_a_pod_that_an_extender_applies_to_does_not_preempt_and_others_of_the_policy_do() -> None:
    terms = {"gpu": replace(BOTH, resources=frozenset({"example.com/gpu"}))}
    room = node("a", resources={"example.com/gpu": "4"})
    asks = pod("asks", cpu="4", priority=9, resources={"example.com/gpu": "1"})
    rig = Asking(ASKING, room, placed(pod("low", cpu="3"), "a"), asks, terms=terms)

    rig.settle()
    nobody = rig.of(c.Evict)
    rig.observe(pod("plain", cpu="4", priority=9))
    rig.settle()

    assert nobody == []
    assert (rig.pending_message("asks") or "").endswith(
        "not tried, because extender gpu applies to this pod."
    )
    assert [eviction.name for eviction in rig.of(c.Evict)] == ["plain"]


@pytest.mark.parametrize(
    ("statement", "terms", "words"),
    [
        ("extender npu", {}, "extender `npu` is not configured in the settings (configured: gpu)"),
        (
            "extender gpu weight 1 missing worst",
            {"gpu": replace(BOTH, scores=False)},
            "has a weight, but the settings configure no prioritize verb for it",
        ),
        ("extender gpu", {"gpu": replace(BOTH, filters=False)}, "has no effect: it has no weight"),
    ],
)
def test_a_policy_with_an_unusable_extender_does_not_become_active(
    statement: str, terms: Mapping[str, ExtenderCapabilities], words: str
) -> None:
    rig = Asking("policy test version 1\nfilter node_resources_fit\n", node("a"), terms=terms)

    rig.apply_policies(f"policy test version 1\nfilter node_resources_fit\n{statement}\n")
    rig.observe(pod("web"))
    rig.settle()

    (event,) = rig.of(c.ReportPolicyEvent)
    assert (event.reason, words in event.message) == ("PolicyRejected", True), event.message
    assert rig.placements() == {"web": "a"}


def test_a_start_with_an_unusable_extender_activates_the_last_known_good_text() -> None:
    before = Rig("policy test version 1\nfilter node_resources_fit\n")
    (saved,) = before.of(c.SavePolicyTexts)
    rig = Rig(None, node("a"), pod("web", scheduler="test"))

    rig.apply_policies(ASKING, last_good={"test.policy": saved.texts["test"]})
    rig.settle()

    (status,) = rig.scheduler.policies()
    assert (status.phase, status.key) == ("last_known_good", "main.policy")
    assert status.diagnostics[0].code == "PS906"
    assert rig.placements() == {"web": "a"}
    (event,) = rig.of(c.ReportPolicyEvent)
    assert event.message.endswith(
        f"; running the last known good text, sha {status.sha256 and status.sha256[:6]}"
    )
    assert rig.of(c.SavePolicyTexts) == [], "what is kept is still right"


def test_a_start_without_any_usable_text_has_no_policy_to_run_and_keeps_the_saved_text() -> None:
    plain = "policy plain version 1\nfilter node_resources_fit\n"
    alone, beside = Rig(None), Rig(None)

    alone.apply_policies(ASKING, last_good={"test.policy": ASKING})
    beside.apply_policies({"a.policy": ASKING, "b.policy": plain}, last_good={"test.policy": ASKING})

    assert "extender `gpu` is not configured" in (alone.scheduler.startup_error or "")
    assert beside.scheduler.startup_error is None
    (saved,) = beside.of(c.SavePolicyTexts)
    assert saved.texts.keys() == {"plain", "test"}


def test_a_scheduler_that_activates_an_unusable_extender_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: nobody looks at extenders when a text is offered."""
    monkeypatch.setattr(
        "policysched.scheduler.policies.policy_names.unusable_extenders", lambda _program, _extenders: ()
    )

    with pytest.raises(AssertionError, match="KeyError: 'gpu'"):
        test_a_start_with_an_unusable_extender_activates_the_last_known_good_text()


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_calls_that_are_never_sent_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExtenderCalls, "_requeue_waiting", lambda _self, _now_ns: None)

    with pytest.raises(AssertionError):
        test_concurrent_calls_are_limited_and_further_pods_wait_for_a_slot()


def test_a_dropped_answer_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExtenderCalls, "_accept_answer", lambda *_: None)

    with pytest.raises(AssertionError):
        test_a_pod_is_bound_only_after_the_answer_and_where_the_scores_are_highest()


def test_a_decision_on_the_cluster_at_the_time_of_the_call_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = ExtenderCalls._judge
    first: dict[object, object] = {}

    def stale(self: ExtenderCalls, *more: object) -> object:
        return first.setdefault(id(self), right(self, *more))  # type: ignore[arg-type]

    monkeypatch.setattr(ExtenderCalls, "_judge", stale)

    with pytest.raises(AssertionError):
        test_the_decision_is_made_on_the_cluster_as_it_is_when_the_answer_comes()
