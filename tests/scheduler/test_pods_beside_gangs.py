"""Pods with quotas and claims that arrive in the pauses of a gang's attempt: they need not wait for its end."""

import pytest

from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.queue.entries import QueueState
from tests.builders import node, placed, pod
from tests.devices import claim as device_claim
from tests.devices import claiming, device_class, device_slice, gpu
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
from tests.scheduler.test_yielding_gangs import BY_PRIORITY, impossible
from tests.volumes import claim, storage_class, using, volume

KUBE_DEFAULT = "policy plain version 1\ninclude kube_default\npreemption never\n"
OF_NINE = ALONE + 'quota team by pod.namespace { "default" { cpu = 9 } others unlimited }\n'


def beside_members(
    policies: dict[str, str], *objects: ObservedPod, members: int = 8, cpu: str = "9", head_start: int = NEVER
) -> Rig:
    """In the first pause of a gang's attempt, on four nodes."""
    nodes = [node(f"n{index}", cpu=cpu, labels={"name": f"n{index}"}) for index in range(4)]
    scheduler = rig(
        *nodes, *objects, *gang(members), policies={**POLICIES, **policies}, head_start=head_start
    )
    decide_until_pause(scheduler)
    return scheduler


def paused(policy: str) -> Rig:
    return beside_members({"gangs.policy": policy}, head_start=1)


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
    scheduler = beside_members({"plain.policy": POLICIES["plain.policy"] + quota})

    scheduler.observe(plain("p"), plain("q"))

    assert bound_before_the_gang(scheduler) == ["p"]
    assert "waits for quota" in str(scheduler.pending_message("q"))


def owner_beside_a_gang() -> Rig:
    quota = 'quota team by pod.namespace { "a" { cpu = 4 borrow any } "default" { cpu = 4 borrow any } others unlimited }\n'
    own = POLICIES["plain.policy"].replace("preemption never\n", "") + quota
    borrowed = [pod(f"a{i}", namespace="a", cpu="2", scheduler="plain") for i in range(4)]
    return beside_members({"plain.policy": own}, *[placed(each, "n0") for each in borrowed])


def test_a_pod_that_may_take_back_quota_interrupts_a_gangs_attempt() -> None:
    """Before, it backed off in the pause, and again in one of the next gang: it evicted nobody while gangs came."""
    scheduler = owner_beside_a_gang()

    scheduler.observe(plain("p", cpu="3"))
    decide_until_pause(scheduler)

    assert [eviction.name for eviction in scheduler.of(c.Evict)] == ["p"]


def test_a_pod_that_may_take_back_quota_waits_for_the_attempt_after_a_lost_one() -> None:
    scheduler = owner_beside_a_gang()
    next(iter(scheduler.scheduler.core.gangs)).keeps_nodes = True

    scheduler.observe(plain("p", cpu="3"))
    decide_until_pause(scheduler)

    (entry,) = [each for each in scheduler.scheduler.core.pods.values() if each.pod.name == "p"]
    assert (entry.attempts, entry.state) == (0, QueueState.ACTIVE)
    scheduler.settle()
    assert not next(iter(scheduler.scheduler.core.gangs)).keeps_nodes


def beside_full_nodes(members: int = 8, cpu: str = "9", low_cpu: str = "5") -> Rig:
    """A pod of the policy `plain` may evict one of low priority from each node."""
    low = [placed(pod(f"low{index}", cpu=low_cpu, priority=-1), f"n{index}") for index in range(4)]
    preempting = POLICIES["plain.policy"].replace("never", "{ victims = any }")
    return beside_members({"plain.policy": preempting}, *low, members=members, cpu=cpu)


def test_a_pod_that_may_preempt_interrupts_a_gangs_attempt() -> None:
    scheduler = beside_full_nodes()

    scheduler.observe(plain("p", cpu="5"))
    decide_until_pause(scheduler)

    assert [eviction.name for eviction in scheduler.of(c.Evict)] == ["p"]
    assert not scheduler.placements()


