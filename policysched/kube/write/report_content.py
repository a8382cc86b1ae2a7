"""What a report says: the object it is about, an event, and the PodScheduled condition."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EventObject:
    """The object that an event is about."""

    kind: Literal["Pod", "ConfigMap"]
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class EventContent:
    """An event without time and name. `action` is kube-scheduler's: Binding, Scheduling, Preempting. `related` is a second
    object."""

    regarding: EventObject
    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str
    scheduler: str
    related: EventObject | None = None


@dataclass(frozen=True, slots=True)
class PodScheduledCondition:
    """PodScheduled=False on a pod, with reason and message."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
