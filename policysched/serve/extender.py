"""The extender protocol's routes: `POST /POLICY/VERB`, read here, answered by the main loop, in time or not at all.

kube-scheduler puts the URL together from `urlPrefix` and the verb, so the policy is chosen by the prefix:
`http://extender:8888/network-aware` with the verbs filter, prioritize, preempt and bind. A caller that has given up
reads nothing any more, so what cannot be answered within the budget is answered with that fact, and is not worked on.

What is large (whole node lists) is read off the loop of this thread, which also answers the probes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from aiohttp import web

VERBS = ("filter", "prioritize", "preempt", "bind")
_READ_HERE_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `options` is its query, `deadline_s` on the clock of `time.monotonic`."""

    policy: str
    verb: str
    options: Mapping[str, str]
    body: bytes
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """`value` is answered as JSON; a text as it is. `outcome` is a word for the metrics."""

    status: int
    value: Any
    outcome: str


Work = Callable[[], Awaitable[Reply]]


class Desk(Protocol):
    """Who answers. `read` runs in a thread of ours and gives what is to be awaited in the main loop, or a reply where
    there is nothing to ask it. `late` is what is said when time is up. `note` may be called in any thread."""

    budget_s: float

    def read(self, call: Call) -> Work | Reply: ...
    def late(self, call: Call) -> Reply: ...
    def note(self, call: Call, reply: Reply, seconds: float) -> None: ...


def extender_routes(
    desk: Desk, main_loop: asyncio.AbstractEventLoop, *, certificates: bool
) -> list[web.RouteDef]:
    """`certificates`: only a client that has shown a certificate (which TLS has verified) is answered."""

    async def answer(request: web.Request) -> web.Response:
        began_s = time.monotonic()
        verb = request.match_info["verb"]
        if certificates and not _has_certificate(request):
            return web.Response(status=403, text="a client certificate is asked for\n")
        body = await request.read()
        call = Call(request.match_info["policy"], verb, dict(request.query), body, began_s + desk.budget_s)
        reply = await _answer(desk, call, main_loop)
        desk.note(call, reply, time.monotonic() - began_s)
        if isinstance(reply.value, str):
            return web.Response(status=reply.status, text=reply.value)
        return web.Response(
            status=reply.status, body=orjson.dumps(reply.value), content_type="application/json"
        )

    return [web.post(f"/{{policy}}/{{verb:{'|'.join(VERBS)}}}", answer)]


async def _answer(desk: Desk, call: Call, main_loop: asyncio.AbstractEventLoop) -> Reply:
    try:
        async with asyncio.timeout(call.deadline_s - time.monotonic()):
            if len(call.body) > _READ_HERE_BYTES_MAX:
                work = await asyncio.to_thread(desk.read, call)
            else:
                work = desk.read(call)
            if isinstance(work, Reply):
                return work
            under_way = asyncio.run_coroutine_threadsafe(_there(work), main_loop)
            return await asyncio.wrap_future(under_way)
    except TimeoutError:
        return desk.late(call)


async def _there(work: Work) -> Reply:
    return await work()


def _has_certificate(request: web.Request) -> bool:
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))
