"""What each namespace holds of the cluster: the requests of its placed pods against what all nodes have for pods.

Fair queues ask for it at every decision, and every placement changes it, so it is kept as running totals. Each change
has a number, and who keeps an order that rests on shares asks which namespaces moved since the number that it last saw.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class NamespaceShare:
    """Parts of the cluster's allocatable cpu and memory, 0 where the cluster has none. Above 1 where pods are bound to
    nodes that are gone."""

    cpu: float
    memory: float


_CHANGES_KEPT_MAX = 4096
"""Of so many namespaces it is known when they moved: of all that there ever were it cannot be."""

CpuMemory = tuple[int, int]
"""Milli-cores and bytes."""


class ShareLookup(Protocol):
    """The cluster's shares, or those that a hypothetical cluster would have."""

    def share_of(self, namespace: str) -> NamespaceShare: ...


class NamespaceShares:
    """Kept by the ledger (who holds) and the cache (what there is)."""

    def __init__(self) -> None:
        self.requested: dict[str, CpuMemory] = {}
        self.allocatable_total: CpuMemory = (0, 0)
        self.version = 0
        self._changed: dict[str, int] = {}  # by namespace the number of its last change, oldest first
        self._all_changed_version = 0

    def share_of(self, namespace: str) -> NamespaceShare:
        return self.share_for(self.requested.get(namespace, (0, 0)))

    def share_for(self, held: CpuMemory) -> NamespaceShare:
        """The share of a namespace that holds so much."""
        return NamespaceShare(
            _fraction(held[0], self.allocatable_total[0]), _fraction(held[1], self.allocatable_total[1])
        )

    def adjust_requested(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        """A pod with these requests was placed (`sign` 1) or taken away (-1)."""
        held = add_requests(self.requested.get(namespace, (0, 0)), requests, sign)
        if held == (0, 0):
            self.requested.pop(namespace, None)
        else:
            self.requested[namespace] = held
        self.version += 1
        self._changed.pop(namespace, None)
        self._changed[namespace] = self.version
        if len(self._changed) > _CHANGES_KEPT_MAX:
            self._all_changed_version = self.version
            self._changed.clear()

    def adjust_total(self, allocatable: Mapping[str, int], sign: int) -> None:
        """A node with so much came (`sign` 1) or went (-1)."""
        total = add_requests(self.allocatable_total, allocatable, sign)
        if total != self.allocatable_total:
            self.allocatable_total = total
            self.version += 1
            self._all_changed_version = self.version
            self._changed.clear()

    def changed_since(self, version: int) -> Iterable[str] | None:
        """The namespaces whose share is another one than at that number; None: everybody's may be."""
        if self._all_changed_version > version:
            return None
        found = []
        for namespace in reversed(self._changed):
            if self._changed[namespace] <= version:
                break
            found.append(namespace)
        return found


class HypotheticalShares:
    """The shares of a cluster on which some pods more are placed, and some fewer."""

    def __init__(self, real: NamespaceShares) -> None:
        self._real = real
        self._adjustments: dict[str, CpuMemory] = {}

    def share_of(self, namespace: str) -> NamespaceShare:
        cpu, memory = self._real.requested.get(namespace, (0, 0))
        more_cpu, more_memory = self._adjustments.get(namespace, (0, 0))
        return self._real.share_for((cpu + more_cpu, memory + more_memory))

    def adjust_requested(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        self._adjustments[namespace] = add_requests(self._adjustments.get(namespace, (0, 0)), requests, sign)


def add_requests(held: CpuMemory, amounts: Mapping[str, int], sign: int) -> CpuMemory:
    return held[0] + sign * amounts.get("cpu", 0), held[1] + sign * amounts.get("memory", 0)


def _fraction(held: int, total: int) -> float:
    return held / total if total else 0.0
