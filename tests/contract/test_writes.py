"""Create, replace, patches, and what a write of the object or of a subresource may change."""

import base64

from tests.contract.manifests import config_map, deployment, lease, node, pod
from tests.contract.transports import JSON_PATCH, STRATEGIC, Api


def maps_of(api: Api) -> str:
    return f"/api/v1/namespaces/{api.namespace()}/configmaps"


def test_a_get_returns_the_created_object(api: Api) -> None:
    maps = maps_of(api)

    created = api.post(maps, config_map("a", key="value"))

    assert created.status == 201
    assert api.get(f"{maps}/a").json == created.json
    assert created.json["data"] == {"key": "value"}
    assert created.json["metadata"]["uid"]


def test_a_second_object_with_the_same_name_is_refused_with_409(api: Api) -> None:
    maps = maps_of(api)
    api.post(maps, config_map("a")).ok()

    answer = api.post(maps, config_map("a"))

    assert (answer.status, answer.json["reason"]) == (409, "AlreadyExists")
    assert answer.json["message"] == 'configmaps "a" already exists'


def test_a_generated_name_has_the_prefix_and_is_unique(api: Api) -> None:
    maps = maps_of(api)
    body = {"metadata": {"generateName": "made-"}}

    names = {api.post(maps, body).ok().json["metadata"]["name"] for _ in range(5)}

    assert len(names) == 5
    assert all(name.startswith("made-") and len(name) == len("made-") + 5 for name in names)


def test_nothing_is_created_in_a_namespace_that_does_not_exist(api: Api) -> None:
    answer = api.post("/api/v1/namespaces/nowhere/configmaps", config_map("a"))

    assert (answer.status, answer.json["message"]) == (404, 'namespaces "nowhere" not found')


def test_an_invalid_name_is_refused_with_422(api: Api) -> None:
    answer = api.post(maps_of(api), config_map("Not_A_Name"))

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert answer.json["details"]["causes"][0]["field"] == "metadata.name"


def test_a_config_map_above_a_mebibyte_is_refused_with_422(api: Api) -> None:
    maps = maps_of(api)
    half, quarter = "x" * 2**19, base64.b64encode(b"x" * 2**18).decode()
    binary = {"a": quarter, "b": quarter}

    fits = api.post(maps, {**config_map("fits", key=half), "binaryData": binary})
    larger = api.post(maps, {**config_map("larger", key=half, more="x"), "binaryData": binary})

    assert (fits.status, larger.status, larger.json["reason"]) == (201, 422, "Invalid")
    assert "Too long: may not be more than 1048576 bytes" in larger.json["message"]


def test_a_missing_object_is_a_404_that_names_it(api: Api) -> None:
    answer = api.get(f"{maps_of(api)}/a")

    assert (answer.status, answer.json["reason"], answer.json["message"]) == (
        404,
        "NotFound",
        'configmaps "a" not found',
    )


def test_a_replace_with_a_stale_version_answers_409_and_changes_nothing(api: Api) -> None:
    maps = maps_of(api)
    first = api.post(maps, config_map("a", key="1")).ok().json
    api.put(f"{maps}/a", {**first, "data": {"key": "2"}}).ok()

    late = api.put(f"{maps}/a", {**first, "data": {"key": "3"}})

    assert (late.status, late.json["reason"]) == (409, "Conflict")
    assert "the object has been modified" in late.json["message"]
    assert api.get(f"{maps}/a").json["data"] == {"key": "2"}


def test_a_replace_without_a_version_overwrites(api: Api) -> None:
    maps = maps_of(api)
    first = api.post(maps, config_map("a", key="1")).ok().json

    replaced = api.put(f"{maps}/a", config_map("a", key="2")).ok().json

    assert replaced["data"] == {"key": "2"}
    assert replaced["metadata"]["uid"] == first["metadata"]["uid"]
    assert replaced["metadata"]["creationTimestamp"] == first["metadata"]["creationTimestamp"]


