"""Replays a recording: makes its decisions again and compares them byte for byte.

    the first file of a run ──► every call again, on an empty scheduler: the whole run must be the same
    a later file, or after a gap ──► its snapshot, and each decision again on the cluster of its time (`recorded_order`)

Of a run that is replayed whole nothing may differ: the core is deterministic. From a snapshot, `order_key` is not
compared, and what a snapshot lacks can differ.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from policysched.lang.ir.declarations import Metric
from policysched.recording.format import Header, RecordedSettings
from policysched.recording.reader import (
    CONTRADICTIONS,
    FileStarted,
    RecordedDecide,
    RecordedDecision,
    RecordedEvent,
    RecordedRequeue,
    Recording,
    RecordingGap,
    RunEnded,
    SnapshotEnded,
)
from policysched.recording.recorded_order import RecordedOrderScheduler
from policysched.recording.value_codec import to_json
from policysched.scheduler.commands import CallExtenders, Command, Evict
from policysched.scheduler.decision_records import Decision
from policysched.scheduler.events import ExtendersAnswered
from policysched.text.sanitize import sanitize_line

DIFFERENCES_LISTED_MAX = 100

Basis = Literal["run", "snapshot"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that was not reproduced. `fields` has the values that differ, as (recorded, replayed); a decision that one
    side lacks is None there. `basis`: how it was replayed."""

    file: str
    at_ns: int
    id: int
    unit: str
    basis: Basis
    recorded: str | None
    replayed: str | None
    fields: dict[str, tuple[Any, Any]]


@dataclass(slots=True)
class ReplayReport:
    """`same` and `different` count decisions, by how they were replayed; `differences` are the first. `problems`: what
    could not be read or replayed, one line each. `gaps`: how many calls are missing, and why. `skipped`: decisions with
    answers of extenders, which a snapshot lacks."""

    decisions: int = 0
    same: dict[Basis, int] = field(default_factory=lambda: {"run": 0, "snapshot": 0})
    different: int = 0
    skipped: int = 0
    differences: list[Difference] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gaps: list[RecordingGap] = field(default_factory=list)
    policysched: str = ""
    first_ns: int | None = None
    last_ns: int | None = None


