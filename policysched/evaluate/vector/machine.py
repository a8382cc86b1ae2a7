"""The machine that works expressions out over all rows of a view at once, as pairs of arrays: values, and where they are known.

A `Machine` holds the steps of one set of rules. Equal expressions are one step, whichever rules they come from. What
does not depend on the node is a *leaf*: a plain function of the pod (`evaluate.scalar.compiler`), worked out once and laid over all rows.
How each kind of expression becomes a step stands in modules of its own; `evaluate.vector.expressions` lists them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.dtypes import held_dtype
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import Touch
from policysched.evaluate.scalar.compiler import compiled, state_row
from policysched.evaluate.scalar.eval_context import Function, Seen, Value
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import Kind

Known = Array | bool


@dataclass(slots=True)
class Vector:
    """`values` as the type is held (strings as codes), of the view's length or one for all; `known` likewise."""

    values: Array
    known: Known


@dataclass(slots=True)
class Frame:
    """One run over one view. `candidates` are the rows that the filters left, where that is asked for. `results` keeps each
    step's vector, so that shared steps run once. `around` is the run over nodes in whose midst this one looks through their lists. `given`
    are aggregates that are settled: this run is about candidates that see these numbers."""

    view: View
    seen: Seen
    leaves: Sequence[Value]
    candidates: Array | None = None
    around: "Frame | None" = None
    given: Mapping[e.Expr, Vector] = field(default_factory=dict)
    results: dict[int, Vector] = field(default_factory=dict)


Step = Callable[[Frame], Vector]
Operand = Callable[[Frame], Vector]
Maker = Callable[["Machine", Any], Step]


@dataclass(frozen=True, slots=True)
class Leaf:
    """What does not depend on the node. `in_key`: its value tells evaluations apart although its pod's attributes are
    equal, because it is a condition that reads the clock, or reads what namespaces hold or which pods there are. `timed`: it is a number that reads the clock, and what is made of it
    has to be worked out anew whenever time has passed."""

    expr: e.Expr
    function: Function
    in_key: bool
    timed: bool


