"""The whole scheduler, put together: what `policysched run` runs and what the simulation drives.

    reflectors ─┐                                        ┌─► binder   ─► BindAnswered ─┐
    policies   ─┼─► inbox ─► handle ─► decide ─► commands┼─► reporter                   │
    samples    ─┘     ▲      (one loop, in slices)       └─► last known good            │
                      └─────────────────────────────────────────────────────────────────┘

Everything that is different in a simulation is in `Runtime`: the road to the server, clocks, chance, how policies are
compiled, who leads. A process that does not lead only watches the Lease; it reads the cluster once it leads, while it
waits for what the leader before it may still have under way.
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
from policysched.daemon.compiling import Compile
from policysched.daemon.consultant import Consultant, terms_of
from policysched.daemon.policy_feed import LastGood, PolicyFeed
from policysched.daemon.reflectors import Mirror
from policysched.daemon.sampler import FIRST_SAMPLES_S, Sampler
from policysched.kube.client.api import Api
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import Transport
from policysched.kube.extender.client import ExtenderClient
from policysched.kube.lease import Standing
from policysched.kube.watch.resources import (
    BUDGETS,
    DEVICES,
    NAMESPACES,
    POD_SETS,
    PODS,
    STORAGE,
    config_map,
    node_objects,
)
from policysched.kube.write.bind import Binder, LostLeadership
from policysched.kube.write.evict import Evictor
from policysched.kube.write.prebind import PreparationWriter
from policysched.kube.write.report import Reporter, Shown
from policysched.metric_sources.sources import Sources
from policysched.model.objects import PodUid
from policysched.runtime.command_dispatcher import Carrier
from policysched.runtime.leadership import Leadership
from policysched.scheduler.events import Event, StatesKept
from policysched.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

SLICE_S = 0.005
STEPS_BETWEEN_CLOCKS = 4
STEPS_A_SLICE_MAX = 256
"""Where the clock stands still (a simulation), a slice ends by count."""

REPORTS_WAIT_S = 3.0
"""How long a stop waits for words that are still to be written, once the binds are answered."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the world is made of. `random` gives the stream of dice of that name. The observers get how long one
    decision, or one bind until its outcome, took; `beat` is called at least once a second by a loop that lives."""

    transport: Transport
    leadership: Leadership
    compile_texts: Compile
    now_ns: Callable[[], int]
    monotonic_s: Callable[[], float]
    random: Callable[[str], Random]
    identity: str
    samples: Sources = field(default_factory=Sources)
    extenders: Mapping[str, ExtenderClient] = field(default_factory=dict)
    observe_decision_s: Callable[[float], None] | None = None
    observe_bind_s: Callable[[float], None] | None = None
    beat: Callable[[], None] = field(default=lambda: None)


class Outcome(Enum):
    """Why `run` ended. The value is the exit code."""

    STOPPED = 0
    LOST_LEASE = 1
    NOTHING_TO_RUN = 3
    CLOCK_SET_BACK = 4


class SchedulerApp:
    """`run` once. Until it leads, only the leadership is at work."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self.settings = settings
        self.runtime = runtime
        self.scheduler = Scheduler(
            settings.limits,
            terms_of(settings.extenders),
            first_samples_s=FIRST_SAMPLES_S,
            source_of=runtime.samples.name_for,
        )
        self.connectivity = Connectivity(runtime.monotonic_s)
        api = Api(runtime.transport)
        self._mirror = Mirror(
            api,
            self.post,
            random=runtime.random,
            connectivity=self.connectivity,
            settings=settings.reflecting,
        )
        self.malformed, self.reflectors = self._mirror.malformed, self._mirror.reflectors
        self.binder, self.volumes, self.evictor = self._senders(api)
        self.reporter = Reporter(
            api,
            instance=runtime.identity,
            now_ns=runtime.now_ns,
            random=runtime.random("report"),
            binds_waiting=lambda: self.binder.waiting,
            shown=self._shown,
            settings=settings.reporting,
        )
        self.last_good, self.feed = self._policy_sources(api)
        self.consultant = Consultant(runtime.extenders, api, self.post)
        self._carrier = Carrier(
            self.binder,
            self.volumes,
            self.evictor,
            self.reporter,
            self.last_good,
            self.feed,
            settings.policies,
            self.consultant,
        )
        self.sampler = Sampler(
            runtime.samples,
            wanted=self.scheduler.metrics,
            nodes=lambda: self.scheduler.cache.nodes,
            deliver=self.post,
            report=lambda command: self._carrier.carry_out([command]),
        )
        self._inbox: deque[Event] = deque()
        self._thought_s = 0.0  # on the decision that is under way
        self._wake = asyncio.Event()
        self._ended: asyncio.Event = asyncio.Event()
        self._outcome: Outcome | None = None
        self.stopping = False

    def _senders(self, api: Api) -> tuple[Binder, PreparationWriter, Evictor]:
        """Those who change pods, claims and volumes: only while this process leads."""
        settings, runtime = self.settings, self.runtime
        binder = Binder(
            api,
            self.post,
            random=runtime.random("bind"),
            connectivity=self.connectivity,
            settings=settings.binding,
            may_send=runtime.leadership.leads,
            observe_s=runtime.observe_bind_s,
        )
        volumes = PreparationWriter(
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

    def _policy_sources(self, api: Api) -> tuple[LastGood, PolicyFeed]:
        """Where policies come from, and where the last known good ones are kept."""
        settings, runtime = self.settings, self.runtime
        last_good = LastGood(
            api, settings.last_good, random=runtime.random("last good"), connectivity=self.connectivity
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

    # ── from outside ───────────────────────────────────────────────────────────────────────────────────────────────

    def post(self, event: Event) -> None:
        """Something happened. In the loop's own thread."""
        self._inbox.append(event)
        self._wake.set()

    async def _read_last_good(self) -> Mapping[str, str]:
        texts = await self.last_good.read()
        if self.last_good.states:
            self.post(StatesKept(self.last_good.states))
        return texts

    def request_stop(self, outcome: Outcome = Outcome.STOPPED) -> None:
        """Decide nothing more, wait for the binds under way, give up the Lease, end."""
        self.stopping = True
        self._end(outcome)

    @property
    def standing(self) -> Standing:
        return self.runtime.leadership.standing

    @property
    def note(self) -> str | None:
        """Why this process can say little of policies and decisions; None where it leads and has the cluster."""
        if self.standing is Standing.FOLLOWING:
            leads = self.runtime.leadership.holder or "nobody that is known"
            return f"this process stands by and knows no policies, pods or decisions; {leads} leads"
        return None if self.synced else "the first lists are not in yet"

    @property
    def synced(self) -> bool:
        return self.scheduler.synced

    # ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Outcome:
        """From striving for the leadership to its end. Raises what is a bug of ours."""
        leadership = self.runtime.leadership
        await leadership.start(self._standing_changed)
        nothing_in_flight = False  # so it stays where something breaks: then the Lease is left to expire
        try:
            while leadership.standing is Standing.FOLLOWING and self._outcome is None:
                self._wake.clear()
                self.runtime.beat()
                await self._sleep_until_woken(1.0)
            if self._outcome is None:
                in_flight = await self._lead()
                # A leadership that was lost took the binder's count with it: its binds may still be carried out.
                nothing_in_flight = in_flight == 0 and self._outcome is not Outcome.LOST_LEASE
        finally:
            await leadership.stop(nothing_in_flight=nothing_in_flight)
        assert self._outcome is not None, "ended for no reason"
        return self._outcome

    async def _lead(self) -> int:
        """Run everything until the end is asked for. Answers how many binds are still unanswered then."""
        tasks: list[asyncio.Task[None]] = [
            asyncio.create_task(work, name=name) for name, work in self._parts().items()
        ]
        deciding = asyncio.create_task(self._decide_in_slices(), name="core")
        ending = asyncio.create_task(self._ended.wait(), name="end")
        everything: list[asyncio.Task[Any]] = [*tasks, deciding, ending]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
            self._raise_what_broke([*tasks, deciding])
            if self._outcome in (Outcome.STOPPED, Outcome.CLOCK_SET_BACK):
                await self._finish()
            return self.binder.in_flight
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    def _parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        parts: dict[str, Coroutine[Any, Any, None]] = {}
        parts |= self._mirror.cluster(
            (NAMESPACES, self.consultant.nodes, PODS, BUDGETS, *POD_SETS, *STORAGE, *DEVICES)
        )
        watched = config_map(self.settings.policies.namespace, self.settings.policies.name)
        for one in self.settings.node_objects:
            # Not among what deciding waits for: a kind that is not served must not keep everything pending.
            found = node_objects(one.kind, group=one.group, version=one.version, resource=one.resource)
            parts[found.kind] = self._mirror.watch(found, self.post, lambda: None)
        parts["ConfigMap"] = self._mirror.watch(watched, self.feed.take, self.feed.listed)
        parts["policies"] = self.feed.run()
        parts["last good"] = self.last_good.run()
        parts["binder"] = self.binder.run()
        parts["volumes"] = self.volumes.run()
        parts["evictor"] = self.evictor.run()
        parts["consultant"] = self.consultant.run()
        parts["reporter"] = self.reporter.run()
        parts["samples"] = self.sampler.run()
        return parts

    def _raise_what_broke(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if error is None:
                assert not task.done() or self._outcome is not None, f"{task.get_name()} ended by itself"
                continue
            if isinstance(error, BaseExceptionGroup) and error.split(LostLeadership)[1] is None:
                self._end(Outcome.LOST_LEASE)
                continue
            raise error

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None:
            self._outcome = outcome
        self._ended.set()
        self._wake.set()

    def _standing_changed(self, standing: Standing) -> None:
        if standing is Standing.LOST and not self.stopping:
            self._end(Outcome.LOST_LEASE)
        self._wake.set()

    def _shown(self, uid: str) -> Shown | None:
        seen = self.scheduler.cache.pods.get(PodUid(uid))
        return None if seen is None or seen.node is not None else Shown(seen.version, seen.generation)

    # ── handle and decide ──────────────────────────────────────────────────────────────────────────────────────────

    async def _decide_in_slices(self) -> None:
        while True:
            self._wake.clear()
            self.runtime.beat()
            more = self._slice()
            if self.scheduler.fatal_at_start is not None and not self.stopping:
                self._end(Outcome.NOTHING_TO_RUN)
                return
            if more:
                await asyncio.sleep(0)  # answers and watches first
            else:
                await self._sleep_until_woken(self._idle_s())

    def _slice(self) -> bool:
        """Apply what arrived, then decide, for a few milliseconds. True: there is more to do right now."""
        runtime, scheduler = self.runtime, self.scheduler
        ends_s = runtime.monotonic_s() + SLICE_S
        for step in range(STEPS_A_SLICE_MAX):
            look = scheduler.thinking or step % STEPS_BETWEEN_CLOCKS == 0
            if look and step and runtime.monotonic_s() >= ends_s:
                return True
            now_ns = runtime.now_ns()
            if scheduler.thinking and not self._may_decide():
                self._carrier.carry_out(scheduler.put_back(now_ns))
                self._thought_s = 0.0
            elif self._inbox and not scheduler.thinking:
                self._carrier.carry_out(scheduler.handle(self._inbox.popleft(), now_ns))
            elif self._may_decide() and scheduler.ready(now_ns):
                began_s = runtime.monotonic_s()
                self._carrier.carry_out(scheduler.decide(now_ns))
                self._thought_s += runtime.monotonic_s() - began_s
                if not scheduler.thinking:
                    if runtime.observe_decision_s is not None:
                        runtime.observe_decision_s(self._thought_s)
                    self._thought_s = 0.0
            else:
                return False
        return True

    def _may_decide(self) -> bool:
        return not self.stopping and self.runtime.leadership.may_decide()

    def _idle_s(self) -> float:
        """How long nothing has to be done unless something happens."""
        at_ns, decides_in_s = self._carrier.wake_at_ns, self.runtime.leadership.decides_in_s()
        waits_s = [1.0, decides_in_s]
        if at_ns is not None:
            waits_s.append((at_ns - self.runtime.now_ns()) / 1e9)
        # What is past was not ready for another reason, such as binds under way, whose answers wake us.
        return max(0.001, min(wait_s for wait_s in waits_s if wait_s > 0))

    async def _sleep_until_woken(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _finish(self) -> None:
        """A clean stop: the binds, evictions and writes to volumes under way are answered, then what is to be said of them is said."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self.settings.stop_wait_s
        while (
            self.binder.in_flight or self.evictor.in_flight or self.volumes.in_flight
        ) and loop.time() < ends_s:
            await asyncio.sleep(0.02)
        ends_s = min(ends_s, loop.time() + REPORTS_WAIT_S)
        while (self._inbox or self.reporter.waiting or self.last_good.unwritten) and loop.time() < ends_s:
            await asyncio.sleep(0.02)
        log.info(
            "stopped", extra={"binds_unanswered": self.binder.in_flight, "unsaid": self.reporter.waiting}
        )
