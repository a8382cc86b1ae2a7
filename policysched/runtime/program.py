"""`policysched run` as a process: signals, leadership, HTTP and exit codes."""

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import aiohttp

from policysched import __version__
from policysched.cluster.devices.cel_selectors import DeviceSelectors
from policysched.config.settings import Settings
from policysched.daemon.clock import NonDecreasingClock, uptime_s, wait_until_stepped
from policysched.daemon.event_loop import run_event_loop
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.http_service import start_http_server
from policysched.daemon.last_good_store import is_first_start
from policysched.daemon.policy_checker import WorkerChecker
from policysched.daemon.process import DaemonProcess, ExitReason, open_process, run_until_exit
from policysched.daemon.quota_documents import quotas_document
from policysched.daemon.signals import shutdown_signals
from policysched.daemon.status_documents import DecisionsDocument, configz_document, policy_document
from policysched.gc_tuning import MemoryGrowth, collect_all, keep_collections_short, peak_memory_bytes
from policysched.kube.client.api import ApiClient
from policysched.kube.client.server_probe import ServerProbe
from policysched.kube.client.session import connect
from policysched.kube.extender.client import ExtenderClient
from policysched.kube.leader_election import LeaderElector, LeadershipStatus
from policysched.recording.recorder import Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.runtime.leadership import (
    EXIT_TIMEOUT_S,
    Leadership,
    NoLeaderElection,
    ThreadedLeaderElection,
    exit_within,
)
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.runtime.page_documents import PageDocuments
from policysched.runtime.policy_history import PolicyHistory
from policysched.runtime.policy_tries import WorkerTries
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.runtime.self_check import compare_with_server
from policysched.runtime.telemetry import Telemetry
from policysched.scheduler.policies.policy_status import suspension
from policysched.serve.health import Health, HealthCheck
from policysched.serve.status_routes import StatusEndpoints

if TYPE_CHECKING:
    from policysched.daemon.otlp_export import DecisionExport

log = logging.getLogger(__name__)

MEMORY_INTERVAL_S = 60.0
"""How often the memory use is read. Reference cycles among long-lived objects are freed only after it has grown, since collecting
them stops everything for up to seconds. What changes often leaves no cycles (`tests/runtime/test_replaced_policies.py`)."""


def run_program(settings: Settings) -> int:
    """Run until a signal or an `ExitReason`; return the exit code. Errors of the configuration, extender endpoints, samples
    files and listening are raised before anything is changed."""
    try:
        return run_event_loop(run_until_exit(settings, _run_once))
    finally:
        # The interpreter resets Python handlers to the default as it exits, but keeps SIG_IGN.
        for number in shutdown_signals():
            signal.signal(number, signal.SIG_IGN)


async def _run_once(
    settings: Settings, failed_objects: FailedObjects, stop_requested: asyncio.Event
) -> tuple[int, bool]:
    """Run one app. Returns the exit code, and whether the next app has to read the cluster again."""
    telemetry = Telemetry()
    async with open_process(settings, user_agent="policysched") as process:
        writer = _make_recording(settings.recording, process)
        app = SchedulerApp(
            settings,
            process.runtime,
            _make_leadership(settings, process),
            extenders=await _connect_extenders(settings, process.on_exit),
            observe_decision_s=telemetry.observe_decision_s,
            observe_bind_s=telemetry.observe_bind_s,
            recorder=None if writer is None else writer.recorder,
            failed_objects=failed_objects,
        )
        export = _make_export(settings.otlp_endpoint, process)
        telemetry.attach(app, process.clock.now_ns, writer, export)
        _start_http(settings, process, app, telemetry)
        loop = asyncio.get_running_loop()
        for number in shutdown_signals():
            signal.signal(number, partial(_on_signal, loop, app, stop_requested))
        if stop_requested.is_set():  # before the app existed
            app.request_stop()
        checks: set[asyncio.Task[list[str]]] = set()
        loop.add_signal_handler(signal.SIGUSR2, _start_self_check, app, ApiClient(process.session), checks)
        if failed_objects.counts(process.clock.now_ns()):
            collect_all()  # frees the previous app: no signal handler refers to it any more
        process.announce(app, str(settings.policies))
        probe = ServerProbe(ApiClient(process.session), app.connectivity)
        return _exit_code(await _run_app(app, process.checker, process.clock, export, probe)), app.rereads


