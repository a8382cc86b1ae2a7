"""Defaults and validation of pods, when they are created and when they change."""

import time

import pytest

from tests.contract.manifests import container, pod
from tests.contract.transports import PATIENCE_S, Answer, Api, Json


def pods_of(api: Api) -> str:
    return f"/api/v1/namespaces/{api.namespace()}/pods"


def test_a_pod_gets_the_defaults_that_schedulers_read(api: Api) -> None:
    created = api.post(pods_of(api), pod("web")).ok().json

    spec = created["spec"]
    assert (spec["schedulerName"], spec["restartPolicy"], spec["priority"]) == (
        "default-scheduler",
        "Always",
        0,
    )
    assert (spec["terminationGracePeriodSeconds"], spec["preemptionPolicy"]) == (30, "PreemptLowerPriority")
    assert (spec["dnsPolicy"], spec["enableServiceLinks"], spec["serviceAccountName"]) == (
        "ClusterFirst",
        True,
        "default",
    )
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert created["status"]["phase"] == "Pending"


def test_a_pod_tolerates_short_outages_of_its_node(api: Api) -> None:
    created = api.post(pods_of(api), pod("web")).ok().json

    tolerations = {
        (t["key"], t["operator"], t["effect"], t["tolerationSeconds"]) for t in created["spec"]["tolerations"]
    }
    assert tolerations == {
        ("node.kubernetes.io/not-ready", "Exists", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "Exists", "NoExecute", 300),
    }


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "0"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        (
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}},
            "Guaranteed",
        ),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
def test_a_pods_quality_of_service_follows_from_its_resources(
    api: Api, resources: dict[str, object], expected: str
) -> None:
    created = api.post(
        pods_of(api), pod("web", containers=[{"name": "c", "image": "app", "resources": resources}])
    ).ok()

    assert created.json["status"]["qosClass"] == expected


def test_limits_become_the_default_requests(api: Api) -> None:
    body = pod("web", containers=[container(requests={"cpu": "1"}, limits={"cpu": "2", "memory": "1Gi"})])

    created = api.post(pods_of(api), body).ok().json

    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def once_admission_knows(api: Api, pods: str, body: Json) -> Answer:
    """Create a pod with a new priority class. kube-apiserver's admission receives the class by a
    watch, so the request is repeated.
    """
    ends_s = time.monotonic() + PATIENCE_S
    while (answer := api.post(pods, body)).status == 403 and time.monotonic() < ends_s:
        time.sleep(0.02)
    return answer


def test_a_priority_class_sets_the_priority_and_an_unknown_one_is_refused(api: Api) -> None:
    pods = pods_of(api)
    body = {"metadata": {"generateName": "contract-"}, "value": 1000, "preemptionPolicy": "Never"}
    name = api.post("/apis/scheduling.k8s.io/v1/priorityclasses", body).ok().json["metadata"]["name"]

    known = once_admission_knows(api, pods, pod("known", priorityClassName=name)).ok().json["spec"]
    critical = api.post(pods, pod("critical", priorityClassName="system-node-critical")).ok().json["spec"]
    unknown = api.post(pods, pod("unknown", priorityClassName="no-such-class"))
    contradicted = api.post(pods, pod("contradicted", priorityClassName=name, priority=7))

    assert (known["priority"], known["preemptionPolicy"]) == (1000, "Never")
    assert critical["priority"] == 2_000_001_000
    assert (unknown.status, unknown.json["reason"]) == (403, "Forbidden")
    assert (
        'pods "unknown" is forbidden: no PriorityClass with name no-such-class was found'
        in unknown.json["message"]
    )
    assert contradicted.status == 403


def test_a_priority_class_keeps_its_value_and_may_not_use_a_system_name(api: Api) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    name = (
        api.post(classes, {"metadata": {"generateName": "contract-"}, "value": 10})
        .ok()
        .json["metadata"]["name"]
    )

    changed = api.patch(f"{classes}/{name}", {"value": 11})
    system = api.post(classes, {"metadata": {"name": "system-mine"}, "value": 10})
    huge = api.post(classes, {"metadata": {"name": "huge"}, "value": 1_000_000_001})

    assert (changed.status, system.status, huge.status) == (422, 422, 422)


def test_a_gated_pod_has_the_condition_scheduling_gated(api: Api) -> None:
    created = api.post(pods_of(api), pod("web", schedulingGates=[{"name": "example.com/quota"}])).ok().json

    (condition,) = created["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodScheduled",
        "False",
        "SchedulingGated",
    )


