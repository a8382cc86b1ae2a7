"""The steps of `policysched demo`: a sandbox, a scheduler process and a workload.

The scheduler is `policysched run` with the sandbox's kubeconfig. The traffic is simulated: the sum of
the bandwidth annotations of a node's pods (`kubernetes.io/ingress-bandwidth`) is its receive rate,
written to the samples file that the scheduler reads. Decisions and messages are real.
"""

import asyncio
import difflib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import orjson
import yaml

from policysched.data_files import data_file
from policysched.model.quantity import parse_whole_units
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.nodes import NodeShape
from policysched.sandbox.sandbox import Sandbox

Json = dict[str, Any]

NAMESPACE, CONFIG_MAP = "policysched", "policies"
POLICIES = ("network-aware.policy", "gang-batch.policy")
EDITED_POLICY = "network-aware.policy"
EDITED_RULE = "score bandwidth"
"""The rule that the demo's edit adds."""

_BANDWIDTH = "kubernetes.io/ingress-bandwidth"
_WAIT_TIMEOUT_S = 180.0


class DemoFailed(Exception):
    """A step of the demo timed out or the scheduler exited. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A row of the live table: the node's receive rate in bit/s, and its number of pods by workload."""

    name: str
    receive_bits_s: float
    pods: dict[str, int]


