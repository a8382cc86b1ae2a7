"""Steps for values of the node: attributes, inputs, metrics, states and counts of its pods, with the columns they read."""

from typing import cast

import numpy as np

from policysched.cluster.metric_samples import ALL_NODES, StateRow
from policysched.evaluate.columns.column_kinds import (
    INPUT_PRESENT,
    AllocatableColumn,
    ColumnKind,
    DomainColumn,
    InputStateColumn,
    InputValueColumn,
    PodClassCountsColumn,
    PodCountColumn,
    PolicyResourceRequestedColumn,
    node_attribute_column,
)
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.shared_interners import ClassCounts
from policysched.evaluate.columns.view import map_codes
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import ScalarFunction, inputs_read
from policysched.evaluate.vector.machine import EvalFrame, ValueVector, VectorMachine, VectorStep
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import expr_reads


def columns_read_by(expr: e.Expr, program: Program) -> list[ColumnKind]:
    """Every column that the expression reads."""
    columns: list[ColumnKind] = []
    for part in walk(expr):
        match part:
            case e.Attr(owner="node", path=("free", resource)):
                columns += _free_amount_columns(resource)
            case e.Attr(owner="node", path=path):
                columns.append(node_attribute_column(path))
            case e.InputRef(name=name) if program.inputs[name].owner == "node":
                columns += [InputStateColumn(program.inputs[name]), InputValueColumn(program.inputs[name])]
            case e.SumPodsOnNode():
                columns.append(_policy_resource_column(part, program))
            case e.GangTraffic(topology_key=str() as key):
                columns.append(DomainColumn(key))
            case e.PodTotal(topology_key=str() as key):
                columns.append(DomainColumn(key))
            case e.CountPodsOnNode(where=None):
                columns.append(PodCountColumn())
            case e.CountPodsOnNode(where=where):
                columns.append(
                    PodClassCountsColumn(tuple(sorted(expr_reads(where, program.inputs).counted_pods)))
                )
    return columns


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
    return AllocatableColumn(resource), node_attribute_column(("requested", resource))


def node_input(machine: VectorMachine, expr: e.InputRef) -> VectorStep:
    declaration = machine.program.inputs[expr.name]
    state, value = InputStateColumn(declaration), InputValueColumn(declaration)
    return lambda frame: ValueVector(frame.view.column(value), frame.view.column(state) == INPUT_PRESENT)


def node_metric(machine: VectorMachine, expr: e.MetricRef) -> VectorStep:
    return lambda frame: ValueVector(*frame.view.metric(expr.name))


def awaiting_recovery(machine: VectorMachine, expr: e.NotRecovered) -> VectorStep:
    condition = expr.condition
    return lambda frame: ValueVector(
        frame.view.awaiting_recovery(condition), frame.view.metric(condition.metric)[1]
    )


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
        return lambda frame: ValueVector(frame.view.column(PodCountColumn()), True)
    matches = compile_scalar(expr.where, machine.program)
    reads = expr_reads(expr.where, machine.program.inputs)
    if reads.node or reads.metrics or reads.placed_pods:
        return _count_pods_per_node(matches)
    class_counts = PodClassCountsColumn(tuple(sorted(reads.counted_pods)))

    def run(frame: EvalFrame) -> ValueVector:
        codes, representatives = frame.view.column(class_counts), frame.view.codes.class_representatives
        class_matches: dict[int, bool] = {}
        # One for all pods: to make one takes as long as the condition.
        pair = frame.context.with_other_pod(frame.context.pod)

        def matching(counts: ClassCounts) -> int:
            total = 0
            for pod_class, count in counts:
                matched = class_matches.get(pod_class)
                if matched is None:
                    pair.other = representatives[pod_class]
                    matched = class_matches[pod_class] = matches(pair) is True
                if matched:
                    total += count
            return total

        return ValueVector(map_codes(codes, frame.view.codes.class_counts.values, matching, np.int64), True)

    return run


def pod_sum(machine: VectorMachine, expr: e.SumPodsOnNode) -> VectorStep:
    requested = _policy_resource_column(expr, machine.program)
    return lambda frame: ValueVector(frame.view.column(requested), True)


def _policy_resource_column(expr: e.SumPodsOnNode, program: Program) -> PolicyResourceRequestedColumn:
    return PolicyResourceRequestedColumn(expr.value, inputs_read(program, expr.value), expr.type.is_float64)


def _count_pods_per_node(matches: ScalarFunction) -> VectorStep:
    """For a condition that compares the counted pod with its node: evaluates it for every pod."""

    def run(frame: EvalFrame) -> ValueVector:
        counts = np.zeros(frame.view.count, np.int64)
        for position in range(frame.view.count):
            node_and_usage = frame.view.node_at(position)
            if node_and_usage is None:
                continue
            context = frame.context.with_node(*node_and_usage)
            counts[position] = sum(
                matches(context.with_other_pod(other)) is True for other in node_and_usage[1].pods.values()
            )
        return ValueVector(counts, True)

    return run
