"""`policysched extender` composed from its parts: watches cluster and policies, and serves the extender protocol.

    reflectors ─┐
    policies   ─┼─► inbox ─► ExtenderServer.handle    kube-scheduler ──POST──► HTTP thread ──► ExtenderHandlers ─┐
    samples    ─┘                  ▲                                                                              │
                                   └────────────────── one request at a time, between two events ◄───────────────┘

Every replica serves: nothing is decided here, so there is no Lease. What differs in a test is in `ExtenderRuntime`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from policysched.config.logs import write_log
from policysched.config.settings import NamespacedName
from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.metric_monitor import FIRST_SAMPLES_TIMEOUT_S, MetricMonitor
from policysched.daemon.policy_compiler import Compile
from policysched.daemon.policy_feed import PolicyFeed
from policysched.daemon.reflectors import ReflectorSet
from policysched.extender.settings import ExtenderSettings
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import Transport
from policysched.kube.watch.resources import NAMESPACES, NODES, POD_SETS, PODS, STORAGE_RESOURCES, config_map
from policysched.kube.write.bind import Binder
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.report_content import EventContent, EventObject
from policysched.metric_sources.router import SampleSourceRouter
from policysched.policy_files.folder import PolicyFolder
from policysched.scheduler import commands as c
from policysched.scheduler.events import Event, SavedPolicyStatesLoaded
from policysched.scheduler.extenders.extender_server import ExtenderServer

log = logging.getLogger(__name__)

EVENTS_PER_SLICE = 64
"""How many events are handled before the next request."""

EVENT_COMPONENT = "policysched-extender"


@dataclass(frozen=True, slots=True)
class ExtenderRuntime:
    """The environment of the app; see `scheduler_app.Runtime`."""

    transport: Transport
    compile_texts: Compile
    now_ns: Callable[[], int]
    monotonic_s: Callable[[], float]
    random: Callable[[str], Random]
    identity: str
    samples: SampleSourceRouter = field(default_factory=SampleSourceRouter)
    beat: Callable[[], None] = field(default=lambda: None)


class NoUsablePolicy(Exception):
    """There is no valid policy and no last known good one."""


class ExtenderApp:
    """`run` until cancelled. Raises UnusableFile for policy files that cannot be read."""

    def __init__(self, settings: ExtenderSettings, runtime: ExtenderRuntime) -> None:
        self.settings = settings
        self.runtime = runtime
        self.extender_server = ExtenderServer(
            first_samples_s=FIRST_SAMPLES_TIMEOUT_S,
            source_name_of=runtime.samples.source_name_for,
            bindable_scheduler_names=settings.scheduler_names,
        )
        self.connectivity = Connectivity(runtime.monotonic_s)
        api = ApiClient(runtime.transport)
        self.reflector_set = ReflectorSet(
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
            queued_binds=lambda: 0,
            unbound_version=lambda _: None,  # kube-scheduler writes the conditions of pods
            settings=settings.reporting,
        )
        self.last_good: LastGoodStore | None = None
        self._folder: PolicyFolder | None = None
        if isinstance(settings.source, NamespacedName):
            assert settings.last_good is not None, "a ConfigMap source needs a last known good ConfigMap"
            self.last_good = LastGoodStore(
                api,
                settings.last_good,
                random=runtime.random("last good"),
                connectivity=self.connectivity,
                report=lambda command: self._dispatch([command]),
            )
        self.policy_feed = PolicyFeed(
            settings.source_name,
            "" if settings.last_good is None else f"ConfigMap {settings.last_good}",
            runtime.compile_texts,
            self.post,
            read_last_good=self._read_last_good,
            params=settings.params,
        )
        if not isinstance(settings.source, NamespacedName):
            self._folder = PolicyFolder(settings.source, self.policy_feed.on_config_map)
        self.metric_monitor = MetricMonitor(
            runtime.samples,
            wanted=self.extender_server.metrics,
            nodes=self.extender_server.nodes,
            deliver=self.post,
            report=lambda command: self._dispatch([command]),
        )
        self._inbox: deque[Event] = deque()
        self._wake = asyncio.Event()

    def post(self, event: Event) -> None:
        """Queues an event. Call on the loop's thread."""
        self._inbox.append(event)
        self._wake.set()

    def report_check_delay(self, message: str) -> None:
        """Logs and reports that an edit of the policies has no effect yet."""
        self._dispatch([c.ReportPolicyEvent("Warning", "PolicyCheckDelayed", message)])

    async def run(self) -> None:
        """Raises NoUsablePolicy; any other exception is a bug."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in self._background_tasks().items():
                    group.create_task(work, name=name)
        except* NoUsablePolicy as group_of_one:
            raise group_of_one.exceptions[0] from None

    def _background_tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        parts = self.reflector_set.add_cluster_reflectors(
            (NAMESPACES, NODES, PODS, *POD_SETS, *STORAGE_RESOURCES)
        )
        if isinstance(self.settings.source, NamespacedName):
            watched = config_map(self.settings.source.namespace, self.settings.source.name)
            parts["ConfigMap"] = self.reflector_set.add_reflector(
                watched, self.policy_feed.on_config_map, self.policy_feed.on_listed
            )
            parts["reporter"] = self.reporter.run()
        if self.last_good is not None:
            parts["last good"] = self.last_good.run()
        if self._folder is not None:
            parts["files"] = self._folder.run()
        parts["policies"] = self.policy_feed.run()
        parts["samples"] = self.metric_monitor.run()
        parts["core"] = self._process_events()
        return parts

    async def _read_last_good(self) -> Mapping[str, str]:
        if self.last_good is None:
            return {}
        texts = await self.last_good.read()
        if self.last_good.states:
            self.post(SavedPolicyStatesLoaded(self.last_good.states))
        return texts

    async def _process_events(self) -> None:
        server, now_ns = self.extender_server, self.runtime.now_ns
        while True:
            self._wake.clear()
            self.runtime.beat()
            for _ in range(min(EVENTS_PER_SLICE, len(self._inbox))):
                self._dispatch(server.handle(self._inbox.popleft(), now_ns()))
            self._dispatch(server.advance(now_ns()))
            if server.startup_error is not None:
                raise NoUsablePolicy(server.startup_error)
            if self._inbox or server.busy:
                await asyncio.sleep(0)  # requests and watches first
                continue
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _dispatch(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            match command:
                case c.Log():
                    write_log(log, command)
                case c.ReportPolicyEvent(event_type, reason, message):
                    level = logging.WARNING if event_type == "Warning" else logging.INFO
                    log.log(level, message, extra={"reason": reason, "place": self.settings.source_name})
                    self._report(event_type, reason, message)
                case c.SavePolicyTexts(texts):
                    if self.last_good is not None:
                        self.last_good.save_policies(texts)
                case c.SavePolicyStates(texts):
                    if self.last_good is not None:
                        self.last_good.save_states(texts)
                case _:
                    raise AssertionError(f"the extender cannot execute {command}")

    def _report(self, event_type: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        source = self.settings.source
        if isinstance(source, NamespacedName):
            about = EventObject("ConfigMap", source.namespace, source.name, self.policy_feed.uid)
            self.reporter.record_event(
                EventContent(about, event_type, reason, "Reloading", message, EVENT_COMPONENT)
            )