class Machine:
    """Steps and leaves of a set of expressions. `share` False makes each expression steps of its own (for tests)."""

    def __init__(self, program: Program, makers: Mapping[type, Maker], *, share: bool = True) -> None:
        self._program = program
        self._makers = makers
        self._share = share
        self._steps: list[Step] = []
        self._touches: list[Touch] = []
        self.exprs: list[e.Expr] = []
        self._numbers: dict[e.Expr, int] = {}
        self._leaf_numbers: dict[e.Expr, int] = {}
        self.leaves: list[Leaf] = []
        # By identity, with the part itself so that it stays what it is.
        self._touch_known: dict[int, tuple[e.Expr, Touch]] = {}
        self._timed_known: dict[int, tuple[e.Expr, bool]] = {}

    def add(self, expr: e.Expr) -> int:
        """The step that gives the expression, new or shared."""
        if self._share and expr in self._numbers:
            return self._numbers[expr]
        step = self._leaf(expr) if is_leaf(expr) else self._makers[type(expr)](self, expr)
        touch = self._touch_of(expr)
        self._steps.append(step)
        self._touches.append(touch)
        self.exprs.append(expr)
        self._numbers[expr] = len(self._steps) - 1
        return len(self._steps) - 1

    def touch(self, step: int) -> Touch:
        return self._touches[step]

    def run(self, frame: Frame, step: int) -> Vector:
        found = frame.results.get(step)
        if found is None:
            found = frame.results[step] = self._steps[step](frame)
        return found

    def operand(self, expr: e.Expr) -> Operand:
        step = self.add(expr)
        return lambda frame: self.run(frame, step)

    def leaf_number(self, expr: e.Expr) -> int:
        if self._share and expr in self._leaf_numbers:
            return self._leaf_numbers[expr]
        reads_time = e.Stage.TIME in e.stage_of(expr)
        condition = e.type_of(expr).kind is Kind.BOOL
        leaf = Leaf(
            expr,
            compiled(expr, self._program),
            in_key=(reads_time and condition) or bool(e.MOVING & e.stage_of(expr)),
            timed=reads_time and not condition,
        )
        self.leaves.append(leaf)
        self._leaf_numbers[expr] = len(self.leaves) - 1
        return len(self.leaves) - 1

    def known_leaf(self, expr: e.Expr) -> int:
        """One that a step has: when values are asked for it is too late for another."""
        return self._leaf_numbers[expr]

    def row_leaf(self, expr: e.StateRef) -> int:
        """The leaf that has a state's values for the pod's key. They tell evaluations apart: other values, another one."""
        row = cast(Function, state_row(expr, self._program))  # only the step that asked for it looks at it
        self.leaves.append(Leaf(expr.key, row, in_key=True, timed=False))
        return len(self.leaves) - 1

    def leaf_values(self, seen: Seen) -> list[Value]:
        return [leaf.function(seen) for leaf in self.leaves]

    @property
    def program(self) -> Program:
        return self._program

    def _leaf(self, expr: e.Expr) -> Step:
        number, kind = self.leaf_number(expr), e.type_of(expr).kind
        floating = e.is_floating(expr)
        dtype = np.float64 if floating else held_dtype(kind)

        def run(frame: Frame) -> Vector:
            value = frame.leaves[number]
            if value is None:
                return Vector(np.zeros((), dtype), False)
            if kind is Kind.STRING:
                value = frame.view.codes.strings.code(str(value))
            return Vector(np.asarray(value, dtype), True)

        return run

    def _touch_of(self, expr: e.Expr) -> Touch:
        return self._touch_of_node(expr) | (Touch.TIME if self._timed(expr) else Touch.NOTHING)

    def _touch_of_node(self, expr: e.Expr) -> Touch:
        """Each part is looked at once: a long expression holds the same part in many places."""
        known = self._touch_known.get(id(expr))
        if known is None:
            touch = self._own_touch(expr)
            for child in e.children(expr):
                touch |= self._touch_of_node(child)
            known = self._touch_known[id(expr)] = expr, touch
        return known[1]

    def _own_touch(self, expr: e.Expr) -> Touch:
        match expr:
            case e.Attr(owner="node", path=("requested" | "free" | "pods", *_)) | e.CountPods() | e.SumPods():
                return Touch.NODE | Touch.USAGE
            case e.Attr(owner="node"):
                return Touch.NODE
            case e.Element():
                # Where the list is the node's; a list of the pod's is not a step's to read.
                return Touch.NODE
            case e.InputRef() if e.Stage.NODE in expr.stage:
                return Touch.NODE
            case e.StateRef():
                return Touch.NODE
            case e.Held():
                return Touch.NODE | Touch.SAMPLES
            case e.TrafficTo(topology=topology):
                around = Touch.NOTHING if topology is None else Touch.CLUSTER
                return Touch.NODE | Touch.USAGE | Touch.SAMPLES | around
            case e.MetricRef(name=name):
                assumes = self._program.metrics[name].assume is not None
                return Touch.NODE | Touch.SAMPLES | (Touch.USAGE if assumes else Touch.NOTHING)
            case _:
                return Touch.NOTHING

    def _timed(self, expr: e.Expr) -> bool:
        known = self._timed_known.get(id(expr))
        if known is None:
            if is_leaf(expr):
                found = self.leaves[self.leaf_number(expr)].timed
            elif isinstance(expr, e.CountPods | e.SumPods | e.Fold):
                found = e.Stage.TIME in e.stage_of(expr)
            else:
                found = any(self._timed(child) for child in e.children(expr))
            known = self._timed_known[id(expr)] = expr, found
        return known[1]


def is_leaf(expr: e.Expr) -> bool:
    """Whether it depends on the pod, the clock or nothing: neither on the node nor on the element of a list."""
    return not e.looks_at_node(expr) and not e.looks_at_element(expr)


def both(left: Known, right: Known) -> Known:
    if left is True:
        return right
    if right is True:
        return left
    return np.logical_and(left, right)


Fingerprint = Callable[[Frame], Hashable]
"""What an expression reads of other nodes than the one that it is asked of."""