def test_a_pod_that_may_preempt_is_attempted_at_the_end_of_the_attempt_after_a_lost_one() -> None:
    """Before, it backed off in the pause, and again in one of the next gang: it evicted nobody while gangs came."""
    scheduler = beside_full_nodes()
    next(iter(scheduler.scheduler.core.gangs)).keeps_nodes = True
    scheduler.observe(plain("p", cpu="5"))
    decide_until_pause(scheduler)
    scheduler.observe(*gang(8, name="next"))

    while not scheduler.placements():
        decide_until_pause(scheduler)

    assert [eviction.name for eviction in scheduler.of(c.Evict)] == ["p"]


def test_no_member_gets_the_room_that_a_pod_in_a_pause_makes_for_itself() -> None:
    """Nothing but the nomination changes on the node until the victim ends."""
    scheduler = beside_full_nodes(7, cpu="4", low_cpu="2")
    while len(attempts_pause(scheduler).search.fits) < 6:
        decide_until_pause(scheduler)

    scheduler.observe(pod("p", scheduler="plain", cpu="4", priority=10))
    scheduler.settle()

    [eviction] = scheduler.of(c.Evict)
    assert eviction.name == "p"
    assert eviction.node not in scheduler.placements().values()


def test_pods_behind_one_that_may_preempt_do_not_wait_for_the_end_of_the_attempt() -> None:
    scheduler = beside_full_nodes()
    next(iter(scheduler.scheduler.core.gangs)).keeps_nodes = True
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
    scheduler = beside_members({"plain.policy": KUBE_DEFAULT})
    storage = (storage_class(), volume("on-n2", node="n2"), claim())
    scheduler.handle(*[e.StorageObjectUpdated(item) for item in storage])  # type: ignore[arg-type]

    scheduler.observe(pod("p", scheduler="plain", cpu="1m", spec=using("data")))
    while not scheduler.of(c.Prebind):
        assert scheduler.scheduler.attempt_paused or scheduler.scheduler.attempt_in_progress
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert not scheduler.bind_order()
    (prebind,) = scheduler.of(c.Prebind)
    assert prebind.node == "n2"
    scheduler.settle()
    assert len(scheduler.placements()) == 8


# ── attempts that interrupt one ────────────────────────────────────────────────────────────────────────────────────


LAYERED = (
    POLICIES["plain.policy"]
    + "layer small when pod.requests.cpu < 1 {\n  filter few require node.pods < 90\n}\n"
)


def beside_a_gang(plain_policy: str, *, cpu: str = "2") -> Rig:
    scheduler = beside_members({"plain.policy": plain_policy}, cpu=cpu)
    objects = (device_class(), device_slice("n2", gpu("g")), device_claim())
    scheduler.handle(*[e.DeviceObjectUpdated(item) for item in objects])
    return scheduler


@pytest.mark.parametrize("keeps_nodes", [False, True])
@pytest.mark.parametrize("waiting", ["layers", "devices"])
def test_a_pod_that_is_not_decided_beside_members_interrupts_the_attempt(
    waiting: str, keeps_nodes: bool
) -> None:
    """Before, it waited for the end of the attempt, and later for that of one that followed a lost one."""
    scheduler = beside_a_gang(LAYERED if waiting == "layers" else KUBE_DEFAULT, cpu="9")
    attempts_pause(scheduler).gang.keeps_nodes = keeps_nodes
    while len(attempts_pause(scheduler).search.fits) < 4:
        decide_until_pause(scheduler)
    spec = claiming("c") if waiting == "devices" else {}

    scheduler.observe(pod("p", scheduler="plain", cpu="1m", spec=spec))
    while not (begun := [*scheduler.of(c.Bind), *scheduler.of(c.Prebind)]):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert [each.name for each in begun] == ["p"]


