"""Gangs of other namespaces that arrive in the pauses of a gang's attempt: they need not wait for its end."""

from dataclasses import replace

import pytest

from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt_runner import AttemptRunner
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import ALONE, NEVER, POLICIES, attempts_pause, decide_until_pause, gang, rig

WITH_OTHERS = POLICIES | {
    f"{name}.policy": ALONE.replace("policy test", f"policy {name}") for name in ("others", "third")
}


def beside_a_gang(*, nodes: int = 4, cpu: str = "9") -> Rig:
    scheduler = rig(
        *[node(f"n{index}", cpu=cpu, labels={"name": f"n{index}"}) for index in range(nodes)],
        *gang(8),
        policies=WITH_OTHERS,
    )
    decide_until_pause(scheduler)
    return scheduler


def gang_of(namespace: str, count: int = 3, *, cpu: str = "1", scheduler: str = "others") -> list[Pod]:
    labels = {"group": namespace, "least": str(count)}
    return [
        pod(
            f"{namespace}{index}",
            namespace=namespace,
            cpu=cpu,
            labels=labels,
            scheduler=scheduler,
            created="2026-01-02T00:00:00Z",
        )
        for index in range(count)
    ]


def bound_namespaces(scheduler: Rig) -> list[str]:
    """In the order of their first binds."""
    return list(dict.fromkeys(bind.namespace for bind in scheduler.of(c.Bind)))


def state_of(scheduler: Rig, namespace: str) -> QueueState:
    return next(each.state for each in scheduler.scheduler.core.gangs if each.namespace == namespace)


def check_bound_beside() -> None:
    scheduler = beside_a_gang()

    scheduler.observe(*gang_of("a"))
    scheduler.settle()

    assert bound_namespaces(scheduler) == ["a", "default"]
    assert len(scheduler.of(c.Bind)) == 11


def test_a_gang_of_another_namespace_is_bound_while_a_gang_is_attempted() -> None:
    """Before, it waited for the end of the attempt."""
    check_bound_beside()


