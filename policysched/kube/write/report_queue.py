"""Events and statuses that wait to be written, by namespace."""

from collections import OrderedDict, deque
from collections.abc import Container
from dataclasses import dataclass

from policysched.kube.write.namespace_turns import NamespaceTurns
from policysched.kube.write.pod_group_status import PodGroupStatusWrite
from policysched.kube.write.report_content import EventContent, PodScheduledCondition

AnyStatus = PodScheduledCondition | PodGroupStatusWrite


@dataclass(slots=True)
class EventSeries:
    """An event object: how often it occurred, and the count that the server has."""

    name: str
    count: int = 1
    written: int = 0
    last_ns: int = 0
    written_s: float = float("-inf")
    queued: bool = False


QueuedEvent = tuple[EventContent, EventSeries]


class ReportQueue:
    """Of each namespace the statuses before the events, each in their order. What is put also gets a turn of its namespace in
    `turns`, but no more turns wait than there is to write: what a turn was for can be removed, while a webhook hangs. A turn may find
    nothing."""

    def __init__(self, turns: NamespaceTurns[str]) -> None:
        self._turns = turns
        self._statuses: dict[str, OrderedDict[str, AnyStatus]] = {}  # none empty
        self._events: dict[str, deque[QueuedEvent]] = {}  # none empty
        self.status_count = self.event_count = 0

    def __len__(self) -> int:
        return self.status_count + self.event_count

    def put_status(self, status: AnyStatus) -> None:
        """Replaces an older one of the object, in its place."""
        of_namespace = self._statuses.setdefault(status.namespace, OrderedDict())
        if status.uid not in of_namespace:
            self.status_count += 1
            of_namespace[status.uid] = status
            self._put_turn(status.namespace)
        of_namespace[status.uid] = status

    def remove_status(self, status: AnyStatus) -> None:
        """That of the object, if there is one."""
        of_namespace = self._statuses.get(status.namespace)
        if of_namespace is not None and of_namespace.pop(status.uid, None) is not None:
            self.status_count -= 1
            if not of_namespace:
                del self._statuses[status.namespace]

    def first_status(self, namespace: str, busy: Container[str]) -> AnyStatus | None:
        """The oldest one of an object that is not busy."""
        of_namespace = self._statuses.get(namespace) or OrderedDict[str, AnyStatus]()
        return next((status for uid, status in of_namespace.items() if uid not in busy), None)

    def oldest_status_of_most(self) -> AnyStatus:
        """Of the namespace that has most of them. There is one."""
        return next(iter(max(self._statuses.values(), key=len).values()))

    def add_turn(self, status: AnyStatus) -> None:
        """If one of the object waits, whose turn may have passed."""
        if status.uid in self._statuses.get(status.namespace, ()):
            self._put_turn(status.namespace)

    def _put_turn(self, namespace: str) -> None:
        queued = len(self._statuses.get(namespace, ())) + len(self._events.get(namespace, ()))
        if self._turns.waiting(namespace) < queued:
            self._turns.put(namespace, namespace)

    def put_event(self, event: QueuedEvent) -> None:
        namespace = event[0].regarding.namespace
        self._events.setdefault(namespace, deque()).append(event)
        self.event_count += 1
        self._put_turn(namespace)

    def pop_event(self, namespace: str) -> QueuedEvent | None:
        """The oldest one."""
        of_namespace = self._events.get(namespace)
        if of_namespace is None:
            return None
        self.event_count -= 1
        oldest = of_namespace.popleft()
        if not of_namespace:
            del self._events[namespace]
        return oldest

    def pop_event_of_most(self) -> QueuedEvent | None:
        """The oldest one of the namespace that has most of them."""
        return self.pop_event(max(self._events, key=lambda namespace: len(self._events[namespace])))
