"""How long what is decided for a pod's claims is written: a while, and until it is answered where it gives devices away."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.decode.devices import decode_allocation
from policysched.kube.write.claim_writes import PrebindOutcome, PrebindWriter
from policysched.kube.write.namespace_turns import NamespaceTurns
from policysched.model.devices import DeviceAllocation
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.commands import (
    ClaimToCreate,
    ClaimToReserve,
    Deallocate,
    DeleteExtendedClaim,
    Prebind,
    Unreserve,
)
from policysched.scheduler.events import ExtendedClaimDeleted, PrebindRefused, PrebindWritten
from tests.devices import asking, claim_manifest, claim_spec, given
from tests.kube.world import World, on_virtual_time, running, until

CUT_S = 100.0


def _devices() -> DeviceAllocation:
    allocation = decode_allocation(given("g0")["allocation"])
    assert allocation is not None
    return allocation


DEVICES = _devices()


def written_over_a_road_that_is_cut(*, gives_devices: bool) -> PrebindOutcome:
    """For a hundred seconds nothing gets through."""
    outcomes: list[PrebindOutcome] = []

    async def scenario() -> None:
        world = World()
        body = {"metadata": {"name": "c"}, "spec": claim_spec(asking())}
        claim = world.local.create("resourceclaims", "default", body)
        if not gives_devices:
            world.local.set_status("resourceclaims", claim, **given("g0"))
        meta = claim["metadata"]
        transport = world.transport()
        writer = PrebindWriter(
            ApiClient(transport), outcomes.append, random=Random(1), connectivity=Connectivity(lambda: 0.0)
        )
        has = decode_allocation(given("g0")["allocation"]) if gives_devices else None
        version = int(world.local.get("resourceclaims", "default", "c")["metadata"]["resourceVersion"])  # type: ignore[index]
        wanted = ClaimToReserve(
            ResourceClaimKey("default", "c"),
            meta["uid"],
            version,
            has,
            (),
            (),
            0,
            None if has else decode_allocation(given("g0")["allocation"]),
        )
        transport.refuse_for(CUT_S)
        async with running(writer.run()):
            writer.put(
                Prebind(
                    PodUid("uid-web"), "default", "web", NodeName("a"), (), (), claims_to_reserve=(wanted,)
                )
            )
            await asyncio.sleep(2 * CUT_S)

    on_virtual_time(scenario)
    (outcome,) = outcomes
    return outcome


def test_an_allocation_is_retried_until_it_is_answered() -> None:
    outcome = written_over_a_road_that_is_cut(gives_devices=True)

    assert isinstance(outcome, PrebindWritten)


def test_a_reservation_of_an_allocated_claim_is_given_up_after_a_while() -> None:
    outcome = written_over_a_road_that_is_cut(gives_devices=False)

    assert isinstance(outcome, PrebindRefused)
    assert outcome.reason.startswith("no response within 30 s")


def test_planted_writer_that_gives_up_allocations_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policysched.kube.write.claim_writes.ALLOCATION_RETRY_S", 30.0)

    assert isinstance(written_over_a_road_that_is_cut(gives_devices=True), PrebindRefused)


def test_the_nomination_is_written_first_and_not_needed_by_the_rest() -> None:
    outcomes: list[PrebindOutcome] = []
    nominated: list[object] = []

    async def scenario() -> None:
        world = World()
        uid = world.add_pod("web")["metadata"]["uid"]
        writer = PrebindWriter(
            world.api(), outcomes.append, random=Random(1), connectivity=Connectivity(lambda: 0.0)
        )
        async with running(writer.run()):
            for name, of in (("web", uid), ("gone", "uid-gone")):
                writer.put(Prebind(PodUid(of), "default", name, NodeName("a"), (), (), nominate=True))
            await asyncio.sleep(1)
        nominated.append(world.pod("web")["status"].get("nominatedNodeName"))

    on_virtual_time(scenario)

    assert nominated == ["a"]
    assert [type(outcome) for outcome in outcomes] == [PrebindWritten, PrebindWritten]


def test_a_release_that_is_repeated_keeps_what_a_later_prebind_reserves() -> None:
    outcomes: list[PrebindOutcome] = []
    reserved: list[object] = []

    async def scenario() -> None:
        world = World()
        body = {"metadata": {"name": "c"}, "spec": claim_spec(asking())}
        claim = world.local.create("resourceclaims", "default", body)
        consumer = {"resource": "pods", "name": "web", "uid": "uid-web"}
        world.local.set_status("resourceclaims", claim, **{**given("g0"), "reservedFor": [consumer]})
        key, uid, web = ResourceClaimKey("default", "c"), claim["metadata"]["uid"], PodUid("uid-web")
        transport = world.transport()
        writer = PrebindWriter(
            ApiClient(transport), outcomes.append, random=Random(1), connectivity=Connectivity(lambda: 0.0)
        )
        devices = decode_allocation(given("g0")["allocation"])
        wanted = ClaimToReserve(key, uid, 1, None, (), (), 0, devices)
        prebind = Prebind(web, "default", "web", NodeName("a"), (), (), claims_to_reserve=(wanted,))
        transport.refuse_for(10)
        async with running(writer.run()):
            writer.put(Unreserve(web, ((key, uid),)))
            await asyncio.sleep(5)
            writer.put(prebind)
            await asyncio.sleep(20)
            writer.put(prebind)
            await asyncio.sleep(20)
            stored = world.local.get("resourceclaims", "default", "c")
            assert stored is not None
            reserved.append(stored["status"].get("reservedFor"))

    on_virtual_time(scenario)
    first, second = outcomes
    assert isinstance(first, PrebindRefused)
    assert first.reason == "the claims of an earlier attempt are being released"
    assert isinstance(second, PrebindWritten)
    assert reserved == [[{"resource": "pods", "name": "web", "uid": "uid-web"}]]


class RefusingNamespace(MemoryTransport):
    """A webhook makes each write in the namespace `refusing` fail."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        if "/namespaces/refusing/" in request.path and request.method != "GET":
            return ApiResponse(
                500, b'{"kind": "Status", "reason": "InternalError", "message": "webhook"}', {}
            )
        return await super().request(request)


