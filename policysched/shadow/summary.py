"""What a shadow has seen so far."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from policysched.scheduler.limits import SECOND_NS
from policysched.shadow.observer import RESULTS, BindComparison

_LATEST_MAX = 10


@dataclass(slots=True)
class ShadowSummary:
    """`rules`: how many binds differ, or are rejected, by result, rule and its location. `latest` are the last of those."""

    results: Counter[str] = field(default_factory=Counter)
    rules: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    in_flight: int = 0
    earlier: int = 0
    earlier_ns: int = 0
    latest: deque[BindComparison] = field(default_factory=lambda: deque(maxlen=_LATEST_MAX))

    def add(self, comparison: BindComparison) -> None:
        self.results[comparison.result] += 1
        self.in_flight += comparison.in_flight > 0
        self.earlier += comparison.earlier_ns > 0
        self.earlier_ns += comparison.earlier_ns
        if comparison.result in ("differs", "rejects"):
            self.rules[comparison.result, comparison.rule, comparison.location] += 1
            self.latest.append(comparison)

    @property
    def binds(self) -> int:
        return self.results.total()

    def record(
        self, *, unseen: int, late: int, failed: int, pending: int, duration_s: float
    ) -> dict[str, Any]:
        return {
            "binds": self.binds,
            "results": {result: self.results[result] for result in RESULTS},
            "agree_with_binds_in_flight": self.in_flight,
            "would_have_been_earlier": self.earlier,
            "earlier_mean_s": round(self.earlier_ns / SECOND_NS / self.earlier, 3) if self.earlier else 0.0,
            "rules": [
                {"result": result, "rule": rule or None, "location": location or None, "binds": count}
                for (result, rule, location), count in self.rules.most_common()
            ],
            "unseen": unseen,
            "late": late,
            "failed": failed,
            "pending": pending,
            "duration_s": round(duration_s, 1),
        }
