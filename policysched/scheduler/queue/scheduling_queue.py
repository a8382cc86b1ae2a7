"""The scheduling queue: active, backing off, unschedulable and gated entries.

Each policy has its own queue in its own order; `active_queues` says which policy is next. An entry that fails is parked
with its equivalence class (the pods that agree on everything that the policy reads, and so share one verdict). A thousand
replicas that do not fit are one parked group, and an event that could help them requeues one member as a representative. If it is
placed the next one follows, otherwise all stay parked. An event among 50,000 parked pods costs one evaluation for each class.
An event that helps many classes opens their groups in slices.

No event is lost between an attempt and its parking: events are applied between attempts, and in the pauses of a gang's
attempt, which open its parked group then (`missed_events`).

Backoff limits how often an entry is tried without success, and never changes its position: before an entry is placed, those of its
policy that back off ahead of it are attempted on the same state of the cluster (`yield_to_earlier`).
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

from policysched.evaluate.verdict import RejectionCause
from policysched.model.cluster_events import ClusterEvent, may_help
from policysched.model.identifiers import AnyClaim
from policysched.scheduler.blame import raises_for
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.active_queues import ActiveQueues
from policysched.scheduler.queue.backoff import BackoffQueue
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.queue.ordered_queue import OrderedQueue, SortKeyQueue
from policysched.scheduler.queue.parked_entries import ParkedEntries
from policysched.scheduler.queue.parked_groups import EquivalenceKey, ParkedGroup, ParkedGroups, RuleCounts
from policysched.scheduler.queue.sliced_wake_ups import WAKE_UPS_PER_SLICE

_Gangs = Sequence[tuple[QueueEntry, bool]]


class SchedulingQueue:
    """Pods and gangs by state; `queue.entries` draws the states.

    `new_policy_queue` creates the queue of a policy. Entries of `held_policies` keep their place and are not popped.
    `group_dropped` is told the key and the policy of each parked group that is gone.
    `incoming_counts` counts the pods that entered, by queue and event. `order_is_given`: others say what is attempted next, as where a
    recording is replayed from a snapshot; nothing yields, and no class is blocked. `yielded` is the active entry that fits and has yielded
    to earlier ones of its policy: until it is popped again, only entries of its policy are popped, and the cluster must not change.
    `attempting` are the gangs whose attempts are paused (`pause_beside`): each interrupts the one before it.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        new_policy_queue: Callable[[str], OrderedQueue] | None = None,
        held_policies: Collection[str] = frozenset(),
        group_dropped: Callable[[EquivalenceKey, str], None] = lambda _key, _policy: None,
    ) -> None:
        self._limits = limits
        self._held_policies = held_policies
        new_queue: Callable[[str], OrderedQueue] = new_policy_queue or (lambda _: SortKeyQueue())
        self.decision_time = DecisionTime(limits)
        self._active = ActiveQueues(new_queue, held_policies, self.decision_time)
        self._backoff = BackoffQueue(new_queue, self.decision_time)
        self.yielded: QueueEntry | None = None
        self.order_is_given = False
        self.attempting: list[QueuedGang] = []
        self._groups = ParkedGroups(limits, new_queue, self.decision_time, group_dropped)
        self._parked = ParkedEntries(self._groups, lambda *of: self.enqueue(*of))
        self._gated: dict[QueueEntry, None] = {}  # and those that await a new text
        self.incoming_counts: dict[tuple[str, str], int] = {}

    # ── popping ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def can_pop(self) -> bool:
        """Whether `pop` returns an entry."""
        has_active = self._active.has_unheld_entries
        return self._active.can_pop if has_active else bool(self._backoff.heads(self._held_policies))

    @property
    def has_active(self) -> bool:
        """Whether an active entry may be attempted."""
        return self._active.can_pop

    @property
    def only_overdrawn_left(self) -> bool:
        """Whether there are active entries, all of them of overdrawn namespaces."""
        return (
            self.decision_time.is_anybody_overdrawn
            and self._active.has_unheld_entries
            and not self._active.heads()
        )

    def pop(self) -> QueueEntry | None:
        """The next entry to attempt. With no active entry, the first one in backoff is popped early (KEP-5142), unless it
        is in error backoff. None: there is none, or only such of namespaces that rest or wait for binds, or such that wait for
        parked groups, a slice of which was opened."""
        if self.yielded is not None and self.decision_time.is_overdrawn(self.yielded.namespace):
            self.yielded = None  # other policies' entries need not wait until it is popped again
        head = self._active.pop() if self.yielded is None else self._active.pop_until(self.yielded)
        if head is None and self._active.has_unheld_entries:
            return None
        if head is None:
            early = self._backoff.heads(self._held_policies)
            head = self._active.first_of(early)
            if head is None:
                return None
            self._backoff.discard(head)
        if self._parked.is_held_by_due(head, self.decision_time.now_ns):
            self.put_back(head)
            return None
        if head is self.yielded:
            self.yielded = None
        head.state = QueueState.DETACHED
        return head

    def pop_beside(
        self, gangs: _Gangs, except_policies: Collection[str], may_interrupt: Callable[[QueueEntry], bool]
    ) -> QueueEntry | None:
        """The next entry that may be attempted while the attempts of the gangs are paused, if it is a pod or `may_interrupt`. It is the first
        of its policy, and nothing that it waits for is ahead of it. `gangs`: and whether those behind may overtake."""
        heads = [
            head
            for head in self._active.heads_beside_gang()
            if head.policy not in except_policies
            and (isinstance(head, PendingPod) or may_interrupt(head))
            and all(overtaking or self._is_before(head, gang) for gang, overtaking in gangs)
            and not (self._backoff.precedes(head) or self._groups.has_before(head))
            and self._active.first_before(head) is None
        ]
        if (first := self._active.first_of(heads)) is not None:
            self._active.discard(first)
            first.state = QueueState.DETACHED
        return first

    def _is_before(self, head: QueueEntry, gang: QueueEntry) -> bool:
        """Whether the first entry of its policy may be attempted before a gang that was popped before it. One of an overdrawn
        namespace comes after all others, and was popped only because there were none."""
        if head.policy == gang.policy and not self.decision_time.is_overdrawn(gang.namespace):
            return self._active.is_ahead(head, gang)
        return head.priority >= gang.priority

    def pause_beside(self, gang: QueuedGang) -> None:
        """Its attempt pauses. An entry that has yielded to it needs no more to wait for what events requeue ahead of it."""
        self.attempting += [gang] if gang not in self.attempting else []
        if self.yielded is not None:
            self.yielded.yields_no_more, self.yielded = True, None

    def put_back(self, entry: QueueEntry) -> None:
        """Undo `pop` or `pop_beside`."""
        entry.state = QueueState.ACTIVE
        self._active.put(entry)

    def yield_to_earlier(self, entry: QueueEntry, now_ns: int, *, was_paused: bool = False) -> bool:
        """Whether entries of its policy stand ahead of a popped entry that fits, and could fit themselves.

        They become active whatever their backoff is, and the entry is put back behind them. Left out are entries in error
        backoff, and of other namespaces that are overdrawn. `was_paused`: active ones may have come ahead in a pause.
        """
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        if self.order_is_given or entry.yields_no_more:
            return False
        if self._parked.open_before(entry, now_ns):
            self.put_back(entry)  # there may be thousands, and other entries need not wait for their attempts
            return True
        yields, sent = self._parked.send_before(entry, now_ns)
        # The others when the entry is popped again: there may be thousands, and the cluster does not change meanwhile.
        while sent < WAKE_UPS_PER_SLICE and (earlier := self._backoff.pop_before(entry)) is not None:
            self._activate(earlier, "QueueOrder")
            yields, sent = True, sent + 1
        if not yields and not (was_paused and self._active.first_before(entry) is not None):
            return False
        entry.state = QueueState.ACTIVE
        if not self.decision_time.is_overdrawn(entry.namespace):
            self.yielded = entry
        self._active.put(entry)
        return True

    def advance(self, now_ns: int) -> None:
        """Activate entries whose backoff is over, and open parked groups whose verdict expired, a slice of each."""
        self.decision_time.now_ns = now_ns
        for _ in range(WAKE_UPS_PER_SLICE):
            if (entry := self._backoff.pop_expired(now_ns)) is None:
                break
            with raises_for(entry.object_id):
                self._activate(entry, "BackoffComplete")
        self._parked.open(self._groups.due(now_ns), now_ns)

    def next_time_ns(self) -> int | None:
        """When `advance` has something to do next."""
        return earlier_ns(
            self._groups.next_time_ns(), self._backoff.next_time_ns(), self._active.rest_ends_ns()
        )

    # ── adding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, entry: QueueEntry, now_ns: int, event: str) -> None:
        """Add a detached entry: active, or in backoff until that is over. `event` is its cause, for the counters."""
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        if entry.backoff_until_ns <= now_ns:
            self._activate(entry, event)
            return
        entry.state = QueueState.BACKING_OFF
        self._backoff.put(entry)
        self._count("backoff", event)

    def apply_backoff(self, entry: QueueEntry, now_ns: int) -> None:
        """Delay the next attempt after a failed one."""
        entry.backoff_until_ns = now_ns + self._limits.backoff_ns(entry.attempts)

    def end_error_backoff(self, entry: QueueEntry) -> None:
        self._backoff.end_error_backoff(entry)

    def gate(self, entry: QueueEntry) -> None:
        """Keep the entry from any attempt until its gates are removed or its gang is complete."""
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        entry.state = QueueState.GATED
        self._gated[entry] = None
        self._count("gated", "ScheduleAttemptFailure" if entry.attempts else "PodAdd")

    def await_policy(self, entry: QueueEntry) -> None:
        """Keep a detached entry until its policy, or the new text of it, reaches it. Keys of an old text compare with no new ones."""
        entry.state, entry.order_key = QueueState.AWAITING_POLICY, ()
        self._gated[entry] = None

    def park(
        self,
        entry: QueueEntry,
        equivalence_key: EquivalenceKey,
        *,
        now_ns: int,
        requeue_events: frozenset[ClusterEvent],
        valid_until_ns: int | None,
        reason: PendingReason,
        message: str,
        cause: RejectionCause | None = None,
    ) -> None:
        """Park a failed entry, and block its equivalence class until one of the events or the expiry."""
        group = self._groups.block(
            equivalence_key,
            entry,
            now_ns=now_ns,
            requeue_events=requeue_events,
            valid_until_ns=valid_until_ns,
            reason=reason,
            message=message,
            cause=cause,
        )
        self._park(entry, group, now_ns)

    def join_group(self, entry: QueueEntry, group: ParkedGroup, now_ns: int) -> None:
        """Park an entry whose equivalence class has failed, without an attempt."""
        assert group.blocked, f"{entry} joins the open parked group {group.equivalence_key}"
        self._park(entry, group, now_ns)

    def blocked_group(self, equivalence_key: EquivalenceKey) -> ParkedGroup | None:
        """The parked group of the class, if nothing has happened that could change its verdict."""
        return None if self.order_is_given else self._parked.blocked_group(equivalence_key)

    def mark_placed(self, entry: QueueEntry, now_ns: int) -> None:
        """The entry was placed: the next member of its class follows."""
        self._parked.return_representative(entry, now_ns)

    def due_messages(self, now_ns: int, messages_max: int) -> list[tuple[QueueEntry, ParkedGroup]]:
        """Members whose class failed again with another message than was reported for them, at most `messages_max`."""
        return self._groups.due_messages(now_ns, messages_max)

    # ── moving and removing ────────────────────────────────────────────────────────────────────────────────────────

    def reorder(self, entry: QueueEntry, now_ns: int) -> None:
        """The entry's key has changed."""
        self._parked.open_due(entry, now_ns)
        match entry.state:
            case QueueState.ACTIVE:
                self._active.put(entry)
            case QueueState.BACKING_OFF:
                self._backoff.reorder(entry)
            case QueueState.UNSCHEDULABLE:
                self._parked.reorder(entry, now_ns)
        self._parked.representative_reordered(entry, now_ns)

    def remove(self, entry: QueueEntry, now_ns: int) -> None:
        """Detach the entry. If it represented its class, another member does now."""
        self._parked.open_due(entry, now_ns)
        match entry.state:
            case QueueState.ACTIVE:
                self._active.discard(entry)
            case QueueState.BACKING_OFF:
                self._backoff.discard(entry)
            case QueueState.UNSCHEDULABLE:
                self._parked.remove(entry)
            case QueueState.GATED | QueueState.AWAITING_POLICY:
                del self._gated[entry]
            case _:
                pass
        if entry is self.yielded:
            self.yielded = None
        entry.state = QueueState.DETACHED
        self._parked.return_representative(entry, now_ns)

    def requeue(
        self,
        events: Iterable[ClusterEvent],
        now_ns: int,
        *,
        policy: str | None = None,
        claim: AnyClaim | None = None,
        cause: str | None = None,
    ) -> None:
        """Open the parked groups that one of the events can help; with `policy` or `claim`, only those of it. `cause`: the
        namespace of the pod or object that changed."""
        for event in (events := tuple(events)):
            self._note_missed(event, cause)
        wake_ups = self._groups.waiting_for(events, policy, claim, cause)
        if self.order_is_given:
            self._parked.open(wake_ups, now_ns)
        else:
            self._parked.open_in_slices(wake_ups, now_ns)

    def next_slice_ns(self) -> int | None:
        """When `open_slice` has something to do; None: not before an event that helps many parked groups."""
        return self._groups.sliced.next_time_ns()

    def open_slice(self, now_ns: int) -> bool:
        """Open a slice of the parked groups that an event can help. False: there are none."""
        return self._parked.open_slice(now_ns)

    def open_group(self, key: EquivalenceKey, now_ns: int, event: ClusterEvent, cause: str | None) -> None:
        """Open the parked group of the class, if it is blocked and waits for the event. `cause`: as in `requeue`."""
        self._note_missed(event, cause)
        group, late = self.blocked_group(key), self._groups.late
        if group is not None and event in group.requeue_events and not late.delays(event, group, cause):
            self._parked.open([(event, group)], now_ns)

    def wake(self, entry: QueueEntry, events: Collection[ClusterEvent], now_ns: int) -> None:
        """Open the parked group of the entry if it waits for one of the events, also in an overdrawn namespace."""
        if isinstance(entry, QueuedGang) and entry in self.attempting:
            entry.missed_events.update(dict.fromkeys(events, entry.namespace))
        group = self.group_of(entry)
        if group is not None and self.blocked_group(group.equivalence_key) is group:
            helping = [each for each in ClusterEvent if each in events and each in group.requeue_events]
            self._parked.open([(event, group) for event in helping[:1]], now_ns)

    def _note_missed(self, event: ClusterEvent, cause: str | None) -> None:
        for gang in self.attempting:
            is_new = event not in gang.missed_events or cause == gang.namespace
            if is_new and may_help(event, gang.namespace, cause):
                gang.missed_events[event] = cause

    def unpark_in_steps(self, policy: str, now_ns: int) -> Iterator[None]:
        """Have the parked pods of a policy await its new text, which drops their groups. Those that are parked later stay so."""
        parked = [entry for entry in self._parked if entry.policy == policy and isinstance(entry, PendingPod)]
        for number, entry in enumerate(parked):
            if number and number % WAKE_UPS_PER_SLICE == 0:
                yield
            if entry.state is QueueState.UNSCHEDULABLE:
                self.remove(entry, now_ns)
                self.await_policy(entry)

    def drop_policy(self, policy: str, rules: Container[str] = ()) -> None:
        """Detach all entries of the policy, and forget what was counted of rules that are not among its `rules` now. Those that
        await a text go on doing so."""
        for entry in list(self._entries_of(policy)):
            if entry.state is not QueueState.AWAITING_POLICY:
                entry.state, entry.represented_key = QueueState.DETACHED, None
        if self.yielded is not None and self.yielded.policy == policy:
            self.yielded = None
        self._active.drop_policy(policy)
        self.decision_time.drop_policy(policy)
        self._backoff.drop_policy(policy)
        for entry in [each for each in self._gated if each.policy == policy]:
            if entry.state is QueueState.DETACHED:
                del self._gated[entry]
        self._parked.drop_policy(policy, rules)

    def enqueue_many(self, policy: str, entries: Sequence[QueueEntry], event: str) -> None:
        """Add many detached entries to the active queue in linear time."""
        for entry in entries:
            assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
            entry.state = QueueState.ACTIVE
        self._active.fill(policy, entries)
        self._count("active", event, len(entries))

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    def counts(self) -> dict[str, int]:
        """Pods by the `queue` label of `scheduler_pending_pods`."""
        awaiting = sum(entry.state is QueueState.AWAITING_POLICY for entry in self._gated)
        return {
            "active": sum(entry.pod_count for entry in self._active)
            + awaiting
            + sum(gang.pod_count for gang in self.attempting),
            "backoff": sum(entry.pod_count for entry in self._backoff),
            "unschedulable": sum(entry.pod_count for entry in self._parked),
            "gated": sum(entry.pod_count for entry in self._gated) - awaiting,
        }

    def active_entries(self, policy: str) -> Iterator[QueueEntry]:
        """The policy's active entries, in no order."""
        yield from self._active.of_policy(policy)

    def parked_groups(self) -> Iterator[ParkedGroup]:
        return iter(self._groups)

    @property
    def rule_counts(self) -> Mapping[tuple[str, str], RuleCounts]:
        return self._groups.rule_counts

    def group_of(self, entry: QueueEntry) -> ParkedGroup | None:
        return self._parked.group_of(entry)

    def check(self) -> list[str]:
        """One sentence for each violation of the states and of the parked groups' rules."""
        problems = []
        states: dict[QueueEntry, list[QueueState]] = {}
        for entry in self._active:
            states.setdefault(entry, []).append(QueueState.ACTIVE)
        for entry in self._backoff:
            states.setdefault(entry, []).append(QueueState.BACKING_OFF)
        for entry in (entry for group in self._groups for entry in group.members):
            states.setdefault(entry, []).append(QueueState.UNSCHEDULABLE)
        for entry in self._gated:
            is_awaiting = entry.state is QueueState.AWAITING_POLICY
            states.setdefault(entry, []).append(entry.state if is_awaiting else QueueState.GATED)
        for entry, queue_states in states.items():
            if queue_states != [entry.state]:
                problems.append(
                    f"{entry} is in {[queue_state.value for queue_state in queue_states]}, its state is {entry.state.value}"
                )
        return [*problems, *self._groups.check(), *self._active.check(), *self._backoff.check()]

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _activate(self, entry: QueueEntry, event: str) -> None:
        entry.state, entry.in_error_backoff = QueueState.ACTIVE, False
        self._active.put(entry)
        self._count("active", event)

    def _park(self, entry: QueueEntry, group: ParkedGroup, now_ns: int) -> None:
        self._count("unschedulable", "ScheduleAttemptFailure")
        self._parked.add(entry, group, now_ns)

    def _entries_of(self, policy: str) -> Iterator[QueueEntry]:
        yield from self._active.of_policy(policy)
        yield from (entry for entry in self._backoff if entry.policy == policy)
        yield from (entry for entry in self._parked if entry.policy == policy)
        yield from (entry for entry in self._gated if entry.policy == policy)
        yield from (gang for gang in self.attempting if gang.policy == policy)

    def _count(self, queue: str, event: str, pods: int = 1) -> None:
        self.incoming_counts[queue, event] = self.incoming_counts.get((queue, event), 0) + pods
