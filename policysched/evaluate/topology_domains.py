"""Topology domains for gangs whose members must share one.

Filters and scores are those of the whole cluster; only the selection is limited to a domain.
Candidate domains have a node that is feasible for a member, the domain of the best node first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.column_kinds import (
    AllocatableColumn,
    NodeMapEntryColumn,
    PodCountColumn,
    RequestedColumn,
)
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.plan.lowering import Variant
from policysched.lang.ir.rules import BuiltinFilter
from policysched.model.identifiers import NodeName

_MANY_PODS = 2**31
"""More than a gang has."""


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """The nodes whose label `key` has the value, inside of `outer`. `value` None: no node."""

    key: str
    value: str | None
    outer: "TopologyDomain | None" = None

    @property
    def name(self) -> str:
        """`zone=z1,rack=r1`, for messages."""
        return f"{'' if self.outer is None else f'{self.outer.name},'}{self.key}={self.value}"

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in it."""
        is_inside = self.value is not None and labels.get(self.key) == self.value
        return is_inside and (self.outer is None or self.outer.has(labels))

    def rows(self, view: View) -> Array:
        """bool[view.count]"""
        if self.value is None:
            return np.zeros(view.count, np.bool_)
        values = view.column(NodeMapEntryColumn("labels", self.key))  # which gives a new value its code
        inside: Array = values == view.codes.strings.find(self.value)
        return inside if self.outer is None else inside & self.outer.rows(view)


def nested_domain(
    keys: Sequence[str], values: Sequence[str], outer: TopologyDomain | None = None
) -> TopologyDomain | None:
    """The domain with these values of the labels, the widest first; `outer` if there are none."""
    for key, value in zip(keys, values, strict=True):
        outer = TopologyDomain(key, value, outer)
    return outer


@dataclass(frozen=True, slots=True)
class RemainingNodes:
    """The nodes of a domain (None: all), without those that were tried."""

    domain: TopologyDomain | None
    tried: frozenset[NodeName]

    def rows(self, view: View) -> Array:
        """bool[view.count]"""
        untried: Array = view.from_node_values(dict.fromkeys(self.tried, 1.0), 0.0) == 0.0
        return untried if self.domain is None else untried & self.domain.rows(view)


@dataclass(frozen=True, slots=True)
class OneNode:
    """One node alone."""

    name: NodeName

    def rows(self, view: View) -> Array:
        """bool[view.count]"""
        chosen: Array = view.from_node_values({self.name: 1.0}, 0.0) == 1.0
        return chosen


NodeSelection = TopologyDomain | RemainingNodes | OneNode


def candidate_domains(
    evaluation: Evaluation,
    view: View,
    keys: Sequence[str],
    order: Array,
    pod_capacity: Array | None,
    pods_needed: int,
) -> dict[tuple[str, ...], int]:
    """Values of the labels of the feasible nodes that have all of them, with how many members they take.
    `order` lists the rows, best first. `pod_capacity` is an upper bound of the members that each row takes, None
    where it is not known; domains that cannot take `pods_needed` are left out.
    """
    columns = [view.column(NodeMapEntryColumn("labels", key)) for key in keys]
    has_all_keys = np.logical_and.reduce([column[order] != ABSENT for column in columns])
    rows = order[has_all_keys & evaluation.feasible[order]]
    # The domain of each of `rows`, and the position in `rows` of each domain's first one.
    domains, firsts = np.zeros(len(rows), np.intp), np.zeros(1 if len(rows) else 0, np.intp)
    for column in columns:
        _, codes = np.unique(column[rows], return_inverse=True)
        _, firsts, domains = np.unique(
            domains * (len(rows) + 1) + codes, return_index=True, return_inverse=True
        )
    taken = (
        np.full(len(rows), _MANY_PODS) if pod_capacity is None else np.minimum(pod_capacity[rows], _MANY_PODS)
    )
    totals = np.bincount(domains, weights=taken, minlength=len(firsts))
    in_order = [domain for domain in np.argsort(firsts).tolist() if totals[domain] >= pods_needed]
    strings = view.codes.strings.values
    return {
        tuple(strings[int(column[rows[firsts[domain]]])] for column in columns): int(totals[domain])
        for domain in in_order
    }


def pod_capacity(requests: Mapping[str, int], variant: Variant, view: View) -> Array | None:
    """An upper bound of the pods with these requests that each node takes, by cpu, memory and the
    number of pods; None where `node_resources_fit` does not always apply.
    """
    checks_resources = any(
        isinstance(step.rule, BuiltinFilter)
        and step.rule.builtin == "node_resources_fit"
        and step.rule.when is None
        for step in variant.filters
    )
    if not checks_resources:
        return None
    capacity: Array = view.column(AllocatableColumn("pods")) - view.column(PodCountColumn())
    for resource in ("cpu", "memory"):
        request = requests.get(resource, 0)
        if request > 0:
            free = view.column(AllocatableColumn(resource)) - view.column(RequestedColumn(resource))
            capacity = np.minimum(capacity, free // request)
    at_least_none: Array = np.maximum(capacity, 0)
    return at_least_none
