"""What operators' tools expect of a cluster besides scheduling, asked of the sandbox by stock kubectl and helm."""

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cli.sandbox_kubectl import PATIENCE_S, WITHIN, Kubectl, cluster, kubectl
from tests.helm.program import run_helm

__all__ = ["cluster", "kubectl"]

Ask = Callable[..., str]

SERVICE = """
apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {team: a, tier: front}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80}, {name: admin, port: 81}]
"""

AGENT = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers: [{name: agent, image: "agent:1"}]
"""


def applied(kubectl: Ask, text: str, manager: str, *flags: str) -> str:
    return kubectl("apply", "--server-side", f"--field-manager={manager}", *flags, "-f", "-", stdin=text)


def labels(kubectl: Ask) -> dict[str, str]:
    service_labels: dict[str, str] = json.loads(
        kubectl("get", "service", "web", "-o", "jsonpath={.metadata.labels}")
    )
    return service_labels


def test_a_field_that_is_no_longer_applied_is_removed_and_others_stay(kubectl: Ask) -> None:
    assert applied(kubectl, SERVICE, "a") == "service/web serverside-applied\n"
    kubectl("label", "service", "web", "by-hand=yes")

    applied(kubectl, SERVICE.replace(", tier: front", "").replace(", {name: admin, port: 81}", ""), "a")

    assert labels(kubectl) == {"team": "a", "by-hand": "yes"}
    assert kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[*].port}") == "80"


def test_the_same_apply_again_changes_nothing(kubectl: Ask) -> None:
    applied(kubectl, SERVICE, "a")
    version = kubectl("get", "service", "web", "-o", "jsonpath={.metadata.resourceVersion}")

    applied(kubectl, SERVICE, "a")

    assert kubectl("get", "service", "web", "-o", "jsonpath={.metadata.resourceVersion}") == version


def test_a_field_of_another_manager_is_a_conflict_unless_it_is_forced(kubectl: Ask, cluster: Kubectl) -> None:
    applied(kubectl, SERVICE, "a")
    changed = SERVICE.replace("team: a", "team: b")

    refused = cluster.run("apply", "--server-side", "--field-manager=b", "-f", "-", stdin=changed)
    before = labels(kubectl)
    applied(kubectl, changed, "b", "--force-conflicts")
    regained = cluster.run("apply", "--server-side", "--field-manager=a", "-f", "-", stdin=SERVICE)

    assert refused.returncode == 1
    assert 'conflict with "a"' in refused.stderr
    assert ".metadata.labels.team" in refused.stderr
    assert before["team"] == "a"
    assert labels(kubectl)["team"] == "b"
    assert 'conflict with "b"' in regained.stderr


def test_a_field_that_two_managers_apply_stays_until_both_leave_it_out(kubectl: Ask) -> None:
    applied(kubectl, SERVICE, "a")
    applied(kubectl, SERVICE, "b")
    without = SERVICE.replace(", tier: front", "")

    applied(kubectl, without, "a")
    kept = labels(kubectl)
    applied(kubectl, without, "b")

    assert kept == {"team": "a", "tier": "front"}
    assert labels(kubectl) == {"team": "a"}


def test_a_secret_is_created_read_and_of_one_type(kubectl: Ask, cluster: Kubectl) -> None:
    kubectl("create", "secret", "generic", "token", "--from-literal=key=value")

    row = kubectl("get", "secrets", "--no-headers").split()
    value = kubectl("get", "secret", "token", "-o", "jsonpath={.data.key}")
    retyped = cluster.run("patch", "secret", "token", "-p", '{"type": "other"}')

    assert row[:3] == ["token", "Opaque", "1"]
    assert base64.b64decode(value) == b"value"
    assert "field is immutable" in retyped.stderr


def test_a_daemon_set_has_a_pod_for_each_node(kubectl: Ask) -> None:
    kubectl("apply", "-f", "-", stdin=AGENT)

    kubectl("wait", "daemonset/agent", "--for=jsonpath={.status.desiredNumberScheduled}=3", WITHIN)
    pods = json.loads(kubectl("get", "pods", "-l", "app=agent", "-o", "json"))["items"]
    kubectl("delete", "daemonset", "agent", WITHIN)

    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"] for pod in pods]
    assert sorted(term[0]["matchFields"][0]["values"][0] for term in terms) == ["node-1", "node-2", "node-3"]


def test_a_resource_quota_is_kept_and_kubectl_says_that_it_is_not_enforced(
    kubectl: Ask, cluster: Kubectl
) -> None:
    created = cluster.run("create", "quota", "small", "--hard=pods=2")

    assert kubectl("get", "quota", "small", "-o", "jsonpath={.spec.hard.pods}") == "2"
    assert created.stderr == "Warning: the sandbox keeps a ResourceQuota and does not enforce it\n"


DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trains.rail.example.com}
spec:
  group: rail.example.com
  scope: Namespaced
  names: {plural: trains, kind: Train, shortNames: [tr]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.cars, statusReplicasPath: .status.cars}}
    additionalPrinterColumns:
    - {name: Cars, type: integer, jsonPath: .spec.cars}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    - {name: Since, type: date, jsonPath: .metadata.creationTimestamp}
    - {name: Line, type: string, jsonPath: ".metadata.labels['line']", priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              cars: {type: integer, minimum: 1, description: How many cars the train has.}
          status:
            type: object
            properties:
              cars: {type: integer}
              conditions: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
TRAIN = """
apiVersion: rail.example.com/v1
kind: Train
metadata: {name: night, labels: {line: north}}
spec: {cars: 3}
"""


@pytest.fixture
def trains(kubectl: Ask) -> Iterator[Ask]:
    kubectl("apply", "-f", "-", stdin=DEFINITION)
    kubectl("wait", "--for=condition=established", "crd/trains.rail.example.com", WITHIN)
    yield kubectl
    kubectl("delete", "crd", "trains.rail.example.com", WITHIN)


def test_a_custom_resource_is_applied_shown_scaled_and_deleted(trains: Ask) -> None:
    trains("apply", "-f", "-", stdin=TRAIN)
    report = '{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}'
    trains("patch", "train", "night", "--subresource=status", "--type=merge", "-p", report)
    trains("apply", "-f", "-", stdin=TRAIN.replace("cars: 3", "cars: 4"))
    heading, row = (line.split() for line in trains("get", "tr", "-o", "wide").splitlines())
    trains("scale", "train/night", "--replicas=5")
    cars = trains("get", "train", "night", "-o", "jsonpath={.spec.cars}")
    trains("delete", "train", "night", WITHIN)

    assert heading == ["NAME", "CARS", "READY", "SINCE", "LINE"]
    assert [*row[:3], row[4]] == ["night", "4", "True", "north"]
    assert cars == "5"
    assert "trains" in trains("api-resources", "--api-group=rail.example.com", "-o", "name")


def test_a_custom_resource_is_explained_and_checked(trains: Ask, cluster: Kubectl) -> None:
    explained = trains("explain", "train.spec.cars")
    misspelt = cluster.run("apply", "-f", "-", stdin=TRAIN.replace("cars: 3", "carz: 3"))
    wrong = cluster.run("apply", "-f", "-", stdin=TRAIN.replace("cars: 3", "cars: 0"))

    assert "How many cars the train has." in explained
    assert 'unknown field "spec.carz"' in misspelt.stderr
    assert "spec.cars in body should be greater than or equal to 1" in wrong.stderr


def test_rules_in_cel_are_kept_and_kubectl_says_that_they_are_not_evaluated(cluster: Kubectl) -> None:
    text = DEFINITION.replace("trains", "ruled").replace("Train", "Ruled").replace("[tr]", "[]")
    rules = 'spec:\n            x-kubernetes-validations: [{rule: "self.cars < 9"}]\n            type'
    ruled = cluster.run("apply", "-f", "-", stdin=text.replace("spec:\n            type", rules))
    cluster.run("delete", "crd", "ruled.rail.example.com", WITHIN)

    assert ruled.returncode == 0, ruled.stderr
    assert ruled.stderr == "Warning: the sandbox does not evaluate x-kubernetes-validations\n"


def test_a_custom_resource_goes_with_its_namespace(trains: Ask, cluster: Kubectl) -> None:
    cluster("create", "namespace", "depot")
    cluster("apply", "-n", "depot", "-f", "-", stdin=TRAIN)

    cluster("delete", "namespace", "depot", WITHIN)

    assert "No resources found" in cluster.run("get", "trains", "-A").stderr


def test_auth_can_i_and_whoami_answer(kubectl: Ask) -> None:
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "*.*" in kubectl("auth", "can-i", "--list")
    assert "sandbox" in kubectl("auth", "whoami")


def test_explain_describes_the_fields_of_a_pod(kubectl: Ask, cluster: Kubectl) -> None:
    tolerations = kubectl("explain", "pod.spec.tolerations")
    unknown = cluster.run("explain", "pod.spec.colour")

    assert "KIND:       Pod" in tolerations
    assert "FIELD: tolerations <[]Toleration>" in tolerations
    assert "tolerationSeconds\t<integer>" in tolerations
    assert "The pod this Toleration is attached to" in " ".join(tolerations.split())
    assert 'field "colour" does not exist' in unknown.stderr


@pytest.fixture
def chart(tmp_path: Path, requires_helm: None) -> Path:
    """A chart as `helm create` makes it, without hooks."""
    folder = tmp_path / "plain"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: plain\nversion: 0.1.0\n")
    (folder / "values.yaml").write_text("team: a\n")
    (folder / "templates" / "service.yaml").write_text(SERVICE.replace("team: a", "team: {{ .Values.team }}"))
    return folder


def test_helm_installs_upgrades_rolls_back_and_removes_a_chart(
    kubectl: Ask, cluster: Kubectl, chart: Path, tmp_path: Path
) -> None:
    namespace = kubectl("config", "view", "--minify", "-o", "jsonpath={..namespace}")

    def helm(*words: str) -> str:
        done: subprocess.CompletedProcess[str] = run_helm(
            *words, "--namespace", namespace, folder=tmp_path, environment=cluster.environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    helm("install", "web", str(chart))
    installed = labels(kubectl)
    helm("upgrade", "web", str(chart), "--set", "team=b")
    upgraded = labels(kubectl)
    helm("rollback", "web", "1")
    back = labels(kubectl)
    (release,) = yaml.safe_load(helm("list", "--output", "yaml"))
    helm("uninstall", "web", f"--timeout={PATIENCE_S:g}s")

    assert [service_labels["team"] for service_labels in (installed, upgraded, back)] == ["a", "b", "a"]
    assert (release["name"], release["revision"], release["status"]) == ("web", "3", "deployed")
    assert kubectl("get", "services", "-o", "name") == ""