def _make_recording(settings: RecordingSettings | None, process: DaemonProcess) -> RecordingWriter | None:
    """A started writer, closed with the process; None without a recording."""
    if settings is None:
        return None
    writer = RecordingWriter(Recorder(), settings, process.runtime.identity, process.clock.now_ns)
    writer.start()
    process.on_exit.callback(writer.close)
    log.info("recording decisions", extra={"folder": str(settings.folder), "bytes_max": settings.bytes_max})
    return writer


def _make_export(endpoint: str | None, process: DaemonProcess) -> "DecisionExport | None":
    """Closed with the process. Raises ModuleNotFoundError without the extra `otlp`."""
    if endpoint is None:
        return None
    # Imported here because the SDK is an extra.
    from policysched.daemon.otlp_export import DecisionExport

    export = DecisionExport(endpoint, process.runtime.identity)
    process.on_exit.callback(export.close)
    log.info("exporting decisions", extra={"endpoint": endpoint})
    return export


async def _run_app(
    app: SchedulerApp,
    checker: WorkerChecker,
    clock: NonDecreasingClock,
    export: "DecisionExport | None",
    probe: ServerProbe,
) -> ExitReason:
    """Runs the app and its background tasks."""
    warm_up = asyncio.create_task(checker.warm_up())
    background = [
        asyncio.create_task(asyncio.to_thread(_import_late_modules)),
        asyncio.create_task(_tune_gc_when_synced(app)),
        asyncio.create_task(_watch_clock(clock, app)),
        asyncio.create_task(probe.run(), name="server probe"),
    ]
    if export is not None:
        background.append(asyncio.create_task(export.run(lambda: app.scheduler.decisions)))
    try:
        return await app.run()
    finally:
        for task in background:
            task.cancel()
        if export is not None:
            export.export(app.scheduler.decisions)
        with contextlib.suppress(asyncio.CancelledError):
            await warm_up


def _import_late_modules() -> None:
    """Import what would otherwise block the main loop later: `numpy.unique` imports numpy.ma when it is first called (75 ms),
    and the first ResourceSlice needs CEL (30 ms, 20 MiB)."""
    import_module("numpy.ma")
    DeviceSelectors().load()


async def _tune_gc_when_synced(app: SchedulerApp) -> None:
    while not (app.synced or app.has_listed):
        await asyncio.sleep(1.0)
    keep_collections_short()
    growth = MemoryGrowth(peak_memory_bytes())
    while True:
        await asyncio.sleep(MEMORY_INTERVAL_S)
        if not growth.is_due(peak_memory_bytes()):
            continue
        began_s = time.monotonic()
        freed = collect_all()
        elapsed_ms = round((time.monotonic() - began_s) * 1000)
        log.info("collected all garbage", extra={"objects": freed, "elapsed_ms": elapsed_ms})


async def _watch_clock(clock: NonDecreasingClock, app: SchedulerApp) -> None:
    await wait_until_stepped(clock)
    app.request_stop(ExitReason.CLOCK_STEPPED)


async def _connect_extenders(settings: Settings, stack: AsyncExitStack) -> dict[str, ExtenderClient]:
    """The clients of the extenders in the settings. Raises an error for an invalid endpoint."""
    if not settings.extenders:
        return {}
    session = await stack.enter_async_context(
        aiohttp.ClientSession(
            headers={"User-Agent": f"policysched/{__version__}"}, cookie_jar=aiohttp.DummyCookieJar()
        )
    )
    return {name: ExtenderClient(endpoint, session) for name, endpoint in settings.extenders.items()}


