"""Preemption of single pods: victims, nominations and messages."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.preemption import eviction_rights
from policysched.scheduler.preemption.eviction_breaker import EvictionBreaker
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import Rig

ANY = "policy test version 1\nfilter taint_toleration\nfilter node_resources_fit\npreemption { victims = any }\n"
OWN = ANY.replace("preemption { victims = any }\n", "")


def low(name: str = "low", on: str = "a", **more: object) -> ObservedPod:
    words = {"cpu": "3", "priority": 1, "scheduler": "somebody-else", **more}
    return placed(pod(name, **words), on)


def high(name: str = "high", **more: object) -> Pod:
    return pod(name, **{"cpu": "2", "priority": 100, **more})


def evictions(rig: Rig) -> list[tuple[str, str, list[str]]]:
    return [
        (eviction.name, eviction.node, [victim.name for victim in eviction.victims])
        for eviction in rig.of(c.Evict)
    ]


def carry_out(rig: Rig) -> None:
    """The latest eviction is answered, and the watch shows the victims gone."""
    evict = rig.of(c.Evict)[-1]
    victims = tuple(victim.uid for victim in evict.victims)
    rig.handle(e.Evicted(evict.uid, victims), *[e.PodDeleted(uid) for uid in victims])


def ending(observed: ObservedPod) -> ObservedPod:
    """As the watch shows a victim that takes its time."""
    return replace(observed, deleting=True, preempted=True)


def test_a_pod_of_lower_priority_is_evicted_and_its_node_taken() -> None:
    rig = Rig(ANY, node("a"), low(), high())

    rig.settle()
    carry_out(rig)
    rig.pass_time(2)

    assert evictions(rig) == [("high", "a", ["low"])]
    assert rig.placements() == {"high": "a"}


def test_each_victim_gets_an_event_that_names_the_preemptor() -> None:
    rig = Rig(ANY, node("a"), low(), high())

    rig.settle()
    carry_out(rig)

    (report,) = rig.of(c.ReportPreempted)
    assert (report.victim.name, report.name, report.node, report.scheduler) == ("low", "high", "a", "test")


def test_a_pod_that_waits_for_victims_reports_the_filter_reasons_and_its_node() -> None:
    rig = Rig(ANY, node("a"), low(), high())

    rig.settle()

    assert rig.pending_message("high") == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: found a potential placement for pod on node a, "
        "preempting 1 victims"
    )


def test_pods_of_equal_priority_are_not_evicted_and_the_message_says_why() -> None:
    rig = Rig(
        ANY, node("a"), node("b", taints=["k=v:NoSchedule"]), low(priority=100), low("lower", "b"), high()
    )

    rig.settle()

    assert evictions(rig) == []
    assert rig.pending_message("high") == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes are "
        "available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
    )


def test_a_node_that_stays_too_small_is_reported_with_its_own_reason() -> None:
    rig = Rig(ANY, node("a"), low(cpu="1"), low("equal", cpu="3", priority=100), high())

    rig.settle()

    assert evictions(rig) == []
    assert str(rig.pending_message("high")).endswith(
        "preemption: 0/1 nodes are available: 1 Insufficient cpu."
    )


def test_a_pod_with_preemption_policy_never_evicts_no_pods() -> None:
    rig = Rig(ANY, node("a"), low(), high(spec={"preemptionPolicy": "Never"}))

    rig.settle()

    assert evictions(rig) == []
    assert str(rig.pending_message("high")).endswith(
        "preemption: not eligible due to preemptionPolicy=Never."
    )


def test_preemption_never_evicts_no_pods_and_adds_no_message() -> None:
    rig = Rig(ANY.replace("{ victims = any }", "never"), node("a"), low(), high())

    rig.settle()

    assert evictions(rig) == []
    assert rig.pending_message("high") == "0/1 nodes are available: 1 Insufficient cpu."


def test_without_a_clause_only_pods_of_the_same_policy_are_victims() -> None:
    rig = Rig(OWN, node("a"), node("b"), low(), low("own", "b", scheduler="test", priority=50), high())

    rig.settle()

    assert evictions(rig) == [("high", "b", ["own"])]


def test_a_condition_limits_the_victims() -> None:
    batch = 'preemption { victims = victim.labels["kind"] else "" == "batch" and pod.namespace == "default" }'
    rig = Rig(
        OWN + batch,
        *(node("a"), node("b")),
        *(low(labels={"kind": "web"}), low("batch", "b", labels={"kind": "batch"}, priority=90)),
        high(),
    )

    rig.settle()

    assert evictions(rig) == [("high", "b", ["batch"])]


def test_pods_that_fit_beside_it_are_reprieved_the_most_important_first() -> None:
    pods = [
        low("one", cpu="2", priority=1),
        low("two", cpu="1", priority=2),
        low("three", cpu="1", priority=3),
    ]
    rig = Rig(ANY, node("a"), *pods, high(cpu="2"))

    rig.settle()

    assert evictions(rig) == [("high", "a", ["one"])]


def test_of_pods_of_equal_priority_the_longest_running_stays() -> None:
    def since(name: str, started_ns: int) -> ObservedPod:
        return replace(low(name, cpu="2"), started_ns=started_ns)

    rig = Rig(ANY, node("a"), since("young", 20), since("old", 10), high(cpu="2"))

    rig.settle()

    assert evictions(rig) == [("high", "a", ["young"])]


def budget(allowed: int, *disrupted: str) -> e.DisruptionBudgetUpdated:
    selector = LabelSelector((SelectorRequirement("app", "In", ("db",)),))
    return e.DisruptionBudgetUpdated(
        DisruptionBudget("default", "db", selector, allowed, frozenset(disrupted))
    )


def test_a_node_without_violated_budgets_is_preferred_to_one_with_lower_priorities() -> None:
    rig = Rig(ANY, node("a"), node("b"), low(labels={"app": "db"}), low("other", "b", priority=90), high())
    rig.handle(budget(allowed=0))

    rig.settle()

    assert evictions(rig) == [("high", "b", ["other"])]


def test_a_budget_with_disruptions_left_protects_no_pod() -> None:
    rig = Rig(ANY, node("a"), node("b"), low(labels={"app": "db"}), low("other", "b", priority=90), high())
    rig.handle(budget(allowed=1))

    rig.settle()

    assert evictions(rig) == [("high", "a", ["low"])]


def test_a_deleted_budget_protects_no_pod() -> None:
    rig = Rig(ANY, node("a"), node("b"), low(labels={"app": "db"}), low("other", "b", priority=90), high())
    rig.handle(budget(allowed=0), e.DisruptionBudgetDeleted("default", "db"))

    rig.settle()

    assert evictions(rig) == [("high", "a", ["low"])]


def test_at_equal_priorities_the_node_with_fewer_victims_is_chosen() -> None:
    two = [low("x", "a", cpu="2", priority=5), low("y", "a", cpu="2", priority=5)]
    rig = Rig(ANY, node("a"), node("b"), *two, low("z", "b", cpu="4", priority=5), high(cpu="4"))

    rig.settle()

    assert evictions(rig) == [("high", "b", ["z"])]


@pytest.mark.parametrize(("priority", "has_the_room"), [(99, "high"), (1000, "other")])
def test_nominated_capacity_is_reserved_against_lower_but_not_higher_priority(
    priority: int, has_the_room: str
) -> None:
    rig = Rig(ANY, node("a"), low(cpu="4"), high(cpu="4"))
    rig.settle()
    carry_out(rig)

    rig.observe(pod("other", cpu="1", priority=priority))
    rig.pass_time(30)

    assert rig.placements() == {has_the_room: "a"}


def test_capacity_nominated_by_another_scheduler_is_reserved_against_lower_priority() -> None:
    foreign = pending(pod("theirs", cpu="3", priority=50, scheduler="somebody-else"))
    rig = Rig(ANY, node("a"), replace(foreign, nominated_node=node("a").name))

    rig.observe(pod("lower", cpu="2", priority=49), pod("equal", cpu="2", priority=50))
    rig.pass_time(30)
    before = rig.placements()
    rig.observe(pod("higher", cpu="2", priority=51))
    rig.pass_time(1)
    with_the_higher_one = rig.placements()
    rig.handle(e.PodDeleted(foreign.pod.uid))
    rig.pass_time(30)

    assert before == {}
    assert with_the_higher_one == {"higher": "a"}
    assert rig.placements() == {"higher": "a", "equal": "a"}, "once their pod has gone, the room is anybody's"


def test_a_pod_with_terminating_victims_evicts_no_further_pods() -> None:
    first = low()
    rig = Rig(ANY, node("a"), node("b"), first, low("other", "b", priority=90), high())
    rig.settle()
    evict = rig.of(c.Evict)[-1]

    rig.handle(e.Evicted(evict.uid, (first.pod.uid,)), e.PodUpdated(ending(first)))
    rig.observe(node("c", cpu="100m"))
    rig.pass_time(30)

    assert evictions(rig) == [("high", "a", ["low"])]
    assert str(rig.pending_message("high")).endswith(
        "not eligible due to a terminating pod on the nominated node."
    )


def test_no_further_pod_is_evicted_between_the_answer_and_the_watch_event() -> None:
    rig = Rig(ANY, node("a"), node("b"), low(), low("other", "b", priority=90), high())
    rig.settle()
    evict = rig.of(c.Evict)[-1]

    rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    rig.observe(node("c", cpu="100m"))
    rig.pass_time(30)

    assert evictions(rig) == [("high", "a", ["low"])]


def test_a_pod_is_not_attempted_while_its_eviction_is_in_flight() -> None:
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()

    rig.observe(node("b"))
    rig.pass_time(60)
    before = rig.placements()
    carry_out(rig)
    rig.pass_time(2)

    assert before == {}
    assert rig.placements() == {"high": "a"}, (
        "it takes the node that it is nominated to, free as the other is"
    )


def test_each_replica_evicts_for_itself() -> None:
    rig = Rig(ANY, node("a"), node("b"), low(), low("other", "b"), high("h1", cpu="3"), high("h2", cpu="3"))

    rig.settle()

    assert sorted(evictions(rig)) == [("h1", "a", ["low"]), ("h2", "b", ["other"])]


def test_a_victim_of_two_preemptors_is_evicted_once() -> None:
    rig = Rig(ANY, node("a"), low(), high("h1"), high("h2"))

    rig.settle()
    reported = evictions(rig)
    carry_out(rig)
    rig.handle(e.Evicted(rig.of(c.Evict)[0].uid, (low().pod.uid,)), e.PodDeleted(low().pod.uid))
    rig.pass_time(2)

    assert reported == [("h1", "a", ["low"]), ("h2", "a", [])]
    assert rig.placements() == {"h1": "a", "h2": "a"}


def test_the_eviction_for_a_pod_that_is_gone_is_abandoned() -> None:
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()
    (evict,) = rig.of(c.Evict)

    rig.handle(e.PodDeleted(high().uid))
    abandoned = rig.of(c.AbandonEviction)
    rig.handle(e.EvictionRefused(evict.uid, "not sent: the pod is gone"))

    assert abandoned == [c.AbandonEviction(evict.uid)]
    assert not rig.scheduler._preemption.evictions.is_leaving(low().pod.uid)


def test_nobody_waits_for_the_evictions_of_another_namespace() -> None:
    """A webhook there that answers no nomination kept the victim from everybody, and the requests of each eviction take half a
    minute, one after another."""
    rig = Rig(ANY, node("a"), low(), high("hangs", namespace="tenant"))
    rig.settle()
    rig.observe(high("higher", priority=200))
    rig.settle()

    carry_out(rig)
    rig.pass_time(2)

    assert evictions(rig) == [("hangs", "a", ["low"]), ("higher", "a", ["low"])]
    assert rig.placements() == {"higher": "a"}


def test_a_victim_of_two_namespaces_leaves_until_both_are_answered() -> None:
    rig = Rig(ANY, node("a"), low(), high("one", namespace="tenant"))
    rig.settle()
    rig.observe(high("two", priority=200))
    rig.settle()
    one, two = rig.of(c.Evict)

    leaving = [rig.scheduler._preemption.evictions.is_leaving(low().pod.uid)]
    for evict in (one, two):
        rig.handle(e.EvictionRefused(evict.uid, "a webhook denied it"))
        leaving.append(rig.scheduler._preemption.evictions.is_leaving(low().pod.uid))

    assert leaving == [True, True, False]


def test_a_terminating_pod_is_awaited_and_not_evicted_again() -> None:
    rig = Rig(ANY, node("a"), replace(low(), deleting=True), high())
    rig.settle()

    rig.handle(e.Evicted(rig.of(c.Evict)[-1].uid, ()))
    rig.pass_time(60)
    before = evictions(rig)
    rig.handle(e.PodDeleted(low().pod.uid))
    rig.pass_time(10)

    assert before == [("high", "a", [])]
    assert rig.placements() == {"high": "a"}


def test_a_pod_that_waits_for_the_victim_of_another_evicts_it_after_a_refusal() -> None:
    rig = Rig(ANY, node("a"), low(cpu="4"), high("first", cpu="1"), high("second", cpu="1"))
    rig.settle()
    first, second = rig.of(c.Evict)
    assert (len(first.victims), second.victims) == (1, ())

    rig.handle(e.Evicted(second.uid, ()))
    rig.settle()
    rig.handle(e.PodDeleted(first.uid), e.EvictionRefused(first.uid, "the API server is not well"))
    rig.pass_time(11)

    assert evictions(rig)[2:] == [("second", "a", ["low"])]


def test_a_pod_that_waits_for_the_victim_of_a_lower_one_evicts_it_after_a_refusal() -> None:
    """It has cleared the nomination of the lower one, so the refusal clears none."""
    rig = Rig(ANY, node("a"), low(cpu="4"), high("first", cpu="4"))
    rig.settle()
    rig.observe(high("second", cpu="4", priority=200))
    rig.settle()
    first, second = rig.of(c.Evict)
    assert (len(first.victims), second.victims) == (1, ())

    rig.handle(e.Evicted(second.uid, ()))
    rig.settle()
    rig.handle(e.EvictionRefused(first.uid, "the API server is not well"))
    rig.pass_time(11)

    assert evictions(rig)[2:] == [("second", "a", ["low"])]


def test_a_pod_that_shares_all_but_its_priority_with_one_that_failed_may_still_evict() -> None:
    rig = Rig(ANY, node("a"), low(), pod("meek", cpu="2", priority=1))
    rig.settle()

    rig.observe(high())
    rig.settle()

    assert evictions(rig) == [("high", "a", ["low"])]


def test_a_refused_eviction_clears_the_nomination_and_is_retried() -> None:
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()

    rig.handle(e.EvictionRefused(rig.of(c.Evict)[-1].uid, "no answer within 30 s"))
    rig.pass_time(11)

    assert len(rig.of(c.ClearNomination)) == 1
    assert evictions(rig) == [("high", "a", ["low"])] * 2


def test_refused_evictions_have_one_line_of_the_log_a_minute() -> None:
    """A webhook that refuses victims could write two for each attempt of each preemptor."""
    rig = Rig(ANY, node("a"), low(), high())
    refused = 0
    for _ in range(20):
        rig.settle()
        rig.handle(*(e.EvictionRefused(evict.uid, "denied") for evict in rig.of(c.Evict)[refused:]))
        refused = len(rig.of(c.Evict))
        rig.pass_time(11)
    lines = [line for line in rig.of(c.Log) if "vict" in line.message]

    assert {line.message for line in lines} == {"cannot evict the victims of a preemptor"}
    assert len(lines) in (3, 4)
    assert refused > 15
    assert lines[1].fields["count"] == 6


def test_a_refused_eviction_is_not_retried_before_its_backoff_is_over() -> None:
    """Found by the simulation: the nomination that the refusal cleared requeued the preemptor, and an idle scheduler
    retried at once, for as long as the API server refused."""
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()

    rig.handle(e.EvictionRefused(rig.of(c.Evict)[-1].uid, "not found"))
    rig.settle()

    assert len(evictions(rig)) == 1
    rig.pass_time(11)
    assert len(evictions(rig)) == 2


def test_the_nomination_is_cleared_if_no_node_is_left() -> None:
    """Found by the simulation: the room of a node that had left, and might come back, was kept for ever."""
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()
    carry_out(rig)

    rig.handle(e.NodeDeleted(node("a").name))
    rig.pass_time(11)

    assert [command.name for command in rig.of(c.ClearNomination)] == ["high"]


def test_a_new_version_without_preemption_clears_the_nominations() -> None:
    rig = Rig(ANY, node("a"), low(), high(cpu="4"))
    rig.settle()
    rig.handle(e.Evicted(rig.of(c.Evict)[-1].uid, (low().pod.uid,)), e.PodUpdated(ending(low())))

    rig.apply_policies(ANY.replace("{ victims = any }", "never"))
    rig.pass_time(11)

    assert [command.name for command in rig.of(c.ClearNomination)] == ["high"]


def test_forbidden_evictions_are_reported_once_and_the_pod_waits_with_a_message() -> None:
    rig = Rig(ANY, node("a"), low(), high("h1"))
    rig.settle()

    rig.handle(e.EvictionRefused(rig.of(c.Evict)[-1].uid, "pods is forbidden", forbidden=True))
    rig.observe(high("h2"))
    rig.pass_time(60)

    assert [report.reason for report in rig.of(c.ReportPolicyEvent)] == ["PreemptionForbidden"]
    assert len(evictions(rig)) == 1
    assert "preemption: forbidden by the API server: pods is forbidden" in str(rig.pending_message("h1"))


def test_a_forbidden_eviction_is_retried_after_a_while() -> None:
    rig = Rig(ANY, node("a"), low(), high(), limits=SchedulerLimits(eviction_forbidden_retry_s=100))
    rig.settle()
    rig.handle(e.EvictionRefused(rig.of(c.Evict)[-1].uid, "pods is forbidden", forbidden=True))

    rig.pass_time(90)
    before = len(evictions(rig))
    rig.pass_time(30)

    assert (before, len(evictions(rig))) == (1, 2)


def test_a_pod_deleted_while_its_eviction_is_in_flight_leaves_nothing_behind() -> None:
    rig = Rig(ANY, node("a"), low(), high())
    rig.settle()
    evict = rig.of(c.Evict)[-1]

    rig.handle(e.PodDeleted(evict.uid))
    carry_out(rig)
    rig.observe(pod("next", cpu="4", priority=0))
    rig.settle()

    assert rig.placements() == {"next": "a"}


def test_a_pod_of_higher_priority_takes_the_node_and_the_lower_one_finds_another() -> None:
    rig = Rig(ANY, node("a"), low(cpu="4"), high(cpu="4"))
    rig.settle()
    rig.handle(e.Evicted(rig.of(c.Evict)[-1].uid, (low().pod.uid,)), e.PodUpdated(ending(low(cpu="4"))))

    rig.observe(high("king", cpu="4", priority=1000))
    rig.settle()

    assert [command.name for command in rig.of(c.ClearNomination)] == ["high"]
    assert evictions(rig)[-1] == ("king", "a", []), "who is ending already is not told again"


def test_an_own_nomination_holds_until_the_watch_shows_it() -> None:
    rig = Rig(ANY, node("a"), low(cpu="4"), high(cpu="4"))
    rig.settle()
    old_news = replace(rig.observed_pod(high().uid), nominated_node=None)

    rig.observe(replace(old_news, pod=replace(old_news.pod, annotations={"touched": "yes"})))
    carry_out(rig)
    rig.observe(pod("thief", cpu="1", priority=99))
    rig.pass_time(5)

    assert rig.placements() == {"high": "a"}


TWO_EVICTIONS = SchedulerLimits(repeat_evictions_max=2, repeat_evictions_window_s=600)


def recreated(rig: Rig, name: str, **more: object) -> Pod:
    """Of a controller, created now."""
    return replace(
        pod(name, **{"cpu": "3", "owner": ("apps/v1", "ReplicaSet", "web"), **more}), created_ns=rig.now_ns
    )


def test_evictions_in_vain_are_suspended_for_a_while() -> None:
    """Whenever the preemptor has made room, somebody else takes it, and the victim is created again later."""
    rig = Rig(ANY, node("a"), high("vain", cpu="3"), limits=TWO_EVICTIONS)

    def round_of(number: int) -> int:
        before = len(evictions(rig))
        rig.observe(placed(recreated(rig, f"r{number}", priority=1, scheduler="x"), "a"))
        rig.pass_time(70)
        if len(evictions(rig)) > before:
            taker = placed(pod(f"taker{number}", cpu="3", priority=200, scheduler="x"), "a")
            rig.handle(e.PodUpdated(taker))
            carry_out(rig)
            rig.pass_time(10)
            rig.handle(e.PodDeleted(taker.pod.uid))
        else:
            rig.handle(e.PodDeleted(pod(f"r{number}").uid))
        return len(evictions(rig)) - before

    rig.observe(placed(pod("first-taker", cpu="3", priority=200, scheduler="x"), "a"))
    rig.handle(e.PodDeleted(pod("first-taker").uid))
    evicted = [round_of(number) for number in range(4)]

    assert evicted == [1, 1, 1, 0]
    assert [report.reason for report in rig.of(c.ReportPolicyEvent)] == ["PreemptionStopped"]


def breaker_after(
    rounds: int, victim: Callable[[int], Pod], preemptor: Callable[[int], Pod]
) -> EvictionBreaker:
    breaker = EvictionBreaker(TWO_EVICTIONS)
    for at in range(rounds):
        breaker.record(victim(at), preemptor(at), at)
    return breaker


def of(owner: str, at: int, namespace: str = "default") -> Pod:
    made = pod(f"{owner}{at}", namespace=namespace, owner=("apps/v1", "ReplicaSet", owner) if owner else None)
    return replace(made, created_ns=at)


@pytest.mark.parametrize("owner", ["other", ""], ids=["of a controller", "without a controller"])
def test_pods_that_evict_each_other_in_turn_are_suspended(owner: str) -> None:
    """Each preemptor was created in place of an evicted pod."""
    breaker = EvictionBreaker(TWO_EVICTIONS)
    for at in range(1, 9, 2):
        breaker.record(of("web", at - 1), of(owner, at), at)
        breaker.record(of(owner, at), of("web", at + 1), at + 1)

    assert breaker.blocks(of("web", 9), "default", 10)
    assert not breaker.blocks(of("web", 9), "default", 10 + 600 * SECOND_NS)
    assert (
        breaker.next_time_ns("default", 10)
        == breaker._histories["default", "ReplicaSet", "web"].counted_ns["default"][0] + 600 * SECOND_NS
    )


def test_recreated_pods_are_evicted_by_any_number_of_pods_that_are_bound() -> None:
    """Otherwise a controller whose pods were restarted once would be protected from whoever has a higher priority."""
    breaker = breaker_after(60, lambda at: of("web", at), lambda at: of("important", at))

    assert not breaker.blocks(of("web", 61), "default", 61)


def test_who_evicts_its_own_pods_protects_them_from_no_other_namespace() -> None:
    breaker = breaker_after(60, lambda at: of("web", at), lambda _: of("vain", 0))

    assert breaker.blocks(of("web", 61), "default", 61)
    assert not breaker.blocks(of("web", 61), "friend", 61)


SLOW = ANY.replace("= any", "= " + " and ".join(f"victim.priority < {50 + k}" for k in range(40)))
"""79 operations for each pod that may be evicted."""


def test_a_slow_condition_of_victims_is_asked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A team may write one of a hundred operations, which read long texts: thousands of pods were asked about in one piece."""
    nodes = [f"n{at}" for at in range(8)]
    rig = Rig(
        SLOW, *map(node, nodes), *[low(f"{name}-{at}", name, cpu="1") for name in nodes for at in range(4)]
    )
    pieces: list[int] = []
    asked = EvictionRights._answer

    def counted(rights: EvictionRights, victim: Pod) -> bool:
        pieces[-1] += 1
        return asked(rights, victim)

    monkeypatch.setattr(EvictionRights, "_answer", counted)
    rig.handle(e.PodUpdated(pending(high(cpu="4"))))
    while rig.scheduler.ready(rig.now_ns):
        pieces.append(0)
        rig.commands += rig.scheduler.decide(rig.now_ns)

    assert [name for _, name, _ in evictions(rig)] == ["n0"]
    assert sum(pieces) == 32
    assert max(pieces) <= 4


