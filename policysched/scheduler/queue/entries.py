"""The entries of the scheduling queue: a pod, or a gang as a whole.

    new ──► gated ──► active ◄──► backing off
                        │ ▲           ▲
               no node  ▼ │ requeued  │ requeued during its backoff, or its bind was refused
                    unschedulable ────┘
                        active ──a node──► binding ──refused──► backing off

An attempt of more than one step is ATTEMPTING between its steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from enum import Enum
from typing import Any

from policysched.evaluate.verdict import RejectionCause
from policysched.model.identifiers import AnyClaim, NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.blame import ObjectId, pod_id


class QueueState(Enum):
    """The state of a pending pod or of a gang. The values are shown by `/decisions`."""

    ACTIVE = "active"
    BACKING_OFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"  # scheduling gates, or a gang with too few members
    BINDING = "binding"  # assumed; its claims are not bound yet, or its bind is not answered
    BIND_LOST = "lost"  # its bind found the pod gone or on another node: the watch will show which
    ATTEMPTING = "being decided"  # an attempt has steps left
    AWAITING_POLICY = (
        "awaiting its policy"  # a new text of it has not reached the pod, or it takes long for a new pod
    )
    GANG_MEMBER = "member"  # attempted with its gang
    DETACHED = "nowhere"  # between two states, never between two events


class QueueEntry(ABC):
    """A pod or gang in the order of the queue. Changed by `SchedulingQueue`, and by its owner while it is DETACHED."""

    __slots__ = (
        "attempts",
        "backoff_until_ns",
        "evicts_after_ns",
        "in_error_backoff",
        "last_cause",
        "order_key",
        "ordered_last",
        "policy",
        "priority",
        "queued_ns",
        "refused_binds",
        "represented_key",
        "state",
        "yields_no_more",
    )

    def __init__(self, policy: str, *, priority: int, queued_ns: int) -> None:
        self.policy = policy
        self.priority = priority
        self.queued_ns = queued_ns
        self.attempts = 0
        self.backoff_until_ns = 0
        self.in_error_backoff = False  # backing off after an error: not popped early
        self.last_cause: RejectionCause | None = None  # of its class, when it was parked last
        self.yields_no_more = False  # to earlier entries: those were attempted, and events applied since then
        self.ordered_last = False  # a gang that timed out: behind all others for one attempt
        self.order_key: tuple[Any, ...] = ()
        self.state = QueueState.DETACHED
        self.refused_binds = 0  # of a gang, attempts with one
        self.evicts_after_ns = 0  # it evicts no pods before
        self.represented_key: Hashable = None  # the equivalence class that it represents

    @property
    def pod_count(self) -> int:
        """How many pods the entry represents."""
        return 1

    @property
    @abstractmethod
    def representative_pod(self) -> Pod:
        """The pod that determines the place in the order."""

    @property
    def object_id(self) -> ObjectId:
        """Who is at fault for an exception about the entry."""
        return pod_id(self.representative_pod)

    @property
    def namespace(self) -> str:
        return self.representative_pod.namespace

    @property
    def claims(self) -> frozenset[AnyClaim]:
        """The volume and device claims of its pods."""
        return frozenset()

    @property
    def sort_key(self) -> tuple[Any, ...]:
        return (self.ordered_last, *self.order_key)


class PendingPod(QueueEntry):
    """A pod of a running policy without a node."""

    __slots__ = (
        "admission_rejected",
        "equivalence_key",
        "gang_failure",
        "input_warnings",
        "node",
        "observed",
        "pending_message",
    )

    def __init__(self, observed: ObservedPod, *, queued_ns: int) -> None:
        super().__init__(observed.pod.scheduler, priority=observed.pod.priority, queued_ns=queued_ns)
        self.observed = observed
        self.equivalence_key: Hashable = None  # shared by pods that agree on all that the policy reads
        self.node: NodeName | None = None  # the node that it is being bound to
        self.pending_message = ""  # why it is pending, as of its last attempt
        self.gang_failure = ""  # why its gang failed; the pod is never tried again under this UID
        self.admission_rejected = (
            False  # rejected without an attempt until the pod, its namespace or its policy changes
        )
        self.input_warnings: tuple[str, ...] = ()  # reported inputs that were replaced by their defaults

    @property
    def pod(self) -> Pod:
        return self.observed.pod

    @property
    def representative_pod(self) -> Pod:
        return self.observed.pod

    @property
    def claims(self) -> frozenset[AnyClaim]:
        devices = (use.claim for use in self.pod.device_claims if use.claim is not None)
        return frozenset((*(use.claim for use in self.pod.claims), *devices))

    @property
    def uid(self) -> PodUid:
        return self.observed.pod.uid

    @property
    def facts(self) -> QueuedPodInfo:
        return QueuedPodInfo(self.queued_ns, self.attempts)

    def __repr__(self) -> str:
        return f"<pod {self.pod.full_name} {self.state.value}>"
