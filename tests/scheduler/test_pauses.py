"""Pauses in the attempt of a gang: what happens meanwhile, and what must hold afterwards."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from policysched.evaluate.plan import kept_variants
from policysched.evaluate.plan.lowering import Variant
from policysched.evaluate.plan.plan import Plan
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod, Toleration
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.gangs import gang_attempt, lost_nodes
from policysched.scheduler.gangs.counted_members import CountedMembers
from policysched.scheduler.gangs.gang_overlay import present_overlay
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.queue.active_queues import ActiveQueues
from policysched.scheduler.queue.backoff import BackoffQueue
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.steps import NEW_CLASS_COST, Steps
from tests.builders import node, placed, pod
from tests.evaluate.clusters import ClusterRandom
from tests.scheduler.calls import count_calls, nothing_in_steps
from tests.scheduler.rig import FIT, GANG, Rig
from tests.simulation.order_checker import OrderChecker

ALONE = GANG.format(more="") + "preemption never\n"
POLICIES = {"gangs.policy": ALONE, "plain.policy": FIT.replace("policy test", "policy plain")}
SPREAD = (
    GANG.format(more="").replace("filter node_resources_fit", "include kube_default") + "preemption never\n"
)
IN_A_RACK = GANG.format(more=' topology = "rack"') + "preemption never\n"
NEVER = 10**9


def rig(
    *objects: object, policies: dict[str, str] | None = None, piece: int = 1, head_start: int = NEVER
) -> Rig:
    """Each member of a gang is a step, and `piece` of them a piece."""
    limits = SchedulerLimits(
        attempt_step_cost_max=1,
        gang_piece_cost_max=piece,
        gang_piece_cost_by_member=0,
        gang_head_start_cost=head_start,
    )
    return Rig(policies or POLICIES, *objects, limits=limits)  # type: ignore[arg-type]


def gang(count: int, *, name: str = "g", cpu: str = "1", priority: int = 0) -> list[Pod]:
    labels = {"group": name, "least": str(count)}
    return [
        pod(f"{name}{index}", cpu=cpu, labels=labels, priority=priority, created="2026-01-01T00:00:00Z")
        for index in range(count)
    ]


def plain(name: str, *, cpu: str = "1", scheduler: str = "plain") -> Pod:
    return pod(name, cpu=cpu, scheduler=scheduler, created="2026-01-02T00:00:00Z")


def decide_until_pause(scheduler: Rig, number: int = 1) -> None:
    """Up to the pause with this number."""
    while scheduler.scheduler.ready(scheduler.now_ns):
        before = scheduler.scheduler._attempts._pause
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        number -= scheduler.scheduler._attempts._pause not in (before, None)
        if not number:
            return
    raise AssertionError("there was no such pause")


def attempts_pause(scheduler: Rig) -> Pause:
    pause = scheduler.scheduler._attempts._pause
    assert pause is not None
    return pause


# ── what happens in a pause ────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_of_another_policy_is_bound_while_a_gang_is_attempted() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="2") for index in range(6)], *gang(8))
    decide_until_pause(scheduler, 3)

    scheduler.observe(plain("p"))
    scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert list(scheduler.placements()) == ["p"]
    scheduler.settle()
    assert len(scheduler.placements()) == 9


def test_the_time_of_a_gang_is_that_of_all_its_pieces_without_the_pods_between_them() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="2") for index in range(6)], *gang(8))
    ended = []

    def decide() -> None:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        ended.append(scheduler.scheduler.account_time(10))

    for _ in range(3):
        decide()
    assert scheduler.scheduler.attempt_paused
    scheduler.observe(plain("p"))
    while scheduler.scheduler.ready(scheduler.now_ns):
        decide()

    *pieces, gang_ns = ended
    assert [time for time in pieces if time is not None] == [10]
    assert gang_ns == 10 * (len(ended) - 1)


def room_in_a_pause(scheduler: Rig) -> None:
    """The event opens the group of the gang as soon as it is parked."""
    scheduler.handle(e.PodDeleted(PodUid("uid-default-old")))


def no_first_member(scheduler: Rig) -> None:
    """The search is of no use any more, and the gang still has its minimum."""
    scheduler.handle(e.PodDeleted(PodUid("uid-default-g0")))
    scheduler.observe(*gang(10)[9:])


def timeout_in_a_pause(scheduler: Rig) -> None:
    """The gang is queued again, as if it had not been attempted."""
    scheduler.now_ns += 60 * 10**9
    scheduler.observe(plain("p"))


@pytest.mark.parametrize("meanwhile", [room_in_a_pause, no_first_member, timeout_in_a_pause])
def test_a_gang_that_is_queued_again_at_once_is_charged_for_the_attempt_that_failed(
    meanwhile: Callable[[Rig], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout = GANG.format(more=" timeout = 30s") + "preemption never\n"
    scheduler = rig(
        node("n", cpu="4"),
        placed(pod("old", cpu="1"), "n"),
        *gang(9),
        policies=POLICIES | {"gangs.policy": timeout},
    )
    charged: list[tuple[str, int]] = []
    time = scheduler.scheduler.core.queue.decision_time
    monkeypatch.setattr(time, "charge_failed_attempt", lambda *charge: charged.append(charge))
    decide_until_pause(scheduler, 2)
    scheduler.scheduler.account_time(10)

    meanwhile(scheduler)
    while not charged and scheduler.scheduler.ready(scheduler.now_ns):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.scheduler.account_time(10)

    entry = next(iter(scheduler.scheduler.core.gangs))
    assert charged
    assert entry.state is not QueueState.UNSCHEDULABLE


def test_a_pod_gets_no_room_of_the_members_that_have_a_node() -> None:
    scheduler = rig(node("n0", cpu="4"), *gang(4))
    decide_until_pause(scheduler, 4)

    scheduler.observe(plain("p", cpu="2"))
    scheduler.settle()

    assert len(scheduler.placements()) == 4
    assert scheduler.counts() == {"unschedulable": 1}


def test_a_pod_behind_the_gang_in_its_policy_waits_for_the_head_start_of_the_gang() -> None:
    orders = {}
    for head_start in (NEW_CLASS_COST + 3, NEVER):
        scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8), head_start=head_start)
        decide_until_pause(scheduler)
        scheduler.now_ns += 1
        scheduler.observe(plain("behind", scheduler="test"))
        scheduler.settle()
        orders[head_start] = scheduler.bind_order().index("behind")

    assert list(orders.values()) == [0, 8]


def test_a_gang_of_an_overdrawn_namespace_has_no_head_start() -> None:
    """It comes after all others, and was attempted because there were none."""
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8))
    decide_until_pause(scheduler)
    scheduler.scheduler.core.queue.decision_time.charge_failed_attempt("default", SECOND_NS)
    scheduler.now_ns += 1
    scheduler.observe(
        pod("behind", namespace="friendly", cpu="1", created="2026-01-02T00:00:00Z"),
        plain("own", scheduler="test"),
    )
    scheduler.settle()

    assert scheduler.bind_order().index("behind") == 0
    assert scheduler.bind_order().index("own") == 9


def test_the_search_for_a_gang_of_an_overdrawn_namespace_pauses_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    for failed_ns in (0, SECOND_NS):
        scheduler = rig(node("n", cpu="100"), *gang(100), piece=50)
        decide_until_pause(scheduler)
        scheduler.scheduler.core.queue.decision_time.charge_failed_attempt("default", failed_ns)
        counts.append(count_calls(monkeypatch, Pause, "__post_init__", scheduler.settle))

    usual, overdrawn = counts
    assert usual > 0
    assert overdrawn >= 4 * usual


def test_a_gang_of_an_overdrawn_namespace_has_its_head_start_before_lower_priorities() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8, priority=1))
    decide_until_pause(scheduler)
    scheduler.scheduler.core.queue.decision_time.charge_failed_attempt("default", SECOND_NS)
    scheduler.observe(pod("behind", namespace="friendly", cpu="1", created="2026-01-02T00:00:00Z"))
    scheduler.settle()

    assert scheduler.bind_order().index("behind") == 8


def calls_until_pause(scheduler: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The evaluations of each call of `decide`, up to the first pause or the end of the attempt."""
    counts = []
    while scheduler.scheduler.ready(scheduler.now_ns) and not scheduler.scheduler.attempt_paused:
        counts.append(
            count_calls(
                monkeypatch, PodAttempts, "evaluate", lambda: scheduler.scheduler.decide(scheduler.now_ns)
            )
        )
    return counts


