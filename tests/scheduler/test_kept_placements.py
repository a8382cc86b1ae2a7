"""A long search with evictions ends for entries that are not decided in pauses, and goes on with what it has found."""

from collections import Counter
from dataclasses import replace

import pytest

from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs import backtracking, member_candidates
from policysched.scheduler.gangs.counted_members import CountedMembers
from policysched.scheduler.gangs.evicting_search import EvictingSearch
from policysched.scheduler.gangs.gang_parking import GangParking
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.gang_placement import MemberPlacement
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.search_progress import KeptPlacement
from tests.builders import node, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_evicting_pauses import (
    EVICTS,
    IN_A_RACK,
    SPREAD,
    decide_until_pause,
    finish,
    full_nodes,
    low,
    members,
    rig,
)
from tests.scheduler.test_gang_placement import victims


def waits(name: str = "w") -> object:
    """A gang is not decided in a pause."""
    labels = {"group": name, "least": "1"}
    return pod(name, cpu="500m", scheduler="running", namespace="others", labels=labels)


def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members for which a node is looked for."""
    names, place_member = list[str](), EvictingSearch.place_member

    def count(self, pod):  # type: ignore[no-untyped-def]
        names.append(pod.pod.name)
        return place_member(self, pod)

    monkeypatch.setattr(EvictingSearch, "place_member", count)
    return names


def kinds(scheduler: Rig) -> list[type]:
    return [type(command) for command in scheduler.commands if isinstance(command, c.Bind | c.Evict)]


@pytest.mark.parametrize(
    "policy", [None, SPREAD], ids=["nodes by themselves", "a rule depends on other nodes"]
)
def test_a_gang_of_others_is_bound_before_a_long_search_with_evictions_ends(policy: str | None) -> None:
    more = {} if policy is None else {"policy": policy}
    scheduler = rig(*full_nodes(6), node("free", cpu="2"), *members(6), **more)
    decide_until_pause(scheduler)

    scheduler.observe(waits())
    scheduler.settle()

    assert kinds(scheduler)[:1] == [c.Bind]
    scheduler.pass_time(1)
    assert len(finish(scheduler)) == 6


def test_the_search_goes_on_with_the_members_that_have_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    names = searched(monkeypatch)
    scheduler = rig(*full_nodes(6), node("free", cpu="2"), *members(6))
    decide_until_pause(scheduler, victim_count=3)
    scheduler.observe(waits())
    scheduler.settle()
    scheduler.pass_time(1)

    assert kinds(scheduler) == [c.Bind, *[c.Evict] * 6]
    assert sorted(names) == [f"g{index}" for index in range(6)]
    assert len(finish(scheduler)) == 6


def test_a_member_whose_node_changed_meanwhile_gets_another_one() -> None:
    scheduler = rig(*full_nodes(6), node("free", cpu="2"), *members(5))
    pause = decide_until_pause(scheduler, victim_count=2)
    scheduler.observe(waits())
    while not pause.gang.search_progress.kept or scheduler.scheduler.attempt_in_progress:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    taken = sorted(pause.search.victims.values())[0]
    scheduler.observe(low("late", taken, cpu="3", priority=200))
    scheduler.settle()
    scheduler.pass_time(1)

    nodes = finish(scheduler)
    assert len(nodes) == 5 and taken not in nodes.values()


def test_an_attempt_that_is_given_up_leaves_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    names = searched(monkeypatch)
    scheduler = rig(*full_nodes(6), *members(5), head_start=10**6)
    pause = decide_until_pause(scheduler, victim_count=4)
    taken = sorted(pause.search.victims.values())[0]

    scheduler.observe(low("late", taken, cpu="3", priority=200))
    scheduler.settle()
    scheduler.pass_time(5)

    assert [names.count(name) for name in ("g0", "g1", "g2", "g3")] == [2, 1, 1, 1]  # g0 lost its node
    assert len(finish(scheduler)) == 5


def test_an_entry_that_yields_to_the_gang_waits_for_a_part_of_the_search() -> None:
    """While it waits the search has no pauses."""
    scheduler = rig(*full_nodes(6), *members(6))
    core = scheduler.scheduler._core
    decide_until_pause(scheduler)
    ends, go_on_later = [], GangParking.go_on_later

    def count(self: GangParking, gang: QueuedGang, counted: CountedMembers, now_ns: int) -> None:
        ends.append(gang)
        go_on_later(self, gang, counted, now_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GangParking, "go_on_later", count)
        patch.setattr(type(core.queue), "has_active", property(lambda _: True))
        scheduler.settle()
        scheduler.pass_time(5)

    assert len(ends) >= 3
    assert len(finish(scheduler)) == 6


def test_an_attempt_that_goes_on_later_counts_for_no_member_that_joined_in_a_pause() -> None:
    scheduler = rig(*full_nodes(6), *members(6))
    gang = decide_until_pause(scheduler).gang

    scheduler.observe(pod("g6", cpu="3", labels={"group": "g", "least": "6"}, priority=100), waits())
    while gang.state is QueueState.ATTEMPTING:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert gang.search_progress.kept and not scheduler.of(c.Evict), "the search goes on later"
    assert {pod.pod.name: pod.attempts for pod in gang.pending_members.values()} == {
        f"g{index}": 0 for index in range(7)
    }


def test_each_part_of_a_search_is_at_the_expense_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is queued before pods of others that come later."""
    scheduler = rig(*full_nodes(6), *members(6))
    time, charged = scheduler.scheduler.core.queue.decision_time, Counter[str]()
    monkeypatch.setattr(time, "charge_failed_attempt", lambda name, ns: charged.update({name: ns}))
    gang = decide_until_pause(scheduler).gang
    scheduler.observe(waits())

    while gang.state is QueueState.ATTEMPTING:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.scheduler.account_time(1_000_000)

    assert gang.search_progress.kept and not scheduler.of(c.Evict), "the search goes on later"
    assert charged["default"] > 0


