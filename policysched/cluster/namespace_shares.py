"""Namespace shares: the requests of a namespace's placed pods relative to the allocatable resources
of all nodes.

Running totals, since fair-share queues read the shares at every decision and every placement
changes one. An ordered queue reads from a change log which namespaces to reposition.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Protocol

from policysched.cluster.change_log import ChangeLog

_CHANGES_KEPT_MAX = 4096
"""Namespaces in the change log. Without a limit it would keep every namespace that ever existed."""

Amounts = dict[str, int]
"""By resource, without zeros; `pods` is the number of pods."""


class ShareLookup(Protocol):
    """The shares of the real or of a hypothetical cluster."""

    def share_of(self, namespace: str, resource: str) -> float:
        """The fraction of the resource; 0 if the cluster has none, above 1 if pods are bound to deleted nodes."""
        ...

    def state_of(self, namespace: str) -> Hashable:
        """Equal for equal shares of all resources."""
        ...


class NamespaceShares:
    """The ledger adjusts what is requested, the cluster cache what is allocatable."""

    def __init__(self) -> None:
        self.requested: dict[str, Amounts] = {}
        self.allocatable_total: Amounts = {}
        self.changes: ChangeLog[str] = ChangeLog()

    @property
    def version(self) -> int:
        return self.changes.version

    def share_of(self, namespace: str, resource: str) -> float:
        return self.share_for(self.held(namespace, resource), resource)

    def held(self, namespace: str, resource: str) -> int:
        """What the placed pods of the namespace request."""
        return self.requested.get(namespace, {}).get(resource, 0)

    def share_for(self, requested: int, resource: str) -> float:
        """The share of a namespace that requests this much."""
        total = self.allocatable_total.get(resource, 0)
        return requested / total if total else 0.0

    def state_of(self, namespace: str) -> Hashable:
        return frozenset(self.requested.get(namespace, {}).items()), frozenset(self.allocatable_total.items())

    def adjust_requested(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        """A pod with these requests was placed (`sign` 1) or removed (-1)."""
        amounts = self.requested.setdefault(namespace, {})
        add_pod(amounts, requests, sign)
        if not amounts:
            del self.requested[namespace]
        self.changes.record(namespace, keys_max=_CHANGES_KEPT_MAX)

    def adjust_total(self, allocatable: Mapping[str, int], sign: int) -> None:
        """A node with this allocatable was added (`sign` 1) or removed (-1)."""
        if any(allocatable.values()):
            add_amounts(self.allocatable_total, allocatable, sign)
            self.changes.record_all()

    def changed_since(self, version: int) -> Iterable[str] | None:
        """The namespaces whose share changed after the version. None: every share may have changed."""
        return self.changes.since(version)


class HypotheticalShares:
    """The shares of a cluster with some pods added or removed."""

    def __init__(self, real: NamespaceShares) -> None:
        self._real = real
        self._adjustments: dict[str, Amounts] = {}

    def share_of(self, namespace: str, resource: str) -> float:
        adjustment = self._adjustments.get(namespace, {}).get(resource, 0)
        return self._real.share_for(self._real.held(namespace, resource) + adjustment, resource)

    def state_of(self, namespace: str) -> Hashable:
        return self._real.state_of(namespace), frozenset(self._adjustments.get(namespace, {}).items())

    def adjust_requested(self, namespace: str, requests: Mapping[str, int], sign: int) -> None:
        add_pod(self._adjustments.setdefault(namespace, {}), requests, sign)


def add_pod(totals: Amounts, requests: Mapping[str, int], sign: int) -> None:
    add_amounts(totals, requests, sign)
    add_amounts(totals, {"pods": 1}, sign)


def add_amounts(totals: Amounts, amounts: Mapping[str, int], sign: int) -> None:
    for resource, amount in amounts.items():
        total = totals.get(resource, 0) + sign * amount
        if total:
            totals[resource] = total
        else:
            totals.pop(resource, None)