class RefusedAllocations:
    """A writer, whose claims in the namespace `refusing` get no allocation."""

    def __init__(self) -> None:
        self.outcomes: list[PrebindOutcome] = []
        self.connectivity = Connectivity(lambda: 0.0)
        self._world = World()
        for namespace in ("refusing", "other"):
            self._world.local.create("namespaces", "", {"metadata": {"name": namespace}})
        self.writer = PrebindWriter(
            ApiClient(RefusingNamespace(self._world.server)),
            self.outcomes.append,
            random=Random(1),
            connectivity=self.connectivity,
        )

    def put(self, namespace: str, name: str) -> PodUid:
        """A pod with a claim."""
        body = {"metadata": {"name": name}, "spec": claim_spec(asking())}
        meta = self._world.local.create("resourceclaims", namespace, body)["metadata"]
        key, version = ResourceClaimKey(namespace, name), int(meta["resourceVersion"])
        wanted = ClaimToReserve(key, meta["uid"], version, DEVICES, (), (), 0, None)
        uid = PodUid(f"uid-{name}")
        self.writer.put(Prebind(uid, namespace, name, NodeName("a"), (), (), claims_to_reserve=(wanted,)))
        return uid


def test_allocations_that_a_webhook_makes_fail_for_ever_delay_no_other_namespace() -> None:
    outcomes: list[PrebindOutcome] = []
    connectivities: list[Connectivity] = []

    async def scenario() -> None:
        bench = RefusedAllocations()
        connectivities.append(bench.connectivity)
        async with running(bench.writer.run()):
            for index in range(20):
                bench.put("refusing", f"refused-{index}")
            await asyncio.sleep(60)
            bench.put("other", "web")
            await until(lambda: bench.outcomes, "the claim of the other namespace", within_s=1)
        outcomes.extend(bench.outcomes)

    on_virtual_time(scenario)
    assert [(type(outcome), outcome.uid) for outcome in outcomes] == [(PrebindWritten, "uid-web")]  # type: ignore[union-attr]
    assert not connectivities[0].unreachable


