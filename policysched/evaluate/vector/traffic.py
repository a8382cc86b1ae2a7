"""`traffic_to(gang)` as a step: the traffic between the pod and the members of its gang by row or domain.

Reads the rows of members only; all other rows have none. `lang.ir.expr.GangTraffic` defines the
meaning.
"""

from collections.abc import Hashable, Iterator

import numpy as np

from policysched.cluster.metric_samples import PairSamples
from policysched.evaluate.columns.column_kinds import DomainColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.gang_members import GangMemberSpec, MemberRows
from policysched.evaluate.scalar.eval_context import inputs_read
from policysched.evaluate.vector.machine import EvalFrame, Fingerprint, ValueVector, VectorMachine, VectorStep
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import Number, exact_total
from policysched.lang.ir.program import Program


def traffic_to(machine: VectorMachine, expr: e.GangTraffic) -> VectorStep:
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    spec = _member_spec(expr, machine.program)
    gang_leaf, name_leaf = machine.leaf_index(expr.gang_key), machine.leaf_index(expr.pod_key)
    assume_leaf = None if expr.assume is None else machine.leaf_index(expr.assume)
    floating, dtype = expr.type.is_float64, dtype_of(expr.type.kind)
    domain = None if expr.topology_key is None else DomainColumn(expr.topology_key)

    def run(frame: EvalFrame) -> ValueVector:
        view, gang, name = frame.view, frame.leaf_values[gang_leaf], frame.leaf_values[name_leaf]
        if gang is None:
            return ValueVector(np.zeros((), dtype), True)
        if name is None:
            return ValueVector(np.zeros((), dtype), False)
        namespace = frame.context.namespace.name
        amount = None if assume_leaf is None else frame.leaf_values[assume_leaf]
        flows = _PodFlows(
            view.pairs(expr.name), (namespace, str(name)), _assumed_number(amount, floating=floating)
        )
        if not flows.known:
            return ValueVector(np.zeros((), dtype), False)
        members = _member_flows(
            view.gang_members(spec).rows_of((namespace, str(gang))),
            flows,
            view.row_of_pod(frame.context.pod.uid),
            str(name),
        )
        polled = view.metric(expr.name)[1]
        if domain is None:
            totals, unknown = _sum_by_row_or_domain(members, None, floating=floating)
            values = view.from_row_values(totals, 0, dtype)
            is_unknown = view.from_row_values(unknown, 0, np.bool_)
            return ValueVector(values, polled & ~is_unknown)
        codes = view.all_rows().column(domain)
        totals, unknown = _sum_by_row_or_domain(members, codes, floating=floating)
        row_codes = view.column(domain)
        values = _gather_codes(totals, row_codes, dtype)
        is_unknown = _gather_codes(unknown, row_codes, np.bool_)
        return ValueVector(values, polled & ~is_unknown & (row_codes != 0))

    return run


def members_fingerprint(machine: VectorMachine, expr: e.GangTraffic) -> Fingerprint:
    """Changes with the members of the pod's gang and with the domains of nodes."""
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    spec, gang_leaf = _member_spec(expr, machine.program), machine.leaf_by_expr[expr.gang_key]

    def read(frame: EvalFrame) -> Hashable:
        gang = frame.leaf_values[gang_leaf]
        if gang is None:
            return None
        namespaced_gang = frame.context.namespace.name, str(gang)
        return frame.view.topology_version, frame.view.gang_members(spec).revision(namespaced_gang)

    return read


class _PodFlows:
    """The traffic between one pod and others of its namespace. `known` False: the samples do not have
    the pod, and nothing is assumed."""

    def __init__(self, pairs: PairSamples, pod: tuple[str, str], assume: Number | None) -> None:
        self._pairs, self._namespace, self._assume = pairs, pod[0], assume
        self._pod_flows = pairs.get(pod)
        self.known = self._pod_flows is not None or assume is not None

    def flow_to(self, name: str) -> Number | None:
        """The traffic with another pod; None: the sample of the pair is unusable."""
        peer = self._namespace, name
        if self._pod_flows is not None:
            if peer in self._pod_flows:
                return self._pod_flows[peer]
            if peer in self._pairs:
                return 0
        return 0 if self._assume is None else self._assume


def _member_spec(expr: e.GangTraffic, program: Program) -> GangMemberSpec:
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    inputs = inputs_read(program, expr.gang_key, expr.pod_key)
    return GangMemberSpec(program.name, expr.gang_key, expr.pod_key, inputs)


def _assumed_number(amount: object, *, floating: bool) -> Number | None:
    if amount is None:
        return None
    assert isinstance(amount, int | float), f"{amount!r} is not a number"
    return float(amount) if floating else int(amount)


def _member_flows(
    members: MemberRows, flows: _PodFlows, own_row: int | None, own_name: str
) -> Iterator[tuple[Number | None, int, int]]:
    """The nonzero traffic to other members: amount per member, row and number of members."""
    for name, rows in members.items():
        flow = flows.flow_to(name)
        if flow == 0:
            continue
        for row, count in rows.items():
            others = count - 1 if row == own_row and name == own_name else count
            if others:
                yield flow, row, others


def _sum_by_row_or_domain(
    members: Iterator[tuple[Number | None, int, int]], codes: Array | None, *, floating: bool
) -> tuple[dict[int, Number], dict[int, bool]]:
    """Totals by row, or by the domain of the row (`codes`), and the keys whose total is unknown."""
    flows: dict[int, list[Number]] = {}
    unknown: dict[int, bool] = {}
    for flow, row, count in members:
        key = row if codes is None else int(codes[row])
        if flow is None:
            unknown[key] = True
        else:
            flows.setdefault(key, []).extend([flow] * count)
    return {key: exact_total(numbers, floating=floating) for key, numbers in flows.items()}, unknown


def _gather_codes(by_code: dict[int, Number] | dict[int, bool], codes: Array, dtype: object) -> Array:
    values = np.zeros(int(codes.max(initial=0)) + 1, dtype)  # type: ignore[call-overload]
    for code, value in by_code.items():
        if code < len(values):
            values[code] = value
    by_row: Array = values[codes]
    return by_row
