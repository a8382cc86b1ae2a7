"""Scenarios of device claims."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.reservations import DeviceReservation
from policysched.kube.write import claim_writes, resource_claims
from policysched.model.devices import ClaimConsumer
from policysched.model.identifiers import PodUid
from policysched.sandbox.resource_claim_controller import DEVICE_CLAIMS
from policysched.scheduler.commands import ClaimToReserve
from tests.simulation.churn_devices import DEVICE_CLASSES, DRIVER, SLICES
from tests.simulation.scenario import Scenario, ScenarioBug

Json = dict[str, Any]
POLICY = "policy beta version 1\ninclude kube_default\n"

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _set_up(world: Scenario, *nodes: str) -> None:
    """Nodes with one device and room for one pod each, and a claim for one device."""
    world.policies(beta=POLICY)
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    world.local.create(DEVICE_CLASSES, "", {"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}})
    for name in nodes:
        world.node(name, cpu="1")
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": name, "devices": [{"name": "g0"}]}
        world.local.create(SLICES, "", {"metadata": {"name": f"{name}-gpus"}, "spec": spec})
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    wanted = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    world.local.create(DEVICE_CLAIMS, "default", {"metadata": {"name": "c"}, "spec": wanted})


def _pod(world: Scenario, name: str) -> None:
    world.pod(name, cpu="1", spec={"resourceClaims": [{"name": "d", "resourceClaimName": "c"}]})


async def a_pod_wants_a_device(world: Scenario) -> None:
    _set_up(world, "a")
    _pod(world, "web")
    world.start("leader")
    await world.check_at_rest()


async def two_pods_share_a_claim_and_fit_on_no_node(world: Scenario) -> None:
    _set_up(world, "a", "b")
    for name in ("one", "two"):
        _pod(world, name)
    world.start("leader")
    await world.check_at_rest()


# ── bugs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_claim_allocation_is_overwritten() -> AbstractContextManager[Any]:
    """The devices are reserved again, and the patch has no resource version."""
    original = resource_claims._metadata_patch

    def body(claim: ClaimToReserve, **metadata: object) -> Json:
        written = original(claim, **metadata)
        del written["metadata"]["resourceVersion"]
        return written

    stack = ExitStack()
    stack.enter_context(patch.object(DeviceCache, "reserve", lambda *_: None))
    stack.enter_context(patch.object(resource_claims, "_metadata_patch", body))
    return stack


def device_reservations_never_end() -> AbstractContextManager[Any]:
    def answered(self: DeviceReservation, _pod: PodUid, _version: int | None) -> DeviceReservation:
        return self

    return patch.object(DeviceReservation, "with_write_answered", answered)


def a_claim_allocation_is_not_written() -> AbstractContextManager[Any]:
    async def nothing(_: Any, claim: ClaimToReserve, __: ClaimConsumer) -> int:
        return claim.version

    return patch.object(claim_writes, "reserve_claim", nothing)


def a_claim_is_allocated_and_not_reserved() -> AbstractContextManager[Any]:
    return patch.object(
        resource_claims,
        "_consumers",
        lambda known, _: [resource_claims._consumer_json(consumer) for consumer in known],
    )


SCENARIO_BUGS = (
    ScenarioBug(
        a_claim_allocation_is_overwritten,
        two_pods_share_a_claim_and_fit_on_no_node,
        (r"^claim .* had devices .* and has",),
    ),
    ScenarioBug(
        device_reservations_never_end, a_pod_wants_a_device, (r"devices of .* are still reserved for",)
    ),
    ScenarioBug(a_claim_allocation_is_not_written, a_pod_wants_a_device, (r" has no devices",)),
    ScenarioBug(a_claim_is_allocated_and_not_reserved, a_pod_wants_a_device, (r" is not reserved for it",)),
)