@pytest.mark.parametrize("waiting", ["layers", "devices"])
def test_a_pod_that_would_take_a_node_of_members_waits_after_a_lost_attempt(waiting: str) -> None:
    scheduler = beside_a_gang(LAYERED if waiting == "layers" else KUBE_DEFAULT, cpu="3")
    attempts_pause(scheduler).gang.keeps_nodes = True
    while len(attempts_pause(scheduler).search.fits) < 6:
        decide_until_pause(scheduler)
    spec = claiming("c") if waiting == "devices" else {}

    scheduler.observe(pod("p", scheduler="plain", cpu="2500m", spec=spec))
    scheduler.settle()

    assert len(scheduler.of(c.Bind)) == 8
    assert "p" not in scheduler.placements()


def beside_a_pod_that_takes_the_node_of_a_member(*, cpu: str) -> tuple[Rig, str]:
    scheduler = beside_a_gang(LAYERED + "filter node_affinity\n", cpu=cpu)
    while len(attempts_pause(scheduler).search.fits) < 3:
        decide_until_pause(scheduler)
    taken = attempts_pause(scheduler).search.fits[0][1].node
    scheduler.observe(pod("p", scheduler="plain", cpu=cpu, node_selector={"name": taken}))
    return scheduler, taken


def test_a_member_that_an_interruption_took_the_node_from_is_placed_anew() -> None:
    """Before, the attempt was lost, and began again after the backoff of the gang."""
    scheduler, taken = beside_a_pod_that_takes_the_node_of_a_member(cpu="3")

    scheduler.settle()

    assert scheduler.placements()["p"] == taken
    assert len(scheduler.placements()) == 9


def test_a_gang_without_room_for_a_member_that_lost_its_node_starts_once_there_is_room() -> None:
    scheduler, taken = beside_a_pod_that_takes_the_node_of_a_member(cpu="2")

    scheduler.settle()
    assert scheduler.placements() == {"p": taken}

    scheduler.observe(node("n9", cpu="2"))
    scheduler.pass_time(5)
    assert len(scheduler.placements()) == 9


def test_a_gang_that_lost_an_attempt_keeps_its_nodes_after_it_has_yielded_too() -> None:
    """Whoever lets it yield could make it lose each other attempt."""
    scheduler = beside_members(BY_PRIORITY, cpu="4")
    entry = attempts_pause(scheduler).gang
    entry.keeps_nodes = True
    scheduler.observe(*impossible("ahead"))

    while entry.state is QueueState.ATTEMPTING:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert entry.state is QueueState.ACTIVE and entry.keeps_nodes
    scheduler.settle()
    assert len(scheduler.placements()) == 8 and not entry.keeps_nodes


def in_an_interruption() -> Rig:
    """The attempt of a pod that may preempt has steps left."""
    scheduler = beside_full_nodes()
    scheduler.observe(plain("p", cpu="5"))
    for _ in range(20):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        if scheduler.scheduler.attempt_in_progress:
            return scheduler
    raise AssertionError("there was no interruption")


def test_an_event_ends_an_interrupting_attempt_and_not_the_interrupted_one() -> None:
    scheduler = in_an_interruption()

    scheduler.observe(plain("q", scheduler="other"))

    assert [eviction.name for eviction in scheduler.of(c.Evict)] == ["p"]
    assert scheduler.scheduler.attempt_paused
    scheduler.settle()
    assert len(scheduler.placements()) == 8


def test_a_process_that_may_make_no_more_attempts_requeues_an_interrupted_gang() -> None:
    scheduler = in_an_interruption()

    scheduler.commands += scheduler.scheduler.requeue_current_attempt(scheduler.now_ns)

    scheduler.check_invariants()
    assert next(iter(scheduler.scheduler.core.gangs)).state is QueueState.ACTIVE


def test_an_interrupting_attempt_that_raises_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = in_an_interruption()

    def raising(*_: object) -> None:
        raise ValueError("a fault of the decision")

    monkeypatch.setattr(DefaultPreemption, "choose", raising)
    scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert scheduler.scheduler.attempt_paused
    while scheduler.scheduler.ready(scheduler.now_ns):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    assert len(scheduler.placements()) == 8
    assert "internal error" in str(scheduler.pending_message("p"))
