"""What the rules are about: the pod and what is known of it, and the cluster as it is or as an overlay has it.

Owns what is kept of the cluster for all evaluations: the columns, the counts of pods, the columns of metrics, and what the pods
on an overlay add to metrics.
"""

from collections.abc import Collection, Mapping

from policysched.cluster.cache import Cache
from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.samples import Samples
from policysched.cluster.shares import ShareOf
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.pod_counts import Counts, Without
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.compile.assumed_load import Laid
from policysched.evaluate.compile.lower import Variant
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.read_set import nameless
from policysched.evaluate.kernel import NOTHING_AROUND, Around
from policysched.evaluate.scalar.eval_context import Seen
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.program import Metric
from policysched.model.objects import Namespace, Pod, PodFacts


class Worlds:
    """Of one cache. `columns` are to be refreshed before a world is made."""

    def __init__(self, cache: Cache) -> None:
        self.columns = Columns(cache)
        self._cache = cache
        self._counts = Counts(cache)
        self._metric_columns: dict[tuple[str, Metric], MetricColumn] = {}
        self._laid: dict[Plan, Laid] = {}

    def keep_only(self, plans: Collection[Plan]) -> None:
        """Give back what was kept for the metrics of others."""
        metrics = {(plan.program.name, metric) for plan in plans for metric in plan.program.metrics.values()}
        self._metric_columns = {key: one for key, one in self._metric_columns.items() if key in metrics}
        self._laid = {plan: laid for plan, laid in self._laid.items() if plan in plans}

    def seen(self, pod: Pod, facts: PodFacts, now_ns: int, samples: Samples, overlay: Overlay | None) -> Seen:
        shares: ShareOf = self._cache.shares if overlay is None else overlay.shares
        counts = self._counts if overlay is None else Without(self._counts, overlay)
        return Seen(pod, self.namespace(pod), facts, now_ns, samples, shares=shares, everybody=counts)

    def namespace(self, pod: Pod) -> Namespace:
        return self._cache.namespaces.get(pod.namespace) or nameless(pod)

    def around(self, plan: Plan, variant: Variant, pod: Pod) -> Around:
        siblings = None
        if not pod.spread and plan.read_set(variant.active).siblings:
            siblings = self._cache.pod_sets.siblings(pod)
        if pod.extended and plan.sees_to_devices:
            left_over = DeviceStock(self._cache.devices).has_made_for(pod.uid)
            return Around(siblings, gives_devices=True, left_over=left_over)
        return NOTHING_AROUND if siblings is None else Around(siblings)

    def of(self, plan: Plan, variant: Variant, seen: Seen, overlay: Overlay | None) -> World:
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
            laid = self.laid_on(overlay, plan, seen.samples).values
        generations = tuple([column.generation for column in columns.values()])
        return World(self.columns, overlay, columns, seen.now_ns, generations, laid)

    def laid_on(self, overlay: Overlay, plan: Plan, samples: Samples) -> Laid:
        """What the pods on the overlay add to the plan's metrics."""
        found = self._laid.get(plan)
        if found is None or not found.is_of(overlay, samples):
            # Overlays are as large as the cluster: those that are over are not held until their policy needs another.
            self._laid = {one: laid for one, laid in self._laid.items() if laid.overlay is overlay}
            found = self._laid[plan] = Laid(plan.assume, overlay, self.columns, self.namespace, samples)
        found.catch_up(samples)
        return found
