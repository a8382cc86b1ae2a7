"""Create, replace, patch and delete, with kube-apiserver's order of checks.

All writes to the store go through here, from clients and from the sandbox's controllers. The registry
owns the bodies that it receives; callers must not modify returned entries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from policysched.sandbox.apiserver.admission import (
    admit_create,
    admit_update,
    check_may_be_deleted,
    check_namespace,
)
from policysched.sandbox.apiserver.apply import Apply
from policysched.sandbox.apiserver.decoding import check_shape
from policysched.sandbox.apiserver.defaulting import set_defaults, set_first_status
from policysched.sandbox.apiserver.errors import (
    already_exists,
    bad_request,
    bad_value,
    conflict,
    invalid,
    not_found,
    version_conflict,
)
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.store import ObjectStore, StoredObject
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.apiserver.validation import validate_create, validate_update

Json = dict[str, Any]

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What generated names are made of: no vowels and no look-alikes, as in apimachinery's rand.String."""

_GENERATED_PREFIX_MAX = 58
_FREE_METADATA_IN_STATUS = frozenset({"pods", "nodes", "namespaces"})
"""Where a status update may also change labels and annotations."""

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a deletion. `grace_period_s` None: the object's default."""

    grace_period_s: int | None = None
    propagation: str = "Background"
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False

    @classmethod
    def read(cls, body: Mapping[str, Any], params: Mapping[str, str]) -> "DeleteOptions":
        """Read a `DeleteOptions` body; query parameters apply to fields that it lacks."""
        grace = body.get("gracePeriodSeconds", params.get("gracePeriodSeconds"))
        preconditions = body.get("preconditions") or {}
        dry_run = body.get("dryRun") or [params[key] for key in ("dryRun",) if key in params]
        try:
            grace_period_s = None if grace is None else int(grace)
        except ValueError:
            raise bad_request(f"gracePeriodSeconds is not a number: {grace!r}") from None
        propagation = body.get("propagationPolicy") or params.get("propagationPolicy") or "Background"
        if propagation not in ("Background", "Foreground", "Orphan"):
            raise bad_request(f"unknown propagationPolicy {propagation!r}")
        return cls(
            grace_period_s,
            propagation,
            preconditions.get("uid"),
            preconditions.get("resourceVersion"),
            bool(dry_run),
        )


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result of a deletion. Without `removed`, the object is marked and still exists."""

    entry: StoredObject
    removed: bool


@dataclass(slots=True)
class ResourceRegistry:
    """Writes objects to the store by the rules of their kind. `now` is seconds since 1970."""

    store: ObjectStore
    now: Callable[[], float]
    random: Random = field(default_factory=lambda: Random(0))

    def get(self, kind: ResourceKind, namespace: str, name: str) -> StoredObject:
        entry = self.store.get(kind.stored_as, (namespace, name))
        if entry is None:
            raise not_found(kind.group, kind.plural, name)
        return entry

    def create(
        self,
        kind: ResourceKind,
        namespace: str,
        body: Any,
        *,
        dry_run: bool = False,
        is_decoded: bool = False,
    ) -> StoredObject:
        obj = body if is_decoded else self._decode(kind, namespace, body)
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if kind.namespaced:
            check_namespace(
                self.store, kind, namespace, metadata.get("name") or metadata.get("generateName") or ""
            )
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self._generated_name(kind, namespace, metadata["generateName"])
        for set_by_server in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            metadata.pop(set_by_server, None)
        metadata["uid"] = str(UUID(int=self.random.getrandbits(128), version=4))
        metadata["creationTimestamp"] = timestamp(self.now())
        if kind.has_generation:
            metadata["generation"] = 1
        set_defaults(kind, obj)
        admit_create(self.store, kind, obj)
        validate_create(kind, obj)
        set_first_status(kind, obj)
        key = (namespace, str(metadata["name"]))
        if self.store.get(kind.stored_as, key) is not None:
            raise already_exists(kind.group, kind.plural, metadata["name"])
        return self.write(kind, key, obj, dry_run=dry_run)

    def replace(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        body: Any,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> tuple[StoredObject, bool]:
        """Replace an object. Also returns whether it was created."""
        obj = self._decode(kind, namespace, body)
        object_name = obj["metadata"].setdefault("name", name)
        if object_name != name:
            raise bad_request(
                f"the name of the object ({object_name}) does not match the name on the URL ({name})"
            )
        old = self.store.get(kind.stored_as, (namespace, name))
        if old is None:
            if kind.created_by_replace and not subresource:
                if obj["metadata"].get("uid"):
                    uids = f"UID in precondition: {obj['metadata']['uid']}, UID in object meta: "
                    raise conflict(kind.group, kind.plural, name, f"Precondition failed: {uids}")
                obj["metadata"].pop("resourceVersion", None)
                return self.create(kind, namespace, obj, dry_run=dry_run), True
            raise not_found(kind.group, kind.plural, name)
        if kind.replaced_with_version_only and not obj["metadata"].get("resourceVersion"):
            cause = bad_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(kind.group, kind.name, name, [cause])
        return self._update(kind, old, obj, subresource=subresource, dry_run=dry_run), False

    def patch(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        change: Callable[[Json], Any],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> StoredObject:
        """Apply `change` to a copy of the object; it may change the copy or return another."""
        old = self.get(kind, namespace, name)
        obj = self._decode(kind, namespace, change(old.copy()))
        if obj["metadata"].get("name") != name:
            cause = bad_value("metadata.name", obj["metadata"].get("name"), "field is immutable")
            raise invalid(kind.group, kind.name, name, [cause])
        uid = obj["metadata"].get("uid")
        if uid != old.obj["metadata"]["uid"]:
            # A whole object with another UID (PUT) is a failed precondition; a patch that writes one is a bad field.
            raise invalid(kind.group, kind.name, name, [bad_value("metadata.uid", uid, "field is immutable")])
        return self._update(kind, old, obj, subresource=subresource, dry_run=dry_run)

    def apply(
        self, kind: ResourceKind, namespace: str, name: str, apply: Apply, *, dry_run: bool = False
    ) -> tuple[StoredObject, bool]:
        """Server-side apply. Also returns whether the object was created."""
        old = self.store.get(kind.stored_as, (namespace, name))
        if old is None and apply.subresource:
            raise not_found(kind.group, kind.plural, name)
        start: Json = {"metadata": {"name": name}} if old is None else old.copy()
        check_shape(kind, apply.config)
        obj, managed_fields = apply.to(start)
        obj = self._decode(kind, namespace, {**obj, **_type_of(apply.config)})
        obj["metadata"]["managedFields"] = managed_fields
        if old is None:
            return self.create(kind, namespace, obj, dry_run=dry_run, is_decoded=True), True
        return self._update(kind, old, obj, subresource=apply.subresource, dry_run=dry_run), False

    def delete(self, kind: ResourceKind, namespace: str, name: str, options: DeleteOptions) -> DeleteResult:
        entry = self.get(kind, namespace, name)
        metadata = entry.obj["metadata"]
        for field_name, wanted, actual, since in (
            ("UID", options.uid, metadata["uid"], "deleted and then recreated"),
            ("ResourceVersion", options.resource_version, metadata["resourceVersion"], "modified"),
        ):
            if wanted is not None and wanted != actual:
                reason = (
                    f"the {field_name} in the precondition ({wanted}) does not match the {field_name} in record ({actual}). "
                    f"The object might have been {since}"
                )
                raise conflict(kind.group, kind.name, name, reason)
        check_may_be_deleted(kind, name)
        finalizers = list(metadata.get("finalizers") or ())
        wanted_finalizer = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(options.propagation)
        if wanted_finalizer and wanted_finalizer not in finalizers and not metadata.get("deletionTimestamp"):
            finalizers.append(wanted_finalizer)
        grace_s = self._grace_s(kind, entry.obj, options)
        waits_for_namespace = kind.rules == "namespaces" and bool(
            (entry.obj.get("spec") or {}).get("finalizers")
        )
        if grace_s == 0 and not finalizers and not waits_for_namespace:
            if options.dry_run:
                return DeleteResult(entry, removed=True)
            if kind.rules == "pods":
                # The only kind that may be given time is marked first even if it has none: watchers see both.
                self._mark_deleted(kind, entry, finalizers, grace_s, dry_run=False)
            return DeleteResult(self.store.remove(kind.stored_as, entry.key), removed=True)
        return DeleteResult(
            self._mark_deleted(kind, entry, finalizers, grace_s, dry_run=options.dry_run), removed=False
        )

    def _grace_s(self, kind: ResourceKind, obj: Json, options: DeleteOptions) -> int:
        """The grace period in seconds; only a pod that may be running on a node has one."""
        if kind.rules != "pods":
            return 0
        grace_s = options.grace_period_s
        if grace_s is None:
            grace_s = obj["spec"].get("terminationGracePeriodSeconds", 30)
        done = (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if not obj["spec"].get("nodeName") or done:
            return 0
        return 1 if grace_s < 0 else int(grace_s)

    def _mark_deleted(
        self, kind: ResourceKind, entry: StoredObject, finalizers: list[str], grace_s: int, *, dry_run: bool
    ) -> StoredObject:
        """Mark the object for deletion. A later, shorter grace period shortens the first one."""
        metadata = dict(entry.obj["metadata"])
        obj = {**entry.obj, "metadata": metadata}
        already_s = metadata.get("deletionGracePeriodSeconds")
        if already_s is None or grace_s < already_s:
            metadata["deletionTimestamp"] = timestamp(self.now() + grace_s)
            metadata["deletionGracePeriodSeconds"] = grace_s
            if kind.has_generation and already_s is None:
                metadata["generation"] = metadata.get("generation", 0) + 1
        if finalizers:
            metadata["finalizers"] = finalizers
        if kind.rules == "namespaces":
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        if obj == entry.obj:
            return entry
        return self.write(kind, entry.key, obj, dry_run=dry_run)

    def _decode(self, kind: ResourceKind, namespace: str, body: Any) -> Json:
        """Decode a body to an object of this kind and namespace, without `kind` and `apiVersion`."""
        obj = check_shape(kind, body)
        api_version, name = obj.pop("apiVersion", None), obj.pop("kind", None)
        if api_version not in (None, "", kind.api_version):
            raise bad_request(
                f"the API version in the data ({api_version}) does not match the expected API version ({kind.api_version})"
            )
        if name not in (None, "", kind.name):
            raise bad_request(f"the kind in the data ({name}) does not match the expected kind ({kind.name})")
        metadata = obj["metadata"]
        metadata.pop("managedFields", None)
        if not kind.namespaced:
            metadata.pop("namespace", None)
        elif metadata.setdefault("namespace", namespace) != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        return obj

    def _update(
        self, kind: ResourceKind, old: StoredObject, obj: Json, *, subresource: str, dry_run: bool
    ) -> StoredObject:
        before, metadata = old.obj, obj["metadata"]
        name = before["metadata"]["name"]
        if metadata.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            uids = f"UID in precondition: {metadata['uid']}, UID in object meta: {before['metadata']['uid']}"
            raise conflict(kind.group, kind.plural, name, f"Precondition failed: {uids}")
        if metadata.get("resourceVersion") not in (None, "", before["metadata"]["resourceVersion"]):
            raise version_conflict(kind.group, kind.plural, name)
        for key in (
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "generateName",
            "resourceVersion",
        ):
            if key in before["metadata"]:
                metadata[key] = before["metadata"][key]
            else:
                metadata.pop(key, None)
        # Only an apply brings owners of fields; every other write leaves them as they are.
        owners = metadata.get("managedFields", before["metadata"].get("managedFields"))
        obj = self._restrict_to_subresource(kind, before, obj, subresource)
        if owners is not None:
            obj["metadata"]["managedFields"] = owners
        if not subresource or kind.custom is not None:
            set_defaults(kind, obj)
        if not subresource:
            admit_update(kind, obj)
            if kind.rules == "pods":
                obj["spec"].setdefault("priority", before["spec"].get("priority", 0))
        validate_update(kind, before, obj)
        if obj == before:
            return old
        if kind.has_generation and _desired(kind, obj) != _desired(kind, before):
            obj["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1
        if _is_finished(kind, obj):
            return old if dry_run else self._remove_finalized(kind, old.key, obj)
        return self.write(kind, old.key, obj, dry_run=dry_run)

    def _restrict_to_subresource(self, kind: ResourceKind, before: Json, obj: Json, subresource: str) -> Json:
        """Restrict a write to the status, or to everything but the status."""
        if "status" not in kind.subresources:
            return obj
        if subresource == "status":
            kept = {**before, "status": obj.get("status", {}), "metadata": dict(before["metadata"])}
            if kind.rules in _FREE_METADATA_IN_STATUS:
                for key in ("labels", "annotations"):
                    if key in obj["metadata"]:
                        kept["metadata"][key] = obj["metadata"][key]
                    else:
                        kept["metadata"].pop(key, None)
            return kept
        if subresource == "finalize":
            spec = {**(before.get("spec") or {}), **(obj.get("spec") or {})}
            return {**before, "metadata": dict(before["metadata"]), "spec": spec}
        if "status" in before:
            obj["status"] = before["status"]
        else:
            obj.pop("status", None)
        if kind.rules == "namespaces":
            obj["spec"] = before.get("spec", {})
        return obj

    def _remove_finalized(self, kind: ResourceKind, key: tuple[str, str], obj: Json) -> StoredObject:
        """Remove an object that is being deleted once it has no finalizers."""
        self.store.put(kind.stored_as, key, obj)
        return self.store.remove(kind.stored_as, key)

    def write(self, kind: ResourceKind, key: tuple[str, str], obj: Json, *, dry_run: bool) -> StoredObject:
        if dry_run:
            return StoredObject(key, obj, self.store.version)
        return self.store.put(kind.stored_as, key, obj)

    def _generated_name(self, kind: ResourceKind, namespace: str, prefix: str) -> str:
        """A free generated name, found in at most eight tries as in kube-apiserver."""
        for _ in range(8):
            letters = "".join(self.random.choice(_NAME_LETTERS) for _ in range(5))
            name = prefix[:_GENERATED_PREFIX_MAX] + letters
            if self.store.get(kind.stored_as, (namespace, name)) is None:
                return name
        raise already_exists(kind.group, kind.plural, prefix)


def _desired(kind: ResourceKind, obj: Json) -> Any:
    """What a new generation is counted for: the spec, and everything but metadata and status in a custom resource."""
    if kind.custom is None:
        return obj.get("spec")
    observed = ("metadata", "status") if "status" in kind.subresources else ("metadata",)
    return {field: value for field, value in obj.items() if field not in observed}


def _is_finished(kind: ResourceKind, obj: Json) -> bool:
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if kind.rules == "namespaces" and (obj.get("spec") or {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def with_condition(status: Json, condition: Json, now: str) -> Json:
    """Set a condition by type. The transition time changes only with the condition's status."""
    conditions = list(status.get("conditions") or ())
    at = next((i for i, old in enumerate(conditions) if old.get("type") == condition["type"]), None)
    moved = {"lastProbeTime": None, "lastTransitionTime": now, **condition}
    if at is None:
        conditions.append(moved)
    else:
        if conditions[at].get("status") == condition["status"]:
            moved["lastTransitionTime"] = conditions[at].get("lastTransitionTime", now)
        conditions[at] = moved
    return {**status, "conditions": conditions}


def _type_of(body: Json) -> Json:
    return {key: body[key] for key in ("apiVersion", "kind") if key in body}
