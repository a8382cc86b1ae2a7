"""A simulated kubelet for all nodes: starts bound pods, ends finished ones and removes deleted ones.

    bound ──start_s──► Running ──run-seconds──► Succeeded
      │ └─rejected─► Failed
      └───────────────────┴──── deletion ──stop_s──► gone

No container runs. A pod with the annotation `sandbox.policysched/run-seconds: "20"` succeeds that many
seconds after its start, or fails if `sandbox.policysched/exit-code` is not 0. Every other pod runs
until it is deleted. A pod that is bound to a missing node waits for the node. A node without a Ready
condition is reported ready, with the labels that a kubelet sets. A pod that does not fit its node
fails: `check_admission`.
"""

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.kube.decode.pod_resources import decode_pod_resources, decode_resource_list
from policysched.sandbox.apiserver.registry import with_condition
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.local_client import ClusterClient
from policysched.sandbox.nodes import ready_node
from policysched.scheduler.policy_permissions import MIRROR_POD_ANNOTATION

Json = dict[str, Any]

RUN_SECONDS = "sandbox.policysched/run-seconds"
EXIT_CODE = "sandbox.policysched/exit-code"


class Kubelet:
    """Moves pods through their phases. `start_s` and `stop_s` are the times to start and stop a pod."""

    def __init__(self, local: ClusterClient, *, start_s: float = 0.3, stop_s: float = 0.5):
        self._local = local
        self._start_s = start_s
        self._stop_s = stop_s
        self._due: list[tuple[float, int, str, str, str]] = []
        self._sequence = 0
        self._wake = asyncio.Event()
        self._pod_ips_assigned = 0
        self._ends_at_s: dict[str, float] = {}
        self._new_nodes: list[Json] = []
        self._static_pods: dict[str, list[Json]] = {}

    def start_static_pod(self, node: str, manifest: Json, *, mirror_after_s: float) -> bool:
        """Start a static pod if it fits; its mirror pod is created later. Needs a running event loop."""
        node_object = self._local.get("nodes", "", node)
        if (
            node_object is None
            or check_admission(manifest, self._running_requests(node), node_object) is not None
        ):
            return False
        self._static_pods.setdefault(node, []).append(manifest)
        asyncio.get_running_loop().call_later(mirror_after_s, self._create_mirror_pod, node, manifest)
        return True

    def _create_mirror_pod(self, node: str, manifest: Json) -> None:
        self._static_pods[node].remove(manifest)
        if self._local.get("nodes", "", node) is None:
            return
        space = manifest["metadata"]["namespace"]
        mirror_pod = {
            "metadata": {**manifest["metadata"], "annotations": {MIRROR_POD_ANNOTATION: "1"}},
            "spec": {**manifest["spec"], "nodeName": node},
            "status": {},
        }
        pod = self._local.create("pods", space, mirror_pod)
        self._start(pod)

    def _running_requests(self, node: str) -> Iterator[Mapping[str, int]]:
        """Requests on the node: running and terminating pods, and static pods without a mirror pod yet."""
        for pod in self._local.list("pods"):
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") == "Running":
                yield requests_of(pod)
        yield from map(requests_of, self._static_pods.get(node, ()))

    async def run(self) -> None:
        """Run until cancelled."""
        stops = [
            self._local.listen("pods", self._pod_changed),
            self._local.listen("nodes", self._node_changed),
        ]
        try:
            for node in self._local.list("nodes"):
                self._report_ready(node)
            for pod in self._local.list("pods"):
                self._schedule_transition(pod)
            while True:
                await self._wait_until_due()
                self._process_due()
        finally:
            for stop in stops:
                stop()

    async def _wait_until_due(self) -> None:
        self._wake.clear()
        waits_s = max(0.0, self._due[0][0] - self._local.now()) if self._due else None
        try:
            async with asyncio.timeout(waits_s):
                await self._wake.wait()
        except TimeoutError:
            # The next pod is due.
            return

    def _pod_changed(self, change: StoreChange) -> None:
        if change.type == "DELETED":
            self._ends_at_s.pop(change.entry.obj["metadata"]["uid"], None)
        else:
            self._schedule_transition(change.entry.obj)

    def _node_changed(self, change: StoreChange) -> None:
        if change.type == "ADDED":
            name = change.entry.key[1]
            for pod in self._local.list("pods"):
                if pod["spec"].get("nodeName") == name:
                    self._schedule_transition(pod)
            # Deferred: other listeners must receive this change first.
            self._new_nodes.append(change.entry.obj)
            self._wake.set()

    def _report_ready(self, node: Json) -> None:
        conditions = (node.get("status") or {}).get("conditions") or ()
        if not any(condition.get("type") == "Ready" for condition in conditions):
            ready = ready_node(node, timestamp(self._local.now()))
            self._local.update(
                "nodes",
                node,
                lambda obj: {**obj, "metadata": {**obj["metadata"], "labels": ready["metadata"]["labels"]}},
            )
            self._local.update(
                "nodes", node, lambda obj: {**obj, "status": ready["status"]}, subresource="status"
            )

    def _schedule_transition(self, pod: Json) -> None:
        """Schedule the next phase transition of the pod, if any."""
        if not pod["spec"].get("nodeName"):
            return
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        if metadata.get("deletionTimestamp"):
            self._schedule(min(self._stop_s, metadata.get("deletionGracePeriodSeconds") or 0), pod)
        elif phase == "Pending":
            self._schedule(self._start_s, pod)
        elif phase == "Running" and (run_s := _run_s(pod)) is not None:
            # The end was set at the start of the pod; later changes of the pod do not restart the run.
            ends_at_s = self._ends_at_s.setdefault(metadata["uid"], self._local.now() + run_s)
            self._schedule(max(0.0, ends_at_s - self._local.now()), pod)

    def _schedule(self, after_s: float, pod: Json) -> None:
        self._sequence += 1
        metadata = pod["metadata"]
        # An entry is ignored if the pod has changed since: each change schedules a new entry.
        at_s = self._local.now() + after_s
        entry = (at_s, self._sequence, metadata["namespace"], metadata["name"], metadata["resourceVersion"])
        heapq.heappush(self._due, entry)
        self._wake.set()

    def _process_due(self) -> None:
        while self._new_nodes:
            self._report_ready(self._new_nodes.pop())
        now_s = self._local.now()
        while self._due and self._due[0][0] <= now_s:
            _, _, namespace, name, version = heapq.heappop(self._due)
            pod = self._local.get("pods", namespace, name)
            if pod is None or pod["metadata"]["resourceVersion"] != version:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                self._local.delete("pods", pod, grace_period_s=0)
            elif pod["status"].get("phase") == "Pending":
                node = self._local.get("nodes", "", pod["spec"]["nodeName"])
                if node is not None:
                    self._admit(pod, node)
            else:
                self._end(pod)

    def _admit(self, pod: Json, node: Json) -> None:
        failure = check_admission(pod, self._running_requests(node["metadata"]["name"]), node)
        if failure is None:
            self._start(pod)
            return
        now = timestamp(self._local.now())
        fields = {"phase": "Failed", "reason": failure.reason, "message": failure.message, "startTime": now}
        self._local.set_status("pods", pod, **fields)

    def _start(self, pod: Json) -> None:
        now = timestamp(self._local.now())
        self._pod_ips_assigned += 1
        address = f"10.{128 + (self._pod_ips_assigned >> 16) % 64}.{(self._pod_ips_assigned >> 8) & 255}.{self._pod_ips_assigned & 255}"
        status = pod["status"]
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"):
            status = with_condition(status, {"type": kind, "status": "True"}, now)
        self._local.set_status(
            "pods",
            pod,
            phase="Running",
            startTime=now,
            podIP=address,
            podIPs=[{"ip": address}],
            hostIP="10.0.0.1",
            conditions=status["conditions"],
            containerStatuses=[
                _container_status(c, {"running": {"startedAt": now}}) for c in _containers(pod)
            ],
        )

    def _end(self, pod: Json) -> None:
        now = timestamp(self._local.now())
        code = _exit_code(pod)
        reason = "Completed" if code == 0 else "Error"
        status = pod["status"]
        for kind in ("Ready", "ContainersReady"):
            condition = {
                "type": kind,
                "status": "False",
                "reason": "PodCompleted" if code == 0 else "PodFailed",
            }
            status = with_condition(status, condition, now)
        terminated = {
            "exitCode": code,
            "reason": reason,
            "startedAt": status.get("startTime"),
            "finishedAt": now,
        }
        self._local.set_status(
            "pods",
            pod,
            phase="Succeeded" if code == 0 else "Failed",
            conditions=status["conditions"],
            containerStatuses=[_container_status(c, {"terminated": terminated}) for c in _containers(pod)],
        )


