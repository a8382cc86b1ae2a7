"""Gangs with a topology key: all members in one domain of a label, or none is placed."""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from random import Random
from typing import Any

import pytest

from policysched.evaluate.topology_domains import TopologyDomain
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.gangs import gang_domains
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from policysched.scheduler.queue.gang_registry import QueuedGang
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


def rig_of(least: int, *objects: object, more: str = "") -> Rig:
    return Rig(TOGETHER.format(least=least, more=more), *objects)


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


def test_nodes_without_the_label_are_in_no_domain() -> None:
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


def test_after_a_restart_the_first_attempt_knows_the_domain_of_the_placed_members() -> None:
    """Nothing has read the label before."""
    started, left = members(2)
    rig = rig_of(2, *racks(a1="9", b1="2", b2="2"), placed(started, "b1"), left)

    rig.settle()

    assert rig.placements()["m1"] == "b2"


def test_members_placed_after_the_timeout_also_share_a_domain() -> None:
    rig = rig_of(3, *racks(a1="2", b1="2", b2="2"), more="on_timeout = best_effort")
    rig.observe(*members(3))

    rig.pass_time(3600)

    assert len({node[0] for node in rig.placements().values()}) == 1


def broken_up(seed: int) -> list[str]:
    """Random racks, gangs of random sizes: each gang that is placed is whole and stands in one rack, and one that waits
    would not have fitted into any rack, counted by cpu alone."""
    rng, mistakes = Random(seed), []
    objects = [
        node(f"{rack}{index}", cpu=str(rng.randint(1, 6)), labels={"rack": rack})
        for rack in "abcd"
        for index in range(rng.randint(1, 4))
    ]
    rig = rig_of(3, *objects)
    rig.observe(*members(rng.randint(3, 7), cpu=str(rng.randint(1, 3))))
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
            for candidate in objects
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
        found = first_only(*args, **named)  # type: ignore[arg-type]
        return islice((domain for domain in found if isinstance(domain, TopologyDomain)), 1)

    monkeypatch.setattr("policysched.scheduler.gangs.gang_attempt.candidate_domains", hasty)
    monkeypatch.setattr("policysched.evaluate.evaluator.pod_capacity", lambda *_: None)

    assert [gang for seed in range(60) for gang in broken_up(seed)]


# ── several levels ──────────────────────────────────────────────────────────────────────────────────────────────────

LEVELS = """\
policy test version 1
input group: string = pod.labels["group"] optional
gang by group {{ min = {least}  timeout = 5m  topology = [{levels}] }}
filter node_resources_fit
preemption never
"""
ZONE_THEN_RACK = '"zone" required, "rack" preferred'


def grid(cpu: str = "2", **places: str) -> list[object]:
    """Nodes by their names, each with its place: `a1="z1/r1"`."""
    return [
        node(name, cpu=cpu, labels=dict(zip(("zone", "rack"), place.split("/"), strict=True)))
        for name, place in places.items()
    ]


def ranked(count: int, cpu: str = "1") -> list[Pod]:
    """Members whose queue order is not that of their ranks."""
    return [
        pod(
            f"m{index}",
            cpu=cpu,
            labels={"group": "g"},
            created=f"2026-01-01T00:00:{(index * 7) % count:02}Z",
            annotations={"batch.kubernetes.io/job-completion-index": str(index)},
        )
        for index in range(count)
    ]


def levels_rig(least: int, levels: str, *objects: object) -> Rig:
    return Rig(LEVELS.format(least=least, levels=levels), *objects)


def test_a_preferred_rack_is_used_where_one_takes_all_members() -> None:
    nodes = grid(a="z1/r1", b="z1/r2", c="z1/r2", d="z2/r3")
    rig = levels_rig(4, ZONE_THEN_RACK, *nodes, *ranked(4))

    rig.settle()

    assert set(rig.placements().values()) == {"b", "c"}


def test_a_preferred_rack_that_is_too_small_does_not_keep_the_gang_waiting() -> None:
    nodes = grid(a="z1/r1", b="z1/r2", c="z2/r3")
    rig = levels_rig(4, ZONE_THEN_RACK, *nodes, *ranked(4))

    rig.settle()

    assert set(rig.placements().values()) == {"a", "b"}


def test_neighbours_in_rank_are_neighbours_in_topology() -> None:
    nodes = grid(a="z1/r1", b="z1/r2", c="z1/r3", d="z1/r1", e="z1/r2", f="z1/r3")
    rig = levels_rig(12, ZONE_THEN_RACK, *nodes, *ranked(12))

    rig.settle()

    racks = dict(zip("abcdef", ("r1", "r2", "r3") * 2, strict=True))
    in_order = [racks[rig.placements()[f"m{index}"]] for index in range(12)]
    assert sum(left != right for left, right in pairwise(in_order)) == 2


