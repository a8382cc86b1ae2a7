"""Record what the real kube-scheduler decides on a drawn cluster, in the format of the recorded
cases.

One scheduler serves many clusters: objects are replaced while it runs, and a pod is decided once
its log (`-v=10`) shows every node and every pod. Services, controllers and volumes leave no trace
in the log; they are created first and have practically always arrived by then. A cluster with a
difference is recorded again with a freshly started scheduler.

If victims terminate slowly (`lingers`), their preemptor stays nominated, and the other pods are
decided with that nomination. A pod that owns claims (`owned`) is created with a scheduling gate,
which is removed once the claims exist.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from tests.conformance.live.binder import carry_out
from tests.conformance.live.draw import RUNTIME
from tests.conformance.live.draw_devices import TEMPLATE_ENTRY
from tests.conformance.live.draw_rare import GRACE_S
from tests.controlplane.api import Api
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.process import Process
from tests.controlplane.waiting import wait_for

Json = dict[str, Any]

SETTINGS = "percentageOfNodesToScore: 100"
SCORES_WITH_CLAIMS: Mapping[str, Callable[[Json], bool]] = {
    "DynamicResources": lambda spec: bool(spec.get("resourceClaims")),
    "VolumeBinding": lambda spec: any(
        {"persistentVolumeClaim", "ephemeral"} & volume.keys() for volume in spec.get("volumes", ())
    ),
}
"""Scores that are always 0 for pods without claims, and are not recorded for those."""
PRIORITIES = {"low": 10, "mid": 100, "high": 1000, "high-never": 1000}
PATHS = {
    "Service": "/api/v1/namespaces/{}/services",
    "ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "VolumeAttachment": "/apis/storage.k8s.io/v1/volumeattachments",
    "CSIStorageCapacity": "/apis/storage.k8s.io/v1/namespaces/{}/csistoragecapacities",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
}
_WITH_STATUS = frozenset(
    {"PodDisruptionBudget", "PersistentVolumeClaim", "PersistentVolume", "ResourceClaim"}
)
_PLUGIN_SCORE = re.compile(
    r'"Plugin scored node for pod" pod="(\S+)" plugin="(\S+)" node="(\S+)" score=(-?\d+)'
)
_FINAL_SCORE = re.compile(r'"Calculated node\'s final score for pod" pod="(\S+)" node="(\S+)" score=(-?\d+)')
_FIELD = re.compile(r'(\S+?)="([^"]*)"')
_TARGET = "the target node for the preemption is determined"
_BEGUN = "Start the preemption asynchronously"
_TOLD = "Preemptor Pod preempted victim Pod"
_ENDING = "Victim Pod is already being deleted, skipping the API call for it"
_DONE = "Async Preemption finished completely"
_GATE = "tests.example.com/claims"
_SEEN = re.compile(r'"(Add|Update|Delete) event for (node|scheduled pod)" (?:node|pod)="(\S+)"')


class Log:
    """The scheduler's log from an offset on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def text(self) -> str:
        with self._path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")