def test_a_replace_under_another_uid_answers_409(api: Api) -> None:
    maps = maps_of(api)
    api.post(maps, config_map("a")).ok()
    other = config_map("a", key="2")
    other["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"

    answer = api.put(f"{maps}/a", other)

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")


def test_a_replace_of_a_missing_object_answers_404(api: Api) -> None:
    answer = api.put(f"{maps_of(api)}/a", config_map("a"))

    assert answer.status == 404


def test_a_lease_with_a_stale_version_answers_409(api: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace()}/leases"
    mine = api.post(leases, lease("scheduler", "a")).ok().json
    api.put(f"{leases}/scheduler", {**mine, "spec": {**mine["spec"], "holderIdentity": "b"}}).ok()

    late = api.put(f"{leases}/scheduler", {**mine, "spec": {**mine["spec"], "leaseTransitions": 1}})

    assert (late.status, late.json["reason"]) == (409, "Conflict")
    assert api.get(f"{leases}/scheduler").json["spec"]["holderIdentity"] == "b"


def test_a_replace_with_a_uid_does_not_recreate_a_deleted_lease(api: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace()}/leases"
    mine = api.post(leases, lease("scheduler", "a")).ok().json
    api.delete(f"{leases}/scheduler").ok()

    late = api.put(f"{leases}/scheduler", mine)

    assert (late.status, late.json["reason"]) == (409, "Conflict")
    assert api.get(f"{leases}/scheduler").status == 404


def test_a_lease_is_not_replaced_without_a_version(api: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace()}/leases"
    api.post(leases, lease("scheduler", "a")).ok()

    answer = api.put(f"{leases}/scheduler", lease("scheduler", "b"))

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert "metadata.resourceVersion" in answer.json["message"]


def test_a_merge_patch_keeps_the_keys_it_does_not_name(api: Api) -> None:
    maps = maps_of(api)
    body = config_map("a", kept="yes", gone="soon", changed="1")
    body["metadata"]["annotations"] = {"note.example.com/of-nobody-here": "stays"}
    api.post(maps, body).ok()

    patched = api.patch(f"{maps}/a", {"data": {"changed": "2", "gone": None, "new": "3"}}).ok().json

    assert patched["data"] == {"kept": "yes", "changed": "2", "new": "3"}
    assert patched["metadata"]["annotations"] == {"note.example.com/of-nobody-here": "stays"}


def test_a_merge_patch_with_a_stale_version_answers_409(api: Api) -> None:
    maps = maps_of(api)
    version = api.post(maps, config_map("a")).ok().version
    api.patch(f"{maps}/a", {"data": {"key": "1"}}).ok()

    answer = api.patch(f"{maps}/a", {"metadata": {"resourceVersion": version}, "data": {"key": "2"}})

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")


def test_a_json_patch_applies_its_operations_in_order(api: Api) -> None:
    maps = maps_of(api)
    api.post(maps, config_map("a", one="1", two="2")).ok()
    operations = [
        {"op": "test", "path": "/data/one", "value": "1"},
        {"op": "move", "from": "/data/one", "path": "/data/uno"},
        {"op": "copy", "from": "/data/uno", "path": "/data/eins"},
        {"op": "replace", "path": "/data/uno", "value": "I"},
        {"op": "remove", "path": "/data/two"},
        {"op": "add", "path": "/data/a~1b", "value": "slash"},
    ]

    answer = api.patch(f"{maps}/a", operations[:5], JSON_PATCH).ok()
    refused = api.patch(f"{maps}/a", operations, JSON_PATCH)

    assert answer.json["data"] == {"uno": "I", "eins": "1"}
    assert (refused.status, refused.json["reason"]) == (422, "Invalid")
    assert api.get(f"{maps}/a").json["data"] == answer.json["data"]


def test_a_strategic_patch_merges_containers_and_ports_by_their_keys(api: Api) -> None:
    deployments = f"/apis/apps/v1/namespaces/{api.namespace()}/deployments"
    api.post(deployments, deployment("web")).ok()
    patch = {
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {"name": "c", "env": [{"name": "A", "value": "1"}]},
                        {"name": "d", "image": "side:1"},
                    ]
                }
            }
        }
    }

    api.patch(f"{deployments}/web", patch, STRATEGIC).ok()
    patch["spec"]["template"]["spec"]["containers"] = [{"name": "c", "env": [{"name": "B", "value": "2"}]}]
    patched = api.patch(f"{deployments}/web", patch, STRATEGIC).ok().json

    containers = {c["name"]: c for c in patched["spec"]["template"]["spec"]["containers"]}
    assert set(containers) == {"c", "d"}
    assert containers["c"]["image"] == "app:1"
    assert {(env["name"], env["value"]) for env in containers["c"]["env"]} == {("A", "1"), ("B", "2")}


