"""What each namespace holds of the cluster: the requests of its placed pods against what all nodes have for pods.

Fair queues ask for it at every decision, and every placement changes it, so it is kept as running totals. Each change
has a number, and who keeps an order that rests on shares asks which namespaces moved since the number that it last saw.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Share:
    """Parts of the cluster's allocatable cpu and memory, 0 where the cluster has none. Above 1 where pods are bound to
    nodes that are gone."""

    cpu: float
    memory: float


_MOVED_MAX = 4096
"""Of so many namespaces it is known when they moved: of all that there ever were it cannot be."""

Held = tuple[int, int]
"""Milli-cores and bytes."""


class ShareOf(Protocol):
    """The cluster's shares, or those that a hypothetical cluster would have."""

    def of(self, namespace: str) -> Share: ...


class Shares:
    """Kept by the ledger (who holds) and the cache (what there is)."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.total: Held = (0, 0)
        self.version = 0
        self._moved: dict[str, int] = {}  # by namespace the number of its last change, oldest first
        self._all_moved = 0

    def of(self, namespace: str) -> Share:
        return self.with_held(self.held.get(namespace, (0, 0)))

    def with_held(self, held: Held) -> Share:
        """The share of a namespace that holds so much."""
        return Share(_part(held[0], self.total[0]), _part(held[1], self.total[1]))

    def hold(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        """A pod with these requests was placed (`sign` 1) or taken away (-1)."""
        held = added(self.held.get(namespace, (0, 0)), requests, sign)
        if held == (0, 0):
            self.held.pop(namespace, None)
        else:
            self.held[namespace] = held
        self.version += 1
        self._moved.pop(namespace, None)
        self._moved[namespace] = self.version
        if len(self._moved) > _MOVED_MAX:
            self._all_moved = self.version
            self._moved.clear()

    def resize(self, allocatable: Mapping[str, int], sign: int) -> None:
        """A node with so much came (`sign` 1) or went (-1)."""
        total = added(self.total, allocatable, sign)
        if total != self.total:
            self.total = total
            self.version += 1
            self._all_moved = self.version
            self._moved.clear()

    def moved_since(self, version: int) -> Iterable[str] | None:
        """The namespaces whose share is another one than at that number; None: everybody's may be."""
        if self._all_moved > version:
            return None
        found = []
        for namespace in reversed(self._moved):
            if self._moved[namespace] <= version:
                break
            found.append(namespace)
        return found


class HypotheticalShares:
    """The shares of a cluster on which some pods more are placed, and some fewer."""

    def __init__(self, real: Shares) -> None:
        self._real = real
        self._shifts: dict[str, Held] = {}

    def of(self, namespace: str) -> Share:
        cpu, memory = self._real.held.get(namespace, (0, 0))
        more_cpu, more_memory = self._shifts.get(namespace, (0, 0))
        return self._real.with_held((cpu + more_cpu, memory + more_memory))

    def hold(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        self._shifts[namespace] = added(self._shifts.get(namespace, (0, 0)), requests, sign)


def added(held: Held, amounts: Mapping[str, int], sign: int) -> Held:
    return held[0] + sign * amounts.get("cpu", 0), held[1] + sign * amounts.get("memory", 0)


def _part(held: int, total: int) -> float:
    return held / total if total else 0.0
