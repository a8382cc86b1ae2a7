"""Gangs with unequal members: the largest first, with bounded backtracking."""

from itertools import product
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policysched.evaluate import evaluator
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.gangs import backtracking, evicting_search, gang_attempt, gang_preemption
from policysched.scheduler.gangs.backtracking import BacktrackingSearch, BacktrackLimit
from policysched.scheduler.gangs.member_trial import MemberTrial
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.preemption import best_candidate_search, victim_selection
from tests.builders import node, placed, pod
from tests.devices import claim, claiming, device_class, device_slice, gpu
from tests.scheduler.calls import count_calls, nothing_in_steps
from tests.scheduler.rig import GANG, Rig

POLICY = GANG.format(more="")
MOST_FREE = POLICY + "score node_resources_fit weight 1\n"
EVICTS = POLICY + "preemption { victims = any }\n"
SEARCH_ENDED = "not all placements were tried; settings: scheduling.gang_backtracks_max"
LABELS = {"group": "g", "least": "2"}


def gang(*cpu: int, least: int | None = None, name: str = "g", **more: Any) -> list[Pod]:
    labels = {"group": name, "least": str(len(cpu) if least is None else least)}
    return [pod(f"{name}{index}", cpu=str(size), labels=labels, **more) for index, size in enumerate(cpu)]


def nodes(*cpu: int) -> list[Any]:
    return [node(f"n{index}", cpu=str(size)) for index, size in enumerate(cpu)]


def test_a_small_member_leaves_the_large_node_to_a_large_one() -> None:
    rig = Rig(MOST_FREE, *nodes(4, 2), *gang(2, 4))

    rig.settle()

    assert rig.placements() == {"g0": "n1", "g1": "n0"}


def test_members_change_their_nodes_where_largest_first_is_not_enough() -> None:
    """On nodes of 8 and 7 cpu, 5 first goes to 8, and 4+4 then fit nowhere."""
    rig = Rig(MOST_FREE, *nodes(8, 7), *gang(5, 4, 4, 2))

    rig.settle()

    assert rig.placements() == {"g0": "n1", "g1": "n0", "g2": "n0", "g3": "n1"}


def test_a_member_leaves_the_only_node_of_another_of_its_size() -> None:
    """`g0` prefers `n0`, the only node that `g1` may run on."""
    policy = MOST_FREE + "filter node_affinity\n"
    members = [*gang(2, least=2), pod("g1", cpu="2", labels=LABELS, node_selector={"n": "0"})]
    rig = Rig(policy, node("n0", cpu="3", labels={"n": "0"}), node("n1", cpu="2"), *members)

    rig.settle()

    assert rig.placements() == {"g0": "n1", "g1": "n0"}


def test_a_member_leaves_the_only_device_node_to_one_with_a_claim() -> None:
    """Another pod can become placeable by a placement that changes scores; so it must be placeable before."""
    members = [
        *gang(2, least=2),
        pod("g1", cpu="2", labels=LABELS, spec=claiming("c")),
    ]
    policy = MOST_FREE + "filter dynamic_resources\n"
    rig = Rig(policy, node("n0", cpu="3"), node("n1", cpu="2"), *members, synced=False)
    devices = device_class(), device_slice("n0", gpu("g0")), claim("c")
    rig.handle(*[e.DeviceObjectUpdated(item) for item in devices], e.Synced())

    rig.settle()

    assert {prepare.name: prepare.node for prepare in rig.of(c.Prebind)} == {"g1": "n0"}


def test_members_whose_claims_differ_by_name_alone_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[BacktrackingSearch] = []
    monkeypatch.setattr(BacktrackingSearch, "run", lambda self: searches.append(self))
    members = [pod(f"g{name}", cpu="2", labels=LABELS, spec=claiming(name)) for name in "cd"]
    rig = Rig(MOST_FREE + "filter dynamic_resources\n", *nodes(3, 2), *members, synced=False)
    devices = device_class(), device_slice("n0", gpu("g0")), claim("c"), claim("d")
    rig.handle(*[e.DeviceObjectUpdated(item) for item in devices], e.Synced())

    rig.settle()

    assert (rig.of(c.Prebind), searches) == ([], [])


def test_a_limit_of_the_backtracking_is_in_the_message() -> None:
    limits = SchedulerLimits(gang_backtracks_max=0)
    rig = Rig(MOST_FREE, *nodes(8, 7), *gang(5, 4, 4, 2), limits=limits)

    rig.settle()

    assert rig.placements() == {}
    assert SEARCH_ENDED in str(rig.pending_message("g0"))


