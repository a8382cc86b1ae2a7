"""The demo's world: a sandbox, the scheduler as a process beside it, and a workload that shows what a policy does.

The scheduler is the ordinary `policysched run`, started with the sandbox's kubeconfig. The traffic is pretended: what
the pods on a node are allowed to receive (`kubernetes.io/ingress-bandwidth`) counts as what the node measures, and is
written to the samples file that the scheduler reads. What is shown is not pretended.
"""

import asyncio
import difflib
import sys
from collections.abc import Iterator
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
"""The demo begins without this rule and adds it with its edit."""

_BANDWIDTH = "kubernetes.io/ingress-bandwidth"
_WAIT_TIMEOUT_S = 60.0


class DemoFailed(Exception):
    """Something that the demo waited for did not come. The text says what, and where the scheduler's log is."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as the live table shows it: what it receives (bit/s), and its pods by what they belong to."""

    name: str
    receive_bits_s: float
    pods: dict[str, int]


class Demo:
    """The world from `__aenter__` to `__aexit__`; its steps are called by `policysched demo`, in order."""

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
        """The ordinary command, as a process of its own."""
        with self.log_path.open("wb") as log:
            self._scheduler = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "policysched", "run"),
                *("--kubeconfig", str(self.sandbox.kubeconfig_path)),
                *("--policies", f"{NAMESPACE}/{CONFIG_MAP}"),
                *("--metrics", str(self._samples_path)),
                "--no-leader-elect",
                stdout=log,
                stderr=log,
            )

    async def apply_workload(self, *names: str) -> None:
        """Create the objects of `policies/demo/workload.yaml` with these names, and their namespaces."""
        wanted = [
            one
            for one in _workload_objects()
            if one["kind"] != "Namespace" and one["metadata"]["name"] in names
        ]
        assert len(wanted) == len(names), f"the demo's workload has not all of {names}"
        for manifest in wanted:
            space = manifest["metadata"]["namespace"]
            if self._local.get("namespaces", "", space) is None:
                self._local.create("namespaces", "", _namespace(space))
            plural = {"Deployment": "deployments", "Job": "jobs"}[manifest["kind"]]
            self._local.create(plural, space, manifest)

    async def scale(self, name: str, replicas: int) -> None:
        deployment = next(one for one in self._local.list("deployments") if one["metadata"]["name"] == name)
        self._local.update(
            "deployments", deployment, lambda one: {**one, "spec": {**one["spec"], "replicas": replicas}}
        )

    async def edit_policy(self) -> list[str]:
        """Put the rule back, as an editor would; answers the lines of the change."""
        config_map = self._local.get("configmaps", NAMESPACE, CONFIG_MAP)
        assert config_map is not None, "the demo's ConfigMap is gone"
        before, after = config_map["data"][EDITED_POLICY], data_file("policies", EDITED_POLICY).read_text()
        self._local.update(
            "configmaps", config_map, lambda one: {**one, "data": {**one["data"], EDITED_POLICY: after}}
        )
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]

    async def wait_for_pods(self, app: str, *, running: int) -> None:
        """Until so many pods of this Deployment or Job run."""
        await self._wait_until(
            lambda: sum(_phase(pod) == "Running" for pod in self.pods_of(app)) >= running,
            f"{running} pods of {app} to run",
        )

    async def wait_for_message(self, app: str) -> str:
        """Until the scheduler has said why the pods of this wait; answers it."""
        await self._wait_until(lambda: self._pending_message(app) is not None, f"word about {app}")
        message = self._pending_message(app)
        assert message is not None, "a condition went away"
        return message

    async def wait_for_policy(self, key: str) -> None:
        """Until the edited text is kept as the last known good one, which is when it decides."""
        expected = data_file("policies", key).read_text()
        rule = next(
            line.split("weight")[0].strip() for line in expected.splitlines() if line.startswith(EDITED_RULE)
        )

        def active() -> bool:
            kept = self._local.get("configmaps", NAMESPACE, f"{CONFIG_MAP}-last-good") or {}
            return any(rule in text for text in (kept.get("data") or {}).values())

        await self._wait_until(active, f"the edited {key} to decide")

    async def wait_for_samples(self) -> None:
        """Until the scheduler can have read the newest samples: its file source looks once a second."""
        await asyncio.sleep(1.3)

    # ── looking ────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """Nodes, pods and namespaces, with their kinds: what `explain` reads."""
        kinds = (("nodes", "Node"), ("pods", "Pod"), ("namespaces", "Namespace"))
        return [{**one, "kind": kind} for plural, kind in kinds for one in self._local.list(plural)]

    @property
    def samples_path(self) -> Path:
        return self._samples_path

    # ── behind the scenes ──────────────────────────────────────────────────────────────────────────────────────────

    async def _wait_until(self, holds: Any, what: str) -> None:
        ends_s = asyncio.get_running_loop().time() + _WAIT_TIMEOUT_S
        while not holds():
            ended = self._scheduler is not None and self._scheduler.returncode is not None
            if ended or asyncio.get_running_loop().time() > ends_s:
                why = "the scheduler ended" if ended else f"{_WAIT_TIMEOUT_S:.0f} s passed"
                raise DemoFailed(f"waited for {what}, but {why}; its last words:\n{self._log_tail()}")
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
            fresh = self._samples_path.with_suffix(".new")
            fresh.write_bytes(text)
            fresh.replace(self._samples_path)  # whole or not at all, for whoever reads it meanwhile

    def _receive_bits_s(self) -> dict[str, float]:
        """Bit/s a node: what its running pods may receive."""
        found: dict[str, float] = {}
        for pod in self._local.list("pods"):
            allowed = (pod["metadata"].get("annotations") or {}).get(_BANDWIDTH)
            node = pod["spec"].get("nodeName")
            if allowed and node and _phase(pod) == "Running":
                found[node] = found.get(node, 0.0) + parse_whole_units(allowed)
        return found

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
    """The policy with `EDITED_RULE` as a comment: what the demo's edit changes back."""
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
