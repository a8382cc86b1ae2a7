"""CustomResourceDefinitions, and the resources that they add."""

import itertools
from typing import Any

import pytest

from tests.contract.transports import JSON_PATCH, STRATEGIC, Answer, Api, Json
from tests.controlplane.waiting import wait_for

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUPS = (f"g{number}.example.com" for number in itertools.count(1))
"""One for each test: definitions belong to no namespace, and a real server takes a while to remove one."""

SPEC: Json = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
        "mode": {"type": "string", "enum": ["fast", "safe"], "default": "safe"},
        "code": {"type": "string", "pattern": "^[a-z]+$"},
        "port": {"x-kubernetes-int-or-string": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "parts": {
            "type": "array",
            "maxItems": 2,
            "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        },
    },
}
STATUS: Json = {"type": "object", "properties": {"phase": {"type": "string"}, "size": {"type": "integer"}}}


def definition(group: str, **version: Any) -> Json:
    """Of the resource `widgets`, with one version `v1`; `version` has its further fields."""
    schema = {"type": "object", "properties": {"spec": SPEC, "status": STATUS}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    **version,
                }
            ],
        },
    }


def defined(api: Api, **version: Any) -> str:
    """Create the definition, and return the path of its objects in a namespace of their own."""
    group = next(GROUPS)
    api.post(DEFINITIONS, definition(group, **version)).ok()
    path = f"/apis/{group}/v1/namespaces/{api.namespace()}/widgets"
    wait_for(lambda: api.get(path).status == 200, "the resource to be served")
    return path


def group_version(path: str) -> str:
    return path.removeprefix("/apis/").partition("/namespaces")[0]


def widget(path: str, /, **spec: Any) -> Json:
    """The widget `w`, for the path of its resource."""
    return {
        "apiVersion": group_version(path),
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 3, **spec},
    }


def causes(answer: Answer) -> list[tuple[str, str]]:
    assert answer.status == 422, answer
    return sorted((cause["field"], cause["reason"]) for cause in answer.json["details"]["causes"])


def test_a_list_of_custom_resources_is_read_in_parts(api: Api) -> None:
    """Owners and managed fields begin with the version of an API, too."""
    path = defined(api)
    owners = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": name} for name in "xyz"]
    for name in "abc":
        created = widget(path, size=1)
        metadata = {**created["metadata"], "name": name, "ownerReferences": owners}
        api.post(path, {**created, "metadata": metadata}).ok()

    parts = api.listed_in_parts(path)

    assert [item for part in parts for item in part] == api.get(path).json["items"]
    assert [len(part) for part in parts] == [1, 1, 1]


def test_a_definition_is_established_and_its_names_are_completed(api: Api) -> None:
    group = next(GROUPS)

    created = api.post(DEFINITIONS, definition(group)).ok().json
    path = f"{DEFINITIONS}/widgets.{group}"

    def established() -> list[str]:
        conditions = api.get(path).json.get("status", {}).get("conditions") or []
        return [condition["type"] for condition in conditions if condition["status"] == "True"]

    assert (created["spec"]["names"]["singular"], created["spec"]["names"]["listKind"]) == (
        "widget",
        "WidgetList",
    )
    wait_for(lambda: {"NamesAccepted", "Established"} <= {*established()}, "the definition")
    assert api.get(path).json["status"]["storedVersions"] == ["v1"]
    wait_for(lambda: api.get(f"/apis/{group}/v1").status == 200, "discovery")
    resources = api.get(f"/apis/{group}/v1").json["resources"]
    assert [row["name"] for row in resources] == ["widgets", "widgets/status"]
    assert (resources[0]["kind"], resources[0]["shortNames"]) == ("Widget", ["wd"])


def test_an_object_is_created_read_listed_watched_patched_and_deleted(api: Api) -> None:
    path = defined(api)
    with api.watch(path, resourceVersion=api.get(path).version) as watch:
        created = api.post(path, widget(path)).ok().json
        patched = api.patch(f"{path}/w", {"spec": {"size": 4}}).ok().json
        api.patch(f"{path}/w", [{"op": "replace", "path": "/spec/size", "value": 5}], JSON_PATCH).ok()
        listed = api.get(path)
        deleted = api.delete(f"{path}/w")
        events = [watch.next()["type"] for _ in range(4)]

    assert (created["kind"], created["metadata"]["generation"]) == ("Widget", 1)
    assert (patched["spec"]["size"], patched["metadata"]["generation"]) == (4, 2)
    assert (listed.json["kind"], listed.names) == ("WidgetList", ["w"])
    assert (deleted.status, deleted.json["details"]["kind"]) == (200, "widgets")
    assert events == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert api.get(f"{path}/w").status == 404


