"""`StorageCapacityTable`: the capacity that CSIStorageCapacity objects publish for a storage class.

Drivers with node-local storage publish one object per node, selected by one label: these are tables
by the code of the label's value. Other selectors are evaluated as masks, once per distinct selector.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.model.selectors import LabelSelector

Numbers = NDArray[np.int64]

NO_CAPACITY = -1
"""No object covers the node."""


@dataclass(frozen=True, slots=True)
class StorageCapacityTable:
    """The largest volume in bytes that can be provisioned, and the capacity in bytes of the object that
    says so. `by_label`: for each label an array int64[:, 2] by the code of its value, whose last entry is
    for all other codes. `by_selector`: by other selectors."""

    by_label: Mapping[str, Numbers]
    by_selector: Mapping[LabelSelector, tuple[int, int]]


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
    by_label: dict[str, Numbers] = {}
    by_selector: dict[LabelSelector, tuple[int, int]] = {}
    for capacity in available.capacities(class_name):
        selector, limit_bytes = capacity.topology, capacity.limit_bytes
        if limit_bytes is None or selector is None:
            continue
        assert capacity.capacity_bytes is not None, f"{capacity} has a limit and no capacity"
        entry = limit_bytes, capacity.capacity_bytes
        requirements = selector.requirements
        if len(requirements) != 1 or requirements[0].operator != "In":
            by_selector[selector] = max(entry, by_selector.get(selector, entry))
            continue
        table = by_label.get(requirements[0].key)
        if table is None:
            table = by_label[requirements[0].key] = np.full((len(strings) + 1, 2), NO_CAPACITY)
        for value in requirements[0].values:
            code = strings.find(value)
            if code != UNKNOWN:
                table[code] = max(entry, tuple(table[code]))
    return StorageCapacityTable(by_label, by_selector)
