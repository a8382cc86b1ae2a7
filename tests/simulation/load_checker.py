"""Invariants of the load metric of policy alpha: no pod is bound to a node whose load is known to be over the limit.

The load is recomputed from the samples and the pods bound to the node since, as far as the server
has them or their bind is in flight; with the load assumed for them the node is below the limit.
With `recover`, no node takes a pod soon after it was over the limit, whatever its latest sample.
With `then = wait`, pods that use the load go to no node without a sample, and at rest every node
has one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policysched.cluster.metric_samples import MetricSamples
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.recovery import recovery_conditions
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import Event, SamplesArrived
from policysched.scheduler.in_flight_binds import InFlightBind
from policysched.scheduler.scheduler import Scheduler
from tests.reference.expressions import assumed_load
from tests.simulation.policy_texts import LOAD_HELD_NS, LOAD_LIMIT, WAITS_BELOW_RANK

POLICY, METRIC = "alpha", "load"


@dataclass(frozen=True, slots=True)
class _Sent:
    pod: Pod
    namespace: Namespace | None
    node: NodeName
    at_ns: int
    bind: InFlightBind


class LoadChecker:
    """Checks one process of a replica."""

    def __init__(
        self, scheduler: Scheduler, local: LocalClient, now_ns: Callable[[], int], fail: Callable[[str], None]
    ) -> None:
        self._core = scheduler._core
        self._local, self._now_ns, self._fail = local, now_ns, fail
        self._sent: dict[PodUid, _Sent] = {}
        self._over_ns: dict[NodeName, int] = {}

    def handled(self, event: Event) -> None:
        if isinstance(event, SamplesArrived) and (event.policy, event.metric) == (POLICY, METRIC):
            for node, sample in event.samples.values.items():
                if sample.value >= LOAD_LIMIT:
                    self._over_ns[node] = max(self._over_ns.get(node, 0), sample.at_ns)

    def decided(self, bind: Bind) -> None:
        """Pods with claims are skipped: they were decided when their claims were reserved, at a
        time the bind does not have.
        """
        observed = self._core.cache.pods[bind.uid]
        if observed.pod.claims or observed.pod.device_claims:
            return
        if bind.policy == POLICY:
            self._check(bind)
        space = self._core.namespace_of(observed.pod)
        in_flight = self._core.binds.in_flight[bind.uid]
        self._sent[bind.uid] = _Sent(observed.pod, space, bind.node, self._now_ns(), in_flight)

    def _check(self, bind: Bind) -> None:
        running, now_ns = self._core.policies.running[POLICY], self._now_ns()
        program, samples = running.program, self._core.samples.of_policy(POLICY).get(METRIC)
        metric = program.metrics[METRIC]
        true_ns = known_from_ns(samples, metric, bind.node, now_ns)
        if program.outage is not None:
            if program.outage.action == "wait" and true_ns is None and self._awaits_load(bind):
                self._fail(
                    f"{bind.name} goes to {bind.node}, whose load is unknown, instead of waiting for it"
                )
            return
        if samples is None or true_ns is None:
            return
        load = samples.values[bind.node].value + sum(
            assumed_load(program, metric, earlier.pod, earlier.namespace)
            for earlier in self._sent.values()
            if earlier.node == bind.node and earlier.at_ns >= max(true_ns, running.since_ns)
            if self._is_in_flight(earlier) or self._is_on_node(earlier)
        )
        if load >= LOAD_LIMIT + 1e-9:
            self._fail(f"{bind.name} goes to {bind.node}, whose load is {load:.2f} with the assumed load")
        over_ns = self._over_ns.get(bind.node, 0)
        gold = self._core.cache.namespaces[bind.namespace].labels.get("tier") == "gold"
        if (
            recovery_conditions(program)
            and not gold
            and over_ns >= running.since_ns
            and now_ns < over_ns + LOAD_HELD_NS
        ):
            span_s = (now_ns - over_ns) / 1e9
            self._fail(f"{bind.name} goes to {bind.node}, whose load was over the limit {span_s:.1f} s ago")

    def _awaits_load(self, bind: Bind) -> bool:
        rank = self._core.cache.pods[bind.uid].pod.labels.get("rank", "")
        return not rank.isdecimal() or int(rank) < WAITS_BELOW_RANK

    def _is_in_flight(self, sent: _Sent) -> bool:
        """Whether the bind is not answered yet and the pod is not known to be deleted, since a bind
        can outlive its pod.
        """
        observed = self._core.cache.pods.get(sent.pod.uid)
        in_flight = self._core.binds.in_flight.get(sent.pod.uid)
        return in_flight is sent.bind and observed is not None and not observed.deleting

    def _is_on_node(self, sent: _Sent) -> bool:
        pod = self._local.get("pods", sent.pod.namespace, sent.pod.name)
        return (
            pod is not None
            and pod["metadata"]["uid"] == sent.pod.uid
            and not pod["metadata"].get("deletionTimestamp")
            and pod["spec"].get("nodeName") == sent.node
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        )


def known_from_ns(samples: MetricSamples | None, metric: Metric, node: NodeName, now_ns: int) -> int | None:
    """The time of the node's sample; None when it has no usable one."""
    if samples is None or node not in samples.values:
        return None
    true_ns = min(samples.values[node].at_ns, samples.polled_ns)
    return None if now_ns - true_ns > metric.stale_after_ns else true_ns


def missing_load_problems(scheduler: Scheduler, local: LocalClient, now_ns: int) -> list[str]:
    """At rest, with the metric available, the policy has a sample for every node."""
    running = scheduler._core.policies.running.get(POLICY)
    if running is None or METRIC not in running.program.metrics:
        return []
    metric, samples = running.program.metrics[METRIC], scheduler._core.samples.of_policy(POLICY).get(METRIC)
    names = [NodeName(node["metadata"]["name"]) for node in local.list("nodes")]
    return [
        f"the load of {name} has a sample and is unknown"
        for name in names
        if known_from_ns(samples, metric, name, now_ns) is None
    ]
