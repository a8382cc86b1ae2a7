"""Kinds other than pods: events in two versions, workloads, config maps, namespaces, roles, and
discovery.
"""

from tests.contract.manifests import deployment, event, pod
from tests.contract.transports import Api


def test_an_event_is_the_same_object_in_both_versions(api: Api) -> None:
    namespace = api.namespace()
    api.post(f"/api/v1/namespaces/{namespace}/events", event("e1", namespace, "web")).ok()

    new = api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/e1").ok().json

    assert (new["apiVersion"], new["note"], new["deprecatedCount"]) == (
        "events.k8s.io/v1",
        "0/1 nodes are available",
        1,
    )
    assert new["regarding"]["name"] == "web"


def test_events_are_selected_by_their_regarding_object(api: Api) -> None:
    namespace = api.namespace()
    events = f"/api/v1/namespaces/{namespace}/events"
    api.post(events, event("e1", namespace, "web")).ok()
    api.post(events, event("e2", namespace, "db")).ok()

    listed = api.get(
        events, fieldSelector=f"involvedObject.name=db,involvedObject.namespace={namespace},type=Warning"
    )

    assert listed.names == ["e2"]
    assert api.get(events, fieldSelector="reason=Scheduled").names == []


def test_a_patch_increases_the_count_of_an_event(api: Api) -> None:
    namespace = api.namespace()
    events = f"/api/v1/namespaces/{namespace}/events"
    api.post(events, event("e1", namespace, "web")).ok()

    patched = api.patch(f"{events}/e1", {"count": 2, "lastTimestamp": "2026-01-01T00:05:00Z"}).ok().json

    assert (patched["count"], patched["message"]) == (2, "0/1 nodes are available")


