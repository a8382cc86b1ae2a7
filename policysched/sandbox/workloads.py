"""Simulated controllers of Deployments, ReplicaSets and Jobs.

Supported as in the real controllers: owner references, names, template hash, rolling updates with
surge and unavailability, recreate, pause, revision history; Jobs with completions, parallelism,
indexes, backoff limit, suspension and time to live. Not supported: adoption of matching pods,
`minReadySeconds`, progress deadlines, per-index backoff, pod failure and success policies.
"""

import math
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.registry import with_condition
from policysched.sandbox.apiserver.timestamps import timestamp
from policysched.sandbox.local_client import ClusterClient

Json = dict[str, Any]
EnqueueAfter = Callable[[float, str, Json], None]

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
INDEX = "batch.kubernetes.io/job-completion-index"
_HASH_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


class ListOwned(Protocol):
    """Lists the existing objects of a resource that an object owns."""

    def __call__(self, plural: str, owner: Json) -> list[Json]: ...


def owner_reference(kind: str, api_version: str, obj: Json) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_active(pod: Json) -> bool:
    """Whether the pod is neither finished nor being deleted."""
    finished = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not finished and not pod["metadata"].get("deletionTimestamp")


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _deletion_rank(pod: Json) -> tuple[bool, bool, float]:
    """The order of deletion when scaling down: unassigned first, then not ready, then the newest."""
    return (bool(pod["spec"].get("nodeName")), is_ready(pod), -int(pod["metadata"]["resourceVersion"]))


def pod_from_template(template: Json, owner: Json) -> Json:
    metadata = template.get("metadata") or {}
    return {
        "metadata": {
            "generateName": f"{owner['name']}-",
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": [owner],
        },
        # A copy, because the API server adds defaults in place.
        "spec": orjson.loads(orjson.dumps(template["spec"])),
    }


class ReplicaSetController:
    """Creates and deletes pods to match `spec.replicas`."""

    def __init__(self, local: ClusterClient, owned: ListOwned):
        self._local = local
        self._owned = owned

    def reconcile(self, obj: Json) -> None:
        metadata, spec = obj["metadata"], obj["spec"]
        active = [pod for pod in self._owned("pods", obj) if is_active(pod)]
        failure = None
        missing = spec["replicas"] - len(active)
        if missing > 0:
            failure = self._create(obj, missing)
        elif missing < 0:
            for pod in sorted(active, key=_deletion_rank)[:-missing]:
                self._local.delete("pods", pod)
        active = [pod for pod in self._owned("pods", obj) if is_active(pod)]
        ready = sum(1 for pod in active if is_ready(pod))
        status = obj.get("status") or {}
        conditions = [c for c in status.get("conditions") or () if c["type"] != "ReplicaFailure"]
        if failure is not None:
            condition = {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": failure,
            }
            conditions = with_condition({"conditions": conditions}, condition, metadata["creationTimestamp"])[
                "conditions"
            ]
        self._local.set_status(
            "replicasets",
            obj,
            replicas=len(active),
            fullyLabeledReplicas=len(active),
            readyReplicas=ready,
            availableReplicas=ready,
            observedGeneration=metadata["generation"],
            conditions=conditions or None,
        )

    def _create(self, obj: Json, count: int) -> str | None:
        """Create pods. Returns the message of the first failure."""
        owner = owner_reference("ReplicaSet", "apps/v1", obj)
        for _ in range(count):
            try:
                self._local.create(
                    "pods", obj["metadata"]["namespace"], pod_from_template(obj["spec"]["template"], owner)
                )
            except StatusError as error:
                return error.message
        return None