def test_a_gang_that_waits_for_the_end_of_the_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake."""
    pop_beside = SchedulingQueue.pop_beside
    monkeypatch.setattr(
        SchedulingQueue,
        "pop_beside",
        lambda self, gangs, without, _: pop_beside(self, gangs, without, lambda _: False),
    )

    with pytest.raises(AssertionError):
        check_bound_beside()


def test_a_gang_behind_the_other_one_in_its_policy_waits_for_the_head_start() -> None:
    scheduler = beside_a_gang()

    scheduler.now_ns += 1
    scheduler.observe(*gang_of("a", scheduler="test"))
    scheduler.settle()

    assert bound_namespaces(scheduler) == ["default", "a"]


def test_a_gang_of_the_same_namespace_waits_for_the_end_of_the_attempt() -> None:
    scheduler = beside_a_gang()

    scheduler.observe(*gang_of("default"))
    scheduler.settle()

    assert [bind.name[0] for bind in scheduler.of(c.Bind)][:8] == ["g"] * 8


def test_the_attempts_of_several_gangs_interrupt_each_other() -> None:
    """Otherwise whoever starts two gangs keeps others waiting for the second one."""
    scheduler = beside_a_gang()
    scheduler.observe(*gang_of("a", 5))
    decide_until_pause(scheduler)
    while attempts_pause(scheduler).gang.namespace != "a":
        decide_until_pause(scheduler)

    scheduler.observe(
        *gang_of("b", 2, scheduler="third"), pod("p", namespace="c", scheduler="plain", cpu="1")
    )
    scheduler.settle()

    assert set(bound_namespaces(scheduler)[:2]) == {"b", "c"}
    assert bound_namespaces(scheduler)[2:] == ["a", "default"]
    assert len(scheduler.of(c.Bind)) == 16


def test_gangs_one_after_the_other_do_not_keep_an_attempt_from_its_end() -> None:
    """They take at most four times its cost."""
    scheduler = beside_a_gang(cpu="99")
    scheduler.observe(*gang_of("a", 60))
    while not scheduler.of(c.Bind):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    scheduler.observe(*gang_of("b"))
    scheduler.settle()

    assert bound_namespaces(scheduler) == ["a", "default", "b"]


def in_an_interruption(*, nodes: int = 4, cpu: str = "9") -> Rig:
    """The attempt of a gang is paused, which interrupts that of another one."""
    scheduler = beside_a_gang(nodes=nodes, cpu=cpu)
    while len(attempts_pause(scheduler).search.fits) < 4:
        decide_until_pause(scheduler)
    scheduler.observe(*gang_of("a", 5))
    while attempts_pause(scheduler).gang.namespace != "a":
        decide_until_pause(scheduler)
    return scheduler


@pytest.mark.parametrize("nodes", [3, 5], ids=["no room", "room"])
def test_members_that_another_gang_took_the_nodes_from_are_placed_anew(nodes: int) -> None:
    """Before, the attempt was lost, and the gang began again after its backoff."""
    scheduler = beside_a_gang(nodes=nodes, cpu="5")
    decide_until_pause(scheduler, 3)

    scheduler.observe(*gang_of("a", cpu="5"))
    scheduler.settle()

    assert bound_namespaces(scheduler) == (["a", "default"] if nodes > 3 else ["a"])
    scheduler.observe(node("n9", cpu="9"))
    scheduler.pass_time(2)
    assert bound_namespaces(scheduler) == ["a", "default"]


def test_an_event_that_helps_a_gang_is_not_forgotten_while_another_one_interrupts_it() -> None:
    scheduler = in_an_interruption(nodes=2, cpu="5")

    scheduler.observe(node("n9", cpu="4"))
    scheduler.settle()
    scheduler.pass_time(2)

    assert len(scheduler.of(c.Bind)) == 13


@pytest.mark.parametrize("of", ["interrupted", "interrupting"])
def test_a_gang_that_leaves_does_not_end_the_attempt_of_the_other_one(of: str) -> None:
    scheduler = in_an_interruption()
    left = {"interrupted": "default", "interrupting": "a"}[of]
    entry = next(each for each in scheduler.scheduler.core.gangs if each.namespace == left)
    for uid in list(entry.pending_members):
        scheduler.handle(e.PodDeleted(uid))

    scheduler.settle()

    assert bound_namespaces(scheduler) == [{"interrupted": "a", "interrupting": "default"}[of]]


def test_a_process_that_may_make_no_more_attempts_requeues_all_gangs() -> None:
    scheduler = in_an_interruption()

    scheduler.commands += scheduler.scheduler.requeue_current_attempt(scheduler.now_ns)

    scheduler.check_invariants()
    assert [gang.state for gang in scheduler.scheduler.core.gangs] == [QueueState.ACTIVE] * 2
    assert not (scheduler.scheduler.attempt_paused or scheduler.scheduler.attempt_in_progress)


@pytest.mark.parametrize("policy", ["gangs.policy", "others.policy"])
def test_a_new_text_of_a_policy_reaches_gangs_whose_attempts_are_paused(policy: str) -> None:
    scheduler = in_an_interruption()

    text = WITH_OTHERS[policy] + "filter few require node.pods < 90\n"
    scheduler.apply_policies(WITH_OTHERS | {policy: text})
    scheduler.settle()

    assert len(scheduler.of(c.Bind)) == 13


# ── after a lost attempt ───────────────────────────────────────────────────────────────────────────────────────────


def keeping_nodes(
    *, nodes: int = 4, cpu: str = "9", policies: dict[str, str] = WITH_OTHERS, head_start: int = NEVER
) -> Rig:
    """The members of a gang that lost its last attempt have nodes."""
    low = [placed(pod(f"low{index}", cpu="1", priority=-1), f"n{index}") for index in range(nodes)]
    scheduler = rig(
        *[node(f"n{index}", cpu=cpu, labels={"name": f"n{index}"}) for index in range(nodes)],
        *low,
        *gang(8),
        policies=policies,
        head_start=head_start,
    )
    decide_until_pause(scheduler)
    attempts_pause(scheduler).gang.keeps_nodes = True
    while len(attempts_pause(scheduler).search.fits) < 7:
        decide_until_pause(scheduler)
    return scheduler


def check_nodes_are_kept() -> None:
    scheduler = keeping_nodes(nodes=3, cpu="6")

    scheduler.observe(*gang_of("a", cpu="4"))
    scheduler.settle()

    assert bound_namespaces(scheduler) == ["default"]
    assert len(scheduler.of(c.Bind)) == 8


def test_a_gang_that_would_take_nodes_of_members_waits_after_a_lost_attempt() -> None:
    check_nodes_are_kept()


def test_a_gang_that_takes_nodes_of_members_after_a_lost_attempt_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted mistake."""
    monkeypatch.setattr(AttemptRunner, "_kept_nodes", lambda _: None)

    with pytest.raises(AssertionError):
        check_nodes_are_kept()


def test_a_gang_that_leaves_members_their_nodes_is_bound_after_a_lost_attempt() -> None:
    """Before, nothing interrupted that attempt."""
    scheduler = keeping_nodes()

    scheduler.observe(*gang_of("a"))
    scheduler.settle()

    assert bound_namespaces(scheduler) == ["a", "default"]


def test_pods_beside_an_interrupting_gang_leave_members_their_nodes_after_a_lost_attempt() -> None:
    """In its pauses they are decided beside its own members alone."""
    pinned = POLICIES["plain.policy"] + "filter node_affinity\n"
    scheduler = keeping_nodes(nodes=6, cpu="5", policies=WITH_OTHERS | {"plain.policy": pinned})
    taken = attempts_pause(scheduler).search.fits[0][1].node
    scheduler.observe(*gang_of("a", cpu="1m"))
    while attempts_pause(scheduler).gang.namespace != "a":
        decide_until_pause(scheduler)

    scheduler.observe(pod("p", namespace="b", scheduler="plain", cpu="4", node_selector={"name": taken}))
    scheduler.settle()

    assert bound_namespaces(scheduler) == ["a", "default"]


