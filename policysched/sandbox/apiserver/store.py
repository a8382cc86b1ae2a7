"""The store, in place of etcd and the watch cache: objects by key, one version counter, bounded history.

Every write is a `StoreChange` with its own version. The history of a resource serves watches (changes
after a version) and further pages of lists (the collection at a version). Both fail with "gone" if the
version is older than the history.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace (`""` for what has none) and name: sorted as etcd sorts."""

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


class StoredObject:
    """An object in one version, immutable, with its JSON encoded at most once."""

    __slots__ = ("_encoded", "key", "obj", "version")

    def __init__(self, key: Key, obj: Json, version: int):
        self.key = key
        self.obj = obj
        self.version = version
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The object as JSON, without `kind` and `apiVersion`."""
        if self._encoded is None:
            self._encoded = orjson.dumps(self.obj)
        return self._encoded

    def with_version(self, version: int) -> "StoredObject":
        """The same state with another `metadata.resourceVersion`, for the event of a deletion."""
        metadata = {**self.obj["metadata"], "resourceVersion": str(version)}
        return StoredObject(self.key, {**self.obj, "metadata": metadata}, version)

    def copy(self) -> Json:
        """A deep copy that the caller may modify."""
        copied: Json = orjson.loads(self.encoded)
        return copied


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A write. `entry` is the new object; for a deletion, the last state with the deletion's version."""

    version: int
    type: ChangeType
    entry: StoredObject
    previous: StoredObject | None


_FIRST: Key = ("", "")
"""Before all keys: every object has a name."""


@dataclass(frozen=True, slots=True)
class CollectionSnapshot:
    """A collection at a version: the keys in order, and the objects that differ from the current ones."""

    keys: list[Key]
    overrides: dict[Key, StoredObject | None]
    current: dict[Key, StoredObject]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[StoredObject]:
        for key in self.keys:
            override = self.overrides.get(key)
            yield self.current[key] if override is None else override


@dataclass(slots=True)
class StoredCollection:
    """The objects of a resource and its recent changes. `compacted` is the newest version without history."""

    entries: dict[Key, StoredObject] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)
    history: list[StoreChange] = field(default_factory=list)
    compacted: int = 0

    def changes_after(self, version: int) -> list[StoreChange]:
        """The changes after `version`, oldest first. The caller has checked `version >= compacted`."""
        assert version >= self.compacted, f"asked for changes after {version}, compacted at {self.compacted}"
        return self.history[bisect_right(self.history, version, key=lambda change: change.version) :]

    def snapshot_at(self, version: int, namespace: str = "", after: Key = _FIRST) -> "CollectionSnapshot":
        """The objects of a namespace (`""`: all) after key `after`, as they were at `version`.

        Cheap if nothing was added or removed since, because a long list is read page by page.
        """
        begin = bisect_right(self.keys, max(after, (namespace, "")))
        end = bisect_left(self.keys, (namespace + "\0", "")) if namespace else len(self.keys)
        keys = self.keys[begin:end]
        undone: dict[Key, StoredObject | None] = {}
        for change in self.changes_after(version):
            undone.setdefault(change.entry.key, change.previous)
        for key, before in undone.items():
            if key <= after or (namespace and key[0] != namespace):
                continue
            at = bisect_left(keys, key)
            is_there = at < len(keys) and keys[at] == key
            if before is None and is_there:
                del keys[at]
            elif before is not None and not is_there:
                keys.insert(at, key)
        return CollectionSnapshot(keys, undone, self.entries)

    def in_namespace(self, namespace: str) -> Iterator[StoredObject]:
        """The objects of one namespace, or all for `""`, in key order."""
        if not namespace:
            return (self.entries[key] for key in self.keys)
        begin = bisect_left(self.keys, (namespace, ""))
        end = bisect_left(self.keys, (namespace + "\0", ""))
        return (self.entries[key] for key in self.keys[begin:end])


class ObjectStore:
    """All collections under one version counter. Listeners get each change after it is made, in order.

    The history begins after `first_version`: a request for an older version fails with 410 Gone."""

    def __init__(self, *, history_changes_max: int, first_version: int = 1):
        assert history_changes_max > 0, f"history_changes_max={history_changes_max}"
        self.version = first_version
        self._compacted_at_first = first_version - 1
        self._history_changes_max = history_changes_max
        self._collections: dict[str, StoredCollection] = {}
        self._listeners: dict[str, list[Callable[[StoreChange], None]]] = {}

    def collection(self, resource: str) -> StoredCollection:
        collection = self._collections.get(resource)
        if collection is None:
            collection = self._collections[resource] = StoredCollection(compacted=self._compacted_at_first)
        return collection

    def get(self, resource: str, key: Key) -> StoredObject | None:
        return self.collection(resource).entries.get(key)

    def listen(self, resource: str, listener: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Call `listener` on each change of `resource`. Returns a function that stops it."""
        listeners = self._listeners.setdefault(resource, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def put(self, resource: str, key: Key, obj: Json) -> StoredObject:
        """Write a new state of an object. The store owns it from then on."""
        collection = self.collection(resource)
        before = collection.entries.get(key)
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        entry = StoredObject(key, obj, self.version)
        collection.entries[key] = entry
        if before is None:
            insort(collection.keys, key)
        self._record(
            resource, collection, StoreChange(self.version, "MODIFIED" if before else "ADDED", entry, before)
        )
        return entry

    def remove(self, resource: str, key: Key) -> StoredObject:
        """Remove an object. Returns its last state with the version of the removal."""
        collection = self.collection(resource)
        before = collection.entries.pop(key)
        del collection.keys[bisect_left(collection.keys, key)]
        self.version += 1
        entry = before.with_version(self.version)
        self._record(resource, collection, StoreChange(self.version, "DELETED", entry, before))
        return entry

    def compact(self, resource: str | None = None) -> None:
        """Drop the history: requests for older versions fail with "gone"."""
        for name, collection in self._collections.items():
            if resource in (None, name):
                collection.history.clear()
                collection.compacted = self.version

    def _record(self, resource: str, collection: StoredCollection, change: StoreChange) -> None:
        collection.history.append(change)
        # Trim to the bound at twice its size: dropping one at a time would move the list on each write.
        if len(collection.history) > 2 * self._history_changes_max:
            kept_from = len(collection.history) - self._history_changes_max
            collection.compacted = collection.history[kept_from - 1].version
            del collection.history[:kept_from]
        for listener in tuple(self._listeners.get(resource, ())):
            listener(change)
