"""Preemption for gangs that are placed whole: for all needed members, or for none."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from policysched.cluster.disruption_budgets import BudgetsAfterEvictions
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs import evicting_search
from policysched.scheduler.gangs.backtracking import BacktrackLimit
from policysched.scheduler.preemption import eviction_tracker
from policysched.scheduler.preemption import nominations as nominated
from policysched.scheduler.preemption.best_candidate_search import BestFirstSearch
from policysched.scheduler.preemption.gang_placement import GangPlacement, MemberPlacement
from policysched.scheduler.preemption.victim_selection import PreemptionInputs
from policysched.scheduler.steps import Steps
from tests.builders import node, placed, pod
from tests.scheduler.rig import GANG, START_NS, Rig

ANY = GANG.format(more="") + "preemption { victims = any }\n"
KEEP_TOGETHER = GANG.format(more=' topology = "rack"') + "preemption { victims = any }\n"


def member(number: int, *, least: int = 2, group: str = "g", **more: object) -> Pod:
    words = {"cpu": "3", "priority": 100, "labels": {"group": group, "least": str(least)}, **more}
    return pod(f"{group}{number}", **words)


def low(name: str, on: str, **more: object) -> ObservedPod:
    return placed(pod(name, **{"cpu": "3", "priority": 1, "scheduler": "somebody-else", **more}), on)


def victims(rig: Rig) -> dict[str, str]:
    """Everybody who was told to go, and for whom."""
    return {victim.name: evict.name for evict in rig.of(c.Evict) for victim in evict.victims}


def nominations(rig: Rig) -> dict[str, str]:
    nominated_pods = rig.scheduler._core.cache.nominated.values()
    return {nominated.pod.name: str(nominated.nominated_node) for nominated in nominated_pods}


def answer(rig: Rig, evict: c.Evict) -> None:
    rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))


def carry_out(rig: Rig) -> None:
    """Every eviction so far is answered, and then the watch shows the victims gone."""
    for evict in rig.of(c.Evict):
        answer(rig, evict)
    for evict in rig.of(c.Evict):
        rig.handle(
            *[
                e.PodDeleted(victim.uid)
                for victim in evict.victims
                if victim.uid in rig.scheduler._core.cache.pods
            ]
        )


def two_full_nodes(policy: str = ANY, *objects: ObservedPod | Pod) -> Rig:
    return Rig(policy, node("a"), node("b"), low("x", "a"), low("y", "b"), *objects)


def test_a_whole_gang_preempts_and_is_placed_once_its_victims_are_gone() -> None:
    rig = two_full_nodes(ANY, member(1), member(2))

    rig.settle()
    reported, kept = victims(rig), nominations(rig)
    carry_out(rig)
    rig.pass_time(3)

    assert reported.keys() == {"x", "y"}
    assert kept.keys() == {"g1", "g2"}
    assert rig.placements() == kept


def test_no_pod_is_evicted_if_that_would_not_fit_the_gang() -> None:
    rig = two_full_nodes(ANY, *(member(number, least=3) for number in (1, 2, 3)))

    rig.settle()

    assert victims(rig) == {}
    assert nominations(rig) == {}
    assert rig.pending_message("g1") == (
        "gang default/g: 0 of 3 members fit now: 0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are "
        "available: 2 No preemption victims found for incoming pod."
    )


def test_members_that_fit_stay_nominated_while_others_wait_for_victims() -> None:
    rig = Rig(ANY, node("a"), node("b"), low("x", "a"), member(1), member(2))

    rig.settle()
    rig.observe(pod("stranger", cpu="3", priority=50))
    rig.settle()
    carry_out(rig)
    rig.pass_time(3)

    assert victims(rig).keys() == {"x"}
    assert rig.placements().keys() == {"g1", "g2"}


def test_one_victim_can_free_capacity_for_two_members() -> None:
    rig = Rig(ANY, node("a"), low("x", "a", cpu="4"), member(1, cpu="2"), member(2, cpu="2"))

    rig.settle()

    assert victims(rig) == {"x": "g1"}
    assert nominations(rig) == {"g1": "a", "g2": "a"}


def test_members_beyond_the_minimum_evict_no_pods() -> None:
    rig = Rig(ANY, node("a"), node("b"), node("c"), *(low(name, on) for name, on in ("xa", "yb", "zc")))
    rig.observe(*(member(number) for number in (1, 2, 3)))

    rig.settle()

    assert len(victims(rig)) == 2
    assert len(nominations(rig)) == 2


def test_a_replaced_member_preempts_for_itself_alone() -> None:
    rig = Rig(ANY, node("a"), node("b"), placed(member(1), "a"), low("y", "b"), member(2))

    rig.settle()
    carry_out(rig)
    rig.pass_time(3)

    assert victims(rig) == {"y": "g2"}
    assert rig.placements() == {"g2": "b"}


def test_a_gang_evicts_none_of_its_own_members() -> None:
    mate = member(1, least=2, priority=1)
    rig = Rig(ANY, node("a"), placed(mate, "a"), member(2))

    rig.settle()

    assert victims(rig) == {}


def test_a_gang_with_terminating_victims_evicts_no_further_pods() -> None:
    rig = two_full_nodes(ANY, member(1), member(2))
    rig.observe(node("c"), low("z", "c"))

    rig.settle()
    first, kept = victims(rig), nominations(rig)
    for evict in rig.of(c.Evict):
        answer(rig, evict)
    gone, slow = (victim for evict in rig.of(c.Evict) for victim in evict.victims)
    rig.handle(e.PodDeleted(gone.uid))
    rig.observe(replace(rig.observed_pod(slow.uid), deleting=True, preempted=True))
    rig.pass_time(30)

    assert victims(rig) == first
    assert nominations(rig) == kept
    assert rig.placements() == {}
    assert str(rig.pending_message("g1")).endswith(
        "preemption: not eligible due to a terminating pod on the nominated node."
    )


def test_a_refused_eviction_clears_the_nominations_of_all_members() -> None:
    rig = two_full_nodes(ANY, member(1), member(2))
    rig.settle()
    first, other = rig.of(c.Evict)

    rig.handle(e.EvictionRefused(first.uid, "no answer", forbidden=False, victims=()))

    assert nominations(rig) == {}
    assert {clear.name for clear in rig.of(c.ClearNomination)} == {"g1", "g2"}
    answer(rig, other)
    rig.pass_time(60)
    assert rig.scheduler.check() == []


def test_a_gang_with_a_refused_eviction_is_not_attempted_before_its_backoff_is_over() -> None:
    rig = two_full_nodes(ANY, member(1), member(2))
    rig.settle()
    first, other = rig.of(c.Evict)

    rig.handle(e.EvictionRefused(first.uid, "not found", forbidden=False, victims=()))
    rig.handle(e.EvictionRefused(other.uid, "not found", forbidden=False, victims=()))
    rig.settle()

    assert len(rig.of(c.Evict)) == 2
    rig.pass_time(60)
    assert len(rig.of(c.Evict)) == 4


def test_a_gang_below_its_minimum_loses_its_nominations() -> None:
    rig = two_full_nodes(ANY, member(1), member(2))
    rig.settle()

    rig.handle(e.PodDeleted(member(2).uid))
    rig.settle()

    assert nominations(rig) == {}


def test_a_gang_that_fails_during_its_evictions_is_not_attempted_after_them() -> None:
    failing = GANG.format(more=" timeout = 20s on_timeout = fail") + "preemption { victims = any }\n"
    rig = two_full_nodes(failing, *(replace(member(number), created_ns=START_NS) for number in (1, 2)))
    rig.settle()

    rig.pass_time(60)
    rig.handle(*[e.PodDeleted(victim.uid) for evict in rig.of(c.Evict) for victim in evict.victims])
    for evict in rig.of(c.Evict):
        answer(rig, evict)
    rig.pass_time(60)

    assert victims(rig).keys() == {"x", "y"}
    assert rig.placements() == {}
    assert "recreate its pods" in str(rig.pending_message("g1"))


def test_members_with_preemption_policy_never_evict_no_pods() -> None:
    never = {"spec": {"preemptionPolicy": "Never"}}
    rig = two_full_nodes(ANY, member(1, **never), member(2, **never))

    rig.settle()

    assert victims(rig) == {}
    assert str(rig.pending_message("g1")).endswith("preemption: not eligible due to preemptionPolicy=Never.")


def test_preemption_never_applies_to_gangs() -> None:
    rig = two_full_nodes(GANG.format(more="") + "preemption never\n", member(1), member(2))

    rig.settle()

    assert victims(rig) == {}
    assert rig.pending_message("g1") == (
        "gang default/g: 0 of 2 members fit now: 0/2 nodes are available: 2 Insufficient cpu."
    )


def test_the_preemption_clause_limits_the_victims_of_a_gang() -> None:
    only_x = GANG.format(more="") + 'preemption { victims = victim.name == "x" }\n'
    rig = two_full_nodes(only_x, member(1), member(2))

    rig.settle()

    assert victims(rig) == {}


def test_a_budget_that_one_member_used_up_is_used_up_for_the_next() -> None:
    web = {"labels": {"app": "web"}}
    rig = Rig(ANY, *(node(name) for name in "abc"))
    rig.observe(low("x", "a", **web), low("y", "b", **web), low("dear", "c", priority=50))
    selector = LabelSelector((SelectorRequirement("app", "In", ("web",)),))
    rig.handle(e.DisruptionBudgetUpdated(DisruptionBudget("default", "web", selector, 1, frozenset())))
    rig.observe(member(1), member(2))

    rig.settle()

    assert victims(rig).keys() == {"x", "dear"}


def test_a_gang_with_a_topology_key_preempts_in_one_domain() -> None:
    racks = [node(name, labels={"rack": rack}) for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r2"))]
    rig = Rig(KEEP_TOGETHER, *racks, low("x", "a"), low("y", "b", priority=5), low("z", "c", priority=5))
    rig.observe(member(1), member(2))

    rig.settle()
    carry_out(rig)
    rig.pass_time(3)

    assert victims(rig).keys() == {"y", "z"}
    assert set(rig.placements().values()) == {"b", "c"}


def test_a_gang_preempts_in_the_least_disruptive_domain() -> None:
    racks = [node(name, labels={"rack": f"r{number}"}) for number, name in enumerate(("a", "b", "c", "d"), 2)]
    racks = [
        replace(rack, labels={**rack.labels, "rack": f"r{place // 2}"}) for place, rack in enumerate(racks)
    ]
    rig = Rig(KEEP_TOGETHER, *racks, low("w", "a", priority=9), low("x", "b"), low("y", "c"), low("z", "d"))
    rig.observe(member(1), member(2))

    rig.settle()

    assert victims(rig).keys() == {"y", "z"}


def test_after_a_restart_nominated_members_are_placed_on_their_nominated_nodes() -> None:
    members = [replace(seen(member(1)), nominated_node="b"), replace(seen(member(2)), nominated_node="a")]
    rig = Rig(ANY, node("a"), node("b"), *members)

    rig.settle()

    assert rig.placements() == {"g1": "b", "g2": "a"}


def test_a_gang_of_a_hundred_is_placed_in_one_attempt() -> None:
    nodes = [node(f"n{number}") for number in range(100)]
    rig = Rig(ANY, *nodes, *(low(f"x{number}", f"n{number}") for number in range(100)))
    rig.observe(*(member(number, least=100) for number in range(100)))

    rig.settle()
    carry_out(rig)
    rig.pass_time(3)

    assert len(victims(rig)) == 100
    assert len(rig.placements()) == 100


def test_members_with_anti_affinity_preempt_on_a_node_each() -> None:
    term = {"labelSelector": {"matchLabels": {"group": "g"}}, "topologyKey": "kubernetes.io/hostname"}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    nodes = [node(name, cpu="8") for name in "abcd"]
    policy = ANY.replace("filter node_resources_fit", "filter node_resources_fit\nfilter inter_pod_affinity")
    rig = Rig(policy, *nodes, *(low(f"x{name}", name, cpu="7") for name in "abcd"))
    rig.observe(*(member(number, least=3, cpu="2", spec=apart) for number in (1, 2, 3)))

    rig.settle()
    carry_out(rig)
    rig.pass_time(3)

    assert len(victims(rig)) == 3
    assert len(set(rig.placements().values())) == 3


def test_a_gang_of_higher_priority_clears_all_nominations_of_a_lower_one() -> None:
    rig = two_full_nodes(ANY, member(1), member(2))
    rig.settle()

    rig.observe(pod("boss", cpu="3", priority=1000))
    rig.settle()

    assert "boss" in nominations(rig)
    assert not {"g1", "g2"} & nominations(rig).keys()


def seen(pod: Pod) -> ObservedPod:
    return ObservedPod(pod, node=None, phase="Pending", deleting=False, nominated_node=None)


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def caught() -> Iterator[None]:
    with pytest.raises(AssertionError):
        yield


def test_a_gang_that_preempts_in_part_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    search = evicting_search.EvictingSearch.run

    def in_part(self: evicting_search.EvictingSearch, limit: BacktrackLimit) -> Steps[object]:
        outcome = yield from search(self, limit)
        return GangPlacement(tuple(self.placements)) if self.placements else outcome

    monkeypatch.setattr(evicting_search.EvictingSearch, "run", in_part)

    with caught():
        test_no_pod_is_evicted_if_that_would_not_fit_the_gang()


def test_a_member_evaluated_without_the_earlier_ones_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: evicting_search.EvictingSearch, member: MemberPlacement) -> Steps[None]:
        self.placements.append(member)
        yield from ()

    monkeypatch.setattr(evicting_search.EvictingSearch, "apply_placement", take)

    with caught():
        test_a_whole_gang_preempts_and_is_placed_once_its_victims_are_gone()


def test_a_budget_that_is_reset_for_each_member_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BudgetsAfterEvictions, "evict", lambda *_: False)

    with caught():
        test_a_budget_that_one_member_used_up_is_used_up_for_the_next()


def test_clearing_the_nomination_of_one_member_alone_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_tracker, "withdraw_gang_nominations", lambda *_: None)

    with caught():
        test_a_refused_eviction_clears_the_nominations_of_all_members()


def test_victims_that_are_counted_twice_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def everybody(self: evicting_search.EvictingSearch, on: NodeName) -> list[Pod]:
        return list(self.core.cache.ledger.usage(on).pods.values())

    monkeypatch.setattr(evicting_search.EvictingSearch, "_pods_on", everybody)

    with caught():
        test_a_whole_gang_preempts_and_is_placed_once_its_victims_are_gone()


def test_cached_candidates_of_changed_nodes_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renew = BestFirstSearch.refresh

    def once(self: BestFirstSearch, cluster: PreemptionInputs, nodes: Collection[NodeName]) -> Steps[None]:
        yield from renew(self, cluster, () if self._bounded else nodes)

    monkeypatch.setattr(BestFirstSearch, "refresh", once)

    with caught():
        test_a_gang_of_a_hundred_is_placed_in_one_attempt()


def test_nominations_of_the_gang_itself_that_block_it_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = nominated.competing_nominations
    monkeypatch.setattr(
        nominated, "competing_nominations", lambda core, preemptor, *_, **__: reserved(core, preemptor)
    )

    with caught():
        test_after_a_restart_nominated_members_are_placed_on_their_nominated_nodes()