def test_a_deployment_gets_its_defaults(api: Api) -> None:
    created = api.post(f"/apis/apps/v1/namespaces/{api.namespace()}/deployments", deployment("web")).ok().json

    spec = created["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


def test_a_deployment_with_fields_of_the_wrong_type_answers_400(api: Api) -> None:
    deployments = f"/apis/apps/v1/namespaces/{api.namespace()}/deployments"
    counted, labelled = deployment("counted"), deployment("labelled")
    counted["spec"]["replicas"] = "three"
    labelled["spec"]["template"]["metadata"]["labels"] = {"minAvailable": 4}

    answers = [api.post(deployments, deployment) for deployment in (counted, labelled)]

    assert [(answer.status, answer.json["reason"]) for answer in answers] == [(400, "BadRequest")] * 2


def test_a_deployment_must_select_its_own_pods_and_keeps_its_selector(api: Api) -> None:
    deployments = f"/apis/apps/v1/namespaces/{api.namespace()}/deployments"
    wrong = deployment("wrong")
    wrong["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    api.post(deployments, deployment("web")).ok()

    refused = api.post(deployments, wrong)
    changed = api.patch(f"{deployments}/web", {"spec": {"selector": {"matchLabels": {"more": "yes"}}}})

    assert (refused.status, changed.status) == (422, 422)
    assert "field is immutable" in changed.json["message"]


def test_a_job_labels_its_pods_with_its_uid(api: Api) -> None:
    jobs = f"/apis/batch/v1/namespaces/{api.namespace()}/jobs"
    template = {"spec": {**pod("x")["spec"], "restartPolicy": "Never"}}

    created = api.post(jobs, {"metadata": {"name": "train"}, "spec": {"template": template}}).ok().json

    uid = created["metadata"]["uid"]
    assert created["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert created["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "train"
    assert (
        created["spec"]["completions"],
        created["spec"]["parallelism"],
        created["spec"]["backoffLimit"],
    ) == (1, 1, 6)


def test_a_job_with_restart_policy_always_is_refused(api: Api) -> None:
    jobs = f"/apis/batch/v1/namespaces/{api.namespace()}/jobs"

    answer = api.post(jobs, {"metadata": {"name": "train"}, "spec": {"template": {"spec": pod("x")["spec"]}}})

    assert answer.status == 422
    assert "spec.template.spec.restartPolicy" in answer.json["message"]


def test_an_immutable_config_map_keeps_its_data(api: Api) -> None:
    maps = f"/api/v1/namespaces/{api.namespace()}/configmaps"
    api.post(maps, {"metadata": {"name": "a"}, "data": {"k": "1"}, "immutable": True}).ok()

    answer = api.patch(f"{maps}/a", {"data": {"k": "2"}})

    assert answer.status == 422


def test_discovery_names_the_resources_and_their_subresources(api: Api) -> None:
    core = api.get("/api/v1").json
    groups = {group["name"] for group in api.get("/apis").json["groups"]}

    named = {resource["name"] for resource in core["resources"]}
    assert {"pods", "pods/binding", "pods/status", "pods/eviction", "nodes", "configmaps", "events"} <= named
    assert {"apps", "batch", "coordination.k8s.io", "events.k8s.io", "scheduling.k8s.io"} <= groups


def test_an_unknown_resource_answers_404(api: Api) -> None:
    answer = api.get("/apis/example.com/v1/things")

    assert answer.status == 404


def test_a_namespace_carries_its_name_as_a_label(api: Api) -> None:
    name = api.namespace()

    created = api.get(f"/api/v1/namespaces/{name}").json

    assert created["metadata"]["labels"]["kubernetes.io/metadata.name"] == name
    assert (created["status"]["phase"], created["spec"]["finalizers"]) == ("Active", ["kubernetes"])


def test_a_stateful_set_gets_its_defaults_and_keeps_its_selector(api: Api) -> None:
    sets = f"/apis/apps/v1/namespaces/{api.namespace()}/statefulsets"
    written = {**deployment("db"), "kind": "StatefulSet"}

    created = api.post(sets, written).ok().json
    changed = api.patch(f"{sets}/db", {"spec": {"selector": {"matchLabels": {"more": "yes"}}}})
    scaled = api.patch(f"{sets}/db", {"spec": {"replicas": 3}}).ok().json

    spec = created["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"], spec["revisionHistoryLimit"]) == (
        1,
        "OrderedReady",
        10,
    )
    # Kubernetes has a default of maxUnavailable since 1.37.
    strategy = spec["updateStrategy"]
    strategy["rollingUpdate"].setdefault("maxUnavailable", 1)
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}
    assert (changed.status, changed.json["reason"]) == (422, "Invalid")
    # Kubernetes 1.37 names the selector, older ones and the sandbox the fields that may change.
    refusals = ("updates to statefulset spec for fields other than", "spec.selector: Invalid value")
    assert any(refusal in changed.json["message"] for refusal in refusals)
    assert scaled["spec"]["replicas"] == 3


def test_a_replication_controller_selects_the_labels_of_its_template(api: Api) -> None:
    controllers = f"/api/v1/namespaces/{api.namespace()}/replicationcontrollers"
    written = {**deployment("old"), "apiVersion": "v1", "kind": "ReplicationController"}
    del written["spec"]["selector"]
    wrong = {**deployment("wrong"), "apiVersion": "v1", "kind": "ReplicationController"}
    wrong["spec"]["selector"] = {"app": "other"}

    created = api.post(controllers, written).ok().json
    refused = api.post(controllers, wrong)

    assert (created["spec"]["selector"], created["spec"]["replicas"]) == ({"app": "web"}, 1)
    assert created["metadata"]["labels"] == {"app": "web"}
    assert refused.status == 422
    assert "`selector` does not match template `labels`" in refused.json["message"]


def test_roles_and_their_bindings_are_stored_as_written(api: Api) -> None:
    namespace = api.namespace()
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]

    api.post(f"{rbac}/namespaces/{namespace}/roles", {"metadata": {"name": "reader"}, "rules": rules}).ok()
    binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": subjects}
    api.post(f"{rbac}/namespaces/{namespace}/rolebindings", binding).ok()
    api.post(f"{rbac}/clusterroles", {"metadata": {"name": f"reader-{namespace}"}, "rules": rules}).ok()

    assert api.get(f"{rbac}/namespaces/{namespace}/roles/reader").json["rules"] == rules
    bound = api.get(f"{rbac}/namespaces/{namespace}/rolebindings/reader").json
    assert (bound["roleRef"], bound["subjects"]) == (reference, subjects)
    assert api.get(f"{rbac}/clusterroles/reader-{namespace}").json["rules"] == rules
