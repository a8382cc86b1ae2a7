"""`SelectorColumns`: the requirements of many label selectors, as columns.

Labels match a selector if none of its requirements is unmet. Without labels, every In and Exists is unmet. A label meets an
Exists of its key and an In with its value, and makes a DoesNotExist of its key and a NotIn with its value unmet. So thousands
of selectors are compared with labels by a few additions to an array of the numbers of unmet requirements.
"""

from array import array
from dataclasses import dataclass, field

from policysched.model.selectors import LabelSelector

_MET, _UNMET = -1, 1


def label_hash(key: str, value: str | None) -> int:
    """The hash of a label, or of its key with any value (None). Nobody outside the process can guess one of its 64 bits, so the
    hashes stand for the strings: thousands of values in each of thousands of terms are not kept a second time."""
    return hash((key, value))


@dataclass(slots=True)
class SelectorColumns:
    """Selectors by number, from 0. `unmet`: how many requirements of each are unmet without labels. The others are parallel,
    ordered by selector: a label with this hash adds `changes` unmet requirements to the selector `changed`."""

    unmet: "array[int]" = field(default_factory=lambda: array("i"))
    changed: "array[int]" = field(default_factory=lambda: array("i"))
    changes: "array[int]" = field(default_factory=lambda: array("b"))
    label_hashes: "array[int]" = field(default_factory=lambda: array("q"))

    def append(self, selector: LabelSelector | None) -> None:
        """Append a selector; None selects nothing."""
        number, unmet = len(self.unmet), int(selector is None)
        for requirement in () if selector is None else selector.requirements:
            key, operator = requirement.key, requirement.operator
            assert operator not in ("Gt", "Lt"), f"a label selector has no operator {operator}"
            by_value = operator in ("In", "NotIn")
            hashes = {label_hash(key, value) for value in (requirement.values if by_value else (None,))}
            change = _MET if operator in ("In", "Exists") else _UNMET
            unmet += change == _MET
            self.changed.extend([number] * len(hashes))
            self.changes.extend([change] * len(hashes))
            self.label_hashes.extend(hashes)
        self.unmet.append(unmet)

    def extend(self, other: "SelectorColumns") -> None:
        """Append its selectors."""
        offset = len(self.unmet)
        self.unmet.extend(other.unmet)
        self.changed.extend([offset + number for number in other.changed])
        self.changes.extend(other.changes)
        self.label_hashes.extend(other.label_hashes)
