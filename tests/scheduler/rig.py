"""A scheduler without a shell: tests say what happens, read what it wants done, and turn the clock."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from policysched.daemon.compiling import compile_sync
from policysched.lang.check.bundle import PolicyBundle
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
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
    """What the shell makes of a ConfigMap with these keys."""
    return compile_sync(texts, "ConfigMap ns/policies")


class Rig:
    """`now_ns` moves only by `pass_time`. `said` has every command so far."""

    def __init__(
        self,
        policies: str | Mapping[str, str] | None = FIT,
        *things: ObservedPod | Pod | Node | Namespace,
        limits: SchedulerLimits | None = None,
        extenders: ExtendersByName | None = None,
        synced: bool = True,
        first_samples_s: float = 0.0,
        source: str | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            limits or SchedulerLimits(),
            extenders,
            first_samples_s=first_samples_s,
            source_name_of=lambda _: source,
        )
        self.now_ns = START_NS
        self.said: list[c.Command] = []
        self._version = 0
        if policies is not None:
            self.offer(policies)
        self.see(*things)
        if synced:
            self.tell(e.Synced())

    # ── what happens ───────────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, *events: e.Event) -> list[c.Command]:
        """Events happen; nothing is decided yet."""
        said = [command for event in events for command in self.scheduler.handle(event, self.now_ns)]
        self.said += said
        self.audit()
        return said

    def see(self, *things: ObservedPod | Pod | Node | Namespace) -> list[c.Command]:
        """Things appear or change. A pod is pending unless it is said where it is."""
        return self.tell(*[_seen(thing) for thing in things])

    def offer(
        self, policies: str | Mapping[str, str] | None, last_good: Mapping[str, str] | None = None
    ) -> list[c.Command]:
        """The ConfigMap says this now; None: it does not exist. One text stands under `main.policy`."""
        self._version += 1
        texts = {"main.policy": policies} if isinstance(policies, str) else policies
        return self.tell(
            e.PoliciesUpdated(
                None if texts is None else bundle(texts),
                resource_version=str(self._version),
                last_good=None if last_good is None else bundle(last_good),
                source_name="ConfigMap ns/policies",
                last_good_source_name="ConfigMap ns/kept",
            )
        )

    def settle(self) -> list[c.Command]:
        """Decide until there is nothing to decide. Fails where that has no end."""
        said: list[c.Command] = []
        for _ in range(100_000):
            if not self.scheduler.ready(self.now_ns):
                self.said += said
                return said
            said += self.scheduler.decide(self.now_ns)
            self.audit()
        raise AssertionError(f"no end of deciding; the last commands were {said[-5:]}")

    def pass_time(self, seconds: float) -> list[c.Command]:
        """The clock goes on, as a shell lets it that follows WakeAt: it stops where something is due."""
        end_ns = self.now_ns + round(seconds * 10**9)
        said: list[c.Command] = []
        while (alarm_ns := self._alarm_ns()) is not None and alarm_ns <= end_ns:
            assert alarm_ns >= self.now_ns, "an alarm is due and was not carried out"
            self.now_ns = alarm_ns
            said += self.settle()
        self.now_ns = end_ns
        return said + self.settle()

    def confirm_all(self) -> list[c.Command]:
        """Every bind in flight succeeds; the watch shows it afterwards."""
        said: list[c.Command] = []
        for bind in self.unanswered():
            said += self.tell(e.BindConfirmed(bind.uid, bind.node))
            said += self.tell(e.PodUpdated(replace(self.seen(bind.uid), node=bind.node)))
        return said

    # ── what is the case ───────────────────────────────────────────────────────────────────────────────────────────

    def unanswered(self) -> list[c.Bind]:
        in_flight = self.scheduler._core.binds.in_flight
        latest = {bind.uid: bind for bind in self.of(c.Bind)}
        return [latest[uid] for uid in in_flight]

    def seen(self, uid: str) -> ObservedPod:
        return self.scheduler._core.cache.pods[uid]

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All commands of a kind so far."""
        return [command for command in self.said if isinstance(command, kind)]

    def where(self) -> dict[str, str]:
        """Each pod that was bound by us, and to which node last."""
        return {bind.name: bind.node for bind in self.of(c.Bind)}

    def order(self) -> list[str]:
        """Names of pods in the order in which they were bound."""
        return [bind.name for bind in self.of(c.Bind)]

    def words(self, name: str) -> str | None:
        """The last message about why a pod is pending."""
        return next((one.message for one in reversed(self.of(c.ReportPending)) if one.name == name), None)

    def counts(self) -> dict[str, int]:
        """Pods by queue, without empty queues."""
        return {queue: count for queue, count in self.scheduler.pending_counts().items() if count}

    def audit(self) -> None:
        assert self.scheduler.check() == []

    def _alarm_ns(self) -> int | None:
        """The time that the scheduler last asked to be woken at; what was carried out is over."""
        alarms = self.of(c.SetTimer)
        return alarms[-1].at_ns if alarms and alarms[-1].at_ns > self.now_ns else None


def _seen(thing: ObservedPod | Pod | Node | Namespace) -> e.Event:
    match thing:
        case ObservedPod():
            return e.PodUpdated(thing)
        case Pod():
            return e.PodUpdated(pending(thing))
        case Node():
            return e.NodeUpdated(thing)
        case Namespace():
            return e.NamespaceUpdated(thing)