def test_a_strategic_patch_deletes_from_a_merged_list_by_directive(api: Api) -> None:
    deployments = f"/apis/apps/v1/namespaces/{api.namespace()}/deployments"
    body = deployment("web")
    body["spec"]["template"]["spec"]["containers"].append({"name": "d", "image": "side:1"})
    api.post(deployments, body).ok()
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "d", "$patch": "delete"}]}}}}

    patched = api.patch(f"{deployments}/web", patch, STRATEGIC).ok().json

    assert [c["name"] for c in patched["spec"]["template"]["spec"]["containers"]] == ["c"]


def test_a_strategic_patch_merges_conditions_by_type(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("web")).ok()

    def say(kind: str, status: str) -> None:
        condition = {"type": kind, "status": status, "reason": "Said"}
        api.patch(f"{pods}/web/status", {"status": {"conditions": [condition]}}, STRATEGIC).ok()

    say("PodScheduled", "False")
    say("example.com/Other", "True")
    say("PodScheduled", "True")

    conditions = {c["type"]: c["status"] for c in api.get(f"{pods}/web").json["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True", "example.com/Other": "True"}


def test_a_patch_of_an_unknown_type_answers_415(api: Api) -> None:
    maps = maps_of(api)
    api.post(maps, config_map("a")).ok()

    answer = api.patch(f"{maps}/a", {}, "application/json")

    assert answer.status == 415


def test_a_patch_of_the_status_does_not_touch_the_spec(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    before = api.post(pods, pod("web")).ok().json

    patch = {"spec": {"activeDeadlineSeconds": 5}, "status": {"nominatedNodeName": "n1"}}
    after = api.patch(f"{pods}/web/status", patch).ok().json

    assert after["spec"] == before["spec"]
    assert after["status"]["nominatedNodeName"] == "n1"


def test_a_write_of_the_object_does_not_touch_its_status(api: Api) -> None:
    api.post("/api/v1/nodes", node("n1")).ok()

    patched = api.patch(
        "/api/v1/nodes/n1", {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "99"}}}
    ).ok()

    assert patched.json["status"]["capacity"]["cpu"] == "4"
    assert patched.json["spec"]["unschedulable"] is True


def test_a_nodes_status_is_written_through_its_subresource(api: Api) -> None:
    api.post("/api/v1/nodes", node("n1")).ok()
    current = api.get("/api/v1/nodes/n1").json
    current["status"]["allocatable"]["cpu"] = "3"

    api.put("/api/v1/nodes/n1/status", current).ok()

    assert api.get("/api/v1/nodes/n1").json["status"]["allocatable"]["cpu"] == "3"


def test_a_scale_reads_and_writes_the_replicas(api: Api) -> None:
    deployments = f"/apis/apps/v1/namespaces/{api.namespace()}/deployments"
    api.post(deployments, deployment("web", replicas=2)).ok()

    scale = api.get(f"{deployments}/web/scale").ok().json
    api.patch(f"{deployments}/web/scale", {"spec": {"replicas": 5}}).ok()
    patched = api.get(f"{deployments}/web").json["spec"]["replicas"]
    stale = api.put(f"{deployments}/web/scale", {**scale, "spec": {"replicas": 7}})

    assert (scale["kind"], scale["spec"]["replicas"], scale["status"]["selector"]) == ("Scale", 2, "app=web")
    assert patched == 5
    assert stale.status == 409


def test_a_changed_spec_increases_the_generation_and_a_changed_status_does_not(api: Api) -> None:
    deployments = f"/apis/apps/v1/namespaces/{api.namespace()}/deployments"
    generations = [api.post(deployments, deployment("web")).ok().json["metadata"]["generation"]]
    for path, patch in (
        (f"{deployments}/web", {"metadata": {"labels": {"a": "b"}}}),
        (f"{deployments}/web/status", {"status": {"observedGeneration": 1}}),
        (f"{deployments}/web", {"spec": {"replicas": 3}}),
    ):
        generations.append(api.patch(path, patch).ok().json["metadata"]["generation"])

    assert generations == [1, 1, 1, 2]


def test_a_dry_run_returns_the_result_and_stores_nothing(api: Api) -> None:
    maps = maps_of(api)

    created = api.post(maps, config_map("a"), dryRun="All")

    assert created.status == 201
    assert created.json["metadata"]["name"] == "a"
    assert api.get(f"{maps}/a").status == 404
