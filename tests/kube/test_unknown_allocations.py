"""A write that allocates devices, and is denied after a request that had no answer: the server may still carry that one out."""

import asyncio
from random import Random
from typing import Any

import pytest

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, ApiResponse, TransportError
from policysched.kube.decode.devices import decode_allocation
from policysched.kube.write.claim_writes import PrebindOutcome, PrebindWriter
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S
from policysched.kube.write.prebind_requests import PrebindRequests
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.commands import ClaimToReserve, Prebind
from policysched.scheduler.events import PrebindRefused, PrebindWritten
from tests.devices import asking, claim_spec, given
from tests.kube.world import World, on_virtual_time, running, until


class Denying(MemoryTransport):
    """A webhook denies each allocation, but for the first one, which has no answer and may be carried out four seconds later."""

    first = "denied"

    async def request(self, request: ApiRequest) -> ApiResponse:
        if request.method != "PATCH" or "/status" not in request.path:
            return await super().request(request)
        first, self.first = self.first, "denied"
        if first == "denied":
            return ApiResponse(403, b'{"kind": "Status", "reason": "Forbidden", "message": "no"}', {})
        if first == "carried out late":
            loop, send = asyncio.get_running_loop(), super().request
            self.late = loop.call_later(4, lambda: setattr(self, "task", loop.create_task(send(request))))
        raise TransportError("no response")


def outcome_of(first: str) -> tuple[PrebindOutcome, float]:
    """And when it was delivered, in seconds."""
    outcomes: list[tuple[PrebindOutcome, float]] = []

    async def scenario() -> None:
        world = World()
        body = {"metadata": {"name": "c"}, "spec": claim_spec(asking())}
        meta: Any = world.local.create("resourceclaims", "default", body)["metadata"]
        transport, began_s = Denying(world.server), asyncio.get_running_loop().time()
        transport.first = first
        writer = PrebindWriter(
            ApiClient(transport),
            lambda outcome: outcomes.append((outcome, asyncio.get_running_loop().time() - began_s)),
            random=Random(1),
            connectivity=Connectivity(lambda: 0.0),
        )
        devices = decode_allocation(given("g0")["allocation"])
        key, version = ResourceClaimKey("default", "c"), int(meta["resourceVersion"])
        wanted = ClaimToReserve(key, meta["uid"], version, devices, (), (), 0, None)
        async with running(writer.run()):
            writer.put(Prebind(PodUid("w"), "default", "w", NodeName("a"), (), (), (wanted,), attempt=3))
            await until(lambda: outcomes, "the answer", within_s=60)

    on_virtual_time(scenario)
    (outcome,) = outcomes
    return outcome


def test_devices_stay_reserved_while_an_earlier_request_may_be_carried_out() -> None:
    """They were free at once, and could be allocated to another claim as well."""
    outcome, after_s = outcome_of("never carried out")

    assert isinstance(outcome, PrebindRefused)
    assert outcome.reason == "no"
    assert outcome.attempt == 3
    assert after_s > SERVER_TIMEOUT_S


def test_an_allocation_that_was_carried_out_after_all_is_answered_as_written() -> None:
    outcome, _ = outcome_of("carried out late")

    assert isinstance(outcome, PrebindWritten)
    assert outcome.attempt == 3


def test_a_denial_of_the_only_request_is_answered_at_once() -> None:
    outcome, after_s = outcome_of("denied")

    assert isinstance(outcome, PrebindRefused)
    assert after_s < 1


def test_planted_writer_that_does_not_wait_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle(self: PrebindRequests) -> bool:
        return False

    monkeypatch.setattr(PrebindRequests, "settle", settle)

    with pytest.raises(AssertionError):
        test_an_allocation_that_was_carried_out_after_all_is_answered_as_written()
    with pytest.raises(AssertionError):
        test_devices_stay_reserved_while_an_earlier_request_may_be_carried_out()