def test_pods_that_come_and_go_where_no_claim_is_written_keep_no_devices() -> None:
    """What was never begun was never answered, so any number of devices stayed reserved for pods that were gone."""

    async def scenario() -> None:
        bench = RefusedAllocations()
        async with running(bench.writer.run()):
            begun = [bench.put("refusing", f"hangs-{index}") for index in range(2)]
            await asyncio.sleep(60)
            gone = [bench.put("refusing", f"gone-{index}") for index in range(30)]
            await asyncio.sleep(60)
            for uid in (*begun, *gone):
                bench.writer.abandon(uid)
            assert [outcome.uid for outcome in bench.outcomes if isinstance(outcome, PrebindRefused)] == gone
            assert bench.writer.in_flight == len(begun), "what was sent may be carried out"

    on_virtual_time(scenario)


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("passes", range(6))
def test_a_pod_that_is_gone_in_the_moment_its_turn_comes_is_answered_once(passes: int, others: int) -> None:
    """The turn is given in one pass of the event loop, and its task begins in a later one: the writer ended with an error."""

    async def scenario() -> None:
        bench = RefusedAllocations()
        async with running(bench.writer.run()):
            await asyncio.sleep(1)
            pods = [PodUid(f"uid-{index}") for index in range(1 + others)]
            for uid in pods:
                bench.writer.put(Prebind(uid, "other", uid, NodeName("a"), (), ()))
            for _ in range(passes):
                await asyncio.sleep(0)
            for uid in pods:
                bench.writer.abandon(uid)
            await asyncio.sleep(1)
            assert sorted(outcome.uid for outcome in bench.outcomes) == pods  # type: ignore[union-attr]
            assert bench.writer.in_flight == 0

            bench.put("other", "later")
            await until(lambda: len(bench.outcomes) == len(pods) + 1, "the next claim", within_s=1)

    on_virtual_time(scenario)


def test_a_claim_that_was_never_created_is_gone_at_once() -> None:
    async def scenario() -> None:
        bench = RefusedAllocations()
        key, web = ResourceClaimKey("refusing", "made"), PodUid("uid-web")
        made = ClaimToCreate(key, (), DEVICES, (), 0)
        async with running(bench.writer.run()):
            for index in range(2):
                bench.put("refusing", f"hangs-{index}")
            await asyncio.sleep(60)
            bench.writer.put(Prebind(web, "refusing", "web", NodeName("a"), (), (), claim_to_create=made))
            bench.writer.put(DeleteExtendedClaim(key, web))
            bench.writer.abandon(web)

            refused, deleted = bench.outcomes
            assert isinstance(refused, PrebindRefused) and refused.uid == web
            assert deleted == ExtendedClaimDeleted(key, "")

    on_virtual_time(scenario)


def test_what_is_released_again_and_again_while_requests_hang_is_one_command_of_each_claim() -> None:
    async def scenario() -> None:
        bench = RefusedAllocations()
        made, uid = ResourceClaimKey("refusing", "made"), PodUid("uid-web")
        async with running(bench.writer.run()):
            for index in range(2):
                bench.put("refusing", f"hangs-{index}")
            await asyncio.sleep(60)
            for version in range(100):
                bench.writer.put(Deallocate(ResourceClaimKey("refusing", "c"), "uid-c", version))
                bench.writer.put(DeleteExtendedClaim(made, uid))
            assert bench.writer.in_flight == 2 + 2
            (in_namespace,) = bench.writer._waiting.values()
            assert [waiting.command for waiting in in_namespace.values()] == [
                Deallocate(ResourceClaimKey("refusing", "c"), "uid-c", 99),
                DeleteExtendedClaim(made, uid),
            ]

    on_virtual_time(scenario)


