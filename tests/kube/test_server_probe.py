"""A namespace whose webhook leaves writes without an answer is not taken for the server, also where nothing else is written."""

import asyncio

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.server_probe import INTERVAL_S, RETRY_S, ServerProbe
from policysched.kube.client.transport import ApiRequest, ApiResponse, TransportError
from tests.kube.test_bind import Binding, commands
from tests.kube.test_evict import ONE, Bench, evict
from tests.kube.world import Script, on_virtual_time, running, until


class Silent(Script):
    """Writes of namespaces have no answer. Reads have one while the server `is_up`."""

    def __init__(self) -> None:
        super().__init__([(200, {"major": "1"})])
        self.is_up = True

    async def request(self, request: ApiRequest) -> ApiResponse:
        if not self.is_up or "/namespaces/" in request.path:
            await asyncio.sleep(0.01)
            raise TransportError("the server closed the connection")
        return await super().request(request)


def test_binds_of_one_namespace_that_have_no_answer_are_no_outage() -> None:
    async def scenario() -> None:
        server = Silent()
        binding = Binding(server)
        probe = ServerProbe(ApiClient(server), binding.connectivity)
        async with running(binding.binder.run(), probe.run()):
            for command in commands("hanging", 50):
                binding.binder.put(command)
            for _ in range(600):
                await asyncio.sleep(0.1)
                assert not binding.connectivity.problem
        assert 60 / INTERVAL_S / 2 < len(server.requests) < 60 / INTERVAL_S + 2, "few questions suffice"

    on_virtual_time(scenario)


def test_evictions_of_one_namespace_that_have_no_answer_are_no_outage() -> None:
    async def scenario() -> None:
        server = Silent()
        bench = Bench(ApiClient(server))
        probe = ServerProbe(ApiClient(server), bench.connectivity)
        async with running(bench.evictor.run(), probe.run()):
            bench.evictor.put(evict(ONE))
            for _ in range(200):
                await asyncio.sleep(0.1)
                assert not bench.connectivity.problem
        assert server.requests

    on_virtual_time(scenario)


def test_a_server_that_answers_nothing_is_unreachable_until_it_answers_the_question() -> None:
    async def scenario() -> None:
        server = Silent()
        server.is_up = False
        binding = Binding(server)
        probe = ServerProbe(ApiClient(server), binding.connectivity)
        async with running(binding.binder.run(), probe.run()):
            binding.binder.put(commands("hanging", 1)[0])
            await until(
                lambda: binding.connectivity.unreachable, "the outage to be told", within_s=3 * RETRY_S
            )
            server.is_up = True
            await until(
                lambda: not binding.connectivity.unreachable, "its end to be told", within_s=3 * RETRY_S
            )

    on_virtual_time(scenario)


def test_without_a_probe_others_that_are_answered_end_an_outage() -> None:
    """The activity that failed has nothing to succeed with but its own namespace."""
    connectivity = Connectivity(lambda: 0.0)
    error = TransportError("no answer")
    for _ in range(2):
        connectivity.record_no_answer("binding pods", error, others_answered=False)
    before = connectivity.unreachable

    connectivity.record_no_answer("binding pods", error, others_answered=True)

    assert (before, connectivity.unreachable) == (True, False)


class Unauthorized(Script):
    """The credentials are refused while the server `is_up` is false."""

    is_up = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0.01)
        if not self.is_up:
            return ApiResponse(401, b'{"kind": "Status", "message": "Unauthorized"}')
        return await super().request(request)


def test_credentials_that_are_accepted_again_end_the_outage_though_nothing_is_written() -> None:
    """What was refused had been given up, so the server was unreachable until the next write of that kind."""

    async def scenario() -> None:
        server = Unauthorized([(200, {"major": "1"})])
        bench = Bench(ApiClient(server))
        probe = ServerProbe(ApiClient(server), bench.connectivity)
        async with running(bench.evictor.run(), probe.run()):
            bench.evictor.put(evict(ONE))
            await until(lambda: bench.connectivity.unreachable, "the outage to be told", within_s=3 * RETRY_S)
            await until(lambda: bench.outcomes, "the eviction to be given up")
            assert bench.connectivity.unreachable
            server.is_up = True
            await until(
                lambda: not bench.connectivity.unreachable, "its end to be told", within_s=2 * RETRY_S
            )

    on_virtual_time(scenario)
