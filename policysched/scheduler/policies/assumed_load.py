"""What metrics assume of pods that their samples do not have yet, kept node by node, so that one idle node does not
take a whole burst.

A pod counts from the moment it comes to a node, whoever placed it, until a sample of that node is newer: the traffic is
real either way. One that goes before that is taken back. What an amount was, it stays, even if the pod or its namespace
change. A metric counts what comes while it runs: pods that were there before this process saw the cluster are long in
its samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from policysched.cluster.samples import MetricSamples
from policysched.evaluate import Plan
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.declarations import Metric
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod


@dataclass(slots=True)
class _AssumedPod:
    """A pod that came to a node, and what was assumed of it then."""

    pod: Pod
    namespace: Namespace | None
    node: NodeName
    at_ns: int
    amount: Number


@dataclass(slots=True)
class _MetricLoad:
    """One metric of one policy. `pods` in the order in which they came; `by_node` the same for each node; `totals` are
    what `MetricSamples.assumed` shows, alive."""

    plan: Plan
    metric: Metric
    pods: dict[PodUid, _AssumedPod] = field(default_factory=dict)
    by_node: dict[NodeName, dict[PodUid, _AssumedPod]] = field(default_factory=dict)
    totals: dict[NodeName, Number] = field(default_factory=dict)

    def add(self, pod: Pod, namespace: Namespace | None, node: NodeName, at_ns: int) -> None:
        self.remove(pod.uid)
        amount = self.plan.assumed_load(self.metric.name, pod, namespace)
        landing = _AssumedPod(pod, namespace, node, at_ns, amount)
        self.pods[pod.uid] = landing
        self.by_node.setdefault(node, {})[pod.uid] = landing
        self.totals[node] = self._sum(self.totals.get(node, 0), amount)

    def remove(self, uid: PodUid) -> None:
        landing = self.pods.pop(uid, None)
        if landing is not None:
            del self.by_node[landing.node][uid]
            self._recompute_total(landing.node)

    def drop_stale(self, now_ns: int) -> None:
        """A sample that does not have such a landing is too old to count, so nobody asks what to add to it."""
        while self.pods:
            uid, oldest = next(iter(self.pods.items()))
            if now_ns - oldest.at_ns <= self.metric.stale_after_ns:
                return
            self.remove(uid)

    def drop_sampled(self, samples: MetricSamples) -> None:
        """Samples show what came before them. What came in the same nanosecond, they may not."""
        for node, landings in list(self.by_node.items()):
            sample = samples.values.get(node)
            if sample is None:
                continue
            true_ns = min(sample.at_ns, samples.polled_ns)
            seen = [uid for uid, landing in landings.items() if landing.at_ns < true_ns]
            for uid in seen:
                del landings[uid], self.pods[uid]
            if seen:
                self._recompute_total(node)

    def _recompute_total(self, node: NodeName) -> None:
        """Anew, since what is taken from a sum of floats leaves a rest."""
        landings = self.by_node[node]
        if not landings:
            del self.by_node[node]
            del self.totals[node]
            return
        total: Number = 0
        for landing in landings.values():
            total = self._sum(total, landing.amount)
        self.totals[node] = total

    def _sum(self, left: Number, right: Number) -> Number:
        return self.plan.assume.total(self.metric.name, left, right)

    def check(self) -> Iterator[str]:
        name = f"metric {self.metric.name} of policy {self.plan.program.name}"
        if sum(map(len, self.by_node.values())) != len(self.pods):
            yield f"{name}: the pods of its nodes are not those that it counts"
        for node in self.by_node.keys() | self.totals.keys():
            total: Number = 0
            for landing in self.by_node.get(node, {}).values():
                total = self._sum(total, landing.amount)
            if total != self.totals.get(node):
                yield f"{name}: assumes {self.totals.get(node)} on {node}, its pods come to {total}"


class AssumedLoadTracker:
    """The accounts of all running policies, by policy and metric."""

    def __init__(self) -> None:
        self._loads: dict[str, dict[str, _MetricLoad]] = {}

    def activate(self, plan: Plan) -> None:
        """The plan runs from now on. What came under the text before it counts on, by what this one assumes."""
        policy = plan.program.name
        before, after = self._loads.pop(policy, {}), dict[str, _MetricLoad]()
        for name, metric in plan.assume.metrics.items():
            account = after[name] = _MetricLoad(plan, metric)
            old = before.get(name)
            for one in [] if old is None else old.pods.values():
                account.add(one.pod, one.namespace, one.node, one.at_ns)
        if after:
            self._loads[policy] = after

    def pod_placed(self, pod: Pod, namespace: Namespace | None, node: NodeName, now_ns: int) -> None:
        for account in self._all_loads():
            account.drop_stale(now_ns)
            account.add(pod, namespace, node, now_ns)

    def pod_removed(self, uid: PodUid) -> None:
        for account in self._all_loads():
            account.remove(uid)

    def apply_samples(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """The samples, with what they do not show yet."""
        account = self._loads.get(policy, {}).get(metric)
        if account is None:
            return replace(samples, assumed={}) if samples.assumed else samples
        account.drop_sampled(samples)
        return replace(samples, assumed=account.totals)

    def assumed_pods(self) -> Iterator[tuple[str, PodUid, NodeName]]:
        """(policy, pod, node) of everything that counts now."""
        for policy, accounts in self._loads.items():
            for account in accounts.values():
                for uid, landing in account.pods.items():
                    yield policy, uid, landing.node

    def check(self) -> list[str]:
        return [words for account in self._all_loads() for words in account.check()]

    def _all_loads(self) -> Iterator[_MetricLoad]:
        for accounts in self._loads.values():
            yield from accounts.values()
