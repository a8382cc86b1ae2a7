"""Of which names the items of a large pod on a node are kept first, since others read them (`large_pods`)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import Attr
from policysched.lang.ir.program import Program

_METADATA = ("labels", "annotations")


class CountedNames:
    """`resources` that nodes have or had, and the keys of labels and annotations that the active policies read: `metadata_keys`, those
    of the operator first. `programs`: the active ones by name; it is called by `revision` alone."""

    def __init__(self, programs: Callable[[], Mapping[str, Program]] = dict) -> None:
        self.resources: set[str] = set()
        self.metadata_keys: tuple[str, ...] = ()
        self._programs = programs
        self._read: dict[str, Program] = {}
        self._policy_revision = 0

    def revision(self) -> int:
        """Grows with each new name. Reads policies that changed."""
        active = dict(self._programs())
        if active.keys() != self._read.keys() or any(active[name] is not self._read[name] for name in active):
            self._read = active
            in_order = sorted(active.values(), key=lambda program: (program.team is not None, program.name))
            keys = tuple(dict.fromkeys(key for program in in_order for key in metadata_keys(program)))
            self._policy_revision += not set(keys) <= set(self.metadata_keys)
            self.metadata_keys = keys
        return len(self.resources) + self._policy_revision

    @property
    def known_revision(self) -> int:
        """Without reading policies: for a thread."""
        return len(self.resources) + self._policy_revision


def metadata_keys(program: Program) -> list[str]:
    """The keys of labels and annotations of pods that a policy reads, and some of nodes and namespaces, in a fixed order."""
    return list(dict.fromkeys(_keys_in(program, set())))


def _keys_in(value: Any, visited: set[int]) -> Iterator[str]:
    match value:
        case Attr(path=(name, key)) if name in _METADATA:
            yield key
        case Input(source_map=name, source_key=str(key)) if name in _METADATA:
            yield key
        case str() | int() | float() | None:
            pass
        case Mapping():
            for item in value.values():
                yield from _keys_in(item, visited)
        case tuple() | frozenset():
            for item in value:
                yield from _keys_in(item, visited)
        case _ if is_dataclass(value) and id(value) not in visited:
            visited.add(id(value))  # expressions share their parts
            for each in fields(value):
                yield from _keys_in(getattr(value, each.name), visited)
