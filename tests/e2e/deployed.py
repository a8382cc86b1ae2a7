"""policysched on a real control plane with the objects of `deploy/`: its ServiceAccount, roles,
Lease and ConfigMaps.

The Deployment itself is left out, because no kubelet runs containers. Its command line runs as an
ordinary process, `python -m policysched run --config settings.yaml`, with a kubeconfig that has a
token of the ServiceAccount.
"""

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.api import Api, ApiError, Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod
from tests.controlplane.process import free_ports
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.permissions import granted, wait_until_allowed
from tests.e2e.preloaded import no_change, start_interpreter
from tests.e2e.program import BIN, Running, kubectl

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "policysched"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/policysched"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
PODS = "/api/v1/namespaces/default/pods"
NEEDS_A_KUBELET = frozenset({"Deployment"})

PLAIN = "policy test version 1\ninclude kube_default\n"
BROKEN = "policy test version 1\ninclude kube_default\nfilter pool require node.naem == 1\n"


def manifests(folder: Path = DEPLOY) -> list[Json]:
    """The manifests that `kubectl apply -k` would apply."""
    loaded = yaml.load_all(_kustomized(folder), Loader=yaml.CSafeLoader)  # 12 times as fast as in Python
    return [manifest for manifest in loaded if manifest]


def example_policies(folder: Path = DEPLOY) -> Json:
    """The ConfigMap that an administrator creates once."""
    config_map: Json = yaml.safe_load((folder / "example-policies.yaml").read_text())
    return config_map


