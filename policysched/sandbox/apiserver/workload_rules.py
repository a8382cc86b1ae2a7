"""Validation of Deployments, ReplicaSets, StatefulSets, ReplicationControllers and Jobs, and of their updates."""

from typing import Any

from policysched.sandbox.apiserver.errors import Cause, bad_value, forbidden_field, not_supported, required
from policysched.sandbox.apiserver.name_rules import label_causes
from policysched.sandbox.apiserver.pod_rules import pod_spec_causes
from policysched.sandbox.apiserver.selectors import label_requirements, labels_match

Json = dict[str, Any]


def workload_causes(obj: Json) -> list[Cause]:
    return _selector_causes(obj["spec"]) + _replicated(obj["spec"])


def daemon_set_causes(obj: Json) -> list[Cause]:
    return _selector_causes(obj["spec"]) + _template_causes(obj["spec"])


def _selector_causes(spec: Json) -> list[Cause]:
    causes: list[Cause] = []
    selector = spec.get("selector")
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        causes.append(required("spec.selector"))
    elif not labels_match(label_requirements(selector), spec["template"]["metadata"].get("labels")):
        labels = spec["template"]["metadata"].get("labels") or {}
        causes.append(
            bad_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    return causes


def replication_controller_causes(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    causes: list[Cause] = []
    selector, labels = spec.get("selector"), spec["template"]["metadata"].get("labels") or {}
    if not selector:
        causes.append(required("spec.selector"))
    elif not selector.items() <= labels.items():
        causes.append(
            bad_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    return causes + _replicated(spec)


def _replicated(spec: Json) -> list[Cause]:
    causes: list[Cause] = []
    replicas = spec.get("replicas")
    if not isinstance(replicas, int) or replicas < 0:
        causes.append(bad_value("spec.replicas", replicas, "must be greater than or equal to 0"))
    return causes + _template_causes(spec)


def _template_causes(spec: Json) -> list[Cause]:
    causes: list[Cause] = []
    causes += label_causes("spec.template.labels", spec["template"]["metadata"].get("labels") or {})
    causes += pod_spec_causes("spec.template.spec", spec["template"]["spec"])
    if spec["template"]["spec"].get("restartPolicy") in ("OnFailure", "Never"):
        policy = spec["template"]["spec"]["restartPolicy"]
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return causes


def changed_workload_causes(old: Json, new: Json) -> list[Cause]:
    if old["spec"].get("selector") != new["spec"].get("selector"):
        return [bad_value("spec.selector", new["spec"].get("selector"), "field is immutable")]
    return []


_OF_A_STATEFUL_SET = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def changed_stateful_set_causes(old: Json, new: Json) -> list[Cause]:
    before, after = (
        {field: value for field, value in obj["spec"].items() if field not in _OF_A_STATEFUL_SET}
        for obj in (old, new)
    )
    if before == after:
        return []
    fields = "', '".join(_OF_A_STATEFUL_SET[:-1]) + f"' and '{_OF_A_STATEFUL_SET[-1]}"
    return [
        forbidden_field("spec", f"updates to statefulset spec for fields other than '{fields}' are forbidden")
    ]


def job_causes(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    causes = pod_spec_causes("spec.template.spec", spec["template"]["spec"])
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy == "Always":
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("OnFailure", "Never")))
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        causes.append(required("spec.completions", "when completion mode is Indexed"))
    return causes


def changed_job_causes(old: Json, new: Json) -> list[Cause]:
    return [
        bad_value(f"spec.{field}", new["spec"].get(field), "field is immutable")
        for field in ("selector", "template", "completionMode")
        if old["spec"].get(field) != new["spec"].get(field)
    ]
