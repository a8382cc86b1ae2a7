"""An attempt that raises: its pod or gang waits, and all others are scheduled."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest

from policysched.evaluate import Evaluator, NotCounted, Plan
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.pod_totals import DomainTotals, PodTotals
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from tests.builders import node, placed, pod
from tests.scheduler.rig import FIT, GANG, Rig
from tests.scheduler.test_pauses import decide_until_pause, gang, plain, rig
from tests.scheduler.test_pod_totals import LICENCES, licensed

FIT_AND_PREEMPT = "policy test version 1\nfilter node_resources_fit\npreemption { victims = any }\n"


@contextmanager
def raising(kind: type, method: str, *, about: str) -> Iterator[list[str]]:
    """The method raises where one of its arguments is a pod or gang with this in its description. The problems that `check`
    reports meanwhile are not those of the tests: it reports each error."""
    original: Callable[..., Any] = getattr(kind, method)
    raised: list[str] = []

    def fail(*arguments: Any, **more: Any) -> Any:
        if about in f"{arguments} {more}":
            raised.append(method)
            raise OverflowError("Python int too large: " + "9" * 5_000)
        return original(*arguments, **more)

    def check_invariants(checked: Rig) -> None:
        problems = [line for line in checked.scheduler.check() if "an attempt raised" not in line]
        assert not problems, problems

    with patch.object(kind, method, fail), patch.object(Rig, "check_invariants", check_invariants):
        yield raised


def test_the_pod_waits_and_others_are_scheduled() -> None:
    scheduler = Rig()
    with raising(Evaluator, "evaluate", about="name='bad'"):
        scheduler.observe(node("a"), pod("bad"), pod("good"), pod("better"))
        scheduler.settle()

        assert sorted(scheduler.bind_order()) == ["better", "good"]
        message = scheduler.pending_message("bad")
        assert message is not None and message.startswith(
            "internal error: OverflowError: Python int too large: 99"
        )
        assert len(message) < 300
        assert scheduler.scheduler.check() != [], "a simulation would not pass over it"


def test_a_pod_that_cannot_be_queued_waits_also_for_another_text_and_others_are_scheduled() -> None:
    scheduler = Rig()
    with raising(Plan, "order_key", about="name='bad'"):
        scheduler.observe(node("a"), pod("bad"), pod("good"))
        scheduler.settle()
        scheduler.apply_policies(FIT + "filter node_unschedulable\n")
        scheduler.observe(pod("better"))
        scheduler.settle()

        assert sorted(scheduler.bind_order()) == ["better", "good"]
        assert (scheduler.pending_message("bad") or "").startswith("internal error: OverflowError")
        assert scheduler.scheduler.counters.internal_errors["test"] > 1, "the other text took over"
        assert scheduler.scheduler.check() != [], "a simulation would not pass over it"
    with patch.object(Rig, "check_invariants"):
        scheduler.observe(pod("bad", labels={"new": "value"}))
        scheduler.settle()
    assert scheduler.bind_order()[-1] == "bad"


def test_a_placed_member_whose_gang_cannot_be_computed_hurts_no_other_pod() -> None:
    scheduler = Rig(GANG.format(more=""))
    labels = {"group": "g", "least": "2"}
    with raising(Plan, "gang", about="name='bad'"):
        scheduler.observe(node("a"), placed(pod("bad", labels=labels), "a"), pod("good"))
        scheduler.settle()

        assert scheduler.bind_order() == ["good"]


def test_it_is_tried_again_after_a_minute() -> None:
    scheduler = Rig()
    with raising(Evaluator, "evaluate", about="name='bad'") as raised:
        scheduler.observe(node("a"), pod("bad"))
        scheduler.pass_time(59)
        assert len(raised) == 1
    with patch.object(Rig, "check_invariants"):
        scheduler.pass_time(2)

    assert scheduler.bind_order() == ["bad"]


def test_the_error_is_logged_and_counted() -> None:
    scheduler = Rig()
    with raising(Evaluator, "evaluate", about="name='bad"):
        scheduler.observe(node("a"), pod("bad", cpu="1"), pod("bad-too", cpu="2"))
        scheduler.settle()

    (line,) = [log for log in scheduler.of(c.Log) if log.level == "error"]
    assert line.fields["pod"] == "default/bad"
    assert "test_internal_errors.py" in str(line.fields["error"])
    assert scheduler.scheduler.counters.internal_errors == {"test": 2}
    assert scheduler.scheduler.counters.attempts == {("error", "test"): 2}


def test_a_gang_waits_and_others_are_scheduled() -> None:
    scheduler = Rig(GANG.format(more=""))
    labels = {"group": "g", "least": "3"}
    with raising(Evaluator, "evaluate", about="name='g1'"):
        scheduler.observe(node("a"), *[pod(f"g{index}", labels=labels) for index in range(3)], pod("good"))
        scheduler.settle()

        assert scheduler.bind_order() == ["good"]
        assert all(
            (scheduler.pending_message(f"g{index}") or "").startswith("internal error") for index in range(3)
        )
    with patch.object(Rig, "check_invariants"):
        scheduler.pass_time(61)
    assert len(scheduler.bind_order()) == 4


def test_a_paused_gang_goes_on_after_an_error_of_a_pod_beside_it() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="2") for index in range(6)], *gang(8))
    decide_until_pause(scheduler, 3)
    with raising(Evaluator, "evaluate", about="name='bad'"):
        scheduler.observe(plain("bad"))
        scheduler.settle()

        assert len(scheduler.bind_order()) == 8
        assert (scheduler.pending_message("bad") or "").startswith("internal error")


def test_a_gang_whose_continuation_raises_waits() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="2") for index in range(6)], *gang(8))
    decide_until_pause(scheduler, 3)
    with raising(GangAttempts, "resume", about=""):
        scheduler.observe(plain("p"))
        scheduler.settle()

        assert scheduler.bind_order() == ["p"]
        assert (scheduler.pending_message("g0") or "").startswith("internal error")


def test_an_error_in_preemption_is_that_of_the_preemptor() -> None:
    scheduler = Rig(FIT_AND_PREEMPT)
    with raising(DefaultPreemption, "choose", about=""):
        scheduler.observe(node("a", cpu="2"), placed(pod("low", cpu="2"), "a"))
        scheduler.observe(pod("high", cpu="2", priority=10))
        scheduler.settle()

        assert (scheduler.pending_message("high") or "").startswith("internal error")
        scheduler.observe(node("b", cpu="1"), pod("good", cpu="1"))
        scheduler.settle()
        assert scheduler.bind_order() == ["good"]


def test_what_the_attempt_had_in_memory_is_freed() -> None:
    class Held:
        pass

    def fail(*_arguments: Any, **_more: Any) -> Any:
        held = Held()
        freed.append(ref(held))
        raise OverflowError

    freed: list[ref[Held]] = []
    scheduler = Rig()
    with patch.object(Evaluator, "evaluate", fail), patch.object(Rig, "check_invariants"):
        scheduler.observe(node("a"), pod("bad"))
        scheduler.settle()

    gc.collect()
    assert [held() for held in freed] == [None]


def test_the_time_of_the_attempt_is_charged_to_its_namespace() -> None:
    scheduler = Rig()
    with raising(Evaluator, "evaluate", about="name='bad'"):
        scheduler.observe(node("a"), pod("bad", namespace="tenant"))
        scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.scheduler.account_time(10**9)

    assert scheduler.scheduler.core.queue.decision_time.is_overdrawn("tenant")


def test_nothing_is_decided_by_columns_that_do_not_know_a_change() -> None:
    scheduler = Rig(FIT, node("a", cpu="4"), pod("first", cpu="1"))
    scheduler.settle()
    scheduler.confirm_binds()
    scheduler.observe(placed(pod("taken", cpu="3"), "a"), pod("second", cpu="1"), pod("third", cpu="1"))

    with raising(Columns, "_refresh_usage", about="name='a'"), pytest.raises(NotCounted, match="a cannot"):
        scheduler.settle()
    with pytest.raises(NotCounted):
        scheduler.settle()

    assert scheduler.scheduler.binds_in_flight == 0


@pytest.mark.parametrize("scope", ["placed pods", "pods"])
def test_an_error_names_the_pod_that_cannot_be_counted(scope: str) -> None:
    few = f'filter few require count({scope} where other.labels["app"] == pod.labels["app"]) < 9\n'
    labels = {"app": "a"}
    scheduler = Rig(f"policy test version 1\n{few}preemption never\n", node("a"), pod("first", labels=labels))
    scheduler.settle()
    scheduler.observe(placed(pod("bad", labels=labels), "a"), pod("second", labels=labels))

    with (
        raising(PodTotals, "keys", about="name='bad'"),
        pytest.raises(NotCounted, match="default/bad cannot"),
    ):
        scheduler.settle()


def test_a_total_that_is_half_updated_is_not_used() -> None:
    right, raised = DomainTotals.add, list[str]()

    def add_and_fail(totals: DomainTotals, *change: Any) -> None:
        right(totals, *change)
        if not raised:
            raised.append("once")
            raise OverflowError

    scheduler = Rig(LICENCES, node("a", cpu="100"), licensed("a1"))
    scheduler.settle()
    scheduler.observe(licensed("a2"), licensed("a3"))
    scheduler.settle()
    scheduler.confirm_binds()
    with patch.object(DomainTotals, "add", add_and_fail), patch.object(Rig, "check_invariants"):
        scheduler.handle(e.PodDeleted(licensed("a1").uid))
        scheduler.observe(licensed("b1"))
        scheduler.settle()
        scheduler.observe(licensed("b2"), licensed("b3"))
        scheduler.settle()

    assert raised
    assert len(scheduler.bind_order()) == 3  # two licences, of which one was free again
