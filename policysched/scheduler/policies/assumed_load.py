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
from policysched.lang.ir.program import Metric
from policysched.model.objects import Namespace, NodeName, Pod, PodUid


@dataclass(slots=True)
class _Landing:
    """A pod that came to a node, and what was assumed of it then."""

    pod: Pod
    namespace: Namespace | None
    node: NodeName
    at_ns: int
    amount: Number


@dataclass(slots=True)
class _Account:
    """One metric of one policy. `landings` in the order in which they came; `by_node` the same for each node; `totals` are
    what `MetricSamples.assumed` shows, alive."""

    plan: Plan
    metric: Metric
    landings: dict[PodUid, _Landing] = field(default_factory=dict)
    by_node: dict[NodeName, dict[PodUid, _Landing]] = field(default_factory=dict)
    totals: dict[NodeName, Number] = field(default_factory=dict)

    def land(self, pod: Pod, namespace: Namespace | None, node: NodeName, at_ns: int) -> None:
        self.leave(pod.uid)
        amount = self.plan.assumed(self.metric.name, pod, namespace)
        landing = _Landing(pod, namespace, node, at_ns, amount)
        self.landings[pod.uid] = landing
        self.by_node.setdefault(node, {})[pod.uid] = landing
        self.totals[node] = self._sum(self.totals.get(node, 0), amount)

    def leave(self, uid: PodUid) -> None:
        landing = self.landings.pop(uid, None)
        if landing is not None:
            del self.by_node[landing.node][uid]
            self._add_up(landing.node)

    def forget_old(self, now_ns: int) -> None:
        """A sample that does not have such a landing is too old to count, so nobody asks what to add to it."""
        while self.landings:
            uid, oldest = next(iter(self.landings.items()))
            if now_ns - oldest.at_ns <= self.metric.stale_ns:
                return
            self.leave(uid)

    def forget_sampled(self, samples: MetricSamples) -> None:
        """Samples show what came before them. What came in the same nanosecond, they may not."""
        for node, landings in list(self.by_node.items()):
            sample = samples.values.get(node)
            if sample is None:
                continue
            true_ns = min(sample.at_ns, samples.polled_ns)
            seen = [uid for uid, landing in landings.items() if landing.at_ns < true_ns]
            for uid in seen:
                del landings[uid], self.landings[uid]
            if seen:
                self._add_up(node)

    def _add_up(self, node: NodeName) -> None:
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
        if sum(map(len, self.by_node.values())) != len(self.landings):
            yield f"{name}: the pods of its nodes are not those that it counts"
        for node in self.by_node.keys() | self.totals.keys():
            total: Number = 0
            for landing in self.by_node.get(node, {}).values():
                total = self._sum(total, landing.amount)
            if total != self.totals.get(node):
                yield f"{name}: assumes {self.totals.get(node)} on {node}, its pods come to {total}"


class Assumed:
    """The accounts of all running policies, by policy and metric."""

    def __init__(self) -> None:
        self._accounts: dict[str, dict[str, _Account]] = {}

    def follow(self, plan: Plan) -> None:
        """The plan runs from now on. What came under the text before it counts on, by what this one assumes."""
        policy = plan.program.name
        before, after = self._accounts.pop(policy, {}), dict[str, _Account]()
        for name, metric in plan.assume.metrics.items():
            account = after[name] = _Account(plan, metric)
            old = before.get(name)
            for one in [] if old is None else old.landings.values():
                account.land(one.pod, one.namespace, one.node, one.at_ns)
        if after:
            self._accounts[policy] = after

    def landed(self, pod: Pod, namespace: Namespace | None, node: NodeName, now_ns: int) -> None:
        for account in self._all():
            account.forget_old(now_ns)
            account.land(pod, namespace, node, now_ns)

    def left(self, uid: PodUid) -> None:
        for account in self._all():
            account.leave(uid)

    def arrived(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """The samples, with what they do not show yet."""
        account = self._accounts.get(policy, {}).get(metric)
        if account is None:
            return replace(samples, assumed={}) if samples.assumed else samples
        account.forget_sampled(samples)
        return replace(samples, assumed=account.totals)

    def counted(self) -> Iterator[tuple[str, PodUid, NodeName]]:
        """(policy, pod, node) of everything that counts now."""
        for policy, accounts in self._accounts.items():
            for account in accounts.values():
                for uid, landing in account.landings.items():
                    yield policy, uid, landing.node

    def check(self) -> list[str]:
        return [words for account in self._all() for words in account.check()]

    def _all(self) -> Iterator[_Account]:
        for accounts in self._accounts.values():
            yield from accounts.values()
