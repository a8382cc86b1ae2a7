"""`PodParts`: of a pod only what some expressions read, to keep longer than the pod."""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.reads import Path
from policysched.lang.types.kinds import TypeKind
from policysched.model.pods import Pod


class PodParts:
    """Copies fields of counted pods, of maps only the keys that are read. Other fields of a copy are not set: to read one fails."""

    def __init__(self, paths: Iterable[Path]) -> None:
        keys: dict[str, set[str] | None] = {}
        for path in paths:
            row = find_attribute("other", path)
            field = row.field.partition(".")[0].removesuffix("[]")
            if field == "node":  # that it is placed on
                continue
            if row.key_kind == "resources" or row.type.kind is TypeKind.LIST:
                keys["dropped"] = None  # says whether they are known
            if row.key_kind is None:
                keys[field] = None
            else:
                of_map = keys.setdefault(field, set())
                assert of_map is not None, f"{field} is read whole and by key"
                of_map.add(path[-1])
        self._fields: list[tuple[Callable[[Any, Any], None], Callable[[Pod], object]]] = [
            (getattr(Pod, name).__set__, attrgetter(name) if of_map is None else _part_of_map(name, of_map))
            for name, of_map in keys.items()
        ]

    def of(self, pod: Pod) -> Pod:
        part = object.__new__(Pod)
        for set_field, read in self._fields:
            set_field(part, read(pod))
        return part


def _part_of_map(name: str, keys: set[str]) -> Callable[[Pod], Mapping[str, object]]:
    field, (first, *others) = attrgetter(name), sorted(keys)

    def read(pod: Pod) -> Mapping[str, object]:
        values = field(pod)
        part = {first: values[first]} if first in values else {}
        for key in others:
            if key in values:
                part[key] = values[key]
        return part

    return read
