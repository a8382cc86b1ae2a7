"""The binding subresource: a pod is bound once, by name and UID, and a bind changes nothing else."""

from typing import Any

from tests.contract.manifests import binding, container, node, pod
from tests.contract.transports import MERGE, STRATEGIC, Answer, Api


def pods_of(api: Api) -> str:
    return f"/api/v1/namespaces/{api.namespace()}/pods"


def bind(api: Api, pods: str, name: str, to: str, uid: str | None = None, **params: str) -> Answer:
    return api.post(f"{pods}/{name}/binding", binding(name, to, uid=uid), **params)


def test_a_bind_of_an_unbound_pod_answers_201_and_the_pod_has_its_node(api: Api) -> None:
    pods = pods_of(api)
    uid = api.post(pods, pod("web")).ok().json["metadata"]["uid"]

    answer = bind(api, pods, "web", "n1", uid, timeout="5s")

    bound = api.get(f"{pods}/web").json
    conditions = {c["type"]: c["status"] for c in bound["status"]["conditions"]}
    assert (answer.status, answer.json["kind"], answer.json["status"]) == (201, "Status", "Success")
    assert bound["spec"]["nodeName"] == "n1"
    assert conditions == {"PodScheduled": "True"}


def test_a_second_bind_answers_409_and_nothing_changes(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web")).ok()
    bind(api, pods, "web", "n1").ok()
    before = api.get(f"{pods}/web").json

    same, other = bind(api, pods, "web", "n1"), bind(api, pods, "web", "n2")

    assert (same.status, other.status) == (409, 409)
    assert 'pod web is already assigned to node "n1"' in other.json["message"]
    assert other.json["reason"] == "Conflict"
    assert api.get(f"{pods}/web").json == before


def test_a_bind_of_a_terminating_pod_answers_409(api: Api) -> None:
    pods = pods_of(api)
    held = pod("web")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    api.post(pods, held).ok()
    api.delete(f"{pods}/web").ok()

    answer = bind(api, pods, "web", "n1")
    unbound = "nodeName" not in api.get(f"{pods}/web").json["spec"]
    api.patch(f"{pods}/web", {"metadata": {"finalizers": None}}, MERGE).ok()

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert "pod web is being deleted, cannot be assigned to a host" in answer.json["message"]
    assert unbound


def test_a_bind_of_a_gated_pod_is_refused_until_the_gate_is_removed(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web", schedulingGates=[{"name": "example.com/quota"}])).ok()

    gated = bind(api, pods, "web", "n1")
    api.patch(f"{pods}/web", {"spec": {"schedulingGates": None}}).ok()
    free = bind(api, pods, "web", "n1")

    assert (gated.status, free.status) == (409, 201)
    assert "has non-empty .spec.schedulingGates" in gated.json["message"]


def test_a_condition_with_the_version_before_the_bind_answers_409(api: Api) -> None:
    pods = pods_of(api)
    created = api.post(pods, pod("web")).ok().json["metadata"]
    words = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "observedGeneration": 1}
    versioned = {"uid": created["uid"], "resourceVersion": created["resourceVersion"]}
    late = {"metadata": versioned, "status": {"conditions": [words]}}
    api.patch(f"{pods}/web/status", late, STRATEGIC).ok()
    marked = api.get(f"{pods}/web").json
    bind(api, pods, "web", to="a").ok()
    late["metadata"]["resourceVersion"] = marked["metadata"]["resourceVersion"]

    answer = api.patch(f"{pods}/web/status", late, STRATEGIC)

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    before, after = scheduled(marked), scheduled(api.get(f"{pods}/web").json)
    assert (before["status"], before["observedGeneration"]) == ("False", 1)
    assert (after["status"], after.get("reason")) == ("True", None)


def scheduled(pod: dict[str, Any]) -> dict[str, Any]:
    (pod_scheduled,) = [
        condition for condition in pod["status"]["conditions"] if condition["type"] == "PodScheduled"
    ]
    return dict(pod_scheduled)


def test_a_bind_for_another_uid_answers_409(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web")).ok()

    answer = bind(api, pods, "web", "n1", uid="00000000-0000-0000-0000-000000000000")

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition" in answer.json["message"]
    assert "nodeName" not in api.get(f"{pods}/web").json["spec"]


def test_a_bind_of_a_deleted_pod_answers_404(api: Api) -> None:
    pods = pods_of(api)
    uid = api.post(pods, pod("web")).ok().json["metadata"]["uid"]
    api.delete(f"{pods}/web").ok()

    answer = bind(api, pods, "web", "n1", uid)

    assert (answer.status, answer.json["reason"]) == (404, "NotFound")


def test_the_server_checks_neither_capacity_nor_that_the_node_exists(api: Api) -> None:
    pods = pods_of(api)
    api.post("/api/v1/nodes", node("small", cpu="1")).ok()
    api.post(pods, pod("big", containers=[container(requests={"cpu": "64"})])).ok()
    api.post(pods, pod("lost")).ok()

    too_big, nowhere = bind(api, pods, "big", "small"), bind(api, pods, "lost", "no-such-node")

    assert (too_big.status, nowhere.status) == (201, 201)


def test_annotations_of_a_binding_are_copied_to_the_pod(api: Api) -> None:
    pods = pods_of(api)
    web = pod("web")
    web["metadata"]["annotations"] = {"kept": "yes"}
    api.post(pods, web).ok()
    body = binding("web", "n1")
    body["metadata"]["annotations"] = {"policy": "abc"}

    api.post(f"{pods}/web/binding", body).ok()

    assert api.get(f"{pods}/web").json["metadata"]["annotations"] == {"kept": "yes", "policy": "abc"}


def test_a_binding_with_another_name_than_the_url_is_refused(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web")).ok()

    answer = api.post(f"{pods}/web/binding", binding("other", "n1"))

    assert answer.status == 400


def test_a_dry_run_binds_nothing(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web")).ok()

    answer = bind(api, pods, "web", "n1", dryRun="All")

    assert answer.status == 201
    assert "nodeName" not in api.get(f"{pods}/web").json["spec"]
