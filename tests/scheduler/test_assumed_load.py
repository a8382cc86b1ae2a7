"""Assumed load: a burst of pods spreads over nodes, and the next sample replaces the assumption."""

from collections import Counter
from collections.abc import Callable

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.policies.assumed_load_tracker import AssumedLoadTracker
from policysched.scheduler.policies.policy_samples import PolicySamples
from tests.builders import node, placed, pod
from tests.evaluate.test_hostile import calls_of
from tests.scheduler.rig import Rig

IDLE = """\
policy test version 1
input traffic: bandwidth = pod.annotations["net"] default {traffic} invalid default
metric rx: bandwidth {{
  query = "rx"
  unit = "bit/s"
  join = node
  every = 15s
  stale = 90s
  {assume}
}}
{more}
filter node_resources_fit
filter cool require rx < 1Gbps missing reject
score idle weight 1 lower rx normalize range(0Mbps, 1Gbps) missing worst
"""
PLAIN = IDLE.format(traffic="200Mbps", assume="", more="")
ASSUMING = IDLE.format(traffic="200Mbps", assume="assume = traffic", more="")
GANG = 'input group: string = pod.labels["group"] optional\ngang by group { min = 6 timeout = 5m on_timeout = requeue }'


def samples(rig: Rig, *, idle: float = 0.0, busy: float = 5e8, policy: str = "test") -> e.SamplesArrived:
    values = {NodeName(name): Sample(value, rig.now_ns) for name, value in (("idle", idle), ("busy", busy))}
    return e.SamplesArrived(policy, "rx", MetricSamples(values, rig.now_ns))


def sampled(text: str | dict[str, str], *observed: object) -> Rig:
    """`idle` receives nothing and `busy` 500 Mbps."""
    rig = Rig(text, node("idle"), node("busy"), *observed)
    rig.handle(samples(rig))
    rig.pass_time(1)
    return rig


def burst(count: int = 6, **more: object) -> list[Pod]:
    return [pod(f"web-{index}", **more) for index in range(count)]


def assumed(rig: Rig, policy: str = "test") -> dict[str, float]:
    return dict(rig.scheduler._core.samples.by_policy[policy]["rx"].assumed)


def spread(rig: Rig) -> dict[str, int]:
    return dict(Counter(rig.placements().values()))


def test_without_assume_a_burst_is_placed_on_the_one_idle_node() -> None:
    rig = sampled(PLAIN)

    rig.observe(*burst())
    rig.settle()

    assert spread(rig) == {"idle": 6}


def a_burst_spreads() -> None:
    rig = sampled(ASSUMING)

    rig.observe(*burst())
    rig.settle()

    assert spread(rig) == {"idle": 4, "busy": 2}
    assert assumed(rig) == {"idle": 8e8, "busy": 4e8}


def test_pods_that_become_stale_together_are_dropped_in_linear_time() -> None:
    """A tenant can put thousands of pods with `nodeName` on a node that nobody samples."""
    rig = sampled(ASSUMING, node("dark"))
    rig.observe(*[placed(pod(f"dark-{number}"), "dark") for number in range(400)])
    before = assumed(rig)
    rig.pass_time(100)

    calls = calls_of(lambda: rig.observe(placed(pod("late"), "idle")))

    assert before == {"dark": 400 * 2e8}
    assert assumed(rig) == {"idle": 2e8}
    assert calls < 20_000


def test_with_assume_the_burst_spreads() -> None:
    a_burst_spreads()


def test_a_gang_also_spreads() -> None:
    rig = sampled(IDLE.format(traffic="200Mbps", assume="assume = traffic", more=GANG))

    rig.observe(*burst(labels={"group": "ring"}))
    rig.settle()

    assert spread(rig) == {"idle": 4, "busy": 2}


def a_newer_sample_is_believed() -> None:
    rig = sampled(ASSUMING)
    rig.observe(*burst(4))
    rig.settle()
    rig.confirm_binds()

    rig.pass_time(15)
    rig.handle(samples(rig, idle=1e7, busy=5e8))
    rig.observe(pod("later"))
    rig.settle()

    assert rig.placements()["later"] == "idle"
    assert assumed(rig) == {"idle": 2e8}


def test_a_sample_newer_than_the_binds_is_used_unchanged() -> None:
    a_newer_sample_is_believed()


def test_a_pod_bound_after_a_sample_was_taken_stays_assumed() -> None:
    rig = sampled(ASSUMING)
    rig.observe(pod("early"))
    rig.settle()
    late_news = samples(rig)
    rig.pass_time(5)
    rig.observe(pod("late"))
    rig.settle()

    rig.handle(late_news)

    assert rig.placements() == {"early": "idle", "late": "idle"}
    assert assumed(rig) == {"idle": 4e8}  # both came when it was true or later


