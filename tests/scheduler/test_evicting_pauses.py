"""Pauses in the search of a gang that evicts pods: what happens meanwhile, and what must hold afterwards."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from policysched.cluster.disruption_budgets import BudgetsAfterEvictions
from policysched.cluster.ledger import Ledger
from policysched.evaluate import Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.gangs import evicting_search, gang_preemption, kept_placements
from policysched.scheduler.gangs.evicting_search import EvictingSearch
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import VICTIMS_CHANGED, GangPlacement, NoGangPlacement
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import VISITS_PER_PIECE, Steps
from tests.builders import node, pending, placed, pod
from tests.evaluate.clusters import ClusterRandom
from tests.scheduler.calls import count_calls, nothing_in_steps
from tests.scheduler.rig import FIT, GANG, Rig
from tests.scheduler.test_gang_placement import carry_out, victims
from tests.scheduler.test_pauses import always_fit, never_ends

EVICTS = (
    GANG.format(more="")
    + 'preemption { victims = victim.priority < pod.priority and not has victim.labels["kept"] }\n'
)
IN_A_RACK = EVICTS.replace("min = least", 'min = least topology = "rack"')
SPREAD = EVICTS.replace("filter node_resources_fit", "include kube_default")
RUNNING = GANG.format(more="").replace("policy test", "policy running") + "preemption never\n"
PLAIN = FIT.replace("policy test", "policy plain")
NEVER = 10**9


def rig(*objects: object, policy: str = EVICTS, piece: int = 1, head_start: int = 1) -> Rig:
    limits = SchedulerLimits(
        attempt_step_cost_max=1,
        gang_piece_cost_max=piece,
        gang_piece_cost_by_member=0,
        gang_head_start_cost=head_start,
    )
    policies = {"gangs.policy": policy, "plain.policy": PLAIN, "running.policy": RUNNING}
    return checked(Rig(policies, *objects, limits=limits))  # type: ignore[arg-type]


def members(count: int, *, cpu_milli: int = 3000, name: str = "g", step: int = 1) -> list[Pod]:
    """No two are equal, unless the `step` is 0."""
    labels = {"group": name, "least": str(count)}
    return [
        pod(f"{name}{index}", cpu=f"{cpu_milli + step * index}m", labels=labels, priority=100)
        for index in range(count)
    ]


def low(name: str, on: str, *, cpu: str = "4", **more: object) -> ObservedPod:
    return placed(pod(name, cpu=cpu, **{"scheduler": "other", **more}), on)


def full_nodes(count: int, **more: object) -> list[object]:
    nodes: list[object] = [node(f"n{index}", cpu="4") for index in range(count)]
    return [*nodes, *[low(f"low{index}", f"n{index}", **more) for index in range(count)]]


def decide_until_pause(scheduler: Rig, victim_count: int = 1) -> Pause:
    """The first one after which so many pods would be evicted."""
    while scheduler.scheduler.ready(scheduler.now_ns):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        pause = scheduler.scheduler._attempts._pause
        if pause is not None and len(pause.search.victims) >= victim_count:
            return pause
    raise AssertionError("there was no such pause")


def finish(scheduler: Rig) -> dict[str, str]:
    """Where the members are, once the victims are gone."""
    scheduler.settle()
    carry_out(scheduler)
    scheduler.pass_time(5)
    return {name: on for name, on in scheduler.placements().items() if name.startswith("g")}


def checked(scheduler: Rig) -> Rig:
    """Victims are placed pods that may be evicted, and without them the members fit."""
    preemption = scheduler.scheduler._attempts._gang_attempts._preemption
    evict = preemption.evict_for_gang

    def check(gang: QueuedGang, placement: GangPlacement, now_ns: int) -> Steps[None]:
        check_evictions(scheduler, gang, placement)
        return evict(gang, placement, now_ns)

    preemption.evict_for_gang = check  # type: ignore[method-assign]
    return scheduler


def check_evictions(scheduler: Rig, gang: QueuedGang, placement: GangPlacement) -> None:
    core = scheduler.scheduler._core
    evicted = {victim.uid for member in placement.members for victim in member.candidate.victims}
    used = {name: core.cache.ledger.usage(name).requested.get("cpu", 0) for name in core.cache.nodes}
    for member in placement.members:
        assert gang.pending_members.get(member.pod.uid) is member.pod, f"{member.pod} is not pending"
        used[member.node] += member.pod.pod.requests["cpu"]
    for uid in evicted:
        on = core.cache.ledger.placement(uid)
        assert on is not None, f"{uid} is a victim and not placed"
        assert "kept" not in on.pod.labels, f"{uid} may not be evicted"
        assert on.pod.priority < 100 and uid not in gang.terms
        if on.node in used:
            used[on.node] -= on.pod.requests["cpu"]
        other = core.gangs.gang_of(uid)
        left = 0 if other is None else len(other.placed_members.keys() - evicted)
        assert other is None or left == 0 or left >= other.minimum, f"{other} keeps {left} members"
    for member in placement.members:
        free = core.cache.nodes[member.node].allocatable["cpu"] - used[member.node]
        assert free >= 0, f"{member.node} lacks {-free}"
    assert len(placement.members) >= gang.needed_count
    if "kube_default" not in core.policies.running[gang.policy].program.text:
        check_need(scheduler, placement, used)


def check_need(scheduler: Rig, placement: GangPlacement, used: Mapping[NodeName, int]) -> None:
    """Each victim but members of gangs has to go for what is missing on its node, where one member has all victims there. For rules
    that look at the node alone."""
    core, evicting = scheduler.scheduler._core, [each for each in placement.members if each.candidate.victims]
    counts = Counter(member.node for member in evicting)
    for member in evicting:
        free = core.cache.nodes[member.node].allocatable["cpu"] - used[member.node]
        for victim in member.candidate.victims:
            is_single = core.gangs.gang_of(victim.uid) is None and counts[member.node] == 1
            assert not is_single or victim.requests["cpu"] > free, f"{victim.full_name} is evicted in vain"


# ── what happens in a pause ────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_is_bound_while_a_gang_looks_for_victims() -> None:
    scheduler = rig(*full_nodes(6), node("free", cpu="2"), *members(6))
    counters = scheduler.scheduler.core.records.counters
    while not counters.preemption_attempts or scheduler.scheduler._attempts.in_progress:
        assert scheduler.scheduler.ready(scheduler.now_ns)
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    scheduler.observe(pod("p", cpu="1", scheduler="plain"))
    scheduler.settle()

    kinds = [type(command) for command in scheduler.commands if isinstance(command, c.Bind | c.Evict)]
    assert kinds == [c.Bind, *[c.Evict] * 6]
    assert len(finish(scheduler)) == 6


def test_a_pod_gets_no_room_that_only_the_evictions_would_make() -> None:
    """Not even for a while, although that room is the best; another node has less, but now."""
    score = "score node_resources_fit weight 1\n"
    scheduler = rig(*full_nodes(4), node("free", cpu="2"), *members(4, cpu_milli=2500))
    scheduler.apply_policies(
        {"gangs.policy": EVICTS, "plain.policy": PLAIN + score, "running.policy": RUNNING}
    )
    decide_until_pause(scheduler, 3)

    scheduler.observe(pod("p", cpu="1", scheduler="plain"))
    for _ in range(4):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert scheduler.placements() == {"p": "free"}
    assert len(finish(scheduler)) == 4


def test_a_pod_gets_no_room_of_members_that_evict_pods() -> None:
    """Where a victim leaves more than its member takes."""
    scheduler = rig(*full_nodes(4, cpu="3500m"), *members(4, cpu_milli=3800))
    decide_until_pause(scheduler, 3)

    scheduler.observe(*[pod(f"p{index}", cpu="500m", scheduler="plain") for index in range(4)])
    scheduler.settle()

    assert len(scheduler.placements()) <= 1
    assert len(victims(scheduler)) + len(scheduler.placements()) >= 4 or not scheduler.of(c.Evict)


class OverlayChanges:
    """How many pods are added to overlays and removed from them, at most in one call of the scheduler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.present = 0
        for name in ("add_pod", "remove_pod"):
            monkeypatch.setattr(Overlay, name, self._counting(getattr(Overlay, name)))

    def _counting(self, change: Callable[..., None]) -> Callable[..., None]:
        def counting(*arguments: object) -> None:
            self.present += 1
            change(*arguments)

        return counting

    def end_call(self) -> None:
        self.most, self.present = max(self.most, self.present), 0


