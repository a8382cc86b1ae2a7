"""What a node says of itself, as steps: its attributes, inputs, metrics and the pods on it; and the columns that these need."""

from typing import cast

import numpy as np

from policysched.cluster.samples import ALL_NODES, StateRow
from policysched.evaluate.columns.column_kinds import (
    INPUT_PRESENT,
    Allocatable,
    ClassCounts,
    ColumnKind,
    DomainCode,
    InputState,
    InputValue,
    PodClassCounts,
    PodCount,
    PolicyResourceRequested,
    node_attribute_column,
)
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import map_codes
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import ScalarFunction
from policysched.evaluate.vector.machine import EvalFrame, ValueVector, VectorMachine, VectorStep
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import expr_reads


def columns_read_by(expr: e.Expr, program: Program) -> list[ColumnKind]:
    """Every column that the expression reads."""
    found: list[ColumnKind] = []
    for one in e.walk(expr):
        match one:
            case e.Attr(owner="node", path=("free", resource)):
                found += _free_amount_columns(resource)
            case e.Attr(owner="node", path=path):
                found.append(node_attribute_column(path))
            case e.InputRef(name=name) if program.inputs[name].owner == "node":
                found += [InputState(program.inputs[name]), InputValue(program.inputs[name])]
            case e.SumPodsOnNode():
                found.append(_policy_resource_column(one, program))
            case e.GangTraffic(topology_key=str() as key):
                found.append(DomainCode(key))
            case e.CountPodsOnNode(where=None):
                found.append(PodCount())
            case e.CountPodsOnNode(where=where):
                found.append(PodClassCounts(tuple(sorted(expr_reads(where, program.inputs).counted_pods))))
    return found


def node_attribute(machine: VectorMachine, expr: e.Attr) -> VectorStep:
    assert expr.owner == "node", f"{expr.owner}.{'.'.join(expr.path)} is a leaf"
    row, key = find_attribute("node", expr.path), expr.path[-1]
    if row.field == "usage.free":
        return _free_amount(key)
    kind = node_attribute_column(expr.path)
    if row.key_kind != "texts":
        return lambda frame: ValueVector(frame.view.column(kind), True)

    def entry(frame: EvalFrame) -> ValueVector:
        codes = frame.view.column(kind)
        return ValueVector(codes, codes != ABSENT)

    return entry


def _free_amount(resource: str) -> VectorStep:
    allocatable, requested = _free_amount_columns(resource)
    return lambda frame: ValueVector(frame.view.column(allocatable) - frame.view.column(requested), True)


def _free_amount_columns(resource: str) -> tuple[ColumnKind, ColumnKind]:
    return Allocatable(resource), node_attribute_column(("requested", resource))


def node_input(machine: VectorMachine, expr: e.InputRef) -> VectorStep:
    state, value = (
        InputState(machine.program.inputs[expr.name]),
        InputValue(machine.program.inputs[expr.name]),
    )
    return lambda frame: ValueVector(frame.view.column(value), frame.view.column(state) == INPUT_PRESENT)


def node_metric(machine: VectorMachine, expr: e.MetricRef) -> VectorStep:
    return lambda frame: ValueVector(*frame.view.metric(expr.name))


def awaiting_recovery(machine: VectorMachine, expr: e.NotRecovered) -> VectorStep:
    watch = expr.condition
    return lambda frame: ValueVector(frame.view.awaiting_recovery(watch), frame.view.metric(watch.metric)[1])


def policy_state(machine: VectorMachine, expr: e.StateRef) -> VectorStep:
    number = machine.add_state_row_leaf(expr)

    def run(frame: EvalFrame) -> ValueVector:
        row = cast(StateRow | None, frame.leaf_values[number])
        if row is None:
            return ValueVector(np.zeros((), np.float64), False)
        if expr.is_cluster_wide:
            return ValueVector(np.asarray(row.values.get(ALL_NODES, expr.start)), True)
        return ValueVector(frame.view.from_node_values(row.values, expr.start), True)

    return run


def pod_count(machine: VectorMachine, expr: e.CountPodsOnNode) -> VectorStep:
    if expr.where is None:
        return lambda frame: ValueVector(frame.view.column(PodCount()), True)
    matches = compile_scalar(expr.where, machine.program)
    reads = expr_reads(expr.where, machine.program.inputs)
    if reads.node or reads.metrics or reads.placed_pods:
        return _count_pods_per_node(matches)
    mixtures = PodClassCounts(tuple(sorted(reads.counted_pods)))

    def run(frame: EvalFrame) -> ValueVector:
        codes, examples = frame.view.column(mixtures), frame.view.codes.class_representatives
        answers: dict[int, bool] = {}

        def matching(mixture: ClassCounts) -> int:
            total = 0
            for group, count in mixture:
                if group not in answers:
                    answers[group] = matches(frame.context.with_other_pod(examples[group])) is True
                total += count * answers[group]
            return total

        return ValueVector(map_codes(codes, frame.view.codes.class_counts.values, matching, np.int64), True)

    return run


def pod_sum(machine: VectorMachine, expr: e.SumPodsOnNode) -> VectorStep:
    promised = _policy_resource_column(expr, machine.program)
    return lambda frame: ValueVector(frame.view.column(promised), True)


def _policy_resource_column(expr: e.SumPodsOnNode, program: Program) -> PolicyResourceRequested:
    names = dict.fromkeys(one.name for one in e.walk(expr.value) if isinstance(one, e.InputRef))
    return PolicyResourceRequested(
        expr.value, tuple(program.inputs[name] for name in names), expr.type.is_float64
    )


def _count_pods_per_node(matches: ScalarFunction) -> VectorStep:
    """Where the condition compares the counted pod with its node, every pod is looked at."""

    def run(frame: EvalFrame) -> ValueVector:
        counts = np.zeros(frame.view.count, np.int64)
        for place in range(frame.view.count):
            at = frame.view.node_at(place)
            if at is not None and at[1].pods:
                seen = frame.context.with_node(*at)
                counts[place] = sum(
                    matches(seen.with_other_pod(other)) is True for other in at[1].pods.values()
                )
        return ValueVector(counts, True)

    return run
