"""`traffic_to(gang)` as a step: what flows between the pod and the members of its gang, added up by row or by domain.

Only the members are looked at, wherever they are; rows without one have nothing, and need no look. The meaning is that of
`lang.ir.expr.TrafficTo`.
"""

from collections.abc import Hashable, Iterator

import numpy as np

from policysched.cluster.samples import Pairs
from policysched.evaluate.columns.column_kinds import Domain
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.dtypes import held_dtype
from policysched.evaluate.columns.gang_members import MemberTerms, Places
from policysched.evaluate.vector.machine import Fingerprint, Frame, Machine, Step, Vector
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import Number, exact_total
from policysched.lang.ir.program import Program


def traffic_to(machine: Machine, expr: e.TrafficTo) -> Step:
    assert expr.by is not None, f"`{expr.span.text}` of a policy without gangs"
    terms = _terms(expr, machine.program)
    by, key = machine.leaf_number(expr.by), machine.leaf_number(expr.key)
    assume = None if expr.assume is None else machine.leaf_number(expr.assume)
    floating, dtype = expr.type.held_as_float, held_dtype(expr.type.kind)
    domain = None if expr.topology is None else Domain(expr.topology)

    def run(frame: Frame) -> Vector:
        view, gang, name = frame.view, frame.leaves[by], frame.leaves[key]
        if gang is None:
            return Vector(np.zeros((), dtype), True)
        if name is None:
            return Vector(np.zeros((), dtype), False)
        home = frame.seen.namespace.name, str(gang)
        amount = None if assume is None else frame.leaves[assume]
        flows = _Flows(view.pairs(expr.name), (home[0], str(name)), _held(amount, floating=floating))
        if not flows.known:
            return Vector(np.zeros((), dtype), False)
        members = _heard(view.members(terms).of(home), flows, view.row_of_pod(frame.seen.pod.uid), str(name))
        polled = view.metric(expr.name)[1]
        if domain is None:
            totals, unknown = _by_place(members, None, floating=floating)
            values, lacking = view.by_row(totals, 0, dtype), view.by_row(unknown, 0, np.bool_)
            return Vector(values, polled & ~lacking)
        codes = view.everywhere().column(domain)
        totals, unknown = _by_place(members, codes, floating=floating)
        here = view.column(domain)
        values, lacking = _gathered(totals, here, dtype), _gathered(unknown, here, np.bool_)
        return Vector(values, polled & ~lacking & (here != 0))

    return run


def fingerprint(machine: Machine, expr: e.Expr | None) -> Fingerprint | None:
    """What of other rows the value depends on; None: nothing."""
    parts = [
        _members_read(machine, one)
        for one in (() if expr is None else e.walk(expr))
        if isinstance(one, e.TrafficTo) and one.topology is not None
    ]
    return (lambda frame: tuple([part(frame) for part in parts])) if parts else None


def _members_read(machine: Machine, expr: e.TrafficTo) -> Fingerprint:
    assert expr.by is not None, f"`{expr.span.text}` of a policy without gangs"
    terms, by = _terms(expr, machine.program), machine.known_leaf(expr.by)

    def read(frame: Frame) -> Hashable:
        gang = frame.leaves[by]
        if gang is None:
            return None
        home = frame.seen.namespace.name, str(gang)
        return frame.view.topology_version, frame.view.members(terms).stamp(home)

    return read


class _Flows:
    """What flows between one pod and others of its namespace. `known` False: the samples do not know the pod, and nothing is
    assumed."""

    def __init__(self, pairs: Pairs, pod: tuple[str, str], assume: Number | None) -> None:
        self._pairs, self._namespace, self._assume = pairs, pod[0], assume
        self._own = pairs.get(pod)
        self.known = self._own is not None or assume is not None

    def to(self, name: str) -> Number | None:
        """None: there are samples of the two that cannot be used."""
        peer = self._namespace, name
        if self._own is not None:
            if peer in self._own:
                return self._own[peer]
            if peer in self._pairs:
                return 0
        return 0 if self._assume is None else self._assume


def _terms(expr: e.TrafficTo, program: Program) -> MemberTerms:
    assert expr.by is not None, f"`{expr.span.text}` of a policy without gangs"
    names = dict.fromkeys(
        one.name for part in (expr.by, expr.key) for one in e.walk(part) if isinstance(one, e.InputRef)
    )
    return MemberTerms(program.name, expr.by, expr.key, tuple(program.inputs[name] for name in names))


def _held(amount: object, *, floating: bool) -> Number | None:
    if amount is None:
        return None
    assert isinstance(amount, int | float), f"{amount!r} is assumed between two pods"
    return float(amount) if floating else int(amount)


def _heard(
    places: Places, flows: _Flows, own_row: int | None, own_name: str
) -> Iterator[tuple[Number | None, int, int]]:
    """What flows to members, where it is not nothing: how much, on which row, and to how many. The pod itself is none of them."""
    for name, rows in places.items():
        flow = flows.to(name)
        if flow == 0:
            continue
        for row, count in rows.items():
            others = count - 1 if row == own_row and name == own_name else count
            if others:
                yield flow, row, others


def _by_place(
    heard: Iterator[tuple[Number | None, int, int]], codes: Array | None, *, floating: bool
) -> tuple[dict[int, Number], dict[int, bool]]:
    """By row, or by the domain of the row (`codes`): what flows, and where that is not known."""
    parts: dict[int, list[Number]] = {}
    unknown: dict[int, bool] = {}
    for flow, row, count in heard:
        place = row if codes is None else int(codes[row])
        if flow is None:
            unknown[place] = True
        else:
            parts.setdefault(place, []).extend([flow] * count)
    return {place: exact_total(found, floating=floating) for place, found in parts.items()}, unknown


def _gathered(by_code: dict[int, Number] | dict[int, bool], codes: Array, dtype: object) -> Array:
    answers = np.zeros(int(codes.max(initial=0)) + 1, dtype)  # type: ignore[call-overload]
    for code, answer in by_code.items():
        if code < len(answers):
            answers[code] = answer
    found: Array = answers[codes]
    return found
