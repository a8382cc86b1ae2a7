"""`SelectorColumns`: the requirements of many label selectors, as columns.

Labels meet a selector if none of its requirements is unmet. Without labels, each In and each Exists is. A label then changes
how many are: an Exists of its key, and an In with its value, are no longer; a DoesNotExist and a NotIn with its value are. So
selectors in thousands are compared with labels by a few additions to an array.
"""

from array import array
from dataclasses import dataclass, field

from policysched.model.selectors import LabelSelector

_MET, _UNMET = -1, 1


def label_hash(key: str, value: str | None) -> int:
    """Of a label, or of its key with any value. Nobody outside of the process can guess one of its 64 bits: thousands of values
    in each of thousands of terms are not kept a second time."""
    return hash((key, value))


@dataclass(slots=True)
class SelectorColumns:
    """Selectors by number, from 0. `unmet`: the requirements of each that are unmet without labels. `changes`: how many more are
    with the label, of a hash, for the selector `changed`; ordered by selector."""

    unmet: "array[int]" = field(default_factory=lambda: array("i"))
    changed: "array[int]" = field(default_factory=lambda: array("i"))
    changes: "array[int]" = field(default_factory=lambda: array("b"))
    label_hashes: "array[int]" = field(default_factory=lambda: array("q"))

    def append(self, selector: LabelSelector | None) -> None:
        """None selects nothing."""
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
