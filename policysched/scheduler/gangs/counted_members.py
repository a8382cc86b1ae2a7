"""The members for which an attempt of their gang counts. Others may join in its pauses, and these may change or leave."""

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.queue.gang_registry import QueuedGang


class CountedMembers(dict[PodUid, Pod]):
    """Of one attempt, as they were when it began."""

    def count(self, gang: QueuedGang) -> None:
        gang.attempts += 1
        for uid, pod in gang.pending_members.items():
            pod.attempts += 1
            self[uid] = pod.pod

    def undo(self, gang: QueuedGang) -> None:
        """The attempt does not count."""
        gang.attempts -= 1
        for uid, pod in gang.pending_members.items():
            pod.attempts -= uid in self

    def are_outdated(self, gang: QueuedGang) -> bool:
        """Whether a member has joined or changed. Those that left are no reason for another attempt."""
        for uid, pod in gang.pending_members.items():
            before = self.get(uid)
            if before is not pod.pod and before != pod.pod:
                return True
        return False
