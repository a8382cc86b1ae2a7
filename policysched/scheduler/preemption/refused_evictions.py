"""Victims whose deletion was refused: for a while others are chosen, and their webhook is not asked again and again.

A webhook of the victim's namespace can refuse one pod or all. So the pod is passed over from its first refusal, and all
pods of its namespace from the third in a row, or from the first that was late: a preemptor waits for each. The wait
doubles with each further one that was decided after the last: an outage refuses all that are under way.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.commands import Victim
from policysched.scheduler.eviction_backoff import wait_ns
from policysched.scheduler.limits import SECOND_NS

NAMESPACE_AFTER = 3
LATE_NS = 5 * SECOND_NS
_REMEMBERED_NS = 600 * SECOND_NS
"""After the last refusal, so that waits are not short again for what is still refused."""


Key = TypeVar("Key")


@dataclass(slots=True)
class _Refusals:
    count: int = 0
    last_ns: int = 0
    until_ns: int = 0

    def add(self, now_ns: int, decided_ns: int, *, tolerated: int, at_least: int = 1) -> None:
        is_counted = self.count > tolerated and decided_ns < self.last_ns
        self.count = max(self.count + (not is_counted), at_least)
        self.last_ns = now_ns
        if self.count > tolerated:
            self.until_ns = now_ns + wait_ns(self.count - tolerated)


class RefusedEvictions:
    """Bounded: by pods that exist, and by namespaces with a refusal in the last ten minutes. `is_terminating`: its deletion was
    accepted, so that whoever evicted it waits for it, and evicts no others."""

    def __init__(self, is_terminating: Callable[[PodUid], bool]) -> None:
        self._is_terminating = is_terminating
        self._pods: dict[PodUid, _Refusals] = {}
        self._namespaces: dict[str, _Refusals] = {}

    def record(self, victim: Victim, now_ns: int, decided_ns: int) -> None:
        """The deletion of this pod, which exists, was refused, or not answered until it was late."""
        late = now_ns - decided_ns >= LATE_NS
        self._pods = _recent(self._pods, now_ns)
        self._namespaces = _recent(self._namespaces, now_ns)
        self._pods.setdefault(victim.uid, _Refusals()).add(now_ns, decided_ns, tolerated=0)
        in_namespace = self._namespaces.setdefault(victim.namespace, _Refusals())
        at_least = NAMESPACE_AFTER if late else 1
        in_namespace.add(now_ns, decided_ns, tolerated=NAMESPACE_AFTER - 1, at_least=at_least)

    def record_success(self, victims: Iterable[Victim]) -> None:
        """They were deleted, and no other victim of their eviction was refused."""
        for victim in victims:
            self._namespaces.pop(victim.namespace, None)

    def until_ns(self, pod: Pod, now_ns: int) -> int | None:
        """When the pod may be chosen again. None: now."""
        if not self._pods and not self._namespaces:
            return None
        entries = self._pods.get(pod.uid), self._namespaces.get(pod.namespace)
        until_ns = max((entry.until_ns for entry in entries if entry is not None), default=0)
        return until_ns if until_ns > now_ns and not self._is_terminating(pod.uid) else None

    def forget(self, uid: PodUid) -> None:
        self._pods.pop(uid, None)


def _recent(known: dict[Key, _Refusals], now_ns: int) -> dict[Key, _Refusals]:
    return {key: entry for key, entry in known.items() if now_ns - entry.last_ns < _REMEMBERED_NS}
