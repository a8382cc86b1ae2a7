"""The log line about pending pods: once in an interval while pods wait, with the largest causes."""

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.pending_summary import PendingSummary, cause_of
from tests.builders import node, pod
from tests.scheduler.rig import Rig

POLICY = """\
policy test version 1
filter fits require node.free.cpu >= pod.requests.cpu
filter pool when (pod.labels["pool"] else "") != "" require (node.labels["pool"] else "") == (pod.labels["pool"] else "")
"""


def lines(commands: list[c.Command]) -> list[c.Log]:
    return [each for each in commands if isinstance(each, c.Log) and each.message == "pods are pending"]


def crowd(count: int, prefix: str, **more: object) -> list[object]:
    return [pod(f"{prefix}-{number}", **more) for number in range(count)]


def waiting(**limits: float) -> Rig:
    """Five pods that are too large, two of an absent pool, one of both kinds, and one that is placed."""
    objects = [
        *crowd(5, "huge", cpu="64"),
        *crowd(2, "lost", cpu="1", labels={"pool": "gpu"}),
        pod("both", cpu="64", labels={"pool": "gpu"}),
        pod("fine", cpu="1"),
    ]
    rig = Rig(POLICY, node("a", cpu="4"), node("b", cpu="2"), *objects, limits=SchedulerLimits(**limits))  # type: ignore[arg-type]
    rig.settle()
    return rig


def test_a_line_a_minute_says_how_many_pods_wait_for_which_rules() -> None:
    rig = waiting()

    logged = lines(rig.pass_time(600))

    assert len(logged) == 10
    assert logged[0].fields["pods"] == 8
    assert logged[0].fields["oldest_s"] == 60
    assert logged[0].fields["causes"].split("; ")[0].startswith("5: fits")  # type: ignore[union-attr]
    assert logged[0].fields["causes"].split("; ")[1].startswith("2: pool")  # type: ignore[union-attr]
    assert logged[0].fields["causes"].split("; ")[2].startswith("1: fits and pool")  # type: ignore[union-attr]


def test_an_interval_of_zero_turns_it_off() -> None:
    assert lines(waiting(pending_log_interval_s=0).pass_time(600)) == []


def test_pods_that_are_placed_in_time_are_not_mentioned() -> None:
    rig = Rig(POLICY, node("a", cpu="4"))
    commands = rig.pass_time(600)
    for number in range(100):
        commands += rig.observe(pod(f"short-{number}", cpu="1m"))
        commands += rig.pass_time(7)
        commands += rig.confirm_binds()

    assert lines(commands) == []


def test_a_reload_adds_no_line() -> None:
    rig = waiting()
    commands = rig.pass_time(130)
    for version in range(2, 12):
        commands += rig.apply_policies({"test": POLICY.replace("version 1", f"version {version}")})
        commands += rig.pass_time(1)

    assert len(lines(commands)) == 2


def test_the_rule_that_alone_rejects_some_node_is_the_cause() -> None:
    rig = waiting()
    core = rig.scheduler.core
    by_name = {each.pod.name: cause_of(core, each).sole_rules for each in core.pods.values()}

    assert by_name["huge-0"] == ("fits",)
    assert by_name["lost-1"] == ("pool",)
    assert by_name["both"] == ()


def test_a_planted_bug_that_logs_at_every_chance_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    began_ns = Rig(POLICY).now_ns

    def each_second(self: PendingSummary) -> int:
        return (self._checked_ns or began_ns) + 10**9

    monkeypatch.setattr(PendingSummary, "next_time_ns", each_second)

    assert len(lines(waiting().pass_time(600))) > 10
