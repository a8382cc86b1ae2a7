"""The machine that works expressions out over all rows of a view at once, as pairs of arrays: values, and where they are known.

A `VectorMachine` holds the steps of one set of rules. Equal expressions are one step, whichever rules they come from. What
does not depend on the node is a *leaf*: a plain function of the pod (`evaluate.scalar.compiler`), worked out once and laid over all rows.
How each kind of expression becomes a step stands in modules of its own; `evaluate.vector.step_builders` lists them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Dependency
from policysched.evaluate.scalar.compiler import compile_scalar, compile_state_row
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue, ScalarFunction
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import TypeKind

KnownMask = Array | bool


@dataclass(slots=True)
class ValueVector:
    """`values` as the type is held (strings as codes), of the view's length or one for all; `known` likewise."""

    values: Array
    known: KnownMask


@dataclass(slots=True)
class EvalFrame:
    """One run over one view. `candidates` are the rows that the filters left, where that is asked for. `results` keeps each
    step's vector, so that shared steps run once. `outer` is the run over nodes in whose midst this one looks through their lists. `fixed_aggregates`
    are aggregates that are settled: this run is about candidates that see these numbers."""

    view: View
    context: EvalContext
    leaf_values: Sequence[EvalValue]
    candidates: Array | None = None
    outer: "EvalFrame | None" = None
    fixed_aggregates: Mapping[e.Expr, ValueVector] = field(default_factory=dict)
    results: dict[int, ValueVector] = field(default_factory=dict)


VectorStep = Callable[[EvalFrame], ValueVector]
VectorOperand = Callable[[EvalFrame], ValueVector]
StepBuilder = Callable[["VectorMachine", Any], VectorStep]


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """What does not depend on the node. `in_cache_key`: its value tells evaluations apart although its pod's attributes are
    equal, because it is a condition that reads the clock, or reads what namespaces hold or which pods there are. `time_dependent`: it is a number that reads the clock, and what is made of it
    has to be worked out anew whenever time has passed."""

    expr: e.Expr
    function: ScalarFunction
    in_cache_key: bool
    time_dependent: bool


