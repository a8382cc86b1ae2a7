"""Events: their two API versions, and their validation.

Two kinds of events share one store. An event with an `eventTime` is of the new kind, in both API
versions, and must name its reporter and action. An event without one is of the old kind and must only
be in the namespace of the object that it is about. `events.k8s.io/v1` accepts the new kind only. Order
and messages are those of kube-apiserver 1.36.
"""

from typing import Any

from policysched.sandbox.apiserver.errors import Cause, bad_value, required
from policysched.sandbox.apiserver.name_rules import QUALIFIED, QUALIFIED_RULE

Json = dict[str, Any]

_LENGTHS_MAX = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_DEPRECATED = ("firstTimestamp", "lastTimestamp", "count", "source")


def event_causes(event: Json, *, through_events_v1: bool) -> list[Cause]:
    """The field errors of an event, with the field names of core/v1, which is the stored version."""
    causes = _namespace_causes(event)
    if event.get("eventTime"):
        causes += _new_event_causes(
            event, "reportingController" if through_events_v1 else "reportingComponent"
        )
    elif through_events_v1:
        causes.append(required("eventTime"))
    if through_events_v1 and event.get("eventTime"):
        causes += _events_v1_causes(event)
    return causes


def _namespace_causes(event: Json) -> list[Cause]:
    namespace = (event.get("involvedObject") or {}).get("namespace", "")
    lies_in = event["metadata"].get("namespace", "")
    if namespace == lies_in or (not namespace and lies_in == "default"):
        return []
    if namespace and event.get("eventTime"):
        return []  # the new kind may be about an object of another namespace
    return [bad_value("involvedObject.namespace", namespace, "does not match event.namespace")]


def _new_event_causes(event: Json, reporter_field: str) -> list[Cause]:
    causes: list[Cause] = []
    reporter = event.get("reportingComponent") or ""
    if not reporter:
        causes += [required(reporter_field), bad_value(reporter_field, "", "name part must be non-empty")]
    if not QUALIFIED.fullmatch(reporter.rpartition("/")[2]):
        causes.append(bad_value(reporter_field, reporter, QUALIFIED_RULE))
    causes += [required(name) for name in ("reportingInstance", "action", "reason") if not event.get(name)]
    causes += [
        bad_value(name, "", f"can have at most {length_max} characters")
        for name, length_max in _LENGTHS_MAX.items()
        if len(event.get(name) or "") > length_max
    ]
    return causes


def _events_v1_causes(event: Json) -> list[Cause]:
    causes: list[Cause] = []
    event_type = event.get("type") or ""
    if event_type not in ("Normal", "Warning"):
        causes.append(bad_value("type", "", f"has invalid value: {event_type}"))
    series = event.get("series")
    if series and series.get("count", 0) < 2:
        causes.append(bad_value("series.count", "", "should be at least 2"))
    causes += [bad_value(name, "", "needs to be unset") for name in _DEPRECATED if event.get(name)]
    return causes


# ── versions ───────────────────────────────────────────────────────────────────────────────────

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
