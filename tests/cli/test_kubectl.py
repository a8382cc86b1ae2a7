"""Stock kubectl takes the sandbox for a cluster: what people do with it, done with it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.sandbox_kubectl import WITHIN, Kubectl, cluster, kubectl

__all__ = ["cluster", "kubectl"]

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeName: node-1
      containers:
      - {name: app, image: "nginx:1", resources: {limits: {cpu: 500m, memory: 1Gi}}}
"""

TRAINER = """
apiVersion: batch/v1
kind: Job
metadata: {name: trainer}
spec:
  completions: 2
  parallelism: 2
  template:
    metadata: {annotations: {sandbox.policysched/run-seconds: "0.1"}}
    spec:
      nodeName: node-2
      restartPolicy: Never
      containers: [{name: train, image: "train:1"}]
"""

WAITING_POD = """
apiVersion: v1
kind: Pod
metadata: {name: waiting}
spec: {containers: [{name: app, image: "app:1"}]}
"""


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_get_prints_nodes_as_a_table(cluster: Kubectl) -> None:
    narrow = columns(cluster("get", "nodes"))
    wide = columns(cluster("get", "nodes", "-o", "wide"))

    assert narrow[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert [row[:3] for row in narrow[1:]] == [[f"node-{at}", "Ready", "<none>"] for at in (1, 2, 3)]
    assert wide[0][5] == "INTERNAL-IP"
    assert wide[1][5] == "10.0.0.1"


def test_a_deployment_is_applied_rolled_out_scaled_and_deleted(kubectl: Callable[..., str]) -> None:
    assert kubectl("apply", "-f", "-", stdin=WEB) == "deployment.apps/web created\n"
    kubectl("rollout", "status", "deployment/web", WITHIN)
    assert kubectl("apply", "-f", "-", stdin=WEB) == "deployment.apps/web unchanged\n"

    kubectl("scale", "deployment", "web", "--replicas=4")
    kubectl("wait", "deployment/web", "--for=condition=available", WITHIN)
    kubectl("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=4", WITHIN)
    kubectl("wait", "pod", "-l", "app=web", "--for=condition=Ready", WITHIN)
    pods = columns(kubectl("get", "pods", "-l", "app=web", "-o", "wide", "--no-headers"))
    kubectl("delete", "deployment", "web", "--cascade=foreground", WITHIN)

    assert [(pod[1], pod[2], pod[6]) for pod in pods] == [("1/1", "Running", "node-1")] * 4
    assert kubectl("get", "pods", "-o", "name") == ""


def test_a_changed_template_is_rolled_out_to_new_pods_and_back(
    kubectl: Callable[..., str], cluster: Kubectl
) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    kubectl("rollout", "status", "deployment/web", WITHIN)

    kubectl("apply", "-f", "-", stdin=WEB.replace("nginx:1", "nginx:2"))
    kubectl("rollout", "status", "deployment/web", WITHIN)
    sets = kubectl(
        "get",
        "replicasets",
        "-o",
        "jsonpath={range .items[*]}{.spec.template.spec.containers[0].image}={.spec.replicas} {end}",
    )
    history = kubectl("rollout", "history", "deployment/web")
    undone = cluster.run("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WITHIN)
    image = kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].image}")

    assert sorted(sets.split()) == ["nginx:1=0", "nginx:2=2"]
    assert (undone.returncode, image) == (0, "nginx:1")
    assert history.splitlines()[2:4] == ["1         <none>", "2         <none>"]


def test_a_job_completes_and_has_the_condition_complete(kubectl: Callable[..., str]) -> None:
    kubectl("create", "-f", "-", stdin=TRAINER)

    kubectl("wait", "job/trainer", "--for=condition=complete", WITHIN)

    row = columns(kubectl("get", "jobs", "--no-headers"))[0]
    assert row[:3] == ["trainer", "Complete", "2/2"]
    assert {pod[2] for pod in columns(kubectl("get", "pods", "--no-headers"))} == {"Completed"}


def test_describe_shows_a_pod_and_its_events(kubectl: Callable[..., str]) -> None:
    kubectl("apply", "-f", "-", stdin=WAITING_POD)
    about = json.loads(kubectl("get", "pod", "waiting", "-o", "json"))["metadata"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "waiting.1", "namespace": about["namespace"]},
        "involvedObject": {
            "kind": "Pod",
            "name": "waiting",
            "namespace": about["namespace"],
            "uid": about["uid"],
        },
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available",
        "source": {"component": "policysched"},
        "firstTimestamp": about["creationTimestamp"],
        "lastTimestamp": about["creationTimestamp"],
        "count": 1,
    }
    kubectl("create", "-f", "-", stdin=json.dumps(event))

    described = kubectl("describe", "pod", "waiting")
    events = kubectl("get", "events")

    assert "Status:           Pending" in described
    assert ["QoS", "Class:", "BestEffort"] in columns(described)
    assert "FailedScheduling" in described.split("Events:")[1]
    assert "pod/waiting" in events


def test_describe_shows_a_node_and_its_pods(kubectl: Callable[..., str]) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    kubectl("rollout", "status", "deployment/web", WITHIN)

    described = kubectl("describe", "node", "node-1")

    assert "topology.kubernetes.io/zone=zone-a" in described
    assert "cpu                1 (12%)" in described


