"""What was last said about each pending pod, so that nothing is said twice.

An event and a status patch a pod and attempt would cost more than the decisions. The words go out when they change,
and for one pod not more often than its backoff steps: 1 s, 2 s, 4 s, at most every 10 s. What comes too early is
withheld, and if it still holds when the time is up it is said then, so the last word is always the present one.
"""

from dataclasses import dataclass
from typing import Literal

from policysched.model.objects import Pod, PodUid
from policysched.scheduler.commands import ReportPending
from policysched.scheduler.limits import Limits
from policysched.scheduler.queue.heap import MovableHeap

PendingReason = Literal["Unschedulable", "PolicyPending", "SchedulerError"]


@dataclass(slots=True)
class _Said:
    pod: Pod
    words: tuple[PendingReason, str]
    at_ns: int
    times: int = 1
    withheld: tuple[PendingReason, str] | None = None


class Reports:
    """At most one entry a pod, from its first report until `forget`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._said: dict[PodUid, _Said] = {}
        self._withheld: MovableHeap[PodUid] = MovableHeap()

    def offer(self, pod: Pod, reason: PendingReason, message: str, now_ns: int) -> list[ReportPending]:
        """The pod stays pending for this reason: what of it is to be said now, if anything."""
        said = self._said.get(pod.uid)
        if said is None:
            self._said[pod.uid] = _Said(pod, (reason, message), now_ns)
            return [_report(pod, reason, message)]
        said.pod = pod
        if said.words == (reason, message):
            said.withheld = None
            self._withheld.discard(pod.uid)
            return []
        free_ns = said.at_ns + self._limits.backoff_ns(said.times)
        if now_ns < free_ns:
            said.withheld = (reason, message)
            self._withheld.put(pod.uid, free_ns)
            return []
        return [self._say(said, reason, message, now_ns)]

    def due(self, now_ns: int) -> list[ReportPending]:
        """What was withheld and has waited long enough."""
        found = []
        while (at_ns := self._withheld.first_key()) is not None and at_ns <= now_ns:
            uid = self._withheld.pop()
            assert uid is not None
            said = self._said[uid]
            assert said.withheld is not None, f"nothing is withheld about {said.pod.full_name}"
            found.append(self._say(said, *said.withheld, now_ns))
        return found

    def next_time_ns(self) -> int | None:
        return self._withheld.first_key()

    def hush(self, uid: PodUid) -> None:
        """The pod does not wait any more: what was withheld about it is not said."""
        self._withheld.discard(uid)
        said = self._said.get(uid)
        if said is not None:
            said.withheld = None

    def forget(self, uid: PodUid) -> None:
        self._said.pop(uid, None)
        self._withheld.discard(uid)

    def last(self, uid: PodUid) -> tuple[PendingReason, str] | None:
        """What was last said, for people who ask."""
        said = self._said.get(uid)
        return None if said is None else said.words

    def _say(self, said: _Said, reason: PendingReason, message: str, now_ns: int) -> ReportPending:
        said.words, said.at_ns, said.withheld = (reason, message), now_ns, None
        said.times += 1
        self._withheld.discard(said.pod.uid)
        return _report(said.pod, reason, message)


def _report(pod: Pod, reason: PendingReason, message: str) -> ReportPending:
    return ReportPending(pod.uid, pod.namespace, pod.name, pod.scheduler, reason, message)
