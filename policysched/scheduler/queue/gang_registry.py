"""Gang membership: which pod is in which gang, and how many members count.

A policy, a namespace and a key identify a gang. Live members that are bound or binding, and members
that could be placed now, count towards its minimum, so a replaced worker joins its running gang.
Finished, terminating, gated and rejected pods do not count. `scheduler.pod_enqueuer` moves gangs through
the queue and `gangs.gang_attempt` places them.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeVar

from policysched.evaluate import GangTerms, TopologyDomain
from policysched.lang.ir.attributes import resource_type
from policysched.lang.ir.program import GangMode, OnTimeout, TopologyLevel
from policysched.lang.types.units import format_value
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import AnyClaim, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.blame import ObjectId, change_id
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.queue.search_progress import SearchProgress
from policysched.text.sanitize import sanitize_line

Value = TypeVar("Value")
GangId = tuple[str, str, str]
"""Policy, namespace, key."""

POD_GROUP_CHANGE: Final = "a change of its PodGroup is applied to its members"
POLICY_CHANGE: Final = "a new text of its policy is applied to its members"
GANG_TIMEOUT: Final = "its timeout is applied to its members"

_TIMEOUT_MIN_NS = 1_000_000_000  # a timeout of 0 would restart the gang forever
_RESTARTED_TIMEOUT_MIN_NS = 30 * 1_000_000_000
"""Once it was restarted: each restart takes new places in the queue for all its members."""


class QueuedGang(QueueEntry):
    """A gang in the queue: one entry, ordered like its first member.

        gathering ──enough members──► due ──► placed
            ▲                          │
            └────── too few remain ────┘

    A gathering gang is GATED and reserves nothing. In mode `gate` its members enter the queue one by one once it is due.
    """

    __slots__ = (
        "_by_age",
        "_by_order",
        "_left",
        "_levels",
        "_maxima",
        "_minima",
        "_ordered",
        "_requested",
        "_timeouts",
        "best_effort",
        "disagreement_reported",
        "disruption",
        "domains_tried",
        "holds",
        "id",
        "keeps_nodes",
        "lost_nodes",
        "min_resources",
        "missed_events",
        "mode",
        "on_timeout",
        "overdue",
        "pending_members",
        "placed_members",
        "restarted_ns",
        "search_progress",
        "terms",
        "unqueued_members",
        "was_restarted",
        "yields_first",
    )

    def __init__(self, gang_id: GangId, terms: GangTerms) -> None:
        super().__init__(gang_id[0], priority=0, queued_ns=0)
        self.id = gang_id
        self.mode, self.on_timeout, self.disruption = terms.mode, terms.on_timeout, terms.disruption
        self.pending_members: dict[PodUid, PendingPod] = {}
        self.unqueued_members: dict[PodUid, PendingPod] = {}  # without a queue entry of their own
        self.placed_members: dict[PodUid, None] = {}
        self.terms: dict[PodUid, GangTerms] = {}
        self.best_effort = self.disagreement_reported = False
        self.overdue = False  # timed out; one more attempt before `on_timeout` applies
        self.domains_tried = frozenset[TopologyDomain]()  # the next attempt leaves them out
        self.restarted_ns, self.was_restarted = 0, False
        self.yields_first = False  # the next attempt, and not at its end: this one yielded after a pause
        self.search_progress = SearchProgress()
        self.missed_events: dict[ClusterEvent, str | None] = {}  # in pauses, with the `cause` of `requeue`
        self.keeps_nodes = self.lost_nodes = False  # the last attempt was lost; it failed as nodes were lost
        self.holds: set[str] = set()  # changes that have not reached all members
        self.min_resources = terms.min_resources
        self._requested: list[int] = [0] * len(terms.min_resources)
        self._minima: dict[int, int] = {}
        self._maxima: dict[int | None, int] = {}
        self._timeouts: dict[int | None, int] = {}
        self._levels: dict[tuple[TopologyLevel, ...], int] = {}
        self._by_order: MovableHeap[PendingPod] = MovableHeap()
        self._ordered: list[PendingPod] | None = None
        self._left: PendingPod | None = None
        self._by_age: MovableHeap[PendingPod] = MovableHeap()

    @property
    def name(self) -> str:
        """`namespace/key` for messages; sanitized, because a key may be a whole annotation."""
        return f"{self.id[1]}/{sanitize_line(self.id[2])}"

    @property
    def pod_count(self) -> int:
        return len(self.unqueued_members)

    @property
    def representative_pod(self) -> Pod:
        """The first pending member, or the last one that was, until the gang has left the queue: where it stands may be
        read before that."""
        first = self._by_order.first() or self._left
        assert first is not None, f"gang {self.name} has had no pending member"
        return first.pod

    @property
    def object_id(self) -> ObjectId:
        return super().object_id if self.pending_members else change_id(self.namespace)

    @property
    def namespace(self) -> str:
        return self.id[1]

    @property
    def claims(self) -> frozenset[AnyClaim]:
        with_claims = (
            each for each in self.pending_members.values() if each.pod.claims or each.pod.device_claims
        )
        return frozenset().union(*(pod.claims for pod in with_claims))

    @property
    def minimum(self) -> int:
        """The largest minimum that a member specifies."""
        return max(self._minima, default=0)

    @property
    def maximum(self) -> int | None:
        """The smallest maximum that a member specifies, at least the minimum; None: no limit."""
        maxima = [value for value in self._maxima if value is not None]
        return max(min(maxima), self.minimum) if maxima else None

    @property
    def timeout_ns(self) -> int | None:
        timeouts = [value for value in self._timeouts if value is not None]
        return max(timeouts) if timeouts else None

    @property
    def differing_minima(self) -> tuple[int, ...]:
        """The minima that members specify, sorted; empty if they agree."""
        return tuple(sorted(self._minima)) if len(self._minima) > 1 else ()

    @property
    def levels(self) -> tuple[TopologyLevel, ...]:
        """The topology levels, widest first; if members disagree, those that most of them name."""
        return max(self._levels, key=lambda levels: (self._levels[levels], _level_keys(levels)), default=())

    @property
    def required_keys(self) -> tuple[str, ...]:
        """The labels on which the nodes of all members must agree."""
        return tuple(level.key for level in self.levels if level.required)

    @property
    def differing_levels(self) -> tuple[tuple[TopologyLevel, ...], ...]:
        """The levels that members name; empty if they agree."""
        return tuple(sorted(self._levels, key=_level_keys)) if len(self._levels) > 1 else ()

    @property
    def member_count(self) -> int:
        return len(self.pending_members) + len(self.placed_members)

    @property
    def held(self) -> bool:
        return bool(self.holds)

    @property
    def has_quorum(self) -> bool:
        is_complete = self.member_count >= self.minimum and self._lacking(self._requested) is None
        return not self.held and (self.best_effort or is_complete)

    @property
    def incomplete_message(self) -> str:
        """Why an incomplete gang waits."""
        if self.held:
            return f"gang {self.name}: {min(self.holds)}"
        lacking = self._lacking(self._requested)
        if self.member_count >= self.minimum and lacking is not None:
            return f"gang {self.name}: its {self.member_count} members request {lacking}"
        return f"gang {self.name}: only {self.member_count} of the {self.minimum} needed members exist"

    def shortage(self, uids: Iterable[PodUid]) -> str | None:
        """What the placed members and these lack of the resources that start together; None: nothing."""
        if not self.min_resources or self.needed_count == 0:
            return None
        together = [self.terms[uid].requests for uid in (*self.placed_members, *uids)]
        return self._lacking([sum(amounts) for amounts in zip(*together, strict=True)])

    def _lacking(self, requested: Sequence[int]) -> str | None:
        for (resource, needed), amount in zip(self.min_resources, requested, strict=False):
            if amount < needed:
                amount_text, least = (
                    format_value(value, resource_type(resource)) for value in (amount, needed)
                )
                return f"{amount_text} of at least {least} {resource} (minResources)"
        return None

    @property
    def needed_count(self) -> int:
        """How many more members must be placed at once."""
        return 0 if self.best_effort else max(0, self.minimum - len(self.placed_members))

    @property
    def evicting_count(self) -> int:
        """For how many members pods may be evicted at once: for those that are needed. With a minimum of 1 every member is
        useful by itself, so later for one at a time."""
        alone = self.minimum == 1 and self.vacancies != 0 and not self.best_effort
        return self.needed_count or int(alone)

    @property
    def vacancies(self) -> int | None:
        """How many more members may be placed; None: any number."""
        return None if self.maximum is None else max(0, self.maximum - len(self.placed_members))

    @property
    def full_message(self) -> str:
        """Message for members beyond the maximum."""
        return f"gang {self.name} is at its maximum of {self.maximum} members"

    def deadline_ns(self) -> int | None:
        """When the gang times out: `timeout_ns` after its oldest pending member's creation, the time at which this process
        queued it, the start of its waiting time anew, or the start of this process, whichever is last. Creation times are of
        another clock, which may be behind."""
        timeout_ns, oldest = self.timeout_ns, self._by_age.first()
        if timeout_ns is None or oldest is None or self.best_effort:
            return None
        began_ns = max(oldest.pod.created_ns, oldest.queued_ns, self.restarted_ns)
        return began_ns + max(
            timeout_ns, _RESTARTED_TIMEOUT_MIN_NS if self.was_restarted else _TIMEOUT_MIN_NS
        )

    def members_in_order(self) -> Sequence[PendingPod]:
        """Pending members, in queue order: sorted again once one of them has changed."""
        if self._ordered is None:
            self._ordered = sorted(self.pending_members.values(), key=_order)
        return self._ordered

    def update_order_key(self) -> None:
        """Take over the order key of the first member."""
        first = self._by_order.first()
        assert first is not None, f"gang {self.name} has no pending member"
        self.order_key, self.priority, self.queued_ns = first.order_key, first.priority, first.queued_ns

    def reorder_member(self, pod: PendingPod) -> None:
        """Apply a changed order key of a member."""
        if self._by_order.key_of(pod) != pod.order_key:
            self._by_order.put(pod, pod.order_key)
            self._ordered = None

    def _add_pending(self, pod: PendingPod, terms: GangTerms) -> None:
        self._count_terms(pod.uid, terms)
        self.pending_members[pod.uid] = self.unqueued_members[pod.uid] = pod
        self._left = self._ordered = None
        self._by_order.put(pod, pod.order_key)
        self._by_age.put(pod, pod.pod.created_ns)

    def _add_placed(self, uid: PodUid, terms: GangTerms) -> None:
        self._count_terms(uid, terms)
        self.placed_members[uid] = None
        self.search_progress = SearchProgress()

    def _remove(self, uid: PodUid) -> None:
        pod = self.pending_members.pop(uid, None)
        if pod is not None:
            self._by_order.discard(pod)
            self._by_age.discard(pod)
            self._left = None if self.pending_members else pod
            self._ordered = None
        self.unqueued_members.pop(uid, None)
        self.placed_members.pop(uid, None)
        terms = self.terms.pop(uid)
        if terms.min_resources == self.min_resources:
            self._requested = [
                amount - released for amount, released in zip(self._requested, terms.requests, strict=True)
            ]
        _decrement(self._minima, terms.minimum)
        _decrement(self._maxima, terms.maximum)
        _decrement(self._timeouts, terms.timeout_ns)
        _decrement(self._levels, terms.levels)

    def _count_terms(self, uid: PodUid, terms: GangTerms) -> None:
        assert uid not in self.terms, f"{uid} is in gang {self.name} already"
        self.terms[uid] = terms
        self.disruption = terms.disruption
        self._levels[terms.levels] = self._levels.get(terms.levels, 0) + 1
        if terms.min_resources != self.min_resources:
            self.min_resources = terms.min_resources
            gangs = [
                other.requests for other in self.terms.values() if other.min_resources == terms.min_resources
            ]
            self._requested = [sum(amounts) for amounts in zip(*gangs, strict=True)]
        else:
            self._requested = [sum(pair) for pair in zip(self._requested, terms.requests, strict=True)]
        self._minima[terms.minimum] = self._minima.get(terms.minimum, 0) + 1
        self._maxima[terms.maximum] = self._maxima.get(terms.maximum, 0) + 1
        self._timeouts[terms.timeout_ns] = self._timeouts.get(terms.timeout_ns, 0) + 1

    def __repr__(self) -> str:
        return f"<gang {self.name} of {self.policy}: {len(self.pending_members)} pending, {len(self.placed_members)} placed, {self.state.value}>"


class GangRegistry:
    """Every gang with a live member, and the gang of each pod. A change costs O(log members)."""

    def __init__(self) -> None:
        self._gangs: dict[GangId, QueuedGang] = {}
        self._gang_by_pod: dict[PodUid, QueuedGang] = {}
        self._replaced: dict[tuple[str, str], dict[GangId, QueuedGang]] = {}  # by policy and namespace
        self.started_ns = 0
        """The first event of this process; gangs do not time out by what happened before."""

    def __iter__(self) -> Iterator[QueuedGang]:
        return iter(self._gangs.values())

    def get(self, gang_id: GangId) -> QueuedGang | None:
        return self._gangs.get(gang_id)

    def gang_of(self, uid: PodUid) -> QueuedGang | None:
        return self._gang_by_pod.get(uid)

    def add_pending(self, pod: PendingPod, terms: GangTerms) -> QueuedGang:
        """Add a pending member that could be placed now."""
        self._remove_member(pod.uid)
        gang = self._get_or_create(pod.policy, terms)
        gang._add_pending(pod, terms)
        self._gang_by_pod[pod.uid] = gang
        return gang

    def add_placed(self, uid: PodUid, policy: str, terms: GangTerms) -> QueuedGang:
        """Add a live member that is bound or binding."""
        self._remove_member(uid)
        gang = self._get_or_create(policy, terms)
        gang._add_placed(uid, terms)
        self._gang_by_pod[uid] = gang
        return gang

    def remove(self, uid: PodUid) -> QueuedGang | None:
        """Remove a member that is deleted, finished, terminating or unplaceable; return its gang, maybe empty."""
        return self._remove_member(uid)

    def drop_if_empty(self, gang: QueuedGang) -> bool:
        """Forget the gang if it has no members."""
        if gang.terms:
            return False
        assert gang.state is QueueState.DETACHED, f"{gang} is empty and still {gang.state.value}"
        self._gangs.pop(gang.id, None)
        return True

    def begin_replacing(self, policy: str, namespaces: Iterable[str]) -> list[QueuedGang]:
        """Drop all gangs of a policy, which are in these namespaces, and return them. Until `end_replacing` they form again under
        its new text, each held with `POLICY_CHANGE`. Their restart time, reported disagreement and other holds carry over."""
        for namespace in namespaces:
            self._replaced.setdefault((policy, namespace), {})
        dropped = [gang for gang in self._gangs.values() if gang.policy == policy]
        for gang in dropped:
            for uid in gang.terms:
                del self._gang_by_pod[uid]
            self._replaced.setdefault(gang.id[:2], {})[gang.id] = self._gangs.pop(gang.id)
        return dropped

    def end_hold(self, gang_id: GangId, reason: str) -> QueuedGang | None:
        """Also for the gang that forms again later. Returns the gang if it was held with this reason."""
        replaced, gang = self._replaced.get(gang_id[:2], {}).get(gang_id), self._gangs.get(gang_id)
        if replaced is not None:
            replaced.holds.discard(reason)
        if gang is None or reason not in gang.holds:
            return None
        gang.holds.discard(reason)
        return gang

    def end_replacing(self, policy: str, except_namespaces: Container[str]) -> None:
        for key in [key for key in self._replaced if key[0] == policy and key[1] not in except_namespaces]:
            del self._replaced[key]

    def _get_or_create(self, policy: str, terms: GangTerms) -> QueuedGang:
        namespace, key = terms.key
        gang_id = (policy, namespace, key)
        gang = self._gangs.get(gang_id)
        if gang is None:
            gang = self._gangs[gang_id] = QueuedGang(gang_id, terms)
            gang.restarted_ns = self.started_ns
            replaced = self._replaced.get((policy, namespace))
            if replaced is not None:
                gang.holds.add(POLICY_CHANGE)
            before = None if replaced is None else replaced.get(gang_id)
            if before is not None:
                gang.holds |= before.holds
                gang.restarted_ns, gang.was_restarted = before.restarted_ns, before.was_restarted
                gang.disagreement_reported = before.disagreement_reported
        return gang

    def _remove_member(self, uid: PodUid) -> QueuedGang | None:
        gang = self._gang_by_pod.pop(uid, None)
        if gang is not None:
            gang._remove(uid)
        return gang

    def check(self) -> list[str]:
        """Broken invariants, one message each."""
        problems = []
        for gang in self._gangs.values():
            if gang.terms.keys() != gang.pending_members.keys() | gang.placed_members.keys():
                problems.append(
                    f"{gang}: terms of {sorted(gang.terms)}, members {sorted([*gang.pending_members, *gang.placed_members])}"
                )
            if gang.pending_members.keys() & gang.placed_members.keys():
                problems.append(
                    f"{gang}: both pending and placed: {sorted(gang.pending_members.keys() & gang.placed_members.keys())}"
                )
            unmapped = [uid for uid in gang.terms if self._gang_by_pod.get(uid) is not gang]
            if unmapped:
                problems.append(f"{gang}: members {unmapped} are not mapped to it")
            if not gang.terms:
                problems.append(f"{gang} is empty")
        return problems


_order = attrgetter("order_key")


def _level_keys(levels: tuple[TopologyLevel, ...]) -> tuple[tuple[str, bool], ...]:
    return tuple((level.key, level.required) for level in levels)


def _decrement(counts: dict[Value, int], value: Value) -> None:
    counts[value] -= 1
    if not counts[value]:
        del counts[value]


__all__ = ["GangId", "GangMode", "GangRegistry", "OnTimeout", "QueuedGang"]