def test_nodes_without_a_sample_keep_their_assumed_load() -> None:
    rig = sampled(ASSUMING)
    rig.observe(pod("web"))
    rig.settle()

    rig.pass_time(15)
    rig.handle(
        e.SamplesArrived("test", "rx", MetricSamples({NodeName("busy"): Sample(0.0, rig.now_ns)}, rig.now_ns))
    )

    assert assumed(rig) == {"idle": 2e8}


def a_withdrawn_pod_is_taken_back() -> None:
    rig = sampled(ASSUMING)
    rig.observe(pod("web"), pod("api"))
    rig.settle()
    first, second = rig.in_flight_binds()

    rig.handle(e.BindRefused(first.uid, "a webhook says no"))
    after_refusal = assumed(rig)
    rig.handle(e.BindConfirmed(second.uid, second.node), e.PodDeleted(second.uid))

    assert after_refusal == {"idle": 2e8}
    assert assumed(rig) == {}


def test_a_pod_whose_bind_fails_or_that_is_deleted_no_longer_counts() -> None:
    a_withdrawn_pod_is_taken_back()


def pods_of_others_count() -> None:
    rig = sampled(ASSUMING)

    rig.observe(*[placed(pod(f"other-{index}", scheduler="else"), "idle") for index in range(3)])
    rig.observe(pod("web"))
    rig.settle()

    assert assumed(rig) == {"idle": 6e8, "busy": 2e8}
    assert rig.placements() == {"web": "busy"}


def test_a_pod_placed_by_another_scheduler_counts_as_well() -> None:
    pods_of_others_count()


def test_every_policy_counts_by_its_own_assume_clause() -> None:
    other = ASSUMING.replace("policy test", "policy other").replace("assume = traffic", "assume = 7Mbps")
    rig = sampled({"a.policy": ASSUMING, "b.policy": other})
    rig.handle(samples(rig, policy="other"))

    rig.observe(pod("web"))
    rig.settle()

    assert assumed(rig) == {"idle": 2e8}
    assert assumed(rig, "other") == {"idle": 7e6}


def test_pods_placed_before_the_start_are_not_assumed_again() -> None:
    rig = sampled(ASSUMING, placed(pod("old"), "idle"))

    rig.observe(placed(pod("old", labels={"changed": "since"}), "idle"))

    assert assumed(rig) == {}


def test_a_new_version_counts_the_same_pods_by_its_own_assume_clause() -> None:
    rig = sampled(ASSUMING)
    rig.observe(pod("web"), pod("heavy", annotations={"net": "300Mbps"}))
    rig.settle()
    before = assumed(rig)

    rig.apply_policies(ASSUMING.replace("assume = traffic", "assume = 2 * traffic"))
    rig.settle()
    doubled = assumed(rig)
    rig.apply_policies(PLAIN)
    rig.settle()

    assert before == {"idle": 5e8}
    assert doubled == {"idle": 1e9}
    assert assumed(rig) == {}


def test_without_samples_assumed_load_expires_with_the_stale_time() -> None:
    rig = sampled(ASSUMING)
    rig.observe(*burst(3))
    rig.settle()
    rig.confirm_binds()

    rig.pass_time(91)
    rig.observe(placed(pod("news", scheduler="else"), "busy"))

    assert assumed(rig) == {"busy": 2e8}


def test_assumed_load_can_reject_a_node() -> None:
    rig = sampled(IDLE.format(traffic="900Mbps", assume="assume = traffic", more=""))

    rig.observe(*burst(4))
    rig.settle()

    assert spread(rig) == {"idle": 2, "busy": 1}
    assert len(rig.of(c.ReportPending)) == 1


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────

BUGS: dict[str, tuple[type, str, Callable[[], None]]] = {
    "what lands is not counted": (AssumedLoadTracker, "pod_placed", a_burst_spreads),
    "what goes is not taken back": (AssumedLoadTracker, "pod_removed", a_withdrawn_pod_is_taken_back),
    "what others place is overlooked": (PolicySamples, "update_assumed_load", pods_of_others_count),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, example = BUGS[bug]

    monkeypatch.setattr(owner, name, lambda *_: None)

    with pytest.raises(AssertionError):
        example()


def test_a_sample_that_clears_no_assumed_load_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "policysched.scheduler.policies.assumed_load_tracker._MetricLoad.drop_sampled", lambda *_: None
    )

    with pytest.raises(AssertionError):
        a_newer_sample_is_believed()