class VectorMachine:
    """Steps and leaves of a set of expressions. `share` False makes each expression steps of its own (for tests)."""

    def __init__(self, program: Program, makers: Mapping[type, StepBuilder], *, share: bool = True) -> None:
        self._program = program
        self._step_builders = makers
        self._share = share
        self._steps: list[VectorStep] = []
        self._dependencies: list[Dependency] = []
        self.exprs: list[e.Expr] = []
        self._step_by_expr: dict[e.Expr, int] = {}
        self._leaf_by_expr: dict[e.Expr, int] = {}
        self.leaves: list[ScalarLeaf] = []
        # By identity, with the part itself so that it stays what it is.
        self._dependency_cache: dict[int, tuple[e.Expr, Dependency]] = {}
        self._time_dependent_cache: dict[int, tuple[e.Expr, bool]] = {}

    def add(self, expr: e.Expr) -> int:
        """The step that gives the expression, new or shared."""
        if self._share and expr in self._step_by_expr:
            return self._step_by_expr[expr]
        step = self._leaf_step(expr) if is_leaf(expr) else self._step_builders[type(expr)](self, expr)
        touch = self._depends_on(expr)
        self._steps.append(step)
        self._dependencies.append(touch)
        self.exprs.append(expr)
        self._step_by_expr[expr] = len(self._steps) - 1
        return len(self._steps) - 1

    def depends_on(self, step: int) -> Dependency:
        return self._dependencies[step]

    def run(self, frame: EvalFrame, step: int) -> ValueVector:
        found = frame.results.get(step)
        if found is None:
            found = frame.results[step] = self._steps[step](frame)
        return found

    def operand(self, expr: e.Expr) -> VectorOperand:
        step = self.add(expr)
        return lambda frame: self.run(frame, step)

    def leaf_index(self, expr: e.Expr) -> int:
        if self._share and expr in self._leaf_by_expr:
            return self._leaf_by_expr[expr]
        reads_time = e.Stage.TIME in e.stage_of(expr)
        condition = e.type_of(expr).kind is TypeKind.BOOL
        leaf = ScalarLeaf(
            expr,
            compile_scalar(expr, self._program),
            in_cache_key=(reads_time and condition) or bool(e.VOLATILE_STAGES & e.stage_of(expr)),
            time_dependent=reads_time and not condition,
        )
        self.leaves.append(leaf)
        self._leaf_by_expr[expr] = len(self.leaves) - 1
        return len(self.leaves) - 1

    def existing_leaf_index(self, expr: e.Expr) -> int:
        """One that a step has: when values are asked for it is too late for another."""
        return self._leaf_by_expr[expr]

    def add_state_row_leaf(self, expr: e.StateRef) -> int:
        """The leaf that has a state's values for the pod's key. They tell evaluations apart: other values, another one."""
        row = cast(
            ScalarFunction, compile_state_row(expr, self._program)
        )  # only the step that asked for it looks at it
        self.leaves.append(ScalarLeaf(expr.key, row, in_cache_key=True, time_dependent=False))
        return len(self.leaves) - 1

    def leaf_values(self, seen: EvalContext) -> list[EvalValue]:
        return [leaf.function(seen) for leaf in self.leaves]

    @property
    def program(self) -> Program:
        return self._program

    def _leaf_step(self, expr: e.Expr) -> VectorStep:
        number, kind = self.leaf_index(expr), e.type_of(expr).kind
        floating = e.is_floating(expr)
        dtype = np.float64 if floating else dtype_of(kind)

        def run(frame: EvalFrame) -> ValueVector:
            value = frame.leaf_values[number]
            if value is None:
                return ValueVector(np.zeros((), dtype), False)
            if kind is TypeKind.STRING:
                value = frame.view.codes.strings.code(str(value))
            return ValueVector(np.asarray(value, dtype), True)

        return run

    def _depends_on(self, expr: e.Expr) -> Dependency:
        return self._nested_depends_on(expr) | (
            Dependency.TIME if self._is_time_dependent(expr) else Dependency.NONE
        )

    def _nested_depends_on(self, expr: e.Expr) -> Dependency:
        """Each part is looked at once: a long expression holds the same part in many places."""
        known = self._dependency_cache.get(id(expr))
        if known is None:
            touch = self._own_depends_on(expr)
            for child in e.children(expr):
                touch |= self._nested_depends_on(child)
            known = self._dependency_cache[id(expr)] = expr, touch
        return known[1]

    def _own_depends_on(self, expr: e.Expr) -> Dependency:
        match expr:
            case e.CountPodsOnNode() | e.SumPodsOnNode():
                return Dependency.NODE | Dependency.USAGE
            case e.Attr(owner="node", path=path):
                reads_usage = find_attribute("node", path).field.startswith("usage.")
                return Dependency.NODE | (Dependency.USAGE if reads_usage else Dependency.NONE)
            case e.ElementField():
                # Where the list is the node's; a list of the pod's is not a step's to read.
                return Dependency.NODE
            case e.InputRef() if e.Stage.NODE in expr.stage:
                return Dependency.NODE
            case e.StateRef():
                return Dependency.NODE
            case e.NotRecovered():
                return Dependency.NODE | Dependency.SAMPLES
            case e.GangTraffic(topology_key=topology):
                around = Dependency.NONE if topology is None else Dependency.CLUSTER
                return Dependency.NODE | Dependency.USAGE | Dependency.SAMPLES | around
            case e.MetricRef(name=name):
                assumes = self._program.metrics[name].assumed_load is not None
                return (
                    Dependency.NODE | Dependency.SAMPLES | (Dependency.USAGE if assumes else Dependency.NONE)
                )
            case _:
                return Dependency.NONE

    def _is_time_dependent(self, expr: e.Expr) -> bool:
        known = self._time_dependent_cache.get(id(expr))
        if known is None:
            if is_leaf(expr):
                found = self.leaves[self.leaf_index(expr)].time_dependent
            elif isinstance(expr, e.CountPodsOnNode | e.SumPodsOnNode | e.ListFold):
                found = e.Stage.TIME in e.stage_of(expr)
            else:
                found = any(self._is_time_dependent(child) for child in e.children(expr))
            known = self._time_dependent_cache[id(expr)] = expr, found
        return known[1]


def is_leaf(expr: e.Expr) -> bool:
    """Whether it depends on the pod, the clock or nothing: neither on the node nor on the element of a list."""
    return not e.depends_on_node(expr) and not e.depends_on_element(expr)


def both_known(left: KnownMask, right: KnownMask) -> KnownMask:
    if left is True:
        return right
    if right is True:
        return left
    return np.logical_and(left, right)


Fingerprint = Callable[[EvalFrame], Hashable]
"""What an expression reads of other nodes than the one that it is asked of."""
