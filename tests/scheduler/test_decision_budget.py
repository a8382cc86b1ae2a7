"""Pods that are too expensive to decide about stay pending, and long decisions give the event loop back."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from policysched.evaluate import Evaluator, Overlay, decision_cost
from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT, DecisionCost
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.gangs import gang_attempt, gang_limits
from policysched.scheduler.gangs.gang_limits import DomainBudget
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps
from tests.builders import node, placed, pod
from tests.hostile import HOSTILE_SPECS, anti_affinity, hostile_pod
from tests.scheduler.calls import nothing_in_steps
from tests.scheduler.rig import GANG, Rig

POLICY = "policy test version 1\ninclude kube_default\n"
OWN_KEYS, BY_HOST = "anti-affinity on its own topology keys", "anti-affinity by host that selects nothing"
BUDGET = 1_000_000


def nodes(count: int = 3) -> list[object]:
    return [node(f"n{index}", cpu="8", zone=f"z{index}") for index in range(count)]


def rig(*objects: object, **limits: int) -> Rig:
    return Rig(POLICY, *nodes(), *objects, limits=SchedulerLimits(**{"decision_budget": BUDGET, **limits}))  # type: ignore[arg-type]


# ── the budget ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", HOSTILE_SPECS)
def test_a_pod_over_the_budget_stays_pending_and_others_are_bound(kind: str) -> None:
    scheduler = rig(hostile_pod(kind, count=1_500, priority=10), pod("plain"))

    scheduler.settle()

    assert list(scheduler.placements()) == ["plain"]
    assert scheduler.counts() == {"unschedulable": 1}
    assert scheduler.scheduler.counters.over_budget == {"test": 1}


def test_the_message_names_what_is_too_expensive() -> None:
    scheduler = rig(hostile_pod(OWN_KEYS, count=1_500))

    commands = scheduler.settle()

    (report,) = [command for command in commands if isinstance(command, c.ReportPending)]
    assert (report.reason, report.message) == (
        "PolicyPending",
        "evaluating this pod exceeds the budget of 1000000 operations for a decision, mostly by its 1500 pod anti-affinity "
        "terms over 3 nodes (settings: scheduling.decision_budget)",
    )


def test_a_pod_with_very_many_uses_of_resource_claims_is_over_the_budget() -> None:
    uses = [{"name": f"r{number}", "resourceClaimName": "c"} for number in range(1_500)]
    scheduler = rig(pod("hostile", spec={"resourceClaims": uses}))

    scheduler.settle()

    assert "1500 resource claims" in str(scheduler.pending_message("hostile"))


def test_claims_are_read_for_each_node() -> None:
    uses = [{"name": f"r{number}", "resourceClaimName": f"c{number}"} for number in range(300)]
    hostile, usual = (
        pod("hostile", spec={"resourceClaims": uses}),
        pod("usual", spec={"resourceClaims": uses[:30]}),
    )

    assert DecisionCost(hostile).over_budget_message(100, DECISION_BUDGET_DEFAULT) is None
    message = DecisionCost(hostile).over_budget_message(1_000, DECISION_BUDGET_DEFAULT)
    assert message is not None and "mostly by its 300 resource claims over 1000 nodes" in message
    assert DecisionCost(usual).over_budget_message(5_000, DECISION_BUDGET_DEFAULT) is None


def test_a_pod_with_very_many_requests_for_extended_resources_is_over_the_budget() -> None:
    """Those of init containers are compared with those of the others: gigabytes for 6,000 and 6,000."""
    resources = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}
    containers = [{"name": f"c{number}", "image": "app:1", "resources": resources} for number in range(200)]
    scheduler = rig(pod("hostile", spec={"containers": containers}))

    scheduler.settle()

    assert "168 container requests for extended resources" in str(scheduler.pending_message("hostile"))


@pytest.mark.parametrize("kind", ["requirements", "spread constraints"])
def test_an_attempt_counts_the_items_of_a_pod_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = [{"key": f"k{number}", "operator": "Exists"} for number in range(30_000)]
    spread = {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    keys = [f"k{number}" for number in range(3_000)]
    hostile = (
        pod(
            "hostile",
            spec=anti_affinity([{"topologyKey": "a", "labelSelector": {"matchExpressions": requirements}}]),
        )
        if kind == "requirements"
        else pod(
            "hostile",
            labels=dict.fromkeys(keys, "v"),
            spec={"topologySpreadConstraints": [{**spread, "matchLabelKeys": keys}] * 60},
        )
    )
    scheduler = rig(hostile)
    counted: list[str] = []
    for name in ("_item_counts", "_count_values"):
        count = getattr(decision_cost, name)
        monkeypatch.setattr(
            decision_cost, name, lambda pod, name=name, count=count: (counted.append(name), count(pod))[1]
        )

    scheduler.settle()

    assert scheduler.counts() == {"unschedulable": 1}
    assert sorted(counted) == ["_count_values", "_item_counts"]


def test_a_pod_over_the_budget_is_not_tried_again_when_pods_or_nodes_come() -> None:
    scheduler = rig(hostile_pod(OWN_KEYS, count=1_500))
    scheduler.settle()

    scheduler.observe(node("new"), placed(gone := pod("gone"), "n0"))
    scheduler.handle(e.PodDeleted(gone.uid))
    scheduler.pass_time(30)

    assert scheduler.scheduler.counters.over_budget == {"test": 1}


def test_a_pod_that_fits_the_budget_once_a_node_is_gone_is_bound() -> None:
    scheduler = rig(hostile_pod(OWN_KEYS, count=900), decision_budget=903_000)
    scheduler.settle()
    assert scheduler.placements() == {}

    for index in (1, 2):
        scheduler.handle(e.NodeDeleted(f"n{index}"))
    scheduler.pass_time(30)

    assert scheduler.placements() == {"hostile": "n0"}


def test_members_of_a_gang_share_one_budget() -> None:
    labels = {"group": "g", "least": "2"}
    policy = GANG.format(more="").replace("filter node_resources_fit", "include kube_default")
    limits = SchedulerLimits(decision_budget=2_000_000)
    members = [hostile_pod(BY_HOST, f"m{index}", count=1_100, labels=labels) for index in range(2)]
    gang = Rig(policy, *nodes(), *members, limits=limits)  # type: ignore[arg-type]
    alone = Rig(POLICY, *nodes(), members[0], limits=limits)  # type: ignore[arg-type]

    gang.settle()
    alone.settle()

    assert list(alone.placements()) == ["m0"]
    assert gang.placements() == {}
    assert "the budget of a gang with 2 members is 2032192 " in str(gang.pending_message("m0"))


def gang_of(count: int, terms: int, **limits: int) -> Rig:
    """Members that each have their own terms, and a plain pod without a gang."""
    labels = {"group": "g", "least": str(count)}
    policy = GANG.format(more=' topology = "zone"').replace(
        "filter node_resources_fit", "include kube_default"
    )
    members = [
        hostile_pod(
            BY_HOST, f"m{index}", count=terms + index, labels=labels, cpu=f"{10 + index}m", priority=10
        )
        for index in range(count)
    ]
    racks = [node(f"n{index}", cpu="8", labels={"zone": f"z{index}"}) for index in range(3)]
    return Rig(policy, *racks, *members, pod("plain"), limits=SchedulerLimits(**limits))  # type: ignore[arg-type]


def test_a_gang_of_many_medium_members_has_a_budget_as_a_whole() -> None:
    gang = gang_of(12, terms=300, decision_budget=500_000)

    gang.settle()

    assert list(gang.placements()) == ["plain"]
    assert gang.scheduler.counters.over_budget == {"test": 1}
    assert "the budget of a gang with 12 members is 693152 " in str(gang.pending_message("m0"))


def test_the_budget_of_a_gang_grows_with_its_members() -> None:
    gang = gang_of(12, terms=8, decision_budget=40_000)

    gang.settle()

    assert len(gang.placements()) == 13


def test_a_step_of_a_gang_has_fewer_members_the_more_a_member_costs() -> None:
    calls = [decide_calls(gang_of(12, terms=terms, decision_budget=10**7)) for terms in (1, 180)]

    assert calls[1] >= calls[0] + 4


def test_domains_are_tried_until_the_budget_of_the_gang_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 10)
    gang = gang_of(12, terms=1)
    gang.observe(*[node(f"n{index}", cpu="100m", labels={"zone": f"z{index}"}) for index in range(3)])

    gang.settle()

    assert "(only 2 domains tried so far; the next attempts try the others)" in str(
        gang.pending_message("m0")
    )


LEVELS = '["zone" required, "row" preferred, "rack" preferred]'


def evaluations_of_levels(least: int, cpus: Sequence[str]) -> tuple[Rig, int]:
    """One attempt of unequal members with 16 racks and rows, and how often one was evaluated."""
    policy = GANG.format(more=f" topology = {LEVELS}")
    places = {
        f"n{index}": {"zone": f"z{index % 2}", "row": f"w{index}", "rack": f"r{index}"} for index in range(16)
    }
    racks = [node(name, cpu="8", labels=labels) for name, labels in places.items()]
    labels = {"group": "g", "least": str(least)}
    members = [pod(f"m{index}", cpu=cpu, labels=labels) for index, cpu in enumerate(cpus)]
    gang, evaluated = Rig(policy, *racks, *members), list[None]()
    evaluate, candidates = PodAttempts.evaluate, Evaluator.candidate_domains
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PodAttempts, "evaluate", lambda *a, **k: (evaluated.append(None), evaluate(*a, **k))[1])
        patch.setattr(
            Evaluator, "candidate_domains", lambda *a, **k: (evaluated.append(None), candidates(*a, **k))[1]
        )
        patch.setattr(gang_attempt, "most_demanding_first", nothing_in_steps)
        gang.settle()
    return gang, len(evaluated)


def test_preferred_domains_are_tried_until_the_budget_of_the_gang_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each domain takes all members but the last: 159 evaluations. A required domain is tried, and the others later."""
    monkeypatch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 10)

    gang, evaluations = evaluations_of_levels(4, ["1000m", "1001m", "1002m", "9"])

    assert evaluations <= 10 + 4 + 1 + 4 * 3 + 1, "the budget, a preferred domain and a required one"
    message = str(gang.pending_message("m0"))
    assert "3 of 4 members fit now in zone=" in message
    assert "(only 1 domains tried so far; the next attempts try the others)" in message
    gang.pass_time(10)
    assert "domains tried so far" not in str(gang.pending_message("m0"))


