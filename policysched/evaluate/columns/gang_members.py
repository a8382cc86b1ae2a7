"""`GangMembers`: the rows of the members of each gang, over which `traffic_to(gang)` sums.

Pods are counted by gang, by their name in the samples and by row as they are added and removed, so
that a sum over a gang costs its members and not the pods of the cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, InputDeclarations
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import Expr
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

NamespacedGang = tuple[str, str]
"""A namespace and the value of the policy's gang key."""

MemberRows = Mapping[str, Mapping[int, int]]
"""By the name of the member in the samples: counts by row."""

_NO_MEMBER_ROWS: MemberRows = {}
_REVISIONS = count(1)
_Counts = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class GangMemberSpec:
    """How a policy groups its pods: by `gang`, and by `member_name`, their name in the samples. Both
    read `inputs`."""

    policy: str
    gang: Expr
    member_name: Expr
    inputs: tuple[Input, ...]


class GangMembers:
    """Counts over the rows of the columns. Terminating pods are not members. The pods of a namespace that changes are counted as
    before until `forget_changed_namespaces`, so that each leaves the gang that it was counted in."""

    def __init__(self, spec: GangMemberSpec, namespaces: Mapping[str, Namespace]) -> None:
        declarations = InputDeclarations.of(spec.inputs)
        self._policy = spec.policy
        self._gang = compile_scalar(spec.gang, declarations)
        self._member_name = compile_scalar(spec.member_name, declarations)
        self._namespaces = namespaces
        self._namespaces_read: dict[str, Namespace] = {}
        self.is_outdated = False  # a namespace may have changed
        self._gangs: dict[NamespacedGang, _Counts] = {}
        self._revisions: dict[NamespacedGang, int] = {}

    def gang_and_name(self, pod: Pod) -> tuple[NamespacedGang, str] | None:
        """The pod's gang and its member name; None: not in a gang."""
        if pod.scheduler != self._policy or pod.terminating:
            return None
        namespace = self._namespaces_read.get(pod.namespace)
        if namespace is None:
            namespace = self._namespaces_read[pod.namespace] = self._namespace(pod.namespace)
        context = EvalContext(pod, namespace)
        gang, name = self._gang(context), self._member_name(context)
        return None if gang is None or name is None else ((pod.namespace, str(gang)), str(name))

    def adjust(self, row: int, pod: Pod, delta: int) -> None:
        """Add (1) or remove (-1) a pod on a row."""
        member = self.gang_and_name(pod)
        if member is None:
            return
        gang, name = member
        counts = self._gangs.setdefault(gang, {})
        _adjust(counts, name, row, delta)
        self._revisions[gang] = next(_REVISIONS)
        if not counts:
            del self._gangs[gang], self._revisions[gang]

    def forget_changed_namespaces(self) -> set[str]:
        """Those whose pods are to be added again."""
        if not self.is_outdated:
            return set()
        self.is_outdated = False
        read = self._namespaces_read
        changed = {name for name, namespace in read.items() if self._namespace(name) != namespace}
        for name in changed:
            del read[name]
        for gang in [gang for gang in self._gangs if gang[0] in changed]:
            del self._gangs[gang], self._revisions[gang]
        return changed

    def _namespace(self, name: str) -> Namespace:
        return self._namespaces.get(name) or Namespace(name, {}, {})

    def rows_of(self, gang: NamespacedGang) -> MemberRows:
        return self._gangs.get(gang, _NO_MEMBER_ROWS)

    def revision(self, gang: NamespacedGang) -> int:
        """Changes whenever members are added or removed; 0: there are none."""
        return self._revisions.get(gang, 0)


class HypotheticalGangMembers:
    """The members on an overlay. Valid while the columns do not change."""

    def __init__(self, members: GangMembers) -> None:
        self._members = members
        self._position = 0
        self._copies: dict[NamespacedGang, _Counts] = {}
        self._revisions: dict[NamespacedGang, int] = {}

    def catch_up(self, changes: Sequence[tuple[int, Pod, int]]) -> None:
        """Apply the new changes. `changes` are all of the overlay's, in order."""
        for row, pod, delta in changes[self._position :]:
            member = self._members.gang_and_name(pod)
            if member is not None:
                gang, name = member
                copy = self._copies.get(gang)
                if copy is None:
                    rows_by_name = self._members.rows_of(gang)
                    copy = self._copies[gang] = {name: dict(rows) for name, rows in rows_by_name.items()}
                _adjust(copy, name, row, delta)
                self._revisions[gang] = next(_REVISIONS)
        self._position = len(changes)

    def rows_of(self, gang: NamespacedGang) -> MemberRows:
        copy = self._copies.get(gang)
        return self._members.rows_of(gang) if copy is None else copy

    def revision(self, gang: NamespacedGang) -> int:
        return self._revisions.get(gang) or self._members.revision(gang)


def _adjust(counts: _Counts, name: str, row: int, delta: int) -> None:
    rows = counts.setdefault(name, {})
    count = rows.get(row, 0) + delta
    assert count >= 0, f"row {row} has {count} members named {name}"
    if count:
        rows[row] = count
    else:
        del rows[row]
        if not rows:
            del counts[name]