def test_a_slow_condition_of_victims_is_asked_about_other_nodes_in_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eviction_rights, "QUESTIONS_COST_MAX", 400)
    nodes = [f"n{at}" for at in range(8)]
    rig = Rig(SLOW, *map(node, nodes))
    for name in nodes:
        rig.observe(
            *[low(f"{name}-{at}", name, cpu="1", priority=1 if name == "n6" else 60) for at in range(4)]
        )
    rig.observe(high(cpu="4"))
    rig.settle()
    assert "were not searched for victims in this attempt" in (rig.pending_message("high") or "")

    rig.pass_time(120)

    assert [name for _, name, _ in evictions(rig)] == ["n6"]


class NeverVisited(OrderedDict[Any, Any]):
    """Keys of it are looked up, and never all visited."""

    def __iter__(self) -> NoReturn:
        raise AssertionError

    keys = values = items = __iter__  # type: ignore[assignment]


def test_the_breaker_visits_no_owners_for_each_pod_that_may_be_a_victim() -> None:
    """Whoever creates pods names an owner of its own for each, which need not exist. Before, 1,000 questions took 0.5 s."""
    breaker = EvictionBreaker(SchedulerLimits())
    victims = [pod(f"v{number}", owner=("v1", "Thing", f"v{number}")) for number in range(2_000)]
    for victim in victims:
        breaker.record(victim, pod("high"), 1)

    breaker._histories = NeverVisited(breaker._histories)
    breaker._blocked_until_ns["default"] = NeverVisited()
    blocked = [breaker.blocks(victim, "default", 2) for victim in victims]

    assert not any(blocked)