def test_members_without_a_preferred_domain_count_for_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was evaluated for each level: 42 times."""
    monkeypatch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 4)

    _, evaluations = evaluations_of_levels(1, [f"{9 + index}" for index in range(10)])

    assert evaluations <= 5 + 10 + 10 + 1


def test_a_gang_that_fits_a_required_domain_does_not_wait_for_the_preferred_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 4)

    gang, _ = evaluations_of_levels(4, [f"{4001 + index}m" for index in range(4)])

    assert len(gang.placements()) == 4


def test_a_gang_that_runs_in_part_evicts_pods_although_preferred_domains_use_up_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its members fix the domain: no later attempt would try another one, and each would put off preemption."""
    monkeypatch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 3)
    policy = GANG.format(more=f" topology = {LEVELS}") + "preemption { victims = any }\n"
    words = {"cpu": "2", "labels": {"group": "g", "least": "2"}, "priority": 10}
    only = node("n0", cpu="4", labels={"zone": "z0", "row": "w0", "rack": "r0"})
    running = placed(pod("m0", **words), "n0"), placed(pod("low", cpu="2", scheduler="other"), "n0")
    gang = Rig(policy, only, *running, pod("m1", **words))

    gang.settle()
    gang.pass_time(3)

    assert [victim.name for evict in gang.of(c.Evict) for victim in evict.victims] == ["low"]


