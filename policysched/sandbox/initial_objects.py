"""The objects that a sandbox begins with."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.local_client import ClusterClient
from policysched.sandbox.nodes import NodeShape, make_nodes, ready_node
from policysched.sandbox.volume_controller import STANDARD_CLASS

Json = dict[str, Any]


class ManifestRefused(Exception):
    """The API server of the sandbox rejected an initial object."""


def ready_nodes(nodes: int | Sequence[Json], shape: NodeShape | None = None) -> list[Json]:
    """A number of nodes with `shape`, or those of the manifests, ready since now."""
    now = timestamp(time.time())
    if isinstance(nodes, int):
        return make_nodes(nodes, shape, now=now)
    return [ready_node(node, now, at=at) for at, node in enumerate(nodes, start=1)]


def create_objects(client: ClusterClient, nodes: Iterable[Json], objects: Sequence[Json]) -> None:
    """Create the nodes, the objects, and a default storage class if there is none. Raises `ManifestRefused`."""
    own_class = any(manifest.get("kind") == "StorageClass" for manifest in objects)
    _create_all(client, (*nodes, *objects, *(() if own_class else (STANDARD_CLASS,))))


def _create_all(client: ClusterClient, manifests: Iterable[Json]) -> None:
    """Create the objects in order of their dependencies, with new uids.

    Owner references get the new uids. A reference to an owner that is not among the manifests is
    dropped, because its dependents would be collected as garbage.
    """
    new_uids: dict[str, str] = {}
    for manifest in sorted(
        manifests, key=lambda manifest: _CREATION_ORDER.get(str(manifest.get("kind")), _CREATED_LAST)
    ):
        metadata = manifest.get("metadata") or {}
        kept = {key: value for key, value in metadata.items() if key not in ("resourceVersion", "uid")}
        owners = [
            {**owner, "uid": new_uids[owner["uid"]]}
            for owner in metadata.get("ownerReferences") or ()
            if owner.get("uid") in new_uids
        ]
        created = _create(client, {**manifest, "metadata": {**kept, "ownerReferences": owners}})
        if created is not None and "uid" in metadata:
            new_uids[metadata["uid"]] = created["metadata"]["uid"]


def _create(client: ClusterClient, manifest: Json) -> Json | None:
    api_version, name = manifest.get("apiVersion"), manifest.get("kind")
    label = f"{name} {manifest['metadata'].get('name')}"
    kind = next((k for k in client.kinds if (k.api_version, k.name) == (api_version, name)), None)
    if kind is None:
        raise ManifestRefused(f"{label}: the sandbox does not serve {api_version} {name}")
    resource = kind.rules or kind.stored_as
    namespace = manifest["metadata"].get("namespace", "default") if kind.namespaced else ""
    exists = client.get(resource, namespace, manifest["metadata"].get("name", "")) is not None
    if exists and resource in _BUILT_IN:
        return None
    try:
        return client.create(resource, namespace, manifest)
    except StatusError as error:
        raise ManifestRefused(f"{label}: {error.message}") from error


_CREATION_ORDER = {
    "CustomResourceDefinition": 0,
    "Namespace": 0,
    "PriorityClass": 1,
    "StorageClass": 1,
    "Node": 2,
    "Deployment": 3,
    "ReplicaSet": 4,
    "Job": 5,
    "Pod": 9,
}
_CREATED_LAST = 8
_BUILT_IN = ("namespaces", "priorityclasses", "serviceaccounts")
"""Kinds with built-in objects in the sandbox. A manifest of the same name is ignored."""
