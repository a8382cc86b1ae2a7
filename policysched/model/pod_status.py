"""Pods as the API server reports them: phase, node and container events."""

import re
from dataclasses import dataclass, field
from typing import Literal

from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod

REFUSED_BIND = re.compile(r"binding to \S+ was refused: ")
"""How the condition of a pod begins whose bind was refused. A later process reads it, too."""
SINCE_REFUSED_BIND = "; since then: "
"""What follows the refusal there, while members of the pod's gang are to be evicted for it."""

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class ResourceShortage:
    """The resource that a kubelet lacked for a pod. `free` is the kubelet's own figure in the units of
    `Node.allocatable`; None where it reports none."""

    resource: str
    free: int | None


@dataclass(frozen=True, slots=True)
class KubeletRejection:
    """The kubelet rejected a pod that was bound to its node. `shortage` None: for another reason than resources."""

    reason: str
    shortage: ResourceShortage | None


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """A container started or terminated at `at_ns`.

    `run_id` identifies the run; every restart is a new one. `run_duration_ns`, `exit_code` and `reason` describe a
    terminated run. `downtime_ns` is the time between the end of the previous run and this start; None where unknown.
    `pod_failed`: the pod has failed by then. `is_pod_event`: the pod failed (evicted, or lost with its node) without an
    event of a container.
    """

    name: str
    run_id: str
    terminated: bool
    at_ns: int
    exit_code: int = 0
    reason: str = ""
    run_duration_ns: int = 0
    restarts: int = 0
    downtime_ns: int | None = None
    pod_failed: bool = False
    is_pod_event: bool = False


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as the API server last reported it.

    `node` None: not bound. A `finished` pod holds no resources. `started_ns`: when the kubelet accepted it (None: not
    yet). `preempted`: it is being deleted by a preemption. `rejection`: why its node's kubelet rejected it.
    `nominated_by_other`: another component set `nominated_node`.

    The remaining fields are ignored when pods are compared. `refused_bind` is the message of a bind of the pending pod that
    was refused last ("": none was). `version` is the `resourceVersion` of an unbound pod, used
    as a precondition of writes; `generation` is that of its spec (0: not reported); `container_events` are the latest.
    """

    pod: Pod
    node: NodeName | None
    phase: Phase
    deleting: bool
    nominated_node: NodeName | None
    started_ns: int | None = None
    preempted: bool = False
    rejection: KubeletRejection | None = None
    nominated_by_other: bool = False
    refused_bind: str = field(default="", compare=False)
    version: str = field(default="", compare=False)
    generation: int = field(default=0, compare=False)
    container_events: tuple[ContainerEvent, ...] = field(default=(), compare=False)

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")
