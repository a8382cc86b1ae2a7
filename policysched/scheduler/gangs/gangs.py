"""Who belongs to which gang, and how many of them count.

A gang is a policy, a namespace and a key. Members that are bound (or being bound) and alive, and members that could be
placed now, count towards its minimum, so that a replaced worker joins its running gang; finished, terminating, gated
and refused ones do not. This module counts; `admission` moves gangs through the queue and `gang_trials` places them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from policysched.evaluate import GangTerms
from policysched.lang.ir.program import GangMode, OnTimeout
from policysched.model.objects import AnyClaim, Pod, PodUid
from policysched.scheduler.queue.entries import PendingPod, Place, Unit
from policysched.scheduler.queue.heap import MovableHeap
from policysched.text.sanitize import one_line

Value = TypeVar("Value")
GangId = tuple[str, str, str]
"""Policy, namespace, key."""

_TIMEOUT_SHORTEST_NS = 1_000_000_000  # a timeout of nothing would start a gang anew without end


class Gang(Unit):
    """A gang in the queue: one unit that stands at its first member's place.

        gathering ──enough exist──► due ──► placed
            ▲                        │
            └──── too few remain ────┘

    Gathering it is GATED and holds nothing. In mode `gate` its members stand in the queue themselves once it is due.
    """

    __slots__ = (
        "_by_age",
        "_by_order",
        "_maxima",
        "_minima",
        "_timeouts",
        "best_effort",
        "due",
        "id",
        "idle",
        "mode",
        "on_timeout",
        "overdue",
        "placed",
        "restarted_ns",
        "said_disagreement",
        "terms",
        "topology",
    )

    def __init__(self, gang_id: GangId, terms: GangTerms) -> None:
        super().__init__(gang_id[0], priority=0, queued_ns=0)
        self.id = gang_id
        self.mode = terms.mode
        self.on_timeout = terms.on_timeout
        self.topology = terms.topology
        self.due: dict[PodUid, PendingPod] = {}
        self.idle: dict[PodUid, PendingPod] = {}  # those of `due` that do not stand in the queue themselves
        self.placed: dict[PodUid, None] = {}
        self.terms: dict[PodUid, GangTerms] = {}
        self.best_effort = False
        self.overdue = False  # its time is up, and it gets one more trial before that has consequences
        self.restarted_ns = 0
        self.said_disagreement = False
        self._minima: dict[int, int] = {}
        self._maxima: dict[int | None, int] = {}
        self._timeouts: dict[int | None, int] = {}
        self._by_order: MovableHeap[PendingPod] = MovableHeap()
        self._by_age: MovableHeap[PendingPod] = MovableHeap()

    @property
    def name(self) -> str:
        """`namespace/key`, as messages and records have it: a key may be a whole annotation."""
        return f"{self.id[1]}/{one_line(self.id[2])}"

    @property
    def pods(self) -> int:
        return len(self.idle)

    @property
    def speaker(self) -> Pod:
        first = self._by_order.first()
        assert first is not None, f"gang {self.name} has nobody due"
        return first.pod

    @property
    def namespace(self) -> str:
        return self.id[1]

    @property
    def claims(self) -> frozenset[AnyClaim]:
        return frozenset().union(*(pod.claims for pod in self.due.values()))

    @property
    def minimum(self) -> int:
        """Members that disagree take the largest."""
        return max(self._minima, default=0)

    @property
    def maximum(self) -> int | None:
        """The smallest that a member gives, but never less than the minimum; None: no limit."""
        given = [one for one in self._maxima if one is not None]
        return max(min(given), self.minimum) if given else None

    @property
    def timeout_ns(self) -> int | None:
        given = [one for one in self._timeouts if one is not None]
        return max(given) if given else None

    @property
    def disagreement(self) -> tuple[int, ...]:
        """The different minima, sorted, where there is more than one."""
        return tuple(sorted(self._minima)) if len(self._minima) > 1 else ()

    @property
    def existing(self) -> int:
        return len(self.due) + len(self.placed)

    @property
    def enough(self) -> bool:
        return self.best_effort or self.existing >= self.minimum

    @property
    def needed(self) -> int:
        """How many members must be placed at once."""
        return 0 if self.best_effort else max(0, self.minimum - len(self.placed))

    @property
    def vacancies(self) -> int | None:
        """How many more members may be placed; None: any number."""
        return None if self.maximum is None else max(0, self.maximum - len(self.placed))

    @property
    def full_words(self) -> str:
        """Why no more of them are placed."""
        return f"gang {self.name} has as many members as it may have, {self.maximum}"

    def deadline_ns(self) -> int | None:
        """When its time is up: counted from the creation of the oldest pending member, or from its last restart."""
        timeout_ns, oldest = self.timeout_ns, self._by_age.first()
        if timeout_ns is None or oldest is None or self.best_effort:
            return None
        return max(oldest.pod.created_ns, self.restarted_ns) + max(timeout_ns, _TIMEOUT_SHORTEST_NS)

    def in_order(self) -> list[PendingPod]:
        """The due members, first in the queue's order first."""
        return sorted(self.due.values(), key=_order)

    def stand(self) -> None:
        """Take the first member's place in the queue's order."""
        first = self._by_order.first()
        assert first is not None, f"gang {self.name} has nobody due"
        self.key, self.priority, self.queued_ns = first.key, first.priority, first.queued_ns

    def reorder(self, pod: PendingPod) -> None:
        """The member's key has changed."""
        self._by_order.put(pod, pod.key)

    def _add_due(self, pod: PendingPod, terms: GangTerms) -> None:
        self._note(pod.uid, terms)
        self.due[pod.uid] = self.idle[pod.uid] = pod
        self._by_order.put(pod, pod.key)
        self._by_age.put(pod, pod.pod.created_ns)

    def _add_placed(self, uid: PodUid, terms: GangTerms) -> None:
        self._note(uid, terms)
        self.placed[uid] = None

    def _remove(self, uid: PodUid) -> None:
        pod = self.due.pop(uid, None)
        if pod is not None:
            self._by_order.discard(pod)
            self._by_age.discard(pod)
        self.idle.pop(uid, None)
        self.placed.pop(uid, None)
        terms = self.terms.pop(uid)
        _less(self._minima, terms.minimum)
        _less(self._maxima, terms.maximum)
        _less(self._timeouts, terms.timeout_ns)

    def _note(self, uid: PodUid, terms: GangTerms) -> None:
        assert uid not in self.terms, f"{uid} is in gang {self.name} already"
        self.terms[uid] = terms
        self._minima[terms.minimum] = self._minima.get(terms.minimum, 0) + 1
        self._maxima[terms.maximum] = self._maxima.get(terms.maximum, 0) + 1
        self._timeouts[terms.timeout_ns] = self._timeouts.get(terms.timeout_ns, 0) + 1

    def __repr__(self) -> str:
        return f"<gang {self.name} of {self.policy}: {len(self.due)} due, {len(self.placed)} placed, {self.place.value}>"


