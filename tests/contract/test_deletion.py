"""Deletion and eviction: grace periods, finalizers, preconditions and disruption conditions."""

from tests.contract.manifests import binding, config_map, pod
from tests.contract.transports import STRATEGIC, Api


def pods_of(api: Api) -> str:
    return f"/api/v1/namespaces/{api.namespace()}/pods"


def bound_pod(api: Api, pods: str, name: str) -> None:
    """A pod on a node, as the API server's watch cache has it. If the watch cache is behind,
    kube-apiserver takes a pod that is deleted for one without a node, and deletes it at once.
    """
    api.post(pods, pod(name)).ok()
    api.post(f"{pods}/{name}/binding", binding(name, "n1")).ok()
    at_least = api.get(f"{pods}/{name}").version
    api.get(f"{pods}/{name}", resourceVersion=at_least).ok()


def test_a_pod_without_a_node_is_deleted_at_once(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web")).ok()

    answer = api.delete(f"{pods}/web")

    assert answer.status == 200
    assert api.get(f"{pods}/web").status == 404


def test_a_pod_on_a_node_is_marked_and_its_kubelet_deletes_it(api: Api) -> None:
    pods = pods_of(api)
    bound_pod(api, pods, "web")

    answer = api.delete(f"{pods}/web")
    marked = api.get(f"{pods}/web").json["metadata"]
    again = api.delete(f"{pods}/web", {"gracePeriodSeconds": 0})

    assert answer.status == 200
    assert answer.json["metadata"]["deletionTimestamp"] == marked["deletionTimestamp"]
    assert marked["deletionGracePeriodSeconds"] == 30
    assert again.status == 200
    assert api.get(f"{pods}/web").status == 404


def test_a_pod_that_is_deleted_gracefully_is_modified_before_it_is_deleted(api: Api) -> None:
    pods = pods_of(api)
    bound_pod(api, pods, "web")
    version = api.get(pods).version

    with api.watch(pods, resourceVersion=version) as watch:
        api.delete(f"{pods}/web").ok()
        api.delete(f"{pods}/web", {"gracePeriodSeconds": 0}).ok()
        events = [watch.next()]
        while events[-1]["type"] != "DELETED":
            events.append(watch.next())

    assert events[0]["type"] == "MODIFIED"
    assert events[0]["object"]["metadata"]["deletionTimestamp"]


def test_a_deletion_of_another_uid_answers_409(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web")).ok()

    answer = api.delete(f"{pods}/web", {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert api.get(f"{pods}/web").status == 200


def test_an_object_with_a_finalizer_is_deleted_once_the_finalizer_is_removed(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    held = config_map("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    api.post(maps, held).ok()

    api.delete(f"{maps}/a").ok()
    marked = api.get(f"{maps}/a").json["metadata"]
    api.patch(f"{maps}/a", {"metadata": {"finalizers": None}}).ok()

    assert marked["deletionTimestamp"]
    assert api.get(f"{maps}/a").status == 404


def test_a_deleted_config_map_answers_with_a_status_that_names_it(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    uid = api.post(maps, config_map("a")).ok().json["metadata"]["uid"]

    answer = api.delete(f"{maps}/a").json

    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": uid}


def test_a_deletion_of_a_collection_deletes_the_selected_objects(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    for name, color in (("a", "red"), ("b", "red"), ("c", "blue")):
        api.post(maps, {"metadata": {"name": name, "labels": {"color": color}}}).ok()

    api.delete(maps, labelSelector="color=red").ok()

    assert api.get(maps, labelSelector="color").names == ["c"]


def test_an_eviction_answers_201_and_deletes_the_pod(api: Api) -> None:
    pods = pods_of(api)
    bound_pod(api, pods, "bound")
    api.post(pods, pod("waiting")).ok()

    answers = [
        api.post(
            f"{pods}/{name}/eviction",
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
        )
        for name in ("bound", "waiting", "gone")
    ]

    assert [answer.status for answer in answers] == [201, 201, 404]
    assert api.get(f"{pods}/bound").json["metadata"]["deletionTimestamp"]
    assert api.get(f"{pods}/waiting").status == 404


def test_a_victim_of_preemption_is_marked_and_ends_after_its_grace_period(api: Api) -> None:
    pods = pods_of(api)
    bound_pod(api, pods, "victim")
    uid = api.get(f"{pods}/victim").json["metadata"]["uid"]
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    mark = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}

    marked = api.patch(f"{pods}/victim/status", mark, STRATEGIC, timeout="5s")
    again = api.patch(f"{pods}/victim/status", mark, STRATEGIC, timeout="5s")
    ended = api.delete(f"{pods}/victim", {"preconditions": {"uid": uid}}, timeout="5s")
    victim = api.get(f"{pods}/victim").json

    assert (marked.status, again.status, ended.status) == (200, 200, 200)
    assert [
        condition["reason"]
        for condition in victim["status"]["conditions"]
        if condition["type"] == "DisruptionTarget"
    ] == ["PreemptionByScheduler"]
    assert victim["metadata"]["deletionGracePeriodSeconds"] == 30


def test_a_disruption_condition_for_another_uid_changes_nothing(api: Api) -> None:
    pods = pods_of(api)
    bound_pod(api, pods, "victim")

    answer = api.patch(
        f"{pods}/victim/status",
        {"metadata": {"uid": "another"}, "status": {"nominatedNodeName": "n1"}},
        STRATEGIC,
    )

    assert answer.status in (409, 422)
    assert answer.status == 409 or "metadata.uid" in answer.json["message"]
    assert "nominatedNodeName" not in api.get(f"{pods}/victim").json["status"]


def test_a_patch_of_the_status_sets_and_clears_the_nomination(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("waiting")).ok()
    uid = api.get(f"{pods}/waiting").json["metadata"]["uid"]

    def nominate(node: str | None) -> str | None:
        body = {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}}
        api.patch(f"{pods}/waiting/status", body, STRATEGIC).ok()
        nominated: str | None = api.get(f"{pods}/waiting").json["status"].get("nominatedNodeName")
        return nominated

    assert [nominate("n1"), nominate("n2"), nominate(None)] == ["n1", "n2", None]


def test_nothing_is_created_in_a_terminating_namespace(api: Api) -> None:
    namespace = api.namespace()
    maps = f"/api/v1/namespaces/{namespace}/configmaps"

    api.delete(f"/api/v1/namespaces/{namespace}").ok()
    answer = api.post(maps, config_map("late"))

    assert api.get(f"/api/v1/namespaces/{namespace}").json["status"]["phase"] == "Terminating"
    assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
    assert "because it is being terminated" in answer.json["message"]


def test_the_default_namespace_may_not_be_deleted(api: Api) -> None:
    answer = api.delete("/api/v1/namespaces/default")

    assert (answer.status, answer.json["reason"]) == (403, "Forbidden")