def test_a_complete_search_without_a_placement_names_no_limit() -> None:
    rig = Rig(MOST_FREE, *nodes(4, 4), *gang(3, 4, 2))

    rig.settle()

    assert rig.placements() == {}
    assert str(rig.pending_message("g0")).startswith("gang default/g: 2 of 3 members fit now: 0/2 nodes")


def test_the_second_search_with_evictions_ends_although_it_places_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that get a node count for no other limit, and with backtracking it does not pause."""
    found = []
    for cost in (backtracking._PLACING_COST, 0):
        monkeypatch.setattr(backtracking, "_PLACING_COST", cost)
        rig = evicting_rig()
        found.append((len(rig.of(c.Evict)), SEARCH_ENDED in str(rig.pending_message("g0"))))

    assert found == [(4, False), (0, True)]


def test_a_large_member_that_is_not_needed_is_left_out() -> None:
    rig = Rig(MOST_FREE, *nodes(4, 2), *gang(9, 2, 4, least=2))

    rig.settle()

    assert rig.placements() == {"g1": "n1", "g2": "n0"}


def test_a_member_that_is_left_out_is_placed_when_capacity_is_added() -> None:
    rig = Rig(MOST_FREE, *nodes(4, 2), *gang(9, 2, 4, least=2))
    rig.settle()

    rig.observe(node("large", cpu="9"))
    rig.pass_time(30)

    assert rig.placements() == {"g0": "large", "g1": "n1", "g2": "n0"}


def test_a_domain_is_also_searched_with_backtracking() -> None:
    policy = MOST_FREE.replace("min = least", 'min = least topology = "rack"')
    rack = [node(f"n{index}", cpu=str(cpu), labels={"rack": "r"}) for index, cpu in enumerate((8, 7))]
    rig = Rig(policy, node("alone", cpu="32", labels={"rack": "full"}), *rack, *gang(5, 4, 4, 2))
    rig.observe(placed(pod("x", cpu="20", priority=100), "alone"))

    rig.settle()

    assert set(rig.placements().values()) == {"n0", "n1"}


def test_preemption_evicts_for_the_largest_member_first() -> None:
    low = {"priority": 1, "scheduler": "somebody-else"}
    rig = Rig(EVICTS, *nodes(4, 2), placed(pod("x", cpu="4", **low), "n0"))
    rig.observe(placed(pod("y", cpu="2", **low), "n1"), *gang(2, 4, priority=100))

    rig.settle()

    assert {evict.name: evict.node for evict in rig.of(c.Evict)} == {"g0": "n1", "g1": "n0"}


def evicting_rig(limits: SchedulerLimits | None = None) -> Rig:
    """Both nodes are full of pods that may be evicted. On 8 and 7 cpu, 5 first goes to 8, and 4+4 then fit nowhere."""
    low = {"priority": 1, "scheduler": "somebody-else"}
    rig = Rig(EVICTS + "score node_resources_fit weight 1\n", *nodes(8, 7), limits=limits)
    rig.observe(placed(pod("x", cpu="8", **low), "n0"), placed(pod("y", cpu="7", **low), "n1"))
    rig.observe(*gang(5, 4, 4, 2, priority=100))
    rig.settle()
    return rig


def test_preemption_also_takes_nodes_back() -> None:
    rig = evicting_rig()

    assert {evict.name: evict.node for evict in rig.of(c.Evict)} == {
        "g0": "n1",
        "g1": "n0",
        "g2": "n0",
        "g3": "n1",
    }
    assert sorted(victim.name for evict in rig.of(c.Evict) for victim in evict.victims) == ["x", "y"]


def test_a_limit_of_the_backtracking_of_preemption_is_in_the_message() -> None:
    rig = evicting_rig(SchedulerLimits(gang_backtracks_max=0))

    assert rig.of(c.Evict) == []
    assert str(rig.pending_message("g0")).endswith(f"({SEARCH_ENDED})")


def test_equal_members_are_not_tried_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[object] = []
    monkeypatch.setattr(BacktrackingSearch, "run", searches.append)
    rig = Rig(MOST_FREE, *nodes(2, 2), *gang(2, 2, 2))

    rig.settle()

    assert rig.placements() == {}
    assert searches == []


def test_quotas_hold_while_members_change_their_nodes() -> None:
    """4 cpu come first and leave no quota for another member: they are left out, and 3 and 2 are placed."""
    quota = 'quota team by pod.namespace { "default" { cpu = 5 } others unlimited }\n'
    rig = Rig(MOST_FREE + quota, *nodes(4, 2), *gang(2, 4, 3, least=2))

    rig.settle()

    assert rig.placements() == {"g0": "n1", "g2": "n0"}


def test_a_search_that_ignores_quotas_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MemberTrial,
        "evaluate",
        lambda self, pod, nodes: self._attempts.evaluate(pod, self._overlay, self._now_ns, nodes),
    )

    with pytest.raises(AssertionError):
        test_quotas_hold_while_members_change_their_nodes()


# ── what a search in vain costs ───────────────────────────────────────────────────────────────────────────────────────


def hosts(count: int) -> list[Any]:
    return [node(f"n{index:02}", cpu="16", labels={"host": f"h{index}"}) for index in range(count)]


def no_two_equal(count: int, *, least: int) -> list[Pod]:
    """None fits beside another one."""
    labels = {"group": "g", "least": str(least)}
    return [
        pod(f"g{index:02}", cpu=f"{9000 + index}m", labels=labels, priority=100) for index in range(count)
    ]


BY_HOST = EVICTS.replace("min = least", 'min = least topology = "host"')


def evaluations(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> int:
    return count_calls(monkeypatch, PodAttempts, "evaluate", rig.settle)


def test_a_gang_in_no_domain_is_not_evaluated_again_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,400 evaluations in the first search, 60 and a thousand in the second; without a pod to evict, one domain is enough."""
    rig = Rig(BY_HOST, *hosts(40), *no_two_equal(60, least=2))

    assert evaluations(monkeypatch, rig) < 2400 + 60 + 1200 + 120
    assert SEARCH_ENDED in str(rig.pending_message("g00"))