class Gangs:
    """Every gang with a member alive, and which pod is in which. Each change costs O(log members)."""

    def __init__(self) -> None:
        self._gangs: dict[GangId, Gang] = {}
        self._of: dict[PodUid, Gang] = {}
        self._histories: dict[GangId, Gang] = {}

    def __iter__(self) -> Iterator[Gang]:
        return iter(self._gangs.values())

    def of(self, uid: PodUid) -> Gang | None:
        return self._of.get(uid)

    def add_due(self, pod: PendingPod, terms: GangTerms) -> Gang:
        """A pending member that could be placed now."""
        self._forget(pod.uid)
        gang = self._gang(pod.policy, terms)
        gang._add_due(pod, terms)
        self._of[pod.uid] = gang
        return gang

    def add_placed(self, uid: PodUid, policy: str, terms: GangTerms) -> Gang:
        """A member that is bound or being bound, and alive."""
        self._forget(uid)
        gang = self._gang(policy, terms)
        gang._add_placed(uid, terms)
        self._of[uid] = gang
        return gang

    def remove(self, uid: PodUid) -> Gang | None:
        """The member is gone, finished, terminating, or cannot be placed; answers its gang, which may be empty."""
        return self._forget(uid)

    def drop_if_empty(self, gang: Gang) -> bool:
        """Forget a gang that nobody is in."""
        if gang.terms:
            return False
        assert gang.place is Place.NOWHERE, f"{gang} is empty and still {gang.place.value}"
        self._gangs.pop(gang.id, None)
        return True

    @contextmanager
    def policy_replaced(self, policy: str) -> Iterator[list[Gang]]:
        """Forget all gangs of a policy, which come together again inside the context under its new text. What they
        have been through (started anew, said to disagree) is remembered for them. Gives the old ones."""
        dropped = [gang for gang in self._gangs.values() if gang.policy == policy]
        for gang in dropped:
            for uid in gang.terms:
                del self._of[uid]
            del self._gangs[gang.id]
            self._histories[gang.id] = gang
        yield dropped
        self._histories.clear()

    def _gang(self, policy: str, terms: GangTerms) -> Gang:
        namespace, key = terms.key
        gang_id = (policy, namespace, key)
        gang = self._gangs.get(gang_id)
        if gang is None:
            gang = self._gangs[gang_id] = Gang(gang_id, terms)
            before = self._histories.get(gang_id)
            if before is not None:
                gang.restarted_ns, gang.said_disagreement = before.restarted_ns, before.said_disagreement
        return gang

    def _forget(self, uid: PodUid) -> Gang | None:
        gang = self._of.pop(uid, None)
        if gang is not None:
            gang._remove(uid)
        return gang

    def check(self) -> list[str]:
        """One sentence for each gang whose parts do not agree."""
        found = []
        for gang in self._gangs.values():
            if gang.terms.keys() != gang.due.keys() | gang.placed.keys():
                found.append(
                    f"{gang}: terms of {sorted(gang.terms)}, members {sorted([*gang.due, *gang.placed])}"
                )
            if gang.due.keys() & gang.placed.keys():
                found.append(
                    f"{gang}: due and placed at once: {sorted(gang.due.keys() & gang.placed.keys())}"
                )
            strangers = [uid for uid in gang.terms if self._of.get(uid) is not gang]
            if strangers:
                found.append(f"{gang}: {strangers} are not known to be in it")
            if not gang.terms:
                found.append(f"{gang} is empty")
        return found


def _order(pod: PendingPod) -> tuple[object, ...]:
    return pod.key


def _less(counts: dict[Value, int], value: Value) -> None:
    counts[value] -= 1
    if not counts[value]:
        del counts[value]


__all__ = ["Gang", "GangId", "GangMode", "Gangs", "OnTimeout"]
