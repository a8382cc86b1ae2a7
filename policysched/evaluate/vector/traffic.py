"""`traffic_to(gang)` as a step: what flows between the pod and the members of its gang, added up by row or by domain.

Only the members are looked at, wherever they are; rows without one have nothing, and need no look. The meaning is that of
`lang.ir.expr.TrafficTo`.
"""

from collections.abc import Hashable, Iterator

import numpy as np

from policysched.cluster.samples import PairSamples
from policysched.evaluate.columns.column_kinds import DomainCode
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.gang_members import GangMemberSpec, MemberRows
from policysched.evaluate.vector.machine import EvalFrame, Fingerprint, ValueVector, VectorMachine, VectorStep
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import Number, exact_total
from policysched.lang.ir.program import Program


def traffic_to(machine: VectorMachine, expr: e.GangTraffic) -> VectorStep:
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    terms = _member_spec(expr, machine.program)
    by, key = machine.leaf_index(expr.gang_key), machine.leaf_index(expr.pod_key)
    assume = None if expr.assume is None else machine.leaf_index(expr.assume)
    floating, dtype = expr.type.is_float64, dtype_of(expr.type.kind)
    domain = None if expr.topology_key is None else DomainCode(expr.topology_key)

    def run(frame: EvalFrame) -> ValueVector:
        view, gang, name = frame.view, frame.leaf_values[by], frame.leaf_values[key]
        if gang is None:
            return ValueVector(np.zeros((), dtype), True)
        if name is None:
            return ValueVector(np.zeros((), dtype), False)
        home = frame.context.namespace.name, str(gang)
        amount = None if assume is None else frame.leaf_values[assume]
        flows = _PodFlows(
            view.pairs(expr.name), (home[0], str(name)), _assumed_number(amount, floating=floating)
        )
        if not flows.known:
            return ValueVector(np.zeros((), dtype), False)
        members = _member_flows(
            view.gang_members(terms).rows_of(home), flows, view.row_of_pod(frame.context.pod.uid), str(name)
        )
        polled = view.metric(expr.name)[1]
        if domain is None:
            totals, unknown = _sum_by_row_or_domain(members, None, floating=floating)
            values, lacking = (
                view.from_row_values(totals, 0, dtype),
                view.from_row_values(unknown, 0, np.bool_),
            )
            return ValueVector(values, polled & ~lacking)
        codes = view.all_rows().column(domain)
        totals, unknown = _sum_by_row_or_domain(members, codes, floating=floating)
        here = view.column(domain)
        values, lacking = _gather_codes(totals, here, dtype), _gather_codes(unknown, here, np.bool_)
        return ValueVector(values, polled & ~lacking & (here != 0))

    return run


def traffic_fingerprint(machine: VectorMachine, expr: e.Expr | None) -> Fingerprint | None:
    """What of other rows the value depends on; None: nothing."""
    parts = [
        _members_fingerprint(machine, one)
        for one in (() if expr is None else e.walk(expr))
        if isinstance(one, e.GangTraffic) and one.topology_key is not None
    ]
    return (lambda frame: tuple([part(frame) for part in parts])) if parts else None


def _members_fingerprint(machine: VectorMachine, expr: e.GangTraffic) -> Fingerprint:
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    terms, by = _member_spec(expr, machine.program), machine.existing_leaf_index(expr.gang_key)

    def read(frame: EvalFrame) -> Hashable:
        gang = frame.leaf_values[by]
        if gang is None:
            return None
        home = frame.context.namespace.name, str(gang)
        return frame.view.topology_version, frame.view.gang_members(terms).revision(home)

    return read


class _PodFlows:
    """What flows between one pod and others of its namespace. `known` False: the samples do not know the pod, and nothing is
    assumed."""

    def __init__(self, pairs: PairSamples, pod: tuple[str, str], assume: Number | None) -> None:
        self._pairs, self._namespace, self._assume = pairs, pod[0], assume
        self._pod_flows = pairs.get(pod)
        self.known = self._pod_flows is not None or assume is not None

    def flow_to(self, name: str) -> Number | None:
        """None: there are samples of the two that cannot be used."""
        peer = self._namespace, name
        if self._pod_flows is not None:
            if peer in self._pod_flows:
                return self._pod_flows[peer]
            if peer in self._pairs:
                return 0
        return 0 if self._assume is None else self._assume


def _member_spec(expr: e.GangTraffic, program: Program) -> GangMemberSpec:
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    names = dict.fromkeys(
        one.name
        for part in (expr.gang_key, expr.pod_key)
        for one in e.walk(part)
        if isinstance(one, e.InputRef)
    )
    return GangMemberSpec(
        program.name, expr.gang_key, expr.pod_key, tuple(program.inputs[name] for name in names)
    )


def _assumed_number(amount: object, *, floating: bool) -> Number | None:
    if amount is None:
        return None
    assert isinstance(amount, int | float), f"{amount!r} is assumed between two pods"
    return float(amount) if floating else int(amount)


def _member_flows(
    places: MemberRows, flows: _PodFlows, own_row: int | None, own_name: str
) -> Iterator[tuple[Number | None, int, int]]:
    """What flows to members, where it is not nothing: how much, on which row, and to how many. The pod itself is none of them."""
    for name, rows in places.items():
        flow = flows.flow_to(name)
        if flow == 0:
            continue
        for row, count in rows.items():
            others = count - 1 if row == own_row and name == own_name else count
            if others:
                yield flow, row, others


def _sum_by_row_or_domain(
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


def _gather_codes(by_code: dict[int, Number] | dict[int, bool], codes: Array, dtype: object) -> Array:
    answers = np.zeros(int(codes.max(initial=0)) + 1, dtype)  # type: ignore[call-overload]
    for code, answer in by_code.items():
        if code < len(answers):
            answers[code] = answer
    found: Array = answers[codes]
    return found
