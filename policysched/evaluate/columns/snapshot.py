"""`Snapshot`: what an evaluation reads: the cluster or an overlay of it, samples and the time."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.view import View
from policysched.lang.ir.arithmetic import Number


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The columns, an overlay if any (`metric_overrides`: the values of metrics that it changes, by
    row), the policy's samples and the clock."""

    columns: Columns
    overlay: Overlay | None
    metrics: Mapping[str, MetricColumn]
    now_ns: int
    samples_key: Hashable
    metric_overrides: Mapping[str, Mapping[int, Number]]

    def view(self, rows: Iterable[int] | None = None) -> View:
        return View(
            self.columns,
            None if rows is None else sorted(rows),
            now_ns=self.now_ns,
            metrics=self.metrics,
            overlay_usages=None if self.overlay is None else self.overlay.usages,
            overlay_array=None if self.overlay is None else self.overlay.array,
            metric_overrides=self.metric_overrides,
            overlay_pods=None if self.overlay is None else self.overlay.pods,
            claim_use_deltas=None if self.overlay is None else self.overlay.claim_use_deltas,
            volume_reservations=None if self.overlay is None else self.overlay.volume_reservations,
            device_reservations=None if self.overlay is None else self.overlay.device_reservations,
        )

    def metrics_known_until_ns(self, names: Iterable[str]) -> int | None:
        untils = [self.metrics[name].known_until_ns(self.now_ns) for name in names]
        return min(untils) if untils else None
