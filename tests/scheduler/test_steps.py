"""Attempts in steps: step size does not change the result, and no event is applied between steps."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt_runner import AttemptRunner
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.preemption import best_candidate_search, candidate_search, victim_selection
from policysched.scheduler.preemption.best_candidate_search import BestFirstSearch
from policysched.scheduler.scheduler import Scheduler
from tests.builders import node, placed, pod
from tests.evaluate.clusters import ClusterRandom
from tests.scheduler.rig import GANG, Rig

FIT = GANG.format(more="") + "preemption { victims = any }\n"
ACROSS = FIT.replace("filter node_resources_fit", "include kube_default")
KEEP_TOGETHER = GANG.format(more=' topology = "rack"') + "preemption { victims = any }\n"
POLICIES = {"of nodes": FIT, "across nodes": ACROSS, "in one domain": KEEP_TOGETHER}
AT_ONCE = 10**9
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"

Worlds = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def world(number: int) -> tuple[list[object], list[ObservedPod | Pod]]:
    """Nodes with pods of little importance on them, and budgets; and who comes then: a gang or two, and pods by themselves."""
    rng = ClusterRandom(f"steps {number}")
    names = [f"n{index}" for index in range(rng.randint(2, 9))]
    nodes = [
        node(
            name,
            cpu=rng.choice(("4", "6", "8")),
            zone=f"z{rng.randrange(2)}",
            labels={"rack": f"r{rng.randrange(3)}"},
        )
        for name in names
    ]
    low = [
        placed(
            pod(
                f"low{index}",
                cpu=rng.choice(("1", "2", "3")),
                priority=rng.choice((0, 1, 5)),
                labels={"app": rng.choice(("web", "db")), "group": rng.choice(("x", "g0"))},
                scheduler="other",
                spec=_away(rng) if rng.one_in(6) else {},
            ),
            rng.choice(names),
        )
        for index in range(rng.randint(4, 24))
    ]
    budgets = [
        DisruptionBudget(
            "default",
            app,
            LabelSelector((SelectorRequirement("app", "In", (app,)),)),
            rng.randrange(3),
            frozenset(),
        )
        for app in rng.some(("web", "db"), 2)
    ]
    arriving: list[ObservedPod | Pod] = []
    for gang in range(rng.randint(1, 2)):
        least, alike = rng.randint(2, 5), not rng.one_in(3)
        cpu, priority = rng.choice(("1", "2", "4")), rng.choice((2, 100))
        spec = _demands(rng)
        for index in range(least + rng.randrange(2)):
            labels = {"group": f"g{gang}", "least": str(least)}
            web = pod(
                f"g{gang}-{index}",
                cpu=cpu if alike else rng.choice(("1", "3")),
                priority=priority,
                labels=labels,
                spec=spec,
            )
            arriving.append(web)
    arriving += [
        pod(
            f"single{index}",
            cpu=rng.choice(("2", "4")),
            priority=rng.choice((0, 3, 50)),
            spec=_demands(rng),
        )
        for index in range(rng.randrange(3))
    ]
    return [*nodes, *low, *budgets], arriving


def _demands(rng: ClusterRandom) -> dict[str, object]:
    match rng.randrange(4):
        case 0:
            return _away(rng)
        case 1:
            constraint = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            return {
                "topologySpreadConstraints": [
                    {**constraint, "labelSelector": {"matchLabels": {"group": "g0"}}}
                ]
            }
        case _:
            return {}


def _away(rng: ClusterRandom) -> dict[str, object]:
    term = {"topologyKey": rng.choice((HOST, ZONE)), "labelSelector": {"matchLabels": {"group": "g0"}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def played(policy: str, number: int, *, a_step: int) -> tuple[list[c.Command], int]:
    """All that is said while the world of this number settles, its victims leave, and it settles again; and in how many calls of
    `decide`."""
    present, arriving = world(number)
    rig = Rig(policy, limits=SchedulerLimits(attempt_step_cost_max=a_step))
    for obj in present:
        if isinstance(obj, DisruptionBudget):
            rig.handle(e.DisruptionBudgetUpdated(obj))
        else:
            rig.observe(obj)  # type: ignore[arg-type]
    rig.observe(*arriving)
    calls = answered = 0
    for _ in range(2):
        while rig.scheduler.ready(rig.now_ns):
            rig.commands += rig.scheduler.decide(rig.now_ns)
            rig.check_invariants()
            calls += 1
        evictions = rig.of(c.Evict)[answered:]
        answered += len(evictions)
        for evict in evictions:
            rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
            rig.handle(*[e.PodDeleted(victim.uid) for victim in evict.victims])
    # When to be woken is said again where it changed between two steps.
    return [command for command in rig.commands if not isinstance(command, c.SetTimer)], calls


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
@given(number=st.integers(0, 2**32 - 1))
@Worlds
def test_the_smallest_steps_give_the_same_decisions_as_one(policy: str, number: int) -> None:
    check_steps(policy, number)


def check_steps(policy: str, number: int) -> None:
    in_steps, many = played(policy, number, a_step=1)
    in_one, fewer = played(policy, number, a_step=AT_ONCE)
    assert in_steps == in_one
    assert many >= fewer


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
@given(number=st.integers(0, 2**32 - 1))
@Worlds
def test_nodes_evaluated_together_get_the_same_verdict_as_alone(policy: str, number: int) -> None:
    check_nodes_by_themselves(policy, number)


def check_nodes_by_themselves(policy: str, number: int) -> None:
    together, _ = played(policy, number, a_step=AT_ONCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victim_selection, "NODES_PER_BATCH", 1)
        patch.setattr(best_candidate_search, "NODES_PER_BATCH", 1)
        patch.setattr(best_candidate_search, "_FIRST_BATCH_NODES", 1)
        alone, _ = played(policy, number, a_step=AT_ONCE)
    assert together == alone


def full_of_low(limits: SchedulerLimits, *objects: ObservedPod | Pod) -> Rig:
    nodes = [node(f"n{number}") for number in range(20)]
    low = [placed(pod(f"x{number}", cpu="3", priority=1), f"n{number}") for number in range(20)]
    return Rig(FIT, *nodes, *low, *objects, limits=limits)


def gang(count: int) -> list[Pod]:
    return [
        pod(f"g{number}", cpu="3", priority=100, labels={"group": "g", "least": str(count)})
        for number in range(count)
    ]


def test_a_gang_attempt_in_many_steps_evicts_once_all_its_members_are_placed() -> None:
    rig = full_of_low(SchedulerLimits(attempt_step_cost_max=1), *gang(10))

    reports = [rig.scheduler.decide(rig.now_ns)]
    while rig.scheduler.attempt_in_progress:
        rig.check_invariants()
        reports.append(rig.scheduler.decide(rig.now_ns))

    assert len(reports) > 10
    evictions = [sum(isinstance(command, c.Evict) for command in step) for step in reports]
    first = next(step for step, count in enumerate(evictions) if count)
    assert first >= 10 and all(evictions[first:-1]), (
        "the search comes first, and the evictions are not interrupted"
    )
    assert sum(evictions) == 10


def test_an_attempt_finishes_on_its_snapshot_before_an_event_is_applied() -> None:
    rig, calm = (full_of_low(SchedulerLimits(attempt_step_cost_max=1), *gang(10)) for _ in range(2))
    rig.scheduler.decide(rig.now_ns)
    assert rig.scheduler.attempt_in_progress

    commands = rig.handle(e.NodeDeleted(node("n0").name))
    calm.settle()

    assert [command for command in commands if isinstance(command, c.Evict)] == calm.of(c.Evict)
    assert not rig.scheduler.attempt_in_progress


def test_an_abandoned_attempt_leaves_no_trace() -> None:
    rig, calm = (full_of_low(SchedulerLimits(attempt_step_cost_max=1), *gang(10)) for _ in range(2))
    rig.scheduler.decide(rig.now_ns)
    assert rig.scheduler.attempt_in_progress

    reports = rig.scheduler.requeue_current_attempt(rig.now_ns)
    rig.check_invariants()
    rig.settle()
    calm.settle()

    assert reports == []
    assert rig.of(c.Evict) == calm.of(c.Evict)
    assert rig.counts() == calm.counts()


def test_without_an_attempt_nothing_is_requeued() -> None:
    rig = full_of_low(SchedulerLimits())

    assert rig.scheduler.requeue_current_attempt(rig.now_ns) == []
    assert rig.counts() == {}


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _forgets_the_last(nodes: list[str]) -> list[list[str]]:
    return [
        nodes[start : start + victim_selection.NODES_PER_BATCH]
        for start in range(0, len(nodes) - 1, victim_selection.NODES_PER_BATCH)
    ]


def _begins_anew(self: AttemptRunner, thought: object, most: int | None) -> None:
    """What was found so far is forgotten with each step."""
    cost = 0
    for step in thought.steps:  # type: ignore[attr-defined]
        cost += step
        if most is not None and cost >= most:
            return


_pop = BestFirstSearch._pop


def _loses_the_last(search: BestFirstSearch, batch_size: int) -> list[Any]:
    """Of the nodes that are tried together."""
    entries = _pop(search, batch_size)
    return entries[:-1] if len(entries) > 1 else entries


@pytest.mark.parametrize(
    ("holder", "part", "planted", "policy", "check"),
    [
        (BestFirstSearch, "_pop", _loses_the_last, FIT, check_nodes_by_themselves),
        (candidate_search, "node_batches", _forgets_the_last, ACROSS, check_nodes_by_themselves),
        (AttemptRunner, "_run", _begins_anew, FIT, check_steps),
    ],
    ids=["the last node is forgotten", "or where rules look across", "a step is lost"],
)
def test_a_planted_mistake_is_found(
    holder: object,
    part: str,
    planted: object,
    policy: str,
    check: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holder, part, planted)

    with pytest.raises(AssertionError):
        for number in range(60):
            check(policy, number)


def test_an_event_between_two_steps_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the first event has the decision finished is what keeps it on one state of the cluster."""
    handle = Scheduler.handle

    def at_once(self: Scheduler, event: e.Event, now_ns: int) -> list[c.Command]:
        runner = self._attempts
        thought, runner._attempt = runner._attempt, None
        commands = handle(self, event, now_ns)
        runner._attempt = thought
        return commands

    monkeypatch.setattr(Scheduler, "handle", at_once)

    with pytest.raises(AssertionError):
        test_an_attempt_finishes_on_its_snapshot_before_an_event_is_applied()