def test_of_two_that_were_begun_for_a_pod_the_later_one_follows_and_each_is_answered() -> None:
    """Its gang was withdrawn and attempted again meanwhile. Which of the two ended first, the other one ended the process. The answer
    of the earlier one was dropped later on, and its devices stayed reserved."""
    outcomes: list[PrebindOutcome] = []
    nominated: list[object] = []

    async def scenario() -> None:
        world = World()
        uid = PodUid(world.add_pod("web")["metadata"]["uid"])
        transport = SlowTransport(world.server)
        writer = PrebindWriter(
            ApiClient(transport), outcomes.append, random=Random(1), connectivity=Connectivity(lambda: 0.0)
        )
        async with running(writer.run()):
            writer.put(Prebind(PodUid("uid-gone"), "default", "gone", NodeName("a"), (), (), nominate=True))
            await asyncio.sleep(10)  # from now on more than one of the namespace at a time
            for attempt, node in enumerate("abc"):
                prebind = Prebind(uid, "default", "web", NodeName(node), (), (), nominate=True)
                writer.put(replace(prebind, attempt=attempt))
                await asyncio.sleep(0.1)
            await until(lambda: not writer.in_flight, "all of them", within_s=30)
        nominated.append(world.pod("web")["status"]["nominatedNodeName"])

    on_virtual_time(scenario)

    of_web = [
        outcome
        for outcome in outcomes
        if not isinstance(outcome, ExtendedClaimDeleted) and outcome.uid != "uid-gone"
    ]
    assert sorted(outcome.attempt for outcome in of_web) == [0, 1, 2]
    assert isinstance(of_web[-1], PrebindWritten) and of_web[-1].attempt == 2
    assert nominated == ["c"]


class SlowTransport(MemoryTransport):
    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(2)
        return await super().request(request)


class ChangingClaims(MemoryTransport):
    """Another writer changes each claim between a read and the write that follows. `writes` counts those."""

    writes = 0

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0.001)
        if "/resourceclaims/" in request.path and request.method != "GET":
            self.writes += 1
            return ApiResponse(
                409,
                b'{"kind": "Status", "reason": "Conflict", "message": "the object has been modified"}',
                {},
            )
        return await super().request(request)


def test_a_claim_that_is_changed_all_the_time_is_not_deleted_as_fast_as_it_conflicts() -> None:
    async def scenario() -> None:
        world = World()
        transport = ChangingClaims(world.server)
        writer = PrebindWriter(
            ApiClient(transport), lambda _: None, random=Random(1), connectivity=Connectivity(lambda: 0.0)
        )
        made = claim_manifest("made", extended=True, owner="uid-web")
        del made["metadata"]["uid"], made["metadata"]["resourceVersion"]
        world.local.create("resourceclaims", "default", made)
        async with running(writer.run()):
            writer.put(DeleteExtendedClaim(ResourceClaimKey("default", "made"), PodUid("uid-web")))
            await asyncio.sleep(10)
        assert 10 < transport.writes <= 100

    on_virtual_time(scenario)


def test_of_two_that_wait_for_a_pod_the_earlier_one_is_refused() -> None:
    """The pod left and came back: the devices of the earlier attempt stayed reserved for its answer."""

    async def scenario() -> None:
        bench = RefusedAllocations()
        async with running(bench.writer.run()):
            for index in range(2):
                bench.put("refusing", f"hangs-{index}")
            await asyncio.sleep(60)
            for attempt, node in enumerate("ab"):
                prebind = Prebind(PodUid("uid-web"), "refusing", "web", NodeName(node), (), ())
                bench.writer.put(replace(prebind, attempt=attempt))
            assert bench.writer.in_flight == 3
            (refused,) = bench.outcomes
            assert isinstance(refused, PrebindRefused)
            assert (refused.uid, refused.attempt) == ("uid-web", 0)

    on_virtual_time(scenario)


