"""Stories of a few decisions, and of who has to go for them."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
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
from policysched.scheduler.commands import Bind, Victim
from policysched.scheduler.gangs import placement
from policysched.scheduler.preemption import candidates
from policysched.scheduler.preemption.candidates import Candidate
from tests.simulation.bugs import what_a_policy_says_of_victims_is_not_looked_at
from tests.simulation.stories import Told
from tests.simulation.stories_liveness import one_is_bound, one_waits
from tests.simulation.story import BETA, GAMMA, Story

# ── stories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def two_nodes_are_to_be_had(world: Story) -> None:
    world.policies(beta=BETA)
    for name, cpu in (("a", "8"), ("b", "4")):
        world.node(name, cpu=cpu)
    world.start("leader")
    world.pod("web", cpu="1")
    await world.look()


async def two_have_to_go(world: Story) -> None:
    await _full(world, "beta")
    world.pod("urgent", cpu="2", urgent=True)
    await world.look()


async def those_of_another_are_there(world: Story) -> None:
    await _full(world, "delta")
    world.pod("urgent", cpu="2", urgent=True)
    await asyncio.sleep(20.0)


async def _full(world: Story, scheduler: str) -> None:
    world.policies(beta=BETA, delta=BETA.replace("policy beta", "policy delta"))
    world.node("a", cpu="2")
    world.start("leader")
    for name in ("one", "two"):
        world.pod(name, cpu="1", scheduler=scheduler)
    await world.until(lambda: all(world.where().values()), "the node to be full")


async def a_pair_is_as_important_as_who_is_there(world: Story) -> None:
    await _a_pair_and_full_nodes(world, GAMMA, urgent=False)


async def an_urgent_pair_finds_a_place_in_each_zone(world: Story) -> None:
    together = 'min = least\n  topology = "topology.kubernetes.io/zone"'
    await _a_pair_and_full_nodes(world, GAMMA.replace("min = least", together), urgent=True)


async def _a_pair_and_full_nodes(world: Story, policy: str, *, urgent: bool) -> None:
    world.policies(gamma=policy)
    world.start("leader")
    for name in ("a", "b"):
        world.node(name, cpu="1", zone=f"zone-{name}")
        world.pod(f"on-{name}", cpu="1", scheduler="gamma")
    await world.until(lambda: all(world.where().values()), "the nodes to be full")
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


def the_plan_refuses_everybody() -> AbstractContextManager[Any]:
    def refuse(verdict: Verdict) -> None:
        verdict.pod_refusal, verdict.selected = "nobody comes in", None

    return _each_verdict(refuse)


def the_plan_takes_the_second_best() -> AbstractContextManager[Any]:
    def take(verdict: Verdict) -> None:
        verdict.selected = NodeName("b")

    return _each_verdict(take)


def the_plan_adds_up_wrong() -> AbstractContextManager[Any]:
    def add(verdict: Verdict) -> None:
        verdict.score += 1

    return _each_verdict(add)


def the_plan_counts_a_node_twice() -> AbstractContextManager[Any]:
    def count(verdict: Verdict) -> None:
        verdict.feasible_count += 1

    return _each_verdict(count)


def the_plan_counts_a_reason_twice() -> AbstractContextManager[Any]:
    honest = Verdict.reason_counts
    return patch.object(
        Verdict, "reason_counts", lambda self: {why: 2 * count for why, count in honest(self).items()}
    )


def only_the_first_who_has_to_go_does() -> AbstractContextManager[Any]:
    honest = candidates._candidate

    def candidate(node: Any, in_order: Any, victims: Any, violations: int, cluster: Any) -> Candidate:
        return honest(node, in_order, victims[:1], violations, cluster)

    return patch.object(candidates, "_candidate", candidate)


def anybody_may_have_to_go() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(patch.object(CompiledVictims, "predicate", lambda *_: lambda _: True))
    stack.enter_context(patch.object(Ledger, "lowest_priority", -1))
    return stack


def room_for_a_gang_is_made_anywhere() -> AbstractContextManager[Any]:
    return patch.object(placement, "preemption_domains", lambda *_: [None])


def who_makes_room_is_marked_to_end() -> AbstractContextManager[Any]:
    nominate = Evictor._nominate

    async def mark(self: Evictor, uid: str, namespace: str, name: str, node: str | None) -> None:
        await nominate(self, uid, namespace, name, node)
        target = self._disruption_target_patch(Victim(PodUid(uid), namespace, name), "beta")
        await self._patch_status(namespace, name, target)

    return patch.object(Evictor, "_nominate", mark)


def a_bind_names_no_node_that_there_is() -> AbstractContextManager[Any]:
    def body(bind: Bind) -> bytes:
        metadata = {"name": bind.name, "uid": bind.uid}
        return orjson.dumps({"metadata": metadata, "target": {"kind": "Node", "name": "nowhere"}})

    return patch.object(binding, "binding_body", body)


TOLD = (
    Told(the_plan_refuses_everybody, two_nodes_are_to_be_had, r"the plan refuses it with .*, the oracle"),
    Told(the_plan_takes_the_second_best, two_nodes_are_to_be_had, r"the plan chose .*, the oracle"),
    Told(the_plan_adds_up_wrong, two_nodes_are_to_be_had, r"the plan's total is .*, the oracle's"),
    Told(the_plan_counts_a_node_twice, two_nodes_are_to_be_had, r"the plan finds .* nodes, the oracle"),
    Told(the_plan_counts_a_reason_twice, one_waits, r"the plan counts .*, the oracle"),
    Told(only_the_first_who_has_to_go_does, two_have_to_go, r"and does not fit there without them"),
    Told(what_a_policy_says_of_victims_is_not_looked_at, those_of_another_are_there, r" and is of"),
    Told(anybody_may_have_to_go, a_pair_is_as_important_as_who_is_there, r"is to go for .* and must not be"),
    Told(room_for_a_gang_is_made_anywhere, an_urgent_pair_finds_a_place_in_each_zone, r"is to keep together in .*, and gets"),
    Told(who_makes_room_is_marked_to_end, two_have_to_go, r" was evicted, and we decided nothing of the kind"),
    Told(a_bind_names_no_node_that_there_is, one_is_bound, r"a pod is bound to .*, which never was"),
)  # fmt: skip