ROOM_OF_ONE_NODE = [
    *[node(f"n{index}", cpu="8") for index in range(3)],
    *[low(f"low{index}", f"n{index}", cpu="8") for index in range(3)],
]
RUNNING_GANG = {"scheduler": "running", "labels": {"group": "running", "least": "2"}}
ROOM_OF_A_GANG = [
    *[node(f"n{index}", cpu=cpu) for index, cpu in enumerate("4488")],
    *[low(f"r{index}", f"n{index}", **RUNNING_GANG) for index in range(2)],
    *[low(f"low{index}", f"n{index}", cpu="8", priority=50) for index in (2, 3)],
]


@pytest.mark.parametrize(
    "objects", [ROOM_OF_ONE_NODE, ROOM_OF_A_GANG], ids=["its node", "another node of its victims"]
)
def test_a_member_in_the_room_of_victims_of_one_that_left_is_placed_anew(objects: list[object]) -> None:
    """The victims are not evicted any more, so pods elsewhere would be evicted in vain (`check_evictions`)."""
    labels = {"group": "g", "least": "3"}
    gang = [pod(f"g{index}", cpu=cpu, labels=labels, priority=100) for index, cpu in enumerate("3366")]
    scheduler = rig(*objects, *gang)
    pause = decide_until_pause(scheduler)
    while len(pause.search.fits) < 2:
        pause = decide_until_pause(scheduler)
    (first, _), (_, second) = pause.search.fits
    assert second.node in pause.search.victims.values()

    scheduler.handle(e.PodDeleted(first.uid))
    scheduler.settle()
    scheduler.pass_time(5)

    assert not scheduler.scheduler.counters.internal_errors, "`check_evictions` found that a node lacks room"
    assert len(finish(scheduler)) == 3


