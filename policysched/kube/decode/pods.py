"""Decodes pods.

JSON from the API server or a file is checked here once. Only fields that scheduling uses are read. Fields that no built-in
covers yet are listed in `Pod.uncovered`: such a pod stays pending with a message instead of being bound wrongly.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from policysched.kube.decode.affinity import decode_node_affinity
from policysched.kube.decode.core_objects import Json
from policysched.kube.decode.devices import (
    decode_device_claim_uses,
    decode_extended_requests,
    has_unknown_claim_kind,
)
from policysched.kube.decode.pod_affinity import decode_pod_affinity, decode_spread_constraints
from policysched.kube.decode.pod_groups import decode_group_references
from policysched.kube.decode.pod_resources import decode_pod_resources
from policysched.kube.decode.primitives import decode_object, string_map, text, time_ns
from policysched.kube.decode.rests import in_pieces
from policysched.kube.decode.volumes import decode_claim_uses, decode_disks, decode_mounts
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import (
    REFUSED_BIND,
    SINCE_REFUSED_BIND,
    ContainerEvent,
    KubeletRejection,
    ObservedPod,
    Phase,
    ResourceShortage,
)
from policysched.model.pods import HostPort, Pod, Toleration
from policysched.text.short_key import short_key

FIELD_MANAGER = "policysched"
"""Our manager in `managedFields`: the API server takes it from the User-Agent, up to the slash."""


def decode_pod(obj: Json) -> ObservedPod:
    """A v1 Pod. Raises MalformedObject."""
    return decode_object("Pod", obj, _pod)


def _pod(obj: Json) -> ObservedPod:
    return observed_pod(obj, _decode_pod_spec(obj["metadata"], obj["spec"], obj.get("status") or {}))


def observed_pod(obj: Json, pod: Pod) -> ObservedPod:
    """A v1 Pod whose spec and metadata are decoded."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    return ObservedPod(
        pod=pod,
        node=NodeName(spec["nodeName"]) if spec.get("nodeName") else None,
        phase=_phase(status.get("phase") or "Pending"),
        deleting=meta.get("deletionTimestamp") is not None,
        nominated_node=NodeName(status["nominatedNodeName"]) if status.get("nominatedNodeName") else None,
        started_ns=time_ns(status["startTime"]) if status.get("startTime") else None,
        preempted=any(_is_preemption_condition(condition) for condition in status.get("conditions") or ()),
        rejection=decode_kubelet_rejection(status),
        nominated_by_other=bool(status.get("nominatedNodeName")) and _is_nominated_by_other(meta),
        refused_bind="" if spec.get("nodeName") else _refused_bind(status),
        # No write to a bound pod needs its version, and bound pods are many.
        version="" if spec.get("nodeName") else str(meta.get("resourceVersion") or ""),
        generation=int(meta.get("generation") or 0),
        container_events=_container_transitions(meta, status) if spec.get("nodeName") else (),
    )


def _decode_pod_spec(meta: Json, spec: Json, status: Json) -> Pod:
    """The part of a pod that does not depend on its node. The status contributes its current requests and claims."""
    needs = decode_pod_resources(spec, status)
    affinity = spec.get("affinity") or {}
    owners: list[Json] = [
        reference for reference in meta.get("ownerReferences") or () if reference.get("controller")
    ]
    owner = owners[0] if owners else {}
    deadline_s = spec.get("activeDeadlineSeconds")
    space = text(meta.get("namespace") or "default")
    labels = string_map(meta.get("labels"), "metadata.labels")
    uid = PodUid(text(meta.get("uid") or f"{space}/{meta['name']}"))
    volumes = spec.get("volumes") or ()
    return Pod(
        uid=uid,
        name=text(meta["name"]),
        namespace=space,
        labels=labels,
        annotations=string_map(meta.get("annotations"), "metadata.annotations"),
        scheduler=text(spec.get("schedulerName") or "default-scheduler"),
        priority=int(spec.get("priority") or 0),
        preemption_policy="Never" if spec.get("preemptionPolicy") == "Never" else "PreemptLowerPriority",
        created_ns=time_ns(meta.get("creationTimestamp")),
        deadline_ns=None if deadline_s is None else int(deadline_s) * 10**9,
        owner_api=short_key(text(owner.get("apiVersion") or "")),
        owner_kind=short_key(text(owner.get("kind") or "")),
        owner_name=short_key(text(owner.get("name") or "")),
        service_account=text(spec.get("serviceAccountName") or ""),
        requests=needs.requests,
        limits=needs.limits,
        scoring_requests=needs.scoring,
        scoring_requests_placed=needs.scoring_on_node,
        qos=needs.qos,
        node_selector=string_map(spec.get("nodeSelector"), "spec.nodeSelector"),
        affinity=decode_node_affinity(affinity.get("nodeAffinity")),
        tolerations=tuple(_toleration(toleration) for toleration in in_pieces(spec.get("tolerations"))),
        host_ports=_host_ports(spec),
        images=_images(spec),
        image_volumes=_image_volumes(spec),
        gates=tuple(text(gate["name"]) for gate in spec.get("schedulingGates") or ()),
        pod_affinity=decode_pod_affinity(affinity, space, labels),
        spread=decode_spread_constraints(spec.get("topologySpreadConstraints"), labels),
        terminating=meta.get("deletionTimestamp") is not None,
        ready=is_ready(spec, status),
        required_features=_required_features(spec),
        uncovered=_uncovered(spec),
        claims=decode_claim_uses(volumes, space, text(meta["name"]), uid),
        disks=decode_disks(volumes),
        mounts=decode_mounts(volumes),
        device_claims=decode_device_claim_uses(spec, status, space, uid),
        extended=decode_extended_requests(spec),
        group_references=decode_group_references(meta, spec),
    )


