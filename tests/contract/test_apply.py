"""Server-side apply: owners of fields, what an apply removes, and conflicts."""

from typing import Any

from tests.contract.transports import Answer, Api

Json = dict[str, Any]

APPLY = "application/apply-patch+yaml"


def service(labels: Json, *ports: Json) -> Json:
    ports = ports or ({"name": "http", "port": 80},)
    spec = {"selector": {"app": "web"}, "ports": list(ports)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "labels": labels},
        "spec": spec,
    }


def apply(api: Api, path: str, body: Json, manager: str, **params: str) -> Answer:
    return api.patch(path, body, APPLY, fieldManager=manager, **params)


def place(api: Api) -> str:
    return f"/api/v1/namespaces/{api.namespace()}/services/web"


def test_an_apply_creates_and_then_changes(api: Api) -> None:
    path = place(api)

    first = apply(api, path, service({"team": "a"}), "one")
    second = apply(api, path, service({"team": "b"}), "one")

    assert (first.status, second.status) == (201, 200)
    assert second.json["metadata"]["labels"] == {"team": "b"}


def test_the_same_apply_keeps_the_version(api: Api) -> None:
    path = place(api)

    first = apply(api, path, service({"team": "a"}), "one").ok().json
    second = apply(api, path, service({"team": "a"}), "one").ok().json

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_an_apply_removes_what_its_manager_alone_had_applied(api: Api) -> None:
    path = place(api)
    apply(api, path, service({"team": "a", "tier": "front"}), "one").ok()
    apply(api, path, service({"team": "a"}), "two").ok()
    api.patch(path, {"metadata": {"labels": {"by-hand": "yes"}}}).ok()

    after = apply(api, path, service({}), "one").ok().json

    assert after["metadata"]["labels"] == {"team": "a", "by-hand": "yes"}


def test_an_item_of_a_list_is_removed_by_its_key(api: Api) -> None:
    path = place(api)
    http, admin = {"name": "http", "port": 80}, {"name": "admin", "port": 81}
    apply(api, path, service({}, http, admin), "one").ok()

    after = apply(api, path, service({}, admin), "one").ok().json

    assert [port["name"] for port in after["spec"]["ports"]] == ["admin"]


def test_another_managers_value_is_a_conflict_and_changes_nothing(api: Api) -> None:
    path = place(api)
    apply(api, path, service({"team": "a"}), "one").ok()

    refused = apply(api, path, service({"team": "b"}), "two")

    assert refused.status == 409
    assert refused.json["reason"] == "Conflict"
    (cause,) = refused.json["details"]["causes"]
    assert cause == {
        "reason": "FieldManagerConflict",
        "message": 'conflict with "one"',
        "field": ".metadata.labels.team",
    }
    assert api.get(path).json["metadata"]["labels"] == {"team": "a"}


def test_a_forced_apply_takes_the_field_over(api: Api) -> None:
    path = place(api)
    apply(api, path, service({"team": "a"}), "one").ok()

    apply(api, path, service({"team": "b"}), "two", force="true").ok()
    regained = apply(api, path, service({"team": "a"}), "one")

    assert api.get(path).json["metadata"]["labels"] == {"team": "b"}
    assert regained.status == 409


def test_managed_fields_name_the_manager_and_its_fields(api: Api) -> None:
    path = place(api)

    applied = apply(api, path, service({"team": "a"}), "one").ok().json

    (entry,) = applied["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("one", "Apply", "v1")
    assert entry["fieldsV1"]["f:metadata"] == {"f:labels": {"f:team": {}}}


def test_an_apply_without_a_manager_is_refused(api: Api) -> None:
    path = place(api)

    assert api.patch(path, service({}), APPLY).status in (400, 422)


def test_a_dry_run_applies_nothing(api: Api) -> None:
    path = place(api)

    apply(api, path, service({}), "one", dryRun="All").ok()

    assert api.get(path).status == 404
