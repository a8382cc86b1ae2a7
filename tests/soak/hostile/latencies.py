"""How long the friendly tenant's pods took, and which parts of that were the API server's and the scheduler's.

    create sent ──► create answered ──► ... ──► bind request received ──► ... ──► a third party's watch shows it bound
    └──────── create ────────┘                                     the API server alone: the tenant's clock
    └───────────────────────────── create to bound: the tenant's clock ──────────────────────────────────────────────┘
                    └──── scheduler's part: the API server's audit log ──┘

A busy API server makes both longer for every scheduler. Its delivery of the new pod is in the scheduler's part, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tests.controlplane.api import Json

AUDIT_RULE = {
    "verbs": ["create"],
    "resources": [{"group": "", "resources": ["pods", "pods/binding"]}],
}


def percentile_s(latencies_s: list[float], percent: int) -> float:
    return sorted(latencies_s)[len(latencies_s) * percent // 100]


@dataclass(frozen=True, slots=True)
class Latency:
    """Of a pod, since its creation was sent: until that was answered, and until the pod was bound."""

    created_s: float
    bound_s: float


@dataclass
class Latencies:
    """Of one scheduler in windows of one kind, by pod, and of these the scheduler's part."""

    by_pod: dict[str, Latency] = field(default_factory=dict)
    scheduler_part: list[float] = field(default_factory=list)

    @property
    def pods(self) -> list[float]:
        """From the creation to the bind."""
        return [latency.bound_s for latency in self.by_pod.values()]

    @property
    def creations(self) -> list[float]:
        return [latency.created_s for latency in self.by_pod.values()]

    def add_scheduler_parts(self, parts_s: Mapping[str, float]) -> None:
        self.scheduler_part = [parts_s[name] for name in self.by_pod if name in parts_s]


def scheduler_parts_s(records: Iterable[Json]) -> dict[str, float]:
    """By pod: from the answer to its creation until the first request to bind it arrived at the API server."""
    created_s: dict[str, float] = {}
    parts_s: dict[str, float] = {}
    for record in records:
        what = record["objectRef"]
        name = what.get("name", "")
        if what.get("subresource") == "binding":
            if name in created_s:
                parts_s.setdefault(name, _time_s(record["requestReceivedTimestamp"]) - created_s[name])
        elif record["responseStatus"]["code"] == 201:
            created_s[name] = _time_s(record["stageTimestamp"])
    return parts_s


def _time_s(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
