"""A canary whose guard breaks, while leaders are killed: `python -m tests.simulation.scenarios_canaries 50` plays 50 seeds."""

import asyncio
import sys
from contextlib import AbstractContextManager
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any
from unittest.mock import patch

from policysched.evaluate.scalar import compiler
from policysched.lang.ir import text_functions
from policysched.scheduler import canary_guards
from policysched.scheduler.canaries import Canaries
from tests.simulation.replica import Replica
from tests.simulation.scenario import Scenario, ScenarioBug, Script, play

SHARE = 0.2
ROLLED_BACK_WITHIN_S = 60.0
GUARD_S = 12
OWNERS = tuple(f"web-{number}" for number in range(25))

POLICY = f"""\
policy beta version 1
filter node_resources_fit
canary strict {SHARE:.0%} by pod.owner.name guard pending < 5% for {GUARD_S}s else rollback {{
  filter known require (node.labels["canary"] else "") == "ok" says "the canary takes only known nodes"
}}
"""


def in_share(owner: str) -> bool:
    """As the documentation says it, and not as the program computes it."""
    digest = blake2b(f"canary strict: {owner}".encode(), digest_size=8).hexdigest()
    return int(digest, 16) % 10_000 < SHARE * 10_000


@cache
def a_canary_breaks(seed: int) -> Script:
    """The canary's pods fit until the nodes lose a label. Leaders are killed all the time, before, meanwhile and after."""

    async def script(world: Scenario) -> None:
        random = Random(f"canary {seed}")
        world.policies(beta=POLICY)
        for name in ("a", "b"):
            world.node(name, cpu="64", labels={"canary": "ok"})
        leaders = [world.start(name) for name in ("first", "second")]
        await world.until(lambda: any(each.leads for each in leaders), "a leader")
        killing = asyncio.create_task(_kill_leaders(leaders, random))
        for owner in OWNERS:
            _create(world, owner, "early")
        await world.until(lambda: all(world.nodes_by_pod().values()), "the healthy canary")

        await asyncio.sleep(random.uniform(0, 20))
        for node in world.local.list("nodes"):
            world.local.update("nodes", node, _without_label)
        await asyncio.sleep(random.uniform(0.5, 5))
        for owner in random.sample(OWNERS, len(OWNERS)):
            _create(world, owner, "broken")
            await asyncio.sleep(random.uniform(0, 0.1))
        broken_s = world.loop.time()
        touched = await _watch_until_rolled_back(world, broken_s)
        outside = sorted(owner for owner in touched if not in_share(owner))
        if outside:
            world.fail(f"the canary's rules applied to {outside}, which are not in its share")
        if not touched:
            world.fail("the canary's rules applied to nobody")

        for number in range(3):
            for owner in OWNERS:
                _create(world, owner, f"late-{number}")
            await asyncio.sleep(random.uniform(8, 20))
        killing.cancel()
        await asyncio.sleep(25)
        waiting = sorted(name for name, node in world.nodes_by_pod().items() if node is None)
        if waiting:
            world.fail(f"a canary that was rolled back decides again: {waiting} are pending")

    script.__name__ = f"a_canary_breaks_{seed}"
    return script


def _create(world: Scenario, owner: str, when: str) -> None:
    world.pod(f"{owner}-{when}", cpu="100m", owner=("apps/v1", "ReplicaSet", owner))


def _without_label(node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "metadata": {**node["metadata"], "labels": {}}}


async def _kill_leaders(leaders: list[Replica], random: Random) -> None:
    while True:
        await asyncio.sleep(random.uniform(14, 22))
        for leader in leaders:
            if leader.leads:
                leader.kill()


async def _watch_until_rolled_back(world: Scenario, broken_s: float) -> set[str]:
    """The owners of pods that the canary kept from a node, until every pod has one."""
    touched: set[str] = set()
    while True:
        for pod in world.local.list("pods"):
            for condition in pod.get("status", {}).get("conditions", ()):
                if "the canary takes only known nodes" in (condition.get("message") or ""):
                    touched.add(pod["metadata"]["ownerReferences"][0]["name"])
        if all(world.nodes_by_pod().values()):
            return touched
        if world.loop.time() - broken_s > ROLLED_BACK_WITHIN_S:
            world.fail(f"the canary was not rolled back within {ROLLED_BACK_WITHIN_S:g} s")
            return touched
        await asyncio.sleep(0.2)


# ── bugs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rollbacks_are_not_saved() -> AbstractContextManager[Any]:
    return patch.object(Canaries, "saved_with", lambda _self, states: dict(states))


def the_time_of_a_broken_guard_is_forgotten() -> AbstractContextManager[Any]:
    restore = Canaries.restore

    def forgetful(self: Canaries, texts: Any) -> list[str]:
        problems = restore(self, texts)
        for policy, record in self.records.items():
            if not record.rolled_back:
                self.update(policy, broken_since_ns=None)
        return problems

    return patch.object(Canaries, "restore", forgetful)


def pods_that_were_not_tried_count_as_placed() -> AbstractContextManager[Any]:
    known = canary_guards.guard_state
    return patch.object(
        canary_guards, "guard_state", lambda tried, _untried, total, limit: known(tried, 0, total, limit)
    )


def the_name_of_the_canary_is_left_out_of_the_hash() -> AbstractContextManager[Any]:
    return patch.object(
        compiler, "bucket_of", lambda text, count, _salt="": text_functions.bucket_of(text, count)
    )


_LATE = (r"^the canary was not rolled back within",)
SCENARIO_BUGS = (
    ScenarioBug(rollbacks_are_not_saved, a_canary_breaks(1), _LATE),
    ScenarioBug(the_time_of_a_broken_guard_is_forgotten, a_canary_breaks(1), _LATE),
    ScenarioBug(pods_that_were_not_tried_count_as_placed, a_canary_breaks(1), _LATE),
    ScenarioBug(
        the_name_of_the_canary_is_left_out_of_the_hash,
        a_canary_breaks(1),
        (r"which are not in its share$", r"the reference"),
    ),
)
MORE_SCRIPTS = (a_canary_breaks(2),)


def main(seeds: int) -> int:
    failed = 0
    for seed in range(seeds):
        problems = play(a_canary_breaks(seed)).problems
        failed += bool(problems)
        print(f"seed {seed}: {problems or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