def test_members_that_share_nothing_are_evaluated_in_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes about 0.5 ms with the reasons of the nodes: a call 10 ms, and a piece 0.1 s."""
    labels = {"group": "g", "least": "2"}
    unequal = [pod(f"g{index}", cpu=f"{2000 + index}m", labels=labels) for index in range(400)]
    counts = calls_until_pause(Rig(ALONE, node("n", cpu="1"), *unequal), monkeypatch)

    assert 100 <= sum(counts) <= 200
    assert max(counts) <= 20


@pytest.mark.parametrize("policy", [ALONE, GANG.format(more="")], ids=["alone", "evicting"])
def test_members_of_many_classes_in_turns_are_evaluated_in_short_pieces(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """What a class shares has to catch up with those that were placed since its last member: as long as for a new class."""
    labels = {"group": "g", "least": "300"}
    members = [
        pod(f"g{index}", cpu=f"{1000 + index % 50}m", labels=labels, priority=1) for index in range(300)
    ]
    nodes = [node(f"n{index}", cpu="4") for index in range(95)]
    scheduler = Rig(policy, *nodes, placed(pod("low", cpu="1m"), "n1"), *members)
    counts = []
    while scheduler.scheduler.ready(scheduler.now_ns):
        counts.append(
            count_calls(
                monkeypatch, PodAttempts, "evaluate", lambda: scheduler.scheduler.decide(scheduler.now_ns)
            )
        )

    assert sum(counts) >= 280
    assert max(counts) <= 20


def test_equal_members_are_evaluated_in_long_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = calls_until_pause(Rig(ALONE, node("n", cpu="100"), *gang(100)), monkeypatch)

    assert sum(counts) == 100
    assert max(counts) >= 70


def test_a_pod_ahead_of_the_gang_in_its_policy_is_not_delayed_by_the_head_start() -> None:
    urgent = ALONE + "queue by pod.priority desc\n"
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(4)], *gang(8), policies={"a.policy": urgent}
    )
    decide_until_pause(scheduler)

    scheduler.observe(pod("urgent", cpu="1", priority=10))
    scheduler.settle()

    assert scheduler.bind_order()[0] == "urgent"


QUOTAS = (
    ALONE
    + """\
