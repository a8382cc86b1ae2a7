"""Validation of pod specs, in pods and templates, and of their updates."""

from typing import Any

from policysched.sandbox.apiserver.errors import (
    Cause,
    bad_value,
    duplicate,
    forbidden_field,
    not_supported,
    required,
)
from policysched.sandbox.apiserver.name_rules import LABEL, LABEL_RULE, label_causes
from policysched.sandbox.apiserver.quantities import parse_quantity

Json = dict[str, Any]


def pod_causes(obj: Json) -> list[Cause]:
    return pod_spec_causes("spec", obj["spec"])


def pod_spec_causes(path: str, spec: Json) -> list[Cause]:
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(required(f"{path}.containers"))
    names: set[str] = set()
    for field in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(field) or ()):
            causes += _container(f"{path}.{field}[{at}]", container, names)
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        allowed = ("Always", "OnFailure", "Never")
        causes.append(not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), allowed))
    causes += label_causes(f"{path}.nodeSelector", spec.get("nodeSelector") or {})
    for at, toleration in enumerate(spec.get("tolerations") or ()):
        causes += _toleration(f"{path}.tolerations[{at}]", toleration)
    gates = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    causes.extend(
        duplicate(f"{path}.schedulingGates[{at}]", gate)
        for at, gate in enumerate(gates)
        if gate in gates[:at]
    )
    if gates and spec.get("nodeName"):
        causes.append(
            forbidden_field(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared")
        )
    causes += _required_node_affinity(path, spec)
    for at, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        causes += _topology_spread_causes(f"{path}.topologySpreadConstraints[{at}]", constraint)
    return causes


def _container(path: str, container: Json, names: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    name = container.get("name")
    if not name:
        causes.append(required(f"{path}.name"))
    elif not LABEL.fullmatch(name) or len(name) > 63:
        causes.append(bad_value(f"{path}.name", name, LABEL_RULE))
    elif name in names:
        causes.append(duplicate(f"{path}.name", name))
    names.add(name or "")
    if not container.get("image"):
        causes.append(required(f"{path}.image"))
    for at, port in enumerate(container.get("ports") or ()):
        for field in ("containerPort", "hostPort"):
            number = port.get(field)
            if number is None and field == "hostPort":
                continue
            if not isinstance(number, int) or not 0 < number < 65536:
                causes.append(
                    bad_value(f"{path}.ports[{at}].{field}", number, "must be between 1 and 65535, inclusive")
                )
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    for group in ("requests", "limits"):
        causes.extend(
            bad_value(
                f"{path}.resources.{group}[{resource}]", str(quantity), "must be greater than or equal to 0"
            )
            for resource, quantity in (resources.get(group) or {}).items()
            if parse_quantity(quantity) < 0
        )
    causes.extend(
        bad_value(
            f"{path}.resources.requests",
            str(quantity),
            f"must be less than or equal to {resource} limit of {limits[resource]}",
        )
        for resource, quantity in (resources.get("requests") or {}).items()
        if resource in limits and parse_quantity(quantity) > parse_quantity(limits[resource])
    )
    return causes


def _toleration(path: str, toleration: Json) -> list[Cause]:
    operator = toleration.get("operator") or "Equal"
    if operator not in ("Equal", "Exists", "Lt", "Gt"):
        return [not_supported(f"{path}.operator", operator, ("Equal", "Exists"))]
    causes: list[Cause] = []
    if not toleration.get("key") and operator != "Exists":
        causes.append(
            bad_value(
                f"{path}.operator",
                operator,
                'operator must be Exists when `key` is empty, which means "match all values and all keys"',
            )
        )
    if operator == "Exists" and toleration.get("value"):
        causes.append(
            bad_value(
                f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'"
            )
        )
    effect = toleration.get("effect") or ""
    if effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        causes.append(
            not_supported(f"{path}.effect", effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        )
    return causes


def _required_node_affinity(path: str, spec: Json) -> list[Cause]:
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    wanted = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if wanted is None:
        return []
    field = f"{path}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    terms = wanted.get("nodeSelectorTerms")
    if not terms:
        return [required(field, "must have at least one node selector term")]
    causes: list[Cause] = []
    operators = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
    for at, term in enumerate(terms):
        for index, expression in enumerate(term.get("matchExpressions") or ()):
            where = f"{field}[{at}].matchExpressions[{index}]"
            if expression.get("operator") not in operators:
                causes.append(
                    bad_value(
                        f"{where}.operator", expression.get("operator"), "not a valid selector operator"
                    )
                )
            elif expression["operator"] in ("In", "NotIn") and not expression.get("values"):
                causes.append(
                    required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
                )
    return causes


def _topology_spread_causes(path: str, constraint: Json) -> list[Cause]:
    causes: list[Cause] = []
    if not isinstance(constraint.get("maxSkew"), int) or constraint["maxSkew"] < 1:
        causes.append(bad_value(f"{path}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero"))
    if not constraint.get("topologyKey"):
        causes.append(required(f"{path}.topologyKey", "can not be empty"))
    actions = ("DoNotSchedule", "ScheduleAnyway")
    if constraint.get("whenUnsatisfiable") not in actions:
        causes.append(
            not_supported(f"{path}.whenUnsatisfiable", constraint.get("whenUnsatisfiable", ""), actions)
        )
    return causes


_POD_UPDATE_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def changed_pod_causes(old: Json, new: Json) -> list[Cause]:
    before, after = old["spec"], new["spec"]
    causes: list[Cause] = []
    old_gates = {gate["name"] for gate in before.get("schedulingGates") or ()}
    new_gates = {gate.get("name") for gate in after.get("schedulingGates") or ()}
    if new_gates - old_gates:
        added = ", ".join(sorted(f'"{gate}"' for gate in new_gates - old_gates))
        causes.append(
            forbidden_field(
                "spec.schedulingGates", f"only deletion is allowed, but found new scheduling gate {added}"
            )
        )
    old_tolerations, new_tolerations = before.get("tolerations") or [], after.get("tolerations") or []
    if any(toleration not in new_tolerations for toleration in old_tolerations):
        causes.append(
            forbidden_field(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
        )
    if _immutable_part(before, gated=bool(old_gates)) != _immutable_part(after, gated=bool(old_gates)):
        causes.append(forbidden_field("spec", _POD_UPDATE_RULE))
    elif not after.get("containers"):
        causes.append(required("spec.containers"))
    return causes


def _immutable_part(spec: Json, *, gated: bool) -> Json:
    """The spec without mutable fields. A gated pod may also narrow its node selection."""
    free = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    if gated:
        free |= {"nodeSelector", "affinity"}
    fixed = {key: value for key, value in spec.items() if key not in free and value not in (None, [], {})}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [
                {key: value for key, value in container.items() if key not in ("image", "imagePullPolicy")}
                for container in fixed[field]
            ]
    return fixed
