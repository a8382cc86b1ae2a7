"""The objects that a reflector knows, and their events: emitted, or held while the process is a standby.

holding ──an event──► the last event of each object is kept; a deleted object has none
   │ `release`: they are emitted as those of a first list
   ▼
emitting ──an event──► emitted
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from policysched.kube.decode.errors import MalformedObject
from policysched.kube.watch.resources import WatchedResource

Emitted = TypeVar("Emitted")
Decoded = tuple[Emitted, object]
"""The event of an object, and what its next version can be decoded with."""

TOMBSTONES_MAX = 10_000
"""How many versions of deleted objects are kept, so that a stale event does not bring an object back."""


@dataclass(slots=True)
class KnownObject(Generic[Emitted]):
    """The last known state of an object: its version, whether consumers have it, and whether to keep it while malformed.
    `decoded`: what its next version can be decoded with (`WatchedResource.decode_update`). `held`: its event, while holding."""

    version: int
    emitted: bool
    keep_when_malformed: bool
    decoded: object = None
    held: Emitted | None = None


class KnownObjects(Generic[Emitted]):
    """By key. All versions of a kind have the keys and the deletions of `resource`."""

    def __init__(
        self,
        resource: WatchedResource[Emitted],
        emit: Callable[[Emitted], None],
        on_malformed: Callable[[MalformedObject], None],
        *,
        holds: bool,
    ) -> None:
        self._resource = resource
        self._emit = emit
        self._on_malformed = on_malformed
        self._holds = holds
        self._held_served: Emitted | None = None
        self.objects: dict[str, KnownObject[Emitted]] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._malformed: dict[str, int] = {}

    def key_of(self, obj: Any) -> str | None:
        meta = obj.get("metadata") if isinstance(obj, Mapping) else None
        try:
            return self._resource.key(meta) if isinstance(meta, Mapping) else None
        except KeyError as error:
            name = str(meta.get("name", "")) if isinstance(meta, Mapping) else ""
            missing = f"metadata.{error.args[0]}"
            self._on_malformed(MalformedObject(self._resource.kind, name, missing, "is missing"))
            return None

    def release(self) -> None:
        """Emit what is held, and from now on every event."""
        self._holds = False
        for known in self.objects.values():
            if known.held is not None:
                self._emit(known.held)
                known.held = None
        if self._held_served is not None:
            self._emit(self._held_served)
            self._held_served = None

    def emit_served(self, event: Emitted) -> None:
        """Whether the server serves the kind (`WatchedResource.served_event`)."""
        if self._holds:
            self._held_served = event
        else:
            self._emit(event)

    def is_newer(self, key: str, version: int) -> bool:
        """Equal versions are the same state, unless the version is not a number (0)."""
        known = self.objects.get(key)
        is_known = known is not None and version <= known.version
        return not version or not (is_known or version <= self._tombstones.get(key, -1))

    def store(self, key: str, version: int, decoded: Decoded[Emitted] | MalformedObject) -> None:
        if isinstance(decoded, MalformedObject):
            self._skip_malformed(key, version, self.objects.get(key), decoded)
            return
        event, for_update = decoded
        self._malformed.pop(key, None)
        self._tombstones.pop(key, None)
        self.objects[key] = KnownObject(
            version,
            emitted=True,
            keep_when_malformed=self._resource.keep_when_malformed(event),
            decoded=for_update,
            held=self._resource.held_event(event) if self._holds else None,
        )
        if not self._holds:
            self._emit(event)

    def _skip_malformed(
        self, key: str, version: int, known: KnownObject[Emitted] | None, malformed: MalformedObject
    ) -> None:
        """Objects that occupy resources are kept as last decoded: deleting them would release the resources."""
        if self._malformed.get(key) != version:
            self._malformed[key] = version
            self._on_malformed(malformed)
        kept = known is not None and known.emitted and known.keep_when_malformed
        if known is not None and known.emitted and not kept:
            self._emit_deleted(key)
        held = known.held if known is not None and kept else None
        self.objects[key] = KnownObject(version, emitted=kept, keep_when_malformed=kept, held=held)

    def delete(self, key: str, version: int) -> None:
        known = self.objects.pop(key, None)
        self._malformed.pop(key, None)
        self._tombstones[key] = version
        self._tombstones.move_to_end(key)
        if len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)
        if known is not None and known.emitted:
            self._emit_deleted(key)

    def _emit_deleted(self, key: str) -> None:
        event = self._resource.deleted_event(key)  # also while holding: it may count what is left
        if not self._holds:
            self._emit(event)

    def forget_deleted(self) -> None:
        self._tombstones.clear()

    def forget_versions(self) -> None:
        """Versions went backwards: any version of an object is newer than what is known."""
        self._tombstones.clear()
        for known in self.objects.values():
            known.version = 0
