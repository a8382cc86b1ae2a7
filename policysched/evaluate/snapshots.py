"""Builds the inputs of evaluations: the context of a pod, and a snapshot of the cluster or of an
overlay.

Owns what all evaluations share: the node columns, the pod counts, the metric columns, and the load
that pods on an overlay add to metrics.
"""

from collections.abc import Collection, Iterator, Mapping

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.metric_samples import Samples
from policysched.cluster.namespace_shares import ShareLookup
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.pod_counter import ClusterPodCounter, HypotheticalPodCounter
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.kernel import EMPTY_CLUSTER_CONTEXT, ClusterContext
from policysched.evaluate.plan.assume_clauses import OverlayLoad
from policysched.evaluate.plan.lowering import Variant
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.plan.read_set import unknown_namespace
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.declarations import Metric
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo


class SnapshotBuilder:
    """For one cache. Refresh `columns` before building a snapshot."""

    def __init__(self, cache: ClusterCache) -> None:
        self.columns = Columns(cache)
        self._cache = cache
        self.pod_counter = ClusterPodCounter(cache, self.columns)
        self._metric_columns: dict[tuple[str, Metric], MetricColumn] = {}
        self._overlay_loads: dict[Plan, OverlayLoad] = {}

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Drop the metric columns and overlay loads of other plans."""
        metrics = {(plan.program.name, metric) for plan in plans for metric in plan.program.metrics.values()}
        self._metric_columns = {key: column for key, column in self._metric_columns.items() if key in metrics}
        self._overlay_loads = {plan: load for plan, load in self._overlay_loads.items() if plan in plans}

    def eval_context(
        self, pod: Pod, facts: QueuedPodInfo, now_ns: int, samples: Samples, overlay: Overlay | None
    ) -> EvalContext:
        shares: ShareLookup = self._cache.shares if overlay is None else overlay.shares
        counts = self.pod_counter if overlay is None else HypotheticalPodCounter(self.pod_counter, overlay)
        return EvalContext(
            pod, self.namespace(pod), facts, now_ns, samples, shares=shares, pod_counter=counts
        )

    def prepare_totals(self, plan: Plan, context: EvalContext) -> Iterator[None]:
        """Build, in steps, the totals over pods that the plan reads for this pod."""
        while self.pod_counter.catch_up_slice(plan.pod_totals):
            yield
        yield from self.pod_counter.prepare_in_steps(plan.totals_of_layers, context)
        yield from self.pod_counter.prepare_in_steps(plan.totals_read(plan.active_layers(context)), context)

    def namespace(self, pod: Pod) -> Namespace:
        return self._cache.namespaces.get(pod.namespace) or unknown_namespace(pod)

    def cluster_context(self, plan: Plan, variant: Variant, pod: Pod) -> ClusterContext:
        selector_group = None
        if not pod.spread and plan.read_set(variant.active).reads_selector_group:
            selector_group = self._cache.selector_owners.default_selector(pod)
        if pod.extended and plan.covers_extended_resources:
            left_over = AvailableDevices(self._cache.devices).has_extended_claim(pod)
            return ClusterContext(selector_group, allocates_devices=True, has_stale_claim=left_over)
        return EMPTY_CLUSTER_CONTEXT if selector_group is None else ClusterContext(selector_group)

    def build(self, plan: Plan, variant: Variant, context: EvalContext, overlay: Overlay | None) -> Snapshot:
        columns: dict[str, MetricColumn] = {}
        for name in variant.metrics:
            metric = plan.program.metrics[name]
            column = self._metric_columns.get((plan.program.name, metric))
            if column is None:
                column = self._metric_columns[plan.program.name, metric] = MetricColumn(metric, self.columns)
            column.refresh(context.samples.get(name))
            columns[name] = column
        overlay_values: Mapping[str, Mapping[int, Number]] = {}
        if overlay is not None and plan.assume.metrics:
            overlay_values = self.overlay_load(overlay, plan, context.samples).values
        generations = tuple([column.samples_version for column in columns.values()])
        return Snapshot(self.columns, overlay, columns, context.now_ns, generations, overlay_values)

    def overlay_load(self, overlay: Overlay, plan: Plan, samples: Samples) -> OverlayLoad:
        """What the pods on the overlay add to the plan's metrics."""
        load = self._overlay_loads.get(plan)
        if load is None or not load.matches(overlay, samples):
            # Overlays are as large as the cluster: drop the loads of other overlays.
            self._overlay_loads = {
                plan_of_load: load
                for plan_of_load, load in self._overlay_loads.items()
                if load.overlay is overlay
            }
            load = self._overlay_loads[plan] = OverlayLoad(
                plan.assume, overlay, self.columns, self.namespace, samples
            )
        load.catch_up(samples)
        return load
