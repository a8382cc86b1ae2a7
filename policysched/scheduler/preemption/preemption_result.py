"""The result of one preemption."""

from dataclasses import dataclass

from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class PreemptionStarted:
    """Evictions were started; the pod, or the needed members of the gang, are nominated. `message`: what
    is said of it on a single pod; empty for nothing.
    """

    message: str = ""


@dataclass(frozen=True, slots=True)
class NoPreemption:
    """No pod is evicted: the message, and when (ns) or after which events another attempt may succeed for that reason
    alone."""

    message: str
    valid_until_ns: int | None = None
    requeue_events: frozenset[ClusterEvent] = frozenset()
