"""No pod is placed before the metrics of its policy were polled once."""

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.model.identifiers import NodeName
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler import sample_wait_reports
from policysched.scheduler.extenders.extender_server import ExtenderServer
from policysched.scheduler.extenders.queries import ExtenderQuery, ExtenderServerError
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.builders import node, pod
from tests.scheduler.rig import FIT, START_NS, Rig, bundle

METRIC = 'metric {name}: ratio {{ query = "{query}" unit = "1" join = node every = 15s stale = 90s }}\n'
LOAD = METRIC.format(name="load", query="load")
COOL = (
    "policy test version 1\n"
    + LOAD
    + """\
outage { above = 50% then = disable }
filter node_resources_fit
filter cool require load < 85% missing pass
preemption never
"""
)
TWO = COOL.replace(LOAD, LOAD + METRIC.format(name="heat", query="heat")).replace(
    "preemption", "filter mild require heat < 50% missing pass\npreemption"
)
OTHER_QUERY = COOL.replace('query = "load"', 'query = "load5"')


def samples(rig: Rig, metric: str = "load", **values: float) -> e.SamplesArrived:
    by_node = {NodeName(name): Sample(value, rig.now_ns) for name, value in values.items()}
    return e.SamplesArrived("test", metric, MetricSamples(by_node, rig.now_ns))


def started(policy: str = COOL, *, wait_s: float = 10.0, source: str | None = None) -> Rig:
    return Rig(policy, node("hot"), node("idle"), pod("web"), first_samples_s=wait_s, source=source)


def test_a_pod_waits_for_the_first_samples_and_is_placed_by_them() -> None:
    rig = started()
    rig.settle()
    before = rig.placements()

    rig.handle(samples(rig, hot=0.99, idle=0.1))
    rig.settle()

    assert before == {}
    assert rig.placements() == {"web": "idle"}


def test_a_metric_whose_poll_failed_is_not_awaited_and_its_outage_is_reported() -> None:
    rig = started()
    rig.settle()

    rig.handle(e.SamplesFailed("test", "load"))
    rig.settle()

    assert rig.placements().keys() == {"web"}
    assert [report.reason for report in rig.of(c.ReportPolicyEvent) if report.type == "Warning"] == [
        "MetricOutage"
    ]


def test_all_metrics_are_awaited() -> None:
    rig = started(TWO)

    rig.handle(samples(rig, hot=0.1, idle=0.1))
    rig.settle()
    before = rig.placements()
    rig.handle(samples(rig, "heat", hot=0.9, idle=0.1))
    rig.settle()

    assert before == {}
    assert rig.placements() == {"web": "idle"}


def test_the_wait_for_a_hanging_source_times_out_with_a_log_line() -> None:
    rig = started()

    rig.pass_time(9.9)
    before = rig.placements()
    rig.pass_time(0.2)

    late = [log for log in rig.of(c.Log) if log.level == "warning"]
    assert before == {}
    assert rig.placements().keys() == {"web"}
    assert [line.fields for line in late] == [{"policy": "test", "metrics": "load"}]


def test_the_status_of_a_pod_names_the_awaited_metrics() -> None:
    rig = started(TWO)
    rig.settle()

    reason = rig.scheduler.pending_status(rig.observed_pod(pod("web").uid).pod.uid)

    assert reason is not None
    assert (reason.state, reason.message) == (
        "active",
        "policy test is waiting for the first samples of heat, load",
    )


def test_a_pod_that_waits_for_some_seconds_is_reported_once_with_metrics_and_source() -> None:
    rig = started(TWO, source="main")

    rig.pass_time(2.9)
    before = rig.of(c.ReportPending)
    rig.pass_time(6)

    assert before == []
    (report,) = rig.of(c.ReportPending)
    assert (report.name, report.reason, report.message) == (
        "web",
        "PolicyPending",
        "0/2 nodes are available: policy test is waiting for the first samples of heat (source main), load (source main).",
    )


def test_a_pod_created_while_others_wait_is_reported_as_well() -> None:
    rig = started()
    rig.pass_time(5)

    rig.observe(pod("late"))
    rig.pass_time(1)

    assert [report.name for report in rig.of(c.ReportPending)] == ["web", "late"]


def test_a_short_wait_is_not_reported() -> None:
    rig = started()
    rig.pass_time(2)

    rig.handle(samples(rig, hot=0.1, idle=0.1))
    rig.pass_time(20)

    assert rig.of(c.ReportPending) == []
    assert rig.placements().keys() == {"web"}


def test_each_member_of_a_gang_is_reported() -> None:
    gang = 'input group: string = pod.labels["group"] optional\ngang by group { min = 2 }\n'
    rig = Rig(
        COOL.replace("filter node", gang + "filter node"),
        node("a"),
        *(pod(name, labels={"group": "both"}) for name in ("one", "two")),
        first_samples_s=10.0,
    )

    rig.pass_time(4)

    assert sorted(report.name for report in rig.of(c.ReportPending)) == ["one", "two"]


