"""Lists of records over all nodes at once: every element of every node's list is a row of its own.

The lists in a column are interned, and the fields of one list are made arrays once. For a question the lists of the rows
in view are laid end to end, what is asked of the node is repeated for each of its elements, and the answers are summed up
by node. So a condition on elements costs what a condition on so many nodes costs.
"""

from collections.abc import Sequence

import numpy as np

from policysched.cluster.objects import Node
from policysched.cluster.usage import Usage
from policysched.lang import expr as e
from policysched.lang.types import FLOAT64_MAX, Kind, Type
from policysched.plan.column_kinds import ColumnKind, Interners, held_dtype
from policysched.plan.columns import Array
from policysched.plan.machine import Frame, Machine, Step, Vector, is_leaf
from policysched.plan.scalars import compiled, total
from policysched.plan.view import View, by_code

_EXACT_MAX = 2.0**62
"""Sums of whole numbers below this cannot leave int64 on their way."""


class Elements(View):
    """The elements of the lists of a view's rows as rows. `owners` are the places of their nodes in that view."""

    __slots__ = ("_base", "_fields", "owners")

    def __init__(self, base: View, owners: Array, fields: Sequence[tuple[Array, Array]]) -> None:
        # None of the parent's state: every question goes to the view of the nodes.
        self._base = base
        self._fields = fields
        self.owners = owners
        self.count = len(owners)

    @property
    def codes(self) -> Interners:
        return self._base.codes

    def field(self, index: int) -> tuple[Array, Array]:
        """Values, and where there is one."""
        return self._fields[index]

    def column(self, kind: ColumnKind) -> Array:
        found: Array = self._base.column(kind)[self.owners]
        return found

    def metric(self, name: str) -> tuple[Array, Array]:
        values, known = self._base.metric(name)
        return values[self.owners], known[self.owners]

    def node_at(self, place: int) -> tuple[Node, Usage] | None:
        return self._base.node_at(int(self.owners[place]))


def element(machine: Machine, expr: e.Element) -> Step:
    def run(frame: Frame) -> Vector:
        assert isinstance(frame.view, Elements), f"{expr.name} is read where no list is looked through"
        return Vector(*frame.view.field(expr.index))

    return run


def over_elements(machine: Machine, expr: e.Fold) -> Step:
    if is_leaf(expr.items):
        return _one_by_one(machine, expr)
    items = machine.operand(expr.items)
    where = None if expr.where is None else machine.operand(expr.where)
    value = None if expr.value is None else machine.operand(expr.value)

    def run(frame: Frame) -> Vector:
        listed = items(frame)
        elements = _elements(frame.view, expr.items.type, listed)
        inside = Frame(elements, frame.seen, frame.leaves, around=frame)
        assert isinstance(inside.view, Elements)
        count, owners = frame.view.count, inside.view.owners
        chosen = np.ones(len(owners), np.bool_)
        if where is not None:
            answer = where(inside)
            chosen &= np.broadcast_to(answer.values, chosen.shape) & np.broadcast_to(
                answer.known, chosen.shape
            )
        if value is None:
            counts = np.bincount(owners[chosen], minlength=count)
            return Vector(counts > 0 if expr.function == "any" else counts.astype(np.int64), listed.known)
        found = value(inside)
        chosen &= np.broadcast_to(found.known, chosen.shape)
        values, whose = np.broadcast_to(found.values, chosen.shape)[chosen], owners[chosen]
        if expr.function == "sum":
            return Vector(_sums(values, whose, count, floating=expr.floating), listed.known)
        some = np.bincount(whose, minlength=count) > 0
        return Vector(_extremes(expr, values, whose, count), np.logical_and(listed.known, some))

    return run


def _sums(values: Array, whose: Array, count: int, *, floating: bool) -> Array:
    """By owner, in the order of the lists."""
    if floating:
        added = np.bincount(whose, weights=values.astype(np.float64), minlength=count)
        return np.clip(added, -FLOAT64_MAX, FLOAT64_MAX)
    sums: Array = np.zeros(count, np.int64)
    if np.abs(values.astype(np.float64)).sum() < _EXACT_MAX:
        np.add.at(sums, whose, values)
        return sums
    for owner in set(whose.tolist()):
        sums[owner] = total(values[whose == owner].tolist(), floating=False)
    return sums


def _extremes(expr: e.Fold, values: Array, whose: Array, count: int) -> Array:
    """By owner; 0 where there is none."""
    found = np.zeros(count, np.float64 if expr.floating else np.int64)
    order = np.lexsort((values, whose))
    ordered, owners = values[order], whose[order]
    at_end = np.flatnonzero(np.diff(owners, append=-1) != 0)
    at_start = np.flatnonzero(np.diff(owners, prepend=-1) != 0)
    places = at_end if expr.function == "max" else at_start
    found[owners[places]] = ordered[places]
    return found


def _elements(view: View, type_: Type, listed: Vector) -> Elements:
    """All elements of the lists of a column of codes, end to end."""
    codes, interners = np.broadcast_to(listed.values, (view.count,)), view.codes
    known = np.broadcast_to(listed.known, (view.count,))
    lists = interners.records.values
    lengths = np.where(known, by_code(codes, lists, lambda one: _length(one[1]), np.int64), 0)
    owners = np.repeat(np.arange(view.count), lengths)
    record = None if type_.element is None else type_.element.record
    assert record is not None, f"{type_} is no list of records"
    parts = [_flat(interners, int(code)) for code in codes[lengths > 0]]
    fields: list[tuple[Array, Array]] = []
    for index, field in enumerate(record.fields):
        if not parts:
            fields.append((np.zeros(0, held_dtype(field.type.kind)), np.zeros(0, np.bool_)))
            continue
        values = np.concatenate([part[index][0] for part in parts])
        fields.append((values, np.concatenate([part[index][1] for part in parts])))
    return Elements(view, owners, fields)


def _length(listed: object) -> int:
    assert isinstance(listed, tuple), f"{listed!r} is no list"
    return len(listed)


def _flat(interners: Interners, code: int) -> tuple[tuple[Array, Array], ...]:
    """The fields of one list as arrays: values (strings as codes) and where there is one."""
    found = interners.flat.get(code)
    if found is not None:
        return found
    type_, listed = interners.records.values[code]
    record = None if type_.element is None else type_.element.record
    assert record is not None and isinstance(listed, tuple), f"{type_} is no list of records"
    columns: list[tuple[Array, Array]] = []
    for index, field in enumerate(record.fields):
        dtype = held_dtype(field.type.kind)
        values = np.zeros(len(listed), dtype)
        known = np.zeros(len(listed), np.bool_)
        for place, one in enumerate(listed):
            assert isinstance(one, tuple), f"{one!r} is no record"
            value = one[index]
            if value is not None:
                texts = field.type.kind is Kind.STRING
                values[place] = interners.strings.code(str(value)) if texts else value
                known[place] = True
        columns.append((values, known))
    interners.flat[code] = tuple(columns)
    return interners.flat[code]


def _one_by_one(machine: Machine, expr: e.Fold) -> Step:
    """A list of the pod's that is compared with the node: a question for each node."""
    function = compiled(expr, machine.program)
    dtype = np.float64 if expr.floating else held_dtype(expr.type.kind)

    def run(frame: Frame) -> Vector:
        values = np.zeros(frame.view.count, dtype)
        known = np.zeros(frame.view.count, np.bool_)
        for place in range(frame.view.count):
            at = frame.view.node_at(place)
            found = None if at is None else function(frame.seen.on(*at))
            if found is not None:
                values[place], known[place] = found, True
        return Vector(values, known)

    return run
