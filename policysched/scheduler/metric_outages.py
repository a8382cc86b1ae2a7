"""Metric outages: events when too many nodes lack fresh samples of a metric, and when they are back.

The plan detects an outage for each decision among its own candidates. Here all nodes are counted,
when samples arrive and when they go stale, so that one warning event marks the start of an outage
and one normal event its end.
"""

from policysched.lang.ir.declarations import Metric, OutageSpec, is_node_metric
from policysched.scheduler.commands import ReportPolicyEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.policies.first_samples import source_suffix
from policysched.scheduler.queue.movable_heap import MovableHeap

_EFFECT_MESSAGES = {
    "disable": "rules that read this metric are disabled",
    "wait": "pods with a rule that reads this metric stay pending",
}


class MetricOutages:
    """Tracks which (policy, metric) pairs are in an outage."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._in_outage: set[tuple[str, str]] = set()
        self._recount_times: MovableHeap[str] = MovableHeap()

    def recount(self, policy: str, now_ns: int) -> None:
        """Count the nodes without a fresh sample, for each metric of the policy."""
        self._in_outage = {key for key in self._in_outage if self._is_tracked(*key)}
        running = self._core.policies.running.get(policy)
        if running is None or running.program.outage is None or not self._core.cache.nodes:
            return
        outage, stale_at = running.program.outage, []
        for name, metric in running.program.metrics.items():
            fresh_until = self._fresh_until_ns(policy, metric)
            lacking = sum(1 for node in self._core.cache.nodes if fresh_until.get(node, 0) <= now_ns)
            self._update(policy, name, lacking, outage)
            later = sorted(until for until in fresh_until.values() if until > now_ns)
            stale_at += later[:1]
        if stale_at:
            self._recount_times.put(policy, min(stale_at))

    def advance(self, now_ns: int) -> None:
        while (at_ns := self._recount_times.first_key()) is not None and at_ns <= now_ns:
            policy = self._recount_times.pop()
            assert policy is not None
            self.recount(policy, now_ns)

    def next_time_ns(self) -> int | None:
        return self._recount_times.first_key()

    def active(self) -> list[tuple[str, str]]:
        """(policy, metric) pairs in an outage, sorted."""
        return sorted(key for key in self._in_outage if self._is_tracked(*key))

    def _is_tracked(self, policy: str, metric: str) -> bool:
        """Whether the policy still has the metric and an `outage` clause: an edit may have removed either."""
        running = self._core.policies.running.get(policy)
        return (
            running is not None and running.program.outage is not None and metric in running.program.metrics
        )

    def _fresh_until_ns(self, policy: str, metric: Metric) -> dict[str, int]:
        samples = self._core.samples.of_policy(policy).get(metric.name)
        if samples is None:
            return {}
        polled_until = samples.polled_ns + metric.stale_after_ns
        if not is_node_metric(metric):
            return dict.fromkeys(self._core.cache.nodes, polled_until)
        return {
            node: min(polled_until, sample.at_ns + metric.stale_after_ns)
            for node, sample in samples.values.items()
        }

    def _update(self, policy: str, metric: str, lacking: int, outage: OutageSpec) -> None:
        nodes = len(self._core.cache.nodes)
        source = self._core.samples.source_name_of(
            self._core.policies.running[policy].program.metrics[metric]
        )
        begins = lacking > outage.missing_ratio_max * nodes
        key = (policy, metric)
        if begins and key not in self._in_outage:
            self._in_outage.add(key)
            message = (
                f"policy `{policy}`: {lacking} of {nodes} nodes have no fresh sample of `{metric}`{source_suffix(source)}; "
                f"{_EFFECT_MESSAGES[outage.action]} until samples return"
            )
            self._core.commands.append(ReportPolicyEvent("Warning", "MetricOutage", message))
        elif not begins and key in self._in_outage:
            self._in_outage.discard(key)
            message = f"policy `{policy}`: samples of `{metric}` are available again on {nodes - lacking} of {nodes} nodes"
            self._core.commands.append(ReportPolicyEvent("Normal", "MetricRecovered", message))
