"""What is written before a bind is fenced as the bind is: nothing leaves without the leadership, none of what was decided
before a stall leaves after it, and what may have left is repeated until its effect is known."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import orjson
import pytest

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import (
    ApiRequest,
    ApiResponse,
    ApiStream,
    RequestNotSent,
    TransportError,
)
from policysched.kube.decode.devices import decode_allocation
from policysched.kube.write import claim_writes
from policysched.kube.write.claim_writes import PrebindOutcome, PrebindWriter
from policysched.model.devices import DeviceAllocation
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.scheduler.commands import (
    ClaimToCreate,
    ClaimToReserve,
    Prebind,
    VolumeToBind,
    VolumeToProvision,
)
from policysched.scheduler.events import PrebindRefused, PrebindWritten
from tests.devices import given
from tests.kube.world import on_virtual_time, running

CLAIM = VolumeClaimKey("default", "data")


def devices() -> DeviceAllocation:
    allocation = decode_allocation(given("g0")["allocation"])
    assert isinstance(allocation, DeviceAllocation)
    return allocation


def reserving(allocation: DeviceAllocation | None) -> ClaimToReserve:
    current = None if allocation else devices()
    return ClaimToReserve(ResourceClaimKey("default", "c"), "u", 5, allocation, (), (), 0, current)


PREBINDS = {
    "a volume": Prebind(PodUid("p"), "default", "web", NodeName("a"), (VolumeToBind("pv", "u", 5, CLAIM, "v", True),), ()),
    "a claim to provision": Prebind(PodUid("p"), "default", "web", NodeName("a"), (), (VolumeToProvision(CLAIM, "u", 5),)),
    "a reservation": Prebind(PodUid("p"), "default", "web", NodeName("a"), (), (), (reserving(None),)),
    "an allocation": Prebind(PodUid("p"), "default", "web", NodeName("a"), (), (), (reserving(devices()),)),
    "an extended resource claim": Prebind(
        PodUid("p"), "default", "web", NodeName("a"), (), (),
        claim_to_create=ClaimToCreate(ResourceClaimKey("default", "made"), (), devices(), (), 0),
    ),
}  # fmt: skip


class Server:
    """Answers a write with the object that it would have changed; `unanswered` writes get no response."""

    def __init__(self, unanswered: int = 0) -> None:
        self.unanswered = unanswered
        self.writes: list[str] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0.01)  # the wait for a connection
        if request.may_write is not None and not request.may_write():
            raise RequestNotSent(request)
        self.writes.append(f"{request.method} {request.path}")
        if self.unanswered:
            self.unanswered -= 1
            raise TransportError("no response")
        body = orjson.loads(request.body)
        made = {"name": "made", "namespace": "default", "uid": "u", "resourceVersion": "6", "finalizers": []}
        return ApiResponse(200, orjson.dumps({**body, "metadata": {**made, **body["metadata"]}}))

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        raise AssertionError("nothing is watched")
        yield


class Leader:
    """The leadership of a process that can stand still."""

    def __init__(self) -> None:
        self.leads = self.may_write = True
        self.stalls = 0

    def fence(self) -> Callable[[], bool]:
        stalls = self.stalls
        return lambda: self.stalls == stalls


def prebound(prebind: Prebind, server: Server, script: Callable[[Leader], None]) -> list[PrebindOutcome]:
    """The outcomes, 100 s after the command. `script` runs once the command is put, before a request can leave."""
    outcomes: list[PrebindOutcome] = []

    async def scenario() -> None:
        leader = Leader()
        writer = PrebindWriter(
            ApiClient(server, may_write=lambda: leader.may_write),
            outcomes.append,
            random=Random(1),
            connectivity=Connectivity(lambda: 0.0),
            may_send=lambda: leader.leads,
            fence=leader.fence,
        )
        async with running(writer.run()):
            writer.put(prebind)
            script(leader)
            await asyncio.sleep(100)

    on_virtual_time(scenario)
    return outcomes


def stall(leader: Leader) -> None:
    """The process stands still, and renews its Lease a second after it went on."""

    def renewed() -> None:
        leader.stalls += 1
        leader.may_write = True

    leader.may_write = False
    asyncio.get_running_loop().call_later(1.0, renewed)


@pytest.mark.parametrize("prebind", PREBINDS.values(), ids=PREBINDS)
def test_without_a_stall_everything_is_written(prebind: Prebind) -> None:
    server = Server()

    prebound(prebind, server, lambda _: None)

    assert server.writes


@pytest.mark.parametrize("prebind", PREBINDS.values(), ids=PREBINDS)
def test_nothing_that_was_decided_before_a_stall_leaves_after_it(prebind: Prebind) -> None:
    server = Server()

    (outcome,) = prebound(prebind, server, stall)

    assert server.writes == []
    assert isinstance(outcome, PrebindRefused) and outcome.reason == "this process stalled after the decision"


@pytest.mark.parametrize("prebind", PREBINDS.values(), ids=PREBINDS)
def test_nothing_leaves_after_the_leadership_was_lost(prebind: Prebind) -> None:
    server = Server()

    def lose(leader: Leader) -> None:
        leader.leads = leader.may_write = False

    (outcome,) = prebound(prebind, server, lose)

    assert server.writes == [] and isinstance(outcome, PrebindRefused)


@pytest.mark.parametrize("kind", ["a volume", "a claim to provision", "a reservation"])
def test_a_write_that_may_have_left_is_repeated_also_after_a_stall(kind: str) -> None:
    server = Server(unanswered=1)

    (outcome,) = prebound(
        PREBINDS[kind],
        server,
        lambda leader: asyncio.get_running_loop().call_later(0.05, stall, leader) and None,
    )

    assert isinstance(outcome, PrebindWritten)
    assert len(server.writes) == 2 and len(set(server.writes)) == 1


def test_an_allocation_of_which_a_part_was_written_stops_at_the_stall() -> None:
    """The finalizer was written; the allocation itself never left, so its devices are free again."""
    server = Server()

    (outcome,) = prebound(
        PREBINDS["an allocation"],
        server,
        lambda leader: asyncio.get_running_loop().call_later(0.015, stall, leader) and None,
    )

    assert [write.rpartition("/")[2] for write in server.writes] == ["c"]
    assert isinstance(outcome, PrebindRefused)


def test_a_writer_without_a_fence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a PreBind forgets when it was decided."""
    requests = claim_writes.PrebindWriter._requests
    monkeypatch.setattr(claim_writes.PrebindWriter, "_requests", lambda writer, _=None: requests(writer))

    for prebind in PREBINDS.values():
        with pytest.raises(AssertionError):
            test_nothing_that_was_decided_before_a_stall_leaves_after_it(prebind)