class DeploymentController:
    """Creates a ReplicaSet for each template and moves replicas from the old ones to the newest."""

    def __init__(self, local: ClusterClient, owned: ListOwned):
        self._local = local
        self._owned = owned

    def reconcile(self, obj: Json) -> None:
        replica_sets = self._owned("replicasets", obj)
        new = next((rs for rs in replica_sets if _template_of(rs) == obj["spec"]["template"]), None)
        if new is None and not obj["spec"].get("paused"):
            new = self._create(obj, replica_sets)
        old = [rs for rs in replica_sets if new is None or rs["metadata"]["uid"] != new["metadata"]["uid"]]
        if new is not None:
            if obj["spec"]["strategy"]["type"] == "Recreate":
                self._recreate(obj, new, old)
            else:
                self._rolling_update(obj, new, old)
        self._delete_old_revisions(obj, old)
        self._update_status(obj, new)

    def _create(self, obj: Json, replica_sets: list[Json]) -> Json:
        metadata, template = obj["metadata"], obj["spec"]["template"]
        digest = _template_hash(template)
        labels = {**(template["metadata"].get("labels") or {}), HASH_LABEL: digest}
        revision = 1 + max(
            (int((rs["metadata"].get("annotations") or {}).get(REVISION, 0)) for rs in replica_sets),
            default=0,
        )
        selector = obj["spec"]["selector"]
        match_labels = {**(selector.get("matchLabels") or {}), HASH_LABEL: digest}
        copied = orjson.loads(orjson.dumps(template))
        return self._local.create(
            "replicasets",
            metadata["namespace"],
            {
                "metadata": {
                    "name": f"{metadata['name']}-{digest}",
                    "labels": labels,
                    "annotations": {REVISION: str(revision)},
                    "ownerReferences": [owner_reference("Deployment", "apps/v1", obj)],
                },
                "spec": {
                    # The first ReplicaSet gets all replicas; a later one grows in a rolling update.
                    "replicas": 0 if replica_sets else obj["spec"]["replicas"],
                    "selector": {**selector, "matchLabels": match_labels},
                    "template": {**copied, "metadata": {**copied["metadata"], "labels": labels}},
                },
            },
        )

    def _rolling_update(self, obj: Json, new: Json, old: list[Json]) -> None:
        """One step of a rolling update: scale up within maxSurge, down within maxUnavailable."""
        wanted = obj["spec"]["replicas"]
        surge, unavailable = _surge_and_unavailable(obj)
        total = sum(rs["spec"]["replicas"] for rs in (new, *old))
        surge_left = max(0, wanted + surge - total)
        grown = (
            min(wanted, new["spec"]["replicas"] + surge_left) if new["spec"]["replicas"] < wanted else wanted
        )
        self._scale(new, grown)
        total += grown - new["spec"]["replicas"]
        available_least = wanted - unavailable
        new_unavailable = max(0, grown - _available(new))
        may_go = total - available_least - new_unavailable
        for rs in sorted(old, key=lambda rs: rs["metadata"]["name"]):
            if may_go <= 0:
                return
            replicas = rs["spec"]["replicas"]
            # Unavailable replicas are removed first.
            not_available = min(replicas, max(0, replicas - _available(rs)), may_go)
            available = sum(_available(replica_set) for replica_set in (new, *old))
            spare = max(0, min(available - available_least, may_go - not_available, replicas - not_available))
            self._scale(rs, replicas - not_available - spare)
            may_go -= not_available + spare

    def _recreate(self, obj: Json, new: Json, old: list[Json]) -> None:
        for rs in old:
            self._scale(rs, 0)
        if not any(self._owned("pods", rs) for rs in old):
            self._scale(new, obj["spec"]["replicas"])

    def _scale(self, rs: Json, replicas: int) -> None:
        if rs["spec"]["replicas"] != replicas:
            self._local.update(
                "replicasets",
                rs,
                lambda current: {**current, "spec": {**current["spec"], "replicas": replicas}},
            )

    def _delete_old_revisions(self, obj: Json, old: list[Json]) -> None:
        empty = [
            rs for rs in old if rs["spec"]["replicas"] == 0 and not (rs.get("status") or {}).get("replicas")
        ]
        empty.sort(key=lambda rs: int((rs["metadata"].get("annotations") or {}).get(REVISION, 0)))
        surplus = len(empty) - obj["spec"].get("revisionHistoryLimit", 10)
        for rs in empty[: max(0, surplus)]:
            self._local.delete("replicasets", rs)

    def _update_status(self, obj: Json, new: Json | None) -> None:
        replica_sets = self._owned("replicasets", obj)
        wanted = obj["spec"]["replicas"]
        statuses = [rs.get("status") or {} for rs in replica_sets]
        total = sum(status.get("replicas", 0) for status in statuses)
        ready = sum(status.get("readyReplicas", 0) for status in statuses)
        updated = 0
        if new is not None:
            current = next(
                (rs for rs in replica_sets if rs["metadata"]["uid"] == new["metadata"]["uid"]), new
            )
            updated = (current.get("status") or {}).get("replicas", 0)
        _, unavailable = _surge_and_unavailable(obj)
        enough = ready >= wanted - unavailable
        done = updated == wanted and total == wanted and ready == wanted
        now = timestamp(self._local.now())
        status = obj.get("status") or {}
        for condition in (
            {
                "type": "Available",
                "status": "True" if enough else "False",
                "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
                "message": f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            },
            {
                "type": "Progressing",
                "status": "True",
                "reason": "NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
                "message": "The newest ReplicaSet has all its replicas."
                if done
                else "The newest ReplicaSet is progressing.",
            },
        ):
            status = with_condition(status, condition, now)
        conditions = [
            {key: value for key, value in c.items() if key != "lastProbeTime"} for c in status["conditions"]
        ]
        self._local.set_status(
            "deployments",
            obj,
            observedGeneration=obj["metadata"]["generation"],
            replicas=total,
            updatedReplicas=updated,
            readyReplicas=ready,
            availableReplicas=ready,
            unavailableReplicas=max(0, wanted - ready) or None,
            conditions=conditions,
        )


