"""Pods with quotas and claims that arrive in the pauses of a gang's attempt: they need not wait for its end."""

import pytest

from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.queue.entries import QueueState
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import (
    ALONE,
    NEVER,
    POLICIES,
    attempts_pause,
    decide_until_pause,
    gang,
    plain,
    rig,
)
from tests.volumes import claim, storage_class, using, volume

OF_NINE = ALONE + 'quota team by pod.namespace { "default" { cpu = 9 } others unlimited }\n'


def paused(policy: str) -> Rig:
    scheduler = rig(
        *[node(f"n{index}", cpu="9") for index in range(4)],
        *gang(8),
        policies={**POLICIES, "gangs.policy": policy},
        head_start=1,
    )
    decide_until_pause(scheduler)
    return scheduler


def late(name: str, cpu: str = "1") -> Pod:
    """Behind the gang in its policy, by its name."""
    return pod(name, cpu=cpu, created="2026-01-02T00:00:00Z")


def bound_before_the_gang(scheduler: Rig) -> list[str]:
    scheduler.settle()
    order = scheduler.bind_order()
    return order[: next((index for index, name in enumerate(order) if name.startswith("g")), len(order))]


# ── quotas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_with_quotas_are_bound_between_the_pieces_of_a_gang() -> None:
    """Before, each waited for the end of the attempt."""
    scheduler = paused(ALONE + "quota space by pod.namespace { others { pods = 100 } }\n")
    for number in range(6):
        scheduler.observe(late(f"p{number}", cpu="1m"))
        decide_until_pause(scheduler)

    assert len(bound_before_the_gang(scheduler)) == 6
    assert len(scheduler.placements()) == 14


def test_pods_with_quotas_of_another_policy_are_bound_between_the_pieces_of_a_gang() -> None:
    quota = "quota space by pod.namespace { others { pods = 1 } }\n"
    scheduler = rig(
        *[node(f"n{index}", cpu="9") for index in range(4)],
        *gang(8),
        policies={**POLICIES, "plain.policy": POLICIES["plain.policy"] + quota},
    )
    decide_until_pause(scheduler)

    scheduler.observe(plain("p"), plain("q"))

    assert bound_before_the_gang(scheduler) == ["p"]
    assert "waits for quota" in str(scheduler.pending_message("q"))


def test_a_pod_that_may_take_back_quota_is_attempted_at_the_end_of_a_gangs_attempt() -> None:
    """Before, it backed off in the pause, and again in one of the next gang: it evicted nobody while gangs came."""
    quota = 'quota team by pod.namespace { "a" { cpu = 4 borrow any } "default" { cpu = 4 borrow any } others unlimited }\n'
    own = POLICIES["plain.policy"].replace("preemption never\n", "") + quota
    scheduler = rig(
        *[node(f"n{index}", cpu="9") for index in range(4)],
        *gang(8),
        policies={**POLICIES, "plain.policy": own},
    )
    borrowed = [pod(f"a{i}", namespace="a", cpu="2", scheduler="plain") for i in range(4)]
    scheduler.observe(*[placed(each, "n0") for each in borrowed])
    decide_until_pause(scheduler)

    scheduler.observe(plain("p", cpu="3"))
    decide_until_pause(scheduler)

    (entry,) = [each for each in scheduler.scheduler._core.pods.values() if each.pod.name == "p"]
    assert (entry.attempts, entry.state) == (0, QueueState.ACTIVE)


PREEMPTING = POLICIES | {"plain.policy": POLICIES["plain.policy"].replace("never", "{ victims = any }")}


def beside_full_nodes() -> Rig:
    scheduler = rig(
        *[node(f"n{index}", cpu="9") for index in range(4)],
        *[placed(pod(f"low{index}", cpu="5", priority=-1), f"n{index}") for index in range(4)],
        *gang(8),
        policies=PREEMPTING,
    )
    decide_until_pause(scheduler)
    return scheduler


