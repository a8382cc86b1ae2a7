"""Samples: what they wake, when they go stale, and who is told when too few of them come."""

from policysched.cluster.objects import MetricSamples, NodeName, Sample
from policysched.schedule import commands as c
from policysched.schedule import events as e
from policysched.schedule.records import SampleSeen
from tests.schedule.rig import Rig
from tests.words import node, pod

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
OUTAGE = COOL.format(missing="reject", more="outage { above = 50% then = disable }")


def samples(rig: Rig, **values: float) -> e.SamplesArrived:
    found = {NodeName(name): Sample(value, rig.now_ns) for name, value in values.items()}
    return e.SamplesArrived("test", "cpu_util", MetricSamples(found, rig.now_ns))


def test_a_sample_that_arrives_wakes_a_pod_that_it_helps() -> None:
    rig = Rig(STRICT, node("a"), pod("web"))
    rig.settle()
    before = rig.words("web")

    rig.tell(samples(rig, a=0.5))
    rig.settle()

    assert before == "0/1 nodes are available: 1 node(s) had no sample of cpu_util."
    assert rig.where() == {"web": "a"}


def test_samples_of_one_policy_do_not_wake_the_pods_of_another() -> None:
    rig = Rig({"a.policy": STRICT, "b.policy": STRICT.replace("policy test", "policy other")}, node("a"))
    rig.see(pod("web", scheduler="other"))
    rig.settle()

    rig.tell(samples(rig, a=0.5))
    rig.settle()

    assert rig.where() == {}
    assert rig.scheduler.counters.attempts["unschedulable", "other"] == 1


def test_a_pod_refused_by_a_sample_is_tried_again_when_the_sample_has_gone_stale() -> None:
    rig = Rig(COOL.format(missing="pass", more=""), node("a"))
    rig.tell(samples(rig, a=0.99))
    rig.see(pod("web"))
    rig.settle()

    rig.pass_time(89)
    before = rig.where()
    rig.pass_time(3)

    assert before == {}
    assert rig.where() == {"web": "a"}


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over() -> None:
    rig = Rig(OUTAGE, node("a"), node("b"), node("c"))
    rig.tell(samples(rig, a=0.5, b=0.5, c=0.5))
    healthy = rig.of(c.ReportPolicies)

    rig.pass_time(200)
    rig.tell(samples(rig, a=0.5, b=0.5, c=0.5))
    rig.pass_time(5)

    reports = rig.of(c.ReportPolicies)
    assert healthy == []
    assert [(one.type, one.reason) for one in reports] == [
        ("Warning", "MetricOutage"),
        ("Normal", "MetricRecovered"),
    ]
    assert reports[0].message.startswith("policy `test`: 3 of 3 nodes have no fresh sample of `cpu_util`")


def test_during_an_outage_pods_are_placed_without_the_metrics_rules() -> None:
    rig = Rig(OUTAGE, node("a"), node("b"), node("c"))
    rig.tell(samples(rig, a=0.99))

    rig.see(pod("web"))
    rig.settle()

    assert rig.where().keys() == {"web"}


def test_a_decision_has_the_sample_of_its_node_and_how_old_it_was() -> None:
    rig = Rig(COOL.format(missing="pass", more=""), node("a"))
    rig.tell(samples(rig, a=0.5))
    rig.pass_time(40)

    rig.see(pod("web"))
    rig.settle()

    (decision,) = rig.scheduler.decisions
    assert decision.samples == {"cpu_util": SampleSeen(0.5, 40 * 10**9, 40 * 10**9)}


def test_a_sample_older_than_its_poll_shows_its_own_age() -> None:
    rig = Rig(COOL.format(missing="pass", more=""), node("a"))
    dated = {NodeName("a"): Sample(0.5, rig.now_ns - 30 * 10**9)}
    rig.tell(e.SamplesArrived("test", "cpu_util", MetricSamples(dated, rig.now_ns)))

    rig.see(pod("web"))
    rig.settle()

    (decision,) = rig.scheduler.decisions
    assert decision.samples == {"cpu_util": SampleSeen(0.5, 30 * 10**9, 0)}


def test_a_decision_without_a_node_or_without_samples_says_so() -> None:
    rig = Rig(STRICT, node("a"), pod("web"))
    rig.settle()
    rig.tell(samples(rig, a=0.99))
    rig.settle()

    never, hot = [one.samples["cpu_util"] for one in rig.scheduler.decisions][:2]

    assert never == SampleSeen(None, None, None)
    assert (hot.value, hot.age_ns) == (None, None)
    assert hot.polled_ago_ns is not None
