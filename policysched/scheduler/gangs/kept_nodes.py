"""Gangs that lost an attempt because another one, which interrupted it, took a node of a member. Their next attempts are interrupted, too,
but only by what leaves the members their nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

from policysched.model.identifiers import NodeName
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.steps import Steps


@dataclass(slots=True, eq=False)
class KeptNodes:
    """`pauses`: of their attempts, which are interrupted; `last`: of the attempt that was interrupted last, maybe another one."""

    core: SchedulerCore
    pauses: Sequence[Pause]
    last: Pause

    def refuse(
        self, entry: QueueEntry, placed: Sequence[tuple[PendingPod, NodeName]], now_ns: int
    ) -> Steps[bool]:
        """Whether the entry would take nodes of their members. It was put back then, and waits."""
        for pause in self.pauses:
            if (yield from pause.takes_nodes(placed, now_ns)):
                self._put_back(entry)
                return True
        for pause in self.pauses:
            pause.note_placed(pod for pod, _ in placed)
        return False

    def put_off_evictions(self, entry: QueueEntry, now_ns: int) -> bool:
        """Whether the entry, which has no node, might evict others: room that it would make on nodes of the members is not theirs. It
        waits then."""
        may_reclaim = (
            entry.policy in self.core.quotas.accounts and self.core.plan(entry.policy).allows_preemption
        )
        may_preempt = self.pauses[0].may_preempt(entry)
        if not any(
            (may_reclaim and pause.puts_off_reclaim(entry)) or (may_preempt and pause.keeps_nodes_from(entry))
            for pause in self.pauses
        ):
            return False
        if isinstance(entry, PendingPod):
            self.pauses[0].back_off(entry, now_ns, may_preempt=True)
        else:
            self._put_back(entry)
        return True

    def _put_back(self, entry: QueueEntry) -> None:
        if isinstance(entry, PendingPod):
            entry.attempts -= 1
        self.core.queue.put_back(entry)
        for pause in (*self.pauses, self.last):
            pause.wait_for(entry)
