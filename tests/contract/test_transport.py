"""The in-memory transport: virtual time, and injected faults."""

import asyncio
from random import Random

import orjson
import pytest

from policysched.kube.client.transport import ApiRequest, ApiResponse, TransportError
from policysched.sandbox.apiserver import ApiServer
from policysched.sandbox.faults import FaultInjector, FaultRates
from policysched.sandbox.transport import MemoryTransport
from tests.contract.manifests import config_map
from tests.simulation.virtual_time import Deadlock, run_virtual

MAPS = "/api/v1/namespaces/default/configmaps"


def make(name: str = "a", **params: str) -> ApiRequest:
    return ApiRequest("POST", MAPS, params, orjson.dumps(config_map(name)), timeout_s=10.0)


def faulty_transport(
    fault_rates: FaultRates, seed: int = 1
) -> tuple[ApiServer, MemoryTransport, FaultInjector]:
    loop = asyncio.get_running_loop()
    server = ApiServer(now=lambda: 1_700_000_000 + loop.time())
    faults = FaultInjector(fault_rates, Random(seed))
    return server, MemoryTransport(server, faults=faults), faults


def names(server: ApiServer) -> list[str]:
    return [key[1] for key in server.store.collection("configmaps").keys]


def test_virtual_hours_pass_at_once_and_timers_fire_in_order() -> None:
    async def main() -> list[tuple[float, str]]:
        loop, fired = asyncio.get_running_loop(), []
        for name, at_s in (("late", 7200.0), ("early", 0.5), ("middle", 60.25)):
            loop.call_at(at_s, lambda name=name: fired.append((loop.time(), name)))
        await asyncio.sleep(10_000)
        return fired

    assert run_virtual(main()) == [(0.5, "early"), (60.25, "middle"), (7200.0, "late")]


def test_waiting_for_a_future_that_never_completes_raises() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main())


def test_an_executor_runs_synchronously() -> None:
    async def main() -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        good = await loop.run_in_executor(None, max, 3, 4)
        try:
            await loop.run_in_executor(None, int, "none")
        except ValueError as error:
            return good, str(error)
        return good, "nothing raised"

    good, bad = run_virtual(main())

    assert good == 4
    assert "invalid literal" in bad


def test_a_request_lost_before_the_server_changes_nothing() -> None:
    async def main() -> tuple[list[str], float]:
        server, transport, _ = faulty_transport(FaultRates(lost_before_share=1.0))
        with pytest.raises(TransportError):
            await transport.request(make())
        await asyncio.sleep(1000)
        return names(server), asyncio.get_running_loop().time()

    assert run_virtual(main()) == ([], 1010.0)


def test_a_request_whose_response_is_lost_still_takes_effect() -> None:
    async def main() -> list[str]:
        server, transport, _ = faulty_transport(FaultRates(lost_after_share=1.0))
        with pytest.raises(TransportError):
            await transport.request(make())
        return names(server)

    assert run_virtual(main()) == ["a"]


def test_a_late_request_takes_effect_after_the_client_timeout_within_its_lifetime() -> None:
    async def lands_at(seed: int, **params: str) -> float:
        loop = asyncio.get_running_loop()
        server, transport, _ = faulty_transport(FaultRates(late_share=1.0), seed)
        started_s, landed_s = loop.time(), []
        server.store.listen("configmaps", lambda _: landed_s.append(loop.time() - started_s))
        with pytest.raises(TransportError):
            await transport.request(make(**params))
        await asyncio.sleep(100)
        return landed_s[0]

    async def main() -> tuple[list[float], list[float]]:
        return [await lands_at(seed) for seed in range(20)], [
            await lands_at(seed, timeout="5s") for seed in range(20)
        ]

    free, bounded = run_virtual(main())

    assert all(10.0 <= at_s <= 60.0 for at_s in free)
    assert max(free) > 30.0
    assert all(at_s == 10.0 for at_s in bounded)


def test_a_duplicated_request_arrives_twice() -> None:
    async def main() -> tuple[int, int]:
        server, transport, _ = faulty_transport(FaultRates(duplicate_share=1.0))
        body = orjson.dumps({"metadata": {"generateName": "a-"}})
        answer = await transport.request(ApiRequest("POST", MAPS, body=body))
        await asyncio.sleep(1)
        return answer.status, len(names(server))

    assert run_virtual(main()) == (201, 2)