def late_domain_gang(monkeypatch: pytest.MonkeyPatch, *, late_cpu: str = "8") -> Rig:
    """Nine domains, of which one attempt tries one. Only the last in the order has room for the gang, or none."""
    monkeypatch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 1)
    policy = GANG.format(more=' topology = "zone"') + 'score late_last weight 1 prefer node.name != "late"\n'
    racks = [
        node(f"n{index}-{half}", cpu="3", labels={"zone": f"z{index}"})
        for index in range(8)
        for half in range(2)
    ]
    late = node("late", cpu=late_cpu, labels={"zone": "late"})
    members = [pod(f"m{index}", cpu="2", labels={"group": "g", "least": "4"}) for index in range(3)]
    large = pod("m3", cpu="1", labels={"group": "g", "least": "4"})
    return Rig(policy, *racks, late, *members, large)


def test_a_search_that_was_cut_off_continues_with_the_domains_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gang = late_domain_gang(monkeypatch)

    gang.settle()
    assert gang.placements() == {}
    gang.pass_time(120)

    assert set(gang.placements().values()) == {"late"}


def test_after_all_domains_were_tried_a_new_round_starts_a_minute_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gang = late_domain_gang(monkeypatch, late_cpu="2")
    gang.settle()
    gang.pass_time(30)
    attempts = gang.scheduler.counters.over_budget["test"]

    gang.pass_time(25)
    assert gang.scheduler.counters.over_budget["test"] == attempts
    gang.pass_time(120)

    assert gang.placements() == {}
    assert gang.scheduler.counters.over_budget["test"] > attempts