@cache
def _kustomized(folder: Path) -> str:
    done = subprocess.run(
        [BIN / "kubectl", "kustomize", folder], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(api: Api, manifest: Json) -> None:
    """As `kubectl apply --server-side`, without its quarter of a second of CPU and its reading of the server's schema. That
    kubectl applies the manifests, too, is tested in `test_deploy.py`."""
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    folder = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = re.sub("y$", "ie", re.sub("s$", "se", manifest["kind"].lower())) + "s"
    where = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
    api.patch(
        f"{folder}/{where}{plural}/{metadata['name']}",
        manifest,
        content_type="application/apply-patch+yaml",
        fieldManager="tests",
        force="true",
        fieldValidation="Strict",
    )


class Deployed:
    """`deploy/` applied without the Deployment, and methods to change and read the cluster."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.control_plane = control_plane
        self.api = control_plane.api
        self.folder = folder
        self._started_count = 0
        applied = [manifest for manifest in manifests() if manifest["kind"] not in NEEDS_A_KUBELET]
        applied.append(example_policies())
        for manifest in applied:
            apply(self.api, manifest)
        self.kubeconfig = control_plane.service_account_kubeconfig(NAMESPACE, "policysched")
        wait_until_allowed(self.api, f"{NAMESPACE}:policysched", granted(applied))

    def kubectl(self, *arguments: str, stdin: str = "", **environment: str) -> str:
        """As the cluster's admin."""
        return kubectl(self.control_plane.kubeconfig_path, *arguments, stdin=stdin, environment=environment)

    def kubernetes_minor(self) -> int:
        minor: str = self.api.get("/version")["minor"]
        return int(minor.rstrip("+"))

    def plain_of_release(self) -> str:
        """`PLAIN` with what kube-scheduler of this release does."""
        return PLAIN.replace("kube_default", f'kube_default "1.{self.kubernetes_minor()}"')

    # Policies

    def put_policies(self, **texts: str) -> None:
        """`main="..."` is the key main.policy."""
        put_policies(self.api, NAMESPACE, "policies", texts)

    def last_good(self) -> Mapping[str, str]:
        kept: Mapping[str, str] = self.api.get(f"{CONFIG_MAPS}/policies-last-good").get("data") or {}
        return kept

    # Pods

    def create(
        self, name: str, *, scheduler: str = "test", labels: Mapping[str, str] = {}, **spec: Any
    ) -> None:
        manifest = pod(name, schedulerName=scheduler, **spec)
        manifest["metadata"]["labels"] = dict(labels)
        self.api.post(PODS, manifest)

    def pods(self, namespace: str = "default", **params: str) -> list[Json]:
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods", **params)

    def node_of(self, name: str) -> str:
        node: str = self.api.get(f"{PODS}/{name}")["spec"].get("nodeName", "")
        return node

    def bound(self, name: str) -> str:
        """Wait until the pod has a node."""
        return wait_for(lambda: self.node_of(name), f"pod {name} to be bound")

    def all_bound(self, count: int) -> list[Json]:
        """Wait until this many pods exist and each has a node."""

        def look() -> list[Json]:
            if self.pods(fieldSelector="spec.nodeName=", limit="1"):  # a list of all pods is long
                return []
            bound = self.pods()
            return bound if len(bound) == count and not pending(bound) else []

        try:
            return wait_for(look, f"{count} pods to be bound")
        except AssertionError as error:
            pods = self.pods()
            raise AssertionError(f"{error}: of {len(pods)} there are pending {pending(pods)[:20]}") from None

    def condition(self, name: str) -> Json:
        """The PodScheduled condition of the pod, or None if it has none yet."""

        def look() -> Json | None:
            conditions = self.api.get(f"{PODS}/{name}").get("status", {}).get("conditions", [])
            return next((condition for condition in conditions if condition["type"] == "PodScheduled"), None)

        return wait_for(look, f"the condition of {name}")

    def events(self, name: str, reason: str) -> list[Json]:
        """Events with the reason about an object of that name."""
        recorded = self.api.items("/apis/events.k8s.io/v1/events")
        return [
            event for event in recorded if event["regarding"]["name"] == name and event["reason"] == reason
        ]

    def event(self, name: str, reason: str) -> Json:
        """The first such event, once it exists."""
        return wait_for(lambda: self.events(name, reason), f"an event {reason} about {name}")[0]

    # The program

    @contextmanager
    def running(
        self,
        *flags: str,
        elect: bool = False,
        kubeconfig: Path | None = None,
        settings: Mapping[str, Any] = {},
        plant: Callable[[], None] = no_change,
        secure: bool = False,
        own_interpreter: bool = False,
    ) -> Iterator[Running]:
        """Run `python -m policysched run` for the length of the block; it must exit with 0 after
        SIGTERM.
        """
        process = self.start(
            *flags,
            elect=elect,
            kubeconfig=kubeconfig,
            settings=settings,
            plant=plant,
            secure=secure,
            own_interpreter=own_interpreter,
        )
        try:
            yield process
            if process.process.poll() is None:
                assert process.terminate() == 0, process.log()
        except BaseException:
            print(process.log()[-20_000:])  # pytest prints it if the test fails
            raise
        finally:
            process.kill()

    def start(
        self,
        *flags: str,
        elect: bool = False,
        kubeconfig: Path | None = None,
        settings: Mapping[str, Any] = {},
        plant: Callable[[], None] = no_change,
        secure: bool = False,
        own_interpreter: bool = False,
    ) -> Running:
        """Start the program with the settings of `deploy/`, overridden by `settings` and flags. Not `secure`: it serves plain
        HTTP without the API server's reviews, so that it answers while a test stops the API server. `own_interpreter`: not
        forked from one that has the tests' modules in memory.
        """
        self._started_count += 1
        shipped = next(
            manifest for manifest in manifests() if manifest["metadata"]["name"].startswith("settings")
        )
        given = {**yaml.safe_load(shipped["data"]["settings.yaml"]), **settings}
        path = self.folder / f"settings{self._started_count}.yaml"
        path.write_text(yaml.safe_dump(given))
        port = free_ports(1)[0]
        arguments = [
            *("run", "--config", str(path), "--http", f"127.0.0.1:{port}"),
            *("--kubeconfig", str(kubeconfig or self.kubeconfig)),
            *(() if elect else ("--no-leader-elect",)),
            *(() if secure else ("--insecure-http",)),
            *flags,
        ]
        log = self.folder / f"policysched{self._started_count}.log"
        client = self.control_plane.admin if secure else None
        process = start_interpreter(arguments, log) if own_interpreter else None
        return Running(arguments, log, port, client, plant, process)


def put_policies(api: Api, namespace: str, name: str, texts: Mapping[str, str]) -> None:
    """Create a ConfigMap of policies, or replace its texts: as with `kubectl apply`, keys of others stay. Not by kubectl,
    which takes longer than the scheduler to start."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    data = {f"{key}.policy": text for key, text in texts.items()}
    try:
        before = api.get(f"{path}/{name}").get("data") or {}
    except ApiError as error:
        if error.status != 404:
            raise
        api.post(path, {"metadata": {"namespace": namespace, "name": name}, "data": data})
    else:
        removals = {key: None for key in before if key.endswith(".policy")}
        api.patch(f"{path}/{name}", {"data": {**removals, **data}})


def refused(action: Callable[[], object]) -> ApiError | None:
    """The API server's error message, or an empty text."""
    try:
        action()
    except ApiError as error:
        return error
    return None


def pending(pods: Iterable[Json]) -> list[str]:
    """The names of the pods without a node."""
    return [pod["metadata"]["name"] for pod in pods if "nodeName" not in pod["spec"]]
