"""Replay recorded decisions on an upstream kube-scheduler and print where it decides otherwise.

    python -m tests.conformance.replay_upstream tests/conformance/cases/*.jsonl [--sample 40]

The recordings are from a distribution's build; where upstream differs, upstream is right and
policysched follows it. Each case gets an empty control plane: first its objects, then a
kube-scheduler that finds all of them in its first lists, then the pending pods, each decided before
the next is created. Scores are read from the scheduler's log at verbosity 10. kube-scheduler
chooses randomly among equally good nodes, so each pod is moved to its recorded node before the next
one. Preemption starts at a random node as well: such a case is repeated, and agrees if one run
does.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.controlplane.api import ApiError, Json
from tests.controlplane.certificates import openssl_missing
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.process import Process
from tests.controlplane.programs import find_programs
from tests.controlplane.waiting import wait_for

PREEMPTION_TRIES = 8
# Always 0 in these cases, and left out of the recordings.
UNRECORDED_PLUGIN = "DynamicResources"
PRIORITIES = {"low": 10, "mid": 100, "high": 1000, "top": 100_000, "high-never": 1000}
PLUGIN_SCORE = re.compile(
    r'"Plugin scored node for pod" pod="(\S+)" plugin="(\S+)" node="(\S+)" score=(-?\d+)'
)

PATHS = {
    "Service": "/api/v1/namespaces/{}/services",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
}
# A volume has the UID of its claim, so claims are created first.
ORDER = ("Namespace", "StorageClass", "CSINode", "PersistentVolumeClaim", "PersistentVolume")


@dataclass(frozen=True, slots=True)
class Decision:
    """kube-scheduler's decision about one pod. `scores` is plugin → node → weighted score, empty if
    nothing was scored.
    """

    node: str | None
    message: str | None
    reason: str | None
    scores: dict[str, dict[str, int]] = field(default_factory=dict)
    victims: tuple[str, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--sample", type=int, help="replay so many cases of each file, spread evenly over it")
    options = parser.parse_args()
    programs = find_programs()
    missing = openssl_missing() or programs.missing(
        "etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"
    )
    if missing:
        print(missing, file=sys.stderr)
        return 2
    differing = 0
    with ControlPlane(programs) as control_plane:
        version = programs["kube-scheduler"].kubernetes_version
        for path in options.files:
            cases = [json.loads(line) for line in path.read_text().splitlines()]
            step = max(1, len(cases) // options.sample) if options.sample else 1
            chosen = cases[::step][: options.sample]
            differing_here = 0
            for case in chosen:
                differences = replay(control_plane, case)
                differing_here += bool(differences)
                for difference in differences:
                    print(f"{case['name']}: {difference}", flush=True)
            print(
                f"{path.name}: {differing_here} of {len(chosen)} cases decided differently by kube-scheduler {version}",
                flush=True,
            )
            differing += differing_here
    return 1 if differing else 0


def replay(control_plane: ControlPlane, case: Json) -> list[str]:
    """A sentence for each difference between upstream's decisions and the case's."""
    tries = PREEMPTION_TRIES if "pdbs" in case else 1
    for _ in range(tries):
        differences = list(_replay_once(control_plane, case))
        if not differences:
            break
    return differences


def _replay_once(control_plane: ControlPlane, case: Json) -> Iterator[str]:
    control_plane.reset()
    _set_up(control_plane, case)
    scheduler = control_plane.start_scheduler("percentageOfNodesToScore: 100", "-v=10")
    for pod, expected in zip(case["pending"], case["expected"], strict=True):
        decision = _decide(control_plane, scheduler, pod, case["bound"])
        yield from _differences(decision, expected)
        if decision.node is None or decision.node != expected["nodeName"]:
            _put(control_plane, pod, expected["nodeName"])


def _set_up(control_plane: ControlPlane, case: Json) -> None:
    api = control_plane.api
    for name, value in PRIORITIES.items():
        policy = "Never" if name.endswith("-never") else "PreemptLowerPriority"
        api.post(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy},
        )
    for node in case["nodes"]:
        control_plane.add_node(node)
    objects = [*case.get("objects", []), *case.get("pdbs", [])]
    uids: dict[str, str] = {}
    for obj in sorted(objects, key=lambda o: ORDER.index(o["kind"]) if o["kind"] in ORDER else len(ORDER)):
        if obj["kind"] == "Namespace":
            api.post("/api/v1/namespaces", obj)
            control_plane.create_default_service_account(obj["metadata"]["name"])
        else:
            _create(control_plane, obj, uids)
    for pod in case["bound"]:
        api.post(_pods(pod), pod)
    if any(obj["kind"] == "PersistentVolumeClaim" for obj in objects):
        control_plane.start_controller_manager("--controllers=persistentvolume-binder-controller")


def _create(control_plane: ControlPlane, recorded: Json, uids: dict[str, str]) -> None:
    """Create an object as it was recorded, with its status. `uids` maps recorded UIDs of claims to
    their current ones.
    """
    obj = json.loads(json.dumps(recorded))
    meta = obj["metadata"]
    for name in ("uid", "resourceVersion", "creationTimestamp"):
        meta.pop(name, None)
    claim = obj.get("spec", {}).get("claimRef", {})
    claim.pop("resourceVersion", None)
    if "uid" in claim:
        claim["uid"] = uids.get(claim["uid"], claim["uid"])
    path = PATHS[obj["kind"]].format(meta.get("namespace", "default"))
    made = control_plane.api.post(path, obj)
    uids[recorded["metadata"].get("uid", "")] = made["metadata"]["uid"]
    if "status" in obj:
        made["status"] = obj["status"]
        control_plane.api.put(f"{path}/{meta['name']}/status", made)


def _decide(control_plane: ControlPlane, scheduler: Process, pod: Json, bound: list[Json]) -> Decision:
    api, path = control_plane.api, f"{_pods(pod)}/{pod['metadata']['name']}"
    api.post(_pods(pod), pod)

    def outcome() -> Json | None:
        pod = api.get(path)
        if pod["spec"].get("nodeName"):
            return pod
        # A pod with pending victims is decided once it is bound.
        return pod if _refusal(pod) and not pod["status"].get("nominatedNodeName") else None

    decided = wait_for(outcome, f"a decision on {pod['metadata']['name']}")
    refusal = _refusal(decided) or {}
    node = decided["spec"].get("nodeName")
    key = f"{decided['metadata']['namespace']}/{decided['metadata']['name']}"
    return Decision(
        node=node,
        message=None if node else refusal.get("message"),
        reason=None if node else refusal.get("reason"),
        scores=_scores(scheduler.log_path, key),
        victims=_gone(control_plane, bound),
    )


def _refusal(pod: Json) -> Json | None:
    for condition in pod["status"].get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            refusal: Json = condition
            return refusal
    return None


def _gone(control_plane: ControlPlane, bound: list[Json]) -> tuple[str, ...]:
    present = {
        (p["metadata"]["namespace"], p["metadata"]["name"]) for p in control_plane.api.items("/api/v1/pods")
    }
    names = ((p["metadata"].get("namespace", "default"), p["metadata"]["name"]) for p in bound)
    return tuple(sorted(name for namespace, name in names if (namespace, name) not in present))


def _scores(log_path: Path, pod_key: str) -> dict[str, dict[str, int]]:
    """The scores of the pod's last attempt: later lines of the log overwrite earlier ones."""
    scores: dict[str, dict[str, int]] = {}
    for pod, plugin, node, score in PLUGIN_SCORE.findall(log_path.read_text(errors="replace")):
        if pod == pod_key and plugin != UNRECORDED_PLUGIN:
            scores.setdefault(plugin, {})[node] = int(score)
    return scores