def test_a_search_that_starts_with_the_same_domains_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_attempt, "domains_to_skip", lambda _: frozenset[str]())

    with pytest.raises(AssertionError):
        test_a_search_that_was_cut_off_continues_with_the_domains_that_are_left(monkeypatch)


def check_gang_budget(number: int) -> None:
    """Whatever a gang consists of, one attempt evaluates no more than its budget and one domain, and others are bound."""
    rng = Random(number)
    count, terms = rng.randint(2, 12), rng.choice((1, 20, 60, 300))
    zones = rng.randint(1, 12)
    budget = rng.choice((20_000, 60_000, 200_000))
    labels = {"group": "g", "least": str(count)}
    members = [
        hostile_pod(
            BY_HOST, f"m{index}", count=terms + index, labels=labels, cpu=f"{10 + index}m", priority=10
        )
        for index in range(count)
    ]
    cpu = rng.choice(("8", "60m"))
    racks = [node(f"n{index}", cpu=cpu, labels={"zone": f"z{index}"}) for index in range(zones)]
    policy = GANG.format(more=' topology = "zone"').replace(
        "filter node_resources_fit", "include kube_default\npreemption never"
    )
    scheduler = Rig(
        policy,
        *racks,
        *members,
        pod("plain", cpu="1m"),
        limits=SchedulerLimits(decision_budget=budget),  # type: ignore[arg-type]
    )
    evaluator = scheduler.scheduler._core.evaluator
    allowance = evaluator.gang_budget(1) - evaluator.gang_budget(0)
    costs: list[int] = []
    evaluate = PodAttempts.evaluate

    def counted(
        self: PodAttempts, attempted: PendingPod, overlay: Overlay | None, now_ns: int, *more: object
    ) -> object:
        if attempted.uid != "uid-default-plain":
            costs.append(evaluator.decision_cost(attempted.pod))
        return evaluate(self, attempted, overlay, now_ns, *more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PodAttempts, "evaluate", counted)
        patch.setattr(gang_limits, "GANG_EVALUATIONS_MAX", 10)
        patch.setattr(gang_attempt, "most_demanding_first", nothing_in_steps)
        scheduler.scheduler.decide(scheduler.now_ns)
        while scheduler.scheduler.attempt_in_progress:
            scheduler.scheduler.decide(scheduler.now_ns)

    domain_cost = sum(evaluator.decision_cost(member) for member in members)
    spent = sum(costs) - allowance * len(costs)
    assert spent <= evaluator.gang_budget(count) + domain_cost, f"{spent} operations of {count} members"
    assert len(costs) <= 10 + count + 1, f"{len(costs)} members were evaluated"
    assert domain_cost <= evaluator.gang_budget(count) or not costs, "the gang is over its budget"


def test_an_attempt_of_a_gang_stays_within_its_budget() -> None:
    for number in range(40):
        check_gang_budget(number)


@pytest.mark.parametrize(
    ("owner", "part", "planted"),
    [(gang_attempt, "over_budget_message", nothing_in_steps), (DomainBudget, "is_exceeded", False)],
    ids=["members are not added up", "all domains are tried"],
)
def test_a_gang_budget_that_nothing_checks_is_caught(
    owner: object, part: str, planted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, part, planted)

    with pytest.raises(AssertionError):
        test_an_attempt_of_a_gang_stays_within_its_budget()


def test_a_budget_that_nothing_checks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Evaluator, "over_budget_message", lambda *_: None)

    with pytest.raises(AssertionError):
        test_a_pod_over_the_budget_stays_pending_and_others_are_bound("tolerations")


# ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def decide_calls(scheduler: Rig) -> int:
    calls = 0
    while scheduler.scheduler.ready(scheduler.now_ns):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        calls += 1
    return calls


def test_a_long_decision_gives_the_event_loop_back_after_each_rule() -> None:
    long = rig(hostile_pod(BY_HOST, count=500))
    short = rig(pod("plain"))

    long_calls, short_calls = decide_calls(long), decide_calls(short)

    assert short_calls <= 2
    assert long_calls > 10
    assert list(long.placements()) == ["hostile"]


