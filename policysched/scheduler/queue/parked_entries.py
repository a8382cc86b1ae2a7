"""Parked entries: the members of parked groups, and their way back into the queue as representatives.

    parked ──its group is opened, or it got ahead of its representatives──► representative ──attempted in vain──► parked
                             next member ◄──while the group is open, once the representative is placed──┘

Groups are opened in slices if an event helps many (`SlicedWakeUps`).
"""

from collections.abc import Callable, Container, Iterable, Iterator

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.blame import raises_for
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.late_wake_ups import WakeUp
from policysched.scheduler.queue.parked_groups import EquivalenceKey, ParkedGroup, ParkedGroups
from policysched.scheduler.queue.sliced_wake_ups import WAKE_UPS_PER_SLICE


class ParkedEntries:
    """`enqueue` puts a detached entry into the queue, for the event of a name."""

    def __init__(self, groups: ParkedGroups, enqueue: Callable[[QueueEntry, int, str], None]) -> None:
        self._groups = groups
        self._enqueue = enqueue
        self._group_by_entry: dict[QueueEntry, ParkedGroup] = {}

    def __iter__(self) -> Iterator[QueueEntry]:
        return iter(self._group_by_entry)

    def group_of(self, entry: QueueEntry) -> ParkedGroup | None:
        return self._group_by_entry.get(entry)

    def blocked_group(self, equivalence_key: EquivalenceKey) -> ParkedGroup | None:
        """The group of the class, if nothing has happened that could change its verdict."""
        group = self._groups.get(equivalence_key)
        return None if group is None or not group.blocked or group in self._groups.sliced else group

    # ── members ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, entry: QueueEntry, group: ParkedGroup, now_ns: int) -> None:
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        entry.state = QueueState.UNSCHEDULABLE
        entry.last_cause = group.cause
        self._groups.put(group, entry)
        self._group_by_entry[entry] = group
        self.return_representative(entry, now_ns)

    def reorder(self, entry: QueueEntry, now_ns: int) -> None:
        """The key of a member has changed. If it is now ahead of its class, it represents it too."""
        group = self._group_by_entry[entry]
        self._groups.put(group, entry)
        if self._is_member_first(group):
            self._send_representative(group, now_ns, "QueueOrder")

    def representative_reordered(self, entry: QueueEntry, now_ns: int) -> None:
        """The key of an entry has changed. If a member of the class that it represents is ahead of it now, that represents it too."""
        group = None if entry.represented_key is None else self._groups.get(entry.represented_key)
        if group is not None and self._is_member_first(group):
            self._send_representative(group, now_ns, "QueueOrder")

    def _is_member_first(self, group: ParkedGroup) -> bool:
        """Whether the group is open, and a member is ahead of all that represent it, or there are none."""
        return not group.blocked and all(group.members.precedes(other) for other in group.representatives)

    def remove(self, entry: QueueEntry) -> None:
        group = self._group_by_entry.pop(entry)
        self._groups.remove(group, entry)
        self._groups.drop_if_empty(group)

    def drop_policy(self, policy: str, rules: Container[str]) -> None:
        for group in self._groups.drop_policy(policy, rules):
            for entry in group.members:
                del self._group_by_entry[entry]

    def return_representative(self, entry: QueueEntry, now_ns: int) -> None:
        """The entry's attempt as a representative is over. If its class is still open, requeue the next member, unless that is behind
        a representative of an earlier event, which backs off."""
        equivalence_key, entry.represented_key, entry.yields_no_more = entry.represented_key, None, False
        group = None if equivalence_key is None else self._groups.get(equivalence_key)
        if group is None:
            return
        group.representatives.pop(entry, None)
        if self._is_member_first(group):
            self._send_representative(group, now_ns, "RepresentativeScheduled")
        else:
            self._groups.drop_if_empty(group)

    # ── opening groups ─────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, wake_ups: Iterable[WakeUp], now_ns: int) -> None:
        for event, group in wake_ups:
            self._unblock(group, now_ns, event.value)

    def open_in_slices(self, wake_ups: Iterable[WakeUp], now_ns: int) -> None:
        """Few are opened at once; many are due. Each group once, for its first event: opened twice, it has two representatives."""
        first_events = dict[ParkedGroup, ClusterEvent]()
        for event, group in wake_ups:
            first_events.setdefault(group, event)
        many = [(event, group) for group, event in first_events.items()]
        if len(many) > WAKE_UPS_PER_SLICE:
            few = [wake_up for wake_up in many if wake_up[1].representatives and not wake_up[1].members]
            self._groups.sliced.add(many, now_ns)
        else:
            few = many
        self.open(few, now_ns)

    def open_slice(self, now_ns: int) -> bool:
        """Sort or open a slice of the due groups. False: there are none."""
        sliced = self._groups.sliced
        if sliced.sort_slice():
            return True
        is_any_due = bool(sliced)
        for _, group in zip(range(WAKE_UPS_PER_SLICE), sliced.in_order(), strict=False):
            self._open_due(group, now_ns)
        return is_any_due

    def is_held_by_due(self, entry: QueueEntry, now_ns: int) -> bool:
        """Whether an entry waits for due groups, a slice of which was sorted or opened now."""
        groups = self._groups
        is_sorted = groups.sliced.sort_some(entry.policy) or groups.late.list_some(entry)
        return is_sorted or self.open_before(entry, now_ns)

    def open_due(self, entry: QueueEntry, now_ns: int) -> None:
        """The group of an entry that is about to change, if it is due."""
        group = self._group_by_entry.get(entry)
        if group is not None and group in self._groups.sliced:
            self._open_due(group, now_ns)

    def open_before(self, entry: QueueEntry, now_ns: int) -> bool:
        """A slice of the due groups that an entry of their policy waits for. False: there are none."""
        opened = 0
        while opened < WAKE_UPS_PER_SLICE and (group := self._groups.sliced.before(entry)) is not None:
            self._open_due(group, now_ns)
            opened += 1
        return opened > 0

    def send_before(self, entry: QueueEntry, now_ns: int) -> tuple[bool, int]:
        """A slice of the late groups and of the members of open groups that an entry of their policy waits for. Returns whether there
        are any, and how many are sent. The entry waits for the others where it is popped again."""
        sent = 0
        while sent < WAKE_UPS_PER_SLICE and (late := self._groups.late.before(entry)) is not None:
            self.open((late,), now_ns)
            sent += 1
        while sent < WAKE_UPS_PER_SLICE and (member := self._groups.first_before(entry)) is not None:
            self._send_representative(self._group_by_entry[member], now_ns, "QueueOrder", member)
            sent += 1
        return sent > 0, sent

    def _open_due(self, group: ParkedGroup, now_ns: int) -> None:
        self._unblock(group, now_ns, self._groups.sliced.event_of(group).value)

    def _unblock(self, group: ParkedGroup, now_ns: int, event: str) -> None:
        self._groups.unindex(group)
        group.blocked = False
        self._send_representative(group, now_ns, event)
        self._groups.list_members(group)

    def _send_representative(
        self, group: ParkedGroup, now_ns: int, event: str, member: QueueEntry | None = None
    ) -> None:
        """By default the first member."""
        entry = member or group.members.first()
        if entry is None:
            self._groups.drop_if_empty(group)
            return
        with raises_for(entry.object_id):
            self._groups.remove(group, entry)
            del self._group_by_entry[entry]
            entry.state, entry.represented_key = QueueState.DETACHED, group.equivalence_key
            group.representatives[entry] = None
            self._enqueue(entry, now_ns, event)
