"""`policysched extender`, put together: the cluster and the policies are followed as by the scheduler, and asked.

    reflectors ─┐
    policies   ─┼─► inbox ─► Answering.handle         kube-scheduler ──POST──► HTTP thread ──► ExtenderDesk ─┐
    samples    ─┘                  ▲                                                                          │
                                   └──────────────── one question at a time, between two events ◄─────────────┘

Every replica answers: nothing is decided here, so there is no Lease. What differs in a test is in `ExtenderRuntime`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from policysched.config.logs import say
from policysched.config.settings import Place
from policysched.daemon.compiling import Compile
from policysched.daemon.policy_feed import LastGood, PolicyFeed
from policysched.daemon.reflectors import Mirror
from policysched.daemon.sampler import FIRST_SAMPLES_S, Sampler
from policysched.extender.settings import ExtenderSettings
from policysched.kube.client.api import Api
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import Transport
from policysched.kube.watch.resources import NAMESPACES, NODES, POD_SETS, PODS, STORAGE, config_map
from policysched.kube.write.bind import Binder
from policysched.kube.write.report import About, Reporter, Words
from policysched.metric_sources.sources import Sources
from policysched.policy_files.folder import PolicyFolder
from policysched.scheduler import commands as c
from policysched.scheduler.events import Event, StatesKept
from policysched.scheduler.extenders.extender_server import Answering

log = logging.getLogger(__name__)

SLICE_EVENTS = 64
"""How many events are applied before a question may be answered."""

OURSELVES = "policysched-extender"


@dataclass(frozen=True, slots=True)
class ExtenderRuntime:
    """What the world is made of, as `scheduler_app.Runtime`."""

    transport: Transport
    compile_texts: Compile
    now_ns: Callable[[], int]
    monotonic_s: Callable[[], float]
    random: Callable[[str], Random]
    identity: str
    samples: Sources = field(default_factory=Sources)
    beat: Callable[[], None] = field(default=lambda: None)


class NothingToRun(Exception):
    """No policy can be used, neither of those that were given nor a last known good one."""


class ExtenderApp:
    """`run` until cancelled. Raises UnusableFile where policy files are given that cannot be read."""

    def __init__(self, settings: ExtenderSettings, runtime: ExtenderRuntime) -> None:
        self.settings = settings
        self.runtime = runtime
        self.answering = Answering(first_samples_s=FIRST_SAMPLES_S, source_of=runtime.samples.name_for)
        self.connectivity = Connectivity(runtime.monotonic_s)
        api = Api(runtime.transport)
        self.mirror = Mirror(
            api,
            self.post,
            random=runtime.random,
            connectivity=self.connectivity,
            settings=settings.reflecting,
        )
        self.binder = Binder(api, self.post, random=runtime.random("bind"), connectivity=self.connectivity)
        self.reporter = Reporter(
            api,
            instance=runtime.identity,
            now_ns=runtime.now_ns,
            random=runtime.random("report"),
            binds_waiting=lambda: 0,
            shown=lambda _: None,  # conditions of pods are kube-scheduler's
            settings=settings.reporting,
        )
        self._last_good: LastGood | None = None
        self._folder: PolicyFolder | None = None
        if isinstance(settings.source, Place):
            assert settings.last_good is not None, "a ConfigMap has its last known good"
            self._last_good = LastGood(
                api, settings.last_good, random=runtime.random("last good"), connectivity=self.connectivity
            )
        self.feed = PolicyFeed(
            settings.place,
            "" if settings.last_good is None else f"ConfigMap {settings.last_good}",
            runtime.compile_texts,
            self.post,
            read_last_good=self._read_last_good,
            params=settings.params,
        )
        if not isinstance(settings.source, Place):
            self._folder = PolicyFolder(settings.source, self.feed.take)
        self.sampler = Sampler(
            runtime.samples,
            wanted=self.answering.metrics,
            nodes=self.answering.nodes,
            deliver=self.post,
            report=lambda command: self._carry_out([command]),
        )
        self._inbox: deque[Event] = deque()
        self._wake = asyncio.Event()

    def post(self, event: Event) -> None:
        """Something happened. In the loop's own thread."""
        self._inbox.append(event)
        self._wake.set()

    async def run(self) -> None:
        """Raises NothingToRun, and what is a bug of ours."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in self._parts().items():
                    group.create_task(work, name=name)
        except* NothingToRun as group_of_one:
            raise group_of_one.exceptions[0] from None

    def _parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        parts = self.mirror.cluster((NAMESPACES, NODES, PODS, *POD_SETS, *STORAGE))
        if isinstance(self.settings.source, Place):
            watched = config_map(self.settings.source.namespace, self.settings.source.name)
            parts["ConfigMap"] = self.mirror.watch(watched, self.feed.take, self.feed.listed)
            parts["reporter"] = self.reporter.run()
        if self._last_good is not None:
            parts["last good"] = self._last_good.run()
        if self._folder is not None:
            parts["files"] = self._folder.run()
        parts["policies"] = self.feed.run()
        parts["samples"] = self.sampler.run()
        parts["core"] = self._follow()
        return parts

    async def _read_last_good(self) -> Mapping[str, str]:
        if self._last_good is None:
            return {}
        texts = await self._last_good.read()
        if self._last_good.states:
            self.post(StatesKept(self._last_good.states))
        return texts

    async def _follow(self) -> None:
        answering, now_ns = self.answering, self.runtime.now_ns
        while True:
            self._wake.clear()
            self.runtime.beat()
            for _ in range(min(SLICE_EVENTS, len(self._inbox))):
                self._carry_out(answering.handle(self._inbox.popleft(), now_ns()))
            self._carry_out(answering.advance(now_ns()))
            if answering.fatal_at_start is not None:
                raise NothingToRun(answering.fatal_at_start)
            if self._inbox or answering.busy:
                await asyncio.sleep(0)  # questions and watches first
                continue
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _carry_out(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            match command:
                case c.Log():
                    say(log, command)
                case c.ReportPolicies(event_type, reason, message):
                    level = logging.WARNING if event_type == "Warning" else logging.INFO
                    log.log(level, message, extra={"reason": reason, "place": self.settings.place})
                    self._report(event_type, reason, message)
                case c.KeepPolicies(texts):
                    if self._last_good is not None:
                        self._last_good.keep(texts)
                case c.KeepStates(texts):
                    if self._last_good is not None:
                        self._last_good.keep_states(texts)
                case _:
                    raise AssertionError(f"nothing here asks for {command}")

    def _report(self, event_type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        source = self.settings.source
        if isinstance(source, Place):
            about = About("ConfigMap", source.namespace, source.name, self.feed.uid)
            self.reporter.say(Words(about, event_type, reason, "Reloading", message, OURSELVES))
