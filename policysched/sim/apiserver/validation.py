"""What the API server refuses to store: field errors, all of one object in one answer.

Checked is what a scheduler and the people around it run into: names, labels, containers, quantities, selectors,
fields that may not change. The real server checks more; an object that passes here and fails there is a gap, the
other way round a bug.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from policysched.sim.apiserver.errors import (
    Refusal,
    bad_request,
    bad_value,
    duplicate,
    invalid,
    may_not,
    not_supported,
    required,
)
from policysched.sim.apiserver.eventrules import event_causes
from policysched.sim.apiserver.kinds import Kind
from policysched.sim.apiserver.quantities import parse_quantity
from policysched.sim.apiserver.selectors import from_label_selector, labels_match
from policysched.sim.apiserver.shapes import misshapen

Json = dict[str, Any]
Cause = tuple[str, str, str]

_LABEL_TEXT = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = re.compile(_LABEL_TEXT)
_SUBDOMAIN_TEXT = rf"{_LABEL_TEXT}(\.{_LABEL_TEXT})*"
_SUBDOMAIN = re.compile(_SUBDOMAIN_TEXT)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN_TEXT}')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL_TEXT}')"
)
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def check_shape(kind: Kind, obj: Any) -> Json:
    """Refuse with a 400 what the real server could not decode into its type."""
    if not isinstance(obj, dict):
        raise bad_request(f"a {kind.name} is an object, not {type(obj).__name__}")
    metadata = obj.setdefault("metadata", {})
    if metadata is None:
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        raise _undecodable(kind, "metadata", "an object")
    for field in ("labels", "annotations"):
        value = metadata.get(field)
        if value is None:
            metadata.pop(field, None)
        elif not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise _undecodable(kind, f"metadata.{field}", "an object of strings")
    for field in ("spec", "status"):
        if obj.get(field, {}) is None:
            del obj[field]
        elif not isinstance(obj.get(field, {}), dict):
            raise _undecodable(kind, field, "an object")
    for field, what in misshapen(kind.plural, obj):
        raise _undecodable(kind, field, what)
    if kind.plural == "pods":
        _check_quantities(kind, obj.get("spec") or {})
    if kind.plural == "priorityclasses" and not isinstance(obj.get("value", 0), int):
        raise _undecodable(kind, "value", "a whole number")
    return obj


def _undecodable(kind: Kind, field: str, what: str) -> Refusal:
    return bad_request(
        f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: json: {field} must be {what}'
    )


def _check_quantities(kind: Kind, spec: Json) -> None:
    for path, container in _containers(kind, spec):
        resources = container.get("resources") or {}
        if not isinstance(resources, dict):
            raise _undecodable(kind, f"{path}.resources", "an object")
        for group in ("requests", "limits"):
            quantities = resources.get(group) or {}
            if not isinstance(quantities, dict):
                raise _undecodable(kind, f"{path}.resources.{group}", "an object")
            for quantity in quantities.values():
                try:
                    parse_quantity(quantity)
                except ValueError:
                    raise bad_request(
                        f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: quantities must '
                        r"match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                    ) from None


def _containers(kind: Kind, spec: Json) -> Iterator[tuple[str, Json]]:
    for field in ("initContainers", "containers"):
        value = spec.get(field)
        if value is not None and not isinstance(value, list):
            raise _undecodable(kind, f"spec.{field}", "a list")
        for at, container in enumerate(value or ()):
            if not isinstance(container, dict):
                raise _undecodable(kind, f"spec.{field}[{at}]", "an object")
            yield f"spec.{field}[{at}]", container


def check_new(kind: Kind, obj: Json) -> None:
    """Refuse with a 422 what may not be created."""
    causes = [*_metadata(kind, obj), *_RULES.get(kind.plural, _no_rules)(obj)]
    group = kind.group
    if kind.plural == "events":
        causes += event_causes(obj, through_events_v1=group == "events.k8s.io")
        group = ""  # whichever version brought it, the refusal speaks of core's
    if causes:
        raise invalid(group, kind.name, obj["metadata"].get("name", ""), causes)


def check_changed(kind: Kind, old: Json, new: Json) -> None:
    """Refuse with a 422 what may not become of an object."""
    causes = [
        *_metadata(kind, new),
        *_changed_metadata(old, new),
        *_CHANGE_RULES.get(kind.plural, _no_change_rules)(old, new),
    ]
    if kind.plural != "pods":
        causes += _RULES.get(kind.plural, _no_rules)(new)
    if causes:
        raise invalid(kind.group, kind.name, new["metadata"]["name"], causes)


def _no_rules(obj: Json) -> list[Cause]:  # noqa: ARG001 - one signature for all rules
    return []


def _no_change_rules(old: Json, new: Json) -> list[Cause]:  # noqa: ARG001 - one signature for all rules
    return []


def _metadata(kind: Kind, obj: Json) -> list[Cause]:
    metadata = obj["metadata"]
    name = metadata.get("name")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    causes: list[Cause] = []
    if not isinstance(name, str):
        return [bad_value("metadata.name", name, "must be a string")]
    if kind.plural == "namespaces":
        if not _LABEL.fullmatch(name) or len(name) > 63:
            causes.append(bad_value("metadata.name", name, _LABEL_RULE))
    elif not _SUBDOMAIN.fullmatch(name):
        causes.append(bad_value("metadata.name", name, _SUBDOMAIN_RULE))
    elif len(name) > 253:
        causes.append(bad_value("metadata.name", name, "must be no more than 253 characters"))
    causes += _labels("metadata.labels", metadata.get("labels") or {})
    causes.extend(
        bad_value("metadata.annotations", key, _QUALIFIED_RULE)
        for key in metadata.get("annotations") or {}
        if not _is_qualified(key.lower())
    )
    return causes


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        return False
    return len(name) <= 63 and _QUALIFIED.fullmatch(name) is not None


def _labels(path: str, labels: Json) -> list[Cause]:
    causes = [bad_value(path, key, _QUALIFIED_RULE) for key in labels if not _is_qualified(key)]
    for value in labels.values():
        if len(value) > 63:
            causes.append(bad_value(path, value, "must be no more than 63 bytes"))
        elif not _LABEL_VALUE.fullmatch(value):
            causes.append(bad_value(path, value, _LABEL_VALUE_RULE))
    return causes


def _changed_metadata(old: Json, new: Json) -> list[Cause]:
    if not old["metadata"].get("deletionTimestamp"):
        return []
    added = set(new["metadata"].get("finalizers") or ()) - set(old["metadata"].get("finalizers") or ())
    if added:
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}"
        return [may_not("metadata.finalizers", why)]
    return []


def _pod(obj: Json) -> list[Cause]:
    return _pod_spec("spec", obj["spec"])


def _pod_spec(path: str, spec: Json) -> list[Cause]:
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
    causes += _labels(f"{path}.nodeSelector", spec.get("nodeSelector") or {})
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
            may_not(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared")
        )
    causes += _required_node_affinity(path, spec)
    for at, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        causes += _spread(f"{path}.topologySpreadConstraints[{at}]", constraint)
    return causes


def _container(path: str, container: Json, names: set[str]) -> list[Cause]:
    causes: list[Cause] = []
    name = container.get("name")
    if not name:
        causes.append(required(f"{path}.name"))
    elif not _LABEL.fullmatch(name) or len(name) > 63:
        causes.append(bad_value(f"{path}.name", name, _LABEL_RULE))
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
        for place, expression in enumerate(term.get("matchExpressions") or ()):
            where = f"{field}[{at}].matchExpressions[{place}]"
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


def _spread(path: str, constraint: Json) -> list[Cause]:
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


def _changed_pod(old: Json, new: Json) -> list[Cause]:
    before, after = old["spec"], new["spec"]
    causes: list[Cause] = []
    old_gates = {gate["name"] for gate in before.get("schedulingGates") or ()}
    new_gates = {gate.get("name") for gate in after.get("schedulingGates") or ()}
    if new_gates - old_gates:
        added = ", ".join(sorted(f'"{gate}"' for gate in new_gates - old_gates))
        causes.append(
            may_not(
                "spec.schedulingGates", f"only deletion is allowed, but found new scheduling gate {added}"
            )
        )
    old_tolerations, new_tolerations = before.get("tolerations") or [], after.get("tolerations") or []
    if any(toleration not in new_tolerations for toleration in old_tolerations):
        causes.append(
            may_not(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
        )
    if _fixed_part(before, gated=bool(old_gates)) != _fixed_part(after, gated=bool(old_gates)):
        causes.append(may_not("spec", _POD_UPDATE_RULE))
    elif not after.get("containers"):
        causes.append(required("spec.containers"))
    return causes


def _fixed_part(spec: Json, *, gated: bool) -> Json:
    """The spec without what may change. A gated pod may also have its node selection narrowed."""
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


def _workload(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    causes: list[Cause] = []
    selector = spec.get("selector")
    if not selector or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        causes.append(required("spec.selector"))
    elif not labels_match(from_label_selector(selector), spec["template"]["metadata"].get("labels")):
        labels = spec["template"]["metadata"].get("labels") or {}
        causes.append(
            bad_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    return causes + _replicated(spec)


def _replication_controller(obj: Json) -> list[Cause]:
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
    causes += _labels("spec.template.labels", spec["template"]["metadata"].get("labels") or {})
    causes += _pod_spec("spec.template.spec", spec["template"]["spec"])
    if spec["template"]["spec"].get("restartPolicy") in ("OnFailure", "Never"):
        policy = spec["template"]["spec"]["restartPolicy"]
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return causes


def _changed_workload(old: Json, new: Json) -> list[Cause]:
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


def _changed_stateful_set(old: Json, new: Json) -> list[Cause]:
    before, after = (
        {field: value for field, value in one["spec"].items() if field not in _OF_A_STATEFUL_SET}
        for one in (old, new)
    )
    if before == after:
        return []
    fields = "', '".join(_OF_A_STATEFUL_SET[:-1]) + f"' and '{_OF_A_STATEFUL_SET[-1]}"
    return [may_not("spec", f"updates to statefulset spec for fields other than '{fields}' are forbidden")]


def _job(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    causes = _pod_spec("spec.template.spec", spec["template"]["spec"])
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy == "Always":
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("OnFailure", "Never")))
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        causes.append(required("spec.completions", "when completion mode is Indexed"))
    return causes


def _changed_job(old: Json, new: Json) -> list[Cause]:
    return [
        bad_value(f"spec.{field}", new["spec"].get(field), "field is immutable")
        for field in ("selector", "template", "completionMode")
        if old["spec"].get(field) != new["spec"].get(field)
    ]


def _changed_configmap(old: Json, new: Json) -> list[Cause]:
    if not old.get("immutable"):
        return []
    fields = ("data", "binaryData", "immutable")
    return [
        may_not(field, "field is immutable when `immutable` is set")
        for field in fields
        if old.get(field) != new.get(field)
    ]


def _changed_priority_class(old: Json, new: Json) -> list[Cause]:
    return [
        may_not(field, "may not be changed in an update.")
        for field in ("value", "preemptionPolicy")
        if old.get(field) != new.get(field)
    ]


_BUILT_IN_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def _priority_class(obj: Json) -> list[Cause]:
    name = obj["metadata"]["name"]
    if name.startswith("system-"):
        if _BUILT_IN_CLASSES.get(name) == obj["value"]:
            return []
        return [
            may_not(
                "metadata.name", "priority class names with 'system-' prefix are reserved for system use only"
            )
        ]
    if obj["value"] > 1_000_000_000:
        return [may_not("value", "maximum allowed value of a user defined priority is 1000000000")]
    return []


_RULES: dict[str, Callable[[Json], list[Cause]]] = {
    "pods": _pod,
    "deployments": _workload,
    "replicasets": _workload,
    "statefulsets": _workload,
    "replicationcontrollers": _replication_controller,
    "jobs": _job,
    "priorityclasses": _priority_class,
}

_CHANGE_RULES: dict[str, Callable[[Json, Json], list[Cause]]] = {
    "pods": _changed_pod,
    "deployments": _changed_workload,
    "replicasets": _changed_workload,
    "statefulsets": _changed_stateful_set,
    "jobs": _changed_job,
    "configmaps": _changed_configmap,
    "priorityclasses": _changed_priority_class,
}
