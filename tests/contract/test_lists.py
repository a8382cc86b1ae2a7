"""Lists: pages, resource versions and selectors."""

import pytest

from policysched.kube.client.transport import METADATA_LIST_ONLY
from tests.contract.manifests import binding, config_map, node, pod
from tests.contract.transports import Api, Json


def fill(api: Api, maps: str, names: str) -> None:
    for name in names:
        api.post(maps, {**config_map(name), "metadata": {"name": name, "labels": {"mine": "true"}}}).ok()


def test_pages_show_one_state_of_the_collection(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    fill(api, maps, "bdfh")

    first = api.get(maps, limit="2", labelSelector="mine")
    fill(api, maps, "eg")
    api.delete(f"{maps}/h").ok()
    second = api.get(
        maps, limit="2", labelSelector="mine", **{"continue": first.json["metadata"]["continue"]}
    )

    assert first.names == ["b", "d"]
    assert second.names == ["f", "h"]
    assert second.version == first.version
    assert "continue" not in second.json["metadata"]


def test_the_first_page_says_how_many_remain(api: Api) -> None:
    namespace = api.namespace()
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    for name in "abc":
        api.post(leases, {"metadata": {"name": name}}).ok()

    page = api.get(leases, limit="1")

    assert (page.names, page.json["metadata"]["remainingItemCount"]) == (["a"], 2)


def test_an_invalid_continue_token_is_refused(api: Api) -> None:
    answer = api.get("/api/v1/pods", limit="1", **{"continue": "nonsense"})

    assert answer.status == 400


def test_list_items_carry_no_kind(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    fill(api, maps, "a")

    listed = api.get(maps, labelSelector="mine").json

    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert "kind" not in listed["items"][0]


def test_a_list_is_read_in_parts(api: Api) -> None:
    """They are cut where the API server begins an object."""
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    fill(api, maps, "abc")

    parts = api.listed_in_parts(maps)

    assert [item for part in parts for item in part] == api.get(maps).json["items"]
    assert all(len(part) == 1 for part in parts)


def test_an_exact_version_shows_the_collection_as_it_was(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    fill(api, maps, "ab")
    version = api.get(maps, labelSelector="mine").version
    api.delete(f"{maps}/a").ok()
    fill(api, maps, "c")

    then = api.get(maps, labelSelector="mine", resourceVersion=version, resourceVersionMatch="Exact")

    assert then.names == ["a", "b"]
    assert then.version == version


def test_a_list_not_older_than_a_future_version_is_refused_with_504(api: Api) -> None:
    version = int(api.get("/api/v1/pods").version) + 1_000_000

    answer = api.get("/api/v1/pods", resourceVersion=str(version), resourceVersionMatch="NotOlderThan")

    assert (answer.status, answer.json["reason"]) == (504, "Timeout")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=web", ["a", "b"]),
        ("app==web,tier=front", ["a"]),
        ("app!=web", ["c", "d"]),
        ("app in (web,db)", ["a", "b", "c"]),
        ("app notin (web)", ["c", "d"]),
        ("tier", ["a"]),
        ("!app", ["d"]),
        ("app in (web),!tier", ["b"]),
        ("size>3", ["c"]),
    ],
)
def test_label_selectors_select(api: Api, selector: str, expected: list[str]) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    labels: dict[str, Json] = {
        "a": {"app": "web", "tier": "front", "mine": ""},
        "b": {"app": "web", "mine": "", "size": "3"},
        "c": {"app": "db", "mine": "", "size": "4"},
        "d": {"mine": ""},
    }
    for name, pod_labels in labels.items():
        api.post(maps, {"metadata": {"name": name, "labels": pod_labels}}).ok()

    listed = api.get(maps, labelSelector=f"mine,{selector}")

    assert listed.names == expected


def test_an_invalid_label_selector_is_refused(api: Api) -> None:
    answer = api.get("/api/v1/pods", labelSelector="app in web")

    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")


def test_field_selectors_select_pods_by_node_name_scheduler_and_phase(api: Api) -> None:
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    api.post(pods, pod("bound", schedulerName="ours")).ok()
    api.post(pods, pod("waiting", schedulerName="ours")).ok()
    api.post(pods, pod("theirs")).ok()
    api.post(f"{pods}/bound/binding", binding("bound", "n1")).ok()

    by_node = api.get(pods, fieldSelector="spec.nodeName=n1")
    by_scheduler = api.get(pods, fieldSelector="spec.schedulerName=ours,spec.nodeName!=n1")
    by_phase = api.get(pods, fieldSelector="status.phase=Pending,metadata.name=theirs")
    none = api.get(pods, fieldSelector="status.phase=Running")
    unbound = api.get(pods, fieldSelector="metadata.name=waiting,spec.nodeName=")
    not_unbound = api.get(pods, fieldSelector="metadata.name=bound,spec.nodeName=")

    assert (by_node.names, by_scheduler.names, by_phase.names) == (["bound"], ["waiting"], ["theirs"])
    assert (none.names, unbound.names, not_unbound.names) == ([], ["waiting"], [])


def test_a_list_of_metadata_alone_selects_by_the_node(api: Api) -> None:
    """What the scheduler reads of a pod whose condition could not be written."""
    pods = f"/api/v1/namespaces/{api.namespace()}/pods"
    meta = api.post(pods, pod("waiting")).ok().json["metadata"]

    listed = api.get(
        pods, fieldSelector="metadata.name=waiting,spec.nodeName=", accept=METADATA_LIST_ONLY
    ).ok()

    none = api.get(pods, fieldSelector="metadata.name=gone,spec.nodeName=", accept=METADATA_LIST_ONLY).ok()

    assert "items" in none.json and not none.json["items"]
    (item,) = listed.json["items"]
    assert {key: item["metadata"][key] for key in ("uid", "resourceVersion", "generation")} == {
        key: meta[key] for key in ("uid", "resourceVersion", "generation")
    }


def test_a_field_selector_on_an_unsupported_field_is_refused(api: Api) -> None:
    answer = api.get("/api/v1/pods", fieldSelector="spec.containers=1")

    assert answer.status == 400
    assert "field label not supported: spec.containers" in answer.json["message"]


def test_a_field_selector_selects_unschedulable_nodes(api: Api) -> None:
    api.post("/api/v1/nodes", node("open")).ok()
    closed = node("closed")
    api.post("/api/v1/nodes", {**closed, "spec": {"unschedulable": True}}).ok()

    listed = api.get("/api/v1/nodes", fieldSelector="spec.unschedulable=true")

    assert listed.names == ["closed"]


def test_all_namespaces_are_listed_in_the_order_of_namespace_and_name(api: Api) -> None:
    namespaces = sorted([api.namespace(), api.namespace()])
    for namespace in reversed(namespaces):
        fill(api, f"/api/v1/namespaces/{namespace}/configmaps", "ba")

    listed = api.get("/api/v1/configmaps", labelSelector="mine")

    names = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in listed.json["items"]]
    assert names == [(namespace, name) for namespace in namespaces for name in "ab"]
