"""Scenarios of leader election and process exits."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.kube.leader_election import LeaderElector
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.open_writes import OpenWrites
from policysched.kube.write.report_content import EventContent
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.scheduler.scheduler import Scheduler
from tests.simulation.bugs_of_writes import (
    a_leader_that_lost_the_lease_keeps_deciding,
    a_restart_ignores_the_last_known_good_policies,
)
from tests.simulation.replica import Replica
from tests.simulation.scenario import BETA, Scenario, ScenarioBug
from tests.simulation.scenarios_liveness import a_pod_is_bound

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def a_pod_is_created_late(world: Scenario) -> None:
    """After several Lease durations."""
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("leader")
    await asyncio.sleep(40.0)
    world.pod("web", cpu="1")
    await world.check_at_rest()


async def two_replicas_run(world: Scenario) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("first")
    world.start("second")
    await asyncio.sleep(40.0)
    world.pod("web", cpu="1")
    await world.check_at_rest()


async def a_late_bind_competes_with_an_urgent_pod(world: Scenario) -> None:
    await _late_bind_and_rival(world, Replica.kill)


async def a_late_bind_competes_with_an_urgent_pod_after_a_stop(world: Scenario) -> None:
    await _late_bind_and_rival(world, Replica.stop)


async def _late_bind_and_rival(world: Scenario, end: Callable[[Replica], None]) -> None:
    """The leader ends while its bind is in flight, and a pod arrives that would get the same node."""
    world.policies(beta=BETA + "preemption never\n")  # the second pod is urgent
    world.node("a", cpu="1")
    leader = world.start("leader")
    assert world.transport is not None
    world.transport.late.add("slow")
    world.pod("slow", cpu="1")
    await world.until(lambda: world.decided("slow"), "the first decision")
    await asyncio.sleep(0.05)

    end(leader)
    world.pod("rival", cpu="1", urgent=True)
    await asyncio.sleep(40.0)


async def a_policy_breaks_and_the_leader_is_killed(world: Scenario) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    leader = world.start("leader")
    world.pod("before", cpu="1")
    await world.until(lambda: world.nodes_by_pod()["before"], "the first bind")
    await asyncio.sleep(2.0)

    world.policies(beta=BETA.replace("filter node_resources_fit", "filter node_resources_fitt"))
    await asyncio.sleep(2.0)
    leader.kill()
    world.pod("after", cpu="1")
    await asyncio.sleep(40.0)


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_leader_does_not_check_its_lease() -> AbstractContextManager[Any]:
    return patch.object(SchedulerApp, "_may_decide", lambda _: True)


def a_new_leader_skips_the_handover_wait() -> AbstractContextManager[Any]:
    acquired = LeaderElector._acquired

    def at_once(self: LeaderElector, sent_s: float, *, handover_wait_s: float) -> None:
        del handover_wait_s
        acquired(self, sent_s, handover_wait_s=0.0)

    return patch.object(LeaderElector, "_acquired", at_once)


def a_stopping_leader_does_not_wait_for_its_writes() -> AbstractContextManager[Any]:
    return patch.multiple(OpenWrites, any_open=lambda _: False, any_late=lambda _: False)


def a_decision_raises() -> AbstractContextManager[Any]:
    def decide(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    return patch.object(Scheduler, "decide", decide)


def a_callback_raises() -> AbstractContextManager[Any]:
    def say(_: Reporter, words: EventContent) -> None:
        asyncio.get_running_loop().call_soon(lambda: {}[words])

    return patch.object(Reporter, "record_event", say)


SCENARIO_BUGS = (
    ScenarioBug(a_leader_does_not_check_its_lease, a_pod_is_bound, (r"decides without permission: ",)),
    ScenarioBug(
        a_leader_that_lost_the_lease_keeps_deciding,
        a_pod_is_created_late,
        (r" decides, and it renewed its Lease at",),
    ),
    ScenarioBug(
        a_leader_that_lost_the_lease_keeps_deciding,
        two_replicas_run,
        (
            r"decides .* while .* can decide too",
            r"replicas are leading",
        ),
    ),
    ScenarioBug(
        a_new_leader_skips_the_handover_wait,
        a_late_bind_competes_with_an_urgent_pod,
        (
            r" is on .* by .*, after a decision of",
            r"^a holds 2000 of cpu",
        ),
    ),
    ScenarioBug(
        a_stopping_leader_does_not_wait_for_its_writes,
        a_late_bind_competes_with_an_urgent_pod_after_a_stop,
        (
            r" is on .* by .*, after a decision of",
            r"^a holds 2000 of cpu",
        ),
    ),
    ScenarioBug(
        a_restart_ignores_the_last_known_good_policies,
        a_policy_breaks_and_the_leader_is_killed,
        (r"found nothing to run, and .* were saved",),
    ),
    ScenarioBug(
        a_decision_raises,
        a_pod_is_created_late,
        (
            r" crashed: ",
            r" ended with ",
        ),
    ),
    ScenarioBug(a_callback_raises, a_pod_is_bound, (r"^unhandled exception: ",)),
)
