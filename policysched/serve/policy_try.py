"""The playground of the page: `POST /page/try` checks a changed policy, and says which pods would move.

The access review is that of this path with the verb `post`: the right to read the page does not include it. A simulation is
only for users who may list all pods: rules can read the labels and annotations of any pod, and what they decide about the user's own pods tells
him. The work is done by a process of its own; one simulation at a time for all users.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import orjson
from aiohttp import web

from policysched.serve.page_feed import MayListPods
from policysched.serve.page_files import HEADERS

PATH = "/page/try"
TEXT_CHARS_MAX = 2**19
BUSY_RETRY_S = 5

Answer = TypeVar("Answer")


class TryFailed(Exception):
    """The worker gave no answer: its limits, or no process. The message is one line for the user."""


class PolicyTries(Protocol):
    """`look` runs in the main loop and takes only references; it raises LookupError with a message if there is nothing to
    try. `run` does the rest, and raises TryFailed."""

    def look(self, policy: str, *, simulates: bool) -> Any: ...

    async def run(self, visible: Any, text: str, *, placed: bool) -> dict[str, Any]: ...


class PolicyTryHandler:
    def __init__(
        self,
        tries: PolicyTries,
        on_main_loop: Callable[[Callable[[], Any]], Awaitable[tuple[Any, float]]],
        may_list_pods_of: Callable[[web.Request], MayListPods],
    ) -> None:
        self._tries, self._on_main_loop, self._may_list_pods_of = tries, on_main_loop, may_list_pods_of
        self._simulating = asyncio.Lock()
        self._checking = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        try:
            body = await _asked(request)
            if body["simulate"] and not await self._may_list_pods_of(request)(None):
                raise web.HTTPForbidden(
                    text="a simulation reads the pods of all namespaces, which you may not list\n"
                )
            value = await self._run(body, request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        return web.Response(body=orjson.dumps(value), content_type="application/json", headers=HEADERS)

    async def _run(self, body: Mapping[str, Any], request: web.Request) -> dict[str, Any]:
        simulates = body["simulate"]
        lock = self._simulating if simulates else self._checking
        if simulates and lock.locked():
            raise web.HTTPTooManyRequests(
                text="another change is being simulated; retry in a few seconds\n",
                headers={"Retry-After": str(BUSY_RETRY_S)},
            )
        async with lock:
            if request.transport is None:  # a process of 15 s for each request of a client that has left
                raise web.HTTPServiceUnavailable(text="the client has left\n")
            try:
                visible, _ = await self._on_main_loop(
                    lambda: self._tries.look(body["policy"], simulates=simulates)
                )
                return await self._tries.run(visible, body["text"], placed=body["placed"])
            except LookupError as error:
                raise web.HTTPNotFound(text=f"{error.args[0]}\n") from None
            except TryFailed as error:
                raise web.HTTPServiceUnavailable(text=f"{error}\n") from None


async def _asked(request: web.Request) -> dict[str, Any]:
    """The checked body. A browser sends this type to another origin only after a preflight request, which is never allowed."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="415: send application/json\n")
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        raise web.HTTPBadRequest(text="400: the body is not JSON\n") from None
    fields = body if isinstance(body, dict) else {}
    if not (isinstance(fields.get("policy"), str) and isinstance(fields.get("text"), str)):
        raise web.HTTPBadRequest(text="400: `policy` and `text` must be strings\n")
    if len(fields["text"]) > TEXT_CHARS_MAX:
        raise web.HTTPRequestEntityTooLarge(
            max_size=TEXT_CHARS_MAX, actual_size=len(fields["text"]), text="413: the text is too long\n"
        )
    return {
        "policy": fields["policy"],
        "text": fields["text"],
        "simulate": fields.get("simulate") is True,
        "placed": fields.get("placed") is True,
    }
