"""A change of a namespace with many pods: they are enqueued again in slices, and none is attempted before that."""

from collections.abc import Callable
from typing import Any

import pytest

from policysched.model.namespaces import Namespace
from policysched.scheduler import events as e
from policysched.scheduler.namespace_events import NamespaceEvents
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.sliced_changes import PODS_PER_SLICE
from tests.builders import node, placed, pod
from tests.scheduler.rig import FIT, Rig
from tests.scheduler.test_pauses import attempts_pause, decide_until_pause
from tests.scheduler.test_pauses import rig as pausing_rig

MANY = 6 * PODS_PER_SLICE
GANGS = """\
policy test version 1
input group: string = pod.labels["group"] optional
input least: int = namespace.labels["least"] default 1 invalid reject "least must be a number"
gang by group { min = least }
filter node_resources_fit
preemption never
"""
NEEDS_GOLD = 'filter gold require (namespace.labels["tier"] else "") == "gold"\n'


def namespace(**labels: str) -> Namespace:
    return Namespace("default", labels, {})


def waiting(policy: str, group_size: int, *objects: Namespace) -> Rig:
    """Many pods that no node takes."""
    rig = Rig(policy, *objects)
    rig.observe(*[pod(f"p{number}", labels={"group": f"g{number // group_size}"}) for number in range(MANY)])
    rig.settle()
    return rig


class Slices:
    """How many pods each call of the scheduler enqueues again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        enqueue_again = PodEnqueuer.enqueue_again

        def counting(*of: Any) -> None:
            self.counts[-1] += 1
            enqueue_again(*of)

        monkeypatch.setattr(PodEnqueuer, "enqueue_again", counting)

    def run(self, rig: Rig, call: Callable[[], object]) -> None:
        self.counts.append(0)
        call()
        while rig.scheduler.ready(rig.now_ns):
            self.counts.append(0)
            rig.commands += rig.scheduler.decide(rig.now_ns)
            rig.check_invariants()


@pytest.mark.parametrize(("policy", "group_size"), [(FIT, 1), (GANGS, 3), (GANGS, MANY)])
def test_a_change_reaches_many_pods_in_slices(
    monkeypatch: pytest.MonkeyPatch, policy: str, group_size: int
) -> None:
    rig, slices = waiting(policy, group_size, namespace(least="1")), Slices(monkeypatch)

    slices.run(rig, lambda: rig.observe(namespace(least="2")))

    assert sum(slices.counts) == MANY
    assert max(slices.counts) <= 2 * PODS_PER_SLICE  # one that is due, and one of the entry that is attempted


def check_new_minimum(group_size: int) -> None:
    rig = waiting(GANGS, group_size, namespace(least=str(group_size)))

    rig.observe(namespace(least=str(group_size + 1)), node("a", cpu="1000", pods="1000"))
    rig.pass_time(20)
    too_few = rig.placements()
    rig.observe(namespace(least=str(group_size)))
    rig.pass_time(20)

    assert too_few == {}
    assert len(rig.placements()) == MANY


@pytest.mark.parametrize("group_size", [3, 2 * PODS_PER_SLICE])
def test_no_gang_is_bound_that_the_change_has_not_reached(group_size: int) -> None:
    check_new_minimum(group_size)


def test_a_planted_bug_that_attempts_what_the_change_has_not_reached_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NamespaceEvents, "has_reached", lambda *_: True)
    with pytest.raises(AssertionError):
        check_new_minimum(3)


def test_a_pod_is_judged_by_quotas_once_all_pods_of_its_namespace_are_charged() -> None:
    """The first slice alone leaves room for it."""
    orgs = f'quota org by namespace.labels["org"] else "" {{ "a" {{ pods = {MANY} }} "b" {{ pods = {MANY} }} others {{ pods = 0 }} }}\n'
    rig = Rig(FIT + orgs, node("n", cpu="1000", pods="1000"), namespace(org="a"))
    rig.observe(*[placed(pod(f"p{number}"), "n") for number in range(MANY)], pod("late"))
    rig.settle()

    rig.observe(namespace(org="b"))
    rig.pass_time(20)
    above = rig.placements()
    rig.handle(e.PodDeleted(pod("p0").uid))
    rig.pass_time(20)

    assert above == {}
    assert rig.placements() == {"late": "n"}


def test_pods_that_go_between_two_slices_are_left_out() -> None:
    rig = waiting(FIT + NEEDS_GOLD, 1, namespace())

    rig.observe(namespace(tier="gold"))
    rig.handle(*[e.PodDeleted(pod(f"p{number}").uid) for number in range(0, MANY, 2)])
    rig.observe(node("a", cpu="1000", pods="1000"))
    rig.pass_time(20)

    assert len(rig.placements()) == MANY // 2


def test_a_gang_whose_namespace_changes_in_a_pause_of_its_attempt_is_attempted_anew() -> None:
    """The members that had a node were bound to it, whatever the filters say of the namespace that it is now."""
    labels = [{"group": "g"}, {"group": "g"}, {"group": "g", "tier": "gold"}, {"group": "g", "tier": "gold"}]
    gang = [pod(f"g{number}", cpu="1", labels=own) for number, own in enumerate(labels)]
    gold = 'filter gold require (pod.labels["tier"] else namespace.labels["tier"] else "") == "gold"\n'
    nodes = [node(f"n{number}", cpu="2") for number in range(4)]
    rig = pausing_rig(
        *nodes, namespace(tier="gold", least="4"), *gang, policies={"main.policy": GANGS + gold}
    )
    decide_until_pause(rig, 3)
    placed_first = [member.pod.name for member, _ in attempts_pause(rig).search.fits]

    rig.observe(namespace(tier="none", least="4"))
    rig.pass_time(20)

    assert placed_first[:2] == ["g0", "g1"]
    assert rig.placements() == {}
