"""`Interners`: the interners that all columns share, and the flat lists over their codes."""

from collections.abc import Hashable, Sized
from dataclasses import dataclass, field

from policysched.cluster.node_usage import UsedPort
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.packed_lists import PackedLists
from policysched.lang.types.kinds import RecordType, Type
from policysched.lang.types.records import TypedValue
from policysched.model.nodes import Taint
from policysched.model.pods import Pod
from policysched.model.storage import Disk

ClassCounts = tuple[tuple[int, int], ...]
"""The pods of a node: codes of pod classes with their counts, sorted."""


@dataclass(slots=True)
class Interners:
    """The interners that all columns share, so that codes of different columns are comparable."""

    strings: Interner[str] = field(default_factory=Interner)
    taints: Interner[tuple[Taint, ...]] = field(default_factory=Interner)
    ports: Interner[frozenset[UsedPort]] = field(default_factory=Interner)
    lists: Interner[tuple[str, ...]] = field(default_factory=Interner)
    record_lists: Interner[tuple[Type, TypedValue]] = field(default_factory=Interner)
    packed_lists_by_record: dict[RecordType, PackedLists] = field(default_factory=dict)
    disks: Interner[frozenset[Disk]] = field(default_factory=Interner)
    pod_classes: Interner[Hashable] = field(default_factory=Interner)
    class_representatives: list[Pod] = field(default_factory=list)  # by code of the pod class
    class_counts: Interner[ClassCounts] = field(default_factory=Interner)
    domains: dict[str, Interner[str]] = field(default_factory=dict)  # by topology key

    def code_count(self) -> int:
        interners: tuple[Sized, ...] = (
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
        return sum(map(len, interners))

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
        return code
