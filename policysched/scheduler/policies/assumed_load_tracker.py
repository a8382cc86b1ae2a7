"""Assumed load: what each metric assumes of pods that are not in its samples yet, by node.

Without it one idle node would take a whole burst of pods. A pod counts from its arrival on a node,
whichever scheduler placed it, until a newer sample of that node arrives; a pod that leaves before is
subtracted. The amount is fixed on arrival, even if the pod or its namespace changes. Only pods that
arrive while the metric is active count: samples contain the earlier ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from policysched.cluster.metric_samples import MetricSamples
from policysched.evaluate import Plan
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.declarations import Metric
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod


@dataclass(slots=True)
class _AssumedPod:
    """A pod that arrived on a node, and the amount assumed for it."""

    pod: Pod
    namespace: Namespace | None
    node: NodeName
    at_ns: int
    amount: Number


@dataclass(slots=True)
class _MetricLoad:
    """Assumed load of one metric of one policy.

    `pods` and `by_node` are in order of arrival. `totals` is shared with `MetricSamples.assumed`.
    """

    plan: Plan
    metric: Metric
    pods: dict[PodUid, _AssumedPod] = field(default_factory=dict)
    by_node: dict[NodeName, dict[PodUid, _AssumedPod]] = field(default_factory=dict)
    totals: dict[NodeName, Number] = field(default_factory=dict)

    def add(self, pod: Pod, namespace: Namespace | None, node: NodeName, at_ns: int) -> None:
        self.remove(pod.uid)
        amount = self.plan.assumed_load(self.metric.name, pod, namespace)
        assumed = _AssumedPod(pod, namespace, node, at_ns, amount)
        self.pods[pod.uid] = assumed
        self.by_node.setdefault(node, {})[pod.uid] = assumed
        self.totals[node] = self._sum(self.totals.get(node, 0), amount)

    def remove(self, uid: PodUid) -> None:
        assumed = self.pods.get(uid)
        if assumed is not None:
            self._drop(assumed.node, [uid])

    def drop_stale(self, now_ns: int) -> None:
        """Drop pods older than `stale_after_ns`: a sample without them is stale, so nothing is added to it."""
        stale: dict[NodeName, list[PodUid]] = {}
        for uid, assumed in self.pods.items():
            if now_ns - assumed.at_ns <= self.metric.stale_after_ns:
                break
            stale.setdefault(assumed.node, []).append(uid)
        for node, uids in stale.items():
            self._drop(node, uids)

    def drop_sampled(self, samples: MetricSamples) -> None:
        """Drop pods that arrived before the samples were taken; at the same nanosecond a pod still counts."""
        for node, assumed_pods in list(self.by_node.items()):
            sample = samples.values.get(node)
            if sample is None:
                continue
            measured_ns = min(sample.at_ns, samples.polled_ns)
            sampled = [uid for uid, assumed in assumed_pods.items() if assumed.at_ns < measured_ns]
            if sampled:
                self._drop(node, sampled)

    def _drop(self, node: NodeName, uids: Iterable[PodUid]) -> None:
        for uid in uids:
            del self.by_node[node][uid], self.pods[uid]
        self._recompute_total(node)

    def _recompute_total(self, node: NodeName) -> None:
        """Sum from scratch: subtracting floats would leave a residue."""
        assumed_pods = self.by_node[node]
        if not assumed_pods:
            del self.by_node[node]
            del self.totals[node]
            return
        total: Number = 0
        for assumed in assumed_pods.values():
            total = self._sum(total, assumed.amount)
        self.totals[node] = total

    def _sum(self, left: Number, right: Number) -> Number:
        return self.plan.assume.total(self.metric.name, left, right)

    def check(self) -> Iterator[str]:
        name = f"metric {self.metric.name} of policy {self.plan.program.name}"
        if sum(map(len, self.by_node.values())) != len(self.pods):
            yield f"{name}: its pods by node differ from its pods"
        for node in self.by_node.keys() | self.totals.keys():
            total: Number = 0
            for assumed in self.by_node.get(node, {}).values():
                total = self._sum(total, assumed.amount)
            if total != self.totals.get(node):
                yield f"{name}: assumes {self.totals.get(node)} on {node}, but the sum of its pods is {total}"


class AssumedLoadTracker:
    """Assumed loads of all active policies, by policy and metric."""

    def __init__(self) -> None:
        self._loads: dict[str, dict[str, _MetricLoad]] = {}

    def activate(self, plan: Plan) -> None:
        """Activate a plan. Pods counted under the previous version keep counting, with the new amounts."""
        policy = plan.program.name
        before, after = self._loads.pop(policy, {}), dict[str, _MetricLoad]()
        for name, metric in plan.assume.metrics.items():
            load = after[name] = _MetricLoad(plan, metric)
            old = before.get(name)
            for assumed in [] if old is None else old.pods.values():
                load.add(assumed.pod, assumed.namespace, assumed.node, assumed.at_ns)
        if after:
            self._loads[policy] = after

    def pod_placed(self, pod: Pod, namespace: Namespace | None, node: NodeName, now_ns: int) -> None:
        for load in self._all_loads():
            load.drop_stale(now_ns)
            load.add(pod, namespace, node, now_ns)

    def pod_removed(self, uid: PodUid) -> None:
        for load in self._all_loads():
            load.remove(uid)

    def apply_samples(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """Return the samples with the assumed load that they do not contain yet."""
        load = self._loads.get(policy, {}).get(metric)
        if load is None:
            return replace(samples, assumed={}) if samples.assumed else samples
        load.drop_sampled(samples)
        return replace(samples, assumed=load.totals)

    def assumed_pods(self) -> Iterator[tuple[str, PodUid, NodeName]]:
        """(policy, pod, node) of every pod that counts now."""
        for policy, loads in self._loads.items():
            for load in loads.values():
                for uid, assumed in load.pods.items():
                    yield policy, uid, assumed.node

    def check(self) -> list[str]:
        return [problem for load in self._all_loads() for problem in load.check()]

    def _all_loads(self) -> Iterator[_MetricLoad]:
        for loads in self._loads.values():
            yield from loads.values()
