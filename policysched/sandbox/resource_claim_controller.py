"""The claim controller that a cluster without a controller manager lacks: who makes claims for devices, and ends them.

As the real one does it: a pod's claim is made from its template and named in the pod's status; a claim is not reserved
any more for pods that are gone or have finished; one that nobody uses gives its devices back, and then may go.
"""

from collections.abc import Callable
from typing import Any

from policysched.kube.write.resource_claims import FINALIZER
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.workloads import owner_reference

Json = dict[str, Any]

DEVICE_CLAIMS, CLAIM_TEMPLATES = "resourceclaims", "resourceclaimtemplates"
_FINISHED_PHASES = ("Succeeded", "Failed")


class ResourceClaimController:
    """`handlers` by resource: each brings one object to what it should be, from what is there now."""

    def __init__(self, local: LocalClient):
        self._local = local
        self.handlers: dict[str, Callable[[Json], None]] = {
            DEVICE_CLAIMS: self._reconcile_claim,
            CLAIM_TEMPLATES: self._reconcile_template,
        }

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _reconcile_claim(self, obj: Json) -> None:
        """A claim that nobody uses yet, or whose reservation a scheduler took back, keeps its devices."""
        metadata = obj["metadata"]
        reserved = (obj.get("status") or {}).get("reservedFor") or []
        users = [one for one in reserved if self._is_consumer_alive(metadata["namespace"], one)]
        left = users != reserved or bool(metadata.get("deletionTimestamp"))
        if left:
            self._local.update(
                DEVICE_CLAIMS, obj, lambda current: _with_consumers(current, users), subresource="status"
            )
        if left and not users and FINALIZER in (metadata.get("finalizers") or ()):
            self._local.update(DEVICE_CLAIMS, obj, _without_finalizer)

    def _is_consumer_alive(self, namespace: str, consumer: Json) -> bool:
        pod = self._local.get("pods", namespace, consumer["name"])
        if pod is None or pod["metadata"]["uid"] != consumer["uid"]:
            return False
        return (pod.get("status") or {}).get("phase") not in _FINISHED_PHASES

    def reserved_claims(self, pod: Json) -> list[tuple[str, str, str]]:
        """The addresses of those that are reserved for the pod, which is gone or has finished."""
        metadata = pod["metadata"]
        return [
            (DEVICE_CLAIMS, metadata["namespace"], one["metadata"]["name"])
            for one in self._local.list(DEVICE_CLAIMS, metadata["namespace"])
            if any(
                user["uid"] == metadata["uid"] for user in (one.get("status") or {}).get("reservedFor") or ()
            )
        ]

    # ── pods and templates ─────────────────────────────────────────────────────────────────────────────────────────

    def reconcile_pod(self, obj: Json) -> None:
        """Makes the claims of a pod's templates, and names them."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        if status.get("phase") in _FINISHED_PHASES:
            for address in self.reserved_claims(obj):
                claim = self._local.get(*address)
                if claim is not None:
                    self._reconcile_claim(claim)
            return
        named = list(status.get("resourceClaimStatuses") or ())
        known = {one["name"] for one in named}
        for wanted in obj["spec"].get("resourceClaims") or ():
            template = wanted.get("resourceClaimTemplateName")
            found = self._local.get(CLAIM_TEMPLATES, metadata["namespace"], template) if template else None
            if found is not None and wanted["name"] not in known:
                named.append(
                    {
                        "name": wanted["name"],
                        "resourceClaimName": self._create_claim(obj, wanted["name"], found),
                    }
                )
        if len(named) > len(known):
            self._local.set_status("pods", obj, resourceClaimStatuses=named)

    def _create_claim(self, pod: Json, name: str, template: Json) -> str:
        metadata = pod["metadata"]
        own = f"{metadata['name']}-{name}-{metadata['uid'][:5]}"
        if self._local.get(DEVICE_CLAIMS, metadata["namespace"], own) is None:
            of_template = template["spec"]
            meta = {**(of_template.get("metadata") or {}), "name": own}
            meta["annotations"] = {
                **(meta.get("annotations") or {}),
                "resource.kubernetes.io/pod-claim-name": name,
            }
            meta["ownerReferences"] = [owner_reference("Pod", "v1", pod)]
            self._local.create(
                DEVICE_CLAIMS, metadata["namespace"], {"metadata": meta, "spec": of_template["spec"]}
            )
        return own

    def _reconcile_template(self, obj: Json) -> None:
        """Pods may have waited for it."""
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
    metadata["finalizers"] = [one for one in metadata.get("finalizers") or () if one != FINALIZER]
    return claim
