"""Reads a cluster from files: Kubernetes objects as printed by `kubectl get nodes,pods,namespaces -A -o yaml`.

YAML or JSON, one document or many, single objects and Lists mixed. Kinds that scheduling does not read are ignored and
counted; a malformed object is reported and skipped, as in a live cluster.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from policysched.cluster.cache import ClusterCache
from policysched.files import UnreadableFile, read_bytes
from policysched.from_files.yaml_lists import read_list_by_items
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.devices import DEVICE_DECODERS as _DEVICES
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.object_schemas import OBJECT_SCHEMAS
from policysched.kube.decode.pod_groups import POD_GROUP_APIS, decode_pod_group
from policysched.kube.decode.pods import decode_pod
from policysched.kube.decode.primitives import require_schema
from policysched.kube.decode.storage import STORAGE_DECODERS as _STORAGE
from policysched.model.devices import DeviceObject
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_groups import PodGroup, PodGroupApi
from policysched.model.pod_status import ObservedPod
from policysched.model.storage import CsiNode, StorageObject
from policysched.model.workloads import DisruptionBudget, SelectorOwner
from policysched.policy_files.source_set import UnusableFile
from policysched.scheduler.events import (
    NodeObjectUpdated,
    PodGroupApiServed,
    PodGroupChange,
    PodGroupUpdated,
    WorkloadsServed,
    WorkloadUpdated,
)
from policysched.text.quote_value import quote_value
from policysched.text.sanitize import sanitize_line
from policysched.yaml_values import InvalidYaml, read_yaml_documents


@dataclass(slots=True)
class ClusterFiles:
    """The objects of the files, in their order."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[ObservedPod] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    budgets: list[DisruptionBudget] = field(default_factory=list)
    selector_owners: list[SelectorOwner] = field(default_factory=list)
    node_objects: list[NodeObjectUpdated] = field(default_factory=list)
    storage: list[StorageObject | CsiNode] = field(default_factory=list)
    devices: list[DeviceObject] = field(default_factory=list)
    pod_groups: list[PodGroup] = field(default_factory=list)
    workloads: list[tuple[str, str]] = field(default_factory=list)
    malformed: list[MalformedObject] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)

    def add(self, obj: dict[str, Any] | MalformedObject) -> None:
        """Adds an object from the API server or a manifest."""
        if isinstance(obj, MalformedObject):
            self.malformed.append(obj)
            return
        try:
            _require_printable_name(obj)
            if (kind_name := str(obj.get("kind"))) in OBJECT_SCHEMAS:
                require_schema(kind_name, obj)
            match obj.get("kind"):
                case "Node":
                    self.nodes.append(wire.decode_node(obj))
                case "Pod":
                    self.pods.append(decode_pod(obj))
                case "Namespace":
                    self.namespaces.append(wire.decode_namespace(obj))
                case "PodDisruptionBudget":
                    self.budgets.append(wire.decode_disruption_budget(obj))
                case "Service" | "ReplicationController" | "ReplicaSet" | "StatefulSet" as kind:
                    self.selector_owners.append(wire.decode_selector_owner(obj, kind))
                case "ResourceClaim" | "ResourceSlice" | "DeviceClass" | "DeviceTaintRule" as kind:
                    self.devices.append(_DEVICES[kind](obj))
                case "PodGroup" if (api := _pod_group_api(obj)) is not None:
                    self.pod_groups.append(decode_pod_group(obj, *api))
                case "Workload" if str(obj.get("apiVersion", "")).startswith("scheduling.k8s.io/"):
                    self.workloads.append(_workload_name(obj))
                case str(kind) if kind in _STORAGE:
                    self.storage.append(_STORAGE[kind](obj))
                case kind if _is_cluster_scoped_custom_resource(obj):
                    self.node_objects.append(
                        NodeObjectUpdated(
                            str(kind).lower(), NodeName(wire.required_name(obj)), wire.canonical_json(obj)
                        )
                    )
                case kind:
                    self.ignored[str(kind)] += 1
        except MalformedObject as error:
            self.malformed.append(error)

    def pod_group_events(self) -> list[PodGroupChange]:
        """What a scheduler would see of PodGroups: the APIs of those in the files are served."""
        served = {group.api: group.api_version for group in self.pod_groups}
        return [
            *(PodGroupApiServed(api, version) for api, version in served.items()),
            *([WorkloadsServed(True)] if self.workloads else []),
            *(WorkloadUpdated(namespace, name) for namespace, name in self.workloads),
            *(PodGroupUpdated(group) for group in self.pod_groups),
        ]

    def node_names(self) -> frozenset[NodeName]:
        return frozenset(node.name for node in self.nodes)

    def build_cache(self) -> ClusterCache:
        """The cache that the scheduler would have. Namespaces of pods exist even if the files omit them."""
        cache = ClusterCache()
        for name in sorted({observed.pod.namespace for observed in self.pods}):
            cache.put_namespace(Namespace(name, {}, {}))
        for space in self.namespaces:
            cache.put_namespace(space)
        for node in self.nodes:
            cache.put_node(node)
        for event in self.node_objects:
            cache.put_node_object(event.kind, event.name, event.text)
        for budget in self.budgets:
            cache.put_budget(budget)
        for selector_owner in self.selector_owners:
            cache.put_selector_owner(selector_owner)
        for stored in self.storage:
            cache.put_storage(stored)
        for offered in self.devices:
            cache.put_device_object(offered)
        for group in self.pod_groups:
            cache.pod_groups.set_served(group.api, group.api_version)
            cache.pod_groups.put(group)
        if self.workloads:
            cache.pod_groups.set_workloads_served(served=True)
        for namespace, name in self.workloads:
            cache.pod_groups.put_workload(namespace, name)
        for observed in self.pods:
            cache.pod_groups.put_pod(observed)
        for observed in self.pods:
            cache.put_pod(cache.pod_groups.attach(observed))
        return cache