def test_a_gang_that_would_evict_pods_waits_after_a_lost_attempt() -> None:
    preempting = WITH_OTHERS["others.policy"].replace("never", "{ victims = any }")
    scheduler = keeping_nodes(nodes=4, cpu="4", policies=WITH_OTHERS | {"others.policy": preempting})

    scheduler.observe(*gang_of("a", cpu="4"))
    while not scheduler.of(c.Bind):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        assert scheduler.of(c.Bind) or not scheduler.of(c.Evict)

    assert bound_namespaces(scheduler) == ["default"]


QUOTA = 'quota team by pod.labels["team"] else "all" { "all" { cpu = 13 } others unlimited }\n'


@pytest.mark.parametrize(("cpu", "first"), [("100m", "a"), ("1", "default")])
def test_a_gang_gets_no_quota_of_the_members_after_a_lost_attempt(cpu: str, first: str) -> None:
    scheduler = keeping_nodes(policies=WITH_OTHERS | {"gangs.policy": ALONE + QUOTA}, head_start=1)

    scheduler.now_ns += 1
    scheduler.observe(*gang_of("a", cpu=cpu, scheduler="test"))
    scheduler.settle()

    assert bound_namespaces(scheduler)[0] == first


@pytest.mark.parametrize("count", [1, 2], ids=["a pod", "a gang"])
def test_a_preemptor_whose_victims_are_gone_is_placed_beside_a_gang_that_keeps_its_nodes(count: int) -> None:
    """Its nomination is among what the attempt sees already."""
    scheduler = beside_a_gang()
    attempts_pause(scheduler).gang.keeps_nodes = True
    pods = gang_of("c", 2) if count > 1 else [pod("c0", namespace="c", cpu="1", scheduler="plain")]

    scheduler.observe(*[replace(pending(each), nominated_node="n1") for each in pods])
    scheduler.settle()

    assert bound_namespaces(scheduler)[0] == "c"


ON_N0 = {"name": "n0"}


def beside_members_that_keep_a_node(*earlier: ObservedPod) -> Rig:
    """Two members, of 1,500m each, have found room on a node of 4 cpu, and keep it."""
    policies = {
        name: text.replace("filter node_resources_fit", "filter node_resources_fit\nfilter node_affinity")
        for name, text in WITH_OTHERS.items()
    }
    nodes = [node(f"n{at}", cpu="4", labels={"name": f"n{at}"}) for at in range(3)]
    scheduler = rig(*nodes, *earlier, policies=policies)
    members = [
        pod(
            f"g{at}",
            cpu="1500m",
            labels={"group": "g", "least": "3"},
            node_selector={"name": "n1"} if at == 2 else ON_N0,
            created="2026-01-01T00:00:00Z",
        )
        for at in range(3)
    ]
    scheduler.observe(*members)
    while len(attempts_pause(scheduler).search.fits if scheduler.scheduler.attempt_paused else ()) < 2:
        decide_until_pause(scheduler)
    attempts_pause(scheduler).gang.keeps_nodes = True
    return scheduler


def used_of_n0(scheduler: Rig) -> int:
    return scheduler.scheduler.core.cache.ledger.usage(NodeName("n0")).requested["cpu"]


def test_a_pod_that_grows_beside_the_members_of_a_paused_gang_is_noticed() -> None:
    """It was placed in the same pause, beside members that keep their nodes."""
    scheduler = beside_members_that_keep_a_node()
    others = [replace(each, node_selector=ON_N0) for each in gang_of("b", 2, cpu="400m")]
    scheduler.observe(*others)
    while len([bind for bind in scheduler.of(c.Bind) if bind.namespace == "b"]) < 2:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    scheduler.confirm_binds()

    observed = scheduler.observed_pod(others[0].uid)
    grown = replace(observed.pod, requests={**observed.pod.requests, "cpu": 1500})
    scheduler.handle(e.PodUpdated(replace(observed, pod=grown)))
    scheduler.settle()

    assert used_of_n0(scheduler) == 1900


def test_members_that_interrupt_fit_together_beside_those_that_keep_their_nodes() -> None:
    """Each of them fits alone. Another pod is nominated somewhere, so the overlay changes for each of them."""
    nominated = pod("nominated", namespace="z", cpu="5", scheduler="elsewhere", priority=5)
    scheduler = beside_members_that_keep_a_node(replace(pending(nominated), nominated_node="n2"))

    scheduler.observe(*[replace(each, node_selector=ON_N0) for each in gang_of("b", 2, cpu="800m")])
    scheduler.settle()

    assert used_of_n0(scheduler) == 3000
