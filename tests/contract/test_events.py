"""Validation of Events, core/v1 and events.k8s.io/v1 (with an `eventTime`)."""

from typing import Any

import pytest

from tests.contract.transports import Answer, Api

Json = dict[str, Any]

NEW = "/apis/events.k8s.io/v1/namespaces/{}/events"
OLD = "/api/v1/namespaces/{}/events"
NEW_KIND: Json = {
    "metadata": {"name": "e"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reportingController": "policysched.test/scheduler",
    "reportingInstance": "policysched-0",
    "action": "Binding",
    "reason": "Scheduled",
    "type": "Normal",
    "note": "bound",
}


def create(api: Api, event: Json, *, about: str | None = None, **changes: Any) -> Answer:
    """Create an events.k8s.io event in a fresh namespace, about a pod there or in the namespace
    `about`; None removes a field.
    """
    namespace = api.namespace()
    regarding = {"kind": "Pod", "name": "web", "namespace": namespace if about is None else about}
    body = {
        key: value for key, value in {**event, "regarding": regarding, **changes}.items() if value is not None
    }
    return api.post(NEW.format(namespace), body)


def test_a_new_event_is_stored(api: Api) -> None:
    assert create(api, NEW_KIND).status == 201


@pytest.mark.parametrize("field", ["eventTime", "reportingInstance", "action", "reason"])
def test_a_new_event_without_a_required_field_is_refused(api: Api, field: str) -> None:
    answer = create(api, NEW_KIND, **{field: None})

    assert answer.status == 422
    assert answer.json["message"] == f'Event "e" is invalid: {field}: Required value'


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"type": "Odd"}, 'type: Invalid value: "": has invalid value: Odd'),
        ({"note": "x" * 1025}, 'message: Invalid value: "": can have at most 1024 characters'),
        ({"reason": "x" * 129}, 'reason: Invalid value: "": can have at most 128 characters'),
        ({"deprecatedCount": 2}, 'count: Invalid value: "": needs to be unset'),
        (
            {"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}},
            'series.count: Invalid value: "": should be at least 2',
        ),
    ],
)
def test_a_new_event_with_an_invalid_field_is_refused(api: Api, changes: Json, complaint: str) -> None:
    answer = create(api, NEW_KIND, **changes)

    assert answer.status == 422
    assert answer.json["message"] == f'Event "e" is invalid: {complaint}'


def test_a_new_event_without_a_reporter_is_refused(api: Api) -> None:
    answer = create(api, NEW_KIND, reportingController=None)

    assert answer.status == 422
    assert answer.json["message"].startswith(
        'Event "e" is invalid: [reportingController: Required value, '
        'reportingController: Invalid value: "": name part must be non-empty, '
    )


def test_a_new_event_may_be_about_another_namespace_but_needs_a_namespace(api: Api) -> None:
    assert create(api, NEW_KIND, about="kube-system").status == 201

    refused = create(api, NEW_KIND, about="")

    assert refused.json["message"] == (
        'Event "e" is invalid: involvedObject.namespace: Invalid value: "": does not match event.namespace'
    )


def test_a_core_v1_event_must_be_in_the_namespace_of_its_object(api: Api) -> None:
    namespace = api.namespace()
    at_home = {
        "metadata": {"name": "a"},
        "involvedObject": {"kind": "Pod", "name": "w", "namespace": namespace},
    }
    elsewhere = {
        "metadata": {"name": "b"},
        "involvedObject": {"kind": "Pod", "name": "w", "namespace": "default"},
    }

    assert api.post(OLD.format(namespace), at_home).status == 201
    refused = api.post(OLD.format(namespace), elsewhere)

    assert refused.status == 422
    assert refused.json["message"] == (
        'Event "b" is invalid: involvedObject.namespace: Invalid value: "default": does not match event.namespace'
    )


def test_events_about_nodes_are_in_the_default_namespace(api: Api) -> None:
    about_a_node = {"metadata": {"generateName": "n"}, "involvedObject": {"kind": "Node", "name": "a"}}

    assert api.post(OLD.format("default"), about_a_node).status == 201
    assert api.post(OLD.format(api.namespace()), about_a_node).status == 422


def test_an_absent_event_time_is_null_in_both_versions(api: Api) -> None:
    """kubectl's `--sort-by=.lastTimestamp` fails if the field is absent everywhere."""
    namespace = create(api, NEW_KIND).json["metadata"]["namespace"]

    old, new = (api.get(f"{path.format(namespace)}/e").json for path in (OLD, NEW))

    assert [old[name] for name in ("firstTimestamp", "lastTimestamp")] == [None, None]
    assert [new[name] for name in ("deprecatedFirstTimestamp", "deprecatedLastTimestamp")] == [None, None]
    assert old["eventTime"] == new["eventTime"] == NEW_KIND["eventTime"]
