"""The controllers of a workload API beside a control plane, installed as its own manifests say.

Their Deployment is left out, because no kubelet runs containers: its program runs as a process with a token of its
ServiceAccount and with the settings of its ConfigMap. Its webhooks are on, with the certificate that it issues itself. Two
things that a cluster's nodes do are done here: the Service of its webhooks leads to this process, and the Secret in which
it keeps their certificate is mounted (by `bwrap`).
"""

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.api import Json
from tests.controlplane.cluster import HOST, ControlPlane
from tests.controlplane.process import Process, free_ports
from tests.e2e.deployed import manifests
from tests.e2e.program import kubectl
from tests.workloads.build import MANIFESTS

NOT_INSTALLED = frozenset({"APIService", "Deployment"})
CERTIFICATE = "tls.crt"
MOUNTED = "/tmp/k8s-webhook-server/serving-certs"
"""Where their Deployments mount the Secret."""

READY_WITHIN_S = 180.0


@contextmanager
def running_controllers(
    control_plane: ControlPlane,
    binary: Path,
    settings: Mapping[str, Any] = {},
    components: Sequence[str] = (),
) -> Iterator[None]:
    """Install and start them. `settings` override those of their ConfigMap; `components` are optional parts of their manifests."""
    installed = manifests(_kustomization(control_plane, binary.parent / MANIFESTS, components))
    port, health_port = free_ports(2)
    applied = [manifest for manifest in installed if manifest["kind"] not in NOT_INSTALLED]
    for manifest in applied:
        _lead_webhooks_to(port, manifest)
    kubectl(control_plane.kubeconfig_path, "create", "-f", "-", stdin=json_documents(applied))
    secret_folder = control_plane.folder / f"{binary.name}-certificates"
    secret_folder.mkdir()
    (config,) = (manifest for manifest in installed if manifest["kind"] == "ConfigMap")
    overridden = {
        **yaml.safe_load(config["data"]["controller_manager_config.yaml"]),
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{HOST}:{health_port}"},
        "webhook": {"host": HOST, "port": port, "certDir": MOUNTED},
        **settings,
    }
    path = control_plane.folder / f"{binary.name}-settings.yaml"
    path.write_text(json.dumps(overridden))
    (account,) = (manifest["metadata"] for manifest in installed if manifest["kind"] == "ServiceAccount")
    kubeconfig = control_plane.service_account_kubeconfig(account["namespace"], account["name"])
    process = control_plane.start_program(
        binary.name,
        [
            *("bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--tmpfs", "/tmp"),
            *("--bind", str(control_plane.folder), str(control_plane.folder)),
            *("--bind", str(secret_folder), MOUNTED),
            *(str(binary), f"--config={path}", f"--kubeconfig={kubeconfig}"),
        ],
    )
    (secret,) = (manifest["metadata"] for manifest in installed if manifest["kind"] == "Secret")
    try:
        _fill(control_plane, secret, secret_folder, process)
        process.wait_until(lambda: _is_ready(health_port), within_s=READY_WITHIN_S)
        yield
    except BaseException:
        print(process.log_tail())  # pytest prints it if the test fails
        raise
    finally:
        process.kill()


def _kustomization(control_plane: ControlPlane, config: Path, components: Sequence[str]) -> Path:
    """A folder for `kubectl apply -k` of the default and these components."""
    folder = control_plane.folder / f"{config.parent.parent.name}-manifests"
    folder.mkdir()
    base = os.path.relpath(config, folder.resolve())
    document = {
        "resources": [f"{base}/default"],
        "components": [f"{base}/components/{component}" for component in components],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(document))
    return folder


def _lead_webhooks_to(port: int, manifest: Json) -> None:
    """The API server connects to `HOST` for an external name, and verifies the certificate for the Service's."""
    match manifest["kind"]:
        case "Service" if manifest["metadata"]["name"].endswith("webhook-service"):
            manifest["spec"] = {"type": "ExternalName", "externalName": HOST}
        case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
            for webhook in manifest["webhooks"]:
                webhook["clientConfig"]["service"]["port"] = port
        case "CustomResourceDefinition" if conversion := manifest["spec"].get("conversion"):
            conversion["webhook"]["clientConfig"]["service"]["port"] = port


def _fill(control_plane: ControlPlane, secret: Json, folder: Path, process: Process) -> None:
    """With the files of the Secret. The certificate is the last: the program waits for it."""
    path = f"/api/v1/namespaces/{secret['namespace']}/secrets/{secret['name']}"

    def data() -> dict[str, str]:
        return control_plane.api.get(path).get("data") or {}

    process.wait_until(lambda: CERTIFICATE in data(), within_s=READY_WITHIN_S)
    files = data()
    for name in sorted(files, key=lambda name: name == CERTIFICATE):
        (folder / name).write_bytes(base64.b64decode(files[name]))


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz") as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):  # it does not listen yet, or says that it is not ready
        return False


def json_documents(items: list[Json]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
