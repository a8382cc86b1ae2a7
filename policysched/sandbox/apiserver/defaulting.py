"""Sets defaults of objects before they are validated and stored.

Defaults are those of the API types (`SetDefaults_*`) and of the strategies' `PrepareForCreate`, as far as
clients can see them. Those of a custom resource are in its schema, which also prunes it.
"""

import base64
from collections.abc import Callable
from typing import Any

from policysched.sandbox.apiserver.custom_resources import default_definition, first_definition_status
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.quantities import parse_quantity

Json = dict[str, Any]

DEFAULT_SCHEDULER = "default-scheduler"
_PROBE_DEFAULTS = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def pod_spec(spec: Json) -> None:
    """The defaults of a pod's or a pod template's spec."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", DEFAULT_SCHEDULER)
    for container in _containers(spec):
        _container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in _dicts(spec.get("volumes")):
        for source in ("configMap", "secret", "downwardAPI", "projected"):
            if isinstance(volume.get(source), dict):
                volume[source].setdefault("defaultMode", 420)


def _dicts(value: Any) -> list[Json]:
    """The objects in a list; absent lists and malformed items are skipped (validation reports the latter)."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _containers(spec: Json) -> list[Json]:
    return _dicts(spec.get("initContainers")) + _dicts(spec.get("containers"))


def _container(container: Json, *, host_network: bool) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        tag = str(container.get("image") or "").rpartition("/")[2].partition("@")
        moves = not tag[1] and (":" not in tag[0] or tag[0].endswith(":latest"))
        container["imagePullPolicy"] = "Always" if moves else "IfNotPresent"
    for port in _dicts(container.get("ports")):
        port.setdefault("protocol", "TCP")
        if host_network and not port.get("hostPort") and "containerPort" in port:
            port["hostPort"] = port["containerPort"]
    for env in _dicts(container.get("env")):
        field_ref = (env.get("valueFrom") or {}).get("fieldRef")
        if isinstance(field_ref, dict):
            field_ref.setdefault("apiVersion", "v1")
    for probe_name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(probe_name)
        if isinstance(probe, dict):
            for key, value in _PROBE_DEFAULTS.items():
                probe.setdefault(key, value)
            if isinstance(probe.get("httpGet"), dict):
                probe["httpGet"].setdefault("scheme", "HTTP")
                probe["httpGet"].setdefault("path", "/")