def _available(rs: Json) -> int:
    return int((rs.get("status") or {}).get("availableReplicas", 0))


def _template_of(rs: Json) -> Json:
    """A ReplicaSet's template without the hash label, as in its Deployment."""
    template = rs["spec"]["template"]
    labels = {
        key: value for key, value in template["metadata"].get("labels", {}).items() if key != HASH_LABEL
    }
    metadata = {**template["metadata"], "labels": labels}
    return {**template, "metadata": metadata}


def _template_hash(template: Json) -> str:
    digest = blake2b(orjson.dumps(template, option=orjson.OPT_SORT_KEYS), digest_size=10).digest()
    return "".join(_HASH_LETTERS[byte % len(_HASH_LETTERS)] for byte in digest)


def _surge_and_unavailable(obj: Json) -> tuple[int, int]:
    """maxSurge and maxUnavailable in pods: percentages round up and down, and they are never both 0."""
    rolling = obj["spec"]["strategy"].get("rollingUpdate") or {}
    wanted = obj["spec"]["replicas"]
    surge = _resolve_percentage(rolling.get("maxSurge", 0), wanted, math.ceil)
    unavailable = min(wanted, _resolve_percentage(rolling.get("maxUnavailable", 0), wanted, math.floor))
    return (surge, unavailable) if surge or unavailable else (0, 1)


def _resolve_percentage(value: int | str, total: int, rounded: Callable[[float], int]) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return rounded(int(value[:-1]) * total / 100)
    return int(value)


