"""Scenarios about what is kept for the next leader: texts that are too large to keep, and a policy that is removed."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.daemon import last_good_store
from policysched.policy_files.last_good_format import PackedTexts
from policysched.scheduler.commands import Command, SavePolicyTexts
from policysched.scheduler.policies.registry import PolicyRegistry
from tests.simulation.replica import POLICIES, Replica
from tests.simulation.scenario import BETA, GAMMA, Scenario, ScenarioBug

LIMIT_BYTES = 12_000
"""Of a ConfigMap, in this world: a real limit would take longer to fill than to test."""

LIBRARY = "library base version 1\n" + "".join(
    f'filter rule_{number} reject node.name == "node-{number}" says "node {number} is closed"\n'
    for number in range(40)
)
NAMES = tuple(f"team-{number}" for number in range(12))

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def policies_with_a_library_break_and_the_leader_is_killed(world: Scenario) -> None:
    """Each is two lines. Expanded they exceed the limit of a ConfigMap."""
    texts = {name: f'policy {name} version 1\ninclude "base.policy"\n' for name in NAMES}
    world.policies(base=LIBRARY, **texts)
    world.server_faults.config_map_bytes_max = LIMIT_BYTES
    leader = world.start("leader")
    await world.until(lambda: leader.leads and active_policies(leader) == set(NAMES), "the policies")
    await asyncio.sleep(10.0)
    assert leader.app is not None
    reported = leader.app.last_good.problem

    world.policies(base=LIBRARY, **{name: f"{text}filter {{\n" for name, text in texts.items()})
    leader.kill()
    await asyncio.sleep(40.0)
    lost = sorted(set(NAMES) - active_policies(leader))
    if lost and not reported:
        world.fail(f"{len(lost)} policies were lost, and nothing was reported")
    elif lost:
        world.fail(f"{len(lost)} policies were lost")


async def a_policy_is_removed_and_every_leader_is_killed(world: Scenario) -> None:
    """Removed, its text deleted, another policy edited, and in the end the removal deleted."""
    world.policies(beta=BETA, gamma=GAMMA)
    world.node("a", cpu="8")
    first = world.start("first")
    await world.until(lambda: active_policies(first) == {"beta", "gamma"}, "the policies")
    second = world.start("second")
    await asyncio.sleep(10.0)

    set_data(world, {"beta.policy": BETA, "gamma.policy": GAMMA, "beta.removed": "not used"})
    await asyncio.sleep(3.0)
    set_data(world, {"gamma.policy": GAMMA + "preemption never\n", "beta.removed": "not used"})
    await asyncio.sleep(3.0)
    for number, killed in enumerate((first, second, first)):
        killed.kill()
        world.pod(f"late-{number}", cpu="1")
        await asyncio.sleep(30.0)
        if number == 1:
            set_data(world, {"gamma.policy": GAMMA})
            await asyncio.sleep(3.0)
    placed = sorted(name for name, node in world.nodes_by_pod().items() if node)
    if placed:
        world.fail(f"a removed policy is active again: it placed {placed}")


def active_policies(replica: Replica) -> set[str]:
    return set() if replica.app is None else set(replica.app.scheduler.programs())


def set_data(world: Scenario, data: dict[str, str]) -> None:
    config_map = world.local.get("configmaps", POLICIES.namespace, POLICIES.name)
    assert config_map is not None
    world.local.update("configmaps", config_map, lambda config_map: {**config_map, "data": data})


# ── bugs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def last_good_texts_are_never_compressed() -> AbstractContextManager[Any]:
    def plain(texts: dict[str, str], *_: object) -> PackedTexts:
        return PackedTexts(texts, {})

    return patch.object(last_good_store, "pack_texts", plain)


def last_good_texts_are_never_saved() -> AbstractContextManager[Any]:
    return patch.object(last_good_store.LastGoodStore, "save_policies", lambda *_: None)


def texts_of_removed_policies_are_kept() -> AbstractContextManager[Any]:
    save = PolicyRegistry.save

    def hoarding(self: PolicyRegistry) -> list[Command]:
        before = dict(self._saved_texts)
        commands = save(self)
        self._saved_texts = {**before, **self._saved_texts}
        return [SavePolicyTexts(self._saved_texts) for _ in commands]

    return patch.object(PolicyRegistry, "save", hoarding)


SCENARIO_BUGS = (
    ScenarioBug(
        last_good_texts_are_never_compressed,
        policies_with_a_library_break_and_the_leader_is_killed,
        (r"^\d+ policies were lost$",),
    ),
    ScenarioBug(
        last_good_texts_are_never_saved,
        policies_with_a_library_break_and_the_leader_is_killed,
        (r"policies were lost, and nothing was reported",),
    ),
    ScenarioBug(
        texts_of_removed_policies_are_kept,
        a_policy_is_removed_and_every_leader_is_killed,
        (r"^a removed policy is active again",),
    ),
)
