"""What a node says of itself, as steps: its attributes, inputs, metrics and the pods on it; and the columns that these need."""

from typing import cast

import numpy as np

from policysched.cluster.samples import EVERYWHERE, StateRow
from policysched.evaluate.columns.column_kinds import (
    INPUT_THERE,
    Allocatable,
    ColumnKind,
    Created,
    Domain,
    InputState,
    InputValue,
    Listed,
    Mixture,
    Name,
    PodCount,
    PodMixture,
    Promised,
    Ready,
    Requested,
    Text,
)
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import by_code
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Function
from policysched.evaluate.vector.machine import Frame, Machine, Step, Vector
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import reads_of


def column_of(path: tuple[str, ...]) -> ColumnKind:
    """The column of a node's attribute; `free` has none of its own."""
    match path:
        case ("labels" | "annotations" | "conditions" | "objects" as entries, key):
            return Text(entries, key)
        case ("allocatable", resource):
            return Allocatable(resource)
        case ("pods",) | ("requested", "pods"):
            return PodCount()
        case ("requested", resource):
            return Requested(resource)
        case ("taints" | "images" as listed,):
            return Listed(listed)
        case ("created",):
            return Created()
        case ("name",):
            return Name()
        case ("ready",):
            return Ready()
        case _:
            raise AssertionError(f"a node has no attribute {path}")


def columns_of(expr: e.Expr, program: Program) -> list[ColumnKind]:
    """Every column that the expression reads."""
    found: list[ColumnKind] = []
    for one in e.walk(expr):
        match one:
            case e.Attr(owner="node", path=("free", resource)):
                found += [Allocatable(resource), column_of(("requested", resource))]
            case e.Attr(owner="node", path=path):
                found.append(column_of(path))
            case e.InputRef(name=name) if program.inputs[name].owner == "node":
                found += [InputState(program.inputs[name]), InputValue(program.inputs[name])]
            case e.SumPods():
                found.append(_promised(one, program))
            case e.TrafficTo(topology=str() as key):
                found.append(Domain(key))
            case e.CountPods(where=None):
                found.append(PodCount())
            case e.CountPods(where=where):
                found.append(PodMixture(tuple(sorted(reads_of(where, program.inputs).others))))
    return found


def attribute(machine: Machine, expr: e.Attr) -> Step:
    assert expr.owner == "node", f"{expr.owner}.{'.'.join(expr.path)} is a leaf"
    match expr.path:
        case ("free", resource):
            allocatable, requested = Allocatable(resource), column_of(("requested", resource))

            def free(frame: Frame) -> Vector:
                return Vector(frame.view.column(allocatable) - frame.view.column(requested), True)

            return free
        case ("labels" | "annotations" | "conditions" | "objects", _):
            entries = column_of(expr.path)

            def entry(frame: Frame) -> Vector:
                codes = frame.view.column(entries)
                return Vector(codes, codes != ABSENT)

            return entry
        case path:
            kind = column_of(path)
            return lambda frame: Vector(frame.view.column(kind), True)


def node_input(machine: Machine, expr: e.InputRef) -> Step:
    state, value = (
        InputState(machine.program.inputs[expr.name]),
        InputValue(machine.program.inputs[expr.name]),
    )
    return lambda frame: Vector(frame.view.column(value), frame.view.column(state) == INPUT_THERE)


def metric(machine: Machine, expr: e.MetricRef) -> Step:
    return lambda frame: Vector(*frame.view.metric(expr.name))


def held(machine: Machine, expr: e.Held) -> Step:
    watch = expr.watch
    return lambda frame: Vector(frame.view.held(watch), frame.view.metric(watch.metric)[1])


def state(machine: Machine, expr: e.StateRef) -> Step:
    number = machine.row_leaf(expr)

    def run(frame: Frame) -> Vector:
        row = cast(StateRow | None, frame.leaves[number])
        if row is None:
            return Vector(np.zeros((), np.float64), False)
        if expr.everywhere:
            return Vector(np.asarray(row.values.get(EVERYWHERE, expr.start)), True)
        return Vector(frame.view.by_name(row.values, expr.start), True)

    return run


def count_pods(machine: Machine, expr: e.CountPods) -> Step:
    if expr.where is None:
        return lambda frame: Vector(frame.view.column(PodCount()), True)
    matches = compiled(expr.where, machine.program)
    reads = reads_of(expr.where, machine.program.inputs)
    if reads.node or reads.metrics or reads.counts_pods:
        return _count_one_by_one(matches)
    mixtures = PodMixture(tuple(sorted(reads.others)))

    def run(frame: Frame) -> Vector:
        codes, examples = frame.view.column(mixtures), frame.view.codes.examples
        answers: dict[int, bool] = {}

        def matching(mixture: Mixture) -> int:
            total = 0
            for group, count in mixture:
                if group not in answers:
                    answers[group] = matches(frame.seen.counting(examples[group])) is True
                total += count * answers[group]
            return total

        return Vector(by_code(codes, frame.view.codes.mixtures.values, matching, np.int64), True)

    return run


def sum_pods(machine: Machine, expr: e.SumPods) -> Step:
    promised = _promised(expr, machine.program)
    return lambda frame: Vector(frame.view.column(promised), True)


def _promised(expr: e.SumPods, program: Program) -> Promised:
    names = dict.fromkeys(one.name for one in e.walk(expr.value) if isinstance(one, e.InputRef))
    return Promised(expr.value, tuple(program.inputs[name] for name in names), expr.type.held_as_float)


def _count_one_by_one(matches: Function) -> Step:
    """Where the condition compares the counted pod with its node, every pod is looked at."""

    def run(frame: Frame) -> Vector:
        counts = np.zeros(frame.view.count, np.int64)
        for place in range(frame.view.count):
            at = frame.view.node_at(place)
            if at is not None and at[1].pods:
                seen = frame.seen.on(*at)
                counts[place] = sum(matches(seen.counting(other)) is True for other in at[1].pods.values())
        return Vector(counts, True)

    return run
