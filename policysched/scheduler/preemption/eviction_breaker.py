"""Eviction breaker: stops evicting the pods of a controller that are evicted over and over.

A controller recreates each evicted pod; if the new pod is evicted too, and so on, neither side makes
progress. The breaker counts evictions of pods that were created after the first eviction for their
owner. Pods of an owner with too many of these within the window are not evicted until the window has
passed.
"""

from collections import deque
from dataclasses import dataclass, field

from policysched.model.pods import Pod
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits

OwnerKey = tuple[str, str, str]
"""Namespace, kind and name of the controller."""


@dataclass(slots=True)
class _History:
    first_ns: int
    repeat_evictions_ns: deque[int] = field(default_factory=deque)


class EvictionBreaker:
    """Tracks an owner from its first eviction until the last one is older than the window."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._repeat_evictions_max = limits.repeat_evictions_max
        self._window_ns = round(limits.repeat_evictions_window_s * SECOND_NS)
        self._histories: dict[OwnerKey, _History] = {}

    def record(self, pod: Pod, now_ns: int) -> str | None:
        """Record an eviction; return the event message if this one opens the breaker for the owner."""
        owner = _owner_key(pod)
        if owner is None:
            return None
        self._forget_old(now_ns)
        history = self._histories.get(owner)
        if history is None:
            self._histories[owner] = _History(now_ns)
            return None
        if pod.created_ns <= history.first_ns:
            return None
        history.repeat_evictions_ns.append(now_ns)
        if len(history.repeat_evictions_ns) != self._repeat_evictions_max:
            return None
        namespace, kind, name = owner
        minutes = self._window_ns / (60 * SECOND_NS)
        return (
            f"pods of {kind} {namespace}/{name} were recreated and evicted {self._repeat_evictions_max} times "
            f"within {minutes:g} min; "
            f"preemption does not evict its pods until the oldest of these evictions is more than {minutes:g} min ago"
        )

    def blocks(self, pod: Pod, now_ns: int) -> bool:
        """Whether eviction is suspended for the pod's owner."""
        if not self._histories:
            return False
        self._forget_old(now_ns)
        history = self._histories.get(_owner_key(pod) or ("", "", ""))
        return history is not None and len(history.repeat_evictions_ns) >= self._repeat_evictions_max

    def next_time_ns(self) -> int | None:
        """When eviction of the next suspended owner's pods resumes."""
        if not self._histories:
            return None
        times = [
            history.repeat_evictions_ns[-self._repeat_evictions_max] + self._window_ns
            for history in self._histories.values()
            if len(history.repeat_evictions_ns) >= self._repeat_evictions_max
        ]
        return min(times, default=None)

    def _forget_old(self, now_ns: int) -> None:
        since_ns = now_ns - self._window_ns
        for owner, history in list(self._histories.items()):
            while history.repeat_evictions_ns and history.repeat_evictions_ns[0] <= since_ns:
                history.repeat_evictions_ns.popleft()
            if not history.repeat_evictions_ns and history.first_ns <= since_ns:
                del self._histories[owner]


def _owner_key(pod: Pod) -> OwnerKey | None:
    return (pod.namespace, pod.owner_kind, pod.owner_name) if pod.owner_kind else None