queue by pod.priority desc, pod.created
quota space by pod.namespace {
  others { pods = 100 }
}
"""
)


def check_who_is_placed(ahead: list[Pod]) -> None:
    """The members of the gang would leave no node for the pods that come ahead of it while its attempt is paused."""
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(2)], *gang(8), policies={"a.policy": QUOTAS}
    )
    problems: list[str] = []
    OrderChecker(scheduler.scheduler, problems.append)
    decide_until_pause(scheduler, 3)

    scheduler.observe(*ahead)
    scheduler.settle()

    assert sorted(scheduler.placements()) == [pod.name for pod in ahead]
    assert not problems


def test_a_gang_yields_to_a_pod_that_comes_ahead_of_it_in_a_pause() -> None:
    """It has a node only without the members."""
    check_who_is_placed([pod("urgent", cpu="4", priority=10, created="2026-01-02T00:00:00Z")])


def test_a_gang_yields_to_a_gang_that_comes_ahead_of_it_in_a_pause() -> None:
    check_who_is_placed(gang(2, name="urgent", priority=10))


def test_beside_a_paused_gang_no_pod_passes_a_more_important_one_of_an_overdrawn_namespace() -> None:
    """Seed 3100919: the pod that passed was evicted for the other one at once."""
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8, priority=9), head_start=1)
    decide_until_pause(scheduler)
    scheduler.scheduler.core.queue.decision_time.charge_failed_attempt("tenant", 10**9 // 2)
    scheduler.observe(
        pod("urgent", namespace="tenant", cpu="1", priority=5, scheduler="test"),
        pod("equal", namespace="tenant", cpu="1", priority=1, scheduler="test"),
        pod("usual", namespace="friendly", cpu="1", priority=1, scheduler="test"),
    )

    scheduler.settle()

    order = [name for name in scheduler.bind_order() if name in ("urgent", "equal", "usual")]
    assert order == ["urgent", "usual", "equal"]


def test_a_pod_that_fits_nowhere_does_not_delay_those_behind_it() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8))
    decide_until_pause(scheduler)

    scheduler.observe(plain("impossible", cpu="64"), plain("p"))
    for _ in range(4):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert "p" in scheduler.placements()
    scheduler.settle()
    scheduler.pass_time(5)
    assert "Insufficient cpu" in str(scheduler.pending_message("impossible"))


def test_pods_that_fit_nowhere_beside_a_gang_are_at_the_expense_of_their_namespace() -> None:
    """Otherwise others wait for all of them, as they are queued earlier."""
    scheduler = rig(*[node(f"n{index}", cpu="2") for index in range(30)], *gang(60), piece=4)
    decide_until_pause(scheduler)
    impossible = [
        pod(f"tenant-{index}", namespace="tenant", cpu=str(64 + index), scheduler="plain")
        for index in range(40)
    ]
    scheduler.observe(*impossible)
    scheduler.now_ns += 1
    scheduler.observe(plain("friend"))
    scheduler.scheduler.account_time(0)

    while "friend" not in scheduler.placements() and scheduler.scheduler.attempt_paused:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.scheduler.account_time(10**7)

    tried = [
        pending for pending in scheduler.scheduler.core.pods.values() if pending.pod.namespace == "tenant"
    ]
    assert "friend" in scheduler.placements()
    assert 5 < sum(pending.attempts for pending in tried) < 20


def check_pod_that_failed_in_a_pause() -> None:
    """It keeps its position although it backs off, once the attempt of the gang is over."""
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(4)],
        *gang(8),
        policies={"a.policy": ALONE + "queue by pod.priority desc, pod.created\n"},
    )
    decide_until_pause(scheduler)
    scheduler.observe(pod("urgent", cpu="8", priority=10))
    scheduler.settle()
    assert len(scheduler.placements()) == 8

    scheduler.observe(node("large", cpu="8"), pod("usual", cpu="7"))
    scheduler.settle()

    assert scheduler.placements()["urgent"] == "large"
    assert "usual" not in scheduler.placements()


def test_a_pod_that_failed_in_a_pause_is_not_overtaken_afterwards() -> None:
    check_pod_that_failed_in_a_pause()


def test_a_member_that_joins_in_a_pause_is_attempted_afterwards() -> None:
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8))
    decide_until_pause(scheduler)

    scheduler.observe(pod("late", cpu="1", labels={"group": "g", "least": "8"}))
    scheduler.settle()

    assert len(scheduler.placements()) == 9


def test_a_member_that_joins_in_a_pause_is_attempted_afterwards_whatever_level_is_searched() -> None:
    levels = GANG.format(more=' topology = ["row" preferred, "rack" preferred]') + "preemption never\n"
    places = {f"n{index}": {"row": f"w{index}", "rack": f"r{index}"} for index in range(5)}
    nodes = [node(name, cpu="1", labels=labels) for name, labels in places.items()]
    scheduler = rig(*nodes, *gang(4), policies={**POLICIES, "gangs.policy": levels})
    decide_until_pause(scheduler)

    scheduler.observe(pod("late", cpu="1", labels={"group": "g", "least": "4"}))
    scheduler.settle()

    assert len(scheduler.placements()) == 5


@pytest.mark.parametrize("end", ["it yields", "the process makes no more attempts"])
def test_an_attempt_that_does_not_count_counts_for_no_member_that_joined_in_a_pause(end: str) -> None:
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(3)], *gang(8), policies={"a.policy": QUOTAS}
    )
    decide_until_pause(scheduler, 3)
    entry = attempts_pause(scheduler).gang

    scheduler.observe(pod("late", cpu="1", labels={"group": "g", "least": "8"}))
    if end == "it yields":
        scheduler.observe(*gang(1, name="urgent", priority=10))
        while entry.state is QueueState.ATTEMPTING:
            scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    else:
        scheduler.scheduler.requeue_current_attempt(scheduler.now_ns)

    assert entry.state is QueueState.ACTIVE and len(entry.pending_members) == 9
    assert {pod.attempts for pod in (entry, *entry.pending_members.values())} == {0}


def check_changed_member() -> None:
    """The gang needs three of four members. The first has failed when it comes to tolerate its node, and one of the others
    fails later."""
    labels = {"group": "g", "least": "3"}
    members = [
        pod(f"g{index}", cpu="1", labels=labels, node_selector={"name": "n1" if index else "n0"})
        for index in range(4)
    ]
    nodes = [
        node("n0", cpu="4", labels={"name": "n0"}, taints=["only=some:NoSchedule"]),
        node("n1", cpu="2", labels={"name": "n1"}),
    ]
    scheduler = rig(*nodes, *members, policies={"a.policy": SPREAD})
    with pytest.MonkeyPatch.context() as patch:
        # The second search would see the change.
        patch.setattr(gang_attempt, "most_demanding_first", nothing_in_steps)
        decide_until_pause(scheduler, 3)

        scheduler.observe(replace(members[0], tolerations=(Toleration("only", "Exists", "", ""),)))
        scheduler.settle()
        scheduler.pass_time(5)

    assert len(scheduler.placements()) == 3


def test_a_member_that_changes_in_a_pause_requeues_a_gang_that_fails() -> None:
    check_changed_member()


def test_a_change_in_the_first_of_two_pauses_of_a_step_is_not_forgotten() -> None:
    """Rules of a layer are lowered in steps between which the attempt may pause, before the search looks whether it must follow."""
    attempts = rig(*gang(2)).scheduler._attempts._gang_attempts
    attempts.begin(0)

    attempts.resume(1, cluster_changed=True, others_wait=False)
    attempts.resume(2, cluster_changed=False, others_wait=False)

    assert attempts._pauses.cluster_changed


def test_the_next_member_that_is_deleted_in_a_pause_is_not_bound() -> None:
    """It has no node yet, and no pause follows in which that would be noticed."""
    extra = pod("g8", cpu="1", labels={"group": "g", "least": "8"})
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(4)], *gang(8), extra)
    decide_until_pause(scheduler)
    while len(attempts_pause(scheduler).search.fits) < 8:
        decide_until_pause(scheduler)
    with_nodes = {member.uid for member, _ in attempts_pause(scheduler).search.fits}
    (last,) = {extra.uid, *[member.uid for member in gang(8)]} - with_nodes

    scheduler.handle(e.PodDeleted(last))
    scheduler.settle()

    assert {bind.uid for bind in scheduler.of(c.Bind)} == with_nodes


def test_a_member_that_grows_in_a_pause_is_not_bound_where_it_does_not_fit() -> None:
    """It is the same entry of the queue, and neither its node nor a pod there changed."""
    scheduler = rig(*[node(f"n{index}", cpu="2") for index in range(4)], node("large", cpu="9"), *gang(6))
    decide_until_pause(scheduler)
    while all(success.node == "large" for _, success in attempts_pause(scheduler).search.fits):
        decide_until_pause(scheduler)
    name = next(
        member.pod.name
        for member, success in attempts_pause(scheduler).search.fits
        if success.node != "large"
    )

    labels = {"group": "g", "least": "6"}
    scheduler.observe(pod(name, cpu="3", labels=labels))
    scheduler.settle()
    scheduler.pass_time(5)

    assert scheduler.placements()[name] == "large"


def test_a_quota_that_is_used_in_the_last_pause_admits_no_further_member() -> None:
    """Who created the pod gave it a node, so no quota was asked, and the last member was admitted before the pause."""
    quota = 'quota team by pod.namespace { "default" { cpu = 8 } others unlimited }\n'
    scheduler = rig(
        *[node(f"n{index}", cpu="9") for index in range(4)], *gang(8), policies={"a.policy": ALONE + quota}
    )
    decide_until_pause(scheduler)
    while len(attempts_pause(scheduler).search.fits) < 7:
        decide_until_pause(scheduler)

    scheduler.observe(placed(pod("outside", cpu="1"), "n0"))
    scheduler.settle()

    assert not scheduler.placements()
    assert "7 of 8 members fit now: waits for quota" in str(scheduler.pending_message("g0"))


@pytest.mark.parametrize("gone", ["a member", "a node", "the policy"])
def test_a_search_that_lost_a_member_or_its_node_starts_again(gone: str) -> None:
    members = gang(8)
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(4)],
        *members,
        pod("g8", cpu="1", labels={"group": "g", "least": "8"}),
    )
    decide_until_pause(scheduler, 5)
    assert scheduler.scheduler._attempts._pause is not None
    fit, success = scheduler.scheduler._attempts._pause.search.fits[0]

    match gone:
        case "a member":
            scheduler.handle(e.PodDeleted(fit.uid))
        case "a node":
            scheduler.handle(e.NodeDeleted(success.node))
        case _:
            scheduler.apply_policies({**POLICIES, "gangs.policy": ALONE + "# edited\n"})
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) in (8, 9)
    assert all(bind.node != success.node for bind in scheduler.of(c.Bind)) or gone != "a node"


def check_node_stops_fitting(change: str) -> None:
    policies = {"gangs.policy": ALONE + "filter node_unschedulable\n"}
    names = ("n0", "n1", "n2")
    small = [placed(pod(f"small-{name}", cpu="500m", scheduler="other"), name) for name in names]
    scheduler = rig(*[node(name, cpu="4") for name in names], *small, *gang(4), policies=policies)
    decide_until_pause(scheduler, 3)
    pause = scheduler.scheduler._attempts._pause
    assert pause is not None
    _, success = pause.search.fits[0]

    if change == "the node is cordoned":
        scheduler.handle(e.NodeUpdated(node(success.node, cpu="4", unschedulable=True)))
    elif change == "a pod there grows":
        scheduler.observe(placed(pod(f"small-{success.node}", cpu="3500m", scheduler="other"), success.node))
    else:
        scheduler.observe(placed(pod("x", cpu="4", scheduler="other"), success.node))
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) == 4
    assert success.node not in scheduler.placements().values()


@pytest.mark.parametrize(
    "change", ["the node is cordoned", "another scheduler fills the node", "a pod there grows"]
)
def test_a_member_is_not_placed_on_a_node_that_stops_fitting_in_a_pause(change: str) -> None:
    check_node_stops_fitting(change)


def check_node_leaves_the_domain(large: bool) -> None:
    """The node of a member gets the label of another rack."""
    sizes = ("1",) * 6 + (("4",) * 2 if large else ())
    labels = {"group": "g", "least": str(len(sizes))}
    members = [
        pod(f"g{index}", cpu=cpu, labels=labels, created="2026-01-01T00:00:00Z")
        for index, cpu in enumerate(sizes)
    ]
    nodes = [node(f"n{index}", cpu="4", labels={"rack": "r"}) for index in range(5)]
    scheduler = rig(
        *nodes, *members, policies={"a.policy": IN_A_RACK + "score node_resources_fit weight 1\n"}
    )
    decide_until_pause(scheduler)
    while not (fits := attempts_pause(scheduler).search.fits) or (
        large and fits[0][0].pod.requests["cpu"] != 4000
    ):
        decide_until_pause(scheduler)
    _, success = fits[0]

    scheduler.observe(node(success.node, cpu="4", labels={"rack": "other"}))
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) == len(sizes)
    assert success.node not in scheduler.placements().values()


@pytest.mark.parametrize("large", [False, True], ids=["in queue order", "the most demanding first"])
def test_a_member_is_not_placed_on_a_node_that_leaves_the_domain_in_a_pause(large: bool) -> None:
    check_node_leaves_the_domain(large)


def check_rules_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of a member changes in a pause, and the rules with the layers of that member were dropped."""
    monkeypatch.setattr(kept_variants, "VARIANT_BYTES_MAX", 0)
    layers = "".join(
        f'layer l{index} when (pod.labels["member"] else "") == "{index}" {{\n  filter f{index} require node.pods < 9{index}\n}}\n'
        for index in range(12)
    )
    members = [
        pod(f"g{index}", cpu="1", labels={"group": "g", "least": "12", "member": str(index)})
        for index in range(12)
    ]
    nodes = [node(f"n{index}", cpu="4") for index in range(4)]
    scheduler = rig(*nodes, *members, policies={"gangs.policy": ALONE + layers})
    decide_until_pause(scheduler)
    while len(attempts_pause(scheduler).search.fits) < 8:
        decide_until_pause(scheduler)
    lowered = []
    in_one_piece = Plan.variant

    def variant(plan: Plan, active: tuple[int, ...]) -> Variant:
        lowered.extend([] if plan.is_lowered(active) else [active])
        return in_one_piece(plan, active)

    monkeypatch.setattr(Plan, "variant", variant)
    for changed in nodes:
        scheduler.handle(e.NodeUpdated(node(changed.name, cpu="4", labels={"changed": "yes"})))
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) == 12
    assert lowered == [], "lowered at once"


