"""Scenarios of single decisions and of preemption."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import orjson

from policysched.cluster.ledger import Ledger
from policysched.evaluate.evaluator import Evaluator
from policysched.evaluate.plan.victims import CompiledVictims
from policysched.evaluate.verdict import Verdict
from policysched.kube.write import bind as binding
from policysched.kube.write.evict import Evictor
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.commands import Bind, Evict, Victim
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs import gang_preemption
from policysched.scheduler.gangs.bind_failures import GangBindFailures, Obstacle
from policysched.scheduler.pending_reports import PendingReports
from policysched.scheduler.policy_text_events import PolicyTextEvents
from policysched.scheduler.preemption import victim_selection
from policysched.scheduler.preemption.victim_selection import Candidate
from policysched.scheduler.steps import Steps
from tests.simulation.bugs_of_decisions import (
    running_gangs_are_evicted_in_part,
    the_victims_condition_of_a_policy_is_ignored,
)
from tests.simulation.replica import Replica
from tests.simulation.scenario import BETA, GAMMA, Scenario, ScenarioBug
from tests.simulation.scenarios_liveness import a_pod_is_bound, a_pod_waits

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def two_nodes_are_feasible(world: Scenario) -> None:
    world.policies(beta=BETA)
    for name, cpu in (("a", "8"), ("b", "4")):
        world.node(name, cpu=cpu)
    world.start("leader")
    world.pod("web", cpu="1")
    await world.check_at_rest()


async def two_pods_are_preempted(world: Scenario) -> None:
    await _fill_node(world, "beta")
    world.pod("urgent", cpu="2", urgent=True)
    await world.check_at_rest()


async def pods_of_another_policy_fill_the_node(world: Scenario) -> None:
    await _fill_node(world, "delta")
    world.pod("urgent", cpu="2", urgent=True)
    await asyncio.sleep(20.0)


async def _fill_node(world: Scenario, scheduler: str) -> None:
    world.policies(beta=BETA, delta=BETA.replace("policy beta", "policy delta"))
    world.node("a", cpu="2")
    world.start("leader")
    for name in ("one", "two"):
        world.pod(name, cpu="1", scheduler=scheduler)
    await world.until(lambda: all(world.nodes_by_pod().values()), "the node to be full")


async def a_gang_has_the_priority_of_the_running_pods(world: Scenario) -> None:
    await _create_gang_and_full_nodes(world, GAMMA, urgent=False)


async def an_urgent_gang_fits_across_zones(world: Scenario) -> None:
    together = 'min = least\n  topology = "topology.kubernetes.io/zone"'
    await _create_gang_and_full_nodes(world, GAMMA.replace("min = least", together), urgent=True)


async def an_urgent_pod_needs_the_node_of_a_gang_member(world: Scenario) -> None:
    world.policies(gamma=GAMMA)
    world.start("leader")
    for name in ("a", "b"):
        world.node(name, cpu="1")
        world.pod(f"on-{name}", cpu="1", scheduler="gamma", labels={"group": "pair", "least": "2"})
    await world.until(lambda: all(world.nodes_by_pod().values()), "the gang to run")
    world.pod("urgent", cpu="1", scheduler="gamma", urgent=True)
    await world.until(lambda: world.nodes_by_pod().get("urgent"), "the urgent pod to run")


async def the_bind_of_a_gang_member_is_refused(world: Scenario) -> None:
    world.policies(gamma=GAMMA.replace("min = least", "min = least\n  on_bind_failure = evict"))
    world.start("leader")
    assert world.transport is not None
    world.transport.refused.add("three")
    world.node("a", cpu="4")
    for name in ("one", "two", "three"):
        world.pod(name, cpu="1", scheduler="gamma", labels={"group": "trio", "least": "3"})
    await world.until(lambda: world.decided("three"), "a decision about the gang")
    await world.check_at_rest()


async def a_restart_comes_between_a_refused_bind_and_the_evictions(world: Scenario) -> None:
    """The bind of `two` has no answer yet, so nobody is evicted; later the gang has no room for a new attempt."""
    leader = await _leader_of_a_gang_with_a_refused_bind(world)
    leader.kill()
    _set_cpu(world, "1")
    world.start("next")
    await world.check_at_rest()
    if "one" in world.nodes_by_pod():
        world.fail("a bound member of a refused gang stays after a restart")


async def a_gang_is_attempted_between_a_refused_bind_and_a_restart(world: Scenario) -> None:
    """The attempt finds no room for `three` while the bind of `two` has no answer."""
    leader = await _leader_of_a_gang_with_a_refused_bind(world)
    _set_cpu(world, "2")
    await asyncio.sleep(30.0)
    leader.kill()
    world.start("next")
    await world.check_at_rest()
    if "one" in world.nodes_by_pod():
        world.fail("a bound member of a refused gang stays after an attempt and a restart")


async def a_webhook_refuses_to_evict_the_rest_of_a_gang(world: Scenario) -> None:
    """For a minute, before and after another leader."""
    leader = await _leader_of_a_gang_with_a_refused_bind(world)
    assert world.transport is not None
    world.transport.kept.add("one")
    world.transport.lost.clear()
    _set_cpu(world, "2")
    await asyncio.sleep(30.0)
    leader.kill()
    world.start("next")
    assert world.transport is not None
    world.transport.kept.add("one")
    await asyncio.sleep(60.0)
    if "one" not in world.nodes_by_pod():
        world.fail("a pod is evicted that a webhook protects")
    world.transport.kept.clear()
    await world.check_at_rest(after_s=90.0)
    if "one" in world.nodes_by_pod():
        world.fail("a bound member of a refused gang stays after a refused eviction")


async def _leader_of_a_gang_with_a_refused_bind(world: Scenario) -> Replica:
    """Of three members, `one` is bound, the bind of `two` has no answer, and that of `three` is refused."""
    world.policies(gamma=GAMMA.replace("min = least", "min = least\n  on_bind_failure = evict"))
    leader = world.start("leader")
    assert world.transport is not None
    world.transport.refused.add("three")
    world.transport.lost.add("two")
    world.node("a", cpu="4")
    for name in ("one", "two", "three"):
        world.pod(name, cpu="1", scheduler="gamma", labels={"group": "trio", "least": "3"})
    await world.until(lambda: _is_refused(world, "three"), "a condition of the refused pod")
    return leader


def _set_cpu(world: Scenario, cpu: str) -> None:
    node = world.local.get("nodes", "", "a")
    assert node is not None
    world.local.set_status("nodes", node, allocatable={"cpu": cpu, "memory": "4Gi", "pods": "20"})


def _is_refused(world: Scenario, name: str) -> bool:
    pod = world.local.get("pods", "default", name)
    conditions = () if pod is None else (pod["status"].get("conditions") or ())
    return any("was refused" in str(condition.get("message")) for condition in conditions)


async def _create_gang_and_full_nodes(world: Scenario, policy: str, *, urgent: bool) -> None:
    world.policies(gamma=policy)
    world.start("leader")
    for name in ("a", "b"):
        world.node(name, cpu="1", zone=f"zone-{name}")
        world.pod(f"on-{name}", cpu="1", scheduler="gamma")
    await world.until(lambda: all(world.nodes_by_pod().values()), "the nodes to be full")
    for name in ("one", "two"):
        labels = {"group": "pair", "least": "2"}
        world.pod(name, cpu="1", scheduler="gamma", labels=labels, urgent=urgent)
    await asyncio.sleep(20.0)


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _each_verdict(change: Callable[[Verdict], None]) -> AbstractContextManager[Any]:
    evaluate = Evaluator.evaluate

    def changed(self: Evaluator, *what: Any, **more: Any) -> Verdict:
        verdict = evaluate(self, *what, **more)
        change(verdict)
        return verdict

    return patch.object(Evaluator, "evaluate", changed)


def the_plan_refuses_every_pod() -> AbstractContextManager[Any]:
    def refuse(verdict: Verdict) -> None:
        verdict.pod_rejection, verdict.selected = "nobody comes in", None

    return _each_verdict(refuse)


def the_plan_selects_the_second_best_node() -> AbstractContextManager[Any]:
    def take(verdict: Verdict) -> None:
        verdict.selected = NodeName("b")

    return _each_verdict(take)


def the_plan_adds_one_to_the_score() -> AbstractContextManager[Any]:
    def add(verdict: Verdict) -> None:
        verdict.score += 1

    return _each_verdict(add)


def the_plan_counts_a_node_twice() -> AbstractContextManager[Any]:
    def count(verdict: Verdict) -> None:
        verdict.feasible_count += 1

    return _each_verdict(count)


def the_plan_counts_a_reason_twice() -> AbstractContextManager[Any]:
    original = Verdict.reason_counts
    return patch.object(
        Verdict, "reason_counts", lambda self: {reason: 2 * count for reason, count in original(self).items()}
    )


def only_the_first_victim_is_evicted() -> AbstractContextManager[Any]:
    original = victim_selection.VictimSelection.candidate

    def candidate(self: victim_selection.VictimSelection) -> Steps[Candidate]:
        chosen = yield from original(self)
        return replace(chosen, victims=chosen.victims[:1])

    return patch.object(victim_selection.VictimSelection, "candidate", candidate)


def any_pod_can_be_a_victim() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(patch.object(CompiledVictims, "predicate", lambda *_: lambda _: True))
    stack.enter_context(patch.object(Ledger, "lowest_priority", -1))
    return stack


def gang_preemption_ignores_topology() -> AbstractContextManager[Any]:
    return patch.object(gang_preemption, "preemption_domains", lambda *_: [None])


def bound_members_of_a_refused_gang_stay() -> AbstractContextManager[Any]:
    return patch.object(GangBindFailures, "_obstacle", lambda *_: Obstacle("they keep their nodes"))


def a_restart_forgets_refused_binds() -> AbstractContextManager[Any]:
    return patch.object(PolicyTextEvents, "_resume_gang_failures", lambda *_: None)


def later_reports_replace_a_refused_bind() -> AbstractContextManager[Any]:
    return patch.object(PendingReports, "keep", lambda *_: [])


def refused_evictions_of_a_gang_are_not_tried_again() -> AbstractContextManager[Any]:
    return patch.object(SchedulerCore, "defer_gang_eviction", lambda *_: None)


def the_preemptor_is_marked_as_a_victim() -> AbstractContextManager[Any]:
    nominate = Evictor._nominate

    async def mark(self: Evictor, uid: str, namespace: str, name: str, node: str | None) -> None:
        await nominate(self, uid, namespace, name, node)
        evict = Evict(PodUid(uid), namespace, name, "beta", None, ())
        target = self._disruption_target_patch(Victim(PodUid(uid), namespace, name), evict)
        await self._patch_status(namespace, name, target)

    return patch.object(Evictor, "_nominate", mark)


def a_bind_names_an_unknown_node() -> AbstractContextManager[Any]:
    def body(bind: Bind) -> bytes:
        metadata = {"name": bind.name, "uid": bind.uid}
        return orjson.dumps({"metadata": metadata, "target": {"kind": "Node", "name": "nowhere"}})

    return patch.object(binding, "binding_body", body)


SCENARIO_BUGS = (
    ScenarioBug(
        the_plan_refuses_every_pod, two_nodes_are_feasible, (r"the plan refuses it with .*, the reference",)
    ),
    ScenarioBug(
        the_plan_selects_the_second_best_node,
        two_nodes_are_feasible,
        (r"the plan selects .*, the reference",),
    ),
    ScenarioBug(
        the_plan_adds_one_to_the_score, two_nodes_are_feasible, (r"the plan's score is .*, the reference's",)
    ),
    ScenarioBug(
        the_plan_counts_a_node_twice, two_nodes_are_feasible, (r"the plan finds .* nodes, the reference",)
    ),
    ScenarioBug(the_plan_counts_a_reason_twice, a_pod_waits, (r"the plan counts .*, the reference",)),
    ScenarioBug(
        only_the_first_victim_is_evicted,
        two_pods_are_preempted,
        (r"and does not fit there without its victims",),
    ),
    ScenarioBug(
        the_victims_condition_of_a_policy_is_ignored,
        pods_of_another_policy_fill_the_node,
        (r" and has scheduler ",),
    ),
    ScenarioBug(
        any_pod_can_be_a_victim,
        a_gang_has_the_priority_of_the_running_pods,
        (r"and must not be one",),
    ),
    ScenarioBug(
        gang_preemption_ignores_topology,
        an_urgent_gang_fits_across_zones,
        (r"has topology .* and gets",),
    ),
    ScenarioBug(
        bound_members_of_a_refused_gang_stay,
        the_bind_of_a_gang_member_is_refused,
        (r"has 2 of 3 placed, and nothing disturbed it",),
    ),
    ScenarioBug(
        a_restart_forgets_refused_binds,
        a_restart_comes_between_a_refused_bind_and_the_evictions,
        (r"a bound member of a refused gang stays after a restart",),
    ),
    ScenarioBug(
        later_reports_replace_a_refused_bind,
        a_gang_is_attempted_between_a_refused_bind_and_a_restart,
        (r"stays after an attempt and a restart",),
    ),
    ScenarioBug(
        refused_evictions_of_a_gang_are_not_tried_again,
        a_webhook_refuses_to_evict_the_rest_of_a_gang,
        (r"stays after a refused eviction",),
    ),
    ScenarioBug(
        running_gangs_are_evicted_in_part,
        an_urgent_pod_needs_the_node_of_a_gang_member,
        (r"is evicted in part: of 2 members fewer than 2 stay",),
    ),
    ScenarioBug(
        the_preemptor_is_marked_as_a_victim,
        two_pods_are_preempted,
        (r" was evicted without a decision",),
    ),
    ScenarioBug(
        a_bind_names_an_unknown_node, a_pod_is_bound, (r"a pod is bound to .*, which never existed",)
    ),
)