def _make_leadership(settings: Settings, process: DaemonProcess) -> Leadership:
    lease, last_good, identity = settings.lease, settings.last_good, process.runtime.identity
    if lease is None:
        return NoLeaderElection()

    @asynccontextmanager
    async def make() -> AsyncIterator[LeaderElector]:
        async with await connect(process.connection) as session:
            api = ApiClient(session)
            yield LeaderElector(
                api,
                lease,
                identity=identity,
                monotonic_s=uptime_s,
                now_ns=time.time_ns,
                random=random.Random(f"{identity}/lease"),
                first_start=lambda: is_first_start(api, last_good, lease.request_timeout_s),
            )

    return ThreadedLeaderElection(make, partial(exit_within, EXIT_TIMEOUT_S, ExitReason.LOST_LEASE.value))


def _start_http(settings: Settings, process: DaemonProcess, app: SchedulerApp, telemetry: Telemetry) -> None:
    if settings.http is None:
        return
    health = Health(
        live={"loop": process.heartbeat.check},
        ready=_ready_checks(app),
        warnings={
            "last-good": app.last_good_problem,
            "standby": lambda: app.standby_problem,
            "settings": lambda: process.settings_watch.problem,
            "canaries": lambda: app.scheduler.core.canaries.problem,
            "suspended": lambda: suspension(app.scheduler.policies()),
        },
    )
    live = LiveEndpoints(app.scheduler, lambda: app.unavailable_reason, process.clock.now_ns)
    pages = StatusEndpoints(
        metrics=telemetry.registry.render,
        policy=lambda: policy_document(
            app.scheduler,
            str(settings.policies),
            app.metric_monitor.statuses(),
            time.time_ns(),
            note=app.unavailable_reason,
            canaries=app.scheduler.canaries(),
        ),
        decisions=DecisionsDocument(app.scheduler, lambda: app.unavailable_reason).look,
        configz=lambda: configz_document(settings),
        quotas=lambda: quotas_document(app.scheduler.quotas(), app.unavailable_reason),
        live_endpoints=live.by_path(),
        page_feeds=PageDocuments(app, live, PolicyHistory()).by_path(),
        policy_tries=WorkerTries(app, settings.policy_cost_max, process.clock.now_ns),
        is_standby=lambda: _is_standby(app),
    )
    start_http_server(settings.http, process.connection, health, pages, telemetry.registry, process.on_exit)


def _is_standby(app: SchedulerApp) -> bool:
    return app.leadership_status is LeadershipStatus.FOLLOWING


def _ready_checks(app: SchedulerApp) -> Mapping[str, HealthCheck]:
    """A standby process is ready."""
    return {
        "shutdown": lambda: "stopping" if app.stopping else "",
        "sync": lambda: "" if app.synced or _is_standby(app) else "the first lists are not complete yet",
        "policies": lambda: "" if app.scheduler.programs() or _is_standby(app) else "no policy is active",
        "api": lambda: app.connectivity.problem,
    }


def _on_signal(
    loop: asyncio.AbstractEventLoop,
    app: SchedulerApp,
    stop_requested: asyncio.Event,
    number: int,
    _frame: object,
) -> None:
    """A plain signal handler. The loop removes its own handlers as it closes, and a signal after that would kill the process
    and hide its exit code."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_stop, app, stop_requested, number)


def _stop(app: SchedulerApp, stop_requested: asyncio.Event, number: int) -> None:
    log.info("stopping", extra={"signal": signal.Signals(number).name})
    stop_requested.set()
    app.request_stop()


def _start_self_check(app: SchedulerApp, api: ApiClient, checks: set[asyncio.Task[list[str]]]) -> None:
    """`checks` holds the tasks: the loop keeps only weak references."""
    task = asyncio.create_task(compare_with_server(app.scheduler, api, app.counted_names))
    checks.add(task)
    task.add_done_callback(checks.discard)


def _exit_code(outcome: ExitReason) -> int:
    match outcome:
        case ExitReason.STOPPED:
            return 0
        case ExitReason.CLOCK_STEPPED:
            pass  # already logged
        case ExitReason.LOST_LEASE:
            log.error("lost the lease; exiting for a restart")
        case ExitReason.NOTHING_TO_RUN:
            log.error("no policy to run: neither a valid one nor a last known good one; exiting")
    code: int = outcome.value
    return code