def test_the_rules_of_many_members_are_not_lowered_at_once_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_rules_that_are_not_kept(monkeypatch)


def test_members_whose_rules_are_lowered_at_once_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost_nodes, "_is_lowered", lambda *_: True)

    with pytest.raises(AssertionError, match="lowered at once"):
        check_rules_that_are_not_kept(monkeypatch)


def test_room_that_appears_in_a_pause_is_used() -> None:
    low = [placed(pod(f"x{index}", cpu="3", scheduler="other"), f"n{index}") for index in range(3)]
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(3)], *low, *gang(6))
    decide_until_pause(scheduler, 3)

    for index in range(3):
        scheduler.handle(e.PodDeleted(low[index].pod.uid))
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) == 6


def check_missed_event(*, overdrawn: bool = False) -> None:
    """The gang needs three of four members. The first has failed when the room for it appears, and one of the others fails
    later."""
    low = placed(pod("x", namespace="other", cpu="4", scheduler="other"), "n0")
    labels = {"group": "g", "least": "3"}
    members = [
        pod(f"g{index}", cpu="1", labels=labels, node_selector={"name": "n1" if index else "n0"})
        for index in range(4)
    ]
    nodes = [node(name, cpu=cpu, labels={"name": name}) for name, cpu in (("n0", "4"), ("n1", "2"))]
    scheduler = rig(*nodes, low, *members, policies={"a.policy": SPREAD})
    with pytest.MonkeyPatch.context() as patch:
        # The second search would see the room.
        patch.setattr(gang_attempt, "most_demanding_first", nothing_in_steps)
        decide_until_pause(scheduler, 3)

        if overdrawn:
            scheduler.scheduler.core.queue.decision_time.charge_failed_attempt("default", SECOND_NS)
        scheduler.handle(e.PodDeleted(low.pod.uid))
        scheduler.settle()
        scheduler.pass_time(5)
        after_5_s = len(scheduler.placements())
        scheduler.pass_time(10)

    assert [after_5_s, len(scheduler.placements())] == [0 if overdrawn else 3, 3]