def test_defaults_are_set_and_unknown_fields_are_pruned(api: Api) -> None:
    path = defined(api)

    spec = api.post(path, widget(path, colour="red", free={"any": 1}, labels={"a": "b"})).ok().json["spec"]

    assert spec == {"size": 3, "mode": "safe", "free": {"any": 1}, "labels": {"a": "b"}}


def test_unknown_fields_are_an_error_if_the_client_requests_strict_validation(api: Api) -> None:
    path = defined(api)

    refused = api.post(path, widget(path, colour="red"), fieldValidation="Strict")

    assert refused.status == 400
    assert 'strict decoding error: unknown field "spec.colour"' in refused.json["message"]


def test_each_field_that_the_schema_forbids_is_named(api: Api) -> None:
    path = defined(api)
    wrong = widget(path, size=12, mode="slow", code="A1", port="http", parts=[{}, {"name": "a"}])

    refused = api.post(path, wrong)

    assert causes(refused) == [
        ("spec.code", "FieldValueInvalid"),
        ("spec.mode", "FieldValueNotSupported"),
        ("spec.parts[0].name", "FieldValueRequired"),
        ("spec.size", "FieldValueInvalid"),
    ]
    assert "spec.size in body should be less than or equal to 9" in refused.json["message"]
    assert "spec.code in body should match '^[a-z]+$'" in refused.json["message"]
    assert 'Unsupported value: "slow": supported values: "fast", "safe"' in refused.json["message"]


def test_a_field_of_the_wrong_type_names_the_type(api: Api) -> None:
    path = defined(api)

    refused = api.post(path, widget(path, size="big"))

    assert causes(refused) == [("spec.size", "FieldValueTypeInvalid")]
    assert 'spec.size in body must be of type integer: "string"' in refused.json["message"]


def test_too_many_items_and_a_missing_field_are_named(api: Api) -> None:
    path = defined(api)
    parts = [{"name": name} for name in "abc"]

    many = api.post(path, widget(path, parts=parts))
    missing = api.post(path, {**widget(path), "spec": {}})

    assert causes(many) == [("spec.parts", "FieldValueTooMany")]
    assert causes(missing) == [("spec.size", "FieldValueRequired")]


def test_the_status_is_written_by_its_subresource_alone(api: Api) -> None:
    path = defined(api)
    begun = api.post(path, {**widget(path), "status": {"phase": "mine"}}).ok().json

    reported = api.patch(f"{path}/w/status", {"spec": {"size": 7}, "status": {"phase": "Ready"}}).ok().json
    changed = api.patch(f"{path}/w", {"spec": {"size": 8}, "status": {"phase": "mine"}}).ok().json

    assert "status" not in begun
    assert (reported["spec"]["size"], reported["status"]) == (3, {"phase": "Ready"})
    assert reported["metadata"]["generation"] == 1
    assert (changed["spec"]["size"], changed["status"]) == (8, {"phase": "Ready"})


def test_without_the_subresource_the_status_is_a_field_like_others(api: Api) -> None:
    path = defined(api, subresources={})

    created = api.post(path, {**widget(path), "status": {"phase": "mine"}}).ok().json

    assert created["status"] == {"phase": "mine"}
    assert api.patch(f"{path}/w/status", {"status": {}}).status == 404


def test_the_scale_is_read_and_written_at_the_paths_of_the_definition(api: Api) -> None:
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    path = defined(api, subresources={"status": {}, "scale": scale})
    api.post(path, widget(path)).ok()
    api.patch(f"{path}/w/status", {"status": {"size": 2}}).ok()

    before = api.get(f"{path}/w/scale").ok().json
    api.patch(f"{path}/w/scale", {"spec": {"replicas": 6}}).ok()

    assert (before["spec"]["replicas"], before["status"]["replicas"]) == (3, 2)
    assert api.get(f"{path}/w").json["spec"]["size"] == 6


