"""`LabelColumns`: labels of many objects by key, so that a requirement of a selector is evaluated for all of them at once."""

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.evaluate.columns.selector_table import Mask, view
from policysched.model.selectors import SelectorRequirement

Indexes = NDArray[Any]


class LabelValues:
    """The objects that have a value of some kind, by ascending index, and the codes of the values."""

    __slots__ = ("_codes", "_indexes", "values")

    def __init__(self) -> None:
        self.values: Interner[str] = Interner()
        self._indexes = array("i")
        self._codes = array("i")

    def append(self, index: int, value: str) -> None:
        self._indexes.append(index)
        self._codes.append(self.values.code(value))

    def indexes(self) -> Indexes:
        """The objects with a value."""
        return view(self._indexes).copy()

    def codes(self) -> Indexes:
        """The code of the value of each of these."""
        return view(self._codes).copy()

    def with_value(self, values: Iterable[str]) -> Indexes:
        """The objects with one of the values."""
        wanted = [code for code in map(self.values.find, values) if code != UNKNOWN]
        codes = view(self._codes)
        found: Indexes = view(self._indexes)[
            codes == wanted[0] if len(wanted) == 1 else np.isin(codes, wanted)
        ]
        return found


class LabelColumns:
    """Objects have an index from 0, and are added in this order."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, LabelValues] = {}

    def append(self, index: int, labels: Mapping[str, str]) -> None:
        for key, value in labels.items():
            values = self._by_key.get(key)
            if values is None:
                values = self._by_key[key] = LabelValues()
            values.append(index, value)

    def with_key(self, key: str) -> Indexes | None:
        """The objects with the label; None: no object has it."""
        values = self._by_key.get(key)
        return None if values is None else values.indexes()

    def restrict(self, mask: Mask, requirement: SelectorRequirement) -> None:
        """Clear the objects that do not meet the requirement."""
        labels = self._by_key.get(requirement.key)
        match requirement.operator:
            case "In" | "Exists" if labels is None:
                mask[:] = False
            case "In":
                assert labels is not None
                mask &= _only(labels.with_value(requirement.values), len(mask))
            case "Exists":
                assert labels is not None
                mask &= _only(labels.indexes(), len(mask))
            case "NotIn" if labels is not None:
                mask[labels.with_value(requirement.values)] = False
            case "DoesNotExist" if labels is not None:
                mask[labels.indexes()] = False
            case "NotIn" | "DoesNotExist":
                pass
            case "Gt" | "Lt":
                raise AssertionError(f"a label selector has no operator {requirement.operator}")


def _only(indexes: Indexes, size: int) -> Mask:
    mask = np.zeros(size, np.bool_)
    mask[indexes] = True
    return mask
