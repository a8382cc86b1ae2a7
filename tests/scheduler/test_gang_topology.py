"""Gangs with a topology key: all members in one domain of a label, or none is placed."""

from collections.abc import Iterable
from itertools import islice
from random import Random

import pytest

from policysched.evaluate.topology_domains import TopologyDomain
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.gangs import gang_domains
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

TOGETHER = """\
policy test version 1
input group: string = pod.labels["group"] optional
gang by group {{ min = {least}  timeout = 5m  {more} topology = "rack" }}
filter node_resources_fit
score big weight 1 higher node.allocatable.cpu normalize range(0, 100)
preemption never
"""


def racks(**cpus: str) -> list[object]:
    """Nodes by their names: `a1` stands in the rack `a`."""
    return [node(name, cpu=cpu, labels={"rack": name[0]}) for name, cpu in cpus.items()]


def members(count: int, cpu: str = "2", first: int = 0) -> list[Pod]:
    return [pod(f"m{index}", cpu=cpu, labels={"group": "g"}) for index in range(first, first + count)]


def rig_of(least: int, *things: object, more: str = "") -> Rig:
    return Rig(TOGETHER.format(least=least, more=more), *things)


def test_all_members_go_to_one_rack_although_the_best_nodes_are_in_two() -> None:
    rig = rig_of(3, *racks(a1="9", b1="8", b2="2", a2="1"))

    rig.observe(*members(3))
    rig.settle()

    assert {node[0] for node in rig.placements().values()} == {"a"}


def test_the_rack_of_the_best_node_is_tried_first_and_then_the_next() -> None:
    rig = rig_of(3, *racks(a1="5", b1="4", b2="4"))

    rig.observe(*members(3))
    rig.settle()

    assert {node[0] for node in rig.placements().values()} == {"b"}


def test_if_no_rack_fits_all_members_none_is_placed_and_the_best_rack_is_reported() -> None:
    rig = rig_of(3, *racks(a1="2", b1="2", b2="2"))
    rig.observe(*members(2), pod("m2", cpu="1", labels={"group": "g"}))

    rig.settle()

    assert rig.placements() == {}
    assert rig.pending_message("m0") == (
        "gang default/g: 2 of 3 members fit now in rack=b: 0/3 nodes are available: "
        "1 node(s) outside rack=b, 2 Insufficient cpu."
    )


def test_if_every_rack_is_too_small_the_message_names_the_one_that_takes_most() -> None:
    rig = rig_of(8, *racks(a1="3", b1="2", b2="4", c1="5"))
    rig.observe(*members(8, cpu="1"))

    rig.settle()

    assert rig.placements() == {}
    assert str(rig.pending_message("m0")).startswith(
        "gang default/g: 6 of 8 members fit now in rack=b: 0/4 nodes"
    )


def test_the_smallest_rack_as_the_closest_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "policysched.scheduler.gangs.gang_attempt.closest_domain",
        lambda *_: TopologyDomain("rack", "a"),
    )

    with pytest.raises(AssertionError):
        test_if_every_rack_is_too_small_the_message_names_the_one_that_takes_most()


def test_a_member_that_fits_nowhere_does_not_keep_the_others_from_a_rack() -> None:
    """Found by the simulation: only the racks were tried that would do for the first member."""
    rig = rig_of(2, *racks(a1="2", b1="3"))

    rig.observe(*members(1, cpu="9"), *members(2, cpu="1", first=1))
    rig.settle()

    assert rig.placements() == {"m1": "b1", "m2": "b1"}


def test_the_racks_of_later_members_are_tried_where_those_of_the_first_are_too_small() -> None:
    rig = rig_of(2, *racks(a1="4", b1="3"))

    rig.observe(*members(1, cpu="4"), *members(2, cpu="1", first=1))
    rig.settle()

    assert rig.placements() == {"m1": "b1", "m2": "b1"}