def test_a_pod_that_may_preempt_is_attempted_at_the_end_of_a_gangs_attempt() -> None:
    """Before, it backed off in the pause, and again in one of the next gang: it evicted nobody while gangs came."""
    scheduler = beside_full_nodes()
    scheduler.observe(plain("p", cpu="5"))
    decide_until_pause(scheduler)
    scheduler.observe(*gang(8, name="next"))

    while not scheduler.placements():
        decide_until_pause(scheduler)

    assert [eviction.name for eviction in scheduler.of(c.Evict)] == ["p"]


def test_pods_behind_one_that_may_preempt_do_not_wait_for_the_end_of_the_attempt() -> None:
    scheduler = beside_full_nodes()
    scheduler.observe(plain("p", cpu="5"), plain("q"))

    assert bound_before_the_gang(scheduler) == ["q"]
    assert scheduler.of(c.Evict)


def in_the_last_pause() -> Rig:
    scheduler = paused(OF_NINE)
    while len(attempts_pause(scheduler).search.fits) < 7:
        decide_until_pause(scheduler)
    return scheduler


def check_quota_of_members() -> None:
    scheduler = in_the_last_pause()
    scheduler.observe(late("p", cpu="3"))

    scheduler.settle()

    assert sorted(scheduler.placements()) == [f"g{index}" for index in range(8)]
    assert "waits for quota" in str(scheduler.pending_message("p"))


def test_a_pod_gets_no_quota_of_the_members_that_have_a_node() -> None:
    check_quota_of_members()


def test_a_pod_gets_no_quota_of_the_members_if_it_is_judged_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted mistake is found."""
    monkeypatch.setattr(Pause, "_quotas_for", lambda *_: None)

    with pytest.raises(AssertionError):
        check_quota_of_members()


def test_pods_that_are_decided_in_one_pause_count_for_each_other() -> None:
    scheduler = in_the_last_pause()
    attempts_pause(scheduler).cost_left = 10
    scheduler.observe(late("x"), late("y", cpu="2"))

    scheduler.settle()

    assert sorted(scheduler.placements()) == [*[f"g{index}" for index in range(8)], "x"]


def test_a_pod_that_its_quotas_refuse_does_not_delay_those_behind_it() -> None:
    scheduler = paused(OF_NINE)
    scheduler.observe(late("p-large", cpu="64"), late("p-small"))

    assert bound_before_the_gang(scheduler) == ["p-small"]
    scheduler.pass_time(5)
    assert "waits for quota" in str(scheduler.pending_message("p-large"))


def test_members_are_judged_again_if_quota_is_used_outside_of_the_pauses() -> None:
    scheduler = paused(OF_NINE)
    scheduler.observe(late("p"))
    decide_until_pause(scheduler, 2)
    scheduler.observe(placed(pod("outside", cpu="1"), "n0"))

    scheduler.settle()

    assert list(scheduler.placements()) == ["p"]


# ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_with_a_claim_is_prebound_between_the_pieces_of_a_gang() -> None:
    """Before, it waited for the end of the attempt. Its volume is on a node, so it has only that one."""
    with_volumes = {
        **POLICIES,
        "plain.policy": "policy plain version 1\ninclude kube_default\npreemption never\n",
    }
    scheduler = rig(
        *[node(f"n{index}", cpu="9") for index in range(4)],
        *gang(8),
        policies=with_volumes,
        head_start=NEVER,
    )
    storage = (storage_class(), volume("on-n2", node="n2"), claim())
    scheduler.handle(*[e.StorageObjectUpdated(item) for item in storage])  # type: ignore[arg-type]
    decide_until_pause(scheduler)

    scheduler.observe(pod("p", scheduler="plain", cpu="1m", spec=using("data")))
    while not scheduler.of(c.Prebind):
        assert scheduler.scheduler.attempt_paused or scheduler.scheduler.attempt_in_progress
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert not scheduler.bind_order()
    (prebind,) = scheduler.of(c.Prebind)
    assert prebind.node == "n2"
    scheduler.settle()
    assert len(scheduler.placements()) == 8
