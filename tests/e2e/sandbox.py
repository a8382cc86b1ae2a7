"""The whole program as processes: `policysched sandbox`, `policysched run` and stock kubectl."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.controlplane.process import free_ports
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.preloaded import PreloadedProcess
from tests.e2e.program import Running, kubectl

POLICIES = "kube-system/policies"

PLAIN = "policy test version 1\ninclude kube_default\npreemption never\n"
BROKEN = "policy test version 1\ninclude kube_default\nfilter pool require node.naem == 1\n"
NOT_ON_NODE_1 = PLAIN + 'filter away reject node.name == "node-1" says "node-1 is kept free"\n'


class Cluster:
    """A sandbox process, and methods to change and read its cluster."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.folder = folder
        self.port = free_ports(1)[0]
        self._nodes = nodes
        self._process: PreloadedProcess | None = None
        self._logs = 0

    def start(self) -> None:
        arguments = [
            "--nodes",
            str(self._nodes),
            "--port",
            str(self.port),
            "--kubeconfig",
            str(self.kubeconfig),
        ]
        log = self.folder / f"sandbox{self._logs}.log"
        self._logs += 1
        self._process = PreloadedProcess(["sandbox", *arguments], log)
        wait_for(lambda: "listens on" in log.read_text(), "the sandbox to listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return kubectl(self.kubeconfig, *arguments, stdin=stdin)

    def get(self, path: str) -> Any:
        """A request to the server without kubectl: starting kubectl for each poll would take most
        of a test's time.
        """
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def put_policies(self, **texts: str) -> None:
        """Apply the ConfigMap; `main="..."` is the key main.policy."""
        data = {f"{name}.policy": text for name, text in texts.items()}
        meta = {"namespace": "kube-system", "name": "policies"}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def run_pod(
        self,
        name: str,
        *,
        scheduler: str = "test",
        cpu: str = "100m",
        priority_class: str = "",
        labels: Mapping[str, str] = {},
    ) -> None:
        container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
        spec: dict[str, Any] = {
            "schedulerName": scheduler,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        }
        if priority_class:
            spec["priorityClassName"] = priority_class
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))

    def node_of(self, pod: str) -> str:
        """The pod's node, empty while it has none."""
        node: str = self.get(f"/api/v1/namespaces/default/pods/{pod}")["spec"].get("nodeName", "")
        return node

    def bound(self, pod: str) -> str:
        """Wait until the pod has a node."""
        return wait_for(lambda: self.node_of(pod), f"pod {pod} to be bound")

    def events(self, name: str, reason: str) -> list[str]:
        """The messages of the events with the reason about an object of that name."""
        recorded = self.get("/api/v1/events")["items"]
        return [
            event["message"]
            for event in recorded
            if event["involvedObject"]["name"] == name and event["reason"] == reason
        ]

    @contextmanager
    def scheduler(self, *flags: str, elect: bool = False) -> Iterator[Running]:
        """Run `policysched run` for the length of the block; it must exit with 0 after SIGTERM."""
        self._logs += 1
        port = free_ports(1)[0]
        arguments = [
            *("run", "--kubeconfig", str(self.kubeconfig), "--policies", POLICIES),
            *("--http", f"127.0.0.1:{port}", "--insecure-http", "--log-format", "json"),
            *("--leader-elect" if elect else "--no-leader-elect", *flags),
        ]
        process = Running(arguments, self.folder / f"run{self._logs}.log", port)
        try:
            yield process
            if process.process.poll() is None:
                assert process.terminate() == 0, process.log()
        finally:
            process.kill()
