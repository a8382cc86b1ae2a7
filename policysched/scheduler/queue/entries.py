"""What stands in the queue: a pod by itself, or a gang whole.

new ──► gated | waiting ──► active ◄──► backing off
                              │ ▲           ▲
                     no node  ▼ │ woken     │ woken too soon, or its bind was refused
                          unschedulable ────┘
                              active ──a node──► binding ──refused──► backing off

On its way out of `active` it is being decided, where that takes more than one step.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from enum import Enum
from typing import Any

from policysched.model.identifiers import AnyClaim, NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo


class QueueState(Enum):
    """Where a pending pod of ours, or a gang, is. A pod that its gang decides for is MEMBER."""

    ACTIVE = "active"
    BACKING_OFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"  # scheduling gates, or a gang that still gathers
    BINDING = "binding"  # assumed, and its volumes are not bound yet, or the bind is not answered
    BIND_LOST = "lost"  # its bind was answered with "gone or elsewhere": the watch will say which
    ATTEMPTING = "being decided"  # by steps: it goes on with the next one
    GANG_MEMBER = "member"
    DETACHED = "nowhere"  # between two places, never between two events


class QueueEntry(ABC):
    """A place in the queue's order. Changed only by `Queue` and by whoever holds it between two places."""

    __slots__ = (
        "attempts",
        "backoff_until_ns",
        "in_error_backoff",
        "order_key",
        "ordered_last",
        "policy",
        "priority",
        "queued_ns",
        "represented_key",
        "state",
    )

    def __init__(self, policy: str, *, priority: int, queued_ns: int) -> None:
        self.policy = policy
        self.priority = priority
        self.queued_ns = queued_ns
        self.attempts = 0
        self.backoff_until_ns = 0
        self.in_error_backoff = (
            False  # backing off after an error: not taken early when nothing else is to do
        )
        self.ordered_last = False  # a gang that timed out: once behind all others
        self.order_key: tuple[Any, ...] = ()
        self.state = QueueState.DETACHED
        self.represented_key: Hashable = None  # the parked kin that it was sent out for

    @property
    def pod_count(self) -> int:
        """How many pods stand here."""
        return 1

    @property
    @abstractmethod
    def representative_pod(self) -> Pod:
        """The pod whose place it stands at."""

    @property
    def namespace(self) -> str:
        return self.representative_pod.namespace

    @property
    def claims(self) -> frozenset[AnyClaim]:
        """The claims of its pods' volumes."""
        return frozenset()

    @property
    def sort_key(self) -> tuple[Any, ...]:
        return (self.ordered_last, *self.order_key)


class PendingPod(QueueEntry):
    """A pod that names one of our policies and has no node yet."""

    __slots__ = (
        "admission_rejected",
        "equivalence_key",
        "gang_failure",
        "input_warnings",
        "node",
        "observed",
        "pending_message",
    )

    def __init__(self, seen: ObservedPod, *, queued_ns: int) -> None:
        super().__init__(seen.pod.scheduler, priority=seen.pod.priority, queued_ns=queued_ns)
        self.observed = seen
        self.equivalence_key: Hashable = None  # pods that agree on all that the policy reads of them
        self.node: NodeName | None = None  # where it is being bound
        self.pending_message = ""  # why it waits, in the words last found
        self.gang_failure = ""  # its gang failed, in these words: never tried again under this UID
        self.admission_rejected = (
            False  # no trial would help: it waits for its policy, its namespace or itself to change
        )
        self.input_warnings: tuple[str, ...] = ()  # what was said of inputs that counted as their defaults

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