def test_gates_can_be_removed_but_not_added(api: Api) -> None:
    pods = pods_of(api)
    api.post(pods, pod("web", schedulingGates=[{"name": "example.com/a"}, {"name": "example.com/b"}])).ok()

    fewer = api.patch(f"{pods}/web", {"spec": {"schedulingGates": [{"name": "example.com/b"}]}})
    more = api.patch(
        f"{pods}/web", {"spec": {"schedulingGates": [{"name": "example.com/b"}, {"name": "example.com/c"}]}}
    )

    assert (fewer.status, more.status) == (200, 422)


@pytest.mark.parametrize(
    "patch",
    [
        {"schedulerName": "other"},
        {"nodeName": "n1"},
        {"priority": 5},
        {"nodeSelector": {"a": "b"}},
        {"containers": [{"name": "c", "image": "app:1", "resources": {"requests": {"cpu": "2"}}}]},
    ],
)
def test_most_of_a_pods_spec_may_not_change(api: Api, patch: dict[str, object]) -> None:
    pods = pods_of(api)
    before = api.post(pods, pod("web")).ok().json

    answer = api.patch(f"{pods}/web", {"spec": patch})

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert api.get(f"{pods}/web").json == before


def test_a_toleration_cannot_be_removed(api: Api) -> None:
    pods = pods_of(api)
    created = api.post(pods, pod("web", tolerations=[{"key": "gpu", "operator": "Exists"}])).ok().json
    fewer = [toleration for toleration in created["spec"]["tolerations"] if toleration["key"] != "gpu"]

    answer = api.patch(f"{pods}/web", {"spec": {"tolerations": fewer}})

    assert (len(fewer), answer.status) == (2, 422)


def test_removed_default_tolerations_are_restored(api: Api) -> None:
    pods = pods_of(api)
    before = api.post(pods, pod("web")).ok().json

    patched = api.patch(f"{pods}/web", {"spec": {"tolerations": []}}).ok()

    assert patched.json["spec"]["tolerations"] == before["spec"]["tolerations"]


def test_an_image_can_change_and_a_toleration_can_be_added(api: Api) -> None:
    pods = pods_of(api)
    created = api.post(pods, pod("web")).ok().json
    tolerations = [*created["spec"]["tolerations"], {"key": "gpu", "operator": "Exists"}]
    containers = [{**created["spec"]["containers"][0], "image": "app:2"}]

    patched = (
        api.patch(f"{pods}/web", {"spec": {"tolerations": tolerations, "containers": containers}}).ok().json
    )

    assert patched["spec"]["containers"][0]["image"] == "app:2"
    assert len(patched["spec"]["tolerations"]) == 3


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "c"}]}, "spec.containers[0].image"),
        ({"containers": [{"image": "app"}]}, "spec.containers[0].name"),
        ({"containers": [container("c"), container("c")]}, "spec.containers[1].name"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        (
            {"containers": [container(requests={"cpu": "2"}, limits={"cpu": "1"})]},
            "spec.containers[0].resources.requests",
        ),
        ({"tolerations": [{"key": "a", "operator": "Like"}]}, "spec.tolerations[0].operator"),
        ({"nodeName": "n1", "schedulingGates": [{"name": "a.b/c"}]}, "spec.nodeName"),
    ],
)
def test_an_invalid_pod_is_refused_with_the_field_named(
    api: Api, spec: dict[str, object], field: str
) -> None:
    answer = api.post(pods_of(api), pod("web", **spec))

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert field in {cause["field"] for cause in answer.json["details"]["causes"]}


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"gpu": True}},
        {"tolerations": ["all"]},
        {"schedulingGates": "closed"},
        {"affinity": {"nodeAffinity": [1]}},
        {"schedulerName": 5},
        {"containers": ["web"]},
    ],
)
def test_a_field_of_the_wrong_type_answers_400(api: Api, spec: dict[str, object]) -> None:
    answer = api.post(pods_of(api), pod("web", **spec))

    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")


def test_an_invalid_quantity_answers_400(api: Api) -> None:
    answer = api.post(pods_of(api), pod("web", containers=[container(requests={"cpu": "lots"})]))

    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")
    assert "quantities must match the regular expression" in answer.json["message"]


def test_the_status_of_a_created_pod_is_dropped(api: Api) -> None:
    body = {**pod("web"), "status": {"phase": "Running", "podIP": "10.1.1.1"}}

    created = api.post(pods_of(api), body).ok().json

    assert created["status"]["phase"] == "Pending"
    assert "podIP" not in created["status"]
