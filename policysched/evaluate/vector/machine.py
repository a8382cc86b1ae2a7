"""`VectorMachine`: evaluates expressions over all rows of a view as pairs of arrays, values and known.

A machine holds the steps of one set of rules. Equal expressions share a step, whichever rules they
come from. An expression that does not depend on the node is a leaf: a scalar function of the pod
(`evaluate.scalar.compiler`), evaluated once and broadcast to all rows. Other modules of this package
build the steps of each class of expression; `step_builders` lists them.
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
from policysched.evaluate.scalar.next_change import NextChange, compile_next_change
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.clock import reads_clock_beside_totals
from policysched.lang.ir.expr_analysis import (
    children,
    is_floating,
    reads_node,
    stage_of,
    type_of,
)
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import TypeKind

KnownMask = Array | bool

_ELEMENTWISE = (e.Has, e.Not, e.And, e.Or, e.Compare, e.Arith, e.Negate, e.Call, e.Else, e.If)
"""Expressions whose steps read arrays of any length, one value after the other."""


@dataclass(slots=True)
class ValueVector:
    """`values` in the dtype of the type (strings as codes), as long as the view or one for all rows;
    `known`, the mask of values that are not missing, likewise."""

    values: Array
    known: KnownMask


@dataclass(slots=True)
class EvalFrame:
    """One run over one view.

    `candidates`: the rows that passed the filters, if known. `results`: the vector of each step, so
    that shared steps run once. `outer`: the run over nodes, if this one is over the elements of their
    lists. `fixed_aggregates`: numbers of aggregates for a run over the candidates that share them.
    `topology_key`: the run is over the domains of that label, not over rows; `by_domain` has such runs.
    """

    view: View
    context: EvalContext
    leaf_values: Sequence[EvalValue]
    candidates: Array | None = None
    outer: "EvalFrame | None" = None
    fixed_aggregates: Mapping[e.Expr, ValueVector] = field(default_factory=dict)
    results: dict[int, ValueVector] = field(default_factory=dict)
    topology_key: str | None = None
    by_domain: dict[str, "EvalFrame"] = field(default_factory=dict)


VectorStep = Callable[[EvalFrame], ValueVector]
VectorOperand = Callable[[EvalFrame], ValueVector]
StepBuilder = Callable[["VectorMachine", Any], VectorStep]
Fingerprint = Callable[[EvalFrame], Hashable]
"""Reads what an expression depends on of other rows than its own, for cache keys."""


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """An expression that does not depend on the node.

    `in_cache_key`: pods with equal attributes can have different values, because it is a condition on
    the clock, or reads shares of namespaces or other pods. `time_dependent`: a number that reads the
    clock, so that everything computed from it changes with time.
    """

    expr: e.Expr
    function: ScalarFunction
    in_cache_key: bool
    time_dependent: bool


class VectorMachine:
    """Steps and leaves of a set of expressions. `share` False gives equal expressions separate steps (for tests)."""

    def __init__(
        self, program: Program, step_builders: Mapping[type, StepBuilder], *, share: bool = True
    ) -> None:
        self._program = program
        self._step_builders = step_builders
        self._share = share
        self._steps: list[VectorStep] = []
        self._dependencies: list[Dependency] = []
        self.exprs: list[e.Expr] = []
        self._step_by_expr: dict[e.Expr, int] = {}
        self.leaf_by_expr: dict[e.Expr, int] = {}
        """Leaves cannot be added once values are computed."""
        self.leaves: list[ScalarLeaf] = []
        # By identity; the expression is stored so that its id is not reused.
        self._dependency_cache: dict[int, tuple[e.Expr, Dependency]] = {}
        self._time_dependent_cache: dict[int, tuple[e.Expr, bool]] = {}
        self._variation_cache: dict[int, tuple[e.Expr, bool, bool]] = {}
        self._next_changes: list[NextChange] | None = None
        self._topology_key_cache: dict[int, tuple[e.Expr, bool, str | None]] = {}
        self.domain_fingerprints: dict[e.Expr, Fingerprint] = {}
        """Of the expressions that differ by the domain of the node alone."""

    def add(self, expr: e.Expr) -> int:
        """The step of the expression, new or shared."""
        if self._share and expr in self._step_by_expr:
            return self._step_by_expr[expr]
        step = self._leaf_step(expr) if self.is_leaf(expr) else self._step_builders[type(expr)](self, expr)
        self._steps.append(step)
        self._dependencies.append(self._depends_on(expr))
        self.exprs.append(expr)
        self._step_by_expr[expr] = len(self._steps) - 1
        return len(self._steps) - 1

    def is_leaf(self, expr: e.Expr) -> bool:
        """Whether the expression depends neither on the node nor on the element of a list."""
        _, by_node, by_element = self._variation(expr)
        return not by_node and not by_element

    def topology_key(self, expr: e.Expr) -> str | None:
        """The key of the node label by whose domains alone the expression differs; None: it reads more of the node, or nothing."""
        return self._by_domain(expr)[2]

    def depends_on(self, step: int) -> Dependency:
        return self._dependencies[step]

    def run(self, frame: EvalFrame, step: int) -> ValueVector:
        vector = frame.results.get(step)
        if vector is None:
            vector = frame.results[step] = self._steps[step](frame)
        return vector

    def operand(self, expr: e.Expr) -> VectorOperand:
        """As `run` of its step. No step refers to the machine: the cycle would outlive the policy until all garbage is collected."""
        number = self.add(expr)
        step = self._steps[number]

        def run(frame: EvalFrame) -> ValueVector:
            vector = frame.results.get(number)
            if vector is None:
                vector = frame.results[number] = step(frame)
            return vector

        return run

    def leaf_index(self, expr: e.Expr) -> int:
        if self._share and expr in self.leaf_by_expr:
            return self.leaf_by_expr[expr]
        stage = stage_of(expr)
        condition = type_of(expr).kind is TypeKind.BOOL
        leaf = ScalarLeaf(
            expr,
            compile_scalar(expr, self._program),
            in_cache_key=(e.Stage.TIME in stage and condition) or bool(e.VOLATILE_STAGES & stage),
            time_dependent=reads_clock_beside_totals(expr) and not condition,
        )
        self.leaves.append(leaf)
        self.leaf_by_expr[expr] = len(self.leaves) - 1
        return len(self.leaves) - 1

    def add_state_row_leaf(self, expr: e.StateRef) -> int:
        """A leaf with the state's values under the pod's key. It is part of the evaluation's cache key."""
        # Not an `EvalValue`, but only the step of this expression reads it.
        row = cast(ScalarFunction, compile_state_row(expr, self._program))
        self.leaves.append(ScalarLeaf(expr.key, row, in_cache_key=True, time_dependent=False))
        return len(self.leaves) - 1

    def leaf_values(self, context: EvalContext) -> list[EvalValue]:
        return [leaf.function(context) for leaf in self.leaves]

    def next_changes(self) -> list[NextChange]:
        """When each leaf in the cache key that reads the clock changes next. Compiled once, after all leaves were added."""
        if self._next_changes is None:
            exprs = [leaf.expr for leaf in self.leaves if leaf.in_cache_key]
            timed = [expr for expr in exprs if e.Stage.TIME in stage_of(expr)]
            self._next_changes = [compile_next_change(expr, self._program) for expr in timed]
        return self._next_changes

    @property
    def program(self) -> Program:
        return self._program

    def _leaf_step(self, expr: e.Expr) -> VectorStep:
        number, kind = self.leaf_index(expr), type_of(expr).kind
        floating = is_floating(expr)
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
        """Cached, because a long expression contains the same part many times."""
        cached = self._dependency_cache.get(id(expr))
        if cached is None:
            dependency = self._own_depends_on(expr)
            for child in children(expr):
                dependency |= self._nested_depends_on(child)
            cached = self._dependency_cache[id(expr)] = expr, dependency
        return cached[1]

    def _own_depends_on(self, expr: e.Expr) -> Dependency:
        match expr:
            case e.CountPodsOnNode() | e.SumPodsOnNode():
                return Dependency.NODE | Dependency.USAGE
            case e.PodTotal(topology_key=str()):
                return Dependency.NODE | Dependency.CLUSTER
            case e.Attr(owner="node", path=path):
                reads_usage = find_attribute("node", path).field.startswith("usage.")
                return Dependency.NODE | (Dependency.USAGE if reads_usage else Dependency.NONE)
            case e.ElementField():
                # Steps read lists of the node only; a list of the pod is a leaf.
                return Dependency.NODE
            case e.InputRef() if e.Stage.NODE in expr.stage:
                return Dependency.NODE
            case e.StateRef():
                return Dependency.NODE
            case e.NotRecovered():
                return Dependency.NODE | Dependency.SAMPLES
            case e.GangTraffic(topology_key=topology):
                cluster = Dependency.NONE if topology is None else Dependency.CLUSTER
                return Dependency.NODE | Dependency.USAGE | Dependency.SAMPLES | cluster
            case e.MetricRef(name=name):
                assumes = self._program.metrics[name].assumed_load is not None
                return (
                    Dependency.NODE | Dependency.SAMPLES | (Dependency.USAGE if assumes else Dependency.NONE)
                )
            case _:
                return Dependency.NONE

    def _variation(self, expr: e.Expr) -> tuple[e.Expr, bool, bool]:
        """The expression, whether it depends on the node, and on the element of an enclosing list.

        Cached: asked for each part of a long expression, a walk would take quadratic time.
        """
        cached = self._variation_cache.get(id(expr))
        if cached is None:
            parts = [self._variation(child) for child in children(expr)]
            by_node = reads_node(expr) or any(part[1] for part in parts)
            by_element = isinstance(expr, e.ElementField) or (
                not isinstance(expr, e.ListFold) and any(part[2] for part in parts)
            )
            cached = self._variation_cache[id(expr)] = expr, by_node, by_element
        return cached

    def _by_domain(self, expr: e.Expr) -> tuple[e.Expr, bool, str | None]:
        """The expression, whether it reads nothing of the node but totals of one topology key, and the key. Cached as above."""
        cached = self._topology_key_cache.get(id(expr))
        if cached is None:
            if self.is_leaf(expr):
                cached = expr, True, None
            elif isinstance(expr, e.PodTotal):
                cached = expr, True, expr.topology_key
            elif not isinstance(expr, _ELEMENTWISE):
                cached = expr, False, None
            else:
                parts = [self._by_domain(child) for child in children(expr)]
                keys = {key for _, _, key in parts if key is not None}
                holds = len(keys) == 1 and all(part[1] for part in parts)
                cached = expr, holds, keys.pop() if holds else None
            self._topology_key_cache[id(expr)] = cached
        return cached

    def _is_time_dependent(self, expr: e.Expr) -> bool:
        cached = self._time_dependent_cache.get(id(expr))
        if cached is None:
            if self.is_leaf(expr):
                time_dependent = self.leaves[self.leaf_index(expr)].time_dependent
            elif isinstance(expr, e.CountPodsOnNode | e.SumPodsOnNode | e.ListFold):
                time_dependent = e.Stage.TIME in stage_of(expr)
            elif isinstance(expr, e.PodTotal):  # its values are a fingerprint
                time_dependent = False
            else:
                time_dependent = any(self._is_time_dependent(child) for child in children(expr))
            cached = self._time_dependent_cache[id(expr)] = expr, time_dependent
        return cached[1]


def both_known(left: KnownMask, right: KnownMask) -> KnownMask:
    if left is True:
        return right
    if right is True:
        return left
    return np.logical_and(left, right)