def test_evictions_in_flight_are_not_visited_for_each_pod_that_may_be_a_victim() -> None:
    """They are many while a webhook does not answer deletions. Before, these questions took a second."""
    names = [f"n{number}" for number in range(60)]
    rig = Rig(ANY, *map(node, names), *[low(f"low-{name}", name) for name in names])
    rig.observe(*[high(f"high-{name}") for name in names])
    rig.settle()
    preemption = rig.scheduler._preemption

    preemption.evictions._evicting = NeverVisited(preemption.evictions._evicting)
    leaving = [preemption.evictions.is_leaving(PodUid("another")) for _ in range(3)]

    assert not any(leaving) and len(evictions(rig)) == 60
    assert all(
        preemption.evictions.is_leaving(victim.uid) for evict in rig.of(c.Evict) for victim in evict.victims
    )


class NeverSearched(tuple[PodUid, ...]):
    """Victims that are many: a search visits half of them, for each."""

    __slots__ = ()

    def __contains__(self, uid: object) -> NoReturn:
        raise AssertionError(f"all victims were visited for {uid}")


def test_the_answer_to_an_eviction_is_not_searched_for_each_victim() -> None:
    """A running gang of thousands goes as a whole, and its answer is one event."""
    rig = Rig(ANY, node("a"), low("one", cpu="2"), low("two", cpu="2"), high(cpu="4"))
    rig.settle()
    (evict,) = rig.of(c.Evict)

    rig.handle(e.Evicted(evict.uid, NeverSearched(victim.uid for victim in evict.victims)))

    assert {report.victim.name for report in rig.of(c.ReportPreempted)} == {"one", "two"}


