"""Scenarios in which one namespace, one process or one clock fails, and everything else must not notice."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from policysched.daemon.clock import NonDecreasingClock
from policysched.kube.client.backoff import Backoff
from policysched.kube.write.bind import Binder, RetryLater
from policysched.kube.write.bind_object import BindOutcome
from policysched.kube.write.bind_places import BindPlaces
from policysched.kube.write.pending_binds import PendingBind
from policysched.sandbox.faults import NO_FAULTS, FaultInjector, FaultRates
from policysched.scheduler.policy_permissions import AllowedPolicy, NamespaceSelection, PolicyPermissions
from tests.simulation.bugs_of_decisions import every_namespace_is_served
from tests.simulation.bugs_of_writes import (
    a_bind_outlives_a_stall_of_its_process,
    leadership_is_not_checked_at_the_write,
)
from tests.simulation.churn import OTHER_SCHEDULER
from tests.simulation.planted import all_patches
from tests.simulation.scenario import BETA, Scenario, ScenarioBug
from tests.simulation.server_faults import WebhookFault

NEIGHBOUR_BOUND_WITHIN_S = 1.5
"""Of a pod whose namespace has no fault, from its creation, while all binds of another namespace fail."""

BOUND_AFTER_OVERLOAD_S = 9.0
"""Of every pod, after the server is healthy again: the longest wait that its `Retry-After` can ask for, and a second."""

PROMPT_GANG = """\
policy gamma version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
gang by group {
  min = least
  timeout = 20s
  on_timeout = fail
}
filter node_resources_fit
"""

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def the_settings_let_policies_serve_one_of_two_namespaces(world: Scenario) -> None:
    """A pod of the other one waits, also after an edit of the policy and a change of the namespace."""
    world.permissions = PolicyPermissions((AllowedPolicy("*", NamespaceSelection((), {"team": "ml"})),))
    world.safety_checker.served_namespaces = ("ml",)
    for name, team in (("ml", "ml"), ("web", "web")):
        world.local.create("namespaces", "", {"metadata": {"name": name, "labels": {"team": team}}})
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("leader")
    world.pod("refused", cpu="1", namespace="web")
    world.pod("first", cpu="1", namespace="ml")
    await world.until(lambda: world.nodes_by_pod()["first"], "a bind in the namespace that is served")

    world.policies(beta=BETA.replace("version 1", "version 2"))
    web = world.local.get("namespaces", "", "web")
    assert web is not None
    world.local.update(
        "namespaces", web, lambda space: {**space, "metadata": {**space["metadata"], "labels": {"team": "x"}}}
    )
    world.pod("second", cpu="1", namespace="ml")
    await world.until(lambda: world.nodes_by_pod()["second"], "a bind after the edit")
    await asyncio.sleep(20.0)


async def a_bind_waits_for_a_connection_while_its_leader_is_frozen(world: Scenario) -> None:
    """For longer than the Lease lives: the second replica leads when it goes on."""
    world.policies(beta=BETA)
    world.node("a", cpu="1")
    first = world.start("first")
    await world.until(lambda: first.leads, "the first leader")
    world.start("second")
    await asyncio.sleep(8.0)  # both are there, the first one decides
    first.connect_wait_s = lambda: 0.5
    world.pod("slow", cpu="1")
    await world.until(lambda: world.decided("slow"), "the first decision")

    first.freeze(30.0)
    first.connect_wait_s = lambda: 0.0
    world.pod("rival", cpu="1", urgent=True)
    await world.check_at_rest(60.0)


async def a_bind_waits_for_a_connection_while_its_leader_stands_still(world: Scenario) -> None:
    """For less than the Lease lives, so that the same process leads after it. Meanwhile its room is taken by a pod of
    another scheduler, which a decision after the stall sees."""
    world.profile = replace(world.profile, lease_duration_s=15.0)
    world.policies(beta=BETA)
    world.node("a", cpu="1")
    world.node("b", cpu="1")
    leader = world.start("leader")
    await world.until(lambda: leader.leads, "the leader")
    await asyncio.sleep(16.0)
    leader.connect_wait_s = lambda: 6.5
    world.pod("slow", cpu="1")
    await world.until(lambda: world.decided("slow"), "the decision")

    leader.freeze(5.0)
    leader.connect_wait_s = lambda: 0.0
    target = "a" if world.trace_count("decides default/slow to a") else "b"
    world.pod("other", cpu="1", node=target, scheduler=OTHER_SCHEDULER)
    await world.check_at_rest(60.0)
    if world.nodes_by_pod()["slow"] == target:
        world.fail("the bind was sent on what the cluster was before the stall")


async def _binds_of_a_namespace_fail(world: Scenario, fault: WebhookFault) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="100", pods="500")
    world.local.create("namespaces", "", {"metadata": {"name": "bad"}})
    replica = world.start("leader")
    await world.until(lambda: replica.leads, "the leader")
    await asyncio.sleep(8.0)
    world.server_faults.webhooks["bad"] = fault
    for number in range(60):
        world.pod(f"bad-{number}", cpu="100m", namespace="bad")
    await asyncio.sleep(4.0)

    for number in range(5):
        name = f"good-{number}"
        created_s = world.loop.time()
        world.pod(name, cpu="100m")
        while not world.nodes_by_pod()[name] and world.loop.time() < created_s + 60.0:
            await asyncio.sleep(0.01)
        waited_s = world.loop.time() - created_s
        if waited_s > NEIGHBOUR_BOUND_WITHIN_S:
            world.fail(f"{name} is bound after {waited_s:.1f} s beside a failing namespace")
    if any(node for name, node in world.nodes_by_pod().items() if name.startswith("bad")):
        world.fail("a bind of the failing namespace succeeded")
    assert replica.app is not None
    if replica.app.connectivity.unreachable:
        world.fail("one namespace is taken for the server")

    world.server_faults.disable()
    await world.check_at_rest(60.0)


async def binds_of_a_namespace_get_errors(world: Scenario) -> None:
    await _binds_of_a_namespace_fail(world, "fails")


async def binds_of_a_namespace_get_no_answer(world: Scenario) -> None:
    await _binds_of_a_namespace_fail(world, "hangs")


async def binds_of_a_namespace_are_put_off_for_an_hour(world: Scenario) -> None:
    await _binds_of_a_namespace_fail(world, "is overloaded")


async def binds_of_a_namespace_are_denied(world: Scenario) -> None:
    await _binds_of_a_namespace_fail(world, "denies")


async def the_server_puts_everything_off_for_an_hour(world: Scenario) -> None:
    """503 with `Retry-After: 3600` for a moment, in the middle of a burst. The Lease survives it."""
    world.policies(beta=BETA)
    world.node("a", cpu="100", pods="500")
    replica = world.start("leader")
    await world.until(lambda: replica.leads, "the leader")
    await asyncio.sleep(8.0)
    for number in range(50):
        world.pod(f"web-{number}", cpu="100m")
    world.server_faults.overload(1.5)
    await asyncio.sleep(1.5)
    healthy_s = world.loop.time()
    world.pod("late", cpu="100m")
    while not all(world.nodes_by_pod().values()) and world.loop.time() < healthy_s + 60.0:
        await asyncio.sleep(0.05)
    waited_s = world.loop.time() - healthy_s
    if waited_s > BOUND_AFTER_OVERLOAD_S:
        world.fail(f"pods are pending {waited_s:.1f} s after the server is healthy")


async def the_wall_clock_is_set_forward_while_a_gang_waits(world: Scenario) -> None:
    """By an hour, as a clock daemon does that finds the clock wrong. The gang is complete in time."""
    world.policies(gamma=PROMPT_GANG)
    for name in ("a", "b"):
        world.node(name, cpu="1")
    replica = world.start("leader")
    await world.until(lambda: replica.leads, "the leader")
    await asyncio.sleep(8.0)
    world.pod("one", cpu="1", scheduler="gamma", labels={"group": "pair", "least": "2"})
    await asyncio.sleep(5.0)
    replica.wall_offset_ns = 3600 * 10**9
    await asyncio.sleep(5.0)
    world.pod("two", cpu="1", scheduler="gamma", labels={"group": "pair", "least": "2"})
    await asyncio.sleep(60.0)
    if not all(world.nodes_by_pod().values()):
        world.fail(f"the gang is lost: {world.nodes_by_pod()}")


async def a_process_has_no_file_descriptors(world: Scenario) -> None:
    """For longer than a watch lasts, then for longer than the Lease."""
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    replica = world.start("leader")
    replica._network._faults = FaultInjector(FaultRates(watch_lifetime_s=1.0), world.random_stream("cuts"))
    await world.until(lambda: replica.leads, "the leader")
    await asyncio.sleep(8.0)
    replica.take_descriptors(2.5)
    world.pod("short", cpu="1")
    await asyncio.sleep(12.0)
    replica.take_descriptors(8.0)
    world.pod("long", cpu="1")
    await asyncio.sleep(8.0)
    replica._network._faults = FaultInjector(NO_FAULTS, world.random_stream("no cuts"))
    await world.check_at_rest(40.0)


async def the_disk_of_the_server_is_full(world: Scenario) -> None:
    """No write succeeds for a while: no bind, no condition, no renewal."""
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    replica = world.start("leader")
    await world.until(lambda: replica.leads, "the leader")
    await asyncio.sleep(8.0)
    world.server_faults.fill_disk(20.0)
    world.pod("web", cpu="1")
    world.pod("large", cpu="9")
    await asyncio.sleep(20.0)
    await world.check_at_rest(60.0)


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_failing_bind_keeps_its_worker() -> AbstractContextManager[Any]:
    attempt = Binder._attempt

    async def stubborn(self: Binder, pending: PendingBind) -> BindOutcome:
        while True:
            result = await attempt(self, pending)
            if not isinstance(result, RetryLater):
                return result
            await asyncio.sleep(result.delay_s)

    return all_patches(
        patch.object(Binder, "_attempt", stubborn),
        patch.object(BindPlaces, "__init__", _without_spare_workers(BindPlaces.__init__)),
        patch.object(BindPlaces, "has_surplus", False),
    )


def _without_spare_workers(init: Callable[[BindPlaces, int], None]) -> Callable[[BindPlaces, int], None]:
    def without_spare(self: BindPlaces, workers: int) -> None:
        init(self, workers)
        self.requests_max = self.unknown_share = workers

    return without_spare


def retry_after_is_obeyed_without_limit() -> AbstractContextManager[Any]:
    delay = Backoff.next_delay_s

    def obedient(self: Backoff, error: BaseException | None = None) -> float:
        return max(delay(self, error), getattr(error, "retry_after_s", None) or 0.0)

    return patch.object(Backoff, "next_delay_s", obedient)


def the_clock_follows_every_step_of_the_wall_clock() -> AbstractContextManager[Any]:
    return all_patches(
        patch.object(NonDecreasingClock, "now_ns", lambda self: self._wall_ns()),
        patch.object(NonDecreasingClock, "offset_s", lambda _: 0.0),
    )


_LATE_NEIGHBOUR = (r"is bound after .* beside a failing namespace",)

SCENARIO_BUGS = (
    ScenarioBug(
        every_namespace_is_served,
        the_settings_let_policies_serve_one_of_two_namespaces,
        (r"and no policy serves namespace",),
    ),
    ScenarioBug(
        leadership_is_not_checked_at_the_write,
        a_bind_waits_for_a_connection_while_its_leader_is_frozen,
        (r"sends .* while .* leads",),
    ),
    ScenarioBug(
        a_bind_outlives_a_stall_of_its_process,
        a_bind_waits_for_a_connection_while_its_leader_stands_still,
        (r"decided before it had caught up", r"was sent on what the cluster was before the stall"),
    ),
    ScenarioBug(a_failing_bind_keeps_its_worker, binds_of_a_namespace_get_errors, _LATE_NEIGHBOUR),
    ScenarioBug(a_failing_bind_keeps_its_worker, binds_of_a_namespace_get_no_answer, _LATE_NEIGHBOUR),
    ScenarioBug(
        a_failing_bind_keeps_its_worker, binds_of_a_namespace_are_put_off_for_an_hour, _LATE_NEIGHBOUR
    ),
    ScenarioBug(
        retry_after_is_obeyed_without_limit,
        the_server_puts_everything_off_for_an_hour,
        (r"pods are pending .* s after the server is healthy",),
    ),
    ScenarioBug(
        the_clock_follows_every_step_of_the_wall_clock,
        the_wall_clock_is_set_forward_while_a_gang_waits,
        (r"^the gang is lost",),
    ),
)

MORE_SCRIPTS = (
    binds_of_a_namespace_are_denied,
    a_process_has_no_file_descriptors,
    the_disk_of_the_server_is_full,
)
"""Without a bug of their own."""
