"""Namespace shares: the requests of a namespace's placed pods relative to the allocatable resources
of all nodes.

Running totals, since fair-share queues read the shares at every decision and every placement
changes one. A change log tells an ordered queue which namespaces to reposition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from policysched.cluster.change_log import ChangeLog


@dataclass(frozen=True, slots=True)
class NamespaceShare:
    """Fractions of the cluster's allocatable cpu and memory; 0 if the cluster has none, above 1 if
    pods are bound to deleted nodes."""

    cpu: float
    memory: float


_CHANGES_KEPT_MAX = 4096
"""Namespaces in the change log. Without a limit it would keep every namespace that ever existed."""

CpuMemory = tuple[int, int]
"""Milli-cores and bytes."""


class ShareLookup(Protocol):
    """The shares of the real or of a hypothetical cluster."""

    def share_of(self, namespace: str) -> NamespaceShare: ...


class NamespaceShares:
    """The ledger adjusts what is requested, the cluster cache what is allocatable."""

    def __init__(self) -> None:
        self.requested: dict[str, CpuMemory] = {}
        self.allocatable_total: CpuMemory = (0, 0)
        self.changes: ChangeLog[str] = ChangeLog()

    @property
    def version(self) -> int:
        return self.changes.version

    def share_of(self, namespace: str) -> NamespaceShare:
        return self.share_for(self.requested.get(namespace, (0, 0)))

    def share_for(self, held: CpuMemory) -> NamespaceShare:
        """The share of a namespace that requests this much."""
        return NamespaceShare(
            _fraction(held[0], self.allocatable_total[0]), _fraction(held[1], self.allocatable_total[1])
        )

    def adjust_requested(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        """A pod with these requests was placed (`sign` 1) or removed (-1)."""
        held = add_requests(self.requested.get(namespace, (0, 0)), requests, sign)
        if held == (0, 0):
            self.requested.pop(namespace, None)
        else:
            self.requested[namespace] = held
        self.changes.record(namespace, keys_max=_CHANGES_KEPT_MAX)

    def adjust_total(self, allocatable: Mapping[str, int], sign: int) -> None:
        """A node with this allocatable was added (`sign` 1) or removed (-1)."""
        total = add_requests(self.allocatable_total, allocatable, sign)
        if total != self.allocatable_total:
            self.allocatable_total = total
            self.changes.record_all()

    def changed_since(self, version: int) -> Iterable[str] | None:
        """The namespaces whose share changed after the version. None: every share may have changed."""
        return self.changes.since(version)


class HypotheticalShares:
    """The shares of a cluster with some pods added or removed."""

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