def test_a_strategic_merge_patch_of_a_custom_resource_answers_415(api: Api) -> None:
    path = defined(api)
    api.post(path, widget(path)).ok()

    assert api.patch(f"{path}/w", {"spec": {"size": 4}}, STRATEGIC).status == 415


def test_a_replacement_needs_the_resource_version(api: Api) -> None:
    path = defined(api)
    created = api.post(path, widget(path)).ok().json

    without = api.put(f"{path}/w", widget(path, size=5))
    replaced = api.put(f"{path}/w", {**created, "spec": {"size": 5}})

    assert causes(without) == [("metadata.resourceVersion", "FieldValueInvalid")]
    assert replaced.ok().json["spec"] == {"size": 5, "mode": "safe"}


def test_an_apply_creates_and_changes_a_custom_resource(api: Api) -> None:
    path = defined(api)
    body = widget(path)

    for size in (4, 5):
        body["spec"]["size"] = size
        applied = api.patch(f"{path}/w", body, "application/apply-patch+yaml", fieldManager="a").ok().json

    assert applied["spec"] == {"size": 5, "mode": "safe"}
    assert [entry["manager"] for entry in applied["metadata"]["managedFields"]] == ["a"]


def test_an_object_without_its_kind_is_refused(api: Api) -> None:
    path = defined(api)
    body = widget(path)
    del body["kind"]

    refused = api.post(path, body)

    assert refused.status == 400
    assert "Object 'Kind' is missing" in refused.json["message"]


def test_unknown_fields_with_any_name_are_dropped(api: Api) -> None:
    """They are named in a header, which has no line ends and no letters beyond ASCII."""
    path = defined(api)

    created = api.post(path, widget(path, **{"größe\r\nX-Evil": 1, 'a"b\\': 2})).ok().json

    assert created["spec"] == {"size": 3, "mode": "safe"}


def test_a_wrong_definition_is_refused(api: Api) -> None:
    group = next(GROUPS)
    misnamed, unstored, schemaless = definition(group), definition(group), definition(group)
    misnamed["metadata"]["name"] = f"others.{group}"
    unstored["spec"]["versions"][0]["storage"] = False
    del schemaless["spec"]["versions"][0]["schema"]

    answers = [api.post(DEFINITIONS, body) for body in (misnamed, unstored, schemaless)]

    assert [answer.status for answer in answers] == [422, 422, 422]
    assert causes(answers[0]) == [("metadata.name", "FieldValueInvalid")]
    assert "must have exactly one version marked as storage version" in answers[1].json["message"]
    assert causes(answers[2]) == [("spec.versions[0].schema.openAPIV3Schema", "FieldValueRequired")]


@pytest.mark.parametrize(
    "version",
    [
        {"additionalPrinterColumns": [{"name": "size", "jsonPath": ".spec.size"}]},
        {"additionalPrinterColumns": ["size"]},
        {"subresources": {"scale": {}}},
        {"subresources": "status"},
        {"selectableFields": [{}]},
        {"schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": "object"}}}},
        {"schema": "object"},
    ],
    ids=lambda version: str(version)[:40],
)
def test_a_malformed_definition_is_refused_and_the_next_one_is_served(
    memory_api: Api, version: dict[str, Any]
) -> None:
    """A real server names the field; here the answer says at least that it is refused."""
    refused = memory_api.post(DEFINITIONS, definition(next(GROUPS), **version))

    assert refused.status == 422, refused
    assert memory_api.get(defined(memory_api)).names == []


def test_a_deleted_definition_takes_its_objects_along(api: Api) -> None:
    path = defined(api)
    api.post(path, widget(path)).ok()
    group = path.split("/")[2]
    with api.watch(path, resourceVersion=api.get(path).version) as watch:
        api.delete(f"{DEFINITIONS}/widgets.{group}").ok()

        deleted = watch.next_of("DELETED")

    assert deleted["object"]["metadata"]["name"] == "w"
    wait_for(lambda: api.get(path).status == 404, "the resource to be gone")
    api.post(DEFINITIONS, definition(group))
    wait_for(lambda: api.get(path).status == 200, "the resource to be served again")
    assert api.get(path).names == []
