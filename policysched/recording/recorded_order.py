"""A scheduler that attempts the given pods and gangs, not the first of its queue.

For a recording that is read from a snapshot: the snapshot has the cluster, but not the history of the queue. What was
attempted when is in the recording, so each decision can be made again on the cluster of that time. Not in a snapshot,
so that a decision that depends on it can differ: capacity that is held back after a kubelet's rejection, evictions in
flight and the limits on repeated ones, the recovery of metrics, and answers of extenders.
"""

from collections.abc import Sequence
from dataclasses import replace

from policysched.model.identifiers import PodUid
from policysched.recording.format import SchedulerState
from policysched.scheduler.commands import Command
from policysched.scheduler.decision_records import Decision
from policysched.scheduler.events import PodUpdated
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.scheduler import Scheduler


def restore(scheduler: Scheduler, state: SchedulerState, now_ns: int) -> None:
    """What a snapshot has beside the objects, which were handled before. A bind without an answer counts as confirmed."""
    core = scheduler.core
    for assumed in state.assumed:
        observed = core.cache.pods.get(assumed.uid)
        if observed is not None and observed.node is None:
            scheduler.handle(PodUpdated(replace(observed, node=assumed.node)), now_ns)
    for queued in state.queued:
        pod = core.pods.get(queued.uid)
        if pod is not None:
            pod.queued_ns, pod.attempts = queued.queued_ns, queued.attempts
    core.records.next_id = state.decisions + 1


class RecordedOrderScheduler(Scheduler):
    """`decide_again` attempts a pod or gang now; `handle` applies events as usual. Do not call `decide`."""

    def restore(self, state: SchedulerState, now_ns: int) -> None:
        self._core.queue.order_is_given = True
        restore(self, state, now_ns)
        self._core.records.recorded = []

    def decide_again(self, recorded: Sequence[Decision]) -> list[Command] | str:
        """Attempt the pod or gang of these decisions, which were made in one attempt. Returns the commands, or why there was
        no attempt."""
        core, first = self._core, recorded[0]
        now_ns = first.at_ns
        self._timers.advance(now_ns)
        changes = self.slices.changes  # those that waited
        while (at_ns := changes.next_time_ns()) is not None and at_ns <= now_ns:
            if changes.take_slice(now_ns) is None:
                break
        while self._reload.busy:
            self._reload.take_slice(now_ns)
        entry = self._entry_of(first.uid)
        if isinstance(entry, str):
            self._take_commands(now_ns)
            return entry
        core.queue.remove(entry, now_ns)
        for decision in recorded:
            pod = core.pods.get(decision.uid)
            if pod is not None:
                pod.attempts, pod.queued_ns = decision.attempt - 1, decision.queued_ns
        entry.attempts = first.attempt - 1
        core.records.next_id = first.id
        self._attempts.attempt(entry, None, now_ns)
        return self._take_commands(now_ns)

    def _entry_of(self, uid: PodUid) -> QueueEntry | str:
        pod: PendingPod | None = self._core.pods.get(uid)
        if pod is None:
            return "the pod is not pending under a running policy here"
        if pod.state in (QueueState.BINDING, QueueState.BIND_LOST):
            return f"the pod was placed on {pod.node} here before"
        gang = self._core.gangs.gang_of(uid)
        return gang if gang is not None and pod.state is QueueState.GANG_MEMBER else pod

    def take_decisions(self) -> list[Decision]:
        """Those since the last call."""
        records = self._core.records
        decisions, records.recorded = records.recorded or [], []
        return decisions
