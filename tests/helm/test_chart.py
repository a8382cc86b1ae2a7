"""The chart and the kustomization install the same objects, and values change what they say they change."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from policysched import __version__
from policysched.config.settings import read_settings
from tests.e2e.deployed import DEPLOY, example_policies, manifests
from tests.helm.program import CHART, run_helm

Json = dict[str, Any]
HELMS_LABELS = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
}
CHECKSUM = "checksum/settings"


@pytest.fixture
def helm(tmp_path: Path, requires_helm: None) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *arguments: run_helm(*arguments, folder=tmp_path)


@pytest.fixture
def render(helm: Callable[..., Any], tmp_path: Path) -> Callable[..., list[Json]]:
    def rendered(
        values: Mapping[str, Any] = {}, chart: Path = CHART, namespace: str = "policysched"
    ) -> list[Json]:
        path = tmp_path / "values.yaml"
        path.write_text(yaml.safe_dump(dict(values)))
        done = helm("template", "policysched", str(chart), "--namespace", namespace, "--values", str(path))
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return rendered


def plain(document: Json) -> Json:
    """Without what is Helm's own. The name of kustomize's ConfigMap has a hash instead of Helm's checksum."""
    meta = document["metadata"]
    labels = {name: value for name, value in meta.get("labels", {}).items() if name not in HELMS_LABELS}
    labels.pop("app.kubernetes.io/name", None)
    meta = {**meta, "labels": labels}
    if document["kind"] == "ConfigMap" and meta["name"].startswith("settings"):
        meta["name"] = "settings"
        document = {**document, "data": {"settings.yaml": yaml.safe_load(document["data"]["settings.yaml"])}}
    if document["kind"] == "Deployment":
        template = document["spec"]["template"]
        template["metadata"]["annotations"].pop(CHECKSUM, None)
        (volume,) = template["spec"]["volumes"]
        volume["configMap"]["name"] = volume["configMap"]["name"].partition("-")[0]
        (container,) = template["spec"]["containers"]
        if container.get("imagePullPolicy") == "IfNotPresent":  # the default for an image with a tag
            del container["imagePullPolicy"]
    return {**document, "metadata": meta}


def by_name(documents: list[Json]) -> dict[tuple[str, str, str], Json]:
    rendered = {
        (document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]): document
        for document in map(plain, documents)
    }
    assert len(rendered) == len(documents)
    return rendered


def kustomized() -> dict[tuple[str, str, str], Json]:
    """Helm's namespace is an argument and not an object of the release."""
    return by_name([document for document in manifests() if document["kind"] != "Namespace"])


def one(documents: list[Json], kind: str, name: str = "policysched") -> Json:
    (document,) = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return document


def test_helm_and_kustomize_install_the_same_objects(render: Callable[..., list[Json]]) -> None:
    assert by_name(render()) == kustomized()


def test_a_difference_between_the_two_is_detected(render: Callable[..., list[Json]], tmp_path: Path) -> None:
    changed = tmp_path / "chart"
    shutil.copytree(CHART, changed)
    role = changed / "manifests" / "rbac.yaml"
    role.write_text(role.read_text().replace("resources: [pods/binding]", "resources: [pods/eviction]"))

    rendered = by_name(render(chart=changed))

    assert {key for key, document in kustomized().items() if rendered.get(key) != document} == {
        ("ClusterRole", "", "policysched")
    }