@pytest.mark.parametrize("kind", HOSTILE_SPECS)
def test_the_steps_of_a_long_decision_do_not_change_it(kind: str) -> None:
    hostile = hostile_pod(kind, count=30 if kind == "tolerations" else 300)
    in_steps, at_once = rig(hostile), rig(hostile, attempt_step_cost_max=10**9)

    decide_calls(in_steps)
    decide_calls(at_once)

    def without_timers(run: Rig) -> list[c.Command]:
        return [command for command in run.commands if not isinstance(command, c.SetTimer)]

    assert without_timers(in_steps) == without_timers(at_once)


def test_an_event_between_two_steps_is_applied_after_the_decision() -> None:
    scheduler = rig(hostile_pod(BY_HOST, count=500))
    scheduler.scheduler.decide(scheduler.now_ns)
    scheduler.scheduler.decide(scheduler.now_ns)
    assert scheduler.scheduler.attempt_in_progress

    commands = scheduler.handle(*[e.NodeDeleted(f"n{index}") for index in range(3)])

    assert [command.name for command in commands if isinstance(command, c.Bind)] == ["hostile"]


def test_a_long_decision_that_is_given_up_leaves_nothing_behind() -> None:
    scheduler = rig(hostile_pod(BY_HOST, count=500))
    for _ in range(5):
        scheduler.scheduler.decide(scheduler.now_ns)
    assert scheduler.scheduler.attempt_in_progress

    scheduler.scheduler.requeue_current_attempt(scheduler.now_ns)
    scheduler.observe(node("other", cpu="64"))
    scheduler.settle()

    assert list(scheduler.placements()) == ["hostile"]


def evaluations_and_dry_runs_of_steps(monkeypatch: pytest.MonkeyPatch, terms: int) -> list[list[str]]:
    """Of the steps of an attempt for a pod with so many affinity terms, for which others could be evicted."""
    calls: list[list[str]] = [[]]

    def noted(name: str) -> None:
        original = getattr(Evaluator, name)

        def call(*args: object, **more: object) -> object:
            calls[-1].append(name)
            return original(*args, **more)

        monkeypatch.setattr(Evaluator, name, call)

    noted("evaluate")
    noted("dry_run")
    full = [placed(pod(f"low{index}", cpu="8"), f"n{index}") for index in range(3)]
    hungry = pod("hungry", cpu="1", priority=10, spec=HOSTILE_SPECS["preferred affinity by zone"](terms))
    scheduler = Rig(POLICY + "preemption { victims = any }\n", *nodes(), *full, hungry)
    while scheduler.scheduler.ready(scheduler.now_ns):
        calls.append([])
        scheduler.scheduler.decide(scheduler.now_ns)
    return [names for names in calls if names]


@pytest.mark.parametrize("terms", [1, 300])
def test_a_preemption_begins_in_another_step_than_the_evaluation(
    terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluations_and_dry_runs_of_steps(monkeypatch, terms) == [["evaluate"], ["dry_run"]]


def test_a_preemption_in_the_step_of_the_evaluation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    preempt = DefaultPreemption.preempt_for_pod

    def at_once(*arguments: Any) -> Steps[Any]:
        steps = preempt(*arguments)
        next(steps)
        return (yield from steps)

    monkeypatch.setattr(DefaultPreemption, "preempt_for_pod", at_once)

    assert evaluations_and_dry_runs_of_steps(monkeypatch, 300) == [["evaluate", "dry_run"]]


def test_preemption_is_not_tried_for_a_pod_whose_decision_is_long() -> None:
    policy = "policy test version 1\ninclude kube_default\npreemption { victims = any }\n"
    full = [placed(pod(f"low{index}", cpu="8"), f"n{index}") for index in range(3)]
    limits = SchedulerLimits(decision_budget=10**8)
    scheduler = Rig(
        policy, *nodes(), *full, hostile_pod(BY_HOST, count=1_100, priority=10, cpu="1"), limits=limits
    )  # type: ignore[arg-type]

    scheduler.settle()

    assert not scheduler.of(c.Evict)
    assert str(scheduler.pending_message("hostile")).endswith(
        "preemption: not attempted: the evaluation of this pod exceeds the decision budget."
    )
