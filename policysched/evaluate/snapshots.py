"""What the rules are about: the pod and what is known of it, and the cluster as it is or as an overlay has it.

Owns what is kept of the cluster for all evaluations: the columns, the counts of pods, the columns of metrics, and what the pods
on an overlay add to metrics.
"""

from collections.abc import Collection, Mapping

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.samples import Samples
from policysched.cluster.shares import ShareLookup
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.pod_counter import ClusterPodCounter, HypotheticalPodCounter
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.compile.assumed_load import OverlayLoad
from policysched.evaluate.compile.lower import Variant
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.read_set import unknown_namespace
from policysched.evaluate.kernel import EMPTY_CLUSTER_CONTEXT, ClusterContext
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.declarations import Metric
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo


class SnapshotBuilder:
    """Of one cache. `columns` are to be refreshed before a world is made."""

    def __init__(self, cache: ClusterCache) -> None:
        self.columns = Columns(cache)
        self._cache = cache
        self._counts = ClusterPodCounter(cache)
        self._metric_columns: dict[tuple[str, Metric], MetricColumn] = {}
        self._overlay_loads: dict[Plan, OverlayLoad] = {}

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Give back what was kept for the metrics of others."""
        metrics = {(plan.program.name, metric) for plan in plans for metric in plan.program.metrics.values()}
        self._metric_columns = {key: one for key, one in self._metric_columns.items() if key in metrics}
        self._overlay_loads = {plan: laid for plan, laid in self._overlay_loads.items() if plan in plans}

    def eval_context(
        self, pod: Pod, facts: QueuedPodInfo, now_ns: int, samples: Samples, overlay: Overlay | None
    ) -> EvalContext:
        shares: ShareLookup = self._cache.shares if overlay is None else overlay.shares
        counts = self._counts if overlay is None else HypotheticalPodCounter(self._counts, overlay)
        return EvalContext(
            pod, self.namespace(pod), facts, now_ns, samples, shares=shares, pod_counter=counts
        )

    def namespace(self, pod: Pod) -> Namespace:
        return self._cache.namespaces.get(pod.namespace) or unknown_namespace(pod)

    def cluster_context(self, plan: Plan, variant: Variant, pod: Pod) -> ClusterContext:
        siblings = None
        if not pod.spread and plan.read_set(variant.active).reads_selector_group:
            siblings = self._cache.pod_sets.default_selector(pod)
        if pod.extended and plan.covers_devices:
            left_over = AvailableDevices(self._cache.devices).has_extended_claim(pod.uid)
            return ClusterContext(siblings, allocates_devices=True, has_stale_claim=left_over)
        return EMPTY_CLUSTER_CONTEXT if siblings is None else ClusterContext(siblings)

    def build(self, plan: Plan, variant: Variant, seen: EvalContext, overlay: Overlay | None) -> Snapshot:
        columns: dict[str, MetricColumn] = {}
        for name in variant.metrics:
            metric = plan.program.metrics[name]
            column = self._metric_columns.get((plan.program.name, metric))
            if column is None:
                column = self._metric_columns[plan.program.name, metric] = MetricColumn(metric, self.columns)
            column.refresh(seen.samples.get(name))
            columns[name] = column
        laid: Mapping[str, Mapping[int, Number]] = {}
        if overlay is not None and plan.assume.metrics:
            laid = self.overlay_load(overlay, plan, seen.samples).values
        generations = tuple([column.samples_version for column in columns.values()])
        return Snapshot(self.columns, overlay, columns, seen.now_ns, generations, laid)

    def overlay_load(self, overlay: Overlay, plan: Plan, samples: Samples) -> OverlayLoad:
        """What the pods on the overlay add to the plan's metrics."""
        found = self._overlay_loads.get(plan)
        if found is None or not found.matches(overlay, samples):
            # Overlays are as large as the cluster: those that are over are not held until their policy needs another.
            self._overlay_loads = {
                one: laid for one, laid in self._overlay_loads.items() if laid.overlay is overlay
            }
            found = self._overlay_loads[plan] = OverlayLoad(
                plan.assume, overlay, self.columns, self.namespace, samples
            )
        found.catch_up(samples)
        return found