def test_preemption_on_thousands_of_nodes_is_evaluated_at_once() -> None:
    """Every node is a candidate, and the one with the least important pod is found among all of them."""
    nodes: list[Node] = [node(f"n{number}") for number in range(300)]
    pods = [low(f"p{number}", f"n{number}", priority=50 if number != 211 else 2) for number in range(300)]
    rig = Rig(ANY, *nodes, *pods, high())

    rig.settle()

    assert evictions(rig) == [("high", "n211", ["p211"])]


def test_attempts_and_victims_are_counted() -> None:
    rig = Rig(ANY, node("a"), low(cpu="1"), low("two", cpu="2"), high(cpu="4"), high("never", cpu="9"))

    rig.settle()

    assert rig.scheduler.counters.preemption_attempts == 2
    assert rig.scheduler.counters.drain_victim_counts() == [2]


GATED_GANG = """\
policy test version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
gang by group { mode = gate  min = least %s }
filter node_resources_fit
preemption { victims = any }
"""


def member(name: str, least: int) -> Pod:
    return high(name, cpu="4", labels={"group": "g", "least": str(least)})


def test_a_member_whose_gang_gathers_again_reserves_no_capacity() -> None:
    rig = Rig(
        GATED_GANG % "",
        node("a"),
        low(cpu="4"),
        member("one", 2),
        pod("two", cpu="4", labels={"group": "g", "least": "2"}),
    )
    rig.settle()
    carry_out(rig)

    rig.handle(e.PodDeleted(pod("two").uid))
    rig.observe(pod("other", cpu="4", priority=0))
    rig.pass_time(5)

    assert [command.name for command in rig.of(c.ClearNomination)] == ["one"]
    assert rig.placements() == {"other": "a"}


