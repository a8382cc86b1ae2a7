"""The HTTP thread's way to data of the main loop: one reader after another, a twentieth of its time for all of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TypeVar

from aiohttp import web

from policysched.serve.shared_documents import Outside, Rest
from policysched.text.quote_value import quote_value

TIMEOUT_S = 5.0
MAIN_LOOP_SHARE, BURST_S = 0.05, 0.1
"""The burst is for a reader now and then: he waits for no rest in the middle of a large document."""
_HAND_OVER_S = 0.0002
"""What it costs the main loop to begin a step and to wake the HTTP thread with its result, about."""

Json = Mapping[str, object]
Answer = TypeVar("Answer")
LiveStep = Json | Callable[[], Awaitable[None]] | None
LiveEndpoint = Callable[[Mapping[str, str]], Iterator[LiveStep]]
"""From the parameters of the query to the page, in steps of the main loop of a few milliseconds: None until the page is
there, or what is to be awaited on the HTTP thread before the next step. Raises NoSuchEndpoint."""


_PARAMETERS: Mapping[str, Collection[str]] = {
    "/explain": ("pod",),
    "/queue": ("limit",),
    "/page/nodes": ("by",),
    "/page/pod": ("pod",),
}
"""Of the queries of live endpoints, by path."""


def live_query(request: web.Request) -> dict[str, str]:
    """The parameters of the query. Raises HTTPBadRequest for others: each query has a document of its own."""
    known = _PARAMETERS.get(request.path, ())
    for name in request.query:
        if name not in known:
            allowed = f"the parameters are: {', '.join(known)}" if known else "there are none"
            raise web.HTTPBadRequest(text=f"unknown parameter {quote_value(name)}; {allowed}\n")
    return dict(request.query)


class NoSuchEndpoint(Exception):
    """There is nothing to show for these parameters. The message is for the user."""


class MainLoopReader:
    """Times are processor time: a process that is frozen meanwhile need not rest for it."""

    def __init__(self, main_loop: asyncio.AbstractEventLoop) -> None:
        self._main_loop = main_loop
        self._turn = asyncio.Lock()
        self._rest = Rest(MAIN_LOOP_SHARE, BURST_S)

    async def run(self, look: Callable[[], Answer]) -> tuple[Answer, float]:
        """Run `look` in the main loop's thread, where its data does not change meanwhile. Its answer, and the seconds of the
        main loop that it took."""
        took_s = 0.0

        async def run() -> Answer:
            nonlocal took_s
            began_s = time.thread_time()
            try:
                return look()
            finally:
                took_s = time.thread_time() - began_s + _HAND_OVER_S

        try:
            async with asyncio.timeout(TIMEOUT_S), self._turn:
                await self._rest.wait()
                try:
                    answer = await asyncio.wrap_future(
                        asyncio.run_coroutine_threadsafe(run(), self._main_loop)
                    )
                finally:
                    self._rest.after(took_s)
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="the main loop is busy; retry later\n") from None
        return answer, took_s

    async def run_steps(
        self, page: LiveEndpoint, query: Mapping[str, str], outside: Outside
    ) -> tuple[Json, float]:
        """The page, and the seconds of the main loop that it took. What the page waits for is awaited `outside` its turn."""
        steps = page(query)
        took_s = 0.0
        try:
            while True:
                value, step_s = await self.run(lambda: next(steps))
                took_s += step_s
                if isinstance(value, Mapping):
                    return value, took_s
                if value is not None:
                    await outside(value())
        except NoSuchEndpoint as error:
            raise web.HTTPNotFound(text=f"{error}\n") from None