@pytest.mark.parametrize("change", ["a node of a member", "a nomination of others", "a victim", "pods come"])
def test_a_pause_beside_hundreds_of_victims_changes_overlays_in_pieces(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: list[object] = [node(f"n{index}", cpu="4") for index in range(20)]
    pods = [low(f"low{index}", f"n{index % 20}", cpu="100m") for index in range(800)]
    scheduler = rig(*nodes, node("free", cpu="2"), *pods, *members(20))
    nominated = pending(pod("nominated", cpu="1m", scheduler="other", priority=500))
    if change == "pods come":  # and see what is nominated as the gang does not
        scheduler.observe(replace(nominated, nominated_node=NodeName("free")))
    pause = decide_until_pause(scheduler, 500)
    changes = OverlayChanges(monkeypatch)

    match change:
        case "a node of a member":
            name = pause.search.fits[0][1].node
            scheduler.observe(node(name, cpu="4", labels={"new": "label"}))
        case "a nomination of others":
            scheduler.observe(replace(nominated, nominated_node=NodeName("free")))
        case "a victim":
            uid, on = next(iter(pause.search.victims.items()))
            name = scheduler.observed_pod(uid).pod.name
            scheduler.observe(low(name, on, cpu="100m", labels={"new": "label"}))
        case "pods come":
            more = {"cpu": "1m", "scheduler": "plain"}
            scheduler.observe(*[pod(f"p{index}", priority=400 * index, **more) for index in range(3)])
    for _ in range(200):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        changes.end_call()

    assert 0 < changes.most <= 2 * VISITS_PER_PIECE
    scheduler.pass_time(1)
    assert len(finish(scheduler)) == 20
    assert change != "pods come" or {"p0", "p1", "p2"} <= scheduler.placements().keys()


def test_to_follow_the_cluster_after_a_pause_is_a_piece_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It visits all victims, and the next member looks for its own in the next call."""
    scheduler = rig(*full_nodes(6), *members(6))
    decide_until_pause(scheduler, 3)
    done, follow, evaluate = list[str](), EvictingSearch._follow_cluster, PodAttempts.evaluate

    def following(search: EvictingSearch) -> Steps[None]:
        done.append("follows")
        return follow(search)

    def evaluating(*arguments: Any, **more: Any) -> Any:
        done.append("evaluates")
        return evaluate(*arguments, **more)

    monkeypatch.setattr(EvictingSearch, "_follow_cluster", following)
    monkeypatch.setattr(PodAttempts, "evaluate", evaluating)
    scheduler.observe(node("new", cpu="1"))
    while not done or scheduler.scheduler.attempt_paused:
        done.clear()
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert done == ["follows"]


@pytest.mark.parametrize(
    ("owner", "visit"), [(BudgetsAfterEvictions, "evict"), (evicting_search, "without_gone_victims")]
)
def test_victims_of_many_members_are_visited_in_pieces_after_a_pause(
    owner: object, visit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece it was 1.7 ms for 60 members that evict ten pods each."""
    scheduler = rig(*full_nodes(70), *members(70, step=0), piece=100, head_start=10**9)
    decide_until_pause(scheduler, 60)
    scheduler.observe(node("new", cpu="1"))

    def decide() -> None:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    counts = [0]
    while counts[-1] or sum(counts) < 60:
        counts.append(count_calls(monkeypatch, owner, visit, decide))

    assert max(counts) <= VISITS_PER_PIECE + 1
    assert len(finish(scheduler)) == 70


def test_victims_of_many_members_are_evicted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No member looks at what is nominated to the nodes of others."""
    count, asked, most = 120, 0, 0
    scheduler = rig(*full_nodes(count), *members(count, step=0), piece=10**9)

    def decide() -> None:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    while (before := len(scheduler.of(c.Evict))) < count:
        assert scheduler.scheduler.ready(scheduler.now_ns)
        looks = count_calls(monkeypatch, Ledger, "placement", decide)
        evicted = len(scheduler.of(c.Evict)) - before
        asked, most = asked + looks * bool(evicted), max(most, evicted)
    scheduler.check_invariants()

    assert most <= 2
    assert asked <= 10 * count
    assert len(finish(scheduler)) == count


def test_a_process_that_makes_no_more_attempts_evicts_for_all_members_or_none() -> None:
    """After a stall, say, it goes on a second later."""
    scheduler = rig(*full_nodes(8), *members(8, step=0), piece=10**9)
    while not scheduler.of(c.Evict):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    assert len(scheduler.of(c.Evict)) < 8 and scheduler.scheduler.attempt_in_progress

    scheduler.commands += scheduler.scheduler.requeue_current_attempt(scheduler.now_ns)
    scheduler.check_invariants()

    assert len(scheduler.of(c.Evict)) == 8
    assert not scheduler.scheduler.attempt_in_progress
    assert len(finish(scheduler)) == 8


# ── what must hold afterwards ──────────────────────────────────────────────────────────────────────────────────────


def test_a_victim_that_ends_in_a_pause_is_not_evicted() -> None:
    scheduler = rig(*full_nodes(4), *members(4))
    pause = decide_until_pause(scheduler, 2)
    gone = next(iter(pause.search.victims))

    scheduler.handle(e.PodDeleted(gone))
    scheduler.settle()

    assert len(victims(scheduler)) == 3
    assert len(finish(scheduler)) == 4


def test_a_victim_on_an_unknown_node_that_ends_in_a_pause_is_forgotten() -> None:
    """A whole gang goes, one member of which is on a node that nobody has seen: no version of the cluster tells of it."""
    labels = {"group": "running", "least": "2"}
    running = [
        placed(pod(f"r{index}", cpu="4", labels=labels, scheduler="running"), on)
        for index, on in enumerate(("n0", "nowhere"))
    ]
    nodes = [node(f"n{index}", cpu="4") for index in range(3)]
    others = [low(f"low{index}", f"n{index}", priority=50) for index in (1, 2)]
    scheduler = rig(*nodes, *running, *others, *members(3))
    pause = decide_until_pause(scheduler, 2)
    assert running[1].pod.uid in pause.search.victims

    scheduler.handle(e.PodDeleted(running[1].pod.uid))
    scheduler.settle()

    assert victims(scheduler).keys() == {"r0", "low1", "low2"}
    assert len(finish(scheduler)) == 3


def test_a_victim_that_changes_in_a_pause_is_still_evicted() -> None:
    scheduler = rig(*full_nodes(4), *members(4))
    pause = decide_until_pause(scheduler, 2)
    uid, on = next(iter(pause.search.victims.items()))

    scheduler.observe(low(scheduler.observed_pod(uid).pod.name, on, labels={"new": "label"}))
    scheduler.settle()

    assert len(victims(scheduler)) == 4
    assert len(finish(scheduler)) == 4


def test_a_victim_that_may_not_be_evicted_any_more_is_left_alone() -> None:
    check_kept_victim()


def check_kept_victim() -> None:
    scheduler = rig(*full_nodes(5), *members(4))
    pause = decide_until_pause(scheduler, 2)
    uid, on = next(iter(pause.search.victims.items()))
    name = scheduler.observed_pod(uid).pod.name

    scheduler.observe(low(name, on, labels={"kept": "yes"}))
    scheduler.settle()

    assert name not in victims(scheduler)
    assert len(finish(scheduler)) == 4


def test_a_pod_that_may_not_be_evicted_any_more_is_not_chosen_after_the_pause() -> None:
    check_kept_pod()


def check_kept_pod() -> None:
    """One that would be chosen next, on a node where it was asked about before."""
    nodes = [node(f"n{index}", cpu="4") for index in range(6)]
    pods = [low(f"low{index}", f"n{index}", priority=index) for index in range(6)]
    scheduler = rig(*nodes, *pods, *members(4))
    pause = decide_until_pause(scheduler, 2)
    assert sorted(pause.search.victims.values()) == ["n0", "n1"]

    scheduler.observe(low("low2", "n2", priority=2, labels={"kept": "yes"}))
    scheduler.settle()

    assert sorted(victims(scheduler)) == ["low0", "low1", "low3", "low4"]
    assert VICTIMS_CHANGED not in (scheduler.pending_message("g0") or "")


@pytest.mark.parametrize("step", [0, 1], ids=["equal", "unequal"])
def test_members_of_a_large_gang_are_asked_about_once_without_a_change(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each placement takes a member that the gang can spare, so that its other members are visited again."""
    asked: Counter[PodUid] = Counter()
    may_evict = EvictingSearch._may_evict

    def counting(search: EvictingSearch, victim: Pod, allowed: EvictionRights) -> bool:
        asked[victim.uid] += 1
        return may_evict(search, victim, allowed)

    monkeypatch.setattr(EvictingSearch, "_may_evict", counting)
    labels = {"group": "running", "least": "20"}
    large = [
        placed(pod(f"r{index}", cpu="4", labels=labels, scheduler="running"), f"n{index}")
        for index in range(40)
    ]
    nodes = [node(f"n{index}", cpu="4") for index in range(40)]
    scheduler = rig(*nodes, *large, *members(10, step=step), piece=10**9)

    scheduler.settle()

    assert len(victims(scheduler)) == 10
    assert max(asked.values()) == 1
    assert len(asked) == 40


def test_after_doubts_about_a_victim_the_gang_is_attempted_again() -> None:
    """Not searched for again at once, without pauses: that would hold up everybody as often as the owner of the victims wants."""
    scheduler = rig(*full_nodes(5), *members(4))
    pause = decide_until_pause(scheduler, 2)
    uid, on = next(iter(pause.search.victims.items()))

    scheduler.observe(low(scheduler.observed_pod(uid).pod.name, on, labels={"kept": "yes"}))
    scheduler.settle()

    assert VICTIMS_CHANGED in (scheduler.pending_message("g0") or "")
    assert len(finish(scheduler)) == 4


def test_a_victim_that_may_be_evicted_only_between_the_pauses_does_not_keep_the_gang_waiting() -> None:
    """It is chosen first, for its priority, so that each attempt would end in doubt about it."""
    scheduler = rig(*full_nodes(4), node("n4", cpu="4"), low("flips", "n4", priority=-1), *members(4))
    (gang,) = scheduler.scheduler.core.gangs
    for _ in range(3):
        decide_until_pause(scheduler)
        scheduler.observe(low("flips", "n4", priority=-1, labels={"kept": "yes"}))
        while gang.state is QueueState.ATTEMPTING:
            scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.observe(low("flips", "n4", priority=-1))
        if scheduler.of(c.Evict):
            break
        scheduler.now_ns += 11 * 10**9

    assert len(victims(scheduler)) == 4
    assert "flips" not in victims(scheduler)


def test_victims_are_asked_about_in_steps_after_the_last_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    may_evict, asked = EvictingSearch._may_evict, [0]

    def counted(search: EvictingSearch, victim: Pod, allowed: EvictionRights) -> bool:
        asked[-1] += len(search.placements) == 4
        return may_evict(search, victim, allowed)

    monkeypatch.setattr(EvictingSearch, "_may_evict", counted)
    scheduler = rig(*full_nodes(4), *members(4))

    while scheduler.scheduler.ready(scheduler.now_ns):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        asked.append(0)

    assert len(victims(scheduler)) == 4
    assert sum(asked) == 4
    assert max(asked) == 1


def check_running_gang() -> None:
    """It can spare one of four members. Another one ends after that was chosen."""
    labels = {"group": "running", "least": "3"}
    running = [
        placed(pod(f"r{index}", cpu="4", labels=labels, scheduler="running"), f"n{index}")
        for index in range(4)
    ]
    nodes = [node(f"n{index}", cpu="4") for index in range(6)]
    others = [low(f"low{index}", f"n{index}", priority=50) for index in (4, 5)]
    scheduler = rig(*nodes, *running, *others, *members(2))
    pause = decide_until_pause(scheduler, 1)
    chosen = next(iter(pause.search.victims))
    ends = next(each.pod.uid for each in running if each.pod.uid != chosen)

    scheduler.handle(e.PodDeleted(ends))
    assert len(finish(scheduler)) == 2


def test_a_running_gang_that_shrinks_in_a_pause_keeps_its_minimum() -> None:
    check_running_gang()


@pytest.mark.parametrize("change", ["goes", "is filled", "shrinks"])
def test_a_member_is_not_nominated_to_a_node_that_stops_fitting_in_a_pause(change: str) -> None:
    check_node_of_a_member(change)


def check_node_of_a_member(change: str) -> None:
    scheduler = rig(*full_nodes(5), *members(4))
    pause = decide_until_pause(scheduler, 2)
    name = pause.search.fits[0][1].node
    match change:
        case "goes":
            scheduler.handle(e.NodeDeleted(name))
        case "is filled":
            scheduler.observe(placed(pod("x", cpu="3", priority=100, scheduler="other"), name))
        case _:
            scheduler.observe(node(name, cpu="2"))
    scheduler.settle()
    scheduler.pass_time(3)
    assert len(scheduler.of(c.Evict)) == 4
    assert name not in {evict.node for evict in scheduler.of(c.Evict)}
    assert len(finish(scheduler)) == 4


def check_budget() -> None:
    """Two nodes are as good as each other, until the pods of the first one, which none would have been, are protected."""
    scheduler = rig(*full_nodes(4, labels={"app": "a"}), *members(2))
    scheduler.observe(low("other", "n3", cpu="4", labels={"app": "b"}), node("n9", cpu="4"))
    scheduler.observe(low("last", "n9", labels={"app": "b"}, priority=1))
    decide_until_pause(scheduler, 1)
    requirement = SelectorRequirement("app", "In", frozenset({"a"}))
    budget = DisruptionBudget("default", "b", LabelSelector((requirement,)), 0, frozenset())

    scheduler.handle(e.DisruptionBudgetUpdated(budget))
    scheduler.settle()
    scheduler.pass_time(5)  # the first member is placed anew, too

    assert len(victims(scheduler).keys() - {"last"}) == 1


def test_a_budget_that_appears_in_a_pause_counts_for_later_members() -> None:
    check_budget()


def test_a_member_that_is_deleted_in_a_pause_evicts_nothing() -> None:
    labels = {"group": "g", "least": "3"}
    more = [pod(f"g{index}", cpu=f"{3000 + index}m", labels=labels, priority=100) for index in range(5)]
    scheduler = rig(*full_nodes(5), *more)
    decide_until_pause(scheduler, 1)

    scheduler.handle(e.PodDeleted(PodUid("uid-default-g2")))
    scheduler.settle()
    scheduler.pass_time(3)

    assert "g2" not in {evict.name for evict in scheduler.of(c.Evict)}
    assert len(finish(scheduler)) >= 3


def test_a_member_that_joins_in_a_pause_is_left_to_the_next_attempt() -> None:
    """The second search, the most demanding members first, begins with those that the gang has then."""
    scheduler = rig(*full_nodes(2), *members(3))
    decide_until_pause(scheduler)

    scheduler.observe(pod("late", cpu="9", labels={"group": "g", "least": "3"}, priority=100))
    scheduler.settle()

    assert victims(scheduler) == {}
    assert "internal error" not in str(scheduler.pending_message("g0"))


def test_after_a_placement_other_domains_are_searched_no_longer_than_a_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without pauses, in which the placement would age."""
    search_domain, costs = gang_preemption._search_domain, list[int]()

    def slow_after_the_first(*of: Any) -> Steps[GangPlacement | NoGangPlacement]:
        costs.append(0)
        if len(costs) == 1:
            return (yield from search_domain(*of))
        for _ in range(1_000):
            costs[-1] += 10
            yield 10
        return NoGangPlacement("")

    monkeypatch.setattr(gang_preemption, "_search_domain", slow_after_the_first)
    nodes = [node(f"n{index}", cpu="4", labels={"rack": f"r{index % 2}"}) for index in range(4)]
    full = [low(f"low{index}", f"n{index}") for index in range(4)]
    scheduler = rig(*nodes, *full, *members(2), policy=IN_A_RACK, piece=5_000)

    scheduler.settle()

    assert len(victims(scheduler)) == 2
    assert costs == [0, 5_010]


# ── random histories ───────────────────────────────────────────────────────────────────────────────────────────────


def check_same_as_without_pauses(number: int) -> None:
    """With nothing in the pauses, the same victims as without them; but for the choice between domains, which ends earlier."""
    rng = ClusterRandom(f"evictions {number}")
    objects = random_cluster(rng)
    step, policy = rng.choice((0, 1, 100)), rng.choice((EVICTS, SPREAD))
    gang = members(rng.randint(2, 5), cpu_milli=rng.choice((1000, 2000)), step=step)
    found = []
    for piece in (1, NEVER):
        scheduler = rig(*objects, *gang, policy=policy, piece=piece)
        scheduler.settle()
        found.append({evict.name: (evict.node, evict.victims) for evict in scheduler.of(c.Evict)})
    assert found[0] == found[1]


def random_cluster(rng: ClusterRandom) -> list[object]:
    objects: list[object] = []
    count = rng.randint(3, 6)
    for index in range(count):
        name = f"n{index}"
        objects.append(node(name, cpu="4", labels={"rack": f"r{index % 2}"}))
        left = 4
        while left > 0 and not rng.one_in(5):
            cpu = rng.randint(1, 3)
            left -= cpu
            if left < 0:
                break
            labels = rng.choice(({}, {}, {"kept": "yes"}, {"app": "a"}))
            more = {"labels": labels, "priority": rng.choice((0, 1, 50))}
            objects.append(low(f"low{index}-{left}", name, cpu=str(cpu), **more))
    labels = {"group": "running", "least": "2"}
    objects += [
        placed(pod(f"r{index}", cpu="1", labels=labels, scheduler="running", priority=5), f"n{index}")
        for index in range(3)
    ]
    return objects


def test_pauses_in_which_nothing_happens_change_nothing() -> None:
    for number in range(60):
        check_same_as_without_pauses(number)


def check_history(number: int) -> None:
    """Pods, nodes, budgets and members come and go in the pauses. `checked` tells whether the evictions are right."""
    rng = ClusterRandom(f"evicting pauses {number}")
    policy, step = rng.choice((EVICTS, SPREAD, IN_A_RACK)), rng.choice((0, 1, 1))
    gang = members(rng.randint(2, 5), cpu_milli=rng.choice((1000, 2000, 3000)), step=step)
    scheduler = rig(*random_cluster(rng), *gang, policy=policy, piece=rng.choice((1, 30, 60)))
    count = 0
    for _ in range(2000):
        if not scheduler.scheduler.ready(scheduler.now_ns):
            break
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        if not scheduler.scheduler.attempt_in_progress and count < 30 and rng.one_in(2):
            count += 1
            change_in_pause(scheduler, rng, count)
    scheduler.settle()
    carry_out(scheduler)
    scheduler.pass_time(30)


def change_in_pause(scheduler: Rig, rng: ClusterRandom, count: int) -> None:
    cache = scheduler.scheduler._core.cache
    on_nodes = sorted(
        uid
        for uid, observed in cache.pods.items()
        if observed.pod.scheduler in ("other", "running")
        and (on := cache.ledger.placement(uid)) is not None
        and on.node in cache.nodes
    )
    names = sorted(cache.nodes)
    match rng.randrange(10):
        case 0 | 1:
            more = {"cpu": rng.choice(("500m", "1")), "priority": rng.choice((0, 100))}
            scheduler.observe(pod(f"p{count}", scheduler="plain", **more))
        case 2 | 3 if on_nodes:
            scheduler.handle(e.PodDeleted(PodUid(rng.choice(on_nodes))))
        case 4 if on_nodes:
            observed = cache.pods[PodUid(rng.choice(on_nodes))]
            cpu = f"{observed.pod.requests['cpu']}m"
            if observed.pod.scheduler == "other":
                labels = rng.choice(({"kept": "yes"}, {"new": f"v{count}"}))
                more = {"labels": labels, "priority": observed.pod.priority}
                scheduler.observe(low(observed.pod.name, str(observed.node), cpu=cpu, **more))
        case 5 if len(names) > 2 and rng.one_in(3):
            scheduler.handle(e.NodeDeleted(NodeName(rng.choice(names))))
        case 6:
            labels = {"rack": f"r{count % 2}"}
            scheduler.observe(node(f"new{count}", cpu=rng.choice(("1", "2")), labels=labels))
        case 7:
            scheduler.observe(low(f"late{count}", rng.choice(names), cpu="1", priority=rng.choice((0, 100))))
        case 8:
            requirement = SelectorRequirement("app", "In", frozenset({"a"}))
            budget = DisruptionBudget(
                "default", "b", LabelSelector((requirement,)), rng.randint(0, 2), frozenset()
            )
            scheduler.handle(e.DisruptionBudgetUpdated(budget))
        case 9:  # it is attempted between two attempts of the gang
            labels = {"group": f"w{count}", "least": "1"}
            scheduler.observe(pod(f"w{count}", cpu="500m", scheduler="running", labels=labels, priority=100))
        case _:
            pass


@pytest.mark.parametrize("block", range(6))
def test_random_histories_with_pauses(block: int) -> None:
    for number in range(block * 40, block * 40 + 40):
        check_history(number)


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def has_no_doubts(_: EvictingSearch) -> Steps[bool]:
    yield from ()
    return False


@pytest.mark.parametrize(
    ("holder", "part", "planted", "check"),
    [
        (EvictingSearch, "_follow_cluster", nothing_in_steps, check_history),
        (EvictablePods, "forget_answers", lambda _: None, lambda _: check_kept_pod()),
        (EvictingSearch, "is_doubtful", has_no_doubts, lambda _: check_kept_victim()),
        (EvictingSearch, "is_doubtful", has_no_doubts, lambda _: check_running_gang()),
        (Pause, "ends_attempt", never_ends, check_history),
        (Pause, "_still_fit", always_fit, check_history),
        (Pause, "note_changes", lambda _: None, check_history),
        (kept_placements, "_is_unchanged", lambda *_: True, check_history),
        (EvictingSearch, "spare_victims", nothing_in_steps, check_history),
    ],
    ids=[
        "the search does not follow the cluster",
        "answers of before a pause stay",
        "victims may be kept by now",
        "gangs of victims may have shrunk",
        "a search outlives its members",
        "a search outlives what its nodes were",
        "changes are not noticed",
        "what was found holds whatever changed",
        "victims are not needed by now",
    ],
)
def test_a_planted_mistake_is_found(
    holder: object, part: str, planted: object, check: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, part, planted)

    with pytest.raises((AssertionError, KeyError)):
        for number in range(240):
            check(number)
