"""`policysched extender` as a process: signals, HTTP and exit codes."""

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any

from policysched.config.settings import NamespacedName
from policysched.config.source_settings import redact_secrets
from policysched.daemon.clock import wait_until_stepped
from policysched.daemon.event_loop import run_event_loop
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.http_service import RESPONSE_TIMEOUT_S, start_http_server
from policysched.daemon.process import DaemonProcess, ExitReason, open_process, run_until_exit
from policysched.daemon.signals import shutdown_signals
from policysched.daemon.status_documents import policy_document
from policysched.extender.extender_app import ExtenderApp, NoUsablePolicy
from policysched.extender.handlers import ExtenderHandlers
from policysched.extender.settings import ExtenderSettings
from policysched.extender.telemetry import ExtenderTelemetry
from policysched.kube.client.api import ApiClient
from policysched.kube.client.server_probe import ServerProbe
from policysched.scheduler.policies.policy_status import suspension
from policysched.serve.extender_routes import extender_routes
from policysched.serve.health import Health
from policysched.serve.status_routes import StatusEndpoints

log = logging.getLogger(__name__)


def run_extender(settings: ExtenderSettings) -> int:
    """Runs until a signal; returns the exit code. Raises errors of the configuration, samples files, certificates, policy
    files and of listening before it serves."""
    return run_event_loop(run_until_exit(settings, _run_once))


async def _run_once(
    settings: ExtenderSettings, failed_objects: FailedObjects, stopping: asyncio.Event
) -> tuple[int, bool]:
    """As `run_until_exit` asks for it."""
    telemetry = ExtenderTelemetry()
    async with open_process(settings, user_agent="policysched-extender") as process:
        app = ExtenderApp(settings, process.runtime, failed_objects)
        telemetry.attach(app, process.clock.now_ns)
        _serve(settings, process, app, telemetry, stopping)
        loop = asyncio.get_running_loop()
        for number in shutdown_signals():
            loop.add_signal_handler(number, stopping.set)
        process.announce(app, settings.source_name)
        probe = ServerProbe(ApiClient(process.session), app.connectivity)
        work = [
            asyncio.create_task(app.run(), name="app"),
            asyncio.create_task(probe.run(), name="server probe"),
        ]
        stepped = asyncio.create_task(wait_until_stepped(process.clock))
        reason = await _until_stopped(work, stopping, stepped)
        return reason.value, app.rereads


async def _until_stopped(
    work: list[asyncio.Task[None]], stopping: asyncio.Event, stepped: asyncio.Task[float]
) -> ExitReason:
    stop: asyncio.Task[Any] = asyncio.create_task(stopping.wait(), name="stop")
    try:
        await asyncio.wait((*work, stop, stepped), return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            if task.done():
                task.result()
        log.info("stopping")
        return ExitReason.CLOCK_STEPPED if stepped.done() else ExitReason.STOPPED
    except NoUsablePolicy as error:
        log.error(
            "no policy to run: neither a valid one nor a last known good one; exiting",
            extra={"error": str(error)},
        )
        return ExitReason.NOTHING_TO_RUN
    finally:
        for task in (*work, stop, stepped):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*work, stop, stepped, return_exceptions=True)


def _serve(
    settings: ExtenderSettings,
    process: DaemonProcess,
    app: ExtenderApp,
    telemetry: ExtenderTelemetry,
    stopping: asyncio.Event,
) -> None:
    now_ns = process.clock.now_ns
    loop = asyncio.get_running_loop()
    handlers = ExtenderHandlers(
        app.extender_server,
        app.binder,
        app.post,
        telemetry.record_request,
        leave_out=partial(app.leave_out, None),
        main_loop=loop,
        now_ns=now_ns,
        limits=settings.limits,
    )
    process.on_exit.push_async_callback(handlers.close)
    health = Health(
        live={"loop": process.heartbeat.check},
        ready={
            "shutdown": lambda: "stopping" if stopping.is_set() else "",
            "sync": lambda: "" if app.extender_server.synced else "the first lists are not complete yet",
            "policies": lambda: "" if app.extender_server.programs() else "no policy is active",
            "api": lambda: app.connectivity.problem,
        },
        warnings={
            "last-good": app.last_good_problem,
            "settings": lambda: process.settings_watch.problem,
            "suspended": lambda: suspension(app.extender_server.policies()),
        },
    )
    location = (
        str(settings.policies) if isinstance(settings.policies, NamespacedName) else settings.source_name
    )
    pages = StatusEndpoints(
        metrics=telemetry.registry.render,
        policy=lambda: policy_document(
            app.extender_server, location, app.metric_monitor.statuses(), now_ns()
        ),
        decisions=None,
        configz=lambda: {"policysched": redact_secrets(settings.configured)},
    )
    start_http_server(
        settings.http,
        process.connection,
        health,
        pages,
        telemetry.registry,
        process.on_exit,
        routes=extender_routes(handlers, loop),
        body_bytes_max=settings.limits.body_bytes_max,
        response_timeout_s=max(RESPONSE_TIMEOUT_S, 2 * settings.limits.response_timeout_s),
    )
