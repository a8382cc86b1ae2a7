"""A simulated resource claim controller (part of kube-controller-manager): creates and releases claims.

It creates a pod's claims from templates and records their names in the pod's status; removes
reservations of deleted and finished pods; and deallocates claims that are no longer in use, which may
then be deleted.
"""

from collections.abc import Callable
from typing import Any

from policysched.kube.write.resource_claims import FINALIZER
from policysched.sandbox.local_client import ClusterClient
from policysched.sandbox.workloads import owner_reference

Json = dict[str, Any]

DEVICE_CLAIMS, CLAIM_TEMPLATES = "resourceclaims", "resourceclaimtemplates"
_FINISHED_PHASES = ("Succeeded", "Failed")


class ResourceClaimController:
    """Reconciles resource claims. `handlers` maps a resource to its reconcile function."""

    def __init__(self, local: ClusterClient):
        self._local = local
        self.handlers: dict[str, Callable[[Json], None]] = {
            DEVICE_CLAIMS: self._reconcile_claim,
            CLAIM_TEMPLATES: self._reconcile_template,
        }

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reconcile_claim(self, obj: Json) -> None:
        """Release the reservations of finished pods. A claim that was never reserved keeps its devices."""
        metadata = obj["metadata"]
        reserved = (obj.get("status") or {}).get("reservedFor") or []
        users = [user for user in reserved if self._is_consumer_alive(metadata["namespace"], user)]
        release = users != reserved or bool(metadata.get("deletionTimestamp"))
        if release:
            self._local.update(
                DEVICE_CLAIMS, obj, lambda current: _with_consumers(current, users), subresource="status"
            )
        if release and not users and FINALIZER in (metadata.get("finalizers") or ()):
            self._local.update(DEVICE_CLAIMS, obj, _without_finalizer)

    def _is_consumer_alive(self, namespace: str, consumer: Json) -> bool:
        pod = self._local.get("pods", namespace, consumer["name"])
        if pod is None or pod["metadata"]["uid"] != consumer["uid"]:
            return False
        return (pod.get("status") or {}).get("phase") not in _FINISHED_PHASES

    def reserved_claims(self, pod: Json) -> list[tuple[str, str, str]]:
        """The addresses of the claims that are reserved for the pod."""
        metadata = pod["metadata"]
        return [
            (DEVICE_CLAIMS, metadata["namespace"], claim["metadata"]["name"])
            for claim in self._local.list(DEVICE_CLAIMS, metadata["namespace"])
            if any(
                user["uid"] == metadata["uid"]
                for user in (claim.get("status") or {}).get("reservedFor") or ()
            )
        ]

    # ── pods and templates ─────────────────────────────────────────────────────────────────────────────────────────

    def reconcile_pod(self, obj: Json) -> None:
        """Create the claims of the pod's templates and record their names in its status."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        if status.get("phase") in _FINISHED_PHASES:
            for address in self.reserved_claims(obj):
                claim = self._local.get(*address)
                if claim is not None:
                    self._reconcile_claim(claim)
            return
        named = list(status.get("resourceClaimStatuses") or ())
        names = {status_entry["name"] for status_entry in named}
        for wanted in obj["spec"].get("resourceClaims") or ():
            template = wanted.get("resourceClaimTemplateName")
            template_object = (
                self._local.get(CLAIM_TEMPLATES, metadata["namespace"], template) if template else None
            )
            if template_object is not None and wanted["name"] not in names:
                named.append(
                    {
                        "name": wanted["name"],
                        "resourceClaimName": self._create_claim(obj, wanted["name"], template_object),
                    }
                )
        if len(named) > len(names):
            self._local.set_status("pods", obj, resourceClaimStatuses=named)

    def _create_claim(self, pod: Json, name: str, template: Json) -> str:
        metadata = pod["metadata"]
        claim_name = f"{metadata['name']}-{name}-{metadata['uid'][:5]}"
        if self._local.get(DEVICE_CLAIMS, metadata["namespace"], claim_name) is None:
            of_template = template["spec"]
            meta = {**(of_template.get("metadata") or {}), "name": claim_name}
            meta["annotations"] = {
                **(meta.get("annotations") or {}),
                "resource.kubernetes.io/pod-claim-name": name,
            }
            meta["ownerReferences"] = [owner_reference("Pod", "v1", pod)]
            self._local.create(
                DEVICE_CLAIMS, metadata["namespace"], {"metadata": meta, "spec": of_template["spec"]}
            )
        return claim_name

    def _reconcile_template(self, obj: Json) -> None:
        """Reconcile the pods of the namespace: some may have waited for the template."""
        for pod in self._local.list("pods", obj["metadata"]["namespace"]):
            if pod["spec"].get("resourceClaims") and not pod["metadata"].get("deletionTimestamp"):
                self.reconcile_pod(pod)


def _with_consumers(claim: Json, users: list[Json]) -> Json:
    status = claim.setdefault("status", {})
    status["reservedFor"] = users
    if not users:
        for field in ("reservedFor", "allocation", "devices"):
            status.pop(field, None)
    return claim


def _without_finalizer(claim: Json) -> Json:
    metadata = claim["metadata"]
    metadata["finalizers"] = [
        finalizer for finalizer in metadata.get("finalizers") or () if finalizer != FINALIZER
    ]
    return claim
