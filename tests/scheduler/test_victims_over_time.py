"""Victims by age and by the share of their namespace: who may be evicted changes without an event of the preemptor."""

from datetime import UTC, datetime

import pytest

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler import commands as c
from tests.builders import node, placed, pod
from tests.scheduler.rig import START_NS, Rig

RESOURCES = "policy test version 1\nfilter node_resources_fit\n"
OLD = RESOURCES + "preemption { victims = now - victim.created > 30m }\n"
GREEDY = RESOURCES + "preemption { victims = victim.namespace.share.cpu > 50% }\n"
GANG = 'gang by pod.labels["gang"] { min = 2  timeout = 2h }\n'


def created_before_start(minutes: int) -> str:
    return datetime.fromtimestamp(START_NS // 10**9 - 60 * minutes, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def victims(rig: Rig) -> list[str]:
    return [victim.name for eviction in rig.of(c.Evict) for victim in eviction.victims]


def test_a_pod_may_be_evicted_once_it_is_old_enough() -> None:
    young = pod("young", cpu="3", created=created_before_start(10))
    rig = Rig(OLD, node("a"), placed(young, "a"), pod("urgent", cpu="3", priority=100))
    rig.settle()
    at_once = victims(rig)

    rig.pass_time(19 * 60)
    too_early = victims(rig)
    rig.pass_time(2 * 60)

    assert (at_once, too_early, victims(rig)) == ([], [], ["young"])


def test_a_gang_evicts_pods_once_they_are_old_enough() -> None:
    young = [placed(pod(f"young-{n}", cpu="3", created=created_before_start(10)), f"n{n}") for n in range(2)]
    workers = [pod(f"w{n}", cpu="3", priority=100, labels={"gang": "g"}) for n in range(2)]
    rig = Rig(OLD + GANG, node("n0"), node("n1"), *young, *workers)
    rig.settle()
    at_once = victims(rig)

    rig.pass_time(21 * 60)

    assert (at_once, sorted(victims(rig))) == ([], ["young-0", "young-1"])


def test_pods_of_a_namespace_that_grows_beyond_its_share_may_be_evicted() -> None:
    rig = Rig(GREEDY, node("a"), node("b"), placed(pod("one", namespace="greedy", cpu="3"), "a"))
    rig.observe(placed(pod("other", namespace="modest", cpu="3"), "b"))
    rig.observe(pod("urgent", cpu="3", priority=100))
    rig.settle()
    at_once = victims(rig)

    rig.observe(placed(pod("two", namespace="greedy", cpu="2"), "a"))
    rig.pass_time(30)

    assert at_once == []
    assert set(victims(rig)) <= {"one", "two"}
    assert "one" in victims(rig)


BUGS = {
    "no time is set": (
        "policysched.evaluate.plan.victims.CompiledVictims.next_change",
        lambda *_: None,
        test_a_pod_may_be_evicted_once_it_is_old_enough,
    ),
    "no time is set for a gang": (
        "policysched.evaluate.plan.victims.CompiledVictims.next_change",
        lambda *_: None,
        test_a_gang_evicts_pods_once_they_are_old_enough,
    ),
    "shares requeue nobody": (
        "policysched.evaluate.plan.plan.Plan.victim_events",
        frozenset[ClusterEvent](),
        test_pods_of_a_namespace_that_grows_beyond_its_share_may_be_evicted,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, planted, test = BUGS[bug]
    monkeypatch.setattr(target, planted)

    with pytest.raises(AssertionError):
        test()
