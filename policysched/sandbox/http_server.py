"""Serves the API server in memory over HTTP, for kubectl and other clients.

It uses plain HTTP without credentials on the loopback interface; client-go sends no credentials over
plain HTTP. Each request is one call of `ApiServer.handle` on the event loop's thread, so requests do
not interleave.
"""

import asyncio
from contextlib import aclosing

from aiohttp import web

from policysched.kube.client.transport import ApiResponse
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.transport import watch_chunks

_BODY_BYTES_MAX = 3 * 1024 * 1024
"""The request size limit of kube-apiserver."""


class ApiHttpServer:
    """Serves one `ApiServer` on 127.0.0.1 from `start` to `stop`."""

    def __init__(self, server: ApiServer, *, port: int = 0):
        self._server = server
        self._wanted_port = port
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        assert self.port, "the server has no address before it is started"
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start to listen. Raises OSError if the port is in use."""
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
            # The client disconnected, which is how most watches end.
            pass
        except asyncio.CancelledError:
            # aiohttp cancels the handler if the client disconnects.
            answer.close()
            raise
        return response
