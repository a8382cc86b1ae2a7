"""A Kubernetes control plane on loopback: the real programs, without a kubelet.

                 etcd ◄── kube-apiserver ◄── kube-scheduler, kube-controller-manager (if a test starts them),
               no fsync    TLS, RBAC,        kubectl, policysched, `control_plane.api`
                           default admission

Everything listens on 127.0.0.1 and keeps its files in one temporary folder. Leaving the `with`
block stops the programs and removes the folder; if the tests die before that, the guardian does it.

Nodes are objects without a kubelet: a bound pod stays Pending, nodes send no heartbeats, and a
bound pod is removed only by a deletion with a grace period of 0.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.controlplane.api import TIMEOUT_S, Api, ApiError, Json
from tests.controlplane.certificates import Authority, KeyPair
from tests.controlplane.guardian import Guardian
from tests.controlplane.kubeconfig import with_certificate, with_token, write_kubeconfig
from tests.controlplane.process import Process, free_ports
from tests.controlplane.programs import Programs
from tests.controlplane.sweep import NAMESPACES, created_since, kinds_of, object_paths, sweep
from tests.controlplane.waiting import wait_for

HOST = "127.0.0.1"
READY_WITHIN_S = 300.0
"""A start takes 5 s on two idle cores, and longer on busy ones."""

ISSUER = "https://kubernetes.default.svc.cluster.local"
NO_HEARTBEATS_EXPECTED = "--node-monitor-grace-period=24h"


@dataclass(frozen=True, slots=True)
class Features:
    """What a cluster has besides the defaults of its release. `gates` are for all programs;
    `served` are API versions that the API server leaves out by default, such as
    `scheduling.k8s.io/v1beta1`.
    """

    gates: Mapping[str, bool] = field(default_factory=dict)
    served: tuple[str, ...] = ()

    def gate_flags(self) -> list[str]:
        words = [f"{name}={str(on).lower()}" for name, on in self.gates.items()]
        return [f"--feature-gates={','.join(words)}"] if words else []

    def runtime_flags(self) -> list[str]:
        return [f"--runtime-config={','.join(f'{version}=true' for version in self.served)}"] * bool(
            self.served
        )


NO_FEATURES = Features()


class ControlPlane(AbstractContextManager["ControlPlane"]):
    """etcd and kube-apiserver are started in `__init__`, the other programs on request.

    `api` acts as a cluster admin; `kubeconfig_path` and the certificate `admin` belong to that
    admin. Clients verify the server against `authority_path`. Requests of the user `audited`, and
    those that one of the `audit_rules` selects, are recorded (`audit_records`).
    """

    def __init__(
        self,
        programs: Programs,
        *,
        audited: str | None = None,
        audit_rules: Sequence[Json] = (),
        features: Features = NO_FEATURES,
    ) -> None:
        self.programs = programs
        by_user = [] if audited is None else [{"users": [audited]}]
        self._audit_rules = [{"level": "Metadata", **rule} for rule in (*audit_rules, *by_user)]
        self._features = self._features_from_the_start = features
        self.folder = Path(tempfile.mkdtemp(prefix="policysched-controlplane-"))
        self._guardian = Guardian()
        self._guardian.folder(self.folder)
        self._processes: list[Process] = []
        self._apis: list[Api] = []
        self._started_count = 0
        try:
            self._authority = Authority(self.folder)
            self._serving = self._authority.serving()
            self._token_key = self._authority.signing_key("service-accounts")
            self.admin = self._authority.client("admin", "system:masters")
            self._port, self._etcd_port, etcd_peer_port = free_ports(3)
            self._etcd_url = f"http://{HOST}:{self._etcd_port}"
            self._etcd = self._start_etcd(f"http://{HOST}:{etcd_peer_port}")
            self.url = f"https://{HOST}:{self._port}"
            self.kubeconfig_path = self._kubeconfig("admin", with_certificate(self.admin))
            self.api = self.api_as(self.admin)
            self._apiserver = self._start_apiserver()
            wait_for(lambda: object_paths(self.api) >= NAMESPACES, "the API server to make its namespaces")
            self.create_default_service_account("default")
            self._swept_revision = 0
            self._from_the_start = object_paths(self.api)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all programs and remove the folder. etcd's data is removed with it, so no clean
        shutdown is needed.
        """
        for process in reversed(self._processes):
            process.kill()
        self._close_connections()
        self._guardian.dismiss()

    def etcd(self) -> Api:
        """To be closed."""
        return Api.plain(HOST, self._etcd_port)

    @property
    def serving_pids(self) -> tuple[int, ...]:
        """The processes that serve every request."""
        return self._apiserver.pid, self._etcd.pid

    def reset(self) -> None:
        """Restore the state after the start, except for resource versions and features: only the API
        server runs, and all objects that tests created are gone.
        """
        for process in self._processes:
            if process not in (self._etcd, self._apiserver):
                process.kill()
        self._processes = [self._etcd, self._apiserver]
        self._close_connections()
        if self._apiserver.running:
            self._apiserver.resume()
        else:
            self.start_apiserver()
        self.sweep()  # with the features that served the objects

    def sweep(self) -> None:
        """Delete all objects that tests created; running programs continue. etcd knows which kinds have new objects:
        to list all kinds takes a tenth of a second of CPU.
        """
        with closing(self.etcd()) as etcd:
            names, self._swept_revision = created_since(etcd, self._swept_revision)
        sweep(self.api, keep=self._from_the_start, kinds=kinds_of(names))
        self.create_default_service_account("default")

    def _close_connections(self) -> None:
        """Close the connections. Each client opens another one when it is used again."""
        for api in self._apis:
            api.close()

    # The API server

    def stop_apiserver(self) -> None:
        """A clean shutdown: watches end, and the port is closed."""
        self._apiserver.stop()

    def kill_apiserver(self) -> None:
        self._apiserver.kill()

    def start_apiserver(self, *, features: Features | None = None) -> None:
        """Start again after a stop: the same port, objects and credentials. Returns when it is
        ready. `features` replaces the cluster's features, also for programs that start later.
        """
        assert not self._apiserver.running, "the API server is running already"
        if features is not None:
            self._features = features
        self._apiserver = self._start_apiserver()

    def restart_apiserver(self, *, features: Features | None = None) -> None:
        self.kill_apiserver()
        self.start_apiserver(features=features)

    def have_features(self, features: Features | None = None) -> None:
        """Restart the API server if it has other features; without an argument, those from the start."""
        wanted = self._features_from_the_start if features is None else features
        if self._features != wanted:
            self.restart_apiserver(features=wanted)

    def pause_apiserver(self) -> None:
        """Freeze the API server: the kernel accepts connections, and no request is answered."""
        self._apiserver.pause()

    def resume_apiserver(self) -> None:
        self._apiserver.resume()

    def audit_records(self) -> list[Json]:
        """Every audited request so far that was answered, or whose stream began."""
        assert self._audit_rules, "nothing is audited"
        whole, _, _ = self._audit_path.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def forget_history(self) -> None:
        """Make every version before the current one too old for a watch (410) and for the next page
        of a list. The API server is restarted for it, because its watch cache is longer than etcd's
        history.
        """
        version = self.api.get("/api/v1/namespaces")["metadata"]["resourceVersion"]
        with closing(self.etcd()) as etcd:
            etcd.post("/v3/kv/compaction", {"revision": version, "physical": True})
        self.restart_apiserver()

    # The other programs

    def start_scheduler(self, config: str = "", *flags: str, kubeconfig_path: Path | None = None) -> Process:
        """Start a stock kube-scheduler, and return once it is ready and has synced. `config` is the
        YAML of a KubeSchedulerConfiguration, in which `clientConnection.kubeconfig` is filled in;
        leader election is off unless the config enables it. Several can run.
        """
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **(yaml.safe_load(config) or {}),
        }
        user = kubeconfig_path or self.user_kubeconfig("system:kube-scheduler")
        settings["clientConnection"] = {**settings.get("clientConnection", {}), "kubeconfig": str(user)}
        path = self._new_path("kube-scheduler", "yaml")
        path.write_text(json.dumps(settings))
        return self._start_component("kube-scheduler", [f"--config={path}", *flags], "/readyz")

    def start_controller_manager(self, *flags: str) -> Process:
        """Start kube-controller-manager, and return once it is ready. It expects no node heartbeats
        for a day, unless `flags` override that.
        """
        user = self.user_kubeconfig("system:kube-controller-manager")
        return self._start_component(
            "kube-controller-manager",
            [
                f"--kubeconfig={user}",
                f"--service-account-private-key-file={self._token_key}",
                f"--root-ca-file={self._authority.certificate}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                # With the default of 20 per second a start takes five seconds, because each
                # controller requests its own token.
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
                NO_HEARTBEATS_EXPECTED,
                *flags,
            ],
            "/healthz",
        )

    def start_program(self, name: str, argv: Sequence[str]) -> Process:
        """Start another program, which ends with the control plane; it may not be ready yet."""
        process = Process(name, [*argv], self._new_path(name, "log"), self._guardian)
        self._processes.append(process)
        return process

    # Users

    @property
    def serving(self) -> KeyPair:
        """The API server's certificate for loopback."""
        return self._serving

    @property
    def authority_path(self) -> Path:
        return self._authority.certificate

    def client(self, user: str, *groups: str) -> KeyPair:
        """A client certificate of the cluster's authority."""
        return self._authority.client(user, *groups)

    def api_as(self, client: KeyPair | None, *, timeout_s: float = TIMEOUT_S) -> Api:
        """A client with its own certificate, or an anonymous one."""
        api = Api.verified(HOST, self._port, self._authority.certificate, client, timeout_s=timeout_s)
        self._apis.append(api)
        return api

    def user_kubeconfig(self, user: str, *groups: str) -> Path:
        """A kubeconfig with a certificate of the user."""
        certificate = self._authority.client(user, *groups)
        return self._kubeconfig(user.replace(":", "-"), with_certificate(certificate))

    def service_account_kubeconfig(self, namespace: str, name: str, *, expires_s: int = 4 * 3600) -> Path:
        """A kubeconfig for a ServiceAccount that exists, with a token of its own (at least 600 s)."""
        token = self.service_account_token(namespace, name, expires_s=expires_s)
        return self._kubeconfig(f"{namespace}-{name}", with_token(token))

    def service_account_token(self, namespace: str, name: str, *, expires_s: int = 4 * 3600) -> str:
        """A token of the TokenRequest API."""
        answer = self.api.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": expires_s},
            },
        )
        token: str = answer["status"]["token"]
        return token

    def add_node(self, node: Json) -> None:
        """Create a Node with exactly its own taints. Admission taints every new node as not ready
        until the kubelet and the node controller remove the taint; neither runs here, so it is
        removed here.
        """
        self.api.post("/api/v1/nodes", node)
        taints = node.get("spec", {}).get("taints", [])
        self.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": taints}})

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be created without a controller-manager."""
        self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self.create_default_service_account(name)

    def create_default_service_account(self, namespace: str) -> None:
        """The default ServiceAccount, which the controller-manager would create; admission requires
        it for pods.
        """
        try:
            self.api.post(
                f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}}
            )
        except ApiError as error:
            if error.status != 409:
                raise

    def logs(self) -> str:
        """The end of every program's log, for the report of a failed test."""
        return "\n".join(process.log_tail() for process in self._processes)

    # Starting

    def _start_etcd(self, peer_url: str) -> Process:
        etcd = self._start(
            "etcd",
            [
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={self._etcd_url}",
                f"--advertise-client-urls={self._etcd_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=default={peer_url}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
        with closing(Api.plain(HOST, self._etcd_port)) as health:
            etcd.wait_until(lambda: _answers(health, "/readyz"), within_s=READY_WITHIN_S)
        return etcd

    def _start_apiserver(self) -> Process:
        process = self._start(
            "kube-apiserver",
            [
                f"--etcd-servers={self._etcd_url}",
                f"--bind-address={HOST}",
                f"--secure-port={self._port}",
                f"--advertise-address={HOST}",
                "--endpoint-reconciler-type=none",  # a Service cannot have a loopback address as its endpoint
                "--service-cluster-ip-range=10.0.0.0/24",
                f"--tls-cert-file={self._serving.certificate}",
                f"--tls-private-key-file={self._serving.key}",
                f"--client-ca-file={self._authority.certificate}",
                f"--service-account-issuer={ISSUER}",
                f"--service-account-key-file={self._token_key}",
                f"--service-account-signing-key-file={self._token_key}",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
                # Without it, a clean shutdown waits too long for open watches.
                "--shutdown-watch-termination-grace-period=1s",
                *self._features.gate_flags(),
                *self._features.runtime_flags(),
                *self._audit_flags(),
            ],
        )
        process.wait_until(lambda: _answers(self.api, "/readyz"), within_s=READY_WITHIN_S)
        return process

    @property
    def _audit_path(self) -> Path:
        return self.folder / "audit.log"

    def _audit_flags(self) -> list[str]:
        if not self._audit_rules:
            return []
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [*self._audit_rules, {"level": "None"}],
        }
        path = self.folder / "audit-policy.yaml"
        path.write_text(json.dumps(policy))
        return [f"--audit-policy-file={path}", f"--audit-log-path={self._audit_path}"]

    def _start_component(self, name: str, flags: list[str], ready_path: str) -> Process:
        port = free_ports(1)[0]
        process = self._start(
            name,
            [
                *self._features.gate_flags(),
                *flags,
                f"--bind-address={HOST}",
                f"--secure-port={port}",
                f"--tls-cert-file={self._serving.certificate}",
                f"--tls-private-key-file={self._serving.key}",
            ],
        )
        with closing(Api.verified(HOST, port, self._authority.certificate, None)) as health:
            process.wait_until(lambda: _answers(health, ready_path), within_s=READY_WITHIN_S)
        return process

    def _start(self, name: str, flags: list[str]) -> Process:
        return self.start_program(name, [*self.programs[name].argv, *flags])

    def _new_path(self, name: str, extension: str) -> Path:
        self._started_count += 1
        return self.folder / f"{self._started_count:02}-{name}.{extension}"

    def _kubeconfig(self, name: str, user: dict[str, Any]) -> Path:
        path = self._new_path(name, "kubeconfig")
        return write_kubeconfig(path, url=self.url, authority=self._authority.certificate, user=user)


def _answers(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except (OSError, HTTPException, ApiError):  # it does not listen yet, or reports that it is not ready
        return False
    return True
