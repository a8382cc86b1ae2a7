"""Recovery tracker: nodes that crossed a limit and have not recovered yet (`recover 600Mbps for 2m`).

    within limit ──crosses it──► crossed ──at the mark or better──► recovering
           ▲                       ▲  ▲  ◄──between mark and limit──   │   │
           │                       └────────────crosses it─────────────┘   │
           └──────────────at the mark for the whole duration───────────────┘

The state is a function of the samples alone, so a replay ends in the same state. A sample is valid
until the next one of its node, as long as it is fresh. Only nodes that await recovery are stored, and
dropped once their samples have been stale for long. After a restart, or a change of the clause, tracking
starts without earlier crossings.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from policysched.cluster.metric_samples import MetricSamples
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.recovery import crosses_limit, meets_recovery_mark, recovery_conditions
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.model.identifiers import NodeName
from policysched.model.quantity import INT64_MAX


@dataclass(frozen=True, slots=True)
class _NodeAwaitingRecovery:
    """A node that crossed the limit. `recovering_since_ns` None: not at the mark. `sampled_ns`: last sample."""

    recovering_since_ns: int | None
    sampled_ns: int


@dataclass(slots=True)
class _ConditionTracker:
    """Tracks one recovery condition of a policy's metric."""

    condition: RecoveryCondition
    metric: Metric
    awaiting_recovery: dict[NodeName, _NodeAwaitingRecovery] = field(default_factory=dict)

    def apply_samples(self, samples: MetricSamples) -> None:
        for node, sample in samples.values.items():
            self._apply_sample(node, sample.value, min(sample.at_ns, samples.polled_ns))
        keep_ns = samples.polled_ns - self.metric.stale_after_ns - self.condition.recover_for_ns
        self.awaiting_recovery = {
            node: state for node, state in self.awaiting_recovery.items() if state.sampled_ns >= keep_ns
        }

    def _apply_sample(self, node: NodeName, value: float, at_ns: int) -> None:
        before = self.awaiting_recovery.get(node)
        if before is not None:
            if at_ns <= before.sampled_ns:
                return
            before = self._state_at(before, at_ns)
        if crosses_limit(self.condition, value):
            self.awaiting_recovery[node] = _NodeAwaitingRecovery(None, at_ns)
        elif before is None:
            self.awaiting_recovery.pop(node, None)
        elif not meets_recovery_mark(self.condition, value):
            self.awaiting_recovery[node] = _NodeAwaitingRecovery(None, at_ns)
        elif before.recovering_since_ns is None:
            self.awaiting_recovery[node] = _NodeAwaitingRecovery(at_ns, at_ns)
        else:
            self.awaiting_recovery[node] = _NodeAwaitingRecovery(before.recovering_since_ns, at_ns)

    def _state_at(self, before: _NodeAwaitingRecovery, at_ns: int) -> _NodeAwaitingRecovery | None:
        """State of a node just before its next sample; None if it had recovered by then."""
        fresh_until_ns = before.sampled_ns + self.metric.stale_after_ns
        if before.recovering_since_ns is None:
            return before
        if before.recovering_since_ns + self.condition.recover_for_ns <= min(at_ns, fresh_until_ns):
            return None
        return before if at_ns <= fresh_until_ns else _NodeAwaitingRecovery(None, before.sampled_ns)

    def recovering_until_ns(self) -> dict[NodeName, int]:
        return {
            node: INT64_MAX
            if state.recovering_since_ns is None
            else state.recovering_since_ns + self.condition.recover_for_ns
            for node, state in self.awaiting_recovery.items()
        }


class RecoveryTracker:
    """Condition trackers of all active policies, by policy and metric."""

    def __init__(self) -> None:
        self._trackers: dict[str, dict[str, list[_ConditionTracker]]] = {}

    def activate(self, program: Program) -> None:
        """Activate a program. A clause that the previous version has as well keeps its state."""
        before = {(tracker.metric, tracker.condition): tracker for tracker in self._trackers_of(program.name)}
        after: dict[str, list[_ConditionTracker]] = {}
        for condition in recovery_conditions(program):
            metric = program.metrics[condition.metric]
            tracker = before.get((metric, condition)) or _ConditionTracker(condition, metric)
            after.setdefault(condition.metric, []).append(tracker)
        self._trackers.pop(program.name, None)
        if after:
            self._trackers[program.name] = after

    def apply_samples(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """Return the samples with the nodes that have not recovered, and until when."""
        trackers = self._trackers.get(policy, {}).get(metric, [])
        for tracker in trackers:
            tracker.apply_samples(samples)
        if not trackers and not samples.recovering_until_ns:
            return samples
        return replace(
            samples,
            recovering_until_ns={tracker.condition: tracker.recovering_until_ns() for tracker in trackers},
        )

    def _trackers_of(self, policy: str) -> Iterator[_ConditionTracker]:
        for trackers in self._trackers.get(policy, {}).values():
            yield from trackers
