"""What an evaluation looks at: the cluster as it stands, or as it would be, with samples and the time."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.view import View
from policysched.lang.ir.arithmetic import Number


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is to look at: the columns, perhaps an overlay (`metric_overrides`: the metrics' values where it changed them), the
    policy's samples, the clock."""

    columns: Columns
    overlay: Overlay | None
    metrics: Mapping[str, MetricColumn]
    now_ns: int
    samples_key: Hashable
    metric_overrides: Mapping[str, Mapping[int, Number]]

    def view(self, rows: Iterable[int] | None = None) -> View:
        chosen = None if rows is None else sorted(rows)
        hypothetical = None if self.overlay is None else self.overlay.usages
        return View(
            self.columns,
            chosen,
            now_ns=self.now_ns,
            metrics=self.metrics,
            overlay_usages=hypothetical,
            metric_overrides=self.metric_overrides,
            overlay_pods=None if self.overlay is None else self.overlay.pods,
            claim_use_deltas=None if self.overlay is None else self.overlay.claim_use_deltas,
            volume_reservations=None if self.overlay is None else self.overlay.volume_reservations,
            device_reservations=None if self.overlay is None else self.overlay.device_reservations,
        )

    def metrics_known_until_ns(self, names: Iterable[str]) -> int | None:
        untils = [self.metrics[name].known_until_ns(self.now_ns) for name in names]
        return min(untils) if untils else None
