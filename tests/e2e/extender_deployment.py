"""A real kube-scheduler that calls policysched as its extender.

The objects of `deploy/extender/` are applied without the Deployment; its command line runs as a
process with a token of its ServiceAccount, and a KubeSchedulerConfiguration names its URL.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod
from tests.controlplane.process import Process, free_ports
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import DEPLOY, NEEDS_A_KUBELET, PODS, example_policies, manifests, put_policies
from tests.e2e.permissions import granted, wait_until_allowed
from tests.e2e.program import Running, kubectl

NAMESPACE = "policysched"
EXTENDER = DEPLOY / "extender"


class Extending:
    """`port` is the extender's, whether or not it runs."""

    def __init__(self, control_plane: ControlPlane, folder: Path, *, binds: bool = False) -> None:
        self.control_plane = control_plane
        self.api = control_plane.api
        self.folder = folder
        self.port = free_ports(1)[0]
        self._started_count = 0
        applied = [manifest for manifest in manifests(EXTENDER) if manifest["kind"] not in NEEDS_A_KUBELET]
        applied.append(example_policies(EXTENDER))
        if binds:
            applied += list(yaml.safe_load_all((EXTENDER / "binding.yaml").read_text()))
        self.applied = applied
        kubectl(control_plane.kubeconfig_path, "apply", "-f", "-", stdin=yaml.safe_dump_all(applied))
        self.kubeconfig = control_plane.service_account_kubeconfig(NAMESPACE, "policysched-extender")
        wait_until_allowed(self.api, f"{NAMESPACE}:policysched-extender", granted(applied))

    def put_policies(self, **texts: str) -> None:
        """Replace all policies; `main="..."` is the key main.policy."""
        put_policies(self.api, NAMESPACE, "extender-policies", texts)

    @contextmanager
    def running(
        self, *flags: str, settings: Mapping[str, Any] = {}, ready: str = "", secure: bool = False
    ) -> Iterator[Running]:
        """Run `python -m policysched extender` for the length of the block; it must exit with 0
        after SIGTERM. `ready`: a policy to wait for. `secure`: as shipped, else over plain HTTP.
        """
        self._started_count += 1
        shipped = next(
            manifest
            for manifest in manifests(EXTENDER)
            if manifest["metadata"]["name"].startswith("extender-settings")
        )
        path = self.folder / f"extender{self._started_count}.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(shipped["data"]["settings.yaml"]), **settings}))
        log = self.folder / f"extender{self._started_count}.log"
        arguments = [
            *("extender", "--config", str(path)),
            *("--kubeconfig", str(self.kubeconfig), "--http", f"127.0.0.1:{self.port}"),
            *("--response-timeout", "50", *(() if secure else ("--insecure-http",)), *flags),
        ]
        process = Running(arguments, log, self.port, self.control_plane.admin if secure else None)
        try:
            if ready:
                process.wait_for_state(ready, "active")
            yield process
            if process.process.poll() is None:
                assert process.terminate() == 0, process.log()
        except BaseException:
            print(process.log()[-20_000:])  # pytest prints it if the test fails
            raise
        finally:
            process.kill()

    def start_secure_kube_scheduler(self, *policies: str, **fields: Any) -> Process:
        """As the example says: over HTTPS, with kube-scheduler's own client certificate."""
        pair = self.control_plane.client("system:kube-scheduler")
        tls = {"insecure": True, "certFile": str(pair.certificate), "keyFile": str(pair.key)}
        url = f"https://127.0.0.1:{self.port}"
        return self.start_kube_scheduler(*policies, url=url, enableHTTPS=True, tlsConfig=tls, **fields)

    def start_kube_scheduler(self, *policies: str, url: str = "", **fields: Any) -> Process:
        """Start kube-scheduler with an extender for each of the policies. `fields` override those
        of the shipped example. Unlike there, the extender is not ignorable by default, so that a
        slow machine does not place a pod without it.
        """
        plain = {"enableHTTPS": False, "tlsConfig": None}
        fields = {"ignorable": False, "httpTimeout": "60s", **plain, **fields}
        (example,) = yaml.safe_load((EXTENDER / "kube-scheduler.yaml").read_text())["extenders"]
        url = url or f"http://127.0.0.1:{self.port}"
        extenders = [
            {
                name: value
                for name, value in {**example, "urlPrefix": f"{url}/{policy}", **fields}.items()
                if value is not None
            }
            for policy in policies
        ]
        return self.control_plane.start_scheduler(json.dumps({"extenders": extenders}))

    # Pods

    def create(self, name: str, *, labels: Mapping[str, str] = {}, **spec: Any) -> None:
        manifest = pod(name, **spec)
        manifest["metadata"]["labels"] = dict(labels)
        self.api.post(PODS, manifest)

    def node_of(self, name: str) -> str:
        node: str = self.api.get(f"{PODS}/{name}")["spec"].get("nodeName", "")
        return node

    def bound(self, name: str) -> str:
        return wait_for(lambda: self.node_of(name), f"pod {name} to be bound")

    def note(self, name: str, reason: str, *, containing: str = "") -> str:
        """The note of the first event with the reason about the object, once it exists."""

        def look() -> Sequence[Json]:
            recorded = self.api.items("/apis/events.k8s.io/v1/events")
            about = [
                event
                for event in recorded
                if event["regarding"]["name"] == name and event["reason"] == reason
            ]
            return [event for event in about if containing in event["note"]]

        text: str = wait_for(look, f"an event {reason} about {name}")[0]["note"]
        return text