def test_a_member_of_a_full_gang_reserves_no_capacity() -> None:
    rig = Rig(GATED_GANG % " max = 1", node("a"), low(cpu="4"), member("one", 1))
    rig.settle()

    rig.observe(placed(pod("two", labels={"group": "g", "least": "1"}), "elsewhere"))
    carry_out(rig)
    rig.observe(pod("other", cpu="4", priority=0))
    rig.pass_time(5)

    assert [command.name for command in rig.of(c.ClearNomination)] == ["one"]
    assert rig.placements() == {"other": "a"}


def test_a_pod_that_its_new_policy_rejects_reserves_no_capacity() -> None:
    rig = Rig(ANY, node("a"), low(cpu="4"), high(cpu="4"))
    rig.settle()

    rig.apply_policies(ANY + 'input team: string = pod.labels["team"] required "say the team"\n')
    rig.settle()
    carry_out(rig)
    rig.observe(pod("other", cpu="4", priority=0, labels={"team": "x"}))
    rig.pass_time(5)

    assert [command.name for command in rig.of(c.ClearNomination)] == ["high"]
    assert rig.placements() == {"other": "a"}


def gang_of_four(least: int) -> Rig:
    members = [
        high(name, cpu="1", labels={"group": "g", "least": str(least)}) for name in ("p1", "p2", "p3", "p4")
    ]
    rig = Rig(GATED_GANG.replace("mode = gate", "mode = whole") % "", node("a", cpu="4"))
    rig.observe(low("l1", cpu="1"), low("l2", cpu="1"), *members)
    rig.settle()
    return rig


def test_each_member_of_a_gang_with_minimum_1_evicts_like_a_single_pod() -> None:
    """As in kube-scheduler for a PodGroup with the policy `basic`."""
    rig = gang_of_four(least=1)

    carry_out(rig)
    rig.pass_time(2)
    carry_out(rig)
    rig.pass_time(2)

    assert [(node_name, len(victims)) for _, node_name, victims in evictions(rig)] == [("a", 1), ("a", 1)]
    assert rig.placements() == dict.fromkeys(("p1", "p2", "p3", "p4"), "a")


def test_members_beyond_a_larger_minimum_evict_no_pods() -> None:
    rig = gang_of_four(least=2)

    assert evictions(rig) == []
    assert len(rig.placements()) == 2


def test_members_at_the_maximum_of_a_gang_with_minimum_1_evict_no_pods() -> None:
    rig = Rig(
        GATED_GANG.replace("mode = gate", "mode = whole") % " max = 1",
        node("a", cpu="4"),
        low("l1", cpu="3"),
        member("p1", 1),
    )
    rig.observe(placed(pod("p0", cpu="1", labels={"group": "g", "least": "1"}), "a"))

    rig.settle()

    assert evictions(rig) == []
