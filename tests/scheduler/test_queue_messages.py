"""Parked pods of an equivalence class get the new message that their representative found."""

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.builders import pending, pod

WAKES = frozenset({ClusterEvent.NODE_ADD})


def unit(number: int) -> QueueEntry:
    made = PendingPod(pending(pod(f"web-{number}")), queued_ns=number)
    made.order_key = (number,)
    return made


class Waiting:
    """Five entries of one equivalence class, all parked with the message "first"."""

    def __init__(self) -> None:
        self.queue = SchedulingQueue(SchedulerLimits(backoff_initial_s=0, backoff_max_s=10))
        self.units = [unit(number) for number in range(5)]
        self.told: dict[QueueEntry, str] = dict.fromkeys(self.units, "first")
        for entry in self.units:
            self.park(entry, "first", 0)

    def park(self, entry: QueueEntry, words: str, now_s: float) -> None:
        self.told[entry] = words
        entry.state = QueueState.DETACHED
        self.queue.park(
            entry,
            "kin",
            now_ns=round(now_s * SECOND_NS),
            requeue_events=WAKES,
            valid_until_ns=None,
            reason="Unschedulable",
            message=words,
        )

    def send_out(self, now_s: float) -> QueueEntry:
        self.queue.requeue(WAKES, round(now_s * SECOND_NS))
        out = self.queue.pop()
        assert out is not None
        return out

    def tell(self, now_s: float, most: int = 100) -> None:
        for entry, room in self.queue.due_messages(round(now_s * SECOND_NS), most):
            self.told[entry] = room.message

    def tell_for(self, from_s: int, until_s: int) -> None:
        for now_s in range(from_s, until_s):
            self.tell(now_s)
        assert self.queue.check() == []


def test_all_pods_get_a_new_message_in_time() -> None:
    waiting = Waiting()

    waiting.park(waiting.send_out(1), "second", 1)
    waiting.tell(10)
    early = set(waiting.told.values())
    waiting.tell(12)

    assert early == {"first", "second"}
    assert set(waiting.told.values()) == {"second"}


def test_pods_get_the_new_message_although_a_representative_was_out_when_due() -> None:
    waiting = Waiting()
    waiting.park(waiting.send_out(1), "second", 1)

    out = waiting.send_out(10)
    waiting.tell(12)
    waiting.park(out, "second", 13)
    waiting.tell_for(13, 400)

    assert set(waiting.told.values()) == {"second"}


def test_a_pod_reported_first_gets_the_message_that_changed_meanwhile() -> None:
    waiting = Waiting()
    waiting.park(waiting.send_out(1), "second", 1)

    waiting.tell(12, most=2)
    waiting.park(waiting.send_out(12), "third", 12)
    waiting.tell_for(13, 400)

    assert set(waiting.told.values()) == {"third"}