def test_a_disconnected_watch_raises_between_lines_or_within_one() -> None:
    async def received(fault_rates: FaultRates) -> tuple[bytes, bool]:
        server, transport, _ = faulty_transport(fault_rates)
        read, broke = b"", False

        async def write() -> None:
            for at in range(100):
                await asyncio.sleep(1)
                server.registry.create(server.kind("configmaps"), "default", config_map(f"map-{at}"))

        writer = asyncio.create_task(write())
        try:
            async with transport.stream(ApiRequest("GET", MAPS, {"watch": "true"})) as stream:
                async for chunk in stream.chunks:
                    read += chunk
        except TransportError:
            broke = True
        writer.cancel()
        return read, broke

    async def main() -> list[tuple[bytes, bool]]:
        whole = await received(FaultRates(watch_lifetime_s=20.0))
        torn = await received(FaultRates(watch_lifetime_s=20.0, truncated_line_share=1.0))
        return [whole, torn]

    (whole, whole_broke), (torn, torn_broke) = run_virtual(main())

    assert (whole_broke, torn_broke) == (True, True)
    assert whole.endswith(b"\n")
    assert not torn.endswith(b"\n")


def test_a_watch_is_decoded_from_chunks_split_anywhere() -> None:
    async def main() -> tuple[int, list[str]]:
        server, transport, _ = faulty_transport(FaultRates(split_share=1.0))
        for name in ("a", "b"):
            server.registry.create(server.kind("configmaps"), "default", config_map(name))
        pieces = []
        async with transport.stream(
            ApiRequest("GET", MAPS, {"watch": "true", "timeoutSeconds": "1"})
        ) as stream:
            pieces.extend([chunk async for chunk in stream.chunks])
        lines = b"".join(pieces).splitlines()
        return len(pieces), [orjson.loads(line)["object"]["metadata"]["name"] for line in lines]

    assert run_virtual(main()) == (2, ["a", "b"])


def test_a_server_that_is_down_refuses_requests_and_breaks_open_watches() -> None:
    async def main() -> tuple[list[bool], int]:
        _, transport, _ = faulty_transport(FaultRates())
        refused = []
        with pytest.raises(TransportError):
            async with transport.stream(ApiRequest("GET", MAPS, {"watch": "true"})) as stream:
                asyncio.get_running_loop().call_later(5, transport.refuse_for, 10.0)
                async for chunk in stream.chunks:
                    assert not chunk
        for _ in range(3):
            try:
                await transport.request(make())
                refused.append(False)
            except TransportError:
                refused.append(True)
            await asyncio.sleep(6)
        answer = await transport.request(make("b"))
        return refused, answer.status

    assert run_virtual(main()) == ([True, True, False], 201)


def test_the_same_seed_draws_the_same_faults_and_a_profile_without_faults_none() -> None:
    fault_rates = FaultRates(
        latency_spread_s=0.5, lost_before_share=0.2, lost_after_share=0.2, late_share=0.2, duplicate_share=0.3
    )

    async def outcomes(seed: int) -> list[tuple[float, int]]:
        _, transport, faults = faulty_transport(fault_rates, seed)
        loop, answers = asyncio.get_running_loop(), []
        for at in range(60):
            if at == 40:
                faults.disable()
            started_s = loop.time()
            try:
                status = (await transport.request(make(f"map-{at}"))).status
            except TransportError:
                status = 0
            answers.append((loop.time() - started_s, status))
        return answers

    first, again, other = (run_virtual(outcomes(seed)) for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert 0 in {status for _, status in first[:40]}
    assert {status for _, status in first[40:]} == {201}


def test_without_faults_a_request_is_answered_at_once() -> None:
    async def main() -> tuple[int, float]:
        server = ApiServer(now=lambda: 0.0)
        answer: ApiResponse = await MemoryTransport(server).request(make())
        return answer.status, asyncio.get_running_loop().time()

    assert run_virtual(main()) == (201, 0.0)


def test_timers_due_at_the_same_time_fire_in_the_order_they_were_set() -> None:
    arrivals: list[int] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for place in range(80):
            loop.call_at(9.0, arrivals.append, place)
            loop.call_at(place % 7 + 1.0, arrivals.append, -1).cancel()
        await asyncio.sleep(10)

    run_virtual(scenario())

    assert arrivals == list(range(80))
