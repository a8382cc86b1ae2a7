"""Lower bound of the disruption on a node, before the node is evaluated.

Victims have to free at least what `node_resources_fit` finds missing. So of the units that may be evicted (`running_gangs`) a
number is needed, and the least that so many of them cost is a bound, for each part of the disruption by itself:

    violations: what the units that violate no budget do not free, the others have to ── the fewest of their violations
    priority:   the units of the least priority go first ── that of the one that frees the last of what is missing
    start:      what the units of less priority do not free, those of that priority have to ── the last starts

A gang counts with all its members, as far as they are not spare ones on the node. Of a budget only as many of its members violate
nothing as the budget has room for, whatever else is evicted.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from policysched.cluster.disruption_budgets import split_by_budget
from policysched.evaluate import shortfall_reason
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.preemption.running_gangs import VictimUnit, victim_units
from policysched.scheduler.preemption.victim_selection import (
    NOT_STARTED_NS,
    PRIORITY_OFFSET,
    Disruption,
    PreemptionInputs,
)

HOPELESS: Disruption = sys.maxsize, (), 0, 0, 0, 0
"""Of a node where all evictable pods together free too little: behind all others."""


_Freed = Sequence[tuple[int, Sequence[int]]]
"""By resource: the amount to free, and how much each unit frees."""


class _Units(NamedTuple):
    """What is evicted together, those of the least priority first: the pods on the node, and the least of what each whole
    unit adds to a disruption."""

    pods: Sequence[Sequence[Pod]]
    priorities: Sequence[int]
    violations: Sequence[int]
    offset_sums: Sequence[int]
    victim_counts: Sequence[int]
    started_ns: Sequence[int]


def bound_for_any_pod(in_order: Sequence[Pod], cluster: PreemptionInputs) -> Disruption:
    """Lower bound for whatever is missing. `in_order`: the evictable pods of the node, most important first."""
    last = in_order[-1]
    if cluster.order is None:  # of the least priority, the pod that started last
        return 0, (), last.priority, last.priority + PRIORITY_OFFSET, 1, -_start(last, cluster)
    lowest = min(pod.priority for pod in in_order)
    latest_ns = max(_start(pod, cluster) for pod in in_order if pod.priority == lowest)
    return 0, cluster.order(last), lowest, lowest + PRIORITY_OFFSET, 1, -latest_ns


def disruption_lower_bound(
    in_order: Sequence[Pod], missing: Mapping[str, int], cluster: PreemptionInputs
) -> Disruption:
    """Lower bound of the disruption on a node, for each part of the key by itself, but that of the start, which holds if the
    priority is the bound. `missing`: the amount to free by resource (`pods`: how many)."""
    units = _units(in_order, cluster)
    first_in_order = () if cluster.order is None else cluster.order(in_order[-1])
    count, highest = 1, units.priorities[0]
    freed: list[tuple[int, list[int]]] = []
    for resource, amount in missing.items():
        sizes = [sum([_size(pod, resource) for pod in pods]) for pods in units.pods]
        freed.append((amount, sizes))
        count = max(count, _count_min(sizes, amount))
        highest = max(highest, units.priorities[_last_needed(sizes, amount)])
        if cluster.order is not None:
            ascending = in_order[::-1]
            last = _last_needed([_size(pod, resource) for pod in ascending], amount)
            first_in_order = max(first_in_order, cluster.order(ascending[last]))
    of_highest = min(
        offset_sum
        for offset_sum, priority in zip(units.offset_sums, units.priorities, strict=True)
        if priority >= highest
    )
    return (
        _violations_min(units.violations, freed),
        first_in_order,
        highest,
        sum(sorted(units.offset_sums)[: count - 1]) + of_highest,
        sum(sorted(units.victim_counts)[:count]),
        -_latest_start(units, freed, highest),
    )


def unmet_reasons(in_order: Sequence[Pod], missing: Mapping[str, int]) -> list[str]:
    """The reasons why the node is hopeless; empty if it is not."""
    return [
        shortfall_reason(resource)
        for resource, amount in missing.items()
        if sum([_size(pod, resource) for pod in in_order]) < amount
    ]


def _start(pod: Pod, cluster: PreemptionInputs) -> int:
    started_ns = cluster.started_ns(pod.uid)
    return NOT_STARTED_NS if started_ns is None else started_ns


def _size(pod: Pod, resource: str) -> int:
    return 1 if resource == "pods" else pod.requests.get(resource, 0)


def _units(in_order: Sequence[Pod], cluster: PreemptionInputs) -> _Units:
    if any(cluster.gang_of(pod) is not None for pod in in_order):
        units = victim_units(in_order, cluster.gang_of)
        singles = [unit.pods[0] for unit in units if unit.gang is None]
        violating = _violating(singles, cluster)
        rows = [_unit(unit, singles, violating, cluster) for unit in units]
        return _Units(*zip(*sorted(rows, key=lambda row: row[1]), strict=True))
    violating = _violating(in_order, cluster)
    ascending = in_order[::-1]
    if cluster.order is not None:
        ascending = sorted(ascending, key=lambda pod: pod.priority)
    priorities = [pod.priority for pod in ascending]
    return _Units(
        [(pod,) for pod in ascending],
        priorities,
        [int(pod.uid in violating) for pod in ascending] if violating else [0] * len(ascending),
        [priority + PRIORITY_OFFSET for priority in priorities],
        [1] * len(ascending),
        [_start(pod, cluster) for pod in ascending],
    )


def _violating(in_order: Sequence[Pod], cluster: PreemptionInputs) -> list[PodUid]:
    return [pod.uid for pod in split_by_budget(in_order, cluster.budgets)[0]]


def _unit(
    unit: VictimUnit, singles: Sequence[Pod], violating: Collection[PodUid], cluster: PreemptionInputs
) -> tuple[Sequence[Pod], int, int, int, int, int]:
    """As a row of `_Units`."""
    gang = unit.gang
    if gang is None:
        (pod,) = unit.pods
        offset_sum = pod.priority + PRIORITY_OFFSET
        return unit.pods, pod.priority, int(pod.uid in violating), offset_sum, 1, _start(pod, cluster)
    _, _, highest, offset_sum, count, start = cluster.of_members(gang)
    spare = [pod.priority + PRIORITY_OFFSET for pod in singles if pod.uid in gang.members]
    violations = max(0, cluster.violations_least(gang) - len(spare))
    return unit.pods, highest, violations, offset_sum - sum(spare), count - len(spare), -start


def _count_min(sizes: Iterable[int], amount: int) -> int:
    """The least number of units that free the amount, or all."""
    count = 0
    for size in sorted(sizes, reverse=True):
        if amount <= 0:
            break
        amount -= size
        count += 1
    return count


def _last_needed(sizes: Sequence[int], amount: int) -> int:
    """In order, the index of the one that frees the last of the amount."""
    for index, size in enumerate(sizes):
        amount -= size
        if amount <= 0:
            return index
    return len(sizes) - 1


def _violations_min(violations: Sequence[int], freed: _Freed) -> int:
    if not any(violations):
        return 0
    count = int(all(violations))
    for amount, sizes in freed:
        left = amount - sum([size for size, each in zip(sizes, violations, strict=True) if not each])
        count = max(count, _count_min(compress(sizes, violations), left))
    return sum(sorted(filter(None, violations))[:count])


def _latest_start(units: _Units, freed: _Freed, highest: int) -> int:
    """The latest that the first victim of this priority can have started, if it is the highest."""
    count, priorities = 1, units.priorities
    begin, end = bisect_left(priorities, highest), bisect_right(priorities, highest)
    for amount, sizes in freed:
        count = max(count, _count_min(sizes[begin:end], amount - sum(sizes[:begin])))
    starts = sorted(units.started_ns[begin:end], reverse=True)
    return starts[min(count, len(starts)) - 1]
