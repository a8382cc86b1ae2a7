"""Objects without a namespace are admitted a few at a time once several of their kind have raised within an hour.

    raised ten times ──► those that were applied: at once; of the others 1, 2, 4, ... each 5 s ──one raises──► 30 s, then 1 again

Each that raises has the cluster read again, and nobody is served meanwhile. All objects of a namespace are left out then. A cluster
without all of its nodes would serve nobody either, so those that were applied stay, and pods are scheduled between the attempts.
"""

import logging
from collections.abc import Iterable
from itertools import islice

from policysched.daemon.event_objects import NODE_OBJECT
from policysched.scheduler.blame import METRIC, POLICY_TEXT, ObjectId
from policysched.scheduler.limits import SECOND_NS

log = logging.getLogger(__name__)

FAILURES_MAX = 10
"""So often within an hour may objects of one kind have the cluster read again one after another."""
WINDOW_NS = 3600 * SECOND_NS
INTERVAL_NS = 5 * SECOND_NS
PAUSE_NS = 30 * SECOND_NS


class SlowAdmission:
    """A node, its CSINode and its other objects are admitted together: none of them counts without the others."""

    def __init__(self) -> None:
        self._raised_ns: dict[str, list[int]] = {}
        self._until_ns: dict[str, int] = {}
        self._applied: set[ObjectId] = set()
        self._newest: set[ObjectId] = set()
        self._newest_max, self._next_ns = 1, 0

    @property
    def is_on(self) -> bool:
        """Whether a kind is, or was, admitted slowly."""
        return bool(self._until_ns)

    def holds_back(self, object_id: ObjectId, now_ns: int) -> bool:
        """Whether the object has to wait. Otherwise it counts as applied."""
        group = _group_of(object_id)
        if group is None or group in self._applied:
            return False
        if now_ns < self._until_ns.get(group.kind, 0):
            return True
        self._applied.add(group)
        return False

    def note_raised(self, object_id: ObjectId, now_ns: int) -> None:
        group = _group_of(object_id)
        if group is None:
            return
        self._applied -= self._newest | {group}
        self._newest, self._newest_max, self._next_ns = set(), 1, now_ns + PAUSE_NS
        recent = [at_ns for at_ns in self._raised_ns.get(group.kind, ()) if at_ns > now_ns - WINDOW_NS]
        self._raised_ns[group.kind] = recent = [*recent, now_ns][-FAILURES_MAX:]
        if len(recent) == FAILURES_MAX:
            self._until_ns[group.kind] = now_ns + WINDOW_NS
            log.error(
                "objects that were not applied yet are admitted a few at a time", extra={"kind": group.kind}
            )

    def admit_more(self, waiting: Iterable[ObjectId], now_ns: int) -> bool:
        """Whether some of those that wait need not wait any more."""
        if not self.is_on or now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + INTERVAL_NS
        groups = (group for object_id in waiting if (group := _group_of(object_id)) is not None)
        newest = set(islice((group for group in groups if group not in self._applied), self._newest_max))
        if not newest:
            return False
        self._applied |= newest
        self._newest, self._newest_max = newest, 2 * self._newest_max
        return True

    def forget(self, object_id: ObjectId) -> None:
        """The object was deleted."""
        self._applied.discard(object_id)


def _group_of(object_id: ObjectId) -> ObjectId | None:
    """What is admitted together. None for an object of a namespace, which has a limit of its own."""
    if object_id.namespace or not object_id.name or object_id.kind in ("Pod", METRIC, POLICY_TEXT):
        return None
    if object_id.kind == "CSINode" or object_id.kind.startswith(NODE_OBJECT):
        return ObjectId("Node", "", object_id.name)
    return object_id
