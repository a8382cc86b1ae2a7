"""Writes the status of a PodGroup, as its API defines it.

Kubernetes' conditions are merged by type; scheduler-plugins and Volcano are custom resources, whose lists are replaced.
The UID in the patch makes the server refuse it for another group of that name.
"""

from dataclasses import dataclass
from typing import Any

from policysched.kube.client.api import MERGE_PATCH, STRATEGIC_PATCH, ApiClient
from policysched.kube.client.transport import METADATA_ONLY
from policysched.kube.decode.pod_groups import scheduled_condition
from policysched.model.pod_groups import PodGroupKey, PodGroupStatus
from policysched.text.sanitize import escape_unprintable

Json = dict[str, Any]
_MESSAGE_LENGTH_MAX = 32_768
"""Of a `metav1.Condition`."""


@dataclass(frozen=True, slots=True)
class PodGroupStatusWrite:
    """The status to write to the group with this UID, in the version that the server serves."""

    key: PodGroupKey
    uid: str
    api_version: str
    status: PodGroupStatus

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def content(self) -> PodGroupStatus:
        """Equal contents are written once."""
        return self.status


async def write_pod_group_status(
    api: ApiClient, write: PodGroupStatusWrite, now: str, written: PodGroupStatus | None, server_timeout: str
) -> None:
    """`now` in RFC 3339; `written`: what this process wrote last. Raises ApiErrors."""
    key = write.key
    path = f"/apis/{key.api}/{write.api_version}/namespaces/{key.namespace}/podgroups/{key.name}/status"
    if key.api == "scheduling.k8s.io":
        kind, status = STRATEGIC_PATCH, _kubernetes_status(write, now, written)
    else:
        kind, status = (
            MERGE_PATCH,
            _third_party_status(write.status, now, volcano=key.api.endswith("volcano.sh")),
        )
    body = {"metadata": {"uid": write.uid}, "status": status}
    await api.patch(path, body, kind, params={"timeout": server_timeout}, timeout_s=4.0, accept=METADATA_ONLY)


def _kubernetes_status(write: PodGroupStatusWrite, now: str, written: PodGroupStatus | None) -> Json:
    conditions: list[Json] = []
    if write.status.condition is not None:
        before = None if written is None or written.condition is None else written.condition[0]
        conditions.append(
            _condition(scheduled_condition(write.api_version), write.status.condition, now, before)
        )
    if write.status.disrupted and not (written is not None and written.disrupted):
        message = "members of higher priority need the nodes of this group"
        conditions.append(
            _condition("DisruptionTarget", ("True", "PreemptionByScheduler", message), now, None)
        )
    return {"conditions": conditions}


def _third_party_status(status: PodGroupStatus, now: str, *, volcano: bool) -> Json:
    counts: Json = {
        "phase": status.phase,
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
    }
    if not volcano or status.condition is None or status.other_conditions is None:
        return counts
    outcome, reason, message = status.condition
    kind = "Scheduled" if outcome == "True" else "Unschedulable"
    condition = _condition(kind, ("True", reason, message), now, None)
    return {**counts, "conditions": [*map(dict, status.other_conditions), condition]}


def _condition(kind: str, condition: tuple[str, str, str], now: str, before: str | None) -> Json:
    """`before`: the outcome that the server has, None if that is not known. Its time changes with the outcome only."""
    outcome, reason, message = condition
    changed = {} if outcome == before else {"lastTransitionTime": now}
    return {
        "type": kind,
        "status": outcome,
        "reason": reason,
        "message": escape_unprintable(message)[:_MESSAGE_LENGTH_MAX],
        **changed,
    }
