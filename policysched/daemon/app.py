"""What the apps of `run` and `extender` are both composed of: reflectors, policies, samples and reports around one inbox.

Everything that differs in a test or a simulation is in `Runtime`. What each app adds: `runtime.scheduler_app` decides and
writes, `extender.extender_app` answers requests.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from policysched.config.settings import DaemonSettings, NamespacedName
from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.metric_monitor import MetricMonitor
from policysched.daemon.policy_checker import CheckTeamTexts, CheckTexts
from policysched.daemon.policy_feed import PolicyFeed
from policysched.daemon.reflectors import ReflectorSet
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import Transport
from policysched.kube.watch.large_objects import RunBeside
from policysched.kube.watch.resources import config_map
from policysched.kube.write.events_and_conditions import Reporter, UnboundPodVersion
from policysched.metric_sources.router import SampleSourceRouter
from policysched.metric_sources.source import DeclaredMetrics, Nodes
from policysched.policy_files.folder import PolicyFolder
from policysched.scheduler.commands import Command, ReportPolicyEvent
from policysched.scheduler.events import Event, PoliciesUpdated, SavedPolicyStatesLoaded

Tasks = dict[str, Coroutine[Any, Any, None]]
"""Coroutines that run until cancelled, by name."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The environment of an app. `random` returns the random stream of a name; a live loop calls `beat` at least once a
    second. `check_team_texts` is for settings with `team_policies`. `run_beside` decodes large objects and compresses
    texts; None: the loop does."""

    transport: Transport
    check_texts: CheckTexts
    now_ns: Callable[[], int]
    monotonic_s: Callable[[], float]
    random: Callable[[str], Random]
    identity: str
    samples: SampleSourceRouter = field(default_factory=SampleSourceRouter)
    check_team_texts: CheckTeamTexts | None = None
    beat: Callable[[], None] = field(default=lambda: None)
    run_beside: RunBeside | None = None


class DaemonApp(ABC):
    """Raises UnusableFile for policy files that cannot be read. `may_write`, `queued_binds` and `unbound_version` are for an
    app that binds: whether it leads, and what holds back or invalidates a report."""

    def __init__(
        self,
        settings: DaemonSettings,
        runtime: Runtime,
        *,
        metrics: Callable[[], DeclaredMetrics],
        nodes: Callable[[], Nodes],
        may_write: Callable[[], bool] | None = None,
        queued_binds: Callable[[], int] = lambda: 0,
        unbound_version: Callable[[str], UnboundPodVersion | None] = lambda _: None,
    ) -> None:
        self.runtime = runtime
        self.connectivity = Connectivity(runtime.monotonic_s)
        self._api = api = ApiClient(runtime.transport, may_write=may_write)
        self._reflector_set = ReflectorSet(
            api,
            self.post,
            random=runtime.random,
            connectivity=self.connectivity,
            settings=settings.reflecting,
            run_beside=runtime.run_beside,
        )
        self.malformed, self.reflectors = self._reflector_set.malformed, self._reflector_set.reflectors
        self.reporter = Reporter(
            api,
            instance=runtime.identity,
            now_ns=runtime.now_ns,
            random=runtime.random("report"),
            queued_binds=queued_binds,
            unbound_version=unbound_version,
            settings=settings.reporting,
        )
        self.last_good = (
            None
            if settings.last_good is None
            else LastGoodStore(
                api,
                settings.last_good,
                random=runtime.random("last good"),
                connectivity=self.connectivity,
                report=lambda command: self.dispatch([command]),
                run_beside=runtime.run_beside,
                owner_of=settings.permissions.owner,
            )
        )
        self.policy_feed = PolicyFeed(
            settings.source_name,
            "" if settings.last_good is None else f"ConfigMap {settings.last_good}",
            runtime.check_texts,
            self._deliver_policies,
            read_last_good=self._read_last_good,
            params=settings.params,
            is_elsewhere=lambda policy: settings.permissions.owner(policy) is not None,
        )
        self._policies = (
            settings.policies
            if isinstance(settings.policies, NamespacedName)
            else PolicyFolder(settings.policies, self.policy_feed.on_config_map)
        )
        self.metric_monitor = MetricMonitor(
            runtime.samples,
            wanted=metrics,
            nodes=nodes,
            deliver=self.post,
            report=lambda command: self.dispatch([command]),
        )
        self._inbox: deque[Event] = deque()
        self._wake = asyncio.Event()

    @abstractmethod
    def dispatch(self, commands: Iterable[Command]) -> None:
        """Executes the commands of the core, without waiting."""

    def post(self, event: Event) -> None:
        """Queues an event. Call on the loop's thread."""
        self._inbox.append(event)
        self._wake.set()

    def _deliver_policies(self, event: PoliciesUpdated) -> None:
        self.post(event)

    def report_check_delay(self, message: str) -> None:
        """Logs and reports that an edit of the policies has no effect yet."""
        self.dispatch([ReportPolicyEvent("Warning", "PolicyCheckDelayed", message)])

    def _policy_tasks(self) -> Tasks:
        """What feeds the policies, and saves the last known good ones."""
        policies = self._policies
        if isinstance(policies, PolicyFolder):
            return {"files": policies.run(), "policies": self.policy_feed.run()}
        assert self.last_good is not None, "a ConfigMap source needs a last known good ConfigMap"
        watched = config_map(policies.namespace, policies.name)
        reflector = self._reflector_set.add_reflector(
            watched, self.policy_feed.on_config_map, self.policy_feed.on_listed
        )
        return {
            "ConfigMap": reflector,
            "policies": self.policy_feed.run(),
            "last good": self.last_good.run(),
        }

    def _report_tasks(self) -> Tasks:
        """What writes events and conditions, and reads samples."""
        return {"reporter": self.reporter.run(), "samples": self.metric_monitor.run()}

    @property
    def _has_unsaved_policies(self) -> bool:
        return self.last_good is not None and self.last_good.has_pending_write

    def last_good_problem(self) -> str:
        """Which last known good texts are not saved, and why; empty where all are."""
        return "" if self.last_good is None else self.last_good.problem

    async def _read_last_good(self) -> Mapping[str, str]:
        if self.last_good is None:
            return {}
        texts = await self.last_good.read()
        if self.last_good.states:
            self.post(SavedPolicyStatesLoaded(self.last_good.states))
        return texts

    async def _sleep_until_woken(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._wake.wait()
        except TimeoutError:
            return