def is_ready(spec: Json, status: Json) -> bool:
    return bool(spec.get("nodeName")) and any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )


def _container_transitions(meta: Json, status: Json) -> tuple[ContainerEvent, ...]:
    """Recent container events: the current run of each and the end of its previous run, then the failure of the pod."""
    events = []
    failed = status.get("phase") in _FAILED_PHASES
    for container_status in status.get("containerStatuses") or ():
        name, restarts = text(container_status["name"]), int(container_status.get("restartCount") or 0)
        before = (container_status.get("lastState") or {}).get("terminated")
        before_ns = 0 if before is None else time_ns(before.get("finishedAt"))
        for word in ("lastState", "state"):
            state = container_status.get(word) or {}
            for kind in ("running", "terminated"):
                run_state = state.get(kind)
                if run_state is None:
                    continue
                ended = kind == "terminated"
                began_ns = time_ns(run_state.get("startedAt"))
                at_ns = time_ns(run_state.get("finishedAt")) if ended else began_ns
                run = (run_state.get("containerID") if ended else container_status.get("containerID")) or str(
                    at_ns
                )
                follows = word == "state" and before_ns > 0 and began_ns > 0
                events.append(
                    ContainerEvent(
                        name=name,
                        run_id=text(run),
                        terminated=ended,
                        at_ns=at_ns,
                        exit_code=int(run_state.get("exitCode") or 0),
                        reason=text(run_state.get("reason") or ""),
                        run_duration_ns=max(0, at_ns - began_ns) if began_ns else 0,
                        restarts=restarts,
                        downtime_ns=max(0, began_ns - before_ns) if follows else None,
                        pod_failed=failed,
                    )
                )
    if failed:
        events.append(_pod_failure(meta, status, [event.at_ns for event in events]))
    return tuple(events)


_FAILED_PHASES = ("Failed", "Unknown")


def _pod_failure(meta: Json, status: Json, ends_ns: Sequence[int]) -> ContainerEvent:
    """The failure of the pod, at the latest time of its conditions and containers: no field has the exact time."""
    changed = [condition.get("lastTransitionTime") for condition in status.get("conditions") or ()]
    known_ns = [
        time_ns(time) for time in (meta.get("creationTimestamp"), status.get("startTime"), *changed) if time
    ]
    return ContainerEvent(
        name="",
        run_id="",
        terminated=True,
        at_ns=max((*known_ns, *ends_ns), default=0),
        reason=str(status.get("reason") or ""),
        pod_failed=True,
        is_pod_event=True,
    )


def _is_preemption_condition(condition: Json) -> bool:
    wanted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    return all(condition.get(key) == value for key, value in wanted.items())


def _refused_bind(status: Json) -> str:
    for condition in status.get("conditions") or ():
        message = str(condition.get("message") or "")
        if condition.get("type") == "PodScheduled" and REFUSED_BIND.match(message):
            return message.partition(SINCE_REFUSED_BIND)[0]
    return ""


def _is_nominated_by_other(meta: Json) -> bool:
    """Whether `managedFields` name another writer of `status.nominatedNodeName`. Without them (a file, the sandbox) the
    value counts as ours, because a former leader may have written it."""
    managers = {
        entry.get("manager")
        for entry in meta.get("managedFields") or ()
        if "f:nominatedNodeName" in ((entry.get("fieldsV1") or {}).get("f:status") or {})
    }
    return bool(managers) and FIELD_MANAGER not in managers


def _uncovered(spec: Json) -> tuple[str, ...]:
    fields = []
    if has_unknown_claim_kind(spec):
        fields.append("spec.resourceClaims of an unknown kind")
    if any(toleration.get("operator") in ("Gt", "Lt") for toleration in spec.get("tolerations") or ()):
        fields.append("spec.tolerations with the operator Gt or Lt")
    if spec.get("workloadRef"):
        fields.append("spec.workloadRef")
    if spec.get("schedulingGroup") and not spec["schedulingGroup"].get("podGroupName"):
        fields.append("spec.schedulingGroup without podGroupName")
    return tuple(fields)