def test_the_chart_has_no_warning(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = helm("lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout + done.stderr


def test_another_namespace_is_in_every_object_and_setting(
    render: Callable[..., list[Json]], tmp_path: Path
) -> None:
    documents = render(namespace="scheduling")

    for document in documents:
        assert document["metadata"].get("namespace") in (None, "scheduling", "kube-system")
        assert {subject["namespace"] for subject in document.get("subjects", [])} <= {"scheduling"}
        if document["kind"] == "FlowSchema":
            (rule,) = document["spec"]["rules"]
            assert [s["serviceAccount"]["namespace"] for s in rule["subjects"]] == ["scheduling"]
    path = tmp_path / "settings.yaml"
    path.write_text(one(documents, "ConfigMap", "settings")["data"]["settings.yaml"])
    settings = read_settings(path, {}, {})
    assert (settings.policies.namespace, settings.last_good.namespace) == ("scheduling", "scheduling")
    assert (settings.lease.namespace, settings.lease.name) == ("scheduling", "policysched")


def test_values_reach_the_pods(render: Callable[..., list[Json]]) -> None:
    digest = "sha256:" + "0" * 64
    toleration = {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}
    volume = {"name": "ca", "secret": {"secretName": "ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ca", "readOnly": True}
    values = {
        "image": {"repository": "registry.example/policysched", "digest": digest},
        "replicas": 3,
        "resources": {"requests": {"cpu": "2"}, "limits": None},
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [toleration],
        "extraArgs": ["--log-level", "debug"],
        "env": [{"name": "TZ", "value": "UTC"}],
        "volumes": [volume],
        "volumeMounts": [mount],
        "podLabels": {"team": "platform"},
        "podAnnotations": {"prometheus.io/scrape": "false"},
        "priorityClass": {"create": False, "name": "system-cluster-critical"},
    }

    documents = render(values)

    spec = one(documents, "Deployment")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 3
    assert container["image"] == f"registry.example/policysched@{digest}"
    assert container["args"] == ["run", "--config", "/etc/policysched/settings.yaml", "--log-level", "debug"]
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "512Mi"}}
    assert container["env"] == values["env"]
    assert (pod["nodeSelector"], pod["tolerations"]) == (values["nodeSelector"], [toleration])
    assert pod["volumes"][1:] == [volume] and container["volumeMounts"][1:] == [mount]
    assert spec["template"]["metadata"]["labels"] == {
        "app.kubernetes.io/name": "policysched",
        "team": "platform",
    }
    assert spec["template"]["metadata"]["annotations"]["prometheus.io/scrape"] == "false"
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert not [document for document in documents if document["kind"] == "PriorityClass"]


def test_changed_settings_restart_the_pods(render: Callable[..., list[Json]], tmp_path: Path) -> None:
    before, after = render(), render({"settings": {"scheduling": {"backoff_max_s": 30}}})

    def checksum(documents: list[Json]) -> str:
        text: str = one(documents, "Deployment")["spec"]["template"]["metadata"]["annotations"][CHECKSUM]
        return text

    assert checksum(before) != checksum(after)
    path = tmp_path / "settings.yaml"
    path.write_text(one(after, "ConfigMap", "settings")["data"]["settings.yaml"])
    assert read_settings(path, {}, {}).limits.backoff_max_s == 30


def test_what_is_optional_can_be_left_out_or_added(render: Callable[..., list[Json]]) -> None:
    off = {"enabled": False}
    on = {"enabled": True}
    optional = ("preemption", "networkPolicy", "podDisruptionBudget", "flowSchemas")
    without = {key[::2] for key in by_name(render(dict.fromkeys(optional, off)))}
    everything = {key[::2] for key in kustomized()}

    assert everything - without == {
        ("ClusterRole", "policysched-preemption"),
        ("ClusterRoleBinding", "policysched-preemption"),
        ("FlowSchema", "policysched"),
        ("FlowSchema", "policysched-leader-election"),
        ("NetworkPolicy", "policysched"),
        ("PodDisruptionBudget", "policysched"),
    }
    reader = {"serviceAccounts": [{"name": "prometheus-k8s", "namespace": "monitoring"}]}
    token = {"name": "scrape-token", "key": "token"}
    documents = render(
        {
            "teamPolicies": on,
            "metricsApi": on,
            "metricsReader": reader,
            "serviceMonitor": on,
            "podMonitor": {**on, "credentials": token, "labels": {"release": "prometheus"}},
            "prometheusRule": on,
        }
    )
    assert {(d["kind"], d["metadata"]["name"]) for d in documents} - everything == {
        ("ConfigMap", "settings"),
        ("ClusterRole", "policysched-team-policies"),
        ("ClusterRoleBinding", "policysched-team-policies"),
        ("ClusterRole", "policysched-policy-author"),
        ("ClusterRole", "policysched-metrics-api"),
        ("ClusterRoleBinding", "policysched-metrics-api"),
        ("ClusterRole", "policysched-metrics-reader"),
        ("ClusterRoleBinding", "policysched-metrics-reader"),
        ("Service", "policysched-metrics"),
        ("ServiceMonitor", "policysched"),
        ("PodMonitor", "policysched"),
        ("PrometheusRule", "policysched"),
    } - everything
    monitor = one(documents, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == {"credentials": token}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    alerts = yaml.safe_load((DEPLOY / "alerts" / "policysched.rules.yaml").read_text())
    assert one(documents, "PrometheusRule")["spec"] == alerts
    binding = one(documents, "ClusterRoleBinding", "policysched-metrics-reader")
    assert binding["subjects"] == [{"kind": "ServiceAccount", **reader["serviceAccounts"][0]}]


def test_dashboards_are_config_maps_for_grafanas_sidecar(
    render: Callable[..., list[Json]], tmp_path: Path
) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    (chart / "dashboards").mkdir(exist_ok=True)
    (chart / "dashboards" / "one.json").write_text('{"title": "{{ node }}"}\n')

    board = one(
        render({"dashboards": {"enabled": True}}, chart=chart), "ConfigMap", "policysched-dashboard-one"
    )

    assert yaml.safe_load(board["data"]["one.json"]) == {"title": "{{ node }}"}
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_example_policies_are_part_of_no_release(render: Callable[..., list[Json]]) -> None:
    def policies(documents: list[Json]) -> list[Json]:
        return [d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"] == "policies"]

    assert policies(render()) == []
    (made,) = policies(render({"examplePolicies": {"create": True}}))
    assert made["data"] == example_policies()["data"]
    assert made["metadata"]["annotations"] == {"helm.sh/hook": "pre-install"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("replica=3", "additional properties 'replica' not allowed"),
        ("image.digest=latest", "at '/image/digest': 'latest' does not match pattern"),
        (
            "settings.scheduling.backoff_max_s=soon",
            "at '/settings/scheduling/backoff_max_s': got string, want number",
        ),
        (
            "settings.scheduling.backoff=1",
            "at '/settings/scheduling': additional properties 'backoff' not allowed",
        ),
        ("settings.sources.main.url=http://a", "at '/settings/sources/main': missing property 'kind'"),
        ("settings.policies=a/b", "at '/settings/policies': false schema"),
        ("tolerations=all", "at '/tolerations': got string, want array"),
    ],
)
def test_a_wrong_value_is_an_error_in_one_line(
    helm: Callable[..., subprocess.CompletedProcess[str]], value: str, message: str
) -> None:
    done = helm("template", "policysched", str(CHART), "--set", value)

    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if message in line] and done.stderr.count("- at ") == 1


@cache
def chart_yaml() -> Json:
    text: Json = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return text


def test_the_chart_has_the_version_of_the_package() -> None:
    assert (chart_yaml()["version"], chart_yaml()["appVersion"]) == (__version__, __version__)
