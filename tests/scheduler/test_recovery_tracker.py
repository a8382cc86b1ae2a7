"""A node that crossed a limit is rejected until it has recovered."""

from itertools import pairwise
from random import Random

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.scheduler import events as e
from policysched.scheduler.policies import recovery_tracker as hysteresis
from policysched.scheduler.policies.recovery_tracker import RecoveryTracker
from tests.builders import node, pod
from tests.scheduler.rig import START_NS, Rig

COOL = """\
policy test version 1
metric rx: bandwidth {{
  query = "rx"
  unit = "bit/s"
  join = node
  every = 15s
  stale = {stale}
}}
filter node_resources_fit
filter link {clause} missing pass
preemption never
"""
REQUIRE = "require rx < 800Mbps recover 600Mbps for 60s"
HALF_S = 5 * 10**8
NODE = NodeName("a")


def policy(clause: str = REQUIRE, stale: str = "90s") -> str:
    return COOL.format(clause=clause, stale=stale)


def program(text: str) -> Program:
    checked = check_text(text).program
    assert checked is not None
    return checked


def arrived(rig: Rig, mbps: float) -> None:
    rig.handle(e.SamplesArrived("test", "rx", samples(mbps, rig.now_ns)))
    rig.settle()


def samples(mbps: float, at_ns: int) -> MetricSamples:
    return MetricSamples({NODE: Sample(mbps * 1e6, at_ns)}, at_ns)


def test_a_node_that_crossed_the_limit_is_rejected_until_it_has_recovered() -> None:
    rig = Rig(policy(), node("a"))
    arrived(rig, 900)
    rig.observe(pod("web"))
    rig.settle()
    over = rig.pending_message("web")

    rig.pass_time(15)
    arrived(rig, 700)
    between = rig.pending_message("web")
    for _ in range(4):
        rig.pass_time(15)
        arrived(rig, 500)
    recovering = rig.placements()
    rig.pass_time(15)

    assert over == "0/1 nodes are available: 1 node(s) didn't satisfy rule link."
    assert between == "0/1 nodes are available: 1 node(s) crossed the limit of rx and had not recovered."
    assert recovering == {}
    assert rig.placements() == {"web": "a"}


def test_a_recovery_requeues_a_waiting_pod_without_a_new_sample() -> None:
    rig = Rig(policy(), node("a"))
    arrived(rig, 900)
    rig.observe(pod("web"))
    rig.pass_time(10)
    arrived(rig, 100)

    rig.pass_time(59)
    before = rig.placements()
    rig.pass_time(2)

    assert before == {}
    assert rig.placements() == {"web": "a"}


def test_a_value_that_never_crossed_the_limit_needs_no_recovery() -> None:
    rig = Rig(policy(), node("a"))
    arrived(rig, 799)

    rig.observe(pod("web"))
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_the_same_text_keeps_the_state_and_another_mark_resets_it() -> None:
    rig = Rig(policy(), node("a"))
    arrived(rig, 900)
    rig.pass_time(15)
    arrived(rig, 700)

    rig.apply_policies(policy() + "# the same rules\n")
    rig.observe(pod("web"))
    rig.pass_time(1)
    same = rig.placements()
    rig.apply_policies(policy(REQUIRE.replace("600", "650")))
    rig.pass_time(1)

    assert same == {}
    assert rig.placements() == {"web": "a"}


def test_a_restarted_scheduler_has_no_earlier_crossings() -> None:
    rig = Rig(policy(), node("a"))

    arrived(rig, 700)
    rig.observe(pod("web"))
    rig.settle()

    assert rig.placements() == {"web": "a"}


# ── against a clock that ticks ─────────────────────────────────────────────────────────────────────────────────────

STALE_S, FOR_S = 20.25, 30


def history(seed: int) -> list[tuple[int, int]]:
    """(second, Mbit/s): mostly every five seconds, now and then with a gap."""
    rng = Random(seed)
    at_s, values = 0, []
    for _ in range(60):
        at_s += rng.choice((5, 5, 5, 5, 10, 20, 21, 45))
        values.append((at_s, rng.choice((500, 550, 599, 600, 601, 700, 799, 800, 900))))
    return values


def ticked(past: list[tuple[int, int]]) -> dict[float, bool]:
    """Whether the node is held at each half second at which its sample is fresh, by looking at each."""
    held, calm_since_s, answers = False, None, {}
    for half in range(2 * past[-1][0]):
        now_s = half / 2
        known = [(at_s, mbps) for at_s, mbps in past if at_s <= now_s]
        fresh = bool(known) and now_s - known[-1][0] <= STALE_S
        if not fresh:
            calm_since_s = None
            continue
        if calm_since_s is not None and now_s - calm_since_s >= FOR_S:
            held = False  # up to now; what a sample of this moment says comes after
        mbps = known[-1][1]
        if mbps >= 800:
            held, calm_since_s = True, None
        elif held and mbps < 600:
            calm_since_s = now_s if calm_since_s is None else calm_since_s
        else:
            calm_since_s = None
        answers[now_s] = held
    return answers


def followed(past: list[tuple[int, int]]) -> dict[float, bool]:
    """The same by what comes with the samples."""
    text = policy(f"require rx < 800Mbps recover 600Mbps for {FOR_S}s", stale="20250ms")
    recoveries, answers = RecoveryTracker(), {}
    recoveries.activate(program(text))
    for (at_s, mbps), (next_s, _) in pairwise(past):
        (until,) = recoveries.apply_samples(
            "test", "rx", samples(mbps, START_NS + at_s * 10**9)
        ).recovering_until_ns.values()
        for half in range(2 * at_s, 2 * next_s):
            if half / 2 - at_s <= STALE_S:
                answers[half / 2] = START_NS + half * HALF_S < until.get(NODE, 0)
    return answers


@pytest.mark.parametrize("seed", range(30))
def test_recovery_from_samples_equals_a_ticking_clock(seed: int) -> None:
    past = history(seed)

    assert followed(past) == ticked(past)


def test_a_crossing_that_is_forgotten_between_mark_and_limit_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: whatever is within the limit counts as calm."""
    monkeypatch.setattr(hysteresis, "meets_recovery_mark", lambda watch, value: value < watch.limit)

    assert any(followed(history(seed)) != ticked(history(seed)) for seed in range(30))


def test_nodes_without_samples_are_forgotten() -> None:
    recoveries = RecoveryTracker()
    recoveries.activate(program(policy()))
    recoveries.apply_samples("test", "rx", samples(900, START_NS))

    later = MetricSamples({}, START_NS + 151 * 10**9)

    assert [*recoveries.apply_samples("test", "rx", later).recovering_until_ns.values()] == [{}]
