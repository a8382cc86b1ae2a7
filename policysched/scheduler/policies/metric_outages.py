"""When a policy's metric rules are switched off, or pods wait, because too many nodes lack the metric, somebody is told.

The plan judges each decision by its own candidates. Here all nodes are counted, when samples arrive and when they go
stale, so that one warning event says when an outage begins and one that it is over.
"""

from policysched.lang.ir.declarations import Metric, OutageSpec, is_node_metric
from policysched.scheduler.commands import ReportPolicyEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.policies.first_samples import source_suffix
from policysched.scheduler.queue.movable_heap import MovableHeap

_EFFECT_MESSAGES = {
    "disable": "the rules that read it do not apply",
    "wait": "pods to which a rule applies that reads it wait",
}


class MetricOutages:
    """Which (policy, metric) are in an outage."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._in_outage: set[tuple[str, str]] = set()
        self._recount_times: MovableHeap[str] = MovableHeap()

    def recount(self, policy: str, now_ns: int) -> None:
        """Count the nodes without a fresh sample, for each metric of the policy."""
        self._in_outage = {one for one in self._in_outage if self._is_tracked(*one)}
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
        """(policy, metric) whose rules are switched off for most pods, sorted."""
        return sorted(one for one in self._in_outage if self._is_tracked(*one))

    def _is_tracked(self, policy: str, metric: str) -> bool:
        """An edit may have taken the metric, or what is to happen in an outage."""
        running = self._core.policies.running.get(policy)
        return (
            running is not None and running.program.outage is not None and metric in running.program.metrics
        )

    def _fresh_until_ns(self, policy: str, metric: Metric) -> dict[str, int]:
        known = self._core.samples.get(policy, {}).get(metric.name)
        if known is None:
            return {}
        polled_until = known.polled_ns + metric.stale_after_ns
        if not is_node_metric(metric):
            return dict.fromkeys(self._core.cache.nodes, polled_until)
        return {
            node: min(polled_until, one.at_ns + metric.stale_after_ns) for node, one in known.values.items()
        }

    def _update(self, policy: str, metric: str, lacking: int, outage: OutageSpec) -> None:
        nodes = len(self._core.cache.nodes)
        source = self._core.source_name_of(self._core.policies.running[policy].program.metrics[metric])
        begins = lacking > outage.missing_ratio_max * nodes
        key = (policy, metric)
        if begins and key not in self._in_outage:
            self._in_outage.add(key)
            words = (
                f"policy `{policy}`: {lacking} of {nodes} nodes have no fresh sample of `{metric}`{source_suffix(source)}; "
                f"{_EFFECT_MESSAGES[outage.action]} until they have"
            )
            self._core.commands.append(ReportPolicyEvent("Warning", "MetricOutage", words))
        elif not begins and key in self._in_outage:
            self._in_outage.discard(key)
            words = f"policy `{policy}`: samples of `{metric}` are back, {nodes - lacking} of {nodes} nodes have one"
            self._core.commands.append(ReportPolicyEvent("Normal", "MetricRecovered", words))
