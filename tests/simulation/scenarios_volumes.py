"""Scenarios of volume claims. The volume controllers bind claims, so most bugs are planted there:
policysched only writes the claimRef of a volume.
"""

import asyncio
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.kube.write import claim_writes
from policysched.kube.write.volume_patches import claim_ref_patch
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim
from policysched.runtime import scheduler_app
from policysched.sandbox.volume_controller import CLAIMS, STORAGE_CLASSES, VOLUMES, VolumeController
from policysched.scheduler.commands import VolumeToBind
from tests.simulation.scenario import Scenario, ScenarioBug

Json = dict[str, Any]
POLICY = "policy beta version 1\ninclude kube_default\n"
VOLUME_CONTROLLERS = "the volume controllers"

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _set_up(world: Scenario, *, disks: int, waits: bool) -> None:
    world.policies(beta=POLICY)
    world.node("a", cpu="4")
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    kind = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode}
    world.local.create(STORAGE_CLASSES, "", {"metadata": {"name": "local"}, **kind})
    for number in range(disks):
        spec = {
            "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "disks.example.com", "volumeHandle": f"d{number}"},
        }
        world.local.create(VOLUMES, "", {"metadata": {"name": f"d{number}"}, "spec": spec})


def _claim(world: Scenario, name: str) -> None:
    spec = {
        "storageClassName": "local",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    world.local.create(CLAIMS, "default", {"metadata": {"name": name}, "spec": spec})


def _pod_with(world: Scenario, claim: str) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
    world.pod(f"with-{claim}", cpu="1", spec={"volumes": [volume]})


async def two_claims_and_two_disks(world: Scenario) -> None:
    await _two_claims(world, disks=2)


async def two_claims_and_one_disk(world: Scenario) -> None:
    await _two_claims(world, disks=1)


async def _two_claims(world: Scenario, *, disks: int) -> None:
    _set_up(world, disks=disks, waits=True)
    for name in ("c0", "c1"):
        _claim(world, name)
        _pod_with(world, name)
    world.start("leader")
    await world.check_at_rest()


async def claims_with_immediate_binding(world: Scenario) -> None:
    """One after the other, before a pod uses them."""
    _set_up(world, disks=2, waits=False)
    for name in ("c0", "c1"):
        _claim(world, name)
        await asyncio.sleep(5.0)
    world.start("leader")
    for name in ("c0", "c1"):
        _pod_with(world, name)
    await world.check_at_rest()


async def a_claim_is_bound_just_after_its_leader_stood_still(world: Scenario) -> None:
    """The pod was decided before. Its leader has renewed the Lease when the claim is bound, and has not read yet what
    happened meanwhile."""
    world.profile = replace(world.profile, lease_duration_s=15.0)
    _set_up(world, disks=1, waits=True)
    leader = world.start("leader")
    await world.until(lambda: leader.leads, "the leader")
    await asyncio.sleep(16.0)
    world._controllers.stop()
    _claim(world, "c0")
    _pod_with(world, "c0")
    await world.until(lambda: world.trace_count("of c0"), "the claimRef of the volume")

    leader.freeze(5.0)
    await asyncio.sleep(5.2)
    world.pod("next", cpu="1")  # so that the leader looks whether it may decide
    await asyncio.sleep(0.2)
    for claim in world.local.list(CLAIMS):
        VolumeController(world.local).handlers[CLAIMS](claim)
    await world.check_at_rest()


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_volume_claim_is_overwritten() -> AbstractContextManager[Any]:
    """The volume is reserved again, and the patch has no resource version."""

    def body(volume: VolumeToBind) -> Json:
        written = claim_ref_patch(volume)
        del written["metadata"]["resourceVersion"]
        return written

    stack = ExitStack()
    stack.enter_context(patch.object(VolumeCache, "reserve", lambda *_: None))
    stack.enter_context(patch.object(claim_writes, "claim_ref_patch", body))
    return stack


def volume_updates_are_ignored() -> AbstractContextManager[Any]:
    put = VolumeCache.put_volume

    def put_once(self: VolumeCache, volume: PersistentVolume) -> Any:
        return frozenset() if volume.name in self.volumes else put(self, volume)

    return patch.object(VolumeCache, "put_volume", put_once)


def every_claim_gets_the_first_volume() -> AbstractContextManager[Any]:
    def first(self: VolumeController, _: PersistentVolumeClaim) -> Json | None:
        return next(self._local.list(VOLUMES), None)

    return patch.object(VolumeController, "_prebound_volume", first)


def a_bound_claim_gets_another_volume() -> AbstractContextManager[Any]:
    original = VolumeController._bind

    def bind(self: VolumeController, claim: Json, volume: Json) -> None:
        original(self, claim, volume)
        others = [volume["metadata"]["name"] for volume in self._local.list(VOLUMES)]
        others.remove(volume["metadata"]["name"])
        self._local.update(
            CLAIMS, claim, lambda stored: {**stored, "spec": {**stored["spec"], "volumeName": others[0]}}
        )

    return patch.object(VolumeController, "_bind", bind)


def a_stalled_process_does_not_catch_up() -> AbstractContextManager[Any]:
    return patch.object(scheduler_app, "CATCH_UP_S", 0.0)


SCENARIO_BUGS = (
    ScenarioBug(
        a_stalled_process_does_not_catch_up,
        a_claim_is_bound_just_after_its_leader_stood_still,
        (r"decided before it had caught up after a stall",),
    ),
    ScenarioBug(
        a_volume_claim_is_overwritten, two_claims_and_one_disk, (r"^volume .* was claim .*'s and is",)
    ),
    ScenarioBug(volume_updates_are_ignored, two_claims_and_two_disks, (r" in the cache and on the server ",)),
    ScenarioBug(
        every_claim_gets_the_first_volume,
        claims_with_immediate_binding,
        (
            r"^claims .* have one volume: ",
            r" has .*, which is .*'s$",
        ),
        component=VOLUME_CONTROLLERS,
    ),
    ScenarioBug(
        a_bound_claim_gets_another_volume,
        claims_with_immediate_binding,
        (r"^claim .* had volume .* and has",),
        component=VOLUME_CONTROLLERS,
    ),
)
