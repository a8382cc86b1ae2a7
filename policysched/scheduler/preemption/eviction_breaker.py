"""Eviction breaker: stops evicting the pods of a controller that are evicted over and over.

A controller recreates each evicted pod; if the new pod is evicted too, and so on, neither side makes
progress. The breaker counts evictions of pods that were created after the first eviction for their
owner. Pods of an owner with too many of these within the window are not evicted until the window has
passed.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass

from policysched.model.pods import Pod
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits

OwnerKey = tuple[str, str, str]
"""Namespace, kind and name of the controller."""


@dataclass(slots=True)
class _History:
    """`repeat_evictions_ns`: the latest that count, at most as many as open the breaker."""

    first_ns: int
    repeat_evictions_ns: deque[int]

    @property
    def last_ns(self) -> int:
        return self.repeat_evictions_ns[-1] if self.repeat_evictions_ns else self.first_ns


class EvictionBreaker:
    """Tracks an owner from its first eviction until the last one is older than the window.

    A preemption asks for each pod that it may evict, so no question visits the owners.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._repeat_evictions_max = limits.repeat_evictions_max
        self._window_ns = round(limits.repeat_evictions_window_s * SECOND_NS)
        self._histories: OrderedDict[OwnerKey, _History] = OrderedDict()  # by their last evictions
        self._blocked_until_ns: dict[OwnerKey, int] = {}

    def record(self, pod: Pod, now_ns: int) -> str | None:
        """Record an eviction; return the event message if this one opens the breaker for the owner."""
        owner = _owner_key(pod)
        if owner is None:
            return None
        self._forget_old(now_ns)
        history = self._histories.get(owner)
        if history is None:
            self._histories[owner] = _History(now_ns, deque(maxlen=self._repeat_evictions_max))
            return None
        if pod.created_ns <= history.first_ns:
            return None
        self._histories.move_to_end(owner)
        evictions_ns, was_blocked = history.repeat_evictions_ns, self.blocks(pod, now_ns)
        evictions_ns.append(now_ns)
        if len(evictions_ns) == self._repeat_evictions_max:
            self._blocked_until_ns[owner] = evictions_ns[0] + self._window_ns
        if was_blocked or not self.blocks(pod, now_ns):
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
        owner = _owner_key(pod) if self._blocked_until_ns else None
        return owner is not None and self._blocked_until_ns.get(owner, 0) > now_ns

    def next_time_ns(self, now_ns: int) -> int | None:
        """When eviction of the next suspended owner's pods resumes."""
        return min((time_ns for time_ns in self._blocked_until_ns.values() if time_ns > now_ns), default=None)

    def _forget_old(self, now_ns: int) -> None:
        while self._histories:
            owner = next(iter(self._histories))
            if self._histories[owner].last_ns > now_ns - self._window_ns:
                return
            del self._histories[owner]
            self._blocked_until_ns.pop(owner, None)


def _owner_key(pod: Pod) -> OwnerKey | None:
    return (pod.namespace, pod.owner_kind, pod.owner_name) if pod.owner_kind else None