def test_an_event_in_a_pause_requeues_a_gang_that_fails() -> None:
    check_missed_event()


def test_an_event_of_others_in_a_pause_requeues_a_gang_of_an_overdrawn_namespace_late() -> None:
    """A tenant whose pods come and go would else have it attempted all the time, at the expense of its namespace."""
    check_missed_event(overdrawn=True)


# ── random histories ───────────────────────────────────────────────────────────────────────────────────────────────

QUOTA = 'quota team by pod.namespace { "default" { cpu = 7 } others unlimited }\n'


def equal(rng: ClusterRandom, count: int, name: str) -> list[Pod]:
    return gang(count, name=name, cpu=rng.choice(("1", "2")))


def history(number: int, gang_of: Callable[[ClusterRandom, int, str], list[Pod]] = equal) -> Rig:
    """Gangs, plain pods, nodes that come and go and pods that end, in the pauses of attempts."""
    rng = ClusterRandom(f"pauses {number}")
    nodes = {f"n{index}": rng.choice(("2", "4")) for index in range(rng.randint(3, 6))}
    policies = {
        **POLICIES,
        "gangs.policy": rng.choice((POLICIES["gangs.policy"], SPREAD, IN_A_RACK)) + rng.choice(("", QUOTA)),
        "plain.policy": rng.choice(
            (POLICIES["plain.policy"], "policy plain version 1\ninclude kube_default\npreemption never\n")
        ),
    }
    scheduler = rig(
        *[_node(name, cpu) for name, cpu in nodes.items()],
        policies=policies,
        piece=rng.choice((1, 2, 3)),
        head_start=rng.choice((1, NEW_CLASS_COST + 4, NEVER)),
    )
    running: list[PodUid] = []
    count = 0
    for round_number in range(rng.randint(1, 3)):
        for index in range(rng.randint(1, 2)):
            scheduler.observe(*gang_of(rng, rng.randint(2, 6), f"g{round_number}{index}-"))
        while scheduler.scheduler.ready(scheduler.now_ns):
            decide_checked(scheduler)
            if not scheduler.scheduler.attempt_paused or count > 40:
                continue
            count += 1
            match rng.randrange(8):
                case 0 | 1 | 2:
                    anti = {
                        "affinity": {
                            "podAntiAffinity": {
                                "requiredDuringSchedulingIgnoredDuringExecution": [
                                    {
                                        "topologyKey": "kubernetes.io/hostname",
                                        "labelSelector": {
                                            "matchExpressions": [{"key": "group", "operator": "Exists"}]
                                        },
                                    }
                                ]
                            }
                        }
                    }
                    spec = anti if rng.one_in(3) else {}
                    scheduler.observe(
                        pod(
                            f"p{count}",
                            cpu=rng.choice(("1", "2")),
                            scheduler=rng.choice(("plain", "test")),
                            spec=spec,
                        )
                    )
                case 3:
                    scheduler.observe(_node(f"new{count}", "2"))
                case 4 if running:
                    scheduler.handle(e.PodDeleted(running.pop(rng.randrange(len(running)))))
                case 5:
                    pending = sorted(
                        uid
                        for uid, observed in scheduler.scheduler._core.pods.items()
                        if observed.node is None
                    )
                    if pending and rng.one_in(2):
                        scheduler.handle(e.PodDeleted(rng.choice(pending)))
                case 6 if rng.one_in(3):
                    names = sorted(scheduler.scheduler.cache.nodes)
                    if len(names) > 2:
                        scheduler.handle(e.NodeDeleted(rng.choice(names)))
                case _:
                    pass
        running += [bind.uid for bind in scheduler.in_flight_binds()]
        scheduler.confirm_binds()
    return scheduler


