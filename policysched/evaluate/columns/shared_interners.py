"""`Interners`: the interners that all columns share, and the flat lists over their codes."""

from collections.abc import Hashable, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from policysched.cluster.node_usage import UsedDisk, UsedPort
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.packed_lists import PackedLists
from policysched.evaluate.decision_cost import row_items
from policysched.lang.types.kinds import RecordType, Type
from policysched.lang.types.records import TypedValue
from policysched.model.nodes import Taint
from policysched.model.pods import Pod

_ITEMS_PER_UNIT, _CHARACTERS_PER_UNIT = 16, 512

ClassCounts = tuple[tuple[int, int], ...]
"""The pods of a node: codes of pod classes with their counts, sorted."""


@dataclass(slots=True)
class Interners:
    """The interners that all columns share, so that codes of different columns are comparable."""

    strings: Interner[str] = field(default_factory=lambda: Interner(_text_weight))
    taints: Interner[tuple[Taint, ...]] = field(default_factory=Interner)
    ports: Interner[frozenset[UsedPort]] = field(default_factory=lambda: Interner(_weight))
    lists: Interner[tuple[str, ...]] = field(default_factory=lambda: Interner(_weight))
    record_lists: Interner[tuple[Type, TypedValue]] = field(default_factory=Interner)
    packed_lists_by_record: dict[RecordType, PackedLists] = field(default_factory=dict)
    disks: Interner[frozenset[UsedDisk]] = field(default_factory=lambda: Interner(_weight))
    pod_classes: Interner[Hashable] = field(default_factory=Interner)
    class_representatives: list[Pod] = field(default_factory=list)  # by code of the pod class
    class_counts: Interner[ClassCounts] = field(default_factory=lambda: Interner(_weight))
    domains: dict[str, Interner[str]] = field(default_factory=dict)  # by topology key

    def weight(self) -> int:
        """One for each code, and more for large values: a tenant can make one of a megabyte with each pod on a node."""
        interners: tuple[Interner[Any], ...] = (
            self.strings,
            self.taints,
            self.ports,
            self.lists,
            self.record_lists,
            self.disks,
            self.pod_classes,
            self.class_counts,
            *self.domains.values(),
        )
        return sum(interner.weight for interner in interners)

    def packed_lists(self, record: RecordType) -> PackedLists:
        """All lists of these records, as flat arrays."""
        flat = self.packed_lists_by_record.get(record)
        if flat is None:
            flat = PackedLists(record, self.record_lists.values, self.strings)
            self.packed_lists_by_record[record] = flat
        return flat

    def pod_class_code(self, key: Hashable, pod: Pod) -> int:
        """The code of the pod's class; the first pod of a class represents it."""
        code = self.pod_classes.code(key)
        if code == len(self.class_representatives):
            self.class_representatives.append(pod)
            self.pod_classes.weight += _pod_weight(pod)
        return code


def _weight(values: Sized) -> int:
    return 1 + len(values) // _ITEMS_PER_UNIT


def _text_weight(text: str) -> int:
    return 1 + len(text) // _CHARACTERS_PER_UNIT


def _pod_weight(pod: Pod) -> int:
    """Of what a class keeps with its first pod, beyond what pods usually have."""
    texts = chain(pod.labels.values(), pod.annotations.values())
    items = len(pod.labels) + len(pod.tolerations) + len(pod.host_ports) + len(pod.images) + row_items(pod)
    return sum(map(len, texts)) // _CHARACTERS_PER_UNIT + items // _ITEMS_PER_UNIT
