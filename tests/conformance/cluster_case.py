"""Recorded decisions of kube-scheduler, each with the cluster in which it was made.

A case is a cluster and pending pods, decided one after the other. `replay` yields every decision
with the cluster as it was then, and places the pod on its recorded node before the next decision.
`cases/README.md` describes the format.
"""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from policysched.cluster.cache import ClusterCache
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import choose_volumes, pod_volume_claims
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.kube.decode import core_objects, devices, storage
from policysched.kube.decode.pods import decode_pod
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.storage import ClaimRef
from policysched.model.workloads import SelectorOwnerKind
from tests.builders import pending, placed

Json = dict[str, Any]

CASES = Path(__file__).parent / "cases"

_DEFAULT_TOLERATIONS = tuple(
    {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for key in ("not-ready", "unreachable")
)

_LATER = "2026-01-01T01:00:00Z"

_PRIORITY_CLASSES = {
    "": (0, "PreemptLowerPriority"),
    "low": (10, "PreemptLowerPriority"),
    "mid": (100, "PreemptLowerPriority"),
    "high": (1000, "PreemptLowerPriority"),
    "high-never": (1000, "Never"),
    "top": (100_000, "PreemptLowerPriority"),
    "system-cluster-critical": (2_000_000_000, "PreemptLowerPriority"),
    "system-node-critical": (2_000_001_000, "PreemptLowerPriority"),
}


@dataclass(frozen=True, slots=True)
class Decision:
    """One recorded decision. `placed_manifests` are the pods that were on nodes at the time,
    `objects` the other objects of the case, `cache` the same cluster as the scheduler sees it.
    `reserved` are the pods nominated to nodes whose room this pod may not use.
    """

    case: str
    manifest: Json
    pod: Pod
    expected: Json
    cache: ClusterCache
    placed_manifests: Sequence[Json]
    objects: Sequence[Json]
    reserved: Sequence[tuple[Pod, NodeName]] = ()

    @property
    def name(self) -> str:
        return f"{self.case}/{self.expected['pod']}"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a case, with its number from 1."""

    number: int
    why: str


UNREAD_FIELDS = frozenset(
    {"managedFields", "resourceVersion", "terminationMessagePath", "terminationMessagePolicy"}
)
"""What the API server adds to objects, and no scheduler reads."""


def write_compact(cases: Iterable[Json], path: Path) -> None:
    """Write cases without what no scheduler reads, compressed."""
    lines = [json.dumps(_without_unread(case), separators=(",", ":")) + "\n" for case in cases]
    path.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))


def _without_unread(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_unread(item) for name, item in value.items() if name not in UNREAD_FIELDS}
    return [_without_unread(item) for item in value] if isinstance(value, list) else value


def read(path: Path) -> Iterator[Json | BadLine]:
    """Each non-empty line as a case, or as a BadLine. A path that ends with `.xz` is compressed. Raises OSError."""
    content = path.read_bytes()
    if path.suffix == ".xz":
        content = lzma.decompress(content)
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
        except ValueError as error:  # not JSON, or not UTF-8
            yield BadLine(number, str(error))
            continue
        yield case if isinstance(case, dict) else BadLine(number, "a case is an object")


def load(path: Path) -> list[Json]:
    """Every case of a file. The file has no bad lines."""
    cases = list(read(path))
    bad = [f"{path}:{case.number}: {case.why}" for case in cases if isinstance(case, BadLine)]
    assert not bad, bad
    return [case for case in cases if not isinstance(case, BadLine)]


def replay(case: Json) -> Iterator[Decision]:
    cache = ClusterCache()
    objects = case.get("objects") or []
    for obj in objects:
        if obj["kind"] == "Namespace":
            cache.put_namespace(core_objects.decode_namespace(obj))
        elif obj["kind"] in get_args(SelectorOwnerKind):
            cache.put_selector_owner(core_objects.decode_selector_owner(obj, obj["kind"]))
        elif obj["kind"] in storage.STORAGE_DECODERS:
            cache.put_storage(storage.STORAGE_DECODERS[obj["kind"]](obj))
        elif obj["kind"] in devices.DEVICE_DECODERS:
            cache.put_device_object(devices.DEVICE_DECODERS[obj["kind"]](obj))
        elif obj["kind"] == "PodDisruptionBudget":
            cache.put_budget(core_objects.decode_disruption_budget(obj))
        elif obj["kind"] == "LimitRange":
            raise ValueError("a LimitRange fills in requests, and pods are recorded as they were sent")
    for node in case["nodes"]:
        cache.put_node(core_objects.decode_node(node))
    for pdb in case.get("pdbs") or ():
        cache.put_budget(core_objects.decode_disruption_budget(pdb))
    classes = {**_PRIORITY_CLASSES, **priority_classes(objects)}
    on_nodes = [as_stored(manifest, classes) for manifest in case.get("bound") or ()]
    for manifest in on_nodes:
        cache.put_pod(decode_pod(manifest))
    nominated: list[tuple[Pod, NodeName]] = []

    for sent, expected in _paired(case["pending"], case["expected"]):
        manifest = as_stored(sent, classes)
        pod = decode_pod(manifest).pod
        reserved = [nomination for nomination in nominated if nomination[0].priority >= pod.priority]
        yield Decision(
            str(case.get("name", "(a case without a name)")),
            manifest,
            pod,
            expected,
            cache,
            tuple(on_nodes),
            objects,
            reserved,
        )
        if expected["nodeName"] is not None:
            node = cache.nodes[NodeName(expected["nodeName"])]
            bind_volumes(cache, pod, node)
            for claim in expected.get("claims", ()):
                cache.put_device_object(devices.decode_resource_claim(claim))
            if "labels" in expected:  # its labels after the bind
                manifest["metadata"] = {**manifest["metadata"], "labels": expected["labels"]}
                pod = decode_pod(manifest).pod
            cache.put_pod(placed(pod, node.name))
            on_nodes.append(manifest)
        elif case.get("lingers") and expected.get("nominatedNodeName"):
            on_nodes = [
                _ending(node, cache) if node["metadata"]["name"] in expected["victims"] else node
                for node in on_nodes
            ]
            nominated.append((pod, NodeName(expected["nominatedNodeName"])))
            cache.put_pod(replace(pending(pod), nominated_node=nominated[-1][1]))


def _paired(pending: Sequence[Json], expected: Sequence[Json]) -> list[tuple[Json, Json]]:
    """Pods with their expectations, in the order in which the pods were created."""
    names = [pod["metadata"]["name"] for pod in pending]
    decided = [decision["pod"] for decision in expected]
    if names == decided:
        return list(zip(pending, expected, strict=True))
    assert sorted(names) == sorted(set(decided)), f"pending {names}, decided {decided}"
    by_name = dict(zip(decided, expected, strict=True))
    return [(pod, by_name[name]) for name, pod in zip(names, pending, strict=True)]


def _ending(manifest: Json, cache: ClusterCache) -> Json:
    """The pod is terminating, and stays on its node until the end."""
    ends = {**manifest, "metadata": {"deletionTimestamp": _LATER, **manifest["metadata"]}}
    cache.put_pod(decode_pod(ends))
    return ends


def priority_classes(objects: Iterable[Json]) -> dict[str, tuple[int, str]]:
    """The namespaces of the case. Pods without a namespace are in the namespace with the empty
    name.
    """
    return {
        name: (int(obj["value"]), obj.get("preemptionPolicy") or "PreemptLowerPriority")
        for obj in objects
        if obj["kind"] == "PriorityClass"
        for name in (obj["metadata"]["name"], *([""] if obj.get("globalDefault") else []))
    }


def bind_volumes(cache: ClusterCache, pod: Pod, node: Node) -> None:
    """Bind the pod's volumes as the PV controller does after kube-scheduler's choice, so that the
    next pod finds its claims bound.
    """
    volumes = cache.volumes
    claims = pod_volume_claims(pod, AvailableVolumes(volumes))
    if isinstance(claims, str):
        return
    choice = choose_volumes(claims, node, AvailableVolumes(volumes))
    for claim, volume in choice.static_bindings if isinstance(choice, VolumeChoice) else ():
        volumes.put_volume(replace(volume, claim_ref=ClaimRef(claim.key, claim.uid), phase="Bound"))
        volumes.put_claim(replace(claim, volume_name=volume.name, bind_completed=True, phase="Bound"))


def as_stored(
    manifest: Mapping[str, Any], classes: Mapping[str, tuple[int, str]] = _PRIORITY_CLASSES
) -> Json:
    """The pod with the fields that the API server fills in and scheduling reads: those of the
    PriorityClass, and the default tolerations.
    """
    spec = {**manifest["spec"]}
    if spec.get("priority") is None:
        spec["priority"], preempts = classes[spec.get("priorityClassName") or ""]
        spec.setdefault("preemptionPolicy", preempts)
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *_DEFAULT_TOLERATIONS]
    return {**manifest, "spec": spec}
