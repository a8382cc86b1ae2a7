"""Server-side apply: fields have owners, an apply removes what its manager no longer lists, and two managers conflict.

`metadata.managedFields` has the owners in kube-apiserver's format. Lists are merged by the keys of `patches.merge_key`. Simplified: only
what was applied has an owner, so a conflict is reported between two managers that apply, and not with a client that
replaced or patched the object.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.patches import MERGE_AS_SET, merge_key, strategic_merge_patch

Json = dict[str, Any]
FieldPath = tuple[str, ...]
"""As in `fieldsV1`: `f:NAME` a field, `k:{"name":"a"}` an item by its key, `v:"a"` an item by its value."""

_UNOWNED = frozenset({"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.managedFields"})


@dataclass(frozen=True, slots=True)
class Apply:
    """The body of one apply."""

    config: Json
    manager: str
    force: bool
    subresource: str
    api_version: str
    time: str

    def to(self, obj: Json) -> tuple[Json, list[Json]]:
        """The object with the fields applied, and its new `managedFields`. `obj` is changed in place. Raises a 409
        `StatusError` if another manager owns a field with another value."""
        config = {key: value for key, value in self.config.items() if key not in ("apiVersion", "kind")}
        entries = list(obj["metadata"].pop("managedFields", None) or ())
        other_entries = [entry for entry in entries if not self._is_own(entry)]
        own_entry = next((entry for entry in entries if self._is_own(entry)), None)
        applied = frozenset(_leaves(config, (), ()))
        self._check_conflicts(obj, config, applied, other_entries)
        owned_by_others = {path for entry in other_entries for path in _read_fields(entry["fieldsV1"])}
        before = set() if own_entry is None else set(_read_fields(own_entry["fieldsV1"]))
        # An item before its fields: its key finds it.
        for path in sorted(before - applied - owned_by_others, key=len):
            if not any(other[: len(path)] == path for other in owned_by_others):
                _remove(obj, path)
        merged = strategic_merge_patch(obj, orjson.loads(orjson.dumps(config)))
        if self.force:
            other_entries = [
                kept for entry in other_entries if (kept := _without(entry, obj, config, applied)) is not None
            ]
        if own_entry is None or before != applied:
            own_entry = {
                "manager": self.manager,
                "operation": "Apply",
                "apiVersion": self.api_version,
                "time": self.time,
                "fieldsType": "FieldsV1",
                "fieldsV1": _write_fields(applied),
                **({"subresource": self.subresource} if self.subresource else {}),
            }
        return merged, [*other_entries, own_entry]

    def _is_own(self, entry: Json) -> bool:
        return bool(entry["manager"] == self.manager and entry.get("subresource", "") == self.subresource)

    def _check_conflicts(
        self, obj: Json, config: Json, applied: frozenset[FieldPath], other_entries: list[Json]
    ) -> None:
        if self.force:
            return
        causes = [
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "{entry["manager"]}"',
                "field": _dotted(path),
            }
            for entry in other_entries
            for path in sorted(_read_fields(entry["fieldsV1"]) & applied)
            if _value(obj, path) != _value(config, path)
        ]
        if causes:
            plural = "conflict" if len(causes) == 1 else "conflicts"
            listed = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
            raise StatusError(
                409,
                "Conflict",
                f"Apply failed with {len(causes)} {plural}: {listed}",
                details={"causes": causes},
            )


def _without(entry: Json, obj: Json, config: Json, applied: frozenset[FieldPath]) -> Json | None:
    """The entry without the fields that a forced apply took over; None if nothing is left."""
    fields = _read_fields(entry["fieldsV1"])
    kept_fields = {
        path for path in fields if path not in applied or _value(obj, path) == _value(config, path)
    }
    return {**entry, "fieldsV1": _write_fields(frozenset(kept_fields))} if kept_fields else None


def _leaves(value: Any, at: FieldPath, names: tuple[str, ...]) -> Iterator[FieldPath]:
    """The fields that a config sets. An item of a merged list is a field of its own, besides what it contains."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            if ".".join((*names, name)) not in _UNOWNED and item is not None:
                yield from _leaves(item, (*at, f"f:{name}"), (*names, name))
        return
    key = merge_key(names) if isinstance(value, list) else None
    if key is None:
        yield at
        return
    for item in value:
        if key == MERGE_AS_SET or not isinstance(item, dict):
            yield (*at, f"v:{_compact(item)}")
            continue
        item_path = (*at, f"k:{_compact({key: item.get(key)})}")
        yield item_path
        yield from _leaves(item, item_path, names)


def _value(obj: Any, path: FieldPath) -> Any:
    """The value of a field; the field's own path for an item of a merged list, because what it contains is compared field
    by field."""
    for step in path:
        obj = _child(obj, step)
    return path if path and path[-1][:2] in ("k:", "v:") and obj is not None else obj


def _child(obj: Any, step: str) -> Any:
    kind, rest = step[0], step[2:]
    if kind == "f":
        return obj.get(rest) if isinstance(obj, dict) else None
    wanted = orjson.loads(rest)
    if not isinstance(obj, list):
        return None
    if kind == "v":
        return wanted if wanted in obj else None
    return next((item for item in obj if _has_key(item, wanted)), None)


def _has_key(item: Any, key: Json) -> bool:
    return isinstance(item, dict) and all(item.get(name) == value for name, value in key.items())


def _remove(obj: Any, path: FieldPath) -> None:
    """Remove a field, and the objects and lists that have become empty by it."""
    *above, last = path
    parents = [obj]
    for step in above:
        parents.append(_child(parents[-1], step))
    holder = parents[-1]
    if last[0] == "f":
        if isinstance(holder, dict):
            holder.pop(last[2:], None)
    elif isinstance(holder, list):
        wanted = orjson.loads(last[2:])
        holder[:] = [
            item for item in holder if not (item == wanted if last[0] == "v" else _has_key(item, wanted))
        ]
    if above and not holder and above[-1][0] == "f" and isinstance(parents[-2], dict):
        _remove(obj, tuple(above))


def _read_fields(tree: Json, at: FieldPath = ()) -> frozenset[FieldPath]:
    """From `fieldsV1`, where `.` marks an item that is a field besides what it contains."""
    paths: set[FieldPath] = set()
    for step, below in tree.items():
        if step == ".":
            paths.add(at)
        elif not below:
            paths.add((*at, step))
        else:
            paths |= _read_fields(below, (*at, step))
    return frozenset(paths)


def _write_fields(paths: frozenset[FieldPath]) -> Json:
    tree: Json = {}
    for path in sorted(paths):
        at = tree
        for step in path:
            at = at.setdefault(step, {})
    for path in paths:
        at = tree
        for step in path:
            at = at[step]
        if at:
            at["."] = {}
    return tree


def _compact(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _dotted(path: FieldPath) -> str:
    """As kube-apiserver writes it: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        if step[0] == "f":
            text += f".{step[2:]}"
        elif step[0] == "v":
            text += f"[={step[2:]}]"
        else:
            key = orjson.loads(step[2:])
            text += "[" + ",".join(f"{name}={_compact(value)}" for name, value in key.items()) + "]"
    return text