# ── random histories ────────────────────────────────────────────────────────────────────────────────────────────────


class FailingForAWhile(MemoryTransport):
    """Until it `is_calm`, requests are late, and two of five writes fail."""

    def __init__(self, server: Any, random: Random) -> None:
        super().__init__(server)
        self._random = random
        self.is_calm = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0.001 if self.is_calm else self._random.choice([0, 0, 0.01, 1.5, 4]))
        if not self.is_calm and request.method != "GET" and self._random.random() < 0.4:
            status = self._random.choice([500, 409, 404, 403])
            return ApiResponse(status, b'{"kind": "Status", "message": "no"}', {})
        return await super().request(request)


def random_command(random: Random, number: int) -> Prebind | Unreserve | Deallocate | DeleteExtendedClaim:
    namespace = random.choice(["x", "y"])
    uid = PodUid(f"uid-{namespace}{random.randrange(4)}")
    claim = ResourceClaimKey(namespace, f"of-{uid}")
    match random.randrange(5):
        case 0:
            return DeleteExtendedClaim(claim, uid)
        case 1:
            return Unreserve(uid, ((claim, "uid"),))
        case 2:
            return Deallocate(claim, "uid", number)
    made = ClaimToCreate(claim, (), DEVICES, (), 0) if random.random() < 0.3 else None
    return Prebind(uid, namespace, uid, NodeName("a"), (), (), claim_to_create=made, attempt=number)


def play_random_history(seed: int) -> None:
    """What is put and abandoned in any order: each attempt of a pod is answered once, and nothing of any is kept."""
    random, outcomes, put = Random(seed), list[PrebindOutcome](), list[tuple[PodUid, int]]()

    async def scenario() -> None:
        world = World()
        for namespace in ("x", "y"):
            world.local.create("namespaces", "", {"metadata": {"name": namespace}})
        transport = FailingForAWhile(world.server, random)
        writer = PrebindWriter(
            ApiClient(transport), outcomes.append, random=random, connectivity=Connectivity(lambda: 0.0)
        )
        async with running(writer.run()):
            for number in range(60):
                command = random_command(random, number)
                if isinstance(command, Prebind):
                    put.append((command.uid, command.attempt))
                writer.put(command)
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                if put and random.random() < 0.3:
                    writer.abandon(random.choice(put)[0])
                await asyncio.sleep(random.choice([0, 0, 0.01, 1, 6]))
            transport.is_calm = True
            await until(lambda: not writer.in_flight, "all of them", within_s=400)
        assert not (writer._waiting or writer._waiting_prebinds or writer._prebinding or writer._unreserving)

    on_virtual_time(scenario)
    answered = [(each.uid, each.attempt) for each in outcomes if not isinstance(each, ExtendedClaimDeleted)]
    assert sorted(answered) == sorted(put)


def test_in_random_histories_each_prebind_is_answered_once() -> None:
    for seed in range(30):
        play_random_history(seed)


def test_the_histories_catch_a_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that has come is taken for one that waits."""
    monkeypatch.setattr(NamespaceTurns, "waiting", lambda *_: 1)

    with pytest.raises((IndexError, ExceptionGroup)):
        test_in_random_histories_each_prebind_is_answered_once()


def test_the_histories_catch_a_writer_that_drops_the_answer_of_an_earlier_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PrebindWriter, "_refuse", lambda writer, waiting, _: writer._drop(waiting))

    with pytest.raises(AssertionError):
        test_in_random_histories_each_prebind_is_answered_once()
