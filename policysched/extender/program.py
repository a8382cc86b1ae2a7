"""`policysched extender` as a process: clocks, connections, signals, threads and exit codes."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
import uuid
from contextlib import AsyncExitStack
from typing import Any

from policysched import __version__
from policysched.config.settings import NamespacedName
from policysched.config.source_settings import redact_secrets
from policysched.daemon.clock import NonDecreasingClock, wait_until_stepped
from policysched.daemon.event_loop import run_event_loop
from policysched.daemon.http_service import RESPONSE_TIMEOUT_S, start_http_server
from policysched.daemon.policy_compiler import WorkerCompiler
from policysched.daemon.sample_sources import make_sources
from policysched.daemon.signals import shutdown_signals
from policysched.daemon.status import policy_page
from policysched.extender.extender_app import ExtenderApp, ExtenderRuntime, NoUsablePolicy
from policysched.extender.handlers import ExtenderHandlers
from policysched.extender.settings import ExtenderSettings
from policysched.extender.telemetry import ExtenderTelemetry
from policysched.kube.client.session import ConnectionSettings, connect
from policysched.serve.extender_routes import extender_routes
from policysched.serve.health import Health, Heartbeat
from policysched.serve.server import StatusEndpoints

log = logging.getLogger(__name__)

STUCK_TIMEOUT_S = 60.0
EXIT_CLOCK_STEPPED = 4
"""The same exit code as of `policysched run`."""


def run_extender(settings: ExtenderSettings) -> int:
    """Runs until a signal; returns the exit code. Raises errors of the configuration, samples files, certificates, policy
    files and of listening before it serves."""
    return run_event_loop(_run(settings))


async def _run(settings: ExtenderSettings) -> int:
    connection = ConnectionSettings(
        settings.kubeconfig,
        settings.context,
        settings.connections_max,
        user_agent=f"policysched-extender/{__version__}",
    )
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    pulse, telemetry, clock = (
        Heartbeat(stuck_after_s=STUCK_TIMEOUT_S),
        ExtenderTelemetry(),
        NonDecreasingClock(),
    )
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(await connect(connection))
        compiler = WorkerCompiler(timeout_s=settings.compile_timeout_s)
        stack.push_async_callback(compiler.close)

        def random_stream(name: str) -> random.Random:
            return random.Random(f"{identity}/{name}")

        runtime = ExtenderRuntime(
            transport=session,
            compile_texts=compiler,
            now_ns=clock.now_ns,
            monotonic_s=time.monotonic,
            random=random_stream,
            identity=identity,
            samples=make_sources(
                settings.samples, settings.metrics, session, now_ns=clock.now_ns, random=random_stream
            ),
            beat=pulse.beat,
        )
        app = ExtenderApp(settings, runtime)
        compiler.report_delay = app.report_check_delay
        telemetry.attach(app, clock.now_ns)
        stopping = asyncio.Event()
        await _serve(settings, connection, app, pulse, telemetry, clock, stopping, stack)
        loop = asyncio.get_running_loop()
        for number in shutdown_signals():
            loop.add_signal_handler(number, stopping.set)
        log.info(
            "started",
            extra={
                "version": __version__,
                "server": session.host,
                "policies": settings.source_name,
                "pid": os.getpid(),
            },
        )
        work = [asyncio.create_task(app.run(), name="app")]
        return await _until_stopped(work, stopping, asyncio.create_task(wait_until_stepped(clock)))


async def _until_stopped(
    work: list[asyncio.Task[None]], stopping: asyncio.Event, stepped: asyncio.Task[float]
) -> int:
    stop: asyncio.Task[Any] = asyncio.create_task(stopping.wait(), name="stop")
    try:
        await asyncio.wait((*work, stop, stepped), return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            if task.done():
                task.result()
        log.info("stopping")
        return EXIT_CLOCK_STEPPED if stepped.done() else 0
    except NoUsablePolicy as error:
        log.error(
            "no policy to run: neither a valid one nor a last known good one; exiting",
            extra={"why": str(error)},
        )
        return 3
    finally:
        for task in (*work, stop, stepped):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*work, stop, stepped, return_exceptions=True)


async def _serve(
    settings: ExtenderSettings,
    connection: ConnectionSettings,
    app: ExtenderApp,
    pulse: Heartbeat,
    telemetry: ExtenderTelemetry,
    clock: NonDecreasingClock,
    stopping: asyncio.Event,
    stack: AsyncExitStack,
) -> None:
    loop = asyncio.get_running_loop()
    handlers = ExtenderHandlers(
        app.extender_server,
        app.binder,
        app.post,
        telemetry.record_request,
        main_loop=loop,
        now_ns=clock.now_ns,
        limits=settings.limits,
    )
    stack.push_async_callback(handlers.close)
    last_good = app.last_good
    health = Health(
        live={"loop": pulse.check},
        ready={
            "shutdown": lambda: "stopping" if stopping.is_set() else "",
            "sync": lambda: "" if app.extender_server.synced else "the first lists are not complete yet",
            "policies": lambda: "" if app.extender_server.programs() else "no policy is active",
            "api": lambda: app.connectivity.problem,
        },
        warnings={} if last_good is None else {"last-good": lambda: last_good.problem},
    )
    place = str(settings.source) if isinstance(settings.source, NamespacedName) else settings.source_name
    pages = StatusEndpoints(
        metrics=telemetry.registry.render,
        policy=lambda: policy_page(app.extender_server, place, app.metric_monitor.statuses(), clock.now_ns()),
        decisions=None,
        configz=lambda: {"policysched": redact_secrets(settings.configured)},
    )
    start_http_server(
        settings.http,
        connection,
        health,
        pages,
        telemetry.registry,
        stack,
        routes=extender_routes(handlers, loop),
        body_bytes_max=settings.limits.body_bytes_max,
        response_timeout_s=max(RESPONSE_TIMEOUT_S, 2 * settings.limits.budget_s),
    )