def _required_features(spec: Json) -> frozenset[str]:
    """The node features that the pod requires and kubelets declare. Source: `InferForScheduling` of the features in
    k8s.io/component-helpers v0.37.2, `nodedeclaredfeatures/features`; other features concern updates of running pods."""
    features = set()
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    if any(
        rule.get("action") == "RestartAllContainers"
        for container in containers
        for rule in container.get("restartPolicyRules") or ()
    ):
        features.add("RestartAllContainersOnContainerExits")
    if any(
        mount.get("bindMountOptions")
        for container in containers
        for mount in container.get("volumeMounts") or ()
    ):
        features.add("VolumeBindMountOptions")
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        features.add("UserNamespacesHostNetworkSupport")
    return frozenset(features)


def _host_ports(spec: Json) -> tuple[HostPort, ...]:
    """Ports of containers and sidecars; other init containers have terminated by then."""
    holders = [*(spec.get("containers") or ())]
    holders += [init for init in spec.get("initContainers") or () if init.get("restartPolicy") == "Always"]
    ports = []
    for container in holders:
        for port in container.get("ports") or ():
            # With hostNetwork the API server sets hostPort to containerPort.
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                ports.append(
                    HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", int(number))
                )
    return tuple(ports)


def _images(spec: Json) -> tuple[str, ...]:
    names = [
        container.get("image") or ""
        for kind in ("initContainers", "containers")
        for container in spec.get(kind) or ()
    ]
    return tuple(normalized_image_name(name) for name in names)


def _image_volumes(spec: Json) -> tuple[str, ...]:
    sources = (volume["image"] for volume in spec.get("volumes") or () if volume.get("image"))
    return tuple(normalized_image_name(source.get("reference") or "") for source in sources)


def normalized_image_name(name: str) -> str:
    """A name without a tag gets `:latest`, as in ImageLocality."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


def _toleration(obj: Json) -> Toleration:
    return _shared_toleration(
        text(obj.get("key") or ""),
        text(obj.get("operator") or "Equal"),
        text(obj.get("value") or ""),
        text(obj.get("effect") or ""),
    )


@lru_cache(maxsize=1024)
def _shared_toleration(key: str, operator: str, value: str, effect: str) -> Toleration:
    """Nearly all pods have the same few tolerations; equal ones are one object."""
    return Toleration(key=key, operator=operator, value=value, effect=effect)


def _phase(value: Any) -> Phase:
    match value:
        case "Pending" | "Running" | "Succeeded" | "Failed" | "Unknown":
            return value  # type: ignore[no-any-return]
        case _:
            raise ValueError(f"unknown phase `{value}`")


_REJECTION_REASONS = frozenset(
    {
        *("AppArmor", "EmptyPodSharedPoolError", "Evicted", "InitContainerRestartPolicyForbidden"),
        *("InvalidNodeInfo", "NodeAffinity", "NodeName", "NodePorts", "NodeShutdown", "NodeUnschedulable"),
        *("PodFeatureUnsupported", "PodLevelResourcesNotSupported", "PodOSNotSupported"),
        *("PodOSSelectorNodeLabelDoesNotMatch", "SMTAlignmentError", "SupplementalGroupsPolicyNotSupported"),
        *("SysctlForbidden", "TaintToleration", "TopologyAffinityError", "UnexpectedAdmissionError"),
        *("UnexpectedPredicateFailureType", "UnknownReason", "VolumeAttachmentLimitExceeded"),
    }
)
"""Those of kubelets, except for lack of a resource. A node that invents others would make a series of metrics and a line of the
log for each. Source: `admissionRejectionReasons` in `pkg/kubelet/allocation`, and the admit handlers."""
_OUT_OF_PREFIX = "OutOf"
_REJECTED_PREFIX = "Pod was rejected"
_SHORTAGE_MESSAGE = re.compile(
    r"resource: (\S+), requested: \d{1,19}, used: (\d{1,19}), capacity: (\d{1,19})"
)


def decode_kubelet_rejection(status: Json) -> KubeletRejection | None:
    """Why the kubelet rejected a pod that was bound to its node. None: it admitted the pod, whatever happened later.

    A kubelet counts the free resources of its node itself, including static and terminating pods, and fails a pod that
    does not fit: reason `OutOfcpu`, with the amounts in the message. Other reasons are a node shutdown, a taint, an
    unavailable device. Source: `pkg/kubelet/lifecycle/predicate.go` and `rejectPod` in `pkg/kubelet/kubelet.go`.
    """
    reason, message = status.get("reason") or "", status.get("message") or ""
    if status.get("phase") != "Failed" or not isinstance(reason, str) or not isinstance(message, str):
        return None
    if reason.startswith(_OUT_OF_PREFIX) and len(reason) > len(_OUT_OF_PREFIX):
        return KubeletRejection(reason, _shortage(reason.removeprefix(_OUT_OF_PREFIX), message))
    if not message.startswith(_REJECTED_PREFIX):
        return None
    return KubeletRejection(reason if reason in _REJECTION_REASONS else "Other", None)


def _shortage(resource: str, message: str) -> ResourceShortage:
    count = _SHORTAGE_MESSAGE.search(message)
    if count is None or count[1] != resource:
        return ResourceShortage(resource, None)
    return ResourceShortage(resource, int(count[3]) - int(count[2]))
