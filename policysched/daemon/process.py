"""The process around an app, the same for `run` and `extender`: identity, connection, clocks and the policy checker.

Signals and exit codes differ: `runtime.program` and `extender.program` have them.
"""

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

from policysched import __version__
from policysched.config.settings import DaemonSettings
from policysched.daemon.app import DaemonApp, Runtime
from policysched.daemon.clock import NonDecreasingClock
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.policy_checker import WorkerChecker
from policysched.daemon.sample_sources import make_sources
from policysched.daemon.settings_watch import SettingsWatch
from policysched.kube.client.session import ConnectionSettings, HttpTransport, connect
from policysched.serve.health import Heartbeat

log = logging.getLogger(__name__)

STUCK_TIMEOUT_S = 60.0
"""The process is restarted if its loop has not run for this time."""


Settings = TypeVar("Settings", bound=DaemonSettings)


class ExitReason(Enum):
    """Why the process ended. The value is the exit code."""

    STOPPED = 0
    LOST_LEASE = 1
    NOTHING_TO_RUN = 3
    CLOCK_STEPPED = 4


@dataclass(frozen=True, slots=True)
class DaemonProcess:
    """The parts of a started process. `on_exit` closes what is opened on it before the parts."""

    connection: ConnectionSettings
    session: HttpTransport
    checker: WorkerChecker
    clock: NonDecreasingClock
    heartbeat: Heartbeat
    runtime: Runtime
    settings_watch: SettingsWatch
    on_exit: AsyncExitStack

    def announce(self, app: DaemonApp, policies: str) -> None:
        """Logs that the app is started, and lets it report policy checks that wait. `policies` is their location."""
        self.checker.report_delay = app.report_check_delay
        log.info(
            "started",
            extra={
                "version": __version__,
                "server": self.session.host,
                "policies": policies,
                "pid": os.getpid(),
            },
        )


@asynccontextmanager
async def open_process(settings: DaemonSettings, *, user_agent: str) -> AsyncIterator[DaemonProcess]:
    """Connects to the API server, but sends nothing. Raises errors of the connection's and of the samples' settings."""
    connection = ConnectionSettings(
        settings.kubeconfig,
        settings.context,
        settings.connections_max,
        user_agent=f"{user_agent}/{__version__}",
    )
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    random_stream = partial(_random_stream, identity)
    heartbeat, clock = Heartbeat(stuck_after_s=STUCK_TIMEOUT_S), NonDecreasingClock()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(await connect(connection))
        checker = WorkerChecker(
            timeout_s=settings.check_timeout_s,
            text_timeout_s=settings.policy_check_timeout_s,
            cost_max=settings.policy_cost_max,
        )
        stack.push_async_callback(checker.close)
        team_checker = None
        if settings.team_policies is not None:
            # A checker of their own, so that no team's text delays the check of the operator's.
            team_checker = WorkerChecker(
                timeout_s=settings.policy_check_timeout_s,
                cost_max=min(settings.policy_cost_max, settings.team_policies.policy_cost_max),
            )
            stack.push_async_callback(team_checker.close)
        samples = make_sources(
            settings.samples, settings.metrics, session, now_ns=clock.now_ns, random=random_stream
        )
        runtime = Runtime(
            transport=session,
            check_texts=checker,
            check_team_texts=team_checker,
            now_ns=clock.now_ns,
            monotonic_s=time.monotonic,
            run_beside=asyncio.to_thread,
            random=random_stream,
            identity=identity,
            samples=samples,
            beat=heartbeat.beat,
        )
        settings_watch = SettingsWatch(settings.file)
        watching = asyncio.create_task(settings_watch.run(), name="settings file")
        stack.callback(watching.cancel)
        yield DaemonProcess(connection, session, checker, clock, heartbeat, runtime, settings_watch, stack)


def _random_stream(identity: str, name: str) -> random.Random:
    return random.Random(f"{identity}/{name}")


async def run_until_exit(
    settings: Settings,
    run_once: Callable[[Settings, FailedObjects, asyncio.Event], Awaitable[tuple[int, bool]]],
) -> int:
    """The exit code. `run_once` makes an app and runs it, until the event at the latest. It returns the exit code, and whether
    everything is to be made anew because of an object that raised."""
    failed_objects, stop_requested = FailedObjects(settings.permissions.owner), asyncio.Event()
    while True:
        exit_code, rereads = await run_once(settings, failed_objects, stop_requested)
        if exit_code or not rereads or stop_requested.is_set():
            return exit_code
        log.info("reading the cluster again")
