"""The metric samples of each policy, with everything that is derived from them and from placements."""

from collections.abc import Iterator

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples, Samples
from policysched.evaluate.plan.read_set import unknown_namespace
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.pods import Placement
from policysched.scheduler.policies.assumed_load_tracker import AssumedLoadTracker
from policysched.scheduler.policies.first_samples import FirstSamples, SourceNameOf
from policysched.scheduler.policies.policy_states import PolicyStates
from policysched.scheduler.policies.recovery_tracker import RecoveryTracker
from policysched.scheduler.policy_permissions import COUNTS_ALWAYS, Counts
from policysched.scheduler.queue.held_policies import HeldForReason


class PolicySamples:
    """What rules can read as samples.

    by_policy: samples by policy and metric, with assumed load and recovery applied, and the values
        of the policy's states.
    first_samples: the policies that are held until each metric was polled once.
    assumed_load: the load of placed pods that samples do not show yet.
    recovery_tracker: the nodes that a recovery condition excludes.
    policy_states: the values that policies keep of what happened to pods.
    source_name_of: the name of the source that a metric is polled from, for messages.
    """

    def __init__(
        self,
        cache: ClusterCache,
        first_samples_s: float,
        source_name_of: SourceNameOf,
        held_policies: HeldForReason,
        counts: Counts = COUNTS_ALWAYS,
    ) -> None:
        self._cache = cache
        self.source_name_of = source_name_of
        self.by_policy: dict[str, dict[str, MetricSamples]] = {}
        self.first_samples = FirstSamples(first_samples_s, source_name_of, held_policies)
        self.assumed_load = AssumedLoadTracker()
        self.recovery_tracker = RecoveryTracker()
        self.policy_states = PolicyStates(
            lambda observed: cache.namespaces.get(observed.pod.namespace) or unknown_namespace(observed.pod),
            counts,
        )

    def of_policy(self, policy: str) -> Samples:
        return self.by_policy.get(policy, {})

    def of_metrics(self) -> Iterator[tuple[tuple[str, str], MetricSamples]]:
        """The latest samples by policy and metric, without the values of states."""
        states = self.policy_states.counts()
        for policy, by_name in self.by_policy.items():
            yield from (((policy, name), by_name[name]) for name in by_name if (policy, name) not in states)

    def put(self, policy: str, metric: str, samples: MetricSamples) -> None:
        self.by_policy.setdefault(policy, {})[metric] = self.adjust(policy, metric, samples)

    def adjust(self, policy: str, metric: str, samples: MetricSamples) -> MetricSamples:
        """Add the assumed load to the samples, then apply the recovery conditions."""
        return self.recovery_tracker.apply_samples(
            policy, metric, self.assumed_load.apply_samples(policy, metric, samples)
        )

    def activate_states(self, program: Program, now_ns: int) -> None:
        """The program runs from now on: its rules read the values of its states beside its samples."""
        self.by_policy.setdefault(program.name, {}).update(self.policy_states.activate(program, now_ns))

    def forget(self, policy: str) -> None:
        """Of a removed policy, which reads no samples."""
        self.by_policy.pop(policy, None)
        self.first_samples.forget(policy)

    def update_assumed_load(self, uid: PodUid, before: Placement | None, now_ns: int) -> None:
        """Follow the ledger after a change that may have placed the pod or removed it from its node."""
        after = self._cache.ledger.placement(uid)
        if after is None:
            self.assumed_load.pod_removed(uid)
        elif before is None or before.node != after.node:
            namespace = self._cache.namespaces.get(after.pod.namespace)
            self.assumed_load.pod_placed(after.pod, namespace, after.node, now_ns)
