"""An API server in memory on virtual time, with transports to it: one with random faults, one that
follows a script.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, ApiResponse, ApiStream, TransportError
from policysched.kube.write.claim_writes import PrebindWriter
from policysched.kube.write.events_and_conditions import Reporter, UnboundPodVersion
from policysched.kube.write.evict import Evictor
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.faults import FaultInjector, FaultRates
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.transport import MemoryTransport
from tests.builders import node_manifest, pod_manifest
from tests.simulation.virtual_time import run_virtual

EPOCH_S = 1_767_225_600.0  # 2026-01-01


class World:
    """`server` with the sandbox's local client. Created inside the loop whose clock it uses."""

    def __init__(self, **server: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = ApiServer(now=lambda: EPOCH_S + self.loop.time(), **server)
        self.local = LocalClient(self.server)

    def now_ns(self) -> int:
        return int((EPOCH_S + self.loop.time()) * 1e9)

    def transport(self, fault_rates: FaultRates | None = None, seed: int = 0) -> MemoryTransport:
        return MemoryTransport(
            self.server, faults=None if fault_rates is None else FaultInjector(fault_rates, Random(seed))
        )

    def api(self, fault_rates: FaultRates | None = None, seed: int = 0) -> ApiClient:
        return ApiClient(self.transport(fault_rates, seed))

    def add_pod(self, name: str, **more: Any) -> dict[str, Any]:
        manifest = pod_manifest(name, **more)
        del manifest["metadata"]["uid"], manifest["status"]
        return self.local.create("pods", manifest["metadata"]["namespace"], manifest)

    def add_node(self, name: str, **more: Any) -> dict[str, Any]:
        manifest = node_manifest(name, **more)
        del manifest["metadata"]["uid"]
        return self.local.create("nodes", "", manifest)

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        pod = self.local.get("pods", namespace, name)
        assert pod is not None, f"no pod {namespace}/{name}"
        return pod

    def node_of(self, name: str) -> str | None:
        node: str | None = self.pod(name)["spec"].get("nodeName")
        return node


def on_virtual_time(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a test's body on virtual time."""

    async def main() -> None:
        await scenario()

    run_virtual(main())


async def until(look: Callable[[], object], what: str, *, within_s: float = 120.0) -> None:
    """Advance virtual time until the condition holds."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    while not look():
        assert loop.time() < ends_s, f"waited {within_s:g} s in vain for {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(*work: Awaitable[object]) -> AsyncIterator[None]:
    """Run tasks for the length of a block. A task that raises fails the test."""
    tasks = [asyncio.ensure_future(task) for task in work]
    try:
        yield
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Failing(MemoryTransport):
    """Answers 500 to a share of all requests and watches without passing them to the server.
    `requests` has their methods.
    """

    def __init__(self, world: World, share: float, seed: int = 0) -> None:
        super().__init__(world.server)
        self._share = share
        self._rng = Random(seed)
        self.requests: list[str] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request.method)
        if self._rng.random() < self._share:
            return ApiResponse(500, _BROKEN, {})
        return await super().request(request)

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        if self._rng.random() < self._share:
            yield ApiStream(500, {}, _said([_BROKEN]))
            return
        async with super().stream(request) as stream:
            yield stream


_BROKEN = orjson.dumps({"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd"})

Answer = tuple[int, dict[str, Any]] | Exception
Stream = Sequence[dict[str, Any] | bytes | Exception]


class Script:
    """A transport with scripted answers: `answers` for requests and `streams` for watches, each in
    order; the last one is repeated. `requests` has the requests.
    """

    def __init__(self, answers: Sequence[Answer] = (), streams: Sequence[Stream] = ()) -> None:
        self._answers = list(answers)
        self._streams = list(streams)
        self.requests: list[ApiRequest] = []
        self.watched: list[ApiRequest] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0)
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        headers = {"retry-after": str(body["retryAfter"])} if "retryAfter" in body else {}
        return ApiResponse(status, orjson.dumps(body), headers)

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        await asyncio.sleep(0)
        self.watched.append(request)
        if not self._streams:
            await asyncio.sleep(3600)
        lines = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
        yield ApiStream(200, {}, _said(lines))


async def _said(lines: Stream) -> AsyncIterator[bytes]:
    for line in lines:
        await asyncio.sleep(0)
        if isinstance(line, Exception):
            raise line
        yield line if isinstance(line, bytes) else orjson.dumps(line) + b"\n"


def listed(version: int, *items: dict[str, Any], token: str = "") -> Answer:
    return 200, {
        "kind": "List",
        "metadata": {"resourceVersion": str(version), "continue": token},
        "items": list(items),
    }


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": obj}


def versioned(obj: dict[str, Any], version: int) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}


def no_answer() -> TransportError:
    return TransportError("connection refused")


def writers(
    api: ApiClient, random: Random, connectivity: Connectivity
) -> tuple[PrebindWriter, Evictor, Reporter]:
    """All of them beside binds. What comes of their commands is told to nobody."""
    return (
        PrebindWriter(api, lambda _: None, random=random, connectivity=connectivity),
        Evictor(api, lambda _: None, random=random, connectivity=connectivity, now_ns=lambda: 0),
        Reporter(
            api,
            instance="test-1",
            now_ns=lambda: 0,
            random=random,
            queued_binds=lambda: 0,
            unbound_version=lambda _: UnboundPodVersion("7", 1),
        ),
    )