def test_reports_of_waiting_pods_are_rate_limited_and_not_repeated() -> None:
    rig = started()
    rig.observe(*(pod(f"pod-{number}") for number in range(1200)))

    reported = [sum(isinstance(command, c.ReportPending) for command in rig.pass_time(1)) for _ in range(9)]

    assert reported == [0, 0, 500, 500, 201, 0, 0, 0, 0]


def test_reporting_all_pods_at_once_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_wait_reports, "PODS_PER_REPORT_MAX", 10**6)

    with pytest.raises(AssertionError, match="1201"):
        test_reports_of_waiting_pods_are_rate_limited_and_not_repeated()


def test_a_policy_without_metrics_waits_for_nothing_while_another_does() -> None:
    rig = Rig(
        {"a.policy": COOL, "b.policy": FIT.replace("policy test", "policy plain")},
        node("a"),
        pod("web"),
        pod("other", scheduler="plain"),
        first_samples_s=10.0,
    )

    rig.settle()

    assert rig.placements() == {"other": "a"}


def test_the_previous_version_stays_active_until_a_new_metric_was_polled() -> None:
    rig = started()
    rig.handle(samples(rig, hot=0.1, idle=0.1))
    rig.settle()

    rig.apply_policies(TWO)
    rig.settle()
    wanted = set(rig.scheduler.metrics()["test"])
    rig.observe(pod("between"))
    rig.settle()
    shas = [policy.sha256 for policy in rig.scheduler.policies()]
    rig.handle(samples(rig, "heat", hot=0.9, idle=0.1))
    rig.observe(pod("after"))
    rig.settle()

    assert wanted == {"load", "heat"}
    assert "between" in rig.placements()
    assert rig.placements()["after"] == "idle"
    assert [policy.sha256 for policy in rig.scheduler.policies()] != shas


def test_a_text_whose_new_metric_never_answers_becomes_active_after_the_timeout() -> None:
    rig = started()
    rig.handle(samples(rig, hot=0.1, idle=0.1))
    rig.settle()
    rig.apply_policies(TWO)
    rig.settle()
    before = set(rig.scheduler.programs()["test"].metrics)

    rig.pass_time(10.1)

    assert before == {"load"}
    assert set(rig.scheduler.programs()["test"].metrics) == {"load", "heat"}


def test_a_newer_text_replaces_a_waiting_one() -> None:
    rig = started()
    rig.handle(samples(rig, hot=0.1, idle=0.1))
    rig.settle()
    rig.apply_policies(TWO)
    rig.settle()

    rig.apply_policies(COOL.replace("85%", "80%"))
    rig.settle()
    rig.pass_time(30)

    assert set(rig.scheduler.metrics()["test"]) == {"load"}
    assert "80%" in rig.scheduler.programs()["test"].text


def test_samples_of_a_different_query_with_the_same_name_are_not_reused() -> None:
    rig = started()
    rig.handle(samples(rig, hot=0.1, idle=0.1))
    rig.settle()

    rig.apply_policies(OTHER_QUERY)
    rig.settle()
    rig.observe(pod("after"))
    rig.settle()
    before = ("load" in rig.scheduler.samples("test"), "after" in rig.placements())
    rig.handle(samples(rig, hot=0.99, idle=0.1))
    rig.settle()

    assert before == (False, False)
    assert rig.placements()["after"] == "idle"


def test_an_edit_that_keeps_the_metric_becomes_active_at_once() -> None:
    rig = started()
    rig.handle(samples(rig, hot=0.99, idle=0.1))
    rig.settle()

    rig.apply_policies(COOL.replace("every = 15s", "every = 5s"))
    rig.observe(pod("after"))
    rig.settle()

    assert rig.placements()["after"] == "idle"


def test_extender_queries_fail_as_not_ready_while_the_first_samples_are_awaited() -> None:
    answering = ExtenderServer(first_samples_s=10.0)
    for event in (
        e.PoliciesUpdated(bundle({"main.policy": COOL}), "1"),
        e.NodeUpdated(node("a")),
        e.Synced(),
    ):
        answering.handle(event, START_NS)
    question = ExtenderQuery("test", pod("web"), (NodeName("a"),), None)

    with pytest.raises(ExtenderServerError, match="is waiting for the first samples of load") as refused:
        answering.filter(question, START_NS)
    answering.advance(START_NS + 11 * 10**9)

    assert not refused.value.ready
    assert answering.filter(question, START_NS + 11 * 10**9).passed == ("a",)


def test_a_queue_that_holds_no_pods_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SchedulingQueue.__init__
    monkeypatch.setattr(
        SchedulingQueue, "__init__", lambda self, limits, line_of, *_: plain(self, limits, line_of)
    )
    rig = started()

    rig.settle()

    assert rig.placements().keys() == {"web"}
