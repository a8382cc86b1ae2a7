"""What a replaced policy text leaves: only a collection of all garbage would free cycles, and it stops the main loop."""

import asyncio
import gc

from policysched.daemon.policy_checker import PolicyTexts
from policysched.gc_tuning import collections_paused
from policysched.lang.check.bundle import PolicyBundle
from tests.evaluate.policies import CORNERS
from tests.kube.world import World, on_virtual_time, running, until
from tests.runtime.test_scheduler_app import app_on, put_policies
from tests.scheduler.rig import bundle

EDITS = 4
GARBAGE_MAX = 100
"""Objects in all. With reference cycles in plans it was 45,000."""


def texts_of(edit: int) -> dict[str, str]:
    """A policy for each corner of the language."""
    texts = {}
    for number, lines in enumerate(CORNERS.values()):
        edited = f'filter edited reject node.name == "edit-{edit}"'
        texts[f"corner-{number}"] = "\n".join((f"policy corner-{number} version 1", *lines, edited, ""))
    return texts


async def check_beside(texts: PolicyTexts, _place: str) -> PolicyBundle:
    return bundle(texts)


def test_a_replaced_policy_is_freed_without_a_collection() -> None:
    for edit in range(EDITS):  # what the check leaves is not counted: it runs in a process of its own
        bundle({f"{name}.policy": text for name, text in sorted(texts_of(edit).items())})

    async def scenario() -> None:
        world = World()
        for name in ("n1", "n2", "n3"):
            world.add_node(name, zone=name, labels={"pool": "a", "gen": "1", "rack": "1"})
        put_policies(world, **texts_of(0))
        app = app_on(world, world.transport(), check_texts=check_beside)

        async def decide_with(edit: int) -> None:
            """Two pods of each policy, after the edit is active."""
            if edit:
                config_map = world.local.get("configmaps", "kube-system", "policies")
                assert config_map is not None
                data = {f"{name}.policy": text for name, text in texts_of(edit).items()}
                world.local.update("configmaps", config_map, lambda current: {**current, "data": data})
            await until(
                lambda: (
                    len(programs := app.scheduler.programs()) == len(CORNERS)
                    and all(f"edit-{edit}" in program.text for program in programs.values())
                ),
                "the edit to be active",
            )
            begin_ns = world.now_ns()
            for policy in texts_of(edit):
                for label in ("a", "b"):
                    name = f"{policy}-{edit}-{label}"
                    world.add_pod(name, scheduler=policy, cpu="10m", labels={"pool": label, "gen": "2"})
            await asyncio.sleep(20)
            deciding = {made.policy for made in app.scheduler.decisions if made.at_ns >= begin_ns}
            assert len(deciding) > len(CORNERS) // 2

        async with running(app.run()):
            await decide_with(0)
            await decide_with(1)  # caches of limited size are full
            gc.collect()
            with collections_paused():
                for edit in range(2, EDITS):
                    await decide_with(edit)
                garbage = gc.collect()
            app.request_stop()

        assert garbage <= GARBAGE_MAX

    on_virtual_time(scenario)