def test_a_config_map_is_created_from_a_file_and_edited(kubectl: Callable[..., str], tmp_path: Path) -> None:
    policy = tmp_path / "web.policy"
    policy.write_text("version 1\nspread wide\n")
    kubectl("create", "configmap", "policies", f"--from-file={policy}")

    kubectl("edit", "configmap", "policies", editor="sed -i s/wide/tight/")

    assert "spread wide" not in kubectl("get", "configmap", "policies", "-o", "yaml")
    data = json.loads(kubectl("get", "configmap", "policies", "-o", "json"))["data"]
    assert data == {"web.policy": "version 1\nspread tight\n"}


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge", '{"data": {"key": "new"}}'),
        ("strategic", '{"data": {"key": "new"}}'),
        ("json", '[{"op": "replace", "path": "/data/key", "value": "new"}]'),
    ],
)
def test_patch_supports_all_its_types(kubectl: Callable[..., str], kind: str, patch: str) -> None:
    kubectl("create", "configmap", "settings", "--from-literal=key=old")

    kubectl("patch", "configmap", "settings", f"--type={kind}", "-p", patch)

    assert kubectl("get", "configmap", "settings", "-o", "jsonpath={.data.key}") == "new"


def test_labels_and_annotations_are_added_and_removed(kubectl: Callable[..., str]) -> None:
    kubectl("create", "configmap", "settings")

    kubectl("label", "configmap", "settings", "team=red", "tier=gold")
    kubectl("annotate", "configmap", "settings", "note=hello")
    kubectl("label", "configmap", "settings", "tier-")

    metadata = json.loads(kubectl("get", "configmap", "settings", "-o", "json"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"team": "red"}, {"note": "hello"})
    assert kubectl("get", "configmaps", "-l", "team in (red,blue)", "-o", "name") == "configmap/settings\n"


def test_kubectl_create_generators_create_their_objects(kubectl: Callable[..., str]) -> None:
    kubectl("create", "deployment", "made", "--image=nginx", "--replicas=0")
    kubectl("create", "job", "made", "--image=busybox", "--", "sleep", "1")
    kubectl("create", "serviceaccount", "made")
    kubectl("run", "made", "--image=nginx:1", "--labels=a=b")

    job = json.loads(kubectl("get", "job", "made", "-o", "json"))["spec"]["template"]["spec"]
    pod = json.loads(kubectl("get", "pod", "made", "-o", "json"))
    assert kubectl("get", "deployment", "made", "-o", "jsonpath={.spec.replicas}") == "0"
    assert (job["containers"][0]["command"], job["restartPolicy"]) == (["sleep", "1"], "Never")
    assert (pod["metadata"]["labels"], pod["spec"]["containers"][0]["imagePullPolicy"]) == (
        {"a": "b"},
        "IfNotPresent",
    )


def test_a_pod_is_evicted_when_its_node_is_drained(kubectl: Callable[..., str], cluster: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=WAITING_POD.replace("containers", "nodeName: node-3, containers"))
    kubectl("wait", "pod/waiting", "--for=condition=Ready", WITHIN)

    drained = cluster.run("drain", "node-3", "--force", WITHIN)

    nodes = kubectl("get", "node", "node-3", "--no-headers")
    kubectl("uncordon", "node-3")
    assert drained.returncode == 0, drained.stderr
    assert "pod/waiting evicted" in drained.stdout
    assert "Ready,SchedulingDisabled" in nodes
    assert kubectl("get", "pods", "-o", "name") == ""


def test_a_watch_prints_rows_as_they_change(kubectl: Callable[..., str], cluster: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=WAITING_POD)

    with cluster.reading("get", "pods", "--watch") as rows:
        header, first = next(rows), next(rows)
        kubectl("annotate", "pod", "waiting", "note=hello")
        changed = next(rows)

    assert header == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert first[:4] == changed[:4] == ["waiting", "0/1", "Pending", "0"]


def test_a_dry_run_on_the_server_keeps_nothing(kubectl: Callable[..., str]) -> None:
    output = kubectl("apply", "--dry-run=server", "-f", "-", stdin=WAITING_POD)

    assert output == "pod/waiting created (server dry run)\n"
    assert kubectl("get", "pods", "-o", "name") == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("logs", "waiting"), "the sandbox does not serve pods/log"),
        (("get", "--raw", "/api/v1/endpoints"), "the sandbox does not serve endpoints.v1"),
        (("get", "endpoints"), "doesn't have a resource type"),
        (("get", "pods", "--field-selector=spec.colour=red"), "field label not supported: spec.colour"),
        (("get", "pod", "nobody"), 'pods "nobody" not found'),
    ],
)
def test_a_resource_that_is_not_served_is_refused_by_name(
    kubectl: Callable[..., str], cluster: Kubectl, words: tuple[str, ...], message: str
) -> None:
    kubectl("apply", "-f", "-", stdin=WAITING_POD)

    refused = cluster.run(*words, stdin=WAITING_POD)

    assert refused.returncode != 0
    assert message in refused.stderr
