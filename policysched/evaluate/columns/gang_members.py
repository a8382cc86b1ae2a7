"""Which members of gangs are on which rows: what `traffic_to(gang)` adds up over.

Pods are known by their gang and by what the samples call them, and counted row by row as they come and go, so that a question
about a gang costs its members and not the pods of the cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.declarations import Input, Metric
from policysched.lang.ir.expr import Expr
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

NamespacedGang = tuple[str, str]
"""A namespace, and what the policy's gangs are told by."""

MemberRows = Mapping[str, Mapping[int, int]]
"""By what the members are called: how many of them are on which rows."""

_NO_MEMBER_ROWS: MemberRows = {}
_REVISIONS = count(1)
_Counts = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class GangMemberSpec:
    """The pods of a policy by their gang (`gang`) and by what they are called (`member_name`). `inputs` are those that the two read."""

    policy: str
    gang: Expr
    member_name: Expr
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class _InputDeclarations:
    inputs: Mapping[str, Input]
    metrics: Mapping[str, Metric]


class GangMembers:
    """Of the columns' rows. Pods that are being deleted are members no more."""

    def __init__(self, terms: GangMemberSpec, namespaces: Mapping[str, Namespace]) -> None:
        declared = _InputDeclarations({one.name: one for one in terms.inputs}, {})
        self._policy = terms.policy
        self._gang, self._member_name = (
            compile_scalar(terms.gang, declared),
            compile_scalar(terms.member_name, declared),
        )
        self._namespaces = namespaces
        self._gangs: dict[NamespacedGang, _Counts] = {}
        self._revisions: dict[NamespacedGang, int] = {}

    def gang_and_name(self, pod: Pod) -> tuple[NamespacedGang, str] | None:
        """The pod's gang and its name there; None where it is in none."""
        if pod.scheduler != self._policy or pod.terminating:
            return None
        seen = EvalContext(pod, self._namespaces.get(pod.namespace) or Namespace(pod.namespace, {}, {}))
        gang, name = self._gang(seen), self._member_name(seen)
        return None if gang is None or name is None else ((pod.namespace, str(gang)), str(name))

    def adjust(self, row: int, pod: Pod, by: int) -> None:
        """One pod more (1) or less (-1) on a row."""
        called = self.gang_and_name(pod)
        if called is None:
            return
        gang, name = called
        counts = self._gangs.setdefault(gang, {})
        _adjust(counts, name, row, by)
        self._revisions[gang] = next(_REVISIONS)
        if not counts:
            del self._gangs[gang], self._revisions[gang]

    def rows_of(self, gang: NamespacedGang) -> MemberRows:
        return self._gangs.get(gang, _NO_MEMBER_ROWS)

    def revision(self, gang: NamespacedGang) -> int:
        """Another one whenever members came or went; 0: there are none."""
        return self._revisions.get(gang, 0)


class HypotheticalGangMembers:
    """The same with some pods laid and lifted, for as long as nothing else changes."""

    def __init__(self, members: GangMembers) -> None:
        self._members = members
        self._position = 0
        self._copies: dict[NamespacedGang, _Counts] = {}
        self._revisions: dict[NamespacedGang, int] = {}

    def catch_up(self, shifts: Sequence[tuple[int, Pod, int]]) -> None:
        """`shifts` are all there were, in order."""
        for row, pod, by in shifts[self._position :]:
            called = self._members.gang_and_name(pod)
            if called is not None:
                gang, name = called
                own = self._copies.get(gang)
                if own is None:
                    own = self._copies[gang] = {
                        one: dict(on) for one, on in self._members.rows_of(gang).items()
                    }
                _adjust(own, name, row, by)
                self._revisions[gang] = next(_REVISIONS)
        self._position = len(shifts)

    def rows_of(self, gang: NamespacedGang) -> MemberRows:
        own = self._copies.get(gang)
        return self._members.rows_of(gang) if own is None else own

    def revision(self, gang: NamespacedGang) -> int:
        return self._revisions.get(gang) or self._members.revision(gang)


def _adjust(counts: _Counts, name: str, row: int, by: int) -> None:
    rows = counts.setdefault(name, {})
    count = rows.get(row, 0) + by
    assert count >= 0, f"row {row} has {count} members called {name}"
    if count:
        rows[row] = count
    else:
        del rows[row]
        if not rows:
            del counts[name]