def test_a_recreated_member_goes_to_the_rack_of_its_neighbours() -> None:
    nodes = grid("4", a="z1/r1", b="z1/r2")
    running = [
        placed(member, "a" if index < 2 else "b") for index, member in enumerate(ranked(4)) if index != 2
    ]
    rig = levels_rig(4, ZONE_THEN_RACK, *nodes, *running, ranked(4)[2])

    rig.settle()

    assert rig.placements() == {"m2": "a"}


def test_two_required_levels_are_one_domain_and_the_message_names_both() -> None:
    """Racks are numbered in each zone."""
    nodes = grid(a="z1/r1", b="z2/r1", c="z2/r2")
    rig = levels_rig(3, '"zone" required, "rack" required', *nodes, *ranked(3))

    rig.settle()

    assert rig.placements() == {}
    message = str(rig.pending_message("m0"))
    assert message.startswith("gang default/g: 2 of 3 members fit now in zone=z")
    assert ",rack=r" in message and "2 node(s) outside zone=z" in message


def test_preferred_levels_alone_keep_no_pod_waiting() -> None:
    rig = levels_rig(4, '"rack" preferred', *grid(a="z1/r1", b="z2/r2"), *ranked(4))

    rig.settle()

    assert len(rig.placements()) == 4


def levels_hold(seed: int) -> None:
    """On random clusters: one zone; one rack if some rack takes all; never refused if a zone takes all. Members request
    the same, so how many a place takes is a sum."""
    rng = Random(seed)
    places = {f"n{index}": f"z{rng.randint(1, 2)}/r{rng.randint(1, 3)}" for index in range(rng.randint(1, 8))}
    count = rng.randint(1, 7)
    rig = levels_rig(count, ZONE_THEN_RACK, *grid("2", **places), *ranked(count))
    rig.settle()
    room_of_rack = {place: 2 * list(places.values()).count(place) for place in places.values()}
    room_of_zone = {
        zone: sum(room for place, room in room_of_rack.items() if place.startswith(f"{zone}/"))
        for zone in ("z1", "z2")
    }
    used = {places[name] for name in rig.placements().values()}
    assert bool(used) == (max(room_of_zone.values()) >= count), (places, count)
    assert len({place.split("/")[0] for place in used}) <= 1, used
    if max(room_of_rack.values()) >= count:
        assert len(used) == 1, (places, used)


def test_levels_hold_on_random_clusters() -> None:
    for seed in range(120):
        levels_hold(seed)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_search_preferred", lambda *_: _nothing()),
        ("levels", property(lambda gang: next(iter(gang._levels))[:1])),
        ("levels", property(lambda gang: next(iter(gang._levels))[1:])),
        ("required_keys", property(lambda gang: tuple(level.key for level in gang.levels))),
    ],
)
def test_ignored_levels_are_detected(name: str, bug: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GangAttempts if name == "_search_preferred" else QueuedGang, name, bug)

    with pytest.raises(AssertionError):
        test_levels_hold_on_random_clusters()


def test_members_in_queue_order_are_not_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policysched.scheduler.gangs.member_order.rank_of", lambda _: None)

    with pytest.raises(AssertionError):
        test_neighbours_in_rank_are_neighbours_in_topology()


def _nothing() -> Iterator[int]:
    yield from ()


def searched_domains(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Of a gang that fits in none of forty racks, though each has room for it: how many were searched, how many overlays are kept
    of them, and how often all racks were looked at."""
    kept: list[bool] = []
    looks: list[object] = []
    backtrack, feasible = GangAttempts._with_backtracking, gang_domains._feasible_domains

    def with_backtracking(self: GangAttempts, gang: QueuedGang, searches: Any, *more: Any) -> Any:
        kept.extend(search.overlay is not None for search in searches)
        return backtrack(self, gang, searches, *more)

    def feasible_domains(*args: Any) -> Any:
        looks.append(args)
        return feasible(*args)

    monkeypatch.setattr(GangAttempts, "_with_backtracking", with_backtracking)
    monkeypatch.setattr(gang_domains, "_feasible_domains", feasible_domains)
    nodes = [node(f"n{number}", cpu="3", labels={"rack": f"r{number}"}) for number in range(40)]
    rig = Rig(TOGETHER.format(least=17, more="") + "filter node_ports\n", *nodes)
    rig.observe(*[pod(f"m{i}", cpu="0.1", host_ports=[80], labels={"group": "g"}) for i in range(17)])
    rig.settle()
    assert rig.placements() == {}
    return len(kept), sum(kept), len(looks)


def test_of_domains_without_a_placement_no_overlay_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 of them took 350 MB on 5,000 nodes, more with more terms."""
    assert searched_domains(monkeypatch)[:2] == (40, 0)


def test_the_closest_domain_is_found_with_one_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert searched_domains(monkeypatch)[2] == 2
