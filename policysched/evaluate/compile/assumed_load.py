"""What a metric assumes of pods that are on a node and not yet in its sample (`assume = 40Mbps`).

Samples come with what was assumed for the pods that were placed since (`MetricSamples.assumed`). An overlay lays more
pods, and each of them counts at once, so that a gang does not fill one idle node either.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.cluster.samples import MetricSamples, Samples
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import sum_of
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.compile.read_set import nameless
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Seen
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.program import Metric, Program, of_nodes
from policysched.model.objects import Namespace, NodeName, Pod


class Assume:
    """The `assume` of each metric of nodes of a program that has one, as functions of a pod."""

    def __init__(self, program: Program) -> None:
        self.metrics: dict[str, Metric] = {
            name: metric
            for name, metric in program.metrics.items()
            if metric.assume is not None and of_nodes(metric)
        }
        self._functions = {
            name: compiled(metric.assume, program)
            for name, metric in self.metrics.items()
            if metric.assume is not None
        }

    def amount(self, name: str, pod: Pod, namespace: Namespace | None) -> Number:
        """In the held unit of the metric `name`. An input that the pod has not got adds nothing."""
        found = self._functions[name](Seen(pod, namespace or nameless(pod)))
        if found is None:
            return 0
        assert isinstance(found, int | float), f"{name} assumes {found!r} of {pod.full_name}"
        return found

    def total(self, name: str, left: Number, right: Number) -> Number:
        """Two amounts as one."""
        return sum_of(self.metrics[name], left, right)


class Laid:
    """What the pods laid on one overlay add to the metrics of one program.

    `values` are the metrics' values on the rows that differ, by metric and row; `samples` are the same for whoever
    looks at one node. Each pod is counted once: asking for the hundredth member of a gang costs what the second did.
    """

    def __init__(
        self,
        assume: Assume,
        overlay: Overlay,
        columns: Columns,
        namespace_of: Callable[[Pod], Namespace],
        samples: Samples,
    ) -> None:
        self._assume = assume
        self.overlay = overlay
        self._columns = columns
        self._namespace_of = namespace_of
        self._given = {name: samples[name] for name in assume.metrics if name in samples}
        self.samples: Samples = samples
        self.values: Mapping[str, Mapping[int, Number]] = {}
        self._position, self._lifts = 0, overlay.lifts
        self._start_over()

    def is_of(self, overlay: Overlay, samples: Samples) -> bool:
        """Whether this is about the same overlay and the same samples."""
        return overlay is self.overlay and all(
            samples.get(name) is self._given.get(name) for name in self._assume.metrics
        )

    def catch_up(self, samples: Samples) -> None:
        """Count the pods that were laid since the last time."""
        if self.overlay.lifts != self._lifts:
            self._start_over()
        laid = self.overlay.laid
        for pod, node in laid[self._position :]:
            for name in self._given:
                self._add(name, pod, node)
        self._position = len(laid)
        self.samples = {**samples, **self._more}

    def _start_over(self) -> None:
        self._position, self._lifts = 0, self.overlay.lifts
        self._totals: dict[str, dict[NodeName, Number]] = {name: {} for name in self._given}
        self._rows: dict[str, dict[int, Number]] = {name: {} for name in self._given}
        self.values = self._rows
        self._more: dict[str, MetricSamples] = {
            name: replace(given, assumed=ChainMap(self._totals[name], given.assumed))  # type: ignore[arg-type]
            for name, given in self._given.items()
        }

    def _add(self, name: str, pod: Pod, node: NodeName) -> None:
        given, totals = self._given[name], self._totals[name]
        before = totals.get(node, given.assumed.get(node, 0))
        amount = self._assume.amount(name, pod, self._namespace_of(pod))
        totals[node] = self._assume.total(name, before, amount)
        sample, row = given.values.get(node), self._columns.row(node)
        if sample is not None and row is not None:
            self._rows[name][row] = self._assume.total(name, sample.value, totals[node])
