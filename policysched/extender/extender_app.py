"""`policysched extender` composed from its parts: watches cluster and policies, and serves the extender protocol.

    reflectors ─┐
    policies   ─┼─► inbox ─► ExtenderServer.handle    kube-scheduler ──POST──► HTTP thread ──► ExtenderHandlers ─┐
    samples    ─┘                  ▲                                                                              │
                                   └────────────────── one request at a time, between two events ◄───────────────┘

`daemon.app` has the parts that `policysched run` shares. Every replica serves: nothing is decided here, so there is no
Lease.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from policysched.config.logs import write_log
from policysched.config.settings import NamespacedName
from policysched.daemon.app import DaemonApp, Runtime, Tasks
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.metric_monitor import FIRST_SAMPLES_TIMEOUT_S
from policysched.extender.settings import ExtenderSettings
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.watch.node_resources import with_node_resources
from policysched.kube.watch.resources import (
    NAMESPACES,
    NODES,
    SELECTOR_OWNERS,
    STORAGE_RESOURCES,
    pods_within,
)
from policysched.kube.write.bind import Binder
from policysched.kube.write.report_content import EventContent, EventObject
from policysched.scheduler import commands as c
from policysched.scheduler.events import Event
from policysched.scheduler.extenders.extender_server import ExtenderServer

log = logging.getLogger(__name__)

EVENTS_PER_SLICE = 64
"""How many events are handled before the next request."""

EVENT_COMPONENT = "policysched-extender"


class NoUsablePolicy(Exception):
    """There is no valid policy and no last known good one."""


class _ReadAgain(Exception):
    """An object was left out: everything else is to be read again."""


class ExtenderApp(DaemonApp):
    """`run` until cancelled. `failed_objects` are those of the app before. `rereads`: the next app has to read the cluster
    again, since an event or a request raised because of an object."""

    def __init__(
        self, settings: ExtenderSettings, runtime: Runtime, failed_objects: FailedObjects | None = None
    ) -> None:
        self.settings = settings
        self.failed_objects = (failed_objects or FailedObjects(settings.permissions.owner)).begin()
        self.rereads = False
        self.extender_server = ExtenderServer(
            permissions=settings.permissions,
            first_samples_s=FIRST_SAMPLES_TIMEOUT_S,
            source_name_of=runtime.samples.source_name_for,
            bindable_scheduler_names=settings.scheduler_names,
        )
        super().__init__(
            settings, runtime, metrics=self.extender_server.metrics, nodes=self.extender_server.nodes
        )
        self.binder = Binder(
            self._api, self.post, random=runtime.random("bind"), connectivity=self.connectivity
        )

    async def run(self) -> None:
        """Until cancelled, or everything is to be read again. Raises NoUsablePolicy; any other exception is a bug."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in self._background_tasks().items():
                    group.create_task(work, name=name)
        except* NoUsablePolicy as group_of_one:
            raise group_of_one.exceptions[0] from None
        except* _ReadAgain:
            log.info("stopped, to read the cluster again")

    def _background_tasks(self) -> Tasks:
        server = self.extender_server
        names = CountedNames(server.programs)
        nodes = with_node_resources(NODES, names)
        pods = pods_within(server.limits.decision_budget, names)
        parts = self._reflector_set.add_cluster_reflectors(
            (NAMESPACES, nodes, pods, *SELECTOR_OWNERS, *STORAGE_RESOURCES)
        )
        return parts | self._policy_tasks() | self._report_tasks() | {"core": self._process_events()}

    async def _process_events(self) -> None:
        server, now_ns = self.extender_server, self.runtime.now_ns
        while True:
            self._wake.clear()
            self.runtime.beat()
            if self.rereads:  # a request has raised
                raise _ReadAgain
            # In front: what waits in the inbox is newer.
            self._inbox.extendleft(reversed(self.failed_objects.take_due(now_ns())))
            for _ in range(min(EVENTS_PER_SLICE, len(self._inbox))):
                event = self._inbox.popleft()
                admitted = self.failed_objects.admit(event, now_ns())
                if admitted is not None:
                    self._dispatch_step(partial(server.handle, admitted, now_ns()), event)
            self._dispatch_step(partial(server.advance, now_ns()), None)
            self.failed_objects.untold.clear()  # such pods are another scheduler's
            if server.startup_error is not None:
                raise NoUsablePolicy(server.startup_error)
            if self._inbox or server.busy:
                await asyncio.sleep(0)  # requests and watches first
                continue
            await self._sleep_until_woken(1.0)

    def _dispatch_step(self, step: Callable[[], list[c.Command]], event: Event | None) -> None:
        """Raises _ReadAgain if an object is left out."""
        try:
            commands = step()
        except Exception as error:  # raised again if nobody is to blame
            self.leave_out(event, error)
            raise _ReadAgain from error
        self.dispatch(commands)

    def leave_out(self, event: Event | None, error: Exception) -> None:
        """The event, or a request (None), raised: the state may be half changed, so the app ends. Raises the error if no object
        is to blame."""
        pods = self.extender_server.pods()
        if not self.failed_objects.note(event, error, self.runtime.now_ns(), pods):
            raise error
        self.rereads = True
        self._wake.set()

    def dispatch(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            match command:
                case c.Log():
                    write_log(log, command)
                case c.ReportPolicyEvent(event_type, reason, message):
                    level = logging.WARNING if event_type == "Warning" else logging.INFO
                    log.log(level, message, extra={"reason": reason, "location": self.settings.source_name})
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
        source = self.settings.policies
        if isinstance(source, NamespacedName):
            config_map = EventObject("ConfigMap", source.namespace, source.name, self.policy_feed.uid)
            self.reporter.record_event(
                EventContent(config_map, event_type, reason, "Reloading", message, EVENT_COMPONENT)
            )