def test_preemption_in_vain_is_not_tried_in_each_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The eviction of the pod on a node makes room for one member, as if it were not there."""
    low = [placed(pod(f"x{index}", cpu="8", scheduler="other"), f"n{index:02}") for index in range(40)]
    rig = Rig(BY_HOST, *hosts(40), *low, *no_two_equal(60, least=2))

    assert evaluations(monkeypatch, rig) < 2400 + 2 * (60 + 1200) + 120
    assert rig.of(c.Evict) == []
    assert str(rig.pending_message("g00")).endswith(f"({SEARCH_ENDED})")


def test_without_a_pod_to_evict_preemption_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches before it evaluate them all."""
    rig = Rig(EVICTS, *nodes(8), *no_two_equal(200, least=2))

    assert evaluations(monkeypatch, rig) <= 2 * 200 + 1
    assert "preemption: 0/1 nodes are available" in str(rig.pending_message("g00"))


def test_evaluating_members_in_vain_has_a_limit_in_each_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them only in the first one, which pauses. The eviction of the pod makes no room for any."""
    monkeypatch.setattr(backtracking, "_BACKTRACK_COST", 10)
    monkeypatch.setattr(evicting_search, "_UNFIT_CLASSES_MAX", 30)
    low = placed(pod("x", cpu="1", scheduler="other"), "n0")
    rig = Rig(EVICTS, *nodes(8), low, *no_two_equal(200, least=2))

    assert 200 < evaluations(monkeypatch, rig) <= 200 + 1000 // 26 + 30 + 1000 // 51 + 5
    assert rig.of(c.Evict) == []
    assert str(rig.pending_message("g00")).endswith(f"({SEARCH_ENDED})")


def test_the_search_beside_first_holds_has_a_limit_for_all_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "_BACKTRACK_COST", 10)
    monkeypatch.setattr(gang_preemption, "has_first_holds", lambda *_: True)
    low = [placed(pod(f"x{index}", cpu="8", scheduler="other"), f"n{index:02}") for index in range(10)]
    rig = Rig(BY_HOST, *hosts(10), *low, *no_two_equal(60, least=2))
    searched = count_calls(monkeypatch, evicting_search.EvictingSearch, "place_fitting_members", rig.settle)

    assert searched == 1 + 1


def test_members_that_are_placed_cost_nothing_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "_BACKTRACK_COST", 1)
    monkeypatch.setattr(evicting_search, "_UNFIT_CLASSES_MAX", 3)
    low = [placed(pod(f"x{index}", cpu="8", scheduler="other"), f"n{index}") for index in range(20)]
    rig = Rig(EVICTS, *nodes(*[16] * 20), *low, *no_two_equal(20, least=20))

    rig.settle()

    assert len(rig.of(c.Evict)) == 20


def test_members_share_what_is_known_of_pods_that_may_be_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pods of a node are put in order once, and again after it changed. Before, for each member; and each failure
    was diagnosed, which nobody reads in a search with preemption."""
    low = [placed(pod(f"x{index}", cpu="8", scheduler="other"), f"n{index}") for index in range(30)]
    rig = Rig(EVICTS, *nodes(*[16] * 30), *low, *no_two_equal(30, least=30))
    orders: list[int] = []
    bounds: list[int] = []

    def settle() -> None:
        bounds.append(count_calls(monkeypatch, best_candidate_search, "disruption_lower_bound", rig.settle))

    diagnoses = count_calls(
        monkeypatch,
        evaluator,
        "diagnose",
        lambda: orders.append(count_calls(monkeypatch, victim_selection, "sorted_by_importance", settle)),
    )

    assert len(rig.of(c.Evict)) == 30
    assert orders[0] <= 30 + 30
    assert bounds[0] <= 30 + 30 * 4
    assert diagnoses == 1


