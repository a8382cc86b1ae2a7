"""What an Event has to say before it is stored.

There are two kinds of it in one store. One with an `eventTime` is of the new kind, whichever API version brought it, and must
name its reporter and what was done; one without is of the old kind, and only has to lie in the namespace of what it is
about. `events.k8s.io/v1` takes the new kind alone. Order and words as a kube-apiserver 1.36 gives them.
"""

from typing import Any

from policysched.sandbox.apiserver.errors import Cause, bad_value, required
from policysched.sandbox.apiserver.name_rules import QUALIFIED, QUALIFIED_RULE

Json = dict[str, Any]

_LENGTHS_MAX = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_DEPRECATED = ("firstTimestamp", "lastTimestamp", "count", "source")


def event_causes(event: Json, *, through_events_v1: bool) -> list[Cause]:
    """What is wrong with an event in the words of core/v1 (as which all events are stored)."""
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
    about = (event.get("involvedObject") or {}).get("namespace", "")
    lies_in = event["metadata"].get("namespace", "")
    if about == lies_in or (not about and lies_in == "default"):
        return []
    if about and event.get("eventTime"):
        return []  # the new kind may tell of another namespace's object
    return [bad_value("involvedObject.namespace", about, "does not match event.namespace")]


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
