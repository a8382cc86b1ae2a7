"""The API server in memory behind HTTP, for kubectl and for every other client that speaks to a real one.

Plain HTTP without credentials, on the loopback interface: client-go sends none over plain HTTP, and asks for none.
Each request becomes one call of `ApiServer.handle` on the loop's thread, so requests never meet half-way.
"""

import asyncio
from contextlib import aclosing

from aiohttp import web

from policysched.kube.client.transport import ApiResponse
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.transport import watch_chunks

_BODY_BYTES_MAX = 3 * 1024 * 1024
"""What the real server takes in one request."""


class ApiHttpServer:
    """Serves one `ApiServer` on 127.0.0.1 from `start` to `stop`."""

    def __init__(self, server: ApiServer, *, port: int = 0):
        self._server = server
        self._wanted_port = port
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        assert self.port, "asked for the address of a server that is not up"
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Raises OSError where the port is taken."""
        application = web.Application(client_max_size=_BODY_BYTES_MAX)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._wanted_port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self._server.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = ServerRequest(
            method=request.method,
            path=request.path,
            params=dict(request.query),
            body=await request.read(),
            content_type=request.headers.get("Content-Type", "application/json"),
            accept=",".join(request.headers.getall("Accept", [])),
        )
        answer = self._server.handle(call)
        if isinstance(answer, ApiResponse):
            return web.Response(status=answer.status, body=answer.body, headers=dict(answer.headers))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            async with aclosing(watch_chunks(answer, self._server)) as chunks:
                async for chunk in chunks:
                    await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            # The client has gone, which is how most watches end.
            pass
        except asyncio.CancelledError:
            # aiohttp cancels a handler whose client has gone.
            answer.close()
            raise
        return response