class JobController:
    """Runs pods until enough have succeeded or too many have failed."""

    def __init__(self, local: ClusterClient, owned: ListOwned, later: EnqueueAfter):
        self._local = local
        self._owned = owned
        self._later = later
        self._finished_pods: dict[str, dict[str, Json]] = {}

    def reconcile(self, obj: Json) -> None:
        metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
        finished = next(
            (c for c in status.get("conditions") or () if c["type"] in ("Complete", "Failed")), None
        )
        if finished is not None:
            self._finished_pods.pop(metadata["uid"], None)
            self._expire(obj)
            return
        pods = self._owned("pods", obj)
        # A finished pod still counts after its deletion.
        finished_pods = self._finished_pods.setdefault(metadata["uid"], {})
        finished_pods.update(
            (pod["metadata"]["uid"], pod)
            for pod in pods
            if pod["status"].get("phase") in ("Succeeded", "Failed")
        )
        succeeded = [pod for pod in finished_pods.values() if pod["status"]["phase"] == "Succeeded"]
        failed = len(finished_pods) - len(succeeded)
        active = [pod for pod in pods if is_active(pod)]
        completions = spec.get("completions")
        indexes = {_index(pod) for pod in succeeded}
        done = len(indexes) if spec["completionMode"] == "Indexed" else len(succeeded)
        complete = done >= completions if completions is not None else bool(succeeded) and not active
        too_many_failed = failed > spec["backoffLimit"]
        if complete or too_many_failed or spec.get("suspend"):
            for pod in active:
                self._local.delete("pods", pod)
        else:
            self._create_missing(obj, active, indexes, done)
        active = [pod for pod in self._owned("pods", obj) if is_active(pod)]
        self._update_status(obj, active, done, failed, complete=complete, too_many_failed=too_many_failed)

    def _create_missing(self, obj: Json, active: list[Json], indexes: set[str], done: int) -> None:
        spec = obj["spec"]
        completions = spec.get("completions")
        pods_left = completions - done if completions is not None else (0 if done else spec["parallelism"])
        missing = min(spec["parallelism"], pods_left) - len(active)
        for pod in sorted(active, key=_deletion_rank)[: max(0, -missing)]:
            self._local.delete("pods", pod)
        taken = indexes | {_index(pod) for pod in active}
        free = [str(at) for at in range(completions or 0) if str(at) not in taken]
        owner = owner_reference("Job", "batch/v1", obj)
        for at in range(max(0, missing)):
            pod = pod_from_template(spec["template"], owner)
            if spec["completionMode"] == "Indexed":
                name = obj["metadata"]["name"]
                pod["metadata"]["generateName"] = f"{name}-{free[at]}-"
                pod["metadata"]["annotations"][INDEX] = free[at]
                pod["metadata"]["labels"][INDEX] = free[at]
                pod["spec"].setdefault("hostname", f"{name}-{free[at]}")
            self._local.create("pods", obj["metadata"]["namespace"], pod)

    def _update_status(
        self, obj: Json, active: list[Json], done: int, failed: int, *, complete: bool, too_many_failed: bool
    ) -> None:
        now = timestamp(self._local.now())
        status: Json = {"conditions": list((obj.get("status") or {}).get("conditions") or ())}
        suspended = bool(obj["spec"].get("suspend"))
        conditions: list[Json] = []
        if complete:
            reason = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
            conditions = [
                {"type": kind, "status": "True", **reason} for kind in ("SuccessCriteriaMet", "Complete")
            ]
        elif too_many_failed:
            reason = {
                "reason": "BackoffLimitExceeded",
                "message": "Job has reached the specified backoff limit",
            }
            conditions = [{"type": kind, "status": "True", **reason} for kind in ("FailureTarget", "Failed")]
        elif suspended or any(c["type"] == "Suspended" for c in status["conditions"]):
            reason = {
                "reason": "JobSuspended" if suspended else "JobResumed",
                "message": "Job suspended" if suspended else "Job resumed",
            }
            conditions = [{"type": "Suspended", "status": "True" if suspended else "False", **reason}]
        for condition in conditions:
            status = with_condition(status, condition, now)
        started = (obj.get("status") or {}).get("startTime") or now
        self._local.set_status(
            "jobs",
            obj,
            startTime=None if suspended else started,
            active=len(active) or None,
            ready=sum(1 for pod in active if is_ready(pod)),
            succeeded=done or None,
            failed=failed or None,
            completionTime=now if complete else None,
            conditions=status["conditions"] or None,
        )

    def _expire(self, obj: Json) -> None:
        """Delete a finished Job after its `ttlSecondsAfterFinished`."""
        ttl_s = obj["spec"].get("ttlSecondsAfterFinished")
        if ttl_s is None:
            return
        status = obj["status"]
        finished = next(c for c in status["conditions"] if c["type"] in ("Complete", "Failed"))
        over_at = timestamp(self._local.now() - ttl_s)
        if finished["lastTransitionTime"] <= over_at:
            self._local.delete("jobs", obj)
        else:
            self._later(1.0, "jobs", obj)


def _index(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(INDEX, ""))