class Recorder:
    """Records any number of cases on one control plane; `fresh` starts a scheduler for this cluster
    alone.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._api: Api = control_plane.api
        self._scheduler: Process | None = None

    def record(self, case: Json, *, fresh: bool = False) -> Json:
        """The case with its objects as they are stored, and with the decisions."""
        if fresh:
            self._control_plane.reset()
            self._scheduler = None
            stored = self._set_up(case)
            self._scheduler = self._control_plane.start_scheduler(SETTINGS, "-v=10")
        else:
            if self._scheduler is None:
                self._scheduler = self._control_plane.start_scheduler(SETTINGS, "-v=10")
            log = Log(self._scheduler.log_path)
            stored = self._set_up(case)
            self._wait_until_seen(log, stored)
        placed = {_key(pod) for pod in stored["bound"]}
        nominated: dict[str, str] = {}
        decided: list[tuple[Json, Json]] = []
        for pod in case["pending"]:
            decision = self._decide(pod, placed, case, nominated)
            if not self._still_wait(nominated):
                break  # An earlier preemptor found a node after all, before this pod or after it: the order is unknown.
            decided.append(decision)
            if "nominatedNodeName" in decision[1]:
                nominated[_key(decision[0])] = decision[1]["nominatedNodeName"]
        stored["pending"] = [pod for pod, _ in decided]
        stored["expected"] = [expected for _, expected in decided]
        self._clear(stored)
        return stored

    # ── the cluster ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def kubernetes_version(self) -> str:
        return self._control_plane.programs["kube-scheduler"].kubernetes_version or ""

    def _set_up(self, case: Json) -> Json:
        api = self._api
        for name, value in PRIORITIES.items():
            policy = "Never" if name.endswith("-never") else "PreemptLowerPriority"
            made = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            api.post("/apis/scheduling.k8s.io/v1/priorityclasses", made)
        overhead = {"podFixed": {"cpu": "250m", "memory": "120Mi"}}
        runtime = {"metadata": {"name": RUNTIME}, "handler": RUNTIME, "overhead": overhead}
        api.post("/apis/node.k8s.io/v1/runtimeclasses", runtime)
        source = f"kube-scheduler {self.kubernetes_version}, default profile, {SETTINGS}"
        stored: Json = {**case, "source": source, "objects": [], "nodes": [], "bound": []}
        self._made: list[Json] = stored["objects"]
        for obj in case["objects"]:
            if obj["kind"] == "Namespace":
                stored["objects"].append(api.post("/api/v1/namespaces", obj) | {"kind": "Namespace"})
                self._control_plane.create_default_service_account(obj["metadata"]["name"])
            else:
                stored["objects"].append(self._create(obj))
        if "pdbs" in case:
            stored["pdbs"] = [self._create(budget) for budget in case["pdbs"]]
        for node in case["nodes"]:
            self._control_plane.add_node(node)
        stored["nodes"] = api.items("/api/v1/nodes")
        stored["bound"] = [self._put_on_node(pod, case) for pod in case["bound"]]
        return stored

    def _put_on_node(self, pod: Json, case: Json) -> Json:
        """The pod as stored, with its status."""
        path = f"{_pods(pod)}/{pod['metadata']['name']}"
        made: Json = self._make_claims(self._api.post(_pods(pod), pod), case)
        if "status" in pod:
            made = self._api.put(f"{path}/status", {**made, "status": {**made["status"], **pod["status"]}})
        if pod["metadata"]["name"] in case.get("leaving", ()):
            self._api.delete(path, {"gracePeriodSeconds": GRACE_S})
            made = self._api.get(path)
        return made

    def _make_claims(self, pod: Json, case: Json) -> Json:
        """Create the claims for generic ephemeral volumes and for devices from templates. Returns
        the pod with their names in its status.
        """
        meta, named = pod["metadata"], []
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        }
        for claim in case.get("owned", {}).get(meta["name"], ()):
            made = self._create({**claim, "metadata": {**claim["metadata"], "ownerReferences": [owner]}})
            self._made.append(made)
            if made["kind"] == "ResourceClaim":
                entry = made["metadata"]["annotations"][TEMPLATE_ENTRY]
                named.append({"name": entry, "resourceClaimName": made["metadata"]["name"]})
        if not named:
            return pod
        path = f"{_pods(pod)}/{meta['name']}/status"
        return self._api.patch(path, {"status": {"resourceClaimStatuses": named}})  # type: ignore[no-any-return]

    def _create(self, obj: Json) -> Json:
        path = PATHS[obj["kind"]].format(obj["metadata"].get("namespace"))
        if "claimRef" in obj.get("spec", {}):
            obj["spec"]["claimRef"]["uid"] = self._uid_of_claim(obj["spec"]["claimRef"])
        made: Json = self._api.post(path, obj)
        if obj["kind"] in _WITH_STATUS and "status" in obj:
            made = self._api.put(
                f"{path}/{made['metadata']['name']}/status", {**made, "status": obj["status"]}
            )
        return {**made, "kind": obj["kind"]}

    def _uid_of_claim(self, reference: Json) -> str:
        path = PATHS["PersistentVolumeClaim"].format(reference["namespace"])
        return str(self._api.get(f"{path}/{reference['name']}")["metadata"]["uid"])

    def _wait_until_seen(self, log: Log, stored: Json) -> None:
        """Wait until the scheduler has every node twice: admission taints it at creation, and then
        the taint is removed.
        """
        wanted = Counter({("Update", node["metadata"]["name"]): 1 for node in stored["nodes"]})
        for pod in stored["bound"]:
            wanted["Add", _key(pod)] += 1
            phase, finished = pod["status"]["phase"], pod["status"]["phase"] in ("Succeeded", "Failed")
            shown = "startTime" in pod["status"] or phase == "Running"
            wanted["Delete", _key(pod)] += finished
            wanted["Update", _key(pod)] += (shown and not finished) + ("deletionTimestamp" in pod["metadata"])
        self._wait_for(log, wanted)

    def _clear(self, stored: Json) -> None:
        """Delete everything, and wait until the scheduler has seen the deletions."""
        assert self._scheduler is not None, "a scheduler is running"
        log = Log(self._scheduler.log_path)
        self._control_plane.sweep()
        self._wait_for(log, {("Delete", node["metadata"]["name"]): 1 for node in stored["nodes"]})

    def _wait_for(self, log: Log, wanted: Mapping[tuple[str, str], int]) -> None:
        def seen() -> bool:
            present = Counter((what, name) for what, _, name in _SEEN.findall(log.text()))
            return all(present[key] >= count for key, count in wanted.items())

        wait_for(seen, f"kube-scheduler to notice {len(wanted)} objects")

    # ── decisions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(
        self, pod: Json, placed: set[str], case: Json, nominated: Mapping[str, str]
    ) -> tuple[Json, Json]:
        """Decide one pod. It is added to `placed`, the pods on nodes, if it finds a node."""
        assert self._scheduler is not None, "a scheduler is running"
        log, path = Log(self._scheduler.log_path), f"{_pods(pod)}/{pod['metadata']['name']}"
        stored = self._bring(pod, case)

        def outcome() -> Json | None:
            pod = self._api.get(path)
            if pod["spec"].get("nodeName"):
                return pod
            carry_out(self._api, pod)
            if not _refusal(pod):
                return None
            if pod["status"].get("nominatedNodeName"):
                # If victims terminate at once, the pod is decided when it is bound.
                return pod if case.get("lingers") and _has_evicted(log.text(), _key(pod)) else None
            return pod

        decided = wait_for(outcome, f"a decision on {pod['metadata']['name']}")
        node = decided["spec"].get("nodeName")
        expected: Json = {"pod": pod["metadata"]["name"], "nodeName": node}
        first = log.text()
        if node is None and decided["status"].get("nominatedNodeName"):
            marked, ending = (_victims_of(_key(stored), first, words) for words in (_TOLD, _ENDING))
            self._wait_for(
                log, {("Update", name): 2 for name in marked}
            )  # its condition, and its deletion timestamp
            victims = sorted(name.partition("/")[2] for name in marked | ending)
            return stored, expected | {
                "nominatedNodeName": decided["status"]["nominatedNodeName"],
                "message": (_refusal(decided) or {}).get("message"),
                "victims": victims,
                "feasible": [],
            }
        victims = self._victims(placed)
        if node is not None:
            placed.add(_key(stored))
            # The API server adds topology labels of the node when a pod is bound.
            expected["labels"] = decided["metadata"].get("labels", {})
        if victims:
            expected |= {"victims": victims, "feasible": []}
        elif node is None:
            refusal = _refusal(decided) or {}
            expected |= {"feasible": [], "message": refusal.get("message"), "reason": refusal.get("reason")}
            self._api.delete(path, {"gracePeriodSeconds": 0})
        else:
            expected |= _scores(first, stored, node)
        if node is not None and any(obj["kind"] == "DeviceClass" for obj in case["objects"]):
            expected["claims"] = self._claims_of(decided)
            expected["extended"] = decided["status"].get("extendedResourceClaimStatus")
        return stored, expected

    def _claims_of(self, pod: Json) -> list[Json]:
        """The device claims of the pod, as they are now that the pod has a node."""
        status = pod["status"]
        names = [claim.get("resourceClaimName") for claim in pod["spec"].get("resourceClaims", ())]
        names += [entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses", ())]
        names.append(status.get("extendedResourceClaimStatus", {}).get("resourceClaimName"))
        path = PATHS["ResourceClaim"].format(pod["metadata"]["namespace"])
        return [
            {**self._api.get(f"{path}/{name}"), "kind": "ResourceClaim"}
            for name in dict.fromkeys(names)
            if name
        ]

    def _bring(self, pod: Json, case: Json) -> Json:
        """The pod as the scheduler received it."""
        if pod["metadata"]["name"] not in case.get("owned", ()):
            return self._api.post(_pods(pod), pod)  # type: ignore[no-any-return]
        gated = {**pod, "spec": {**pod["spec"], "schedulingGates": [{"name": _GATE}]}}
        self._make_claims(self._api.post(_pods(pod), gated), case)
        freed: Json = self._api.patch(
            f"{_pods(pod)}/{pod['metadata']['name']}", {"spec": {"schedulingGates": None}}
        )
        return freed

    def _still_wait(self, nominated: Mapping[str, str]) -> bool:
        for key, node in nominated.items():
            space, _, name = key.partition("/")
            pod = self._api.get(f"/api/v1/namespaces/{space}/pods/{name}")
            if pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName") != node:
                return False
        return True

    def _victims(self, placed: Set[str]) -> list[str]:
        present = {_key(pod) for pod in self._api.items("/api/v1/pods")}
        return sorted(key.partition("/")[2] for key in placed - present)


def _scores(log: str, decided: Json, node: str) -> Json:
    """No scores if only one node is feasible."""
    key, spec = _key(decided), decided["spec"]
    unrecorded = {plugin for plugin, has_claims in SCORES_WITH_CLAIMS.items() if not has_claims(spec)}
    final = {name: int(score) for pod, name, score in _FINAL_SCORE.findall(log) if pod == key}
    if not final:
        return {"feasible": [node]}
    weighted: dict[str, dict[str, int]] = {}
    for pod, plugin, name, score in _PLUGIN_SCORE.findall(log):
        if pod == key and plugin not in unrecorded:
            weighted.setdefault(plugin, {})[name] = int(score)
    return {"feasible": sorted(final), "weightedScores": weighted, "finalScores": final}


def _has_evicted(log: str, preemptor: str) -> bool:
    """Whether all victims of the preemptor have been evicted; a victim that is terminating already
    is not evicted again.
    """
    if not any(entry.get("pod") == preemptor for entry in _log_entries(log, _TARGET)):
        return False
    if any(entry["preemptor"] == preemptor for entry in _log_entries(log, _BEGUN)):
        return any(entry["preemptor"] == preemptor for entry in _log_entries(log, _DONE))
    return bool(_victims_of(preemptor, log, _ENDING))


def _victims_of(preemptor: str, log: str, words: str) -> set[str]:
    return {entry["victim"] for entry in _log_entries(log, words) if entry["preemptor"] == preemptor}


def _log_entries(log: str, words: str) -> Iterator[dict[str, str]]:
    """The fields of each line of the log with this text."""
    for line in log.splitlines():
        if f'"{words}"' in line:
            yield dict(_FIELD.findall(line))


def _refusal(pod: Json) -> Json | None:
    """A gated pod has the API server's condition until the scheduler writes its own."""
    for condition in pod["status"].get("conditions", []):
        waits = condition["type"] == "PodScheduled" and condition["status"] == "False"
        if waits and condition.get("reason") != "SchedulingGated":
            return json.loads(json.dumps(condition))  # type: ignore[no-any-return]
    return None


def _pods(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata'].get('namespace', 'default')}/pods"


def _key(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
