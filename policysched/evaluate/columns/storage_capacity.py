"""The room that CSIStorageCapacities say there is for volumes of a class, node by node.

Drivers with storage in each node publish one a node, told apart by one label: those stand in a table by the code of the
label's value. Selectors of other shapes are asked as masks, once a distinct selector.
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
"""Where no capacity says anything of a node."""


@dataclass(frozen=True, slots=True)
class StorageCapacityTable:
    """`by_label`: for each label the largest volume that can be made, by the code of its value; the last entry stands for all
    other codes. `by_selector`: the same by selector."""

    by_label: Mapping[str, Numbers]
    by_selector: Mapping[LabelSelector, int]


class StorageCapacityCache:
    def __init__(self) -> None:
        self._tables: dict[str, tuple[tuple[int, int, int], StorageCapacityTable]] = {}

    def table_for(
        self, class_name: str, stock: AvailableVolumes, strings: Interner[str], coding: int
    ) -> StorageCapacityTable:
        """`coding`: codes of labels are good as long as it is."""
        stamp = stock.capacity_stamp(class_name), coding, len(strings)
        kept = self._tables.get(class_name)
        if kept is None or kept[0] != stamp:
            kept = self._tables[class_name] = stamp, _build_table(class_name, stock, strings)
        return kept[1]


def _build_table(class_name: str, stock: AvailableVolumes, strings: Interner[str]) -> StorageCapacityTable:
    by_label: dict[str, Numbers] = {}
    others: dict[LabelSelector, int] = {}
    for one in stock.capacities(class_name):
        if one.limit_bytes is None or one.topology is None:
            continue
        asked = one.topology.requirements
        if len(asked) != 1 or asked[0].operator != "In":
            others[one.topology] = max(one.limit_bytes, others.get(one.topology, NO_CAPACITY))
            continue
        table = by_label.get(asked[0].key)
        if table is None:
            table = by_label[asked[0].key] = np.full(len(strings) + 1, NO_CAPACITY)
        for value in asked[0].values:
            code = strings.find(value)
            if code != UNKNOWN:
                table[code] = max(one.limit_bytes, int(table[code]))
    return StorageCapacityTable(by_label, others)
