"""Pods as the API server reports them: phase, node and container events."""

from dataclasses import dataclass, field
from typing import Literal

from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod

Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class ResourceShortage:
    """Of what a kubelet had too little for a pod: `free` by its own count, in the units of `Node.allocatable`; None where
    it does not say."""

    resource: str
    free: int | None


@dataclass(frozen=True, slots=True)
class KubeletRejection:
    """A kubelet did not take a pod that was bound to its node. `shortage` None: for another reason than room."""

    reason: str
    shortage: ResourceShortage | None


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """A container was started, or terminated, at `at_ns`. `run_id` names the run: every restart is another. `run_duration_ns`: how long it
    ran, 0 where it has only started; `exit_code` and `reason` are those of the end. `downtime_ns`: from the end of the run before
    to the start of this one, None where none is known. `pod_failed`: the pod as a whole has failed by then.

    `is_pod_event`: no container did anything, it is the pod that failed (evicted, lost with its node, or with its last container)."""

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
    """A pod as the API server last showed it. `node` None: not bound. `finished` pods hold no room. `started_ns`: when
    the kubelet took it up (None: not yet). `preempted`: a scheduler's preemption is what ends it.
    `rejection`: why its node's kubelet did not take it.

    `version` is the `resourceVersion` of a pod on no node, which a write on it names as the one it goes by; `generation`
    that of its spec (0: the server counts none). `container_events` is what the
    containers did lately. These make no two pods differ."""

    pod: Pod
    node: NodeName | None
    phase: Phase
    deleting: bool
    nominated_node: NodeName | None
    started_ns: int | None = None
    preempted: bool = False
    rejection: KubeletRejection | None = None
    version: str = field(default="", compare=False)
    generation: int = field(default=0, compare=False)
    container_events: tuple[ContainerEvent, ...] = field(default=(), compare=False)

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")
