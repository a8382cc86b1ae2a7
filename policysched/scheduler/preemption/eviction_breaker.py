"""Eviction breaker: stops evictions that go on and on without anybody's progress.

A controller recreates each evicted pod. If the new pod is evicted too, that is what priorities are for, as long as the preemptors
are bound and stay. The breaker counts the evictions of recreated pods that are *in vain*, because the preemptor evicted before and
is still pending, or *in turn*, because the preemptor was itself created in place of an evicted pod. Pods of an owner with too many
of these within the window are not evicted until the window has passed, by pods of that namespace: a tenant whose own pods evict
each other protects them from nobody else.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits

OwnerKey = tuple[str, str, str]
"""Namespace, kind and name of the controller; pods without one are of their namespace, with empty words."""


@dataclass(slots=True)
class _History:
    """Of an owner whose pods were evicted. `counted_ns`: the latest evictions that count, by namespace of the preemptors, at most as
    many as open the breaker."""

    first_ns: int
    last_ns: int
    counted_ns: dict[str, deque[int]] = field(default_factory=dict)


class EvictionBreaker:
    """Tracks an owner from its first eviction until the last one is older than the window.

    A preemption asks for each pod that it may evict, so no question visits the owners.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._repeat_evictions_max = limits.repeat_evictions_max
        self._window_ns = round(limits.repeat_evictions_window_s * SECOND_NS)
        self._histories: OrderedDict[OwnerKey, _History] = OrderedDict()  # by their last evictions
        self._preemptors: OrderedDict[PodUid, int] = OrderedDict()  # their first evictions
        self._blocked_until_ns: dict[str, dict[OwnerKey, int]] = {}  # by namespace of the preemptors

    def record(self, victim: Pod, preemptor: Pod, now_ns: int) -> str | None:
        """Record an eviction; return the event message if this one opens the breaker. Victims that are evicted together have the
        same `now_ns`."""
        self._forget_old(now_ns)
        is_vain = self._preemptors.setdefault(preemptor.uid, now_ns) < now_ns
        owner = _owner_key(victim)
        history = self._histories.get(owner)
        if history is None:
            self._histories[owner] = _History(now_ns, now_ns)
            return None
        if victim.created_ns <= history.first_ns:
            return None
        history.last_ns = now_ns
        self._histories.move_to_end(owner)
        if not victim.owner_kind or not (is_vain or self._is_recreated(preemptor)):
            return None
        return self._count(owner, history, preemptor.namespace, now_ns)

    def _count(self, owner: OwnerKey, history: _History, by: str, now_ns: int) -> str | None:
        blocked = self._blocked_until_ns.get(by, {})
        was_blocked = blocked.get(owner, 0) > now_ns
        counted_ns = history.counted_ns.setdefault(by, deque(maxlen=self._repeat_evictions_max))
        counted_ns.append(now_ns)
        if len(counted_ns) == self._repeat_evictions_max:
            blocked[owner] = counted_ns[0] + self._window_ns
            self._blocked_until_ns[by] = blocked
        if was_blocked or blocked.get(owner, 0) <= now_ns:
            return None
        namespace, kind, name = owner
        minutes = self._window_ns / (60 * SECOND_NS)
        return (
            f"pods of {kind} {namespace}/{name} were recreated and evicted {self._repeat_evictions_max} times "
            f"within {minutes:g} min by pods of {by} that were not bound, or were evicted in turn; "
            f"pods of {by} do not evict them until the oldest of these evictions is more than {minutes:g} min ago"
        )

    def _is_recreated(self, preemptor: Pod) -> bool:
        """Whether pods of its owner were evicted before it was created."""
        history = self._histories.get(_owner_key(preemptor))
        return history is not None and preemptor.created_ns > history.first_ns

    def blocks(self, victim: Pod, by: str, now_ns: int) -> bool:
        """Whether pods of the namespace `by` may not evict pods of the victim's owner for a while."""
        blocked = self._blocked_until_ns.get(by)
        return blocked is not None and blocked.get(_owner_key(victim), 0) > now_ns

    def next_time_ns(self, by: str, now_ns: int) -> int | None:
        """When pods of the namespace `by` may evict pods of the next owner again."""
        blocked = self._blocked_until_ns.get(by, {})
        return min((time_ns for time_ns in blocked.values() if time_ns > now_ns), default=None)

    def _forget_old(self, now_ns: int) -> None:
        oldest_ns = now_ns - self._window_ns
        while self._preemptors and next(iter(self._preemptors.values())) <= oldest_ns:
            self._preemptors.popitem(last=False)
        while self._histories:
            owner, history = next(iter(self._histories.items()))
            if history.last_ns > oldest_ns:
                return
            del self._histories[owner]
            for by in history.counted_ns:
                blocked = self._blocked_until_ns.get(by, {})
                if blocked.pop(owner, None) is not None and not blocked:
                    del self._blocked_until_ns[by]


def _owner_key(pod: Pod) -> OwnerKey:
    return (pod.namespace, pod.owner_kind, pod.owner_name) if pod.owner_kind else (pod.namespace, "", "")