def test_a_class_that_failed_is_evaluated_again_only_after_another_placement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On ten nodes ten of 100 members fit; for the other 90, of two classes, it is known."""
    rig = Rig(
        POLICY,
        *nodes(*[16] * 10),
        *gang(*[9, 10] * 50, least=50),
        limits=SchedulerLimits(gang_backtracks_max=0),
    )

    assert evaluations(monkeypatch, rig) <= 2 * 12 + 40


# ── properties ────────────────────────────────────────────────────────────────────────────────────────────────────────


def fits_somehow(members: list[int], capacities: list[int], needed: int) -> bool:
    """By trying every node, or none, for every member."""
    for choice in product([None, *range(len(capacities))], repeat=len(members)):
        used = [0] * len(capacities)
        for size, where in zip(members, choice, strict=True):
            if where is not None:
                used[where] += size
        is_within = all(amount <= capacity for amount, capacity in zip(used, capacities, strict=True))
        if is_within and sum(where is not None for where in choice) >= needed:
            return True
    return False


def check_placed_whenever_it_fits(members: list[int], capacities: list[int], needed: int) -> None:
    rig = Rig(
        MOST_FREE,
        *nodes(*capacities),
        *gang(*members, least=needed),
        limits=SchedulerLimits(gang_backtracks_max=100_000),
    )

    rig.settle()

    where = rig.placements()
    used = [0] * len(capacities)
    for name, on in where.items():
        used[int(on[1:])] += members[int(name[1:])]
    assert all(amount <= capacity for amount, capacity in zip(used, capacities, strict=True))
    assert (len(where) >= needed) == fits_somehow(members, capacities, needed), where


CASES = st.lists(st.integers(1, 6), min_size=2, max_size=5).flatmap(
    lambda members: st.tuples(
        st.just(members),
        st.lists(st.integers(1, 9), min_size=1, max_size=3),
        st.integers(1, len(members)),
    )
)


@settings(max_examples=60, deadline=None)
@given(case=CASES)
def test_a_gang_is_placed_whenever_it_fits_without_a_limit(case: tuple[list[int], list[int], int]) -> None:
    check_placed_whenever_it_fits(*case)


def _with_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every member that gives its node back has reserved something, so that the overlay is rebuilt."""
    monkeypatch.setattr(MemberTrial, "take_back", lambda *_: False)


def test_an_overlay_is_rebuilt_where_reservations_cannot_be_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_reservations(monkeypatch)

    test_a_gang_is_placed_whenever_it_fits_without_a_limit()


def test_a_rebuilt_overlay_without_the_other_members_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_reservations(monkeypatch)

    test_a_planted_bug_in_the_search_is_detected(
        BacktrackingSearch, "_rebuild_trial", lambda self: self.trial.reset(), monkeypatch
    )


@pytest.mark.parametrize(
    ("owner", "part", "planted"),
    [
        (gang_attempt, "most_demanding_first", nothing_in_steps),
        (BacktrackLimit, "take", lambda _: False),
        (BacktrackingSearch, "_hash", lambda *_: 0),
        (MemberTrial, "take_back", lambda *_: True),
        (BacktrackingSearch, "_may_leave_out", lambda _: False),
    ],
    ids=[
        "only queue order",
        "no backtracking",
        "different placements count as equal",
        "members that gave their node back still count",
        "no member is left out",
    ],
)
def test_a_planted_bug_in_the_search_is_detected(
    owner: Any, part: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, part, planted)

    @settings(max_examples=500, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(case=CASES)
    def search(case: tuple[list[int], list[int], int]) -> None:
        check_placed_whenever_it_fits(*case)

    with pytest.raises(AssertionError):
        search()