def _node(name: str, cpu: str) -> Node:
    return node(name, cpu=cpu, labels={"rack": f"r{len(name) % 2}"})


def check_room(scheduler: Rig) -> None:
    """No node has more pods than its cpu allows."""
    cache = scheduler.scheduler.cache
    for name, observed in cache.nodes.items():
        used = cache.ledger.usage(name).requested.get("cpu", 0)
        assert used <= observed.allocatable["cpu"], f"{name} has {used} of {observed.allocatable['cpu']}"
    for account in scheduler.scheduler._core.quotas.accounts.values():
        for _, entity in account.entities():
            assert account.usage.used(entity)[0] <= 7_000, f"{entity} uses {account.usage.used(entity)} of 7"


def decide_checked(scheduler: Rig) -> None:
    """One call of `decide`. A gang without placed members gets as many binds as it needs, or none."""
    gangs = scheduler.scheduler._core.gangs
    needed = {observed.id: observed.minimum for observed in gangs if not observed.placed_members}
    commands = scheduler.scheduler.decide(scheduler.now_ns)
    scheduler.commands += commands
    scheduler.check_invariants()
    check_room(scheduler)
    bound = Counter(
        observed.id
        for command in commands
        if isinstance(command, c.Bind) and (observed := gangs.gang_of(command.uid)) is not None
    )
    for gang_id, count in bound.items():
        assert count >= needed.get(gang_id, 0), f"{count} members of {gang_id} were bound"


