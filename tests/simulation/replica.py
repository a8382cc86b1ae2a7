"""One replica of the scheduler: the product's own composition, restarted whenever it exits.

Its requests pass through a network with faults. When it is killed, requests in flight still arrive;
its memory is lost.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Protocol

from policysched.config.settings import NamespacedName, Settings
from policysched.daemon.app import Runtime
from policysched.daemon.clock import NonDecreasingClock, wait_until_stepped
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.process import ExitReason
from policysched.kube.client.api import ApiClient
from policysched.kube.client.transport import (
    ApiRequest,
    ApiResponse,
    ApiStream,
    RequestNotSent,
    Transport,
    TransportError,
)
from policysched.kube.leader_election import STALL_S, LeaderElector, LeadershipStatus, LeaseSettings
from policysched.kube.watch.resources import decode_config_map
from policysched.kube.write.bind import BindSettings
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.lang.check.bundle import PolicyBundle
from policysched.policy_files.last_good_format import unpack_texts
from policysched.policy_files.source_set import POLICY_SUFFIX
from policysched.runtime.scheduler_app import CATCH_UP_S, SchedulerApp
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.faults import FaultInjector
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.commands import Bind, Prebind
from policysched.scheduler.limits import SchedulerLimits
from tests.inline import EventLoopLeaderElection
from tests.simulation.churn_teams import NO_PAUSES, TeamProfile
from tests.simulation.fake_extender import PEER, FakeExtender
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.safety_checker import SafetyChecker
from tests.simulation.server_faults import FailingServerTransport, ServerFaults
from tests.simulation.step_checker import StepChecker
from tests.simulation.virtual_time import PROCESS, Process

POLICIES = NamespacedName("kube-system", "policies")
LAST_GOOD = NamespacedName("kube-system", "policies-last-good")


class ReplicaWorld(Protocol):
    """The parts of the world that a replica uses."""

    server: ApiServer
    safety_checker: SafetyChecker
    profile: FaultProfile
    server_faults: ServerFaults

    @property
    def recovering(self) -> bool: ...
    def now_ns(self) -> int: ...
    def random_stream(self, name: str) -> Random: ...
    def fail(self, words: str) -> None: ...
    def log(self, words: str) -> None: ...
    def assumed(self, replica: "Replica", decision: Bind | Prebind) -> None: ...
    def bound(self, replica: "Replica", bind: Bind) -> None: ...
    def preparing(self, replica: "Replica", prepare: Prebind) -> None: ...
    def written(self, replica: "Replica", request: ApiRequest) -> None: ...
    async def check_texts(self, texts: Mapping[str, str], place: str) -> PolicyBundle: ...
    def samples(self, now_ns: Callable[[], int]) -> Any: ...
    def extender(self) -> FakeExtender: ...


class ProcessTransport:
    """A transport whose process can die or stand still: no new request leaves, requests in flight arrive.

    `connect_wait_s`: how long a write waits for a connection. `written` is called when it leaves.
    """

    def __init__(
        self,
        inner: Transport,
        connect_wait_s: Callable[[], float] = lambda: 0.0,
        written: Callable[[ApiRequest], None] = lambda _: None,
    ) -> None:
        self._inner = inner
        self._connect_wait_s = connect_wait_s
        self._written = written
        self._in_flight: set[asyncio.Future[ApiResponse]] = set()
        self.dead = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        wait_s = self._connect_wait_s() if request.method != "GET" else 0.0
        if wait_s:
            await asyncio.sleep(wait_s)
        if self.dead:
            raise TransportError("this process is dead")
        if request.may_write is not None:
            if not request.may_write():
                raise RequestNotSent(request)
            request = replace(request, may_write=None)
        self._written(request)
        # What has left does not stand still with the process.
        response = asyncio.create_task(self._send(request), context=Context())
        self._in_flight.add(response)
        response.add_done_callback(self._answered)
        return await asyncio.shield(response)

    async def _send(self, request: ApiRequest) -> ApiResponse:
        return await self._inner.request(request)

    def _answered(self, response: asyncio.Future[ApiResponse]) -> None:
        self._in_flight.discard(response)
        if not response.cancelled():
            response.exception()  # the sender may be gone; mark the exception as retrieved

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        return self._inner.stream(request)


class Replica:
    """`run` until cancelled. `app` is the current process."""

    def __init__(self, name: str, world: ReplicaWorld, faults: FaultInjector) -> None:
        self.name = name
        self._world = world
        self.faults = faults
        self._network = MemoryTransport(world.server, faults=faults)
        self._failing_transport = FailingServerTransport(self._network, world.server_faults)
        self._transport: Transport = self._failing_transport
        self._lease_transport = MemoryTransport(
            world.server, faults=None if world.profile.lease_connection_reliable else faults
        )
        self._failing_lease_transport = FailingServerTransport(self._lease_transport, world.server_faults)
        self._random = world.random_stream(f"{name}")
        self._connect_random = world.random_stream(f"{name}/connect")
        self._process = Process()
        self.connect_wait_s: Callable[[], float] = self._draw_connect_wait_s
        self.wall_offset_ns = 0
        self.caught_up_from_s = float("-inf")
        self._starts = 0
        self._process_transport, self._process_lease_transport = (
            ProcessTransport(self._transport),
            ProcessTransport(self._lease_transport),
        )
        self._task: asyncio.Task[ExitReason] | None = None
        self.app: SchedulerApp | None = None
        self.failed_objects = FailedObjects()
        self.expects_failed_objects = False
        self.exits = 0
        self.asked = 0

    # ── control ───────────────────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """Kill the process without a shutdown."""
        if self._task is None or self._task.done() or self.app is None:
            return
        self._world.log(f"{self.name} is killed")
        self._cut_transports()

    def stop(self) -> None:
        """Request a shutdown, as by SIGTERM."""
        if self.app is not None and self._task is not None and not self._task.done():
            self._world.log(f"{self.name} is to stop")
            self.app.request_stop()

    def cut_off(self, span_s: float) -> None:
        """Refuse all requests for a while."""
        self._world.log(f"{self.name} is cut off for {span_s:.1f} s")
        for transport in (self._network, self._lease_transport):
            transport.refuse_for(span_s)

    def freeze(self, span_s: float) -> None:
        """Stop the process for a while, as by SIGSTOP and SIGCONT."""
        process = self._process
        if process.frozen:
            return
        self._world.log(f"{self.name} is frozen for {span_s:.1f} s")
        process.freeze()
        loop = asyncio.get_running_loop()
        loop.call_later(span_s, self._thaw, process, loop.time(), context=Context())

    def _thaw(self, process: Process, since_s: float) -> None:
        if process.frozen:
            self._world.log(f"{self.name} goes on")
            now_s = asyncio.get_running_loop().time()
            # A process that ended while it was frozen has a successor, which did not stall.
            if process is self._process and now_s - since_s >= STALL_S:
                self.caught_up_from_s = now_s + CATCH_UP_S
            process.thaw()

    def take_descriptors(self, span_s: float) -> None:
        self._world.log(f"{self.name} has no file descriptors for {span_s:.1f} s")
        self._failing_transport.take_descriptors(span_s)
        self._failing_lease_transport.take_descriptors(span_s)

    def _draw_connect_wait_s(self) -> float:
        hostile = self._world.profile.hostile
        if hostile is None or self._world.recovering:
            return 0.0
        waits = self._connect_random.random() < hostile.connect_wait_share
        return self._connect_random.random() * hostile.connect_wait_s if waits else 0.0

    def _cut_transports(self) -> None:
        self._process_transport.dead = self._process_lease_transport.dead = True
        if self._task is not None:
            if self.app is not None and not self._task.done():
                self._mark_gangs_disturbed(self.app)
            self._task.cancel()
        self._thaw(self._process, float("inf"))  # a process that stands still can be killed

    @property
    def leads(self) -> bool:
        return self.app is not None and self.app.leadership_status is LeadershipStatus.LEADING

    @property
    def may_have_lost_reports(self) -> bool:
        """Whether an event or condition can be missing because a process exited or gave up a write."""
        if self.exits or self.app is None:
            return bool(self.exits)
        counts = self.app.reporter.counts
        return bool(counts.failed or counts.dropped)

    # ── processes ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        try:
            while True:
                await self._run_once()
                await asyncio.sleep(self._random.uniform(0.2, 2.0))
        finally:
            self._cut_transports()
            if self._task is not None:
                await asyncio.gather(self._task, return_exceptions=True)

    async def _run_once(self) -> None:
        self._starts += 1
        identity = f"{self.name}-{self._starts}"
        self._process = Process()
        self.caught_up_from_s = float("-inf")
        self._process_transport = ProcessTransport(
            self._transport, lambda: self.connect_wait_s(), partial(self._world.written, self)
        )
        self._process_lease_transport = ProcessTransport(self._failing_lease_transport)
        kept = self._kept_policies()
        app = self.app = self._app(identity)
        listening = StepChecker(
            app,
            self._world,
            self.name,
            identity,
            partial(self._world.assumed, self),
            partial(self._world.bound, self),
            partial(self._world.preparing, self),
            kept,
        )
        context = copy_context()
        context.run(PROCESS.set, self._process)
        self._task = asyncio.create_task(self._run_app(app), name=identity, context=context)
        self._world.log(f"{identity} starts")
        await asyncio.wait((self._task,))
        self.asked += listening.oracle_checker.comparisons
        if self._task.cancelled():
            self.exits += 1
            self.failed_objects = FailedObjects()
            return
        error = self._task.exception()
        if error is not None:
            for line in traceback.format_exception(error):
                self._world.log(line.rstrip())
            self._world.fail(f"{identity} crashed: {error!r}")
            raise error
        outcome = self._task.result()
        if app.rereads and not self.expects_failed_objects:
            self._world.fail(f"{identity}: the event of an object raised")
        if not app.rereads:
            self.failed_objects = FailedObjects()
        self._world.log(f"{identity} ended: {outcome.name}")
        self.exits += 1
        if outcome is not ExitReason.STOPPED or app.binder.in_flight:
            self._mark_gangs_disturbed(app)
        if outcome is ExitReason.NOTHING_TO_RUN and kept:
            self._world.fail(f"{identity} found nothing to run, and {kept} were saved")

    async def _run_app(self, app: SchedulerApp) -> ExitReason:
        """The app, and what `policysched run` does around it."""
        watching = asyncio.create_task(self._watch_clock(app))
        try:
            return await app.run()
        finally:
            watching.cancel()

    async def _watch_clock(self, app: SchedulerApp) -> None:
        await wait_until_stepped(self._clock)
        app.request_stop(ExitReason.CLOCK_STEPPED)

    def wall_ns(self) -> int:
        return self._world.now_ns() + self.wall_offset_ns

    def _app(self, identity: str) -> SchedulerApp:
        world, loop = self._world, asyncio.get_running_loop()
        self._clock = NonDecreasingClock(self.wall_ns, lambda: round(loop.time() * 1e9))
        duration_s = world.profile.lease_duration_s
        lease = LeaseSettings(
            lease_duration_s=duration_s,
            renew_deadline_s=duration_s * 2 / 3,
            retry_period_s=duration_s / 6,
            request_timeout_s=duration_s / 4,
        )
        elector = LeaderElector(
            ApiClient(self._process_lease_transport),
            lease,
            identity=identity,
            monotonic_s=loop.time,
            now_ns=world.now_ns,
            random=world.random_stream(f"{identity}/lease"),
        )
        settings = Settings(
            policies=POLICIES,
            last_good=LAST_GOOD,
            binding=BindSettings(concurrent_binds_max=8),
            reporting=ReporterSettings(concurrent_writes_max=3),
            extenders={PEER.name: PEER},
            permissions=world.permissions,
            limits=_limits(world.profile.teams),
        )
        runtime = Runtime(
            transport=self._process_transport,
            check_texts=world.check_texts,
            now_ns=self._clock.now_ns,
            monotonic_s=loop.time,
            random=lambda name: world.random_stream(f"{identity}/{name}"),
            identity=identity,
            samples=world.samples(self._clock.now_ns),
        )
        return SchedulerApp(
            settings,
            runtime,
            EventLoopLeaderElection(elector),
            extenders={PEER.name: world.extender()},
            failed_objects=self.failed_objects,
        )

    def _kept_policies(self) -> list[str]:
        """The names of the saved policies that are still valid."""
        store = self._world.server.store
        saved = store.get(
            self._world.server.kind("configmaps").stored_as, (LAST_GOOD.namespace, LAST_GOOD.name)
        )
        keys = [] if saved is None else sorted(unpack_texts(decode_config_map(saved.obj)))
        return [key.removesuffix(POLICY_SUFFIX) for key in keys if key.endswith(POLICY_SUFFIX)]

    def _mark_gangs_disturbed(self, app: SchedulerApp) -> None:
        """Binds in flight may or may not take effect, and no process follows them up."""
        for flight in app.scheduler._core.binds.in_flight.values():
            self._world.safety_checker.mark_disturbed(flight.pod.pod)


def _limits(teams: TeamProfile | None) -> SchedulerLimits:
    usual = SchedulerLimits(rejection_hold_s=10.0, rejection_hold_max_s=40.0, gang_piece_cost_max=NO_PAUSES)
    if teams is None:
        return usual
    return replace(
        usual,
        gang_piece_cost_max=teams.gang_piece_cost_max,
        gang_piece_cost_by_member=0,
        gang_head_start_cost=teams.gang_head_start_cost,
    )


__all__ = ["LAST_GOOD", "POLICIES", "Replica"]