def _require_printable_name(obj: Mapping[str, Any]) -> None:
    """The API server refuses such names; they would write to the terminal, or forge lines of an explanation."""
    meta = obj.get("metadata")
    for field_name in ("name", "namespace"):
        name = meta.get(field_name) if isinstance(meta, dict) else None
        if isinstance(name, str) and not name.isprintable():
            raise MalformedObject(
                sanitize_line(obj["kind"]),
                sanitize_line(name),
                f"metadata.{field_name}",
                "has unprintable characters",
            )


def _pod_group_api(obj: Mapping[str, Any]) -> tuple[PodGroupApi, str] | None:
    """The API and its version; None: of none that has PodGroups."""
    group, _, version = str(obj.get("apiVersion", "")).partition("/")
    api = POD_GROUP_APIS.get(group)
    return None if api is None else (api, version)


def _workload_name(obj: Mapping[str, Any]) -> tuple[str, str]:
    name = wire.required_name(obj)
    return str(obj["metadata"].get("namespace") or "default"), name


def _is_cluster_scoped_custom_resource(obj: Mapping[str, Any]) -> bool:
    """Whether it is a cluster-scoped custom resource: of a group with a domain that is not Kubernetes' own."""
    group, slash, _ = str(obj.get("apiVersion", "")).partition("/")
    custom = bool(slash) and "." in group and not group.endswith("k8s.io")
    meta = obj.get("metadata")
    return custom and isinstance(meta, dict) and "name" in meta and "namespace" not in meta


Progress = Callable[[str, int, int], None]
"""What is read, and how many bytes of how many."""


def no_progress(_label: str, _done: int, _total: int) -> None:
    return


def read_cluster_files(paths: Iterable[str], progress: Progress = no_progress) -> ClusterFiles:
    """Reads every file (`-` is standard input). Raises UnusableFile."""
    files = ClusterFiles()
    for path in paths:
        for obj in read_objects(path, progress):
            files.add(obj)
    return files


def read_objects(path: str, progress: Progress = no_progress) -> Iterator[dict[str, Any] | MalformedObject]:
    """Every object of a file, with Lists flattened; `MalformedObject` for an invalid item of a List. Raises UnusableFile with the
    location of the error."""
    text = _read(path)
    documents = [document for document in _documents(path, text, progress) if document is not None]
    if not documents:
        raise UnusableFile(f"{path}: contains no Kubernetes object")
    for number, document in enumerate(documents, start=1):
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise UnusableFile(
                f"{path}: document {number} is not a Kubernetes object: it has no `kind` (expected what "
                "`kubectl get nodes,pods,namespaces -A -o yaml` prints)"
            )
        yield from _flatten_lists(path, document)


def _flatten_lists(path: str, document: dict[str, Any]) -> Iterator[dict[str, Any] | MalformedObject]:
    items = document.get("items")
    if not document["kind"].endswith("List") or items is None:
        yield document
        return
    if not isinstance(items, list):
        raise UnusableFile(f"{path}: the items of a {document['kind']} are not a list")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            reason = f"is {quote_value(item)}, expected a map"
            yield MalformedObject(document["kind"], f"of {path}", f"items[{index}]", reason)
            continue
        # The items of a typed list (PodList) do not repeat their kind.
        yield item if "kind" in item else {**item, "kind": document["kind"].removesuffix("List")}


_LONG_BYTES = 2**20
_VERY_LONG_BYTES = 2**24
_JSON_IS_FASTER = " (JSON is read 30 times as fast)"


def _read(path: str) -> bytes:
    try:
        return read_bytes(path)
    except UnreadableFile as error:
        raise UnusableFile(f"{path}: {error}") from None


def _documents(path: str, text: bytes, progress: Progress) -> Iterator[Any]:
    if len(text) >= _LONG_BYTES:
        progress(f"reading {path}", 0, len(text))
    if text.lstrip()[:1] == b"{":
        yield from _json_documents(path, text)
        return
    if len(text) >= _LONG_BYTES:
        label = f"reading {path}" + (_JSON_IS_FASTER if len(text) >= _VERY_LONG_BYTES else "")
        listed = read_list_by_items(text, lambda done: progress(label, done, len(text)))
        if listed is not None:
            yield listed
            return
    try:
        for document in read_yaml_documents(text):
            yield document.construct()
    except InvalidYaml as error:
        raise UnusableFile(error.at(path)) from None


def _json_documents(path: str, text: bytes) -> Iterator[Any]:
    """One JSON value by the fast parser; several in a row (JSON lines) by one that reports where it stopped."""
    try:
        yield orjson.loads(text)
        return
    except orjson.JSONDecodeError:
        pass
    try:
        document_text = text.decode()
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{path}: not JSON: {error}") from error
    decoder, at = json.JSONDecoder(), 0
    while at < len(document_text):
        try:
            value, at = decoder.raw_decode(document_text, at)
        except json.JSONDecodeError as error:
            raise UnusableFile(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
        yield value
        while at < len(document_text) and document_text[at].isspace():
            at += 1
