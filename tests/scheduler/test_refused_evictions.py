"""Victims whose deletion a webhook of their namespace refuses: others are chosen meanwhile."""

from policysched.model.pod_status import ObservedPod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.eviction_backoff import WAIT_INITIAL_S
from policysched.scheduler.preemption.refused_evictions import NAMESPACE_AFTER
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_gang_placement import ANY as GANG
from tests.scheduler.test_gang_placement import member, two_full_nodes
from tests.scheduler.test_preemption import ANY, carry_out, ending, evictions, high, low


def refuse(rig: Rig) -> None:
    """The webhook of the first victim's namespace refuses its deletion."""
    evict = rig.of(c.Evict)[-1]
    rig.handle(e.EvictionRefused(evict.uid, "a webhook denied it", refused=evict.victims[0].uid))


def of_tenant(index: int) -> ObservedPod:
    return placed(pod(f"t{index}", cpu="3", priority=1, namespace="tenant", scheduler="other"), f"n{index}")


def test_others_are_chosen_after_a_refused_deletion() -> None:
    rig = Rig(ANY, node("a"), node("b"), low(), low("dearer", "b", priority=2), high())
    rig.settle()

    refuse(rig)
    rig.pass_time(WAIT_INITIAL_S / 2)
    carry_out(rig)
    rig.pass_time(2)

    assert evictions(rig) == [("high", "a", ["low"]), ("high", "b", ["dearer"])]
    assert rig.placements() == {"high": "b"}


def test_without_others_it_is_tried_again_after_waits_that_double_and_the_message_says_so() -> None:
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()
    for wait_s in (WAIT_INITIAL_S, 2 * WAIT_INITIAL_S):
        refuse(rig)
        count = len(evictions(rig))
        rig.pass_time(wait_s - 1)
        assert len(evictions(rig)) == count
        assert str(rig.pending_message("high")).endswith(
            "1 pod is passed over for a while, because deletions were refused."
        )
        rig.pass_time(12)  # and the preemptor's own backoff
        assert len(evictions(rig)) == count + 1


def test_all_pods_of_a_namespace_are_passed_over_once_it_refused_several() -> None:
    """Otherwise a namespace with a thousand pods costs others a thousand attempts."""
    names = range(NAMESPACE_AFTER + 10)
    rig = Rig(ANY, node("a"), low(priority=50), high())
    rig.observe(*[node(f"n{index}") for index in names], *map(of_tenant, names))
    rig.settle()
    for _ in range(NAMESPACE_AFTER):
        assert rig.of(c.Evict)[-1].victims[0].namespace == "tenant"
        refuse(rig)
        rig.pass_time(5)

    assert evictions(rig)[NAMESPACE_AFTER:] == [("high", "a", ["low"])]


def test_all_pods_of_a_namespace_are_passed_over_once_it_lets_a_preemptor_wait() -> None:
    """Three of them cost a preemptor three times as long."""
    rig = Rig(ANY, node("a"), low(priority=50), high())
    rig.observe(*[node(f"n{index}") for index in range(5)], *map(of_tenant, range(5)))
    rig.settle()
    assert rig.of(c.Evict)[-1].victims[0].namespace == "tenant"

    rig.pass_time(10)
    refuse(rig)
    rig.pass_time(9)

    assert evictions(rig)[1:] == [("high", "a", ["low"])]


def test_refusals_of_evictions_that_were_decided_together_are_one() -> None:
    """An outage of six seconds, in which each of ten preemptors met an error, kept them from the namespace for 160 s."""
    names = range(10)
    rig = Rig(ANY, *[node(f"n{index}") for index in names], *map(of_tenant, names))
    rig.observe(*[high(f"high-{index}", cpu="4") for index in names])
    rig.settle()
    evicts = rig.of(c.Evict)
    assert len(evicts) == len(names)

    rig.pass_time(6)
    for evict in evicts:
        rig.handle(e.EvictionRefused(evict.uid, "an error of the server", refused=evict.victims[0].uid))
    rig.pass_time(WAIT_INITIAL_S + 12)  # and the preemptors' own backoffs

    assert len(rig.of(c.Evict)) == 2 * len(names)