def _containers(pod: Json) -> list[Json]:
    return list(pod["spec"].get("containers") or ())


def _container_status(container: Json, state: Json) -> Json:
    runs = "running" in state
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": runs,
        "started": runs,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }


def _exit_code(pod: Json) -> int:
    text = (pod["metadata"].get("annotations") or {}).get(EXIT_CODE, "0")
    return int(text) if text.isdigit() else 1


def _run_s(pod: Json) -> float | None:
    """The run time of the pod's annotation; None if it is missing or not a number."""
    text = (pod["metadata"].get("annotations") or {}).get(RUN_SECONDS)
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


_OS_LABEL = "kubernetes.io/os"
_CORE_RESOURCES = ("pods", "cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class AdmitFailure:
    reason: str
    message: str


def check_admission(pod: Json, running: Iterable[Mapping[str, int]], node: Json) -> AdmitFailure | None:
    """Why the kubelet rejects the pod, given the requests of the running pods. None: it admits the pod.

    The kubelet counts a static pod from its start, before the API server has the mirror pod. The reasons
    and their order are those of `pkg/kubelet/lifecycle/predicate.go`.
    """
    wrong_system = _check_operating_system(pod, node)
    if wrong_system is not None:
        return wrong_system
    requests = {"pods": 1, **requests_of(pod)}
    used = total_requests(running)
    has = decode_resource_list((node.get("status") or {}).get("allocatable"), "status.allocatable")
    for resource in (*_CORE_RESOURCES, *sorted(requests.keys() - set(_CORE_RESOURCES))):
        wanted = requests.get(resource, 0)
        if wanted and wanted > has.get(resource, 0) - used.get(resource, 0):
            count = f"requested: {wanted}, used: {used.get(resource, 0)}, capacity: {has.get(resource, 0)}"
            return AdmitFailure(
                f"OutOf{resource}", f"Pod was rejected: Node didn't have enough resource: {resource}, {count}"
            )
    return None


def _check_operating_system(pod: Json, node: Json) -> AdmitFailure | None:
    """The pod's label and field against the node's label, which its kubelet sets; no scheduler reads the field."""
    system = (node["metadata"].get("labels") or {}).get(_OS_LABEL, "linux")
    if (pod["metadata"].get("labels") or {}).get(_OS_LABEL, system) != system:
        return AdmitFailure(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Pod was rejected: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        )
    if (pod["spec"].get("os") or {}).get("name", system) != system:
        return AdmitFailure(
            "PodOSNotSupported",
            "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
        )
    return None


def requests_of(pod: Json) -> dict[str, int]:
    return decode_pod_resources(pod["spec"], {}).requests


def total_requests(running: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of requests; `pods` is their number."""
    totals = {"pods": 0}
    for requests in running:
        totals["pods"] += 1
        for resource, amount in requests.items():
            totals[resource] = totals.get(resource, 0) + amount
    return totals
