"""A scheduler without a runtime: tests send events, read commands and move the clock."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from policysched.daemon.policy_checker import check_texts
from policysched.lang.check.bundle import PolicyBundle
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.scheduler import Scheduler
from tests.builders import pending

FIT = """\
policy test version 1
filter node_resources_fit
preemption never
"""

GANG = """\
policy test version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
gang by group {{ min = least {more} }}
filter node_resources_fit
"""

START_NS = 1_800_000_000 * 10**9
Kind = TypeVar("Kind")


def bundle(texts: Mapping[str, str]) -> PolicyBundle:
    """Compile a ConfigMap with these keys. Each time the result is a copy, as it is for the runtime, whose worker process
    compiles; the tests compile the same texts thousands of times."""
    copied: PolicyBundle = pickle.loads(_pickled_bundle(tuple(texts.items())))
    return copied


@lru_cache(maxsize=256)
def _pickled_bundle(texts: tuple[tuple[str, str], ...]) -> bytes:
    return pickle.dumps(check_texts(dict(texts), "ConfigMap ns/policies"))


class Rig:
    """A scheduler on virtual time. Only `pass_time` moves `now_ns`; `commands` holds every command so far."""

    def __init__(
        self,
        policies: str | Mapping[str, str] | None = FIT,
        *objects: ObservedPod | Pod | Node | Namespace,
        limits: SchedulerLimits | None = None,
        extenders: ExtendersByName | None = None,
        permissions: PolicyPermissions | None = None,
        synced: bool = True,
        first_samples_s: float = 0.0,
        source: str | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            limits or SchedulerLimits(),
            extenders,
            permissions=permissions,
            first_samples_s=first_samples_s,
            source_name_of=lambda _: source,
        )
        self.now_ns = START_NS
        self.commands: list[c.Command] = []
        self._version = 0
        if policies is not None:
            self.apply_policies(policies)
        self.observe(*objects)
        if synced:
            self.handle(e.Synced())

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, *events: e.Event) -> list[c.Command]:
        """Handle events without a decision."""
        commands = [
            command
            for event in events
            for command in self.scheduler.handle(self._of_latest_attempt(event), self.now_ns)
        ]
        self.commands += commands
        self.check_invariants()
        return commands

    def _of_latest_attempt(self, event: e.Event) -> e.Event:
        """An answer that names no attempt answers the latest one."""
        if isinstance(event, e.PrebindWritten | e.PrebindRefused) and not event.attempt:
            prebinds = [each for each in self.of(c.Prebind) if each.uid == event.uid]
            return replace(event, attempt=prebinds[-1].attempt) if prebinds else event
        return event

    def observe(self, *objects: ObservedPod | Pod | Node | Namespace) -> list[c.Command]:
        """Add or change objects. A `Pod` is pending; an `ObservedPod` has its own state."""
        return self.handle(*[_event(obj) for obj in objects])

    def apply_policies(
        self, policies: str | Mapping[str, str] | None, last_good: Mapping[str, str] | None = None
    ) -> list[c.Command]:
        """Set the content of the policies' ConfigMap. A single text gets the key `main.policy`; None deletes the ConfigMap."""
        self._version += 1
        texts = {"main.policy": policies} if isinstance(policies, str) else policies
        return self.handle(
            e.PoliciesUpdated(
                None if texts is None else bundle(texts),
                resource_version=str(self._version),
                last_good=None if last_good is None else bundle(last_good),
                source_name="ConfigMap ns/policies",
                last_good_source_name="ConfigMap ns/kept",
            )
        )

    def settle(self) -> list[c.Command]:
        """Decide until the queue has nothing to attempt. Fails if that does not end."""
        commands: list[c.Command] = []
        for _ in range(100_000):
            if not self.scheduler.ready(self.now_ns):
                self.commands += commands
                return commands
            commands += self.scheduler.decide(self.now_ns)
            self.check_invariants()
        raise AssertionError(f"the scheduler does not settle; the last commands are {commands[-5:]}")

    def pass_time(self, seconds: float) -> list[c.Command]:
        """Decide, then move the clock and stop at each `SetTimer`, as the runtime does."""
        end_ns = self.now_ns + round(seconds * 10**9)
        commands = self.settle()
        while (timer_ns := self._timer_ns()) is not None and timer_ns <= end_ns:
            assert timer_ns >= self.now_ns, "a timer is overdue"
            self.now_ns = timer_ns
            commands += self.settle()
        self.now_ns = end_ns
        return commands + self.settle()

    def confirm_binds(self) -> list[c.Command]:
        """Confirm every bind in flight, then show the bound pods in the watch."""
        commands: list[c.Command] = []
        for bind in self.in_flight_binds():
            commands += self.handle(e.BindConfirmed(bind.uid, bind.node))
            if (
                observed := self.scheduler._core.cache.pods.get(bind.uid)
            ) is not None:  # it may have been evicted
                commands += self.handle(e.PodUpdated(replace(observed, node=bind.node)))
        return commands

    # ── state ───────────────────────────────────────────────────────────────────────────────────────────

    def in_flight_binds(self) -> list[c.Bind]:
        in_flight = self.scheduler._core.binds.in_flight
        latest = {bind.uid: bind for bind in self.of(c.Bind)}
        return [latest[uid] for uid in in_flight]

    def observed_pod(self, uid: str) -> ObservedPod:
        return self.scheduler._core.cache.pods[uid]

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All commands of a kind so far."""
        return [command for command in self.commands if isinstance(command, kind)]

    def placements(self) -> dict[str, str]:
        """The node of each pod that this scheduler bound (the last one, if there are several)."""
        return {bind.name: bind.node for bind in self.of(c.Bind)}

    def bind_order(self) -> list[str]:
        """Names of pods in the order of their binds."""
        return [bind.name for bind in self.of(c.Bind)]

    def pending_message(self, name: str) -> str | None:
        """The last message that says why the pod is pending."""
        return next(
            (report.message for report in reversed(self.of(c.ReportPending)) if report.name == name), None
        )

    def counts(self) -> dict[str, int]:
        """Pods by queue, without empty queues."""
        return {queue: count for queue, count in self.scheduler.pending_counts().items() if count}

    def check_invariants(self) -> None:
        problems = self.scheduler.check()
        assert not problems, problems

    def _timer_ns(self) -> int | None:
        """The time of the last `SetTimer`, None if it has passed."""
        timers = self.of(c.SetTimer)
        return timers[-1].at_ns if timers and timers[-1].at_ns > self.now_ns else None


def _event(obj: ObservedPod | Pod | Node | Namespace) -> e.Event:
    match obj:
        case ObservedPod():
            return e.PodUpdated(obj)
        case Pod():
            return e.PodUpdated(pending(obj))
        case Node():
            return e.NodeUpdated(obj)
        case Namespace():
            return e.NamespaceUpdated(obj)
