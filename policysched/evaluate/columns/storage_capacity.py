"""`StorageCapacityTable`: the capacity that CSIStorageCapacity objects publish for a storage class.

Drivers publish one object per topology segment, such as a node or a node in a zone, selected by the
values of one or more labels: these are tables by the codes of the values. Other selectors are
evaluated as masks, once per distinct selector.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.model.selectors import LabelSelector

Numbers = NDArray[np.int64]

NO_CAPACITY = -1
"""No object covers the node."""
_SEGMENTS_MAX = 64  # of one object


@dataclass(slots=True)
class StorageCapacityTable:
    """Entries have the largest volume that can be provisioned, and the capacity of the object that says so, in
    bytes. `by_labels`: by the label keys of selectors, then by the codes of the values. `by_selector`: for other
    selectors."""

    by_labels: Mapping[tuple[str, ...], Mapping[tuple[int, ...], tuple[int, int]]]
    by_selector: Mapping[LabelSelector, tuple[int, int]]
    _by_row: tuple[int, Numbers] | None = field(default=None, init=False)

    def by_row(self, topology_version: int, compute: Callable[[], Numbers]) -> Numbers:
        """int64[rows, 2], computed once for all claims and evaluations until a node or a capacity changes."""
        if self._by_row is None or self._by_row[0] != topology_version:
            self._by_row = topology_version, compute()
        return self._by_row[1]


class StorageCapacityCache:
    def __init__(self) -> None:
        self._tables: dict[str, tuple[tuple[int, int, int], StorageCapacityTable]] = {}

    def table_for(
        self, class_name: str, available: AvailableVolumes, strings: Interner[str], codes_version: int
    ) -> StorageCapacityTable:
        """The current table; it is rebuilt when `codes_version` invalidates the codes of labels."""
        revision = available.capacity_stamp(class_name), codes_version, len(strings)
        cached = self._tables.get(class_name)
        if cached is None or cached[0] != revision:
            cached = self._tables[class_name] = revision, _build_table(class_name, available, strings)
        return cached[1]


def _build_table(
    class_name: str, available: AvailableVolumes, strings: Interner[str]
) -> StorageCapacityTable:
    by_labels: dict[tuple[str, ...], dict[tuple[int, ...], tuple[int, int]]] = {}
    by_selector: dict[LabelSelector, tuple[int, int]] = {}
    for capacity in available.capacities(class_name):
        selector, limit_bytes = capacity.topology, capacity.limit_bytes
        if limit_bytes is None or selector is None:
            continue
        assert capacity.capacity_bytes is not None, f"{capacity} has a limit and no capacity"
        entry = limit_bytes, capacity.capacity_bytes
        requirements = sorted(selector.requirements, key=lambda requirement: requirement.key)
        is_segment = requirements and all(requirement.operator == "In" for requirement in requirements)
        if not is_segment or prod(len(requirement.values) for requirement in requirements) > _SEGMENTS_MAX:
            by_selector[selector] = max(entry, by_selector.get(selector, entry))
            continue
        entry_of = by_labels.setdefault(tuple([requirement.key for requirement in requirements]), {})
        for values in product(*[requirement.values for requirement in requirements]):
            codes = tuple([strings.find(value) for value in values])
            if UNKNOWN not in codes:
                entry_of[codes] = max(entry, entry_of.get(codes, entry))
    return StorageCapacityTable(by_labels, by_selector)
