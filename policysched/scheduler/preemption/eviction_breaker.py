"""Who is evicted again and again.

A controller makes a new pod for each one evicted; if that is evicted too, and so on, both sides work for nothing. Here
the evictions of pods are counted that came after an earlier eviction of their owner's pods; an owner with too many of
them in too short a time is left in peace until they are old.
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
    """Remembers an owner from its first eviction until the last one is older than the window."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._repeat_evictions_max = limits.repeat_evictions_max
        self._window_ns = round(limits.repeat_evictions_window_s * SECOND_NS)
        self._histories: dict[OwnerKey, _History] = {}

    def record(self, pod: Pod, now_ns: int) -> str | None:
        """The pod is being evicted. Answers what is to be said where its owner's are left in peace from now on."""
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
            f"pods of {kind} {namespace}/{name} were evicted {self._repeat_evictions_max} times within {minutes:g} min of having been made "
            f"anew; they are not evicted any more until that is past"
        )

    def blocks(self, pod: Pod, now_ns: int) -> bool:
        """Whether the pod's owner is left in peace."""
        if not self._histories:
            return False
        self._forget_old(now_ns)
        history = self._histories.get(_owner_key(pod) or ("", "", ""))
        return history is not None and len(history.repeat_evictions_ns) >= self._repeat_evictions_max

    def next_time_ns(self) -> int | None:
        """When the next owner's pods may be evicted again."""
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
