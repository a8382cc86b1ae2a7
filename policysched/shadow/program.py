"""`policysched shadow` as a process: watches, one second behind, until a signal or the end of its time."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from policysched import __version__
from policysched.config.logs import write_log
from policysched.config.settings import Settings
from policysched.config.source_settings import SamplesSettings
from policysched.daemon.clock import NonDecreasingClock
from policysched.daemon.event_loop import run_event_loop
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.metric_monitor import MetricMonitor
from policysched.daemon.reflectors import ReflectorSet
from policysched.daemon.sample_sources import make_sources
from policysched.daemon.signals import shutdown_signals
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.session import ConnectionSettings, HttpTransport, connect
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.watch.node_resources import with_node_resources
from policysched.kube.watch.reflector import ReflectorSettings
from policysched.kube.watch.resources import (
    DEVICE_RESOURCES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    NODES,
    POD_GROUP_RESOURCES,
    SELECTOR_OWNERS,
    STORAGE_RESOURCES,
    WatchedResource,
    node_objects,
    pods_within,
)
from policysched.lang.ir.program import Program
from policysched.recording.recorder import Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.scheduler.commands import Command, Log, ReportPolicyEvent
from policysched.scheduler.events import Event, PodUpdated
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.shadow.observer import IN_FLIGHT_NS, BindComparison, Observer
from policysched.shadow.summary import ShadowSummary

log = logging.getLogger(__name__)

_TICK_S = 0.05
_PENDING_CHECK_S = 1.0
_FOLLOWING_MAX = 1000
LATE_NS = 10_000_000_000
"""Binds that wait for longer are not compared: each can take 120 evaluations, and events would wait without a limit."""
_PAUSE_SHARE = 9
"""A check of pending pods is followed by so many times its duration without one: it can take seconds."""


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """`other`: the schedulerName of the pods that are compared. `duration_s` None: until a signal. `configured`: the settings of a
    scheduler, for its sources of samples and its custom resources of nodes. `recording`: where what is seen is recorded."""

    program: Program
    other: str
    kubeconfig: Path | None = None
    context: str | None = None
    duration_s: float | None = None
    metrics: Path | None = None
    permissions: PolicyPermissions = ANY_POLICY_NAME
    configured: Settings | None = None
    recording: RecordingSettings | None = None


def recording_settings(folder: Path, configured: Settings | None) -> RecordingSettings:
    """The limits are those of the settings of a scheduler, if there are any."""
    limits = None if configured is None else configured.recording
    return RecordingSettings(folder) if limits is None else replace(limits, folder=folder)


class _ReadAgain(Exception):
    """An object is left out; the cluster must be read again."""


@dataclass(slots=True)
class ShadowState:
    """What is shown while it runs."""

    summary: ShadowSummary = field(default_factory=ShadowSummary)
    synced: bool = False
    pending: int = 0
    unseen: int = 0
    late: int = 0
    failed: int = 0
    problem: str = ""
    running_s: float = 0.0
    not_recorded: str = ""

    def record(self) -> dict[str, object]:
        return self.summary.record(
            unseen=self.unseen,
            late=self.late,
            failed=self.failed,
            pending=self.pending,
            duration_s=self.running_s,
        )


def run_shadow(
    settings: ShadowSettings,
    compared: Callable[[BindComparison], None],
    refresh: Callable[[ShadowState], None],
) -> ShadowState:
    """`compared` gets every comparison, `refresh` the state several times a second. Raises BadKubeconfig and BadSamplesFile."""
    return run_event_loop(_Shadow(settings, compared, refresh).run())


def watched_resources(decision_budget: int, program: Program) -> tuple[WatchedResource[Any], ...]:
    """What is watched, with as much of large pods as a scheduler with this budget of a decision and this policy keeps."""
    names = CountedNames(lambda: {program.name: program})
    return (
        NAMESPACES,
        with_node_resources(NODES, names),
        pods_within(decision_budget, names),
        DISRUPTION_BUDGETS,
        *SELECTOR_OWNERS,
        *STORAGE_RESOURCES,
        *DEVICE_RESOURCES,
        *POD_GROUP_RESOURCES,
    )


class _Shadow:
    def __init__(
        self,
        settings: ShadowSettings,
        compared: Callable[[BindComparison], None],
        refresh: Callable[[ShadowState], None],
    ) -> None:
        self._settings = settings
        self._compared = compared
        self._refresh = refresh
        self._state = ShadowState()
        self._clock = NonDecreasingClock()
        self._failed_objects = FailedObjects(settings.permissions.owner)
        self._begin()

    def _begin(self) -> None:
        """Start, or start again, without any state of the cluster."""
        settings = self._settings
        self._inbox: deque[tuple[int, Event]] = deque()
        self._state.synced = False
        self._failed_objects.begin()
        self._writer: RecordingWriter | None = None
        if settings.recording is not None:
            recorder = Recorder(is_shadow=True)
            self._writer = RecordingWriter(recorder, settings.recording, "shadow", self._clock.now_ns)
        self._observer = Observer(
            settings.program,
            settings.other,
            now_ns=self._clock.now_ns(),
            permissions=settings.permissions,
            recorder=None if self._writer is None else self._writer.recorder,
        )

    def _post(self, event: Event) -> None:
        self._inbox.append((self._clock.now_ns(), event))

    async def run(self) -> ShadowState:
        settings = self._settings
        stopping = asyncio.Event()
        for number in shutdown_signals():
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        connection = ConnectionSettings(
            settings.kubeconfig, settings.context, user_agent=f"policysched-shadow/{__version__}"
        )
        started_s = time.monotonic()
        async with await connect(connection) as session:
            while True:
                try:
                    await self._watch(session, stopping, started_s)
                    return self._state
                except _ReadAgain:
                    log.info("reading the cluster again")
                    counted = self._observer
                    self._begin()
                    self._observer.continue_counts(counted)

    async def _watch(self, session: HttpTransport, stopping: asyncio.Event, started_s: float) -> None:
        """Raises _ReadAgain if an object is left out."""
        settings, configured = self._settings, self._settings.configured
        connectivity = Connectivity(time.monotonic)
        with ExitStack() as stack:
            if self._writer is not None:
                self._writer.start()
                stack.callback(self._end_recording, self._writer)
            reflectors = ReflectorSet(
                ApiClient(session, may_write=lambda: False),
                self._post,
                random=random.Random,
                connectivity=connectivity,
                settings=ReflectorSettings(),
                run_beside=asyncio.to_thread,
            )
            resources = watched_resources(
                self._observer.scheduler.core.limits.decision_budget, settings.program
            )
            parts = reflectors.add_cluster_reflectors(resources)
            for kind in () if configured is None else configured.node_objects:
                resource = node_objects(
                    kind.kind, group=kind.group, version=kind.version, resource=kind.resource
                )
                parts[resource.kind] = reflectors.add_reflector(resource, self._post, lambda: None)
            scheduler = self._observer.scheduler
            monitor = MetricMonitor(
                make_sources(
                    SamplesSettings() if configured is None else configured.samples,
                    settings.metrics,
                    session,
                    now_ns=self._clock.now_ns,
                    random=random.Random,
                ),
                wanted=scheduler.metrics,
                nodes=lambda: scheduler.cache.nodes,
                deliver=self._post,
                report=_log_policy_event,
            )
            tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
            tasks.append(asyncio.create_task(monitor.run(), name="samples"))
            try:
                await self._observe(stopping, tasks, connectivity, started_s)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _end_recording(self, writer: RecordingWriter) -> None:
        writer.close()
        dropped = writer.counts.dropped + writer.recorder.dropped
        if dropped or writer.counts.failure:
            self._state.not_recorded = (
                f"{dropped} events are not recorded: {writer.counts.failure or 'the disk is too slow'}"
            )

    async def _observe(
        self,
        stopping: asyncio.Event,
        tasks: list["asyncio.Task[None]"],
        connectivity: Connectivity,
        started_s: float,
    ) -> None:
        next_check_s = 0.0
        duration_s = self._settings.duration_s
        while not stopping.is_set():
            for task in tasks:
                if task.done():
                    task.result()
            self._state.running_s = time.monotonic() - started_s
            failure = "" if self._writer is None else self._writer.counts.failure
            self._state.problem = connectivity.problem or (failure and f"not recorded: {failure}")
            if duration_s is not None and self._state.running_s >= duration_s:
                break
            self._take_due()
            await self._apply(all_events=False)
            began_s = time.monotonic()
            if self._state.synced and began_s >= next_check_s:
                self._observer.check_pending(self._clock.now_ns() - IN_FLIGHT_NS)
                now_s = time.monotonic()
                next_check_s = max(began_s + _PENDING_CHECK_S, now_s + _PAUSE_SHARE * (now_s - began_s))
            self._refresh(self._state)
            await asyncio.sleep(_TICK_S)
        self._state.problem = connectivity.problem
        await self._apply(all_events=True)
        self._refresh(self._state)

    async def _apply(self, *, all_events: bool) -> None:
        """The events that are a second old: those that follow are known by then. Before the first lists are complete, all. Ends after
        a second: whether to stop is asked between two calls."""
        started_s = began_s = time.monotonic()
        while self._inbox:
            at_ns, event = self._inbox[0]
            if self._state.synced and not all_events and at_ns > self._clock.now_ns() - IN_FLIGHT_NS:
                return
            self._inbox.popleft()
            comparison, commands = self._handle(event, at_ns)
            for command in commands:
                if isinstance(command, Log):
                    write_log(log, command)
            if comparison is not None:
                self._state.summary.add(comparison)
                self._compared(comparison)
            self._state.synced = self._observer.scheduler.synced
            self._state.pending, self._state.unseen = self._observer.pending_count, self._observer.unseen
            self._state.late, self._state.failed = self._observer.late, self._observer.failed
            if time.monotonic() - began_s > _TICK_S:
                await asyncio.sleep(0)  # the watches go on
                began_s = time.monotonic()
                if not all_events and began_s - started_s > 1.0:
                    return

    def _take_due(self) -> None:
        """What was left out is tried again, in front: what waits in the inbox is newer."""
        now_ns = self._clock.now_ns() - IN_FLIGHT_NS
        due = self._failed_objects.take_due(now_ns)
        self._inbox.extendleft((now_ns, event) for event in reversed(due))

    def _handle(self, event: Event, at_ns: int) -> tuple[BindComparison | None, list[Command]]:
        """Raises _ReadAgain if the event raised, since the state may be half changed."""
        failed = self._failed_objects
        admitted = failed.admit(event, at_ns)
        failed.untold.clear()  # such pods are another scheduler's
        if admitted is None:
            return None, []
        try:
            return self._observer.handle(admitted, at_ns, self._following(admitted, at_ns))
        except Exception as error:  # raised again if nobody is to blame
            if not failed.note(event, error, at_ns, self._observer.scheduler.cache.pods):
                raise
            raise _ReadAgain from error

    def _following(self, event: Event, at_ns: int) -> list[Event] | None:
        """Those of the second after a bind. Nobody asks for them beside another event. None: it is too late for a comparison."""
        if not (self._state.synced and isinstance(event, PodUpdated) and event.pod.node is not None):
            return []
        if self._clock.now_ns() - at_ns > LATE_NS:
            return None
        later_ones = islice(self._inbox, _FOLLOWING_MAX)
        return [later for later_ns, later in later_ones if later_ns <= at_ns + IN_FLIGHT_NS]


def _log_policy_event(command: ReportPolicyEvent) -> None:
    log.warning(command.message)
