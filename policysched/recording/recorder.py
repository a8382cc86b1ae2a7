"""The half of the recorder on the decisions' thread: it queues each call, and never waits.

    RecordedScheduler ──► Recorder.event, decide, requeue ──► queue (bounded) ──► RecordingWriter
                              ▲                                                        │
                              └── a snapshot is wanted: a new file, or after a gap ────┘

If the queue is full, or a call has waited in it for two minutes, calls are dropped until half of it is written; then a gap and a
snapshot follow. The age bounds the memory where the count does not: a pod that changes may have a megabyte each time. The
snapshot has only references, so that it costs the decisions a millisecond for ten thousand pods.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.model.identifiers import NodeName, PodUid
from policysched.recording.format import AssumedPod, QueuedPod, RecordedSettings, SchedulerState
from policysched.recording.tracked_objects import TrackedObjects
from policysched.scheduler.commands import Command, Evict
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.decision_records import Decision
from policysched.scheduler.events import (
    Event,
    PoliciesUpdated,
    SamplesArrived,
    SavedPolicyStatesLoaded,
    Synced,
)
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
from policysched.scheduler.policies.first_samples import SourceNameOf
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.scheduler import Scheduler

QUEUE_MAX = 200_000
"""Calls that wait to be written. The first lists of 5,000 nodes and 50,000 pods are fewer."""
AGE_MAX_S = 120.0


@dataclass(slots=True)
class EventCall:
    """`put_s`, here and below: when it was queued, on a monotonic clock."""

    at_ns: int
    event: Event
    decisions: list[Decision] | None
    put_s: float = 0.0


@dataclass(slots=True)
class DecideCall:
    """`elapsed_ns`: the argument of `Scheduler.account_time` for this call; None: it was not called. `duration_ns`: its
    result, that of the attempt that ended; None: none did."""

    at_ns: int
    decisions: list[Decision] | None
    evictions: list[Evict] | None
    duration_ns: int | None = None
    elapsed_ns: int | None = None
    put_s: float = 0.0


@dataclass(slots=True)
class RequeueCall:
    at_ns: int
    put_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedSnapshot:
    """The cluster, the policies and the samples as events, and the rest. A new file begins with it. `dropped` calls since
    `since_ns` are missing before it."""

    at_ns: int
    events: list[Event]
    state: SchedulerState
    dropped: int = 0
    since_ns: int = 0
    put_s: float = 0.0


Call = EventCall | DecideCall | RequeueCall | RecordedSnapshot


class Recorder:
    """Queues the calls for one writer, which takes them from `queue` and sets `wants_snapshot`. The first item is a
    snapshot. `dropped` counts the calls that found the queue full. `is_shadow`: the scheduler never decides."""

    def __init__(
        self,
        queue_max: int = QUEUE_MAX,
        *,
        is_shadow: bool = False,
        monotonic_s: Callable[[], float] = monotonic,
    ) -> None:
        self.is_shadow = is_shadow
        self.queue: deque[Call] = deque()
        self.wants_snapshot = False
        self.dropped = 0
        self.settings = RecordedSettings()
        self.source_name_of: SourceNameOf = lambda _: None
        self._queue_max = queue_max
        self._monotonic_s = monotonic_s
        self._objects = TrackedObjects()
        self._core: SchedulerCore | None = None
        self._gap_since_ns: int | None = None
        self._gap_count = 0

    def begin(self, core: SchedulerCore, settings: RecordedSettings, source_name_of: SourceNameOf) -> None:
        """A scheduler begins, with an empty cluster."""
        self._core, self.settings, self.source_name_of = core, settings, source_name_of

    def event(self, at_ns: int, event: Event, decisions: list[Decision] | None) -> None:
        self._objects.track(event)
        self._put(EventCall(at_ns, event, decisions))

    def decide(self, call: DecideCall) -> None:
        self._put(call)

    def requeue(self, at_ns: int) -> None:
        self._put(RequeueCall(at_ns))

    def _put(self, call: EventCall | DecideCall | RequeueCall) -> None:
        call.put_s = self._monotonic_s()
        age_s = self._age_s(call.put_s)
        if self._gap_since_ns is None and len(self.queue) < self._queue_max and age_s < AGE_MAX_S:
            self.queue.append(call)
            if self.wants_snapshot:
                self.queue.append(self._snapshot(call.at_ns))
            return
        if self._gap_since_ns is None:
            self._gap_since_ns, self._gap_count = call.at_ns, 0
        self._gap_count += 1
        self.dropped += 1
        if len(self.queue) < self._queue_max // 2 and age_s < AGE_MAX_S / 2:
            self.queue.append(self._snapshot(call.at_ns, self._gap_count, self._gap_since_ns))
            self._gap_since_ns = None

    def _age_s(self, now_s: float) -> float:
        """How long the oldest call has waited."""
        try:
            return now_s - self.queue[0].put_s
        except IndexError:  # the writer has taken it
            return 0.0

    def _snapshot(self, at_ns: int, dropped: int = 0, since_ns: int = 0) -> RecordedSnapshot:
        self.wants_snapshot = False
        core = self._core
        assert core is not None, "nothing was begun"
        events: list[Event] = [SavedPolicyStatesLoaded(core.state_texts())]
        latest = self._objects.policies()
        if latest is not None:
            events.append(_present_policies(core, latest))
        events += self._objects.events()
        events += [SamplesArrived(*metric, samples) for metric, samples in core.samples.of_metrics()]
        if self._objects.is_synced():
            events.append(Synced())
        return RecordedSnapshot(at_ns, events, scheduler_state(core), dropped, since_ns, self._monotonic_s())


def _present_policies(core: SchedulerCore, latest: PoliciesUpdated) -> PoliciesUpdated:
    """The programs that run, some of which may have no valid text any more."""
    sources = {
        f"{name}.policy": CheckedSource(f"{name}.policy", False, program, (), name)
        for name, program in sorted(core.policies.programs().items())
    }
    return PoliciesUpdated(
        PolicyBundle(sources),
        latest.resource_version,
        None,
        latest.source_name,
        latest.last_good_source_name,
        latest.unread_teams,
        latest.fallbacks,
    )


def scheduler_state(core: SchedulerCore) -> SchedulerState:
    """What a snapshot has beside the objects."""
    assumed: list[AssumedPod] = []
    queued: list[QueuedPod] = []
    for uid, pod in core.pods.items():
        placement = core.cache.ledger.placement(uid)
        if placement is None:
            queued.append(QueuedPod(uid, pod.queued_ns, pod.attempts))
        elif pod.observed.node is None:
            assumed.append(AssumedPod(uid, placement.node))
    waiting: dict[PodUid, NodeName] = {
        uid: placement.node
        for uid, observed in core.cache.pods.items()
        if observed.node is None
        and uid not in core.pods
        and (placement := core.cache.ledger.placement(uid)) is not None
    }
    assumed += [AssumedPod(uid, node) for uid, node in waiting.items()]
    return SchedulerState(core.records.next_id - 1, tuple(queued), tuple(assumed))


class RecordedScheduler(Scheduler):
    """A scheduler whose calls a recorder gets, with what they decided. Everything else is the scheduler's."""

    def __init__(
        self,
        recorder: Recorder,
        limits: SchedulerLimits,
        extenders: ExtendersByName,
        *,
        permissions: PolicyPermissions,
        first_samples_s: float,
        source_name_of: SourceNameOf,
    ) -> None:
        super().__init__(
            limits,
            extenders,
            permissions=permissions,
            first_samples_s=first_samples_s,
            source_name_of=source_name_of,
        )
        self._recorder = recorder
        self._decide_call: DecideCall | None = None
        self._core.records.recorded = []
        settings = RecordedSettings(limits, extenders, permissions, first_samples_s)
        recorder.begin(self._core, settings, source_name_of)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        self._put_decide()
        commands = super().handle(event, now_ns)
        self._recorder.event(now_ns, event, self._take_decisions())
        return commands

    def decide(self, now_ns: int) -> list[Command]:
        self._put_decide()
        commands = super().decide(now_ns)
        evictions = [command for command in commands if type(command) is Evict] if commands else None
        self._decide_call = DecideCall(now_ns, self._take_decisions(), evictions)
        return commands

    def account_time(self, elapsed_ns: int) -> int | None:
        attempt_ns = super().account_time(elapsed_ns)
        if self._decide_call is not None:
            self._decide_call.duration_ns, self._decide_call.elapsed_ns = attempt_ns, elapsed_ns
            self._put_decide()
        return attempt_ns

    def requeue_current_attempt(self, now_ns: int) -> list[Command]:
        self._put_decide()
        commands = super().requeue_current_attempt(now_ns)
        self._take_decisions()
        self._recorder.requeue(now_ns)
        return commands

    def _put_decide(self) -> None:
        """Record the last call of `decide`, whose time may be accounted before the next call."""
        call, self._decide_call = self._decide_call, None
        if call is not None:
            self._recorder.decide(call)

    def _take_decisions(self) -> list[Decision] | None:
        records = self._core.records
        decisions = records.recorded
        if not decisions:
            return None
        records.recorded = []
        return decisions
