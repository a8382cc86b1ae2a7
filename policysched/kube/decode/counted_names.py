"""Of which names the items of a large pod on a node are kept first, since others read them (`large_pods`)."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import Attr
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import Type
from policysched.text import Span

_METADATA = ("labels", "annotations")
_NO_EXPRESSIONS = ("span", "name_span", "type", "name", "text", "sha256")


class CountedNames:
    """`resources` that nodes have, and the keys of labels and annotations that the active policies read: `metadata_keys`, those
    of the operator first. `programs`: the active ones by name; it is called by `revision` alone."""

    def __init__(self, programs: Callable[[], Mapping[str, Program]] = dict) -> None:
        self.resources = Counter[str]()
        self.metadata_keys: tuple[str, ...] = ()
        self._programs = programs
        self._read: dict[str, tuple[Program, list[str]]] = {}
        self._of_nodes: dict[str, frozenset[str]] = {}
        self._revision = 0

    def count_node(self, node: str, resources: Collection[str]) -> None:
        """The node has these resources now; none once it is gone."""
        known, now = self._of_nodes.get(node, frozenset[str]()), frozenset(resources)
        if now == known:
            return
        has_new = any(name not in self.resources for name in now)
        self.resources.update(now - known)
        self._revision += has_new  # after the names, as a thread reads both
        for name in known - now:
            self.resources[name] -= 1
            if not self.resources[name]:
                del self.resources[name]
        self._of_nodes[node] = now
        if not now:
            del self._of_nodes[node]

    def revision(self) -> int:
        """Grows with each new name. Reads policies that changed."""
        active, read = self._programs(), self._read
        if active.keys() != read.keys() or any(active[name] is not read[name][0] for name in active):
            self._read = {
                name: read[name]
                if name in read and read[name][0] is program
                else (program, metadata_keys(program))
                for name, program in active.items()
            }
            in_order = sorted(self._read.values(), key=lambda each: (each[0].team is not None, each[0].name))
            keys = tuple(dict.fromkeys(key for _, of_program in in_order for key in of_program))
            has_new = not set(keys) <= set(self.metadata_keys)
            self.metadata_keys = keys
            self._revision += has_new
        return self._revision

    @property
    def known_revision(self) -> int:
        """Without reading policies: for a thread."""
        return self._revision


def metadata_keys(program: Program) -> list[str]:
    """The keys of labels and annotations of pods that a policy reads, and those of nodes and namespaces, sorted."""
    keys, visited, left = set[str](), set[int](), list[Any]([program])
    while left:
        value = left.pop()
        if isinstance(value, tuple | frozenset):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, Attr):
            if value.path[0] in _METADATA:
                keys.add(value.path[-1])
        elif isinstance(value, Input):
            if value.source_map in _METADATA and value.source_key is not None:
                keys.add(value.source_key)
        elif (read := _parts_of(type(value))) is not None and id(value) not in visited:
            visited.add(id(value))  # expressions share their parts
            left += read(value)
    return sorted(keys)


def _parts_of(kind: type) -> "_ReadParts | None":
    """Reads the fields that can have expressions; None: there are none."""
    if kind not in _PARTS:
        names = (
            [each.name for each in fields(kind) if each.name not in _NO_EXPRESSIONS]
            if is_dataclass(kind)
            else []
        )
        _PARTS[kind] = None if kind in (Span, Type) or not names else attrgetter(*names, names[0])
    return _PARTS[kind]


_ReadParts = Callable[[Any], tuple[Any, ...]]
_PARTS: dict[type, _ReadParts | None] = {}
