"""Samples: which pods they requeue, when they go stale, and reports of outages."""

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.evaluate.evaluation import Evaluation
from policysched.model.identifiers import NodeName
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.decision_records import DecisionSample
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

COOL = """\
policy test version 1
metric cpu_util: ratio {{
  query = "cpu"
  unit = "1"
  join = node
  every = 15s
  stale = 90s
}}
{more}
filter node_resources_fit
filter cool require cpu_util < 85% missing {missing}
preemption never
"""
STRICT = COOL.format(missing="reject", more="")
WAITING = COOL.format(missing="pass", more="outage { above = 50% then = wait }")
OUTAGE = COOL.format(missing="reject", more="outage { above = 50% then = disable }")


def samples(rig: Rig, **values: float) -> e.SamplesArrived:
    by_node = {NodeName(name): Sample(value, rig.now_ns) for name, value in values.items()}
    return e.SamplesArrived("test", "cpu_util", MetricSamples(by_node, rig.now_ns))


def test_a_new_sample_requeues_a_pod_that_it_helps() -> None:
    rig = Rig(STRICT, node("a"), pod("web"))
    rig.settle()
    before = rig.pending_message("web")

    rig.handle(samples(rig, a=0.5))
    rig.settle()

    assert before == "0/1 nodes are available: 1 node(s) had no sample of cpu_util."
    assert rig.placements() == {"web": "a"}


def test_samples_of_one_policy_do_not_requeue_the_pods_of_another() -> None:
    rig = Rig({"a.policy": STRICT, "b.policy": STRICT.replace("policy test", "policy other")}, node("a"))
    rig.observe(pod("web", scheduler="other"))
    rig.settle()

    rig.handle(samples(rig, a=0.5))
    rig.settle()

    assert rig.placements() == {}
    assert rig.scheduler.counters.attempts["unschedulable", "other"] == 1


def test_a_pod_rejected_by_a_sample_is_retried_when_the_sample_is_stale() -> None:
    rig = Rig(COOL.format(missing="pass", more=""), node("a"))
    rig.handle(samples(rig, a=0.99))
    rig.observe(pod("web"))
    rig.settle()

    rig.pass_time(89)
    before = rig.placements()
    rig.pass_time(3)

    assert before == {}
    assert rig.placements() == {"web": "a"}


def test_an_outage_is_reported_once_at_its_start_and_once_at_its_end() -> None:
    rig = Rig(OUTAGE, node("a"), node("b"), node("c"))
    rig.handle(samples(rig, a=0.5, b=0.5, c=0.5))
    healthy = rig.of(c.ReportPolicyEvent)

    rig.pass_time(200)
    rig.handle(samples(rig, a=0.5, b=0.5, c=0.5))
    rig.pass_time(5)

    reports = rig.of(c.ReportPolicyEvent)
    assert healthy == []
    assert [(report.type, report.reason) for report in reports] == [
        ("Warning", "MetricOutage"),
        ("Normal", "MetricRecovered"),
    ]
    assert reports[0].message.startswith("policy `test`: 3 of 3 nodes have no fresh sample of `cpu_util`")


def test_during_an_outage_pods_are_placed_without_the_metrics_rules() -> None:
    rig = Rig(OUTAGE, node("a"), node("b"), node("c"))
    rig.handle(samples(rig, a=0.99))

    rig.observe(pod("web"))
    rig.settle()

    assert rig.placements().keys() == {"web"}


def test_a_pod_waits_during_an_outage_and_is_placed_after_it() -> None:
    rig = Rig(WAITING, node("a"), node("b"), node("c"), pod("web"))
    rig.settle()
    before = (rig.placements(), rig.pending_message("web"), rig.of(c.ReportPending)[-1].reason)

    rig.handle(samples(rig, a=0.99, b=0.5, c=0.99))
    rig.settle()

    assert before == (
        {},
        "0/3 nodes are available: waits for metric cpu_util: 3 of 3 candidate nodes have no sample.",
        "PolicyPending",
    )
    assert rig.placements() == {"web": "b"}


def test_a_pod_that_waits_in_an_outage_is_reported_once_with_the_source() -> None:
    rig = Rig(WAITING, node("a"), *(pod(f"pod-{number}") for number in range(20)), source="main")

    rig.pass_time(60)

    reports = rig.of(c.ReportPending)
    assert len({command.uid for command in reports}) == len(reports) == 20
    assert {(command.reason, command.message) for command in reports} == {
        (
            "PolicyPending",
            "0/1 nodes are available: waits for metric cpu_util: 1 of 1 candidate nodes have no sample. "
            "The policy's samples come from source main.",
        )
    }


def test_an_outage_event_names_the_source() -> None:
    rig = Rig(WAITING, node("a"), source="main")

    rig.handle(e.SamplesFailed("test", "cpu_util"))

    (event,) = rig.of(c.ReportPolicyEvent)
    assert "1 of 1 nodes have no fresh sample of `cpu_util` (source main); " in event.message