def test_nodes_without_the_label_are_no_domain() -> None:
    rig = rig_of(2, node("plain", cpu="100"))

    rig.observe(*members(2))
    rig.settle()

    assert rig.placements() == {}
    assert rig.pending_message("m0") == (
        "gang default/g: 0 of 2 members fit now: 0/1 nodes are available: "
        "1 node(s) in no rack domain with enough capacity for the gang."
    )


def test_a_new_node_label_requeues_the_gang() -> None:
    rig = rig_of(2, node("plain", cpu="100"))
    rig.observe(*members(2))
    rig.settle()

    rig.observe(node("plain", cpu="100", labels={"rack": "z"}))
    rig.pass_time(30)

    assert set(rig.placements().values()) == {"plain"}


def test_capacity_freed_in_one_rack_requeues_the_gang() -> None:
    old = placed(pod("old", cpu="2"), "b1")
    rig = rig_of(2, *racks(a1="2", b1="2", b2="2"), old)
    rig.observe(*members(2))
    rig.settle()
    assert rig.placements() == {}

    rig.handle(e.PodDeleted(old.pod.uid))
    rig.pass_time(30)

    assert {node[0] for node in rig.placements().values()} == {"b"}


def test_a_replaced_member_is_placed_with_the_others() -> None:
    rig = rig_of(2, *racks(b1="2", b2="2", b3="2"))
    rig.observe(*members(2))
    rig.settle()
    rig.confirm_binds()
    rig.observe(*racks(a1="50"))

    rig.observe(*members(1, first=2))
    rig.pass_time(5)

    assert rig.placements()["m2"][0] == "b"


def test_members_placed_after_the_timeout_share_a_domain_too() -> None:
    rig = rig_of(3, *racks(a1="2", b1="2", b2="2"), more="on_timeout = best_effort")
    rig.observe(*members(3))

    rig.pass_time(3600)

    assert len({node[0] for node in rig.placements().values()}) == 1


def broken_up(seed: int) -> list[str]:
    """Random racks, gangs of random sizes: each gang that is placed is whole and stands in one rack, and one that waits
    would not have fitted into any rack, counted by cpu alone."""
    dice, mistakes = Random(seed), []
    things = [
        node(f"{rack}{index}", cpu=str(dice.randint(1, 6)), labels={"rack": rack})
        for rack in "abcd"
        for index in range(dice.randint(1, 4))
    ]
    rig = rig_of(3, *things)
    rig.observe(*members(dice.randint(3, 7), cpu=str(dice.randint(1, 3))))
    rig.settle()
    where = rig.placements()
    if len({name[0] for name in where.values()}) > 1:
        mistakes.append(f"seed {seed}: {where}")
    if 0 < len(where) < 3:
        mistakes.append(f"seed {seed}: only {where}")
    cpu_milli = next(iter(rig.scheduler._core.pods.values())).pod.requests["cpu"] if not where else 0
    for rack in "abcd" if not where else "":
        fits = sum(
            candidate.allocatable["cpu"] // cpu_milli
            for candidate in things
            if candidate.labels["rack"] == rack
        )
        if fits >= 3:
            mistakes.append(f"seed {seed}: waits, and rack {rack} takes {fits}")
    return mistakes


def test_gangs_are_placed_whole_in_one_rack_or_fit_into_none() -> None:
    assert [gang for seed in range(60) for gang in broken_up(seed)] == []


def test_a_search_that_ignores_the_rack_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    search = GangAttempts._search_domain
    monkeypatch.setattr(
        GangAttempts, "_search_domain", lambda self, gang, _, *rest: search(self, gang, None, *rest)
    )

    assert [gang for seed in range(60) for gang in broken_up(seed)]


def test_a_search_that_tries_one_rack_only_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    first_only = gang_domains.candidate_domains

    def hasty(*args: object, **named: object) -> Iterable[TopologyDomain]:
        return islice(first_only(*args, **named), 1)  # type: ignore[arg-type]

    monkeypatch.setattr("policysched.scheduler.gangs.gang_attempt.candidate_domains", hasty)
    monkeypatch.setattr("policysched.evaluate.evaluator.pod_capacity", lambda *_: None)

    assert [gang for seed in range(60) for gang in broken_up(seed)]
