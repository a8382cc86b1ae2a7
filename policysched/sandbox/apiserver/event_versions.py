"""Converts Events between the stored version `v1` and `events.k8s.io/v1`."""

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
    """Convert a stored event to `events.k8s.io/v1`."""
    return {_NEW_NAMES.get(key, key): value for key, value in obj.items()}


def as_core_v1(obj: Json) -> Json:
    """Convert an event of `events.k8s.io/v1` to the stored version."""
    return {_OLD_NAMES.get(key, key): value for key, value in obj.items()}