def test_a_namespace_that_lets_a_victim_go_is_no_longer_passed_over() -> None:
    rig = Rig(ANY, high(cpu="4"))
    for index in range(NAMESPACE_AFTER - 1):
        rig.observe(node(f"n{index}"), of_tenant(index))
        rig.pass_time(4)
        refuse(rig)
    rig.observe(node("n8"), of_tenant(8))
    rig.pass_time(4)
    carry_out(rig)
    rig.pass_time(2)
    assert rig.placements() == {"high": "n8"}

    rig.observe(node("n9"), of_tenant(9), high("second", cpu="4"))
    rig.pass_time(4)
    refuse(rig)
    rig.pass_time(4)

    assert evictions(rig)[-2:] == [("second", "n0", ["t0"]), ("second", "n1", ["t1"])]


def test_a_pod_still_waits_for_its_victim_when_the_victim_s_namespace_is_passed_over() -> None:
    """Otherwise it would evict a pod of others too, while the webhook refuses further deletions."""
    rig = Rig(ANY, node("n8"), node("b"), of_tenant(8), low("dearer", "b", priority=90), high(cpu="4"))
    rig.settle()
    rig.handle(
        e.Evicted(rig.of(c.Evict)[-1].uid, (of_tenant(8).pod.uid,)), e.PodUpdated(ending(of_tenant(8)))
    )
    rig.observe(high("second", cpu="4", priority=50))
    for index in range(NAMESPACE_AFTER):
        rig.observe(node(f"n{index}"), of_tenant(index))
        rig.pass_time(3)
        refuse(rig)
        rig.pass_time(2)

    rig.observe(node("c", cpu="100m"))
    rig.pass_time(5)

    assert evictions(rig) == [("high", "n8", ["t8"])] + [
        ("second", f"n{i}", [f"t{i}"]) for i in range(NAMESPACE_AFTER)
    ]


def test_preemptors_whose_evictions_are_refused_wake_each_other_no_earlier_than_their_backoff() -> None:
    """Each nomination that was taken back woke the others, which then evicted as fast as a webhook could deny it."""
    nodes = [f"n{number}" for number in range(20)]
    rig = Rig(ANY, *map(node, nodes), *[low(f"low-{name}", name) for name in nodes])
    rig.observe(*[high(f"high-{name}", namespace="tenant") for name in nodes])

    answered = 0
    for _ in range(300):
        rig.pass_time(0.1)
        commands, answered = rig.of(c.Evict)[answered:], len(rig.of(c.Evict))
        for evict in commands:
            rig.handle(e.EvictionRefused(evict.uid, "a webhook denied the nomination"))

    backoffs_in_30_s = 6  # now, and after 1, 2, 4, 8 and 10 s
    assert answered == backoffs_in_30_s * len(nodes)


def test_a_gang_evicts_others_after_a_refused_deletion() -> None:
    rig = two_full_nodes(GANG, node("c"), low("dearer", "c", priority=2), member(1), member(2))
    rig.settle()
    one, two = rig.of(c.Evict)

    rig.handle(e.EvictionRefused(one.uid, "a webhook denied it", refused=one.victims[0].uid))
    rig.handle(e.EvictionRefused(two.uid, "not now"))
    rig.pass_time(WAIT_INITIAL_S / 2)

    assert {victims[0] for _, _, victims in evictions(rig)[2:]} == {two.victims[0].name, "dearer"}


def test_nothing_is_remembered_of_a_pod_that_is_gone() -> None:
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()
    refuse(rig)
    refused = rig.scheduler._preemption.evictions.refused
    assert refused._pods

    rig.handle(e.PodDeleted(low().pod.uid))

    assert not refused._pods
