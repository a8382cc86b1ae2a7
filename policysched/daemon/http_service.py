"""The HTTP server of `run` and `extender`, composed from the settings."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiohttp import web

from policysched.config.http_settings import HttpSettings
from policysched.daemon.access_reviewer import api_reviewer
from policysched.kube.client.session import ConnectionSettings
from policysched.serve.connections import ConnectionLimits
from policysched.serve.health import Health
from policysched.serve.prometheus_text import MetricRegistry
from policysched.serve.server import HttpServerOptions, HttpThread
from policysched.serve.status_routes import StatusEndpoints
from policysched.serve.tls import ServerTls

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 2**20
RESPONSE_TIMEOUT_S = 30.0


def start_http_server(
    settings: HttpSettings,
    connection: ConnectionSettings,
    health: Health,
    endpoints: StatusEndpoints,
    registry: MetricRegistry,
    stack: AsyncExitStack,
    *,
    routes: Sequence[web.RouteDef] = (),
    body_bytes_max: int = BODY_BYTES_MAX,
    response_timeout_s: float = RESPONSE_TIMEOUT_S,
) -> None:
    """Listens until the stack is closed. Call on the main loop. Raises ListenFailed and BadCertificate."""
    options = HttpServerOptions(
        routes=routes,
        tls=None if settings.insecure else ServerTls(settings.tls, host=settings.address.host),
        open_reviewer=None if settings.insecure else api_reviewer(connection),
        body_bytes_max=body_bytes_max,
        connections=ConnectionLimits(
            connections_max=settings.connections_max, response_timeout_s=response_timeout_s
        ),
    )
    registry.collectors.append(options.counters.families)
    server = HttpThread(settings.address, health, endpoints, asyncio.get_running_loop(), options)
    port = server.start()
    # In a thread: the server may be waiting for a response of this loop.
    stack.push_async_callback(asyncio.to_thread, server.stop)
    log.info("listening", extra={"address": f"{settings.scheme}://{settings.address.host}:{port}"})