class Demo:
    """The running demo. `policysched demo` calls the steps in order."""

    def __init__(self, *, nodes: int = 6, directory: Path | None = None) -> None:
        self._stack = AsyncExitStack()
        self._directory = directory or Path(
            self._stack.enter_context(TemporaryDirectory(prefix="policysched-demo-"))
        )
        self.log_path = self._directory / "scheduler.log"
        self.sandbox = Sandbox(
            nodes=nodes,
            shape=NodeShape(cpu="4", memory="16Gi"),
            kubeconfig_path=self._directory / "kubeconfig",
        )
        self._local = LocalClient(self.sandbox.server)
        self._samples_path = self._directory / "samples.json"
        self._scheduler: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.sandbox)
        self._stack.push_async_callback(self._stop_scheduler)
        self._local.create("namespaces", "", _namespace(NAMESPACE))
        self._write_samples()
        exporter = asyncio.create_task(self._export_samples())
        self._stack.callback(exporter.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def apply_policies(self) -> None:
        """Put the shipped policies into a ConfigMap, the edited one without its `EDITED_RULE`."""
        texts = {key: data_file("policies", key).read_text() for key in POLICIES}
        texts[EDITED_POLICY] = without_rule(texts[EDITED_POLICY])
        for name, data in ((CONFIG_MAP, texts), (f"{CONFIG_MAP}-last-good", {})):
            manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
            self._local.create("configmaps", NAMESPACE, manifest)

    async def start_scheduler(self) -> None:
        """Start `policysched run` as a process."""
        with self.log_path.open("wb") as log:
            self._scheduler = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "policysched", "run"),
                *("--kubeconfig", str(self.sandbox.kubeconfig_path)),
                *("--policies", f"{NAMESPACE}/{CONFIG_MAP}"),
                *("--metrics", str(self._samples_path)),
                *("--http", "127.0.0.1:0", "--insecure-http"),
                "--no-leader-elect",
                stdout=log,
                stderr=log,
            )

    def page_url(self) -> str:
        """Where the scheduler serves its page; empty before it listens."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        addresses = [
            matches[0] for line in lines if (matches := re.findall(r"http://127\.0\.0\.1:\d+", line))
        ]
        return f"{addresses[0]}/" if addresses else ""

    async def apply_workload(self, *names: str) -> None:
        """Create the objects of `policies/demo/workload.yaml` with these names, and their namespaces."""
        manifests = [
            manifest
            for manifest in _workload_objects()
            if manifest["kind"] != "Namespace" and manifest["metadata"]["name"] in names
        ]
        assert len(manifests) == len(names), f"the demo's workload lacks some of {names}"
        for manifest in manifests:
            space = manifest["metadata"]["namespace"]
            if self._local.get("namespaces", "", space) is None:
                self._local.create("namespaces", "", _namespace(space))
            plural = {"Deployment": "deployments", "Job": "jobs"}[manifest["kind"]]
            self._local.create(plural, space, manifest)

    async def scale(self, name: str, replicas: int) -> None:
        deployment = next(obj for obj in self._local.list("deployments") if obj["metadata"]["name"] == name)
        self._local.update(
            "deployments",
            deployment,
            lambda current: {**current, "spec": {**current["spec"], "replicas": replicas}},
        )

    async def edit_policy(self) -> list[str]:
        """Add the rule to the ConfigMap. Returns the changed lines."""
        config_map = self._local.get("configmaps", NAMESPACE, CONFIG_MAP)
        assert config_map is not None, "the demo's ConfigMap is gone"
        before, after = config_map["data"][EDITED_POLICY], data_file("policies", EDITED_POLICY).read_text()
        self._local.update(
            "configmaps",
            config_map,
            lambda current: {**current, "data": {**current["data"], EDITED_POLICY: after}},
        )
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]

    async def wait_for_pods(self, app: str, *, running: int) -> None:
        """Wait until this many pods of the Deployment or Job run."""
        await self._wait_until(
            lambda: sum(_phase(pod) == "Running" for pod in self.pods_of(app)) >= running,
            f"{running} pods of {app} to run",
        )

    async def wait_for_message(self, app: str) -> str:
        """Wait for the message of the PodScheduled condition of a pending pod, and return it."""
        await self._wait_until(
            lambda: self._pending_message(app) is not None, f"a message about pending pods of {app}"
        )
        message = self._pending_message(app)
        assert message is not None, "the condition was removed"
        return message

    async def wait_for_policy(self, key: str) -> None:
        """Wait until the edited text is saved as the last good one, which happens when it is active."""
        expected = data_file("policies", key).read_text()
        rule = next(
            line.split("weight")[0].strip() for line in expected.splitlines() if line.startswith(EDITED_RULE)
        )

        def active() -> bool:
            last_good = self._local.get("configmaps", NAMESPACE, f"{CONFIG_MAP}-last-good") or {}
            return any(rule in text for text in (last_good.get("data") or {}).values())

        await self._wait_until(active, f"the edited {key} to become active")

    async def wait_for_samples(self) -> None:
        """Wait until the scheduler has read the newest samples: it polls the file once a second."""
        await asyncio.sleep(1.3)

    # ── state ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def pods_of(self, app: str) -> list[Json]:
        """The pods of a Deployment or Job, by the labels that its template gives them."""
        return [pod for pod in self._local.list("pods") if app_of(pod) == app]

    def node_rows(self) -> list[NodeRow]:
        rows = {
            node["metadata"]["name"]: NodeRow(node["metadata"]["name"], 0.0, {})
            for node in self._local.list("nodes")
        }
        receiving = self._receive_bits_s()
        for pod in self._local.list("pods"):
            node = pod["spec"].get("nodeName")
            if node in rows:
                rows[node].pods[app_of(pod)] = rows[node].pods.get(app_of(pod), 0) + 1
        return [NodeRow(row.name, receiving.get(row.name, 0.0), row.pods) for row in rows.values()]

    def objects(self) -> list[Json]:
        """Nodes, pods and namespaces with their kinds, the input of `explain`."""
        kinds = (("nodes", "Node"), ("pods", "Pod"), ("namespaces", "Namespace"))
        return [{**obj, "kind": kind} for plural, kind in kinds for obj in self._local.list(plural)]

    @property
    def samples_path(self) -> Path:
        return self._samples_path

    # ── internals ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_until(self, condition: Callable[[], bool], goal: str) -> None:
        deadline_s = asyncio.get_running_loop().time() + _WAIT_TIMEOUT_S
        while not condition():
            exited = self._scheduler is not None and self._scheduler.returncode is not None
            if exited or asyncio.get_running_loop().time() > deadline_s:
                reason = "the scheduler exited" if exited else f"timed out after {_WAIT_TIMEOUT_S:.0f} s"
                raise DemoFailed(
                    f"{reason} while waiting for {goal}; the end of the scheduler's log:\n{self._log_tail()}"
                )
            await asyncio.sleep(0.05)

    def _log_tail(self) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-15:]) or "(none)"

    def _pending_message(self, app: str) -> str | None:
        for pod in self.pods_of(app):
            for condition in pod["status"].get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return str(condition.get("message", ""))
        return None

    async def _export_samples(self) -> None:
        while True:
            self._write_samples()
            await asyncio.sleep(0.25)

    def _write_samples(self) -> None:
        nodes = [node["metadata"]["name"] for node in self._local.list("nodes")]
        receiving = self._receive_bits_s()
        samples = {
            "net_rx": {name: f"{receiving.get(name, 0.0) / 1e6 + 5:.0f}Mbps" for name in nodes},
            "cpu_util": dict.fromkeys(nodes, "20%"),
        }
        text = orjson.dumps(samples)
        if not self._samples_path.exists() or self._samples_path.read_bytes() != text:
            new_path = self._samples_path.with_suffix(".new")
            new_path.write_bytes(text)
            new_path.replace(self._samples_path)  # atomic: the scheduler never reads half a file

    def _receive_bits_s(self) -> dict[str, float]:
        """The receive rate of each node in bit/s: the sum of its running pods' bandwidth annotations."""
        rates: dict[str, float] = {}
        for pod in self._local.list("pods"):
            allowed = (pod["metadata"].get("annotations") or {}).get(_BANDWIDTH)
            node = pod["spec"].get("nodeName")
            if allowed and node and _phase(pod) == "Running":
                rates[node] = rates.get(node, 0.0) + parse_whole_units(allowed)
        return rates

    async def _stop_scheduler(self) -> None:
        process = self._scheduler
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def without_rule(text: str) -> str:
    """Comment out `EDITED_RULE` in the text of a policy."""
    lines = text.splitlines(keepends=True)
    assert any(line.startswith(EDITED_RULE) for line in lines), f"{EDITED_POLICY} has no `{EDITED_RULE}`"
    return "".join(f"# {line}" if line.startswith(EDITED_RULE) else line for line in lines)


def app_of(pod: Json) -> str:
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get("app") or labels.get("podGroup") or pod["metadata"]["name"])


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _workload_objects() -> Iterator[Json]:
    yield from yaml.safe_load_all(data_file("policies", "demo", "workload.yaml").read_text())
