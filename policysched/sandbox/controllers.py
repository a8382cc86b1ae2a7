"""Simulated kube-controller-manager: runs the controllers and collects garbage.

Changes enqueue objects; a controller reconciles one object at a time from the current state, and
reconciling is idempotent. This module has the work queue, the graph of owners, garbage collection and
the namespace controller; `workloads`, `volume_controller` and `resource_claim_controller` have the
others.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.registry import FOREGROUND, ORPHAN
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.daemon_sets import DaemonSetController
from policysched.sandbox.local_client import ClusterClient
from policysched.sandbox.resource_claim_controller import DEVICE_CLAIMS, ResourceClaimController
from policysched.sandbox.volume_controller import CLAIMS, VOLUMES, VolumeController, released_volume
from policysched.sandbox.workloads import DeploymentController, JobController, ReplicaSetController

Json = dict[str, Any]
ObjectAddress = tuple[str, str, str]
"""Resource, namespace and name of an object. A resource is a plural; of a custom resource with the group."""

_BATCH_MAX = 50
"""How many objects are reconciled before other tasks of the event loop can run."""


class OwnerGraph:
    """The owners and dependents of all objects, by uid. Updated on every change."""

    def __init__(self) -> None:
        self._addresses: dict[str, ObjectAddress] = {}
        self._dependents: dict[str, dict[str, None]] = {}

    def upsert(self, plural: str, obj: Json) -> None:
        metadata = obj["metadata"]
        self._addresses[metadata["uid"]] = (plural, metadata.get("namespace", ""), metadata["name"])
        for owner in metadata.get("ownerReferences") or ():
            self._dependents.setdefault(owner["uid"], {})[metadata["uid"]] = None

    def remove(self, obj: Json) -> None:
        metadata = obj["metadata"]
        self._addresses.pop(metadata["uid"], None)
        for owner in metadata.get("ownerReferences") or ():
            owned = self._dependents.get(owner["uid"], {})
            owned.pop(metadata["uid"], None)
            if not owned:
                self._dependents.pop(owner["uid"], None)

    def exists(self, uid: str) -> bool:
        return uid in self._addresses

    def dependents(self, uid: str) -> Iterator[ObjectAddress]:
        """The objects that name this one as an owner, in the order of their creation."""
        return (
            self._addresses[owned]
            for owned in tuple(self._dependents.get(uid, ()))
            if owned in self._addresses
        )


class Controllers:
    """Runs all controllers until cancelled."""

    def __init__(self, local: ClusterClient):
        self._local = local
        self._ownership = OwnerGraph()
        self._watched: dict[str, Callable[[], None]] = {}
        self._resources: dict[tuple[str, str], str] = {}
        self._queue: dict[tuple[str, str, str], None] = {}
        self._deleted_nodes: list[str] = []
        self._wake = asyncio.Event()
        self._volumes, self._devices = VolumeController(self._local), ResourceClaimController(self._local)
        replica_sets = ReplicaSetController(self._local, self._owned_objects)
        self._handlers: dict[str, Callable[[Json], None]] = {
            "deployments": DeploymentController(self._local, self._owned_objects).reconcile,
            "replicasets": replica_sets.reconcile,
            "daemonsets": DaemonSetController(self._local, self._owned_objects).reconcile,
            "jobs": JobController(self._local, self._owned_objects, self._enqueue_after).reconcile,
            "namespaces": self._reconcile_namespace,
            **self._volumes.handlers,
            **self._devices.handlers,
            "pods": self._reconcile_pod,
            "customresourcedefinitions": lambda _: self._watch_new_kinds(),
        }

    async def run(self) -> None:
        try:
            self._watch_new_kinds()
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._deleted_nodes:
                    self._delete_pods_of_node(self._deleted_nodes.pop())
                while self._queue:
                    for address in tuple(self._queue)[:_BATCH_MAX]:
                        del self._queue[address]
                        self._reconcile(address)
                    await asyncio.sleep(0)
        finally:
            for stop in self._watched.values():
                stop()

    def _watch_new_kinds(self) -> None:
        """Watch all kinds that the server has and that are not watched yet: a new definition brings some."""
        self._resources = {
            (kind.group, kind.name): kind.rules or kind.stored_as for kind in self._local.kinds
        }
        new = [
            resource for resource in dict.fromkeys(self._resources.values()) if resource not in self._watched
        ]
        for resource in new:
            self._watched[resource] = self._local.listen(resource, partial(self._changed, resource))
            for obj in self._local.list(resource):
                self._ownership.upsert(resource, obj)
        for resource in new:
            for obj in self._local.list(resource):
                self._enqueue_related(resource, obj)

    def _forget_definition(self, resource: str) -> None:
        if stop := self._watched.pop(resource, None):
            stop()

    def _owned_objects(self, plural: str, owner: Json) -> list[Json]:
        """The existing objects of a resource that `owner` owns."""
        addresses = self._ownership.dependents(owner["metadata"]["uid"])
        objects = (self._local.get(*address) for address in addresses if address[0] == plural)
        return [obj for obj in objects if obj is not None]

    def _enqueue_after(self, after_s: float, plural: str, obj: Json) -> None:
        asyncio.get_running_loop().call_later(after_s, self._enqueue_related, plural, obj)

    def _changed(self, plural: str, change: StoreChange) -> None:
        obj = change.entry.obj
        if change.type == "DELETED":
            for address in self._ownership.dependents(obj["metadata"]["uid"]):
                self._enqueue(address)
            self._ownership.remove(obj)
            if plural == CLAIMS and (volume := released_volume(obj)) is not None:
                self._enqueue((VOLUMES, "", volume))
            if plural == "pods":
                for address in self._devices.reserved_claims(obj):
                    self._enqueue(address)
            if plural == "nodes":
                self._deleted_nodes.append(obj["metadata"]["name"])
                self._wake.set()
            if plural == "customresourcedefinitions":
                self._forget_definition(obj["metadata"]["name"])
        else:
            if change.previous is not None and change.previous.obj["metadata"].get("ownerReferences"):
                self._ownership.remove(change.previous.obj)
            self._ownership.upsert(plural, obj)
        self._enqueue_related(plural, obj)
        if plural == "nodes" and _may_change_daemon_sets(change):
            for daemon_set in self._local.list("daemonsets"):
                self._enqueue_related("daemonsets", daemon_set)

    def _enqueue_related(self, plural: str, obj: Json) -> None:
        """Enqueue the object, its owners, and its namespace if that is being deleted."""
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "")
        self._enqueue((plural, namespace, metadata["name"]))
        for owner in metadata.get("ownerReferences") or ():
            self._enqueue((self._resource_of(owner), namespace, owner["name"]))
        if namespace:
            namespace_object = self._local.get("namespaces", "", namespace)
            if namespace_object is not None and namespace_object["metadata"].get("deletionTimestamp"):
                self._enqueue(("namespaces", "", namespace))

    def _resource_of(self, owner: Json) -> str:
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        return self._resources.get((group, owner["kind"]), "")

    def _enqueue(self, address: ObjectAddress) -> None:
        if address[0] in self._watched:
            self._queue[address] = None
            self._wake.set()

    def _reconcile(self, address: ObjectAddress) -> None:
        if address[0] not in self._watched:
            return  # its definition is gone
        obj = self._local.get(*address)
        if obj is None or self._collect_garbage(address[0], obj):
            return
        handler = self._handlers.get(address[0])
        if handler is None:
            return
        try:
            handler(obj)
        except StatusError as error:
            # A conflict (409), a rejected write, or a real server that does not answer (503): the next
            # change enqueues the object again.
            if error.code not in (403, 404, 409, 422, 503):
                raise

    def _collect_garbage(self, plural: str, obj: Json) -> bool:
        """Collect garbage. True if the object is deleted or being deleted and needs no reconciling."""
        metadata = obj["metadata"]
        finalizers = metadata.get("finalizers") or ()
        if metadata.get("deletionTimestamp"):
            if ORPHAN in finalizers:
                self._orphan_dependents(obj)
                self._remove_finalizer(plural, obj, ORPHAN)
            elif FOREGROUND in finalizers:
                self._finish_foreground(plural, obj)
            return plural not in ("namespaces", DEVICE_CLAIMS)
        owners = metadata.get("ownerReferences") or ()
        if owners and not any(self._ownership.exists(owner["uid"]) for owner in owners):
            self._local.delete(plural, obj)
            return True
        return False

    def _finish_foreground(self, plural: str, obj: Json) -> None:
        blocked = False
        for dependent_plural, namespace, name in self._ownership.dependents(obj["metadata"]["uid"]):
            dependent = self._local.get(dependent_plural, namespace, name)
            if dependent is not None:
                blocked = True
                if not dependent["metadata"].get("deletionTimestamp"):
                    has_dependents = any(self._ownership.dependents(dependent["metadata"]["uid"]))
                    propagation = "Foreground" if has_dependents else "Background"
                    self._local.delete(dependent_plural, dependent, propagation=propagation)
        if not blocked or not any(self._ownership.dependents(obj["metadata"]["uid"])):
            self._remove_finalizer(plural, obj, FOREGROUND)

    def _orphan_dependents(self, obj: Json) -> None:
        uid = obj["metadata"]["uid"]

        def without_owner(dependent: Json) -> Json:
            owners = dependent["metadata"].get("ownerReferences") or ()
            dependent["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
            return dependent

        for plural, namespace, name in self._ownership.dependents(uid):
            dependent = self._local.get(plural, namespace, name)
            if dependent is not None:
                self._local.update(plural, dependent, without_owner)

    def _remove_finalizer(self, plural: str, obj: Json, finalizer: str) -> None:
        def finished(current: Json) -> Json:
            left = [name for name in current["metadata"].get("finalizers") or () if name != finalizer]
            current["metadata"]["finalizers"] = left
            return current

        self._local.update(plural, obj, finished)

    def _delete_pods_of_node(self, node: str) -> None:
        """Delete the pods of a deleted node, unless the node exists again."""
        if self._local.get("nodes", "", node) is not None:
            return
        for pod in self._local.list("pods"):
            if pod["spec"].get("nodeName") == node:
                self._local.delete("pods", pod, grace_period_s=0)

    def _reconcile_pod(self, obj: Json) -> None:
        self._volumes.handlers["pods"](obj)
        self._devices.reconcile_pod(obj)

    def _reconcile_namespace(self, obj: Json) -> None:
        """Create the service account of a new namespace; delete the contents of a terminating one.

        A terminating namespace loses its finalizer once it is empty.
        """
        name = obj["metadata"]["name"]
        if not obj["metadata"].get("deletionTimestamp"):
            if self._local.get("serviceaccounts", name, "default") is None:
                self._local.create("serviceaccounts", name, {"metadata": {"name": "default"}})
            return
        has_objects = False
        for plural in self._watched:
            if not self._local.kind(plural).namespaced:
                continue
            for contained in self._local.list(plural, name):
                if not contained["metadata"].get("deletionTimestamp"):
                    self._local.delete(plural, contained)
            has_objects = has_objects or any(self._local.list(plural, name))
        if not has_objects:
            self._local.update(
                "namespaces", obj, lambda _: {**obj, "spec": {"finalizers": []}}, subresource="finalize"
            )


def _may_change_daemon_sets(change: StoreChange) -> bool:
    if change.type != "MODIFIED" or change.previous is None:
        return True
    before, after = (entry.obj["metadata"].get("labels") for entry in (change.previous, change.entry))
    return bool(before != after)