def check_rest(scheduler: Rig) -> None:
    """Once nothing happens any more, no plain pod that a node has room for is pending."""
    scheduler.pass_time(300)
    assert not scheduler.scheduler.attempt_paused
    core = scheduler.scheduler._core
    for uid, pending in core.pods.items():
        is_refused = core.quotas.refusal(pending.pod) is not None
        if core.gangs.gang_of(uid) is None and pending.uid not in core.binds.in_flight and not is_refused:
            explained = scheduler.scheduler.explain(uid, scheduler.now_ns)
            assert explained is not None and explained.selected is None, f"{pending} would fit on {explained}"


def check_history(number: int) -> None:
    scheduler = history(number)
    check_rest(scheduler)


@pytest.mark.parametrize("block", range(6))
def test_random_histories_with_pauses(block: int) -> None:
    for number in range(block * 25, block * 25 + 25):
        check_history(number)


def check_same_as_without_pauses(number: int) -> None:
    """Gangs alone, with nothing in the pauses, get the placements that they get without pauses."""
    rng = ClusterRandom(f"alone {number}")
    nodes = [_node(f"n{index}", rng.choice(("2", "4"))) for index in range(rng.randint(3, 6))]
    members = [
        m
        for index in range(2)
        for m in gang(rng.randint(2, 7), name=f"g{index}-", cpu=rng.choice(("1", "2")))
    ]
    policy = {"gangs.policy": rng.choice((POLICIES["gangs.policy"], SPREAD, IN_A_RACK))}
    placements = []
    for piece in (1, NEVER):
        scheduler = rig(*nodes, *members, policies=policy, piece=piece)
        scheduler.settle()
        placements.append(scheduler.placements())
    assert placements[0] == placements[1]


