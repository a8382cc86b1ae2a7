"""Which members of gangs are on which rows: what `traffic_to(gang)` adds up over.

Pods are known by their gang and by what the samples call them, and counted row by row as they come and go, so that a question
about a gang costs its members and not the pods of the cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Seen
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.program import Input, Metric
from policysched.model.objects import Namespace, Pod

Gang = tuple[str, str]
"""A namespace, and what the policy's gangs are told by."""

Places = Mapping[str, Mapping[int, int]]
"""By what the members are called: how many of them are on which rows."""

_NOWHERE: Places = {}
_STAMPS = count(1)
_Counts = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """The pods of a policy by their gang (`by`) and by what they are called (`key`). `inputs` are those that the two read."""

    policy: str
    by: Expr
    key: Expr
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class _Declared:
    inputs: Mapping[str, Input]
    metrics: Mapping[str, Metric]


class Members:
    """Of the columns' rows. Pods that are being deleted are members no more."""

    def __init__(self, terms: MemberTerms, namespaces: Mapping[str, Namespace]) -> None:
        declared = _Declared({one.name: one for one in terms.inputs}, {})
        self._policy = terms.policy
        self._by, self._key = compiled(terms.by, declared), compiled(terms.key, declared)
        self._namespaces = namespaces
        self._gangs: dict[Gang, _Counts] = {}
        self._stamps: dict[Gang, int] = {}

    def called(self, pod: Pod) -> tuple[Gang, str] | None:
        """The pod's gang and its name there; None where it is in none."""
        if pod.scheduler != self._policy or pod.terminating:
            return None
        seen = Seen(pod, self._namespaces.get(pod.namespace) or Namespace(pod.namespace, {}, {}))
        gang, name = self._by(seen), self._key(seen)
        return None if gang is None or name is None else ((pod.namespace, str(gang)), str(name))

    def shift(self, row: int, pod: Pod, by: int) -> None:
        """One pod more (1) or less (-1) on a row."""
        called = self.called(pod)
        if called is None:
            return
        gang, name = called
        counts = self._gangs.setdefault(gang, {})
        _shift(counts, name, row, by)
        self._stamps[gang] = next(_STAMPS)
        if not counts:
            del self._gangs[gang], self._stamps[gang]

    def of(self, gang: Gang) -> Places:
        return self._gangs.get(gang, _NOWHERE)

    def stamp(self, gang: Gang) -> int:
        """Another one whenever members came or went; 0: there are none."""
        return self._stamps.get(gang, 0)


class HypotheticalMembers:
    """The same with some pods laid and lifted, for as long as nothing else changes."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._position = 0
        self._own: dict[Gang, _Counts] = {}
        self._stamps: dict[Gang, int] = {}

    def catch_up(self, shifts: Sequence[tuple[int, Pod, int]]) -> None:
        """`shifts` are all there were, in order."""
        for row, pod, by in shifts[self._position :]:
            called = self._members.called(pod)
            if called is not None:
                gang, name = called
                own = self._own.get(gang)
                if own is None:
                    own = self._own[gang] = {one: dict(on) for one, on in self._members.of(gang).items()}
                _shift(own, name, row, by)
                self._stamps[gang] = next(_STAMPS)
        self._position = len(shifts)

    def of(self, gang: Gang) -> Places:
        own = self._own.get(gang)
        return self._members.of(gang) if own is None else own

    def stamp(self, gang: Gang) -> int:
        return self._stamps.get(gang) or self._members.stamp(gang)


def _shift(counts: _Counts, name: str, row: int, by: int) -> None:
    rows = counts.setdefault(name, {})
    count = rows.get(row, 0) + by
    assert count >= 0, f"row {row} has {count} members called {name}"
    if count:
        rows[row] = count
    else:
        del rows[row]
        if not rows:
            del counts[name]
