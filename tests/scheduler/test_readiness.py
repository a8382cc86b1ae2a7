"""`other.ready` and `victim.ready`: a pod that becomes ready, or is no longer, changes verdicts, and wakes only those that read it."""

from dataclasses import replace

import pytest

from policysched.lang.ir.reads import expr_reads
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

WARM_UP = """\
policy test version 1
filter warm_up require count({pods} where not other.ready) < 2 says "2 pods are starting"
preemption never
"""
ROOM = """\
policy test version 1
filter few require count(pods on node where other.priority >= 0) < 2
filter node_resources_fit
"""
UNREADY_VICTIMS = """\
policy test version 1
filter node_resources_fit
preemption { victims = victim.priority < pod.priority and not victim.ready }
"""


def shown(value: Pod, on: str, *, ready: bool) -> ObservedPod:
    return placed(replace(value, ready=ready), on)


def starting_pods_hold_back_others(pods: str) -> None:
    starting = [pod(f"old-{n}") for n in range(2)]
    rig = Rig(WARM_UP.format(pods=pods), node("a"), *(shown(old, "a", ready=False) for old in starting))

    rig.observe(pod("new"))
    rig.pass_time(30)
    before = rig.placements()
    rig.observe(shown(starting[0], "a", ready=True))
    rig.pass_time(30)

    assert before == {}
    assert rig.placements() == {"new": "a"}


def test_a_pod_waits_until_others_on_its_node_are_ready() -> None:
    starting_pods_hold_back_others("pods on node")


def test_a_pod_waits_until_others_in_the_cluster_are_ready() -> None:
    starting_pods_hold_back_others("placed pods")


def test_a_pod_does_not_wait_for_itself_among_all_pods() -> None:
    """Pending pods are not ready, and it is one of them."""
    rig = Rig(WARM_UP.format(pods="pods"), node("a"), shown(pod("old"), "a", ready=False))

    rig.observe(pod("new"))
    rig.pass_time(30)
    before = rig.placements()
    rig.observe(shown(pod("old"), "a", ready=True))
    rig.pass_time(30)

    assert (before, rig.placements()) == ({}, {"new": "a"})


def readiness_wakes_nobody_else() -> None:
    old = [pod(f"old-{n}") for n in range(2)]
    rig = Rig(ROOM, node("a"), *(shown(value, "a", ready=False) for value in old))
    rig.observe(pod("new"))
    rig.pass_time(30)
    before = rig.scheduler.counters.attempts.copy()

    for ready in (True, False, True):
        rig.observe(shown(old[0], "a", ready=ready))
        rig.pass_time(30)

    assert rig.scheduler.counters.attempts == before


def test_readiness_requeues_no_pod_whose_rules_do_not_read_it() -> None:
    readiness_wakes_nobody_else()


def test_a_pod_that_is_no_longer_ready_may_become_a_victim() -> None:
    old = pod("old", cpu="4", priority=0)
    rig = Rig(UNREADY_VICTIMS, node("a", cpu="4"), shown(old, "a", ready=True))

    rig.observe(pod("urgent", cpu="4", priority=1000))
    rig.pass_time(30)
    before = rig.of(c.Evict)
    rig.observe(shown(old, "a", ready=False))
    rig.pass_time(30)

    assert before == []
    assert [victim.name for command in rig.of(c.Evict) for victim in command.victims] == ["old"]


def test_a_pod_that_becomes_ready_keeps_its_place_among_the_pods_of_its_node() -> None:
    old = [pod(f"old-{n}") for n in range(3)]
    rig = Rig(ROOM, node("a"), *(shown(value, "a", ready=False) for value in old))

    rig.observe(shown(old[0], "a", ready=True))

    on_node = rig.scheduler._core.cache.ledger.usage("a").pods.values()
    assert [(value.name, value.ready) for value in on_node] == [
        ("old-0", True),
        ("old-1", False),
        ("old-2", False),
    ]
    rig.check_invariants()


BUGS = {
    "readiness requeues nobody": (
        "policysched.lang.ir.reads._EVENTS_OF_COUNTED_PODS",
        frozenset(),
        test_a_pod_waits_until_others_on_its_node_are_ready,
    ),
    "readiness is an update like others": (
        "policysched.cluster.cache.differ_in_readiness_alone",
        lambda _before, _after: False,
        readiness_wakes_nobody_else,
    ),
    "victims are not looked for again": (
        "policysched.evaluate.plan.victims.expr_reads",
        lambda *values: replace(expr_reads(*values), requeue_events=frozenset()),
        test_a_pod_that_is_no_longer_ready_may_become_a_victim,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, planted, test = BUGS[bug]
    monkeypatch.setattr(target, planted)

    with pytest.raises(AssertionError):
        test()
