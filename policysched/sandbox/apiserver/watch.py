"""A watch: event lines for one client, made from the changes of one collection.

A `WatchSubscription` does not wait. The transport takes pending lines with `drain`, and `notify` is
called when there are more. Bookmarks and the end of the watch depend on time: `drain` takes the time,
and `next_due_s` says when to call it without a change.

An event's line is encoded once and shared by all watchers that see it alike. A watcher with a selector
sees an object that starts to match as ADDED and one that stops to match as DELETED, as in
kube-apiserver.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.selectors import ObjectFilter
from policysched.sandbox.apiserver.store import ChangeType, Json, StoreChange, StoredObject

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class EventView(Protocol):
    """How a watcher sees objects: JSON of a version, or rows of a table."""

    def event(self, event_type: str, entry: StoredObject) -> bytes:
        """An event's line, with a newline."""
        ...

    def bookmark(self, version: int, annotations: dict[str, str]) -> bytes: ...


class JsonEventView:
    """Event lines in JSON, encoded once for all watchers of a kind."""

    def __init__(self, prefix: bytes, bookmark_head: Json, to_version: Callable[[Json], Json] | None):
        self._prefix = prefix
        self._bookmark_head = bookmark_head
        self._to_version = to_version
        self._last_encoded: tuple[StoredObject, str, bytes] | None = None

    def event(self, event_type: str, entry: StoredObject) -> bytes:
        if (
            self._last_encoded is not None
            and self._last_encoded[0] is entry
            and self._last_encoded[1] == event_type
        ):
            return self._last_encoded[2]
        encoded = entry.encoded if self._to_version is None else orjson.dumps(self._to_version(entry.obj))
        line = b'{"type":"%s","object":%s%s}\n' % (event_type.encode(), self._prefix, encoded[1:])
        self._last_encoded = (entry, event_type, line)
        return line

    def bookmark(self, version: int, annotations: dict[str, str]) -> bytes:
        metadata: Json = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        return (
            orjson.dumps({"type": "BOOKMARK", "object": {**self._bookmark_head, "metadata": metadata}})
            + b"\n"
        )


class WatchSubscription:
    """An open watch. Ends at `ends_at_s`, by the client's `close` or by the server's `terminate`."""

    def __init__(
        self,
        view: EventView,
        wanted: ObjectFilter,
        *,
        now_s: float,
        ends_at_s: float,
        bookmark_every_s: float | None,
        version: Callable[[], int],
    ):
        self._view = view
        self._wanted = wanted
        self._lines: list[bytes] = []
        self._ends_at_s = ends_at_s
        self._bookmark_every_s = bookmark_every_s
        self._bookmark_at_s = now_s + bookmark_every_s if bookmark_every_s is not None else None
        self._version = version
        self.ended = False
        self.notify: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None

    def send_initial(self, entries: list[StoredObject], *, marks_the_end: bool) -> None:
        """Send existing objects as ADDED; with `marks_the_end`, a bookmark follows them."""
        for entry in entries:
            self._lines.append(self._view.event("ADDED", entry))
        if marks_the_end:
            self._lines.append(self._view.bookmark(self._version(), {INITIAL_EVENTS_END: "true"}))

    def on_change(self, change: StoreChange) -> None:
        """Process a change, if the watcher may see it."""
        event_type = self._event_type_for(change)
        if event_type is None:
            return
        entry = change.entry
        if event_type == "DELETED" and change.type != "DELETED":
            # It no longer matches: send the last matching state with the new version.
            assert change.previous is not None
            entry = change.previous.with_version(change.version)
        self._lines.append(self._view.event(event_type, entry))
        self.notify()

    def fail(self, refusal: StatusError) -> None:
        """End the watch with an ERROR event, as kube-apiserver does if a version is too old."""
        self._lines.append(orjson.dumps({"type": "ERROR", "object": refusal.status()}) + b"\n")
        self.terminate()

    def drain(self, now_s: float) -> bytes:
        """The pending lines. Empty and `ended`: the watch is over."""
        if self._bookmark_at_s is not None and now_s >= self._bookmark_at_s and not self.ended:
            assert self._bookmark_every_s is not None
            self._bookmark_at_s = now_s + self._bookmark_every_s
            self._lines.append(self._view.bookmark(self._version(), {}))
        if now_s >= self._ends_at_s and not self.ended:
            if self._bookmark_every_s is not None:
                self._lines.append(self._view.bookmark(self._version(), {}))
            self.terminate()
        taken = b"".join(self._lines)
        self._lines.clear()
        return taken

    def next_due_s(self) -> float:
        """When `drain` has something to send without a change, on the server's clock."""
        return self._ends_at_s if self._bookmark_at_s is None else min(self._ends_at_s, self._bookmark_at_s)

    def terminate(self) -> None:
        """End the watch from the server's side; pending lines can still be drained."""
        if not self.ended:
            self.ended = True
            self.on_close()
            self.notify()

    def close(self) -> None:
        """End the watch from the client's side."""
        self._lines.clear()
        self.terminate()

    def _event_type_for(self, change: StoreChange) -> ChangeType | None:
        wanted = self._wanted
        if wanted.namespace and change.entry.key[0] != wanted.namespace:
            return None
        if wanted.matches_all:
            return change.type
        matched_before = change.previous is not None and wanted.matches(change.previous.obj)
        if change.type == "DELETED":
            return "DELETED" if matched_before else None
        if wanted.matches(change.entry.obj):
            return "MODIFIED" if matched_before else "ADDED"
        return "DELETED" if matched_before else None


def check_watch_list(sends_initial: str | None, params: Mapping[str, str]) -> None:
    """Raises a `StatusError` for options of a watch that do not go together."""
    match = params.get("resourceVersionMatch", "")
    if sends_initial is None:
        if match:
            raise _forbidden_option(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        return
    if match != "NotOlderThan":
        reason = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise _forbidden_option("resourceVersionMatch", reason)


def _forbidden_option(field: str, reason: str) -> StatusError:
    causes = [{"reason": "FieldValueForbidden", "message": f"Forbidden: {reason}", "field": field}]
    message = f'ListOptions.meta.k8s.io "" is invalid: {field}: Forbidden: {reason}'
    return StatusError(
        422, "Invalid", message, details={"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes}
    )