def _differences(decision: Decision, expected: Json) -> Iterator[str]:
    pod, node = expected["pod"], expected["nodeName"]
    final = expected.get("finalScores", {})
    best = {name for name, score in final.items() if score == max(final.values())} or {node}
    if decision.node not in best:
        yield f"{pod} went to {decision.node}, recorded {' or '.join(sorted(map(str, best)))}"
    if decision.message != expected.get("message"):
        yield f"{pod} has the message {decision.message!r}, recorded {expected.get('message')!r}"
    if decision.reason != expected.get("reason"):
        yield f"{pod} has the reason {decision.reason!r}, recorded {expected.get('reason')!r}"
    if "victims" not in expected:
        yield from _score_differences(pod, decision.scores, expected.get("weightedScores", {}))
    if sorted(expected.get("victims", [])) != list(decision.victims):
        yield f"{pod} evicted {list(decision.victims)}, recorded {expected.get('victims', [])}"


def _score_differences(
    pod: str, scores: dict[str, dict[str, int]], recorded: dict[str, dict[str, int]]
) -> Iterator[str]:
    for plugin in sorted((scores.keys() | recorded.keys()) - {UNRECORDED_PLUGIN}):
        replayed, before = scores.get(plugin, {}), recorded.get(plugin, {})
        for node in sorted(replayed.keys() | before.keys()):
            if replayed.get(node) != before.get(node):
                yield f"{pod}: {plugin} gave {node} {replayed.get(node)}, recorded {before.get(node)}"


def _put(control_plane: ControlPlane, pod: Json, node: str | None) -> None:
    """Put the pod on its recorded node. A rejected pod is deleted, so that it is not tried again
    during the next decision.
    """
    path = f"{_pods(pod)}/{pod['metadata']['name']}"
    try:
        control_plane.api.delete(path, {"gracePeriodSeconds": 0})
    except ApiError as error:
        if error.status != 404:
            raise
    if node is not None:
        control_plane.api.post(_pods(pod), {**pod, "spec": {**pod["spec"], "nodeName": node}})


def _pods(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata'].get('namespace', 'default')}/pods"


if __name__ == "__main__":
    sys.exit(main())