def pod(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        return
    pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in _containers(spec):
        resources = container["resources"]
        limits = resources.get("limits") if isinstance(resources, dict) else None
        if isinstance(limits, dict) and limits:
            requests = resources.setdefault("requests", {})
            for resource, quantity in limits.items():
                requests.setdefault(resource, quantity)
    if spec.get("hostNetwork") is False:
        del spec["hostNetwork"]


def pod_status(obj: Json) -> Json:
    """The status of a new pod: Pending, its QoS class, and a condition if it has scheduling gates."""
    status: Json = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
    if obj["spec"].get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastProbeTime": None,
                "lastTransitionTime": obj["metadata"]["creationTimestamp"],
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    return status


def qos_class(spec: Json) -> str:
    """Guaranteed, Burstable or BestEffort: `ComputePodQOS` in kubernetes' pkg/apis/core/helper/qos.

    Only cpu and memory count, zero counts as absent, init containers count like the others.
    """
    requests: Json = {}
    limits: Json = {}
    guaranteed = True
    for container in _containers(spec):
        resources = container.get("resources") or {}
        for total, container_amounts in (
            (requests, resources.get("requests")),
            (limits, resources.get("limits")),
        ):
            names = set()
            for resource in ("cpu", "memory"):
                quantity = parse_quantity((container_amounts or {}).get(resource, 0))
                if quantity > 0:
                    total[resource] = total.get(resource, 0) + quantity
                    names.add(resource)
            if total is limits and names != {"cpu", "memory"}:
                guaranteed = False
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


def _template(spec: Json) -> None:
    template = spec.setdefault("template", {})
    if not isinstance(template, dict):
        return
    template.setdefault("metadata", {})
    inner = template.setdefault("spec", {})
    if isinstance(inner, dict):
        pod_spec(inner)


def deployment(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        return
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _template(spec)


def replica_set(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if isinstance(spec, dict):
        spec.setdefault("replicas", 1)
        _template(spec)


def stateful_set(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        return
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("partition", 0)
        rolling.setdefault("maxUnavailable", 1)  # since 1.37, by the gate MaxUnavailableStatefulSet
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for moment in ("whenDeleted", "whenScaled"):
        retention.setdefault(moment, "Retain")
    _template(spec)


def daemon_set(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        return
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        for name, value in (("maxSurge", 0), ("maxUnavailable", 1)):
            strategy.setdefault("rollingUpdate", {}).setdefault(name, value)
    _template(spec)


def replication_controller(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        return
    spec.setdefault("replicas", 1)
    _template(spec)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)


def job(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    if not isinstance(spec, dict):
        return
    if "parallelism" not in spec and "completions" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    _template(spec)
    uid, name = obj["metadata"].get("uid"), obj["metadata"].get("name")
    if (
        uid
        and not spec.get("manualSelector")
        and "selector" not in spec
        and isinstance(spec["template"], dict)
    ):
        labels = spec["template"]["metadata"].setdefault("labels", {})
        for prefix in ("batch.kubernetes.io/", ""):
            labels[f"{prefix}controller-uid"] = uid
            labels[f"{prefix}job-name"] = name
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}


def namespace(obj: Json) -> None:
    name = obj["metadata"].get("name")
    if name:
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])


def node(obj: Json) -> None:
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def priority_class(obj: Json) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj.setdefault("value", 0)


def service(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in _dicts(spec.get("ports")):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def persistent_volume(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")


def persistent_volume_claim(obj: Json) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def storage_class(obj: Json) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def secret(obj: Json) -> None:
    """`stringData` is write-only: its values go to `data`."""
    texts = obj.pop("stringData", None) or {}
    if texts:
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
    obj.setdefault("type", "Opaque")


def event(obj: Json) -> None:
    """Set missing times to null: kubectl sorts by them and shows nothing for a missing field."""
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        obj.setdefault(name, None)


def set_defaults(kind: ResourceKind, obj: Json) -> None:
    """Complete an object, in place."""
    if kind.custom is not None:
        kind.custom.schema.prune(obj)
        kind.custom.schema.complete(obj)
    elif kind.plural in _DEFAULTS:
        _DEFAULTS[kind.plural](obj)


def set_first_status(kind: ResourceKind, obj: Json) -> None:
    """Set the status that a create begins with, unless the kind keeps the one that it brings."""
    if "status" not in kind.subresources or kind.has_status:
        return
    if kind.custom is not None:
        obj.pop("status", None)
    else:
        obj["status"] = _FIRST_STATUS[kind.plural](obj) if kind.plural in _FIRST_STATUS else {}


_DEFAULTS: dict[str, Callable[[Json], None]] = {
    "pods": pod,
    "deployments": deployment,
    "replicasets": replica_set,
    "statefulsets": stateful_set,
    "replicationcontrollers": replication_controller,
    "jobs": job,
    "events": event,
    "namespaces": namespace,
    "nodes": node,
    "priorityclasses": priority_class,
    "daemonsets": daemon_set,
    "secrets": secret,
    "services": service,
    "persistentvolumes": persistent_volume,
    "persistentvolumeclaims": persistent_volume_claim,
    "storageclasses": storage_class,
    "customresourcedefinitions": default_definition,
}

_FIRST_STATUS: dict[str, Callable[[Json], Json]] = {
    "pods": pod_status,
    "namespaces": lambda _: {"phase": "Active"},
    "customresourcedefinitions": first_definition_status,
    "persistentvolumes": lambda _: {"phase": "Available"},
    "persistentvolumeclaims": lambda _: {"phase": "Pending"},
}
"""The status that a create begins with; the other kinds with a status begin with an empty one."""
