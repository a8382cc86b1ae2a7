"""Which nodes have crossed a limit and not yet recovered (`recover 600Mbps for 2m`), from the samples that arrived.

    within the limit ──crosses it──► held ──at the mark or beyond──► recovering
           ▲                          ▲  ◄──between mark and limit──    │  │
           │                          └────────crosses it──────────────┘  │
           └───────────────at the mark for the whole duration─────────────┘

What is kept is a function of the samples alone, each taken to be true until the next one of its node, as long as it is fresh: a
replay ends in the same state. Only nodes that are held are remembered, and forgotten once their samples have long been stale.
A process that starts anew, and a policy whose clause changed, know of no crossing before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from policysched.cluster.samples import MetricSamples
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.expr import RecoveryCondition
from policysched.lang.ir.program import Program
from policysched.lang.ir.recovery import crosses_limit, meets_recovery_mark, recovery_conditions
from policysched.model.identifiers import NodeName
from policysched.model.quantity import INT64_MAX


@dataclass(frozen=True, slots=True)
class _UnrecoveredNode:
    """A node that crossed the limit. `recovering_since_ns` None: it is not at the mark. `sampled_ns`: its last sample."""

    recovering_since_ns: int | None
    sampled_ns: int


@dataclass(slots=True)
class _ConditionTracker:
    """One watch of one policy's metric."""

    condition: RecoveryCondition
    metric: Metric
    unrecovered: dict[NodeName, _UnrecoveredNode] = field(default_factory=dict)

    def apply_samples(self, samples: MetricSamples) -> None:
        for node, sample in samples.values.items():
            self._apply_sample(node, sample.value, min(sample.at_ns, samples.polled_ns))
        keep_ns = samples.polled_ns - self.metric.stale_after_ns - self.condition.recover_for_ns
        self.unrecovered = {node: one for node, one in self.unrecovered.items() if one.sampled_ns >= keep_ns}

    def _apply_sample(self, node: NodeName, value: float, at_ns: int) -> None:
        before = self.unrecovered.get(node)
        if before is not None:
            if at_ns <= before.sampled_ns:
                return
            before = self._state_at(before, at_ns)
        if crosses_limit(self.condition, value):
            self.unrecovered[node] = _UnrecoveredNode(None, at_ns)
        elif before is None:
            self.unrecovered.pop(node, None)
        elif not meets_recovery_mark(self.condition, value):
            self.unrecovered[node] = _UnrecoveredNode(None, at_ns)
        elif before.recovering_since_ns is None:
            self.unrecovered[node] = _UnrecoveredNode(at_ns, at_ns)
        else:
            self.unrecovered[node] = _UnrecoveredNode(before.recovering_since_ns, at_ns)

    def _state_at(self, before: _UnrecoveredNode, at_ns: int) -> _UnrecoveredNode | None:
        """What has become of a node when its next sample comes: None if it had recovered by then."""
        fresh_until_ns = before.sampled_ns + self.metric.stale_after_ns
        if before.recovering_since_ns is None:
            return before
        if before.recovering_since_ns + self.condition.recover_for_ns <= min(at_ns, fresh_until_ns):
            return None
        return before if at_ns <= fresh_until_ns else _UnrecoveredNode(None, before.sampled_ns)

    def unrecovered_until_ns(self) -> dict[NodeName, int]:
        return {
            node: INT64_MAX
            if one.recovering_since_ns is None
            else one.recovering_since_ns + self.condition.recover_for_ns
            for node, one in self.unrecovered.items()
        }


class RecoveryTracker:
    """The followers of all running policies, by policy and metric."""

    def __init__(self) -> None:
        self._trackers: dict[str, dict[str, list[_ConditionTracker]]] = {}

    def activate(self, program: Program) -> None:
        """The program runs from now on. A clause that its text before had as well goes on."""
        before = {(one.metric, one.condition): one for one in self._trackers_of(program.name)}
        after: dict[str, list[_ConditionTracker]] = {}
        for watch in recovery_conditions(program):
            metric = program.metrics[watch.metric]
            follower = before.get((metric, watch)) or _ConditionTracker(watch, metric)
            after.setdefault(watch.metric, []).append(follower)
        self._trackers.pop(program.name, None)
        if after:
            self._trackers[program.name] = after

    def apply_samples(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """The samples, with who is held back by them and by those before."""
        followers = self._trackers.get(policy, {}).get(metric, [])
        for one in followers:
            one.apply_samples(samples)
        if not followers and not samples.recovering_until_ns:
            return samples
        return replace(
            samples, recovering_until_ns={one.condition: one.unrecovered_until_ns() for one in followers}
        )

    def _trackers_of(self, policy: str) -> Iterator[_ConditionTracker]:
        for followers in self._trackers.get(policy, {}).values():
            yield from followers
