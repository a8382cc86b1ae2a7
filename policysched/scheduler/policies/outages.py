"""When a policy's metric rules are switched off, or pods wait, because too many nodes lack the metric, somebody is told.

The plan judges each decision by its own candidates. Here all nodes are counted, when samples arrive and when they go
stale, so that one warning event says when an outage begins and one that it is over.
"""

from policysched.lang.ir.program import Metric, Outage, of_nodes
from policysched.scheduler.commands import ReportPolicies
from policysched.scheduler.core import Core
from policysched.scheduler.policies.first_samples import of_source
from policysched.scheduler.queue.heap import MovableHeap

_BECOMES = {
    "disable": "the rules that read it do not apply",
    "wait": "pods to which a rule applies that reads it wait",
}


class Outages:
    """Which (policy, metric) are in an outage."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._out: set[tuple[str, str]] = set()
        self._next_look: MovableHeap[str] = MovableHeap()

    def look(self, policy: str, now_ns: int) -> None:
        """Count the nodes without a fresh sample, for each metric of the policy."""
        self._out = {one for one in self._out if self._followed(*one)}
        running = self._core.policies.running.get(policy)
        if running is None or running.program.outage is None or not self._core.cache.nodes:
            return
        outage, stale_at = running.program.outage, []
        for name, metric in running.program.metrics.items():
            fresh_until = self._fresh_until(policy, metric)
            lacking = sum(1 for node in self._core.cache.nodes if fresh_until.get(node, 0) <= now_ns)
            self._note(policy, name, lacking, outage)
            later = sorted(until for until in fresh_until.values() if until > now_ns)
            stale_at += later[:1]
        if stale_at:
            self._next_look.put(policy, min(stale_at))

    def advance(self, now_ns: int) -> None:
        while (at_ns := self._next_look.first_key()) is not None and at_ns <= now_ns:
            policy = self._next_look.pop()
            assert policy is not None
            self.look(policy, now_ns)

    def next_time_ns(self) -> int | None:
        return self._next_look.first_key()

    def active(self) -> list[tuple[str, str]]:
        """(policy, metric) whose rules are switched off for most pods, sorted."""
        return sorted(one for one in self._out if self._followed(*one))

    def _followed(self, policy: str, metric: str) -> bool:
        """An edit may have taken the metric, or what is to happen in an outage."""
        running = self._core.policies.running.get(policy)
        return (
            running is not None and running.program.outage is not None and metric in running.program.metrics
        )

    def _fresh_until(self, policy: str, metric: Metric) -> dict[str, int]:
        known = self._core.samples.get(policy, {}).get(metric.name)
        if known is None:
            return {}
        polled_until = known.polled_ns + metric.stale_ns
        if not of_nodes(metric):
            return dict.fromkeys(self._core.cache.nodes, polled_until)
        return {node: min(polled_until, one.at_ns + metric.stale_ns) for node, one in known.values.items()}

    def _note(self, policy: str, metric: str, lacking: int, outage: Outage) -> None:
        nodes = len(self._core.cache.nodes)
        source = self._core.source_of(self._core.policies.running[policy].program.metrics[metric])
        begins = lacking > outage.above * nodes
        key = (policy, metric)
        if begins and key not in self._out:
            self._out.add(key)
            words = (
                f"policy `{policy}`: {lacking} of {nodes} nodes have no fresh sample of `{metric}`{of_source(source)}; "
                f"{_BECOMES[outage.then]} until they have"
            )
            self._core.out.append(ReportPolicies("Warning", "MetricOutage", words))
        elif not begins and key in self._out:
            self._out.discard(key)
            words = f"policy `{policy}`: samples of `{metric}` are back, {nodes - lacking} of {nodes} nodes have one"
            self._core.out.append(ReportPolicies("Normal", "MetricRecovered", words))
