"""What a report says: the object it is about, an event, and the PodScheduled condition."""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from policysched.text.short_key import short_key


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

    @property
    def remembered(self) -> "EventContent":
        """With no more of the note than is written: events are remembered for longer than their pods."""
        kept_max = 2 * EVENT_NOTE_BYTES_MAX
        return self if len(self.note) <= kept_max else replace(self, note=self.note[:kept_max])


@dataclass(frozen=True, slots=True)
class PodScheduledCondition:
    """PodScheduled=False on a pod, with reason and message."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str

    @property
    def content(self) -> tuple[str, str]:
        """Equal contents are written once. It is remembered for longer than the pod."""
        return (self.reason, short_key(self.message))


_NAME_CHARACTERS_MAX = 253
_SUFFIX_CHARACTERS = 17


def event_name(regarding: str, random: Random) -> str:
    """The name of the object, cut where no room is left for what makes it unique. The server refuses longer ones."""
    begin = regarding[: _NAME_CHARACTERS_MAX - _SUFFIX_CHARACTERS].rstrip("-.")
    return f"{begin}.{random.getrandbits(64):016x}"


EVENT_NOTE_BYTES_MAX = 1024
_TRUNCATION_MARK = " ..."


def truncate_note(message: str) -> str:
    """The message cut to 1,024 bytes, the limit of an event's note; ` ...` marks the cut.

    Source: `truncateMessage` in kubernetes' `pkg/scheduler/schedule_one.go`.
    """
    encoded = message.encode()
    if len(encoded) <= EVENT_NOTE_BYTES_MAX:
        return message
    return encoded[: EVENT_NOTE_BYTES_MAX - len(_TRUNCATION_MARK)].decode(errors="ignore") + _TRUNCATION_MARK