def test_a_pod_to_which_no_rule_with_the_metric_applies_does_not_wait() -> None:
    rig = Rig(WAITING.replace("filter cool require", "filter cool when pod.priority > 5 require"), node("a"))

    rig.observe(pod("web"), pod("important", priority=9))
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_a_pod_waits_again_when_the_samples_have_gone_stale() -> None:
    rig = Rig(WAITING, node("a", cpu="9"))
    rig.handle(samples(rig, a=0.5))
    rig.observe(pod("early"))
    rig.settle()

    rig.pass_time(100)
    rig.observe(pod("late"))
    rig.settle()

    assert rig.placements() == {"early": "a"}


def test_deleting_the_node_without_samples_ends_the_wait() -> None:
    rig = Rig(WAITING, node("a"), node("b"), node("c"))
    rig.handle(samples(rig, a=0.5))
    rig.observe(pod("web"))
    rig.settle()
    before = rig.placements()

    rig.handle(e.NodeDeleted(NodeName("b")))
    rig.settle()

    assert (before, rig.placements()) == ({}, {"web": "a"})


def test_no_pod_is_evicted_for_one_that_waits_for_a_metric() -> None:
    rig = Rig(
        WAITING.replace("preemption never", "preemption { victims = any }"),
        *(node(name, cpu="1") for name in "abc"),
        placed(pod("low", cpu="1"), "a"),
    )

    rig.observe(pod("high", cpu="1", priority=9))
    rig.settle()

    assert rig.of(c.Evict) == []
    assert "high" not in rig.placements()


def test_no_pod_is_evicted_until_the_awaited_metric_is_available() -> None:
    rig = Rig(
        WAITING.replace("preemption never", "preemption { victims = any }"),
        *(node(name, cpu="1") for name in "abc"),
        *(placed(pod(f"low-{name}", cpu="1"), name) for name in "abc"),
        pod("high", cpu="1", priority=9),
    )
    rig.settle()
    before = (rig.of(c.Evict), rig.pending_message("high"))

    rig.handle(samples(rig, b=0.5))
    rig.settle()

    assert before == (
        [],
        "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: "
        "3 Preemption is not helpful for scheduling.",
    )
    assert [eviction.node for eviction in rig.of(c.Evict)] == ["b"]


def test_a_gang_waits_whole_while_a_metric_is_out() -> None:
    text = WAITING.replace(
        "preemption never",
        'input group: string = pod.labels["group"] optional\ngang by group { min = 2  timeout = 5m }',
    )
    members = [pod(name, labels={"group": "g"}) for name in ("w0", "w1")]
    rig = Rig(text, node("a", cpu="9"), placed(pod("low"), "a"), *members)
    rig.settle()
    before = (rig.placements(), rig.pending_message("w0"), rig.of(c.Evict))

    rig.handle(samples(rig, a=0.5))
    rig.settle()

    assert before == (
        {},
        "gang default/g: 0 of 2 members fit now: 0/1 nodes are available: "
        "waits for metric cpu_util: 1 of 1 candidate nodes have no sample.",
        [],
    )
    assert rig.placements() == {"w0": "a", "w1": "a"}


def test_an_outage_event_says_what_happens_to_pods() -> None:
    rig = Rig(WAITING, node("a"))
    rig.handle(samples(rig, a=0.5))

    rig.pass_time(200)

    (report,) = rig.of(c.ReportPolicyEvent)
    assert report.message == (
        "policy `test`: 1 of 1 nodes have no fresh sample of `cpu_util`; "
        "pods with a rule that reads this metric stay pending until samples return"
    )


def test_placing_pods_that_should_wait_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the plan overlooks that a metric is out."""
    monkeypatch.setattr(Evaluation, "_detect_outages", lambda *_: None)

    with pytest.raises(AssertionError):
        test_a_pod_waits_again_when_the_samples_have_gone_stale()


def test_a_decision_records_the_sample_of_its_node_and_its_age() -> None:
    rig = Rig(COOL.format(missing="pass", more=""), node("a"))
    rig.handle(samples(rig, a=0.5))
    rig.pass_time(40)

    rig.observe(pod("web"))
    rig.settle()

    (decision,) = rig.scheduler.decisions
    assert decision.samples == {"cpu_util": DecisionSample(0.5, 40 * 10**9, 40 * 10**9)}


def test_a_sample_older_than_its_poll_shows_its_own_age() -> None:
    rig = Rig(COOL.format(missing="pass", more=""), node("a"))
    dated = {NodeName("a"): Sample(0.5, rig.now_ns - 30 * 10**9)}
    rig.handle(e.SamplesArrived("test", "cpu_util", MetricSamples(dated, rig.now_ns)))

    rig.observe(pod("web"))
    rig.settle()

    (decision,) = rig.scheduler.decisions
    assert decision.samples == {"cpu_util": DecisionSample(0.5, 30 * 10**9, 0)}


def test_a_decision_reports_a_missing_node_and_missing_samples() -> None:
    rig = Rig(STRICT, node("a"), pod("web"))
    rig.settle()
    rig.handle(samples(rig, a=0.99))
    rig.settle()

    never, hot = [decision.samples["cpu_util"] for decision in rig.scheduler.decisions][:2]

    assert never == DecisionSample(None, None, None)
    assert (hot.value, hot.age_ns) == (None, None)
    assert hot.polled_ago_ns is not None
