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
from policysched.lang.ir.expr import Watch
from policysched.lang.ir.program import Metric, Program
from policysched.lang.ir.recovery import crossed, recovers, watches_of
from policysched.model.objects import NodeName
from policysched.model.quantity import INT64_MAX


@dataclass(frozen=True, slots=True)
class _Held:
    """A node that crossed the limit. `calm_since_ns` None: it is not at the mark. `seen_ns`: its last sample."""

    calm_since_ns: int | None
    seen_ns: int


@dataclass(slots=True)
class _Follower:
    """One watch of one policy's metric."""

    watch: Watch
    metric: Metric
    held: dict[NodeName, _Held] = field(default_factory=dict)

    def take(self, samples: MetricSamples) -> None:
        for node, sample in samples.values.items():
            self._take(node, sample.value, min(sample.at_ns, samples.polled_ns))
        keep_ns = samples.polled_ns - self.metric.stale_ns - self.watch.for_ns
        self.held = {node: one for node, one in self.held.items() if one.seen_ns >= keep_ns}

    def _take(self, node: NodeName, value: float, at_ns: int) -> None:
        before = self.held.get(node)
        if before is not None:
            if at_ns <= before.seen_ns:
                return
            before = self._until(before, at_ns)
        if crossed(self.watch, value):
            self.held[node] = _Held(None, at_ns)
        elif before is None:
            self.held.pop(node, None)
        elif not recovers(self.watch, value):
            self.held[node] = _Held(None, at_ns)
        elif before.calm_since_ns is None:
            self.held[node] = _Held(at_ns, at_ns)
        else:
            self.held[node] = _Held(before.calm_since_ns, at_ns)

    def _until(self, before: _Held, at_ns: int) -> _Held | None:
        """What has become of a node when its next sample comes: None if it had recovered by then."""
        fresh_until_ns = before.seen_ns + self.metric.stale_ns
        if before.calm_since_ns is None:
            return before
        if before.calm_since_ns + self.watch.for_ns <= min(at_ns, fresh_until_ns):
            return None
        return before if at_ns <= fresh_until_ns else _Held(None, before.seen_ns)

    def until_ns(self) -> dict[NodeName, int]:
        return {
            node: INT64_MAX if one.calm_since_ns is None else one.calm_since_ns + self.watch.for_ns
            for node, one in self.held.items()
        }


class Recoveries:
    """The followers of all running policies, by policy and metric."""

    def __init__(self) -> None:
        self._followers: dict[str, dict[str, list[_Follower]]] = {}

    def follow(self, program: Program) -> None:
        """The program runs from now on. A clause that its text before had as well goes on."""
        before = {(one.metric, one.watch): one for one in self._of(program.name)}
        after: dict[str, list[_Follower]] = {}
        for watch in watches_of(program):
            metric = program.metrics[watch.metric]
            follower = before.get((metric, watch)) or _Follower(watch, metric)
            after.setdefault(watch.metric, []).append(follower)
        self._followers.pop(program.name, None)
        if after:
            self._followers[program.name] = after

    def arrived(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """The samples, with who is held back by them and by those before."""
        followers = self._followers.get(policy, {}).get(metric, [])
        for one in followers:
            one.take(samples)
        if not followers and not samples.held:
            return samples
        return replace(samples, held={one.watch: one.until_ns() for one in followers})

    def _of(self, policy: str) -> Iterator[_Follower]:
        for followers in self._followers.get(policy, {}).values():
            yield from followers