def test_pauses_in_which_nothing_happens_change_nothing() -> None:
    for number in range(40):
        check_same_as_without_pauses(number)


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _without_members(self: Pause, pod: object) -> object:
    return nullcontext(self.core.evaluator.overlay())


def never_ends(self: Pause, _: int) -> Steps[bool]:
    self.search.overlay = yield from present_overlay(self.core, self.gang, self.search)
    return False


def always_fit(self: Pause, now_ns: int) -> Steps[bool]:
    yield from never_ends(self, now_ns)
    return True


def _forgets_events(self: SchedulingQueue, *_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("holder", "part", "planted", "check"),
    [
        (Pause, "_overlay_for", _without_members, check_history),
        (Pause, "ends_attempt", never_ends, check_history),
        (Pause, "_still_fit", always_fit, lambda _: check_node_stops_fitting("the node is cordoned")),
        (Pause, "note_changes", lambda _: None, check_history),
        (SchedulingQueue, "open_group", _forgets_events, lambda _: check_missed_event()),
        (CountedMembers, "are_outdated", lambda *_: False, lambda _: check_changed_member()),
        (BackoffQueue, "end_error_backoff", _forgets_events, lambda _: check_pod_that_failed_in_a_pause()),
        (
            ActiveQueues,
            "first_before",
            lambda *_: None,
            lambda _: check_who_is_placed(gang(2, name="urgent", priority=10)),
        ),
    ],
    ids=[
        "pods do not see the members",
        "a search outlives its members",
        "a search outlives what its nodes were",
        "changes are not noticed",
        "events are lost",
        "changes of members are lost",
        "what failed in a pause is overtaken",
        "what comes ahead of the gang is overtaken",
    ],
)
def test_a_planted_mistake_is_found(
    holder: object, part: str, planted: object, check: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, part, planted)

    with pytest.raises((AssertionError, KeyError)):
        for number in range(150):
            check(number)
