"""What an evaluation looks at: the cluster as it stands, or as it would be, with samples and the time."""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.view import View
from policysched.lang.ir.arithmetic import Number


@dataclass(frozen=True, slots=True)
class World:
    """What there is to look at: the columns, perhaps an overlay (`laid`: the metrics' values where it changed them), the
    policy's samples, the clock."""

    columns: Columns
    overlay: Overlay | None
    metrics: Mapping[str, MetricColumn]
    now_ns: int
    samples_key: Hashable
    laid: Mapping[str, Mapping[int, Number]]

    def view(self, rows: Iterable[int] | None = None) -> View:
        chosen = None if rows is None else sorted(rows)
        hypothetical = None if self.overlay is None else self.overlay.usages
        return View(
            self.columns,
            chosen,
            now_ns=self.now_ns,
            metrics=self.metrics,
            hypothetical=hypothetical,
            laid=self.laid,
            pods=None if self.overlay is None else self.overlay.pods,
            claims=None if self.overlay is None else self.overlay.claims,
            promises=None if self.overlay is None else self.overlay.promises,
            devices=None if self.overlay is None else self.overlay.devices,
        )

    def metrics_known_until_ns(self, names: Iterable[str]) -> int | None:
        untils = [self.metrics[name].known_until_ns(self.now_ns) for name in names]
        return min(untils) if untils else None
