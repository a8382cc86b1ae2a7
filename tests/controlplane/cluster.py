"""A Kubernetes control plane on loopback: the real programs, with nothing simulated and no kubelet.

                 etcd ◄── kube-apiserver ◄── kube-scheduler, kube-controller-manager (when a test starts them),
               no fsync    TLS, RBAC,        kubectl, policysched, `control_plane.api`
                           default admission

Everything listens on 127.0.0.1 and keeps its files in one temporary folder. Leaving the `with` block ends the programs and
removes the folder; where the tests die before that, the guardian does it.

Nodes are objects without a kubelet: a pod that is bound stays Pending for ever, a node's heartbeat never comes, and
a bound pod goes away only when deleted with a grace period of 0.
"""

import json
import tempfile
from contextlib import AbstractContextManager, closing
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
from tests.controlplane.sweep import NAMESPACES, object_paths, sweep
from tests.controlplane.waiting import wait_for

HOST = "127.0.0.1"
READY_WITHIN_S = 300.0
"""A start takes 5 s on two idle cores; others may be busy on them."""

ISSUER = "https://kubernetes.default.svc.cluster.local"
NO_HEARTBEATS_EXPECTED = "--node-monitor-grace-period=24h"


class ControlPlane(AbstractContextManager["ControlPlane"]):
    """etcd and kube-apiserver from `__init__` on; the others when asked for.

    `api` speaks as a cluster admin; `kubeconfig_path` and the certificate `admin` are that admin's. Clients verify the
    server against `authority_path`. What the user named `audited` asks for is recorded (`audit_records`).
    """

    def __init__(self, programs: Programs, *, audited: str | None = None) -> None:
        self.programs = programs
        self._audited = audited
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
            self._from_the_start = object_paths(self.api)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything and remove the folder. What is in etcd goes with it, so nobody is asked politely."""
        for process in reversed(self._processes):
            process.kill()
        self._close_connections()
        self._guardian.dismiss()

    @property
    def serving_pids(self) -> tuple[int, ...]:
        """The processes behind every answer."""
        return self._apiserver.pid, self._etcd.pid

    def reset(self) -> None:
        """As it was after the start, but for resource versions: the API server runs, nothing else does, and no
        object is left of what tests have made."""
        for process in self._processes:
            if process not in (self._etcd, self._apiserver):
                process.kill()
        self._processes = [self._etcd, self._apiserver]
        self._close_connections()
        if self._apiserver.running:
            self._apiserver.resume()
        else:
            self.start_apiserver()
        self.sweep()

    def sweep(self) -> None:
        """No object is left of what tests have made; the programs that run go on."""
        sweep(self.api, keep=self._from_the_start)
        self.create_default_service_account("default")

    def _close_connections(self) -> None:
        """Each client opens another where it is used again."""
        for api in self._apis:
            api.close()

    # The API server

    def stop_apiserver(self) -> None:
        """A clean shutdown; watches end, the port is closed."""
        self._apiserver.stop()

    def kill_apiserver(self) -> None:
        self._apiserver.kill()

    def start_apiserver(self) -> None:
        """After a stop: the same port, the same objects, the same credentials. Returns when it is ready."""
        assert not self._apiserver.running, "the API server is running already"
        self._apiserver = self._start_apiserver()

    def restart_apiserver(self) -> None:
        self.kill_apiserver()
        self.start_apiserver()

    def pause_apiserver(self) -> None:
        """It hangs: connections are accepted by the kernel and nobody answers."""
        self._apiserver.pause()

    def resume_apiserver(self) -> None:
        self._apiserver.resume()

    def audit_records(self) -> list[Json]:
        """Every request of the audited user that was answered, or whose stream began, so far."""
        assert self._audited is not None, "nobody is audited here"
        whole, _, _ = self._audit_path.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def forget_history(self) -> None:
        """From now on every version before the present one is too old for a watch (410) and for a list's next page.
        The API server restarts for it: its watch cache remembers longer than etcd."""
        version = self.api.get("/api/v1/namespaces")["metadata"]["resourceVersion"]
        with closing(Api.plain(HOST, self._etcd_port)) as etcd:
            etcd.post("/v3/kv/compaction", {"revision": version, "physical": True})
        self.restart_apiserver()

    # The other programs

    def start_scheduler(self, config: str = "", *flags: str, kubeconfig_path: Path | None = None) -> Process:
        """A stock kube-scheduler, ready and informed. `config` is the YAML of a KubeSchedulerConfiguration, of which
        `clientConnection.kubeconfig` is filled in; without a word on leader election it does not elect. Several may run."""
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **(yaml.safe_load(config) or {}),
        }
        user = kubeconfig_path or self._component_kubeconfig("system:kube-scheduler")
        settings["clientConnection"] = {**settings.get("clientConnection", {}), "kubeconfig": str(user)}
        path = self._new_path("kube-scheduler", "yaml")
        path.write_text(json.dumps(settings))
        return self._start_component("kube-scheduler", [f"--config={path}", *flags], "/readyz")

    def start_controller_manager(self, *flags: str) -> Process:
        """kube-controller-manager, ready. It expects no heartbeats of nodes for a day unless `flags` say otherwise."""
        user = self._component_kubeconfig("system:kube-controller-manager")
        return self._start_component(
            "kube-controller-manager",
            [
                f"--kubeconfig={user}",
                f"--service-account-private-key-file={self._token_key}",
                f"--root-ca-file={self._authority.certificate}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                # The stock 20 a second make a start last five seconds: each controller fetches a token of its own.
                "--kube-api-qps=1000",
                "--kube-api-burst=1000",
                NO_HEARTBEATS_EXPECTED,
                *flags,
            ],
            "/healthz",
        )

    # Users

    @property
    def authority_path(self) -> Path:
        return self._authority.certificate

    def api_as(self, client: KeyPair | None, *, timeout_s: float = TIMEOUT_S) -> Api:
        """A client with a certificate of its own, or an anonymous one."""
        api = Api.verified(HOST, self._port, self._authority.certificate, client, timeout_s=timeout_s)
        self._apis.append(api)
        return api

    def service_account_kubeconfig(self, namespace: str, name: str, *, expires_s: int = 3600) -> Path:
        """A kubeconfig for a ServiceAccount that exists, with a token from the TokenRequest API (at least 600 s)."""
        answer = self.api.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": expires_s},
            },
        )
        return self._kubeconfig(f"{namespace}-{name}", with_token(answer["status"]["token"]))

    def add_node(self, node: Json) -> None:
        """Make a Node with exactly the taints that it names. Admission taints every new node as not ready, which is for
        the node's kubelet and the node controller to take back; there is neither, so it is done here."""
        self.api.post("/api/v1/nodes", node)
        taints = node.get("spec", {}).get("taints", [])
        self.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": taints}})

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be created even while no controller-manager runs."""
        self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self.create_default_service_account(name)

    def create_default_service_account(self, namespace: str) -> None:
        """What the controller-manager would do: admission lets no pod in without it."""
        try:
            self.api.post(
                f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}}
            )
        except ApiError as error:
            if error.status != 409:
                raise

    def logs(self) -> str:
        """The end of every program's log, for a failed test's report."""
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
                # Without it a clean shutdown waits for open watches longer than any test wants to.
                "--shutdown-watch-termination-grace-period=1s",
                *self._audit_flags(),
            ],
        )
        process.wait_until(lambda: _answers(self.api, "/readyz"), within_s=READY_WITHIN_S)
        return process

    @property
    def _audit_path(self) -> Path:
        return self.folder / "audit.log"

    def _audit_flags(self) -> list[str]:
        if self._audited is None:
            return []
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": [self._audited]}, {"level": "None"}],
        }
        path = self.folder / "audit-policy.yaml"
        path.write_text(json.dumps(policy))
        return [f"--audit-policy-file={path}", f"--audit-log-path={self._audit_path}"]

    def _start_component(self, name: str, flags: list[str], ready_path: str) -> Process:
        port = free_ports(1)[0]
        process = self._start(
            name,
            [
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
        log_path = self._new_path(name, "log")
        process = Process(name, [*self.programs[name].argv, *flags], log_path, self._guardian)
        self._processes.append(process)
        return process

    def _new_path(self, name: str, extension: str) -> Path:
        self._started_count += 1
        return self.folder / f"{self._started_count:02}-{name}.{extension}"

    def _component_kubeconfig(self, user: str) -> Path:
        return self._kubeconfig(user.replace(":", "-"), with_certificate(self._authority.client(user)))

    def _kubeconfig(self, name: str, user: dict[str, Any]) -> Path:
        path = self._new_path(name, "kubeconfig")
        return write_kubeconfig(path, url=self.url, authority=self._authority.certificate, user=user)


def _answers(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except (OSError, HTTPException, ApiError):  # nobody listens yet, or it says that it is not ready
        return False
    return True