def test_in_the_next_domain_members_that_fit_without_evictions_come_first() -> None:
    """It is searched without pauses, and nothing is kept for it."""
    scheduler = rig(
        *[node(f"n{index}", cpu="4", labels={"rack": f"r{index // 2}"}) for index in range(4)],
        *[low(f"small{index}", f"n{2 * index}", cpu="1500m", priority=20 - index) for index in range(2)],
        *[low(f"large{index}", f"n{2 * index + 1}", priority=30 - index) for index in range(2)],
        *[replace(each, requests={"cpu": cpu}) for each, cpu in zip(members(2), (3500, 2000), strict=True)],
        policy=IN_A_RACK,
        piece=5_000,
    )
    scheduler.settle()

    assert victims(scheduler).keys() == {"large1"}


@pytest.mark.parametrize("comes", [True, False])
def test_nothing_is_evicted_for_a_member_that_a_pod_on_another_node_rejects_by_now(comes: bool) -> None:
    """Its own node and the pods there are the same, so that it is not evaluated when the search goes on."""
    zones = [node(f"n{index}", cpu="4", zone=f"z{index}") for index in range(6)]
    lows = [low(f"low{index}", f"n{index}") for index in range(6)]
    other = node("other", cpu="1", zone="z0")
    scheduler = rig(
        *zones,
        *lows,
        other,
        node("free", cpu="2"),
        *members(5),
        policy=EVICTS + "filter inter_pod_affinity\n",
    )
    pause = decide_until_pause(scheduler, victim_count=2)
    assert "n0" in pause.search.victims.values()
    scheduler.observe(waits())
    while not pause.gang.search_progress.kept or scheduler.scheduler.attempt_in_progress:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    group = {"key": "group", "operator": "In", "values": ["g"]}
    term = {
        "topologyKey": "topology.kubernetes.io/zone",
        "labelSelector": {"matchExpressions": [group]},
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if comes:
        scheduler.observe(low("rejects", "other", cpu="1", spec={"affinity": affinity}, priority=200))
    scheduler.settle()
    scheduler.pass_time(5)

    evicted = victims(scheduler).keys()
    assert evicted == {f"low{index}" for index in range(int(comes), 5 + int(comes))}
    assert len(finish(scheduler)) == 5


def test_a_failed_search_forgets_what_it_has_found() -> None:
    scheduler = rig(*full_nodes(3), *members(4))
    gang = decide_until_pause(scheduler).gang
    scheduler.settle()

    assert not gang.search_progress.kept


def test_the_classes_of_a_gang_evaluate_few_pods_where_bounds_are_poor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pods of a node differ much in what they request, so that no bound tells which node is the best."""
    maxima, find = [], member_candidates.find_best_candidate

    def count(dry_run, evictable, cluster, pods_max):  # type: ignore[no-untyped-def]
        maxima.append(pods_max)
        return find(dry_run, evictable, cluster, pods_max)

    monkeypatch.setattr(member_candidates, "find_best_candidate", count)
    scheduler = rig(*full_nodes(100), *members(100), head_start=10**6)
    scheduler.settle()

    assert maxima[0] == 2_500 and maxima[-1] == 50 and sum(maxima) < 16_000


# ── the most demanding members first ───────────────────────────────────────────────────────────────────────────────────


def small_and_large(count: int) -> tuple[list[object], list[Pod]]:
    """A gang that needs as many large nodes as it has large members, which come last in its order."""
    nodes = [node(f"n{index}", cpu="48"[index % 2]) for index in range(2 * count)]
    lows = [
        low(f"low{index}", f"n{index}", cpu="48"[index % 2], priority=2 - index % 2)
        for index in range(2 * count)
    ]
    gang = [
        replace(each, requests={"cpu": each.requests["cpu"] + 4000 * (index >= count)})
        for index, each in enumerate(members(2 * count))
    ]
    return [*nodes, *lows], gang


def test_the_second_search_pauses_and_goes_on_with_the_members_that_have_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one piece it was given up after 0.8 s, and so a gang of 900 on 1,000 nodes did not start although there was room."""
    monkeypatch.setattr(backtracking, "_PLACING_COST", 0)
    names = searched(monkeypatch)
    objects, gang = small_and_large(4)
    scheduler = rig(*objects, node("free", cpu="1"), *gang)
    entry = decide_until_pause(scheduler).gang
    while entry.search_progress.scope[2:] != (True,) or len(entry.search_progress.kept) < 3:
        assert scheduler.scheduler.ready(scheduler.now_ns), "the members are not placed by demand"
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    names.clear()
    scheduler.observe(waits())
    scheduler.settle()
    scheduler.pass_time(1)

    assert kinds(scheduler) == [c.Bind, *[c.Evict] * 8]
    assert len(names) == len(set(names)) <= 6
    assert len(finish(scheduler)) == 8


# ── budgets that change ─────────────────────────────────────────────────────────────────────────────────────────────────


def budget(allowed: int, name: str) -> e.DisruptionBudgetUpdated:
    selector = LabelSelector((SelectorRequirement("app", "In", (name,)),))
    return e.DisruptionBudgetUpdated(DisruptionBudget("default", name, selector, allowed, frozenset()))


def of_an_owner(*, owned: int) -> list[object]:
    lows = [
        low(f"low{index}", f"n{index}", labels={"app": "a" if index < owned else "b"}) for index in range(6)
    ]
    return [*[node(f"n{index}", cpu="4") for index in range(6)], *lows, node("free", cpu="1")]


def until_it_goes_on_later(scheduler: Rig, victim_count: int) -> QueuedGang:
    pause = decide_until_pause(scheduler, victim_count)
    scheduler.observe(waits())
    while not pause.gang.search_progress.kept or scheduler.scheduler.attempt_in_progress:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    return pause.gang


def test_a_budget_that_changes_between_two_attempts_is_compared_with_what_was_found() -> None:
    scheduler = rig(*of_an_owner(owned=3), *members(3))
    scheduler.handle(budget(3, "a"), budget(3, "b"))
    until_it_goes_on_later(scheduler, 2)

    scheduler.handle(budget(0, "a"))
    scheduler.settle()
    scheduler.pass_time(1)

    assert victims(scheduler).keys() == {"low3", "low4", "low5"}
    assert len(finish(scheduler)) == 3


def test_a_budget_that_changes_in_the_last_pause_is_compared_with_what_was_found() -> None:
    scheduler = rig(*of_an_owner(owned=3), *members(3), head_start=10**6)
    scheduler.handle(budget(3, "a"), budget(3, "b"))
    decide_until_pause(scheduler, 2)

    scheduler.handle(budget(0, "a"))
    scheduler.settle()
    scheduler.pass_time(5)

    assert victims(scheduler).keys() == {"low3", "low4", "low5"}
    assert len(finish(scheduler)) == 3


def check_flapping_budget() -> None:
    """It allows all evictions while members are placed, and none at the end of each search."""
    scheduler = rig(*of_an_owner(owned=6), *members(6), head_start=10**6)
    scheduler.handle(budget(6, "a"))
    for _ in range(5):
        pause = decide_until_pause(scheduler, 5)
        scheduler.handle(budget(0, "a"))
        while pause.gang.state is QueueState.ATTEMPTING:
            scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        if scheduler.of(c.Evict):
            break
        scheduler.handle(budget(6, "a"))
        while not scheduler.scheduler.ready(scheduler.now_ns):
            scheduler.now_ns += SECOND_NS

    assert len(victims(scheduler)) == 6
    assert len(finish(scheduler)) == 6


def test_a_budget_that_changes_all_the_time_does_not_keep_a_gang_from_its_nodes() -> None:
    check_flapping_budget()


def test_members_that_are_placed_anew_for_each_change_of_a_budget_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    violates_more = EvictingSearch._violates_more

    def always(self: EvictingSearch, kept: KeptPlacement, placement: MemberPlacement) -> bool:
        self.gang.search_progress.placed_anew.clear()
        return violates_more(self, kept, placement)

    monkeypatch.setattr(EvictingSearch, "_violates_more", always)

    with pytest.raises(AssertionError):
        check_flapping_budget()