def replay(
    recording: Recording,
    since_ns: int | None = None,
    until_ns: int | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> ReplayReport:
    """Replays what was decided in this time (None: all). `progress` gets `recording.bytes_read` now and then."""
    run = _Replay(recording, since_ns)
    for count, item in enumerate(recording.items(since_ns, until_ns)):
        if count % 1000 == 0:
            progress(recording.bytes_read)
        run.apply(item)
    progress(recording.bytes_read)
    run.report.problems += recording.problems
    return run.report


class _Replay:
    def __init__(self, recording: Recording, since_ns: int | None) -> None:
        self.report = ReplayReport()
        self._recording = recording
        self._since_ns = since_ns
        self._file = ""
        self._header: Header | None = None
        self._problems_before = 0
        self._scheduler: RecordedOrderScheduler | None = None
        self._basis: Basis = "run"
        self._skips_snapshot = False

    def apply(self, item: Any) -> None:
        if isinstance(item, FileStarted):
            self._start_file(item)
            return
        if isinstance(item, RecordingGap):
            self.report.gaps.append(item)
            self._begin("snapshot")
            return
        if self._scheduler is None or isinstance(item, RunEnded):
            return
        try:
            self._apply_call(item, self._scheduler)
        except CONTRADICTIONS as error:
            self.report.problems.append(
                f"{self._file}: cannot go on after {item.at_ns} ns: {type(error).__name__} {sanitize_line(str(error))}"
            )
            self._scheduler = None

    def _start_file(self, item: FileStarted) -> None:
        before, self._header, self._file = self._header, item.header, item.path.name
        is_next = (
            before is not None
            and (item.header.run, item.header.number) == (before.run, before.number + 1)
            and self._problems_before == len(self._recording.problems)
            and self._scheduler is not None
        )
        self._problems_before = len(self._recording.problems)
        self.report.policysched = item.header.policysched
        if is_next:
            self._skips_snapshot = True
        else:
            self._begin("run" if item.header.is_start else "snapshot")

    def _begin(self, basis: Basis) -> None:
        assert self._header is not None, "no file was started"
        self._basis, self._skips_snapshot = basis, False
        sources = self._recording.events.metric_sources
        self._scheduler = new_scheduler(self._header.settings, sources, awaits_samples=basis == "run")

    def _apply_call(self, item: Any, scheduler: RecordedOrderScheduler) -> None:
        match item:
            case RecordedEvent(at_ns, event, is_snapshot, decisions):
                if is_snapshot and self._skips_snapshot:
                    return
                if isinstance(event, ExtendersAnswered) and self._basis == "snapshot":
                    return  # of a call that this scheduler did not make
                scheduler.handle(event, at_ns)
                self._compare(decisions, scheduler.take_decisions(), at_ns)
            case SnapshotEnded(at_ns, state):
                if not self._skips_snapshot and self._basis == "snapshot":
                    scheduler.restore(state, at_ns)
                self._skips_snapshot = False
            case RecordedDecide(at_ns, decisions, evictions, elapsed_ns):
                if self._basis == "run":
                    commands = scheduler.decide(at_ns)
                    self._compare(decisions, scheduler.take_decisions(), at_ns)
                    self._compare_evictions(evictions, commands, at_ns)
                    if elapsed_ns is not None:
                        scheduler.account_time(elapsed_ns)
                else:
                    for attempt in _attempts(decisions):
                        self._decide_again(attempt, scheduler)
            case RecordedRequeue(at_ns):
                if self._basis == "run":
                    scheduler.requeue_current_attempt(at_ns)
                    scheduler.take_decisions()
            case _:
                raise AssertionError(f"unexpected {item}")

    def _decide_again(self, attempt: Sequence[RecordedDecision], scheduler: RecordedOrderScheduler) -> None:
        at_ns = attempt[0].decision.at_ns
        commands = scheduler.decide_again([recorded.decision for recorded in attempt])
        replayed = scheduler.take_decisions()
        if isinstance(commands, str):
            for recorded in attempt:
                self._count(recorded.decision, at_ns, {"result": (_result(recorded.decision), commands)})
            return
        if not replayed and any(isinstance(command, CallExtenders) for command in commands):
            self.report.skipped += len(attempt)
            return
        self._compare(attempt, replayed, at_ns)

    # ── comparing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _compare(
        self, recorded: Sequence[RecordedDecision], replayed: Sequence[Decision], at_ns: int
    ) -> None:
        by_uid = {decision.uid: decision for decision in replayed} if self._basis == "snapshot" else {}
        for index in range(max(len(recorded), len(replayed) if self._basis == "run" else 0)):
            recorded_decision = recorded[index] if index < len(recorded) else None
            if self._basis == "run":
                replayed_decision = replayed[index] if index < len(replayed) else None
            else:
                replayed_decision = by_uid.get(recorded[index].decision.uid)
            self._compare_one(recorded_decision, replayed_decision, at_ns)

    def _compare_one(
        self, recorded_decision: RecordedDecision | None, replayed_decision: Decision | None, at_ns: int
    ) -> None:
        if recorded_decision is not None and replayed_decision is not None:
            if self._basis == "snapshot":
                replayed_decision = replace(
                    replayed_decision,
                    id=recorded_decision.decision.id,
                    order_key=recorded_decision.decision.order_key,
                )
            if recorded_decision.text == to_json(replayed_decision):
                self._count(recorded_decision.decision, at_ns, {})
            else:
                self._count(
                    recorded_decision.decision,
                    at_ns,
                    _different_fields(recorded_decision.text, replayed_decision),
                    _result(replayed_decision),
                )
        elif recorded_decision is not None:
            self._count(
                recorded_decision.decision, at_ns, {"result": (_result(recorded_decision.decision), None)}
            )
        elif replayed_decision is not None:
            self._count(
                replayed_decision,
                at_ns,
                {"result": (None, _result(replayed_decision))},
                _result(replayed_decision),
                is_recorded=False,
            )

    def _compare_evictions(self, recorded: Iterable[Evict], commands: Iterable[Command], at_ns: int) -> None:
        recorded_texts = [to_json(evict) for evict in recorded]
        replayed_texts = [to_json(command) for command in commands if isinstance(command, Evict)]
        if recorded_texts != replayed_texts:
            values = b", ".join(recorded_texts).decode(), b", ".join(replayed_texts).decode()
            self._add(Difference(self._file, at_ns, 0, "evictions", self._basis, *values, {}))

    def _count(
        self,
        decision: Decision,
        at_ns: int,
        fields: dict[str, tuple[Any, Any]],
        replayed: str | None = None,
        *,
        is_recorded: bool = True,
    ) -> None:
        report = self.report
        if self._since_ns is not None and at_ns < self._since_ns:
            return
        report.decisions += is_recorded
        report.first_ns = at_ns if report.first_ns is None else report.first_ns
        report.last_ns = at_ns
        if not fields:
            report.same[self._basis] += 1
            return
        unit = decision.pod if decision.gang is None else f"{decision.pod} (gang {decision.gang})"
        recorded = _result(decision) if is_recorded else None
        self._add(Difference(self._file, at_ns, decision.id, unit, self._basis, recorded, replayed, fields))

    def _add(self, difference: Difference) -> None:
        self.report.different += 1
        if len(self.report.differences) < DIFFERENCES_LISTED_MAX:
            self.report.differences.append(difference)


def new_scheduler(
    settings: RecordedSettings, metric_sources: dict[str | None, str | None], *, awaits_samples: bool = True
) -> RecordedOrderScheduler:
    """A scheduler with recorded settings. `metric_sources`: those of the `EventDecoder` that decodes its events."""

    def source_name_of(metric: Metric) -> str | None:
        return metric_sources.get(metric.source, metric.source)

    scheduler = RecordedOrderScheduler(
        settings.limits,
        settings.extenders,
        permissions=settings.permissions,
        first_samples_s=settings.first_samples_s if awaits_samples else 0.0,
        source_name_of=source_name_of,
    )
    scheduler.core.records.recorded = []
    return scheduler


def _attempts(decisions: Sequence[RecordedDecision]) -> list[list[RecordedDecision]]:
    """The decisions of one call by attempt: those of a gang belong together."""
    attempts: list[list[RecordedDecision]] = []
    for recorded in decisions:
        gang = recorded.decision.gang
        if attempts and gang is not None and attempts[-1][0].decision.gang == gang:
            attempts[-1].append(recorded)
        else:
            attempts.append([recorded])
    return attempts


def _different_fields(recorded: bytes, replayed: Decision) -> dict[str, tuple[Any, Any]]:

    before, after = orjson.loads(recorded), orjson.loads(to_json(replayed))
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    } or {"order": ("the same values", "in another order")}


def _result(decision: Decision) -> str:
    """A decision in a few words."""
    if decision.node is not None:
        return f"{decision.node} with {decision.score}"
    return f"no node: {decision.message}"
