"""Decodes PodGroups of three APIs, and how a pod names its group.

Source: k8s.io/api v0.36.3 `scheduling/v1alpha2` and v0.37.2 `scheduling/v1beta1`; the CRDs of scheduler-plugins
(`scheduling.x-k8s.io/v1alpha1`) and Volcano (`scheduling.volcano.sh/v1beta1`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import orjson

from policysched.kube.decode.errors import OverLimit
from policysched.kube.decode.pod_resources import decode_resource_list
from policysched.kube.decode.primitives import decode_object, require_schema, text
from policysched.model.pod_groups import (
    GROUP_ANNOTATION,
    GROUP_LABEL,
    GroupReference,
    PodGroup,
    PodGroupApi,
    PodGroupKey,
    PodGroupStatus,
)
from policysched.text.short_key import short_key

Json = Mapping[str, Any]

POD_GROUP_APIS: Mapping[str, PodGroupApi] = {
    "scheduling.k8s.io": "scheduling.k8s.io",
    "scheduling.x-k8s.io": "scheduling.x-k8s.io",
    "scheduling.volcano.sh": "scheduling.volcano.sh",
}
"""The API groups that have PodGroups."""

SCHEDULED_CONDITIONS: Mapping[str, str] = {"v1alpha2": "PodGroupScheduled"}
_SCHEDULED_CONDITION = "PodGroupInitiallyScheduled"
MIN_RESOURCES_MAX = 64
"""Limit of the resources in `minResources`: each pod of the group has an amount of each."""

OTHER_CONDITIONS_BYTES_MAX = 4096
_CONDITION_CHARACTERS_MAX = 32_768
"""Limits of all conditions of other writers, and of each text of a condition: a status is remembered for longer than its group."""

VOLCANO_CONDITIONS = ("Scheduled", "Unschedulable")


def scheduled_condition(api_version: str) -> str:
    """The type of the condition that says that a PodGroup of `scheduling.k8s.io` in this API version is scheduled."""
    return SCHEDULED_CONDITIONS.get(api_version, _SCHEDULED_CONDITION)


def decode_group_references(meta: Json, spec: Json) -> tuple[GroupReference, ...]:
    """The PodGroups that a pod names, by field, label and annotation. An annotation longer than any name is shortened, since
    messages quote it."""
    named: dict[PodGroupApi, Any] = {
        "scheduling.k8s.io": (spec.get("schedulingGroup") or {}).get("podGroupName"),
        "scheduling.x-k8s.io": (meta.get("labels") or {}).get(GROUP_LABEL),
        "scheduling.volcano.sh": (meta.get("annotations") or {}).get(GROUP_ANNOTATION),
    }
    return tuple(GroupReference(api, short_key(text(name))) for api, name in named.items() if name)


def decode_pod_group(
    obj: Json, api: PodGroupApi, api_version: str, *, is_validated: bool = False
) -> PodGroup:
    """A PodGroup as the server returns it in this version of the API. `is_validated`: the API server has validated it, so its
    schema is checked only if decoding fails. Raises MalformedObject."""
    kind = f"PodGroup.{api}"
    if not is_validated:
        require_schema(kind, obj)
    read = _kubernetes_group if api == "scheduling.k8s.io" else _third_party_group
    return decode_object(kind, obj, lambda checked: read(checked, api, api_version))


def _key(meta: Json, api: PodGroupApi) -> PodGroupKey:
    return PodGroupKey(api, text(meta.get("namespace") or "default"), text(meta["name"]))


def _kubernetes_group(obj: Json, api: PodGroupApi, api_version: str) -> PodGroup:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    key = _key(meta, api)
    gang = (spec.get("schedulingPolicy") or {}).get("gang")
    topology = (spec.get("schedulingConstraints") or {}).get("topology") or ()
    workload = spec.get("workloadRef") or (spec.get("podGroupTemplateRef") or {}).get("workload") or {}
    conditions = status.get("conditions") or ()
    wanted = scheduled_condition(api_version)
    return PodGroup(
        key=key,
        uid=text(meta.get("uid") or f"{key.namespace}/{key.name}"),
        api_version=api_version,
        minimum=1 if gang is None else max(1, int(gang["minCount"])),
        topology=text(topology[0]["key"]) if topology else None,
        disruption=_disruption(spec.get("disruptionMode")),
        priority=None if spec.get("priority") is None else int(spec["priority"]),
        preemption_policy=_preemption_policy(spec.get("preemptionPolicy")),
        workload=workload.get("workloadName") or None,
        parent=spec.get("parentCompositePodGroupName") or None,
        has_claims=bool(spec.get("resourceClaims")),
        version=str(meta.get("resourceVersion") or ""),
        status=PodGroupStatus(
            condition=next(
                (_condition(condition) for condition in conditions if condition.get("type") == wanted), None
            )
        ),
    )


def _third_party_group(obj: Json, api: PodGroupApi, api_version: str) -> PodGroup:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    key, timeout_s = _key(meta, api), spec.get("scheduleTimeoutSeconds")
    conditions = status.get("conditions") or ()
    volcano_conditions = [
        condition for condition in conditions if condition.get("type") in VOLCANO_CONDITIONS
    ]
    return PodGroup(
        key=key,
        uid=text(meta.get("uid") or f"{key.namespace}/{key.name}"),
        api_version=api_version,
        minimum=max(1, int(spec.get("minMember") or 0)),
        min_resources=_min_resources(spec),
        timeout_ns=int(timeout_s) * 10**9 if timeout_s else None,
        version=str(meta.get("resourceVersion") or ""),
        status=PodGroupStatus(
            condition=_volcano_condition(volcano_conditions[-1]) if volcano_conditions else None,
            phase=short_key(text(status.get("phase") or "")),
            running=int(status.get("running") or 0),
            succeeded=int(status.get("succeeded") or 0),
            failed=int(status.get("failed") or 0),
            other_conditions=_other_conditions(conditions),
        ),
    )


def _other_conditions(conditions: Iterable[Json]) -> tuple[Json, ...] | None:
    others = tuple(condition for condition in conditions if condition.get("type") not in VOLCANO_CONDITIONS)
    try:
        return others if len(orjson.dumps(others)) <= OTHER_CONDITIONS_BYTES_MAX else None
    except orjson.JSONEncodeError:  # nested in hundreds of levels
        return None


def _min_resources(spec: Json) -> Mapping[str, int]:
    """Amounts by resource. Volcano's controllers add a ResourceQuota's names: `requests.cpu` is the cpu, limits do not count."""
    written = spec.get("minResources") or {}
    if len(written) > MIN_RESOURCES_MAX:
        raise OverLimit("spec.minResources", f"has {len(written)} resources, more than {MIN_RESOURCES_MAX}")
    amounts = decode_resource_list(written, "spec.minResources")
    named = {short_key(name.removeprefix("requests.")): amount for name, amount in amounts.items()}
    return {name: amount for name, amount in named.items() if not name.startswith(("limits.", "count/"))}


def _condition(condition: Json) -> tuple[str, str, str]:
    status, reason, message = (
        str(condition.get(name) or "")[:_CONDITION_CHARACTERS_MAX] for name in ("status", "reason", "message")
    )
    return status, reason, message


def _volcano_condition(condition: Json) -> tuple[str, str, str]:
    """Volcano has one condition type for each outcome, with the status True."""
    status = "True" if condition.get("type") == "Scheduled" else "False"
    return (status, *_condition(condition)[1:])


def _disruption(mode: Any) -> Literal["single", "all"] | None:
    """`disruptionMode`: a map with `single` or `all` in v1beta1, `Pod` or `PodGroup` in v1alpha2."""
    match mode:
        case "Pod":
            return "single"
        case "PodGroup":
            return "all"
        case {"all": _}:
            return "all"
        case {"single": _}:
            return "single"
        case _:
            return None


def _preemption_policy(policy: Any) -> Literal["PreemptLowerPriority", "Never"] | None:
    match policy:
        case None | "":
            return None
        case "Never":
            return "Never"
        case _:
            return "PreemptLowerPriority"
