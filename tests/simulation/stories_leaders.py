"""Stories of leaders and their ends."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.kube.leader_election import LeaderElector
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.report_content import EventContent
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.scheduler.scheduler import Scheduler
from tests.simulation.bugs import (
    a_restart_forgets_the_last_known_good_policies,
    who_lost_the_lease_goes_on_deciding,
)
from tests.simulation.stories import Told
from tests.simulation.stories_liveness import one_is_bound
from tests.simulation.story import BETA, Story

# ── stories ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def a_pod_comes_late(world: Story) -> None:
    """When the Lease has been held for several times its life."""
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("leader")
    await asyncio.sleep(40.0)
    world.pod("web", cpu="1")
    await world.look()


async def there_are_two_of_us(world: Story) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("first")
    world.start("second")
    await asyncio.sleep(40.0)
    world.pod("web", cpu="1")
    await world.look()


async def a_late_bind_and_a_rival(world: Story) -> None:
    world.policies(beta=BETA + "preemption never\n")  # the rival is urgent
    world.node("a", cpu="1")
    leader = world.start("leader")
    assert world.road is not None
    world.road.late.add("slow")
    world.pod("slow", cpu="1")
    await world.until(lambda: world.decided("slow"), "the first decision")
    await asyncio.sleep(0.05)

    leader.kill()
    world.pod("rival", cpu="1", urgent=True)
    await asyncio.sleep(40.0)


async def a_policy_breaks_and_the_leader_dies(world: Story) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    leader = world.start("leader")
    world.pod("before", cpu="1")
    await world.until(lambda: world.where()["before"], "the first bind")
    await asyncio.sleep(2.0)

    world.policies(beta=BETA.replace("filter node_resources_fit", "filter node_resources_fitt"))
    await asyncio.sleep(2.0)
    leader.kill()
    world.pod("after", cpu="1")
    await asyncio.sleep(40.0)


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_leader_does_not_ask_whether_it_may_decide() -> AbstractContextManager[Any]:
    return patch.object(SchedulerApp, "_may_decide", lambda _: True)


def a_new_leader_does_not_wait() -> AbstractContextManager[Any]:
    acquired = LeaderElector._acquired

    def at_once(self: LeaderElector, sent_s: float, *, handover_wait_s: float) -> None:
        del handover_wait_s
        acquired(self, sent_s, handover_wait_s=0.0)

    return patch.object(LeaderElector, "_acquired", at_once)


def a_decision_breaks() -> AbstractContextManager[Any]:
    def decide(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    return patch.object(Scheduler, "decide", decide)


def something_breaks_where_nobody_waits_for_it() -> AbstractContextManager[Any]:
    def say(_: Reporter, words: EventContent) -> None:
        asyncio.get_running_loop().call_soon(lambda: {}[words])

    return patch.object(Reporter, "record_event", say)


TOLD = (
    Told(a_leader_does_not_ask_whether_it_may_decide, one_is_bound, r"decides and may not: "),
    Told(who_lost_the_lease_goes_on_deciding, a_pod_comes_late, r" decides, and its Lease is from"),
    Told(who_lost_the_lease_goes_on_deciding, there_are_two_of_us, r"decides while .* may decide too"),
    Told(who_lost_the_lease_goes_on_deciding, there_are_two_of_us, r"replicas lead"),
    Told(a_new_leader_does_not_wait, a_late_bind_and_a_rival, r" is on .* by .*, after .* has decided"),
    Told(a_restart_forgets_the_last_known_good_policies, a_policy_breaks_and_the_leader_dies, r"found nothing to run, and .* were kept"),
    Told(a_decision_breaks, a_pod_comes_late, r" crashed: "),
    Told(a_decision_breaks, a_pod_comes_late, r" ended with "),
    Told(something_breaks_where_nobody_waits_for_it, one_is_bound, r"^escaped: "),
)  # fmt: skip
