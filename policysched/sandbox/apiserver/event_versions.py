"""Events in two versions: stored as `v1` writes them, renamed field by field for `events.k8s.io/v1`."""

from typing import Any

Json = dict[str, Any]

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_OLD_NAMES = {new: old for old, new in _NEW_NAMES.items()}


def as_events_v1(obj: Json) -> Json:
    """A stored event in the words of `events.k8s.io/v1`."""
    return {_NEW_NAMES.get(key, key): value for key, value in obj.items()}


def as_core_v1(obj: Json) -> Json:
    """An event from `events.k8s.io/v1` in the words that it is stored in."""
    return {_OLD_NAMES.get(key, key): value for key, value in obj.items()}
