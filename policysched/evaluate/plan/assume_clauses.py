"""The load that a metric assumes for pods that its samples do not contain yet (`assume = 40Mbps`).

Samples carry the load of pods placed since (`MetricSamples.assumed`). The pods of an overlay count
at once, so that the members of a gang do not all go to one idle node. `scheduler.policies.assumed_load_tracker`
keeps what the pods on nodes add.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.cluster.metric_samples import MetricSamples, Samples
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import add_metric_values
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.plan.read_set import unknown_namespace
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod


class CompiledAssume:
    """The `assume` clauses of a program's node metrics, as functions of a pod."""

    def __init__(self, program: Program) -> None:
        self.metrics: dict[str, Metric] = {
            name: metric
            for name, metric in program.metrics.items()
            if metric.assumed_load is not None and is_node_metric(metric)
        }
        self._functions = {
            name: compile_scalar(metric.assumed_load, program)
            for name, metric in self.metrics.items()
            if metric.assumed_load is not None
        }

    def amount(self, name: str, pod: Pod, namespace: Namespace | None) -> Number:
        """In the internal unit of the metric `name`. 0 where an input that it reads is missing."""
        amount = self._functions[name](EvalContext(pod, namespace or unknown_namespace(pod)))
        if amount is None:
            return 0
        assert isinstance(amount, int | float), f"{name} assumes {amount!r} for {pod.full_name}"
        return amount

    def total(self, name: str, left: Number, right: Number) -> Number:
        """The sum of two amounts."""
        return add_metric_values(self.metrics[name], left, right)


class OverlayLoad:
    """What the pods added to one overlay add to the metrics of one program.

    `values` are the metric values of the rows that differ, by metric and row; `samples` are the
    same for scalar evaluation. Each pod is counted once, so that the hundredth member of a gang
    costs as much as the second.
    """

    def __init__(
        self,
        assume: CompiledAssume,
        overlay: Overlay,
        columns: Columns,
        namespace_of: Callable[[Pod], Namespace],
        samples: Samples,
    ) -> None:
        self._assume = assume
        self.overlay = overlay
        self._columns = columns
        self._namespace_of = namespace_of
        self._base_samples = {name: samples[name] for name in assume.metrics if name in samples}
        self.samples: Samples = samples
        self.values: Mapping[str, Mapping[int, Number]] = {}
        self._position, self._removal_count = 0, overlay.removal_count
        self._rebuild()

    def matches(self, overlay: Overlay, samples: Samples) -> bool:
        """Whether this load is of the same overlay and the same samples."""
        return overlay is self.overlay and all(
            samples.get(name) is self._base_samples.get(name) for name in self._assume.metrics
        )

    def catch_up(self, samples: Samples) -> None:
        """Count the pods added since the last call."""
        if self.overlay.removal_count != self._removal_count:
            self._rebuild()
        added_pods = self.overlay.added_pods
        for pod, node in added_pods[self._position :]:
            for name in self._base_samples:
                self._add(name, pod, node)
        self._position = len(added_pods)
        self.samples = {**samples, **self._overlay_samples}

    def _rebuild(self) -> None:
        self._position, self._removal_count = 0, self.overlay.removal_count
        self._totals: dict[str, dict[NodeName, Number]] = {name: {} for name in self._base_samples}
        self._rows: dict[str, dict[int, Number]] = {name: {} for name in self._base_samples}
        self.values = self._rows
        self._overlay_samples: dict[str, MetricSamples] = {
            name: replace(samples, assumed=ChainMap(self._totals[name], samples.assumed))  # type: ignore[arg-type]
            for name, samples in self._base_samples.items()
        }

    def _add(self, name: str, pod: Pod, node: NodeName) -> None:
        samples, totals = self._base_samples[name], self._totals[name]
        before = totals.get(node, samples.assumed.get(node, 0))
        amount = self._assume.amount(name, pod, self._namespace_of(pod))
        totals[node] = self._assume.total(name, before, amount)
        sample, row = samples.values.get(node), self._columns.row(node)
        if sample is not None and row is not None:
            self._rows[name][row] = self._assume.total(name, sample.value, totals[node])
