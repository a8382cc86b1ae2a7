"""The scheduler composed from its parts: `policysched run` runs it, and the simulation drives it.

    reflectors ─┐                                        ┌─► binder   ─► BindAnswered ─┐
    policies   ─┼─► inbox ─► handle ─► decide ─► commands┼─► reporter                   │
    samples    ─┘     ▲      (one loop, in slices)       └─► last known good            │
                      └─────────────────────────────────────────────────────────────────┘

Everything that differs in a simulation is in `Runtime`: the transport, clocks, random streams, the policy compiler and
leader election. A standby process only watches the Lease. It reads the cluster once it leads, while it waits for
requests that the previous leader may still have in flight.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

from policysched.config.settings import Settings
from policysched.daemon.extender_caller import ExtenderCaller, extender_capabilities
from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.metric_monitor import FIRST_SAMPLES_TIMEOUT_S, MetricMonitor
from policysched.daemon.policy_compiler import Compile
from policysched.daemon.policy_feed import PolicyFeed
from policysched.daemon.reflectors import ReflectorSet
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import Transport
from policysched.kube.extender.client import ExtenderClient
from policysched.kube.leader_election import LeadershipStatus
from policysched.kube.watch.resources import (
    DEVICE_RESOURCES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    POD_SETS,
    PODS,
    STORAGE_RESOURCES,
    config_map,
    node_objects,
)
from policysched.kube.write.bind import Binder, LostLeadership
from policysched.kube.write.claim_writes import PrebindWriter
from policysched.kube.write.events_and_conditions import Reporter, UnboundPodVersion
from policysched.kube.write.evict import Evictor
from policysched.metric_sources.router import SampleSourceRouter
from policysched.model.identifiers import PodUid
from policysched.runtime.command_dispatcher import CommandDispatcher
from policysched.runtime.leadership import Leadership
from policysched.scheduler.commands import ReportPolicyEvent
from policysched.scheduler.events import Event, SavedPolicyStatesLoaded
from policysched.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

SLICE_S = 0.005
STEPS_PER_CLOCK_READ = 4
STEPS_PER_SLICE_MAX = 256
"""Ends a slice where the clock does not advance (a simulation)."""

REPORTS_FLUSH_TIMEOUT_S = 3.0
"""How long shutdown waits for pending events and conditions, once the binds are answered."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The environment of the scheduler. `random` returns the random stream of a name. The observers get the duration of a
    decision, and of a bind until its outcome; a live loop calls `beat` at least once a second."""

    transport: Transport
    leadership: Leadership
    compile_texts: Compile
    now_ns: Callable[[], int]
    monotonic_s: Callable[[], float]
    random: Callable[[str], Random]
    identity: str
    samples: SampleSourceRouter = field(default_factory=SampleSourceRouter)
    extenders: Mapping[str, ExtenderClient] = field(default_factory=dict)
    observe_decision_s: Callable[[float], None] | None = None
    observe_bind_s: Callable[[float], None] | None = None
    beat: Callable[[], None] = field(default=lambda: None)


class ExitReason(Enum):
    """Why `run` ended. The value is the exit code."""

    STOPPED = 0
    LOST_LEASE = 1
    NOTHING_TO_RUN = 3
    CLOCK_STEPPED = 4


class SchedulerApp:
    """Call `run` once. Until it leads, only leader election runs."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        self.scheduler = Scheduler(
            settings.limits,
            extender_capabilities(settings.extenders),
            first_samples_s=FIRST_SAMPLES_TIMEOUT_S,
            source_name_of=runtime.samples.source_name_for,
        )
        self.connectivity = Connectivity(runtime.monotonic_s)
        api = ApiClient(runtime.transport, may_write=runtime.leadership.may_write)
        self._reflector_set = ReflectorSet(
            api,
            self.post,
            random=runtime.random,
            connectivity=self.connectivity,
            settings=settings.reflecting,
        )
        self.malformed, self.reflectors = self._reflector_set.malformed, self._reflector_set.reflectors
        self.binder, self.prebind_writer, self.evictor = self._make_writers(api)
        self.reporter = Reporter(
            api,
            instance=runtime.identity,
            now_ns=runtime.now_ns,
            random=runtime.random("report"),
            queued_binds=lambda: self.binder.queued,
            unbound_version=self._cached_version,
            settings=settings.reporting,
        )
        self.last_good, self.policy_feed = self._make_policy_feed(api)
        self.extender_caller = ExtenderCaller(runtime.extenders, api, self.post)
        self._dispatcher = CommandDispatcher(
            self.binder,
            self.prebind_writer,
            self.evictor,
            self.reporter,
            self.last_good,
            self.policy_feed,
            settings.policies,
            self.extender_caller,
        )
        self.metric_monitor = MetricMonitor(
            runtime.samples,
            wanted=self.scheduler.metrics,
            nodes=lambda: self.scheduler.cache.nodes,
            deliver=self.post,
            report=lambda command: self._dispatcher.dispatch([command]),
        )
        self._inbox: deque[Event] = deque()
        self._decision_elapsed_s = 0.0  # of the decision in progress
        self._wake = asyncio.Event()
        self._ended: asyncio.Event = asyncio.Event()
        self._exit_reason: ExitReason | None = None
        self.stopping = False

    def _make_writers(self, api: ApiClient) -> tuple[Binder, PrebindWriter, Evictor]:
        """The writers of pods, claims and volumes: they write only while this process leads."""
        settings, runtime = self.settings, self.runtime
        binder = Binder(
            api,
            self.post,
            random=runtime.random("bind"),
            connectivity=self.connectivity,
            settings=settings.binding,
            may_send=runtime.leadership.leads,
            observe_duration_s=runtime.observe_bind_s,
        )
        volumes = PrebindWriter(
            api,
            self.post,
            random=runtime.random("volumes"),
            connectivity=self.connectivity,
            may_send=runtime.leadership.leads,
        )
        evictor = Evictor(
            api,
            self.post,
            random=runtime.random("evict"),
            connectivity=self.connectivity,
            now_ns=runtime.now_ns,
            may_send=runtime.leadership.leads,
        )
        return binder, volumes, evictor

    def _make_policy_feed(self, api: ApiClient) -> tuple[LastGoodStore, PolicyFeed]:
        """The source of policies and the store of the last known good ones."""
        settings, runtime = self.settings, self.runtime
        last_good = LastGoodStore(
            api,
            settings.last_good,
            random=runtime.random("last good"),
            connectivity=self.connectivity,
            report=lambda command: self._dispatcher.dispatch([command]),
        )
        feed = PolicyFeed(
            f"ConfigMap {settings.policies}",
            f"ConfigMap {settings.last_good}",
            runtime.compile_texts,
            self.post,
            read_last_good=self._read_last_good,
            params=settings.params,
        )
        return last_good, feed

    # ── called from outside ───────────────────────────────────────────────────────────────────────────────────────────────

    def post(self, event: Event) -> None:
        """Queues an event. Call on the loop's thread."""
        self._inbox.append(event)
        self._wake.set()

    async def _read_last_good(self) -> Mapping[str, str]:
        texts = await self.last_good.read()
        if self.last_good.states:
            self.post(SavedPolicyStatesLoaded(self.last_good.states))
        return texts

    def request_stop(self, outcome: ExitReason = ExitReason.STOPPED) -> None:
        """Stops deciding, waits for binds in flight, releases the Lease and exits."""
        self.stopping = True
        self._request_end(outcome)

    def report_check_delay(self, message: str) -> None:
        """Logs and reports that an edit of the policies has no effect yet."""
        self._dispatcher.dispatch([ReportPolicyEvent("Warning", "PolicyCheckDelayed", message)])

    @property
    def leadership_status(self) -> LeadershipStatus:
        return self.runtime.leadership.status

    @property
    def unavailable_reason(self) -> str | None:
        """Why this process has no policies and decisions to show; None where it leads and is synced."""
        if self.leadership_status is LeadershipStatus.FOLLOWING:
            holder = self.runtime.leadership.holder
            leader = f"the leader is {holder}" if holder else "the leader is unknown"
            return f"standby process without policies, pods and decisions; {leader}"
        return None if self.synced else "the first lists are not complete yet"

    @property
    def synced(self) -> bool:
        return self.scheduler.synced

    # ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> ExitReason:
        """Acquires the leadership, leads and shuts down. Any exception is a bug."""
        leadership = self.runtime.leadership
        await leadership.start(self._on_leadership_change)
        nothing_in_flight = False  # after an exception the Lease is not released and expires by itself
        try:
            while leadership.status is LeadershipStatus.FOLLOWING and self._exit_reason is None:
                self._wake.clear()
                self.runtime.beat()
                await self._sleep_until_woken(1.0)
            if self._exit_reason is None:
                in_flight = await self._lead()
                # After a lost leadership the binder's count is not reliable: its binds may still be executed.
                nothing_in_flight = in_flight == 0 and self._exit_reason is not ExitReason.LOST_LEASE
        finally:
            await leadership.stop(nothing_in_flight=nothing_in_flight)
        assert self._exit_reason is not None, "ended without an exit reason"
        return self._exit_reason

    async def _lead(self) -> int:
        """Runs everything until an end is requested. Returns the number of binds still in flight."""
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(work, name=name) for name, work in self._background_tasks().items()
        ]
        deciding = asyncio.create_task(self._decide_in_slices(), name="core")
        ending = asyncio.create_task(self._ended.wait(), name="end")
        everything: list[asyncio.Task[Any]] = [*tasks, deciding, ending]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            self._raise_task_errors([*tasks, deciding])
            if self._exit_reason in (ExitReason.STOPPED, ExitReason.CLOCK_STEPPED):
                await self._drain()
            return self.binder.in_flight
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    def _background_tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        parts: dict[str, Coroutine[Any, Any, None]] = {}
        parts |= self._reflector_set.add_cluster_reflectors(
            (
                NAMESPACES,
                self.extender_caller.node_resource,
                PODS,
                DISRUPTION_BUDGETS,
                *POD_SETS,
                *STORAGE_RESOURCES,
                *DEVICE_RESOURCES,
            )
        )
        watched = config_map(self.settings.policies.namespace, self.settings.policies.name)
        for kind in self.settings.node_objects:
            # Deciding does not wait for these: a kind that is not served must not keep every pod pending.
            resource = node_objects(kind.kind, group=kind.group, version=kind.version, resource=kind.resource)
            parts[resource.kind] = self._reflector_set.add_reflector(resource, self.post, lambda: None)
        parts["ConfigMap"] = self._reflector_set.add_reflector(
            watched, self.policy_feed.on_config_map, self.policy_feed.on_listed
        )
        parts["policies"] = self.policy_feed.run()
        parts["last good"] = self.last_good.run()
        parts["binder"] = self.binder.run()
        parts["volumes"] = self.prebind_writer.run()
        parts["evictor"] = self.evictor.run()
        parts["consultant"] = self.extender_caller.run()
        parts["reporter"] = self.reporter.run()
        parts["samples"] = self.metric_monitor.run()
        return parts

    def _raise_task_errors(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is None:
                assert not task.done() or self._exit_reason is not None, (
                    f"{task.get_name()} ended unexpectedly"
                )
                continue
            if isinstance(error, BaseExceptionGroup) and error.split(LostLeadership)[1] is None:
                self._request_end(ExitReason.LOST_LEASE)
                continue
            raise error

    def _request_end(self, outcome: ExitReason) -> None:
        if self._exit_reason is None:
            self._exit_reason = outcome
        self._ended.set()
        self._wake.set()

    def _on_leadership_change(self, status: LeadershipStatus) -> None:
        if status is LeadershipStatus.LOST and not self.stopping:
            self._request_end(ExitReason.LOST_LEASE)
        self._wake.set()

    def _cached_version(self, uid: str) -> UnboundPodVersion | None:
        pod = self.scheduler.cache.pods.get(PodUid(uid))
        return None if pod is None or pod.node is not None else UnboundPodVersion(pod.version, pod.generation)

    # ── handle and decide ──────────────────────────────────────────────────────────────────────────────────────────

    async def _decide_in_slices(self) -> None:
        while True:
            self._wake.clear()
            self.runtime.beat()
            more = self._run_slice()
            if self.scheduler.startup_error is not None and not self.stopping:
                self._request_end(ExitReason.NOTHING_TO_RUN)
                return
            if more:
                await asyncio.sleep(0)  # responses and watches first
            else:
                await self._sleep_until_woken(self._idle_timeout_s())

    def _run_slice(self) -> bool:
        """Handles events, then decides, for a few milliseconds. True: there is more work now."""
        runtime, scheduler = self.runtime, self.scheduler
        ends_s = runtime.monotonic_s() + SLICE_S
        for step in range(STEPS_PER_SLICE_MAX):
            reads_clock = scheduler.attempt_in_progress or step % STEPS_PER_CLOCK_READ == 0
            if reads_clock and step and runtime.monotonic_s() >= ends_s:
                return True
            now_ns = runtime.now_ns()
            if scheduler.attempt_in_progress and not self._may_decide():
                self._dispatcher.dispatch(scheduler.requeue_current_attempt(now_ns))
                self._decision_elapsed_s = 0.0
            elif self._inbox and not scheduler.attempt_in_progress:
                self._dispatcher.dispatch(scheduler.handle(self._inbox.popleft(), now_ns))
            elif self._may_decide() and scheduler.ready(now_ns):
                began_s = runtime.monotonic_s()
                self._dispatcher.dispatch(scheduler.decide(now_ns))
                self._decision_elapsed_s += runtime.monotonic_s() - began_s
                if not scheduler.attempt_in_progress:
                    if runtime.observe_decision_s is not None:
                        runtime.observe_decision_s(self._decision_elapsed_s)
                    self._decision_elapsed_s = 0.0
            else:
                return False
        return True

    def _may_decide(self) -> bool:
        return not self.stopping and self.runtime.leadership.may_decide()

    def _idle_timeout_s(self) -> float:
        """How long there is no work unless an event arrives."""
        at_ns, decides_in_s = self._dispatcher.wake_at_ns, self.runtime.leadership.decides_in_s()
        waits_s = [1.0, decides_in_s]
        if at_ns is not None:
            waits_s.append((at_ns - self.runtime.now_ns()) / 1e9)
        # A time in the past was not ready for another reason, such as binds in flight; their responses wake the loop.
        return max(0.001, min(wait_s for wait_s in waits_s if wait_s > 0))

    async def _sleep_until_woken(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _drain(self) -> None:
        """A clean stop: waits for binds, evictions and volume writes in flight, then for their events and conditions."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self.settings.stop_wait_s
        while (
            self.binder.in_flight or self.evictor.in_flight or self.prebind_writer.in_flight
        ) and loop.time() < ends_s:
            await asyncio.sleep(0.02)
        ends_s = min(ends_s, loop.time() + REPORTS_FLUSH_TIMEOUT_S)
        while (
            self._inbox or self.reporter.pending_writes or self.last_good.has_pending_write
        ) and loop.time() < ends_s:
            await asyncio.sleep(0.02)
        log.info(
            "stopped",
            extra={"binds_unanswered": self.binder.in_flight, "reports_unsent": self.reporter.pending_writes},
        )
