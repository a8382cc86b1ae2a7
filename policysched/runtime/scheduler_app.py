"""The scheduler composed from its parts: `policysched run` runs it, and the simulation drives it.

    reflectors ─┐                                        ┌─► binder   ─► BindAnswered ─┐
    policies   ─┼─► inbox ─► handle ─► decide ─► commands┼─► reporter                   │
    samples    ─┘     ▲      (one loop, in slices)       └─► last known good            │
                      └─────────────────────────────────────────────────────────────────┘

`daemon.app` has the parts that `policysched extender` shares. While another process leads, the reflectors read the cluster and hold
what they read. Once this process leads they release it to the core, and read what has changed, while it waits for requests that the
previous leader may still have in flight.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from policysched.config.settings import Settings
from policysched.daemon.app import DaemonApp, Runtime, Tasks
from policysched.daemon.extender_caller import ExtenderCaller, extender_capabilities
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.metric_monitor import FIRST_SAMPLES_TIMEOUT_S
from policysched.daemon.process import ExitReason
from policysched.daemon.team_policy_feed import TeamPolicyFeed
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.extender.client import ExtenderClient
from policysched.kube.leader_election import LeadershipStatus
from policysched.kube.watch.resources import node_objects, team_config_maps
from policysched.kube.write.bind import LostLeadership
from policysched.kube.write.events_and_conditions import UnboundPodVersion
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S
from policysched.model.identifiers import PodUid
from policysched.recording.recorder import RecordedScheduler, Recorder
from policysched.runtime.clean_stop import CleanStop
from policysched.runtime.command_dispatcher import CommandDispatcher
from policysched.runtime.decision_writers import DecisionWriters
from policysched.runtime.leadership import Leadership
from policysched.runtime.watched_resources import cluster_resources
from policysched.scheduler.blame import RaisedFor
from policysched.scheduler.commands import Command
from policysched.scheduler.events import Event, PoliciesUpdated
from policysched.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

CATCH_UP_S = 1.0  # after a stall, for the watches to deliver what they missed
SLICE_S = 0.005
STEPS_PER_CLOCK_READ = 4
STEPS_PER_SLICE_MAX = 256  # where the clock does not advance (a simulation)
PASSES_BETWEEN_SLICES = 16
"""Passes of the event loop, for the other tasks. A read, an event and a bind take several passes each, and would otherwise wait
for a slice in each of them. A pass with nothing to do takes a microsecond."""
REPORTS_FLUSH_TIMEOUT_S = 1.0  # for events and conditions, after the last decision: all pods wait


class SchedulerApp(DaemonApp):
    """Call `run` once. Until this process leads, only leader election and reflectors run. The observers get the duration of a decision, and
    of a bind until its outcome; `recorder` gets every call of the scheduler. `failed_objects` are those of the previous app.

    `rereads`: the next app has to read the cluster again, since an event or a decision raised because of an object."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        leadership: Leadership,
        *,
        extenders: Mapping[str, ExtenderClient] | None = None,
        observe_decision_s: Callable[[float], None] | None = None,
        observe_bind_s: Callable[[float], None] | None = None,
        recorder: Recorder | None = None,
        failed_objects: FailedObjects | None = None,
    ) -> None:
        self.settings = settings
        self.failed_objects = (failed_objects or FailedObjects(settings.permissions.owner)).begin()
        self.rereads = False
        self.leadership = leadership
        self._observe_decision_s = observe_decision_s
        make_scheduler = Scheduler if recorder is None else partial(RecordedScheduler, recorder)
        self.scheduler = make_scheduler(
            settings.limits,
            extender_capabilities(settings.extenders),
            permissions=settings.permissions,
            first_samples_s=FIRST_SAMPLES_TIMEOUT_S,
            source_name_of=runtime.samples.source_name_for,
        )
        super().__init__(
            settings,
            runtime,
            metrics=self.scheduler.metrics,
            nodes=lambda: self.scheduler.cache.nodes,
            may_write=leadership.may_write,
            queued_binds=lambda: self.binder.queued,
            unbound_version=self._cached_version,
        )
        writers = DecisionWriters(
            runtime,
            leadership,
            self.connectivity,
            self.post,
            binding=settings.binding,
            fence=lambda: self._decision_fence,
            observe_bind_s=observe_bind_s,
        )
        self._writers = writers
        self.binder, self.prebind_writer = writers.binder, writers.prebind_writer
        self.evictor = writers.evictor
        self._clean_stop = CleanStop(
            writers.open_writes,
            self._queued_in,
            self._wake.set,
            timeout_s=settings.shutdown_timeout_s,
            settle_s=settings.binding.response_timeout_s + SERVER_TIMEOUT_S,
        )
        self.extender_caller = ExtenderCaller(extenders or {}, self._api, self.post)
        self.counted_names = CountedNames(self.scheduler.programs)
        assert self.last_good is not None, "the settings of `run` name a last known good ConfigMap"
        self.team_policy_feed = self._make_team_feed()
        self._dispatcher = CommandDispatcher(
            self.binder,
            self.prebind_writer,
            self.evictor,
            self.reporter,
            self.last_good,
            self.policy_feed,
            settings.policies,
            self.extender_caller,
            self.team_policy_feed,
        )
        self._decision_fence = self._next_fence = self._make_fence()
        self._decides_after_s = float("-inf")
        self._is_behind = True  # until a decision begins with an empty inbox
        self._decision_is_due = False
        self._ended: asyncio.Event = asyncio.Event()
        self._exit_reason: ExitReason | None = None
        self.stopping = False

    def _make_team_feed(self) -> TeamPolicyFeed | None:
        settings, check = self.settings, self.runtime.check_team_texts
        if settings.team_policies is None or check is None:
            return None
        return TeamPolicyFeed(
            settings.team_policies,
            settings.permissions,
            settings.source_name,
            check,
            lambda: self.policy_feed.texts,
            self.post,
        )

    def _deliver_policies(self, event: PoliciesUpdated) -> None:
        if self.team_policy_feed is None:
            self.post(event)
        else:
            self.team_policy_feed.on_operator_update(event)

    def _queued_in(self, admits: Callable[[str], bool]) -> int:
        """Commands without an outcome in these namespaces. An attempt in progress counts: it may still evict for a gang."""
        scheduler = self.scheduler
        is_begun = scheduler.attempt_in_progress or scheduler.attempt_paused
        return self._writers.in_flight_in(admits) + (is_begun and not self.rereads)

    # ── called from outside ───────────────────────────────────────────────────────────────────────────────────────────────

    def request_stop(self, outcome: ExitReason = ExitReason.STOPPED) -> None:
        """Finish what is under way, except in namespaces whose writes fail or hang; then release the Lease and exit."""
        self.stopping = True
        # After a step of the clock, the ages of samples and the time-outs are wrong.
        self._clean_stop.begin(decides=outcome is ExitReason.STOPPED and not self.rereads)
        self._request_end(outcome)

    def dispatch(self, commands: Iterable[Command]) -> None:
        self._dispatcher.dispatch(commands)

    @property
    def leadership_status(self) -> LeadershipStatus:
        return self.leadership.status

    @property
    def unavailable_reason(self) -> str | None:
        """Why this process has no policies and decisions to show; None where it leads and is synced."""
        if self.leadership_status is LeadershipStatus.FOLLOWING:
            holder = self.leadership.holder
            leader = f"the leader is {holder}" if holder else "the leader is unknown"
            return f"this replica does not lead and has no policies, pods or decisions; {leader}"
        return None if self.synced else "the first lists are not complete yet"

    @property
    def synced(self) -> bool:
        return self.scheduler.synced

    @property
    def standby_problem(self) -> str:
        """What a standby has not read yet; empty if it has all, or reads nothing."""
        reads = not self.settings.delay_cache_until_active
        is_standby = self.leadership_status is LeadershipStatus.FOLLOWING
        return self._reflector_set.problem if reads and is_standby else ""

    @property
    def has_listed(self) -> bool:
        return not self._reflector_set.problem

    # ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> ExitReason:
        """Acquires the leadership, leads and shuts down. Any exception is a bug."""
        leadership = self.leadership
        await leadership.start(self._on_leadership_change)
        nothing_in_flight = False  # after an exception the Lease is not released and expires by itself
        reading: list[asyncio.Task[None]] = []
        try:
            while leadership.status is LeadershipStatus.FOLLOWING and self._exit_reason is None:
                self._wake.clear()
                self.runtime.beat()
                if leadership.holder and not reading and not self.settings.delay_cache_until_active:
                    reading = _start(self._reading_tasks(holds=True))
                await self._sleep_until_woken(1.0)
                self._raise_task_errors(reading)
            if self._exit_reason is None:
                any_open = await self._lead(reading)
                # After a lost leadership this is not reliable: writes may still be executed.
                nothing_in_flight = not any_open and self._exit_reason is not ExitReason.LOST_LEASE
        finally:
            await _cancel(reading)
            await leadership.stop(nothing_in_flight=nothing_in_flight)
        assert self._exit_reason is not None, "ended without an exit reason"
        return self._exit_reason

    async def _lead(self, reading: list[asyncio.Task[None]]) -> bool:
        """Run all tasks until `_request_end`. `reading`: those that read the cluster already; none otherwise. Returns whether a
        write may still be carried out."""
        if reading:
            self._reflector_set.release()
        tasks = [*(reading or _start(self._reading_tasks(holds=False))), *_start(self._leading_tasks())]
        deciding = asyncio.create_task(self._decide_in_slices(), name="core")
        ending = asyncio.create_task(self._ended.wait(), name="end")
        everything: list[asyncio.Task[Any]] = [*tasks, deciding, ending]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            self._raise_task_errors([*tasks, deciding])
            if self._exit_reason in (ExitReason.STOPPED, ExitReason.CLOCK_STEPPED):
                await self._drain()
            return self._clean_stop.close()
        finally:
            await _cancel(everything)

    def _reading_tasks(self, *, holds: bool) -> Tasks:
        nodes, budget = self.extender_caller.node_resource, self.settings.limits.decision_budget
        resources = cluster_resources(nodes, budget, self.counted_names)
        parts = self._reflector_set.add_cluster_reflectors(resources, holds=holds)
        for kind in self.settings.node_objects:
            # Deciding does not wait for these: a kind that is not served must not keep every pod pending.
            resource = node_objects(kind.kind, group=kind.group, version=kind.version, resource=kind.resource)
            parts[resource.kind] = self._reflector_set.add_reflector(resource, self.post, lambda: None)
        return parts

    def _leading_tasks(self) -> Tasks:
        parts = self._policy_tasks()
        teams = self.team_policy_feed
        if teams is not None and self.settings.team_policies is not None:
            watched = team_config_maps(self.settings.team_policies.config_map)
            parts["team ConfigMaps"] = self._reflector_set.add_reflector(
                watched, teams.on_config_map, teams.on_listed
            )
            parts["team policies"] = teams.run()
        parts["binder"] = self.binder.run()
        parts["volumes"] = self.prebind_writer.run()
        parts["evictor"] = self.evictor.run()
        parts["consultant"] = self.extender_caller.run()
        parts |= self._report_tasks()
        return parts

    def _raise_task_errors(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is None:
                assert not task.done() or self._exit_reason is not None, (
                    f"{task.get_name()} ended unexpectedly"
                )
                continue
            if isinstance(error, RaisedFor):  # between two steps
                self._leave_out(None, error, self.runtime.now_ns())
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
            if self.rereads:
                return
            if more:
                await self._run_other_tasks()
            else:
                await self._sleep_until_woken(self._idle_timeout_s())

    async def _run_other_tasks(self) -> None:
        """Let responses, watches and writes proceed, for a slice's time at most. One pass where the clock does not advance."""
        began_s = self.runtime.monotonic_s()
        for _ in range(PASSES_BETWEEN_SLICES):
            await asyncio.sleep(0)
            if not 0.0 < self.runtime.monotonic_s() - began_s < SLICE_S:
                return

    def _run_slice(self) -> bool:
        """Handle events, then decide, for a few milliseconds. Returns whether there is more work now."""
        runtime, scheduler = self.runtime, self.scheduler
        # At the front: the events in the inbox are newer.
        self._inbox.extendleft(reversed(self.failed_objects.take_due(runtime.now_ns())))
        now_s = runtime.monotonic_s()
        ends_s = now_s + SLICE_S
        # Events that arrive faster than they are handled must not keep every pod waiting.
        decision_is_due, has_decided = self._decision_is_due, False
        self._decision_is_due = False
        for step in range(STEPS_PER_SLICE_MAX):
            if step and step % STEPS_PER_CLOCK_READ == 0:
                now_s = runtime.monotonic_s()
            if self.rereads:
                return False
            if now_s >= ends_s:
                self._decision_is_due = not has_decided and not self._is_behind
                return True
            now_ns = runtime.now_ns()
            is_begun = scheduler.attempt_in_progress or scheduler.attempt_paused
            if is_begun and not (self._may_decide() and self._decision_fence()):
                self._dispatcher.dispatch(scheduler.requeue_current_attempt(now_ns))
            elif self._inbox and not scheduler.attempt_in_progress and not decision_is_due:
                self._handle(self._inbox.popleft(), now_ns)
            elif self._may_decide() and scheduler.ready(now_ns):
                decision_is_due, has_decided = False, True
                self._is_behind = self._is_behind and bool(self._inbox)
                began_s = runtime.monotonic_s()
                if not self._dispatch_step(partial(scheduler.decide, now_ns), None, now_ns):
                    return False
                now_s = runtime.monotonic_s()
                attempt_ns = scheduler.account_time(round((now_s - began_s) * 1e9))
                if attempt_ns is not None and self._observe_decision_s is not None:
                    self._observe_decision_s(attempt_ns / 1e9)
                if scheduler.only_overdrawn_left:  # so that the other tasks wait for one decision at most
                    return True
            elif decision_is_due:
                decision_is_due = False
            else:
                return False
        return True

    def _handle(self, event: Event, now_ns: int) -> None:
        """Apply the event, or the one that `FailedObjects` admits instead."""
        failed = self.failed_objects
        admitted = failed.admit(event, now_ns)
        if admitted is not None:
            self._dispatch_step(partial(self.scheduler.handle, admitted, now_ns), event, now_ns)
        if failed.untold and not self.rereads and self.synced and (policies := self.scheduler.programs()):
            self._dispatcher.dispatch(failed.take_reports(policies))

    def _dispatch_step(self, step: Callable[[], list[Command]], event: Event | None, now_ns: int) -> bool:
        """Returns false if the step raised. The state may be half changed then, so nothing more is decided or written from it."""
        try:
            commands = step()
        except Exception as error:  # noqa: BLE001  # raised again if nobody is to blame
            self._leave_out(event, error, now_ns)
            return False
        self._dispatcher.dispatch(commands)
        return True

    def _leave_out(self, event: Event | None, error: Exception, now_ns: int) -> None:
        if not self.failed_objects.note(event, error, now_ns, self.scheduler.cache.pods):
            raise error
        self.rereads = True
        self._clean_stop.begin(decides=False)
        self._request_end(ExitReason.STOPPED)

    def _make_fence(self) -> Callable[[], bool]:
        """A check that is false once this process stalls again. Binds, PreBinds and evictions keep their decision's (`fence`)."""
        leadership, stalls = self.leadership, self.leadership.stalls()
        return lambda: leadership.stalls() == stalls

    def _may_decide(self) -> bool:
        return self._clean_stop.may_decide and self.leadership.may_decide() and self._has_caught_up()

    def _has_caught_up(self) -> bool:
        """False for CATCH_UP_S after a stall: what happened meanwhile is read before the next decision, or bind after PreBind."""
        now_s = self.runtime.monotonic_s()
        if not self._next_fence():
            self._next_fence = self._make_fence()
            self._decides_after_s, self._is_behind = now_s + CATCH_UP_S, True
        if now_s < self._decides_after_s:
            return False
        self._decision_fence = self._next_fence
        return True

    def _idle_timeout_s(self) -> float:
        """Seconds until there may be work even if no event arrives."""
        at_ns, decides_in_s = self._dispatcher.wake_at_ns, self.leadership.decides_in_s()
        waits_s = [1.0, decides_in_s]
        if at_ns is not None:
            waits_s.append((at_ns - self.runtime.now_ns()) / 1e9)
        # A time in the past: something else blocks the decision, such as binds in flight; their responses wake the loop.
        return max(0.001, min(wait_s for wait_s in waits_s if wait_s > 0))

    async def _drain(self) -> None:
        """Stop cleanly: wait for open writes (`runtime.clean_stop`), then for their events and conditions."""
        await self._clean_stop.drain()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + min(self._clean_stop.left_s, REPORTS_FLUSH_TIMEOUT_S)
        while (
            (self._inbox and not self.rereads) or self.reporter.prompt_writes or self._has_unsaved_policies
        ) and loop.time() < ends_s:
            await asyncio.sleep(0.02)
        log.info(
            "stopped",
            extra={"binds_unanswered": self.binder.in_flight, "reports_unsent": self.reporter.pending_writes},
        )


def _start(works: Tasks) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(work, name=name) for name, work in works.items()]


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
