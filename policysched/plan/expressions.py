"""Expressions over all rows of a view at once, as pairs of arrays: values, and where they are known.

A `Machine` holds the steps of one set of rules. Equal expressions are one step, whichever rules they come from. What
does not depend on the node is a *leaf*: a plain function of the pod (`plan.scalars`), worked out once and laid over all rows.
The meaning is that of `lang.expr`'s docstring, operation by operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from policysched.lang import expr as e
from policysched.lang.program import Program
from policysched.lang.reads import reads_of
from policysched.lang.types import Kind
from policysched.plan.column_kinds import (
    INPUT_THERE,
    Allocatable,
    ColumnKind,
    Created,
    InputState,
    InputValue,
    Listed,
    Mixture,
    Name,
    PodCount,
    PodMixture,
    Ready,
    Requested,
    Text,
    held_dtype,
)
from policysched.plan.columns import Array
from policysched.plan.functions import FUNCTIONS, as_float, finite
from policysched.plan.interner import ABSENT
from policysched.plan.kernel import Touch
from policysched.plan.scalars import Function, Seen, Value, compiled
from policysched.plan.view import View, by_code
from policysched.plan.whole_numbers import (
    floor_divide,
    negated,
    saturating_add,
    saturating_multiply,
    saturating_subtract,
)

Known = Array | bool


@dataclass(slots=True)
class Vector:
    """`values` as the type is held (strings as codes), of the view's length or one for all; `known` likewise."""

    values: Array
    known: Known


@dataclass(slots=True)
class Frame:
    """One run over one view. `results` keeps each step's vector, so that shared steps run once."""

    view: View
    seen: Seen
    leaves: Sequence[Value]
    results: dict[int, Vector] = field(default_factory=dict)


Step = Callable[[Frame], Vector]
Operand = Callable[[Frame], Vector]


@dataclass(frozen=True, slots=True)
class Leaf:
    """What does not depend on the node. `in_key`: its value tells evaluations apart although its pod's attributes are
    equal, because it is a condition that reads the clock. `timed`: it is a number that reads the clock, and what is made of it
    has to be worked out anew whenever time has passed."""

    expr: e.Expr
    function: Function
    in_key: bool
    timed: bool


class Machine:
    """Steps and leaves of a set of expressions. `share` False makes each expression steps of its own (for tests)."""

    def __init__(self, program: Program, *, share: bool = True) -> None:
        self._program = program
        self._share = share
        self._steps: list[Step] = []
        self._touches: list[Touch] = []
        self.exprs: list[e.Expr] = []
        self._numbers: dict[e.Expr, int] = {}
        self._leaf_numbers: dict[e.Expr, int] = {}
        self.leaves: list[Leaf] = []

    def add(self, expr: e.Expr) -> int:
        """The step that gives the expression, new or shared."""
        if self._share and expr in self._numbers:
            return self._numbers[expr]
        step = self._leaf(expr) if is_leaf(expr) else _STEPS[type(expr)](self, expr)
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
            expr, compiled(expr, self._program), reads_time and condition, reads_time and not condition
        )
        self.leaves.append(leaf)
        self._leaf_numbers[expr] = len(self.leaves) - 1
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
        touch = Touch.NOTHING
        for one in e.walk(expr):
            match one:
                case e.Attr(owner="node", path=("requested" | "free" | "pods", *_)) | e.CountPods():
                    touch |= Touch.NODE | Touch.USAGE
                case e.Attr(owner="node"):
                    touch |= Touch.NODE
                case e.InputRef() if e.Stage.NODE in one.stage:
                    touch |= Touch.NODE
                case e.MetricRef(name=name):
                    touch |= Touch.NODE | Touch.SAMPLES
                    if self._program.metrics[name].assume is not None:
                        touch |= Touch.USAGE
        return touch | (Touch.TIME if self._timed(expr) else Touch.NOTHING)

    def _timed(self, expr: e.Expr) -> bool:
        if is_leaf(expr):
            return self.leaves[self.leaf_number(expr)].timed
        if isinstance(expr, e.CountPods):
            return e.Stage.TIME in e.stage_of(expr)
        return any(self._timed(child) for child in e.children(expr))


def is_leaf(expr: e.Expr) -> bool:
    """Whether it depends on the pod, the clock or nothing."""
    return e.Stage.NODE not in e.stage_of(expr)


# ── leaves of the node ─────────────────────────────────────────────────────────────────────────────────────────────


def column_of(path: tuple[str, ...]) -> ColumnKind:
    """The column of a node's attribute; `free` has none of its own."""
    match path:
        case ("labels" | "annotations" | "conditions" as entries, key):
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
            case e.CountPods(where=None):
                found.append(PodCount())
            case e.CountPods(where=where):
                found.append(PodMixture(tuple(sorted(reads_of(where, program.inputs).others))))
    return found


def _attr(machine: Machine, expr: e.Attr) -> Step:
    assert expr.owner == "node", f"{expr.owner}.{'.'.join(expr.path)} is a leaf"
    match expr.path:
        case ("free", resource):
            allocatable, requested = Allocatable(resource), column_of(("requested", resource))

            def free(frame: Frame) -> Vector:
                return Vector(frame.view.column(allocatable) - frame.view.column(requested), True)

            return free
        case ("labels" | "annotations" | "conditions", _):
            entries = column_of(expr.path)

            def entry(frame: Frame) -> Vector:
                codes = frame.view.column(entries)
                return Vector(codes, codes != ABSENT)

            return entry
        case path:
            kind = column_of(path)
            return lambda frame: Vector(frame.view.column(kind), True)


def _input(machine: Machine, expr: e.InputRef) -> Step:
    state, value = (
        InputState(machine.program.inputs[expr.name]),
        InputValue(machine.program.inputs[expr.name]),
    )
    return lambda frame: Vector(frame.view.column(value), frame.view.column(state) == INPUT_THERE)


def _metric(machine: Machine, expr: e.MetricRef) -> Step:
    return lambda frame: Vector(*frame.view.metric(expr.name))


def _count(machine: Machine, expr: e.CountPods) -> Step:
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


# ── logic ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def both(left: Known, right: Known) -> Known:
    if left is True:
        return right
    if right is True:
        return left
    return np.logical_and(left, right)


def _has(machine: Machine, expr: e.Has) -> Step:
    target = machine.operand(expr.target)
    return lambda frame: Vector(np.asarray(target(frame).known), True)


def _not(machine: Machine, expr: e.Not) -> Step:
    operand = machine.operand(expr.operand)

    def run(frame: Frame) -> Vector:
        found = operand(frame)
        return Vector(np.logical_not(found.values), found.known)

    return run


def _and(machine: Machine, expr: e.And) -> Step:
    return _junction([machine.operand(item) for item in expr.items], decisive=False)


def _or(machine: Machine, expr: e.Or) -> Step:
    return _junction([machine.operand(item) for item in expr.items], decisive=True)


def _junction(items: Sequence[Operand], *, decisive: bool) -> Step:
    """Kleene: known where one item decides, or where all are known."""

    def run(frame: Frame) -> Vector:
        decided: Array = np.zeros((), np.bool_)
        all_known: Known = True
        for item in items:
            found = item(frame)
            decides = np.equal(found.values, decisive)
            decided = decided | (decides if found.known is True else decides & found.known)
            all_known = both(all_known, found.known)
        known: Known = True if all_known is True else np.logical_or(decided, all_known)
        return Vector(decided if decisive else ~decided, known)

    return run


# ── comparing ──────────────────────────────────────────────────────────────────────────────────────────────────────

_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def _compare(machine: Machine, expr: e.Compare) -> Step:
    compare = _COMPARISONS[expr.op]
    left, right = _text_operand(machine, expr.left, expr.right), _text_operand(machine, expr.right, expr.left)
    floating = e.is_floating(expr.left) or e.is_floating(expr.right)
    right_first = is_leaf(expr.left)

    def run(frame: Frame) -> Vector:
        if right_first:
            two = right(frame)  # first: a text of the pod is looked up among the values of the column
            one = left(frame)
        else:
            one, two = left(frame), right(frame)
        known = both(one.known, two.known)
        if floating:
            return Vector(compare(as_float(one.values), as_float(two.values)), known)
        return Vector(compare(one.values, two.values), known)

    return run


def _text_operand(machine: Machine, expr: e.Expr, other: e.Expr) -> Operand:
    """A text of the pod that is compared with what is in a column need not be remembered: if no row has it, it equals
    none."""
    in_column = isinstance(other, e.Attr | e.InputRef)
    if e.type_of(expr).kind is not Kind.STRING or not is_leaf(expr) or not in_column:
        return machine.operand(expr)
    number = machine.leaf_number(expr)

    def run(frame: Frame) -> Vector:
        value = frame.leaves[number]
        if value is None:
            return Vector(np.zeros((), np.int32), False)
        return Vector(np.asarray(frame.view.codes.strings.find(str(value)), np.int32), True)

    return run


def _in(machine: Machine, expr: e.In) -> Step:
    if is_leaf(expr.options):
        return _in_constants(machine, expr)
    return _in_list_of_node(machine, expr)


def _in_constants(machine: Machine, expr: e.In) -> Step:
    item, number = machine.operand(expr.item), machine.leaf_number(expr.options)
    element = e.type_of(expr.options).element
    floating = e.is_floating(expr.item) or (element is not None and element.held_as_float)
    texts = e.type_of(expr.item).kind is Kind.STRING

    def run(frame: Frame) -> Vector:
        found, options = item(frame), frame.leaves[number]
        if options is None:
            return Vector(np.zeros((), np.bool_), False)
        assert isinstance(options, tuple), f"`in` looks into a list, not into {options!r}"
        values = as_float(found.values) if floating else found.values
        among: Array = np.zeros(values.shape, np.bool_)
        for option in options:
            one = frame.view.codes.strings.find(str(option)) if texts else option
            among = among | (values == (float(one) if floating else one))
        return Vector(among, found.known)

    return run


def _in_list_of_node(machine: Machine, expr: e.In) -> Step:
    listed, item = machine.operand(expr.options), machine.operand(expr.item)
    leaf = machine.leaf_number(expr.item) if is_leaf(expr.item) else None

    def run(frame: Frame) -> Vector:
        codes, lists = listed(frame), frame.view.codes.lists.values
        if leaf is not None:
            wanted = frame.leaves[leaf]
            if wanted is None:
                return Vector(np.zeros((), np.bool_), False)
            answers = by_code(codes.values, lists, lambda texts: wanted in texts, np.bool_)
            return Vector(answers, codes.known)
        found = item(frame)
        texts = frame.view.codes.strings.values
        among = np.zeros(frame.view.count, np.bool_)
        for place, (text, code) in enumerate(zip(found.values.tolist(), codes.values.tolist(), strict=True)):
            among[place] = 0 <= text < len(texts) and code < len(lists) and texts[text] in lists[code]
        return Vector(among, both(found.known, codes.known))

    return run


def _rank(machine: Machine, expr: e.Rank) -> Step:
    item = machine.operand(expr.item)

    def run(frame: Frame) -> Vector:
        found = item(frame)
        places = np.full(found.values.shape, len(expr.order), np.int64)
        for place, text in reversed(list(enumerate(expr.order))):
            places = np.where(found.values == frame.view.codes.strings.find(text), place, places)
        return Vector(places, found.known)

    return run


# ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────────


_WHOLE: dict[str, Callable[[Array, Array], Array]] = {
    "+": saturating_add,
    "-": saturating_subtract,
    "*": saturating_multiply,
    "/": floor_divide,
}
_FLOATING: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": lambda left, right: np.divide(left, np.where(right == 0, 1.0, right)),
}


def _arith(machine: Machine, expr: e.Arith) -> Step:
    left, right = machine.operand(expr.left), machine.operand(expr.right)
    operate = (_FLOATING if expr.floating else _WHOLE)[expr.op]

    def run(frame: Frame) -> Vector:
        one, two = left(frame), right(frame)
        known = both(one.known, two.known)
        if expr.op == "/":
            known = both(known, np.not_equal(two.values, 0))
        if not expr.floating:
            return Vector(operate(np.atleast_1d(one.values), np.atleast_1d(two.values)), known)
        with np.errstate(over="ignore", invalid="ignore"):
            return Vector(finite(operate(as_float(one.values), as_float(two.values))), known)

    return run


def _negate(machine: Machine, expr: e.Negate) -> Step:
    operand, floating = machine.operand(expr.operand), e.is_floating(expr.operand)

    def run(frame: Frame) -> Vector:
        found = operand(frame)
        return Vector(-found.values if floating else negated(found.values), found.known)

    return run


def _call(machine: Machine, expr: e.Call) -> Step:
    args = [machine.operand(arg) for arg in expr.args]
    function = FUNCTIONS[expr.function]

    def run(frame: Frame) -> Vector:
        found = [arg(frame) for arg in args]
        known: Known = True
        for one in found:
            known = both(known, one.known)
        values = [as_float(one.values) if expr.floating else one.values for one in found]
        result, inside = function(values)
        return Vector(result, both(known, inside))

    return run


def _else(machine: Machine, expr: e.Else) -> Step:
    wanted, fallback = machine.operand(expr.value), machine.operand(expr.fallback)

    def run(frame: Frame) -> Vector:
        one = wanted(frame)
        if one.known is True:
            return Vector(as_float(one.values), True) if expr.floating else one
        two = fallback(frame)
        values = np.where(one.known, one.values, two.values)
        known: Known = True if two.known is True else np.logical_or(one.known, two.known)
        return Vector(as_float(values) if expr.floating else values, known)

    return run


_STEPS: dict[type, Callable[[Machine, "e.Expr"], Step]] = {
    e.Attr: _attr,  # type: ignore[dict-item]  # each takes the class that it stands under
    e.InputRef: _input,  # type: ignore[dict-item]
    e.MetricRef: _metric,  # type: ignore[dict-item]
    e.Has: _has,  # type: ignore[dict-item]
    e.Not: _not,  # type: ignore[dict-item]
    e.And: _and,  # type: ignore[dict-item]
    e.Or: _or,  # type: ignore[dict-item]
    e.Compare: _compare,  # type: ignore[dict-item]
    e.In: _in,  # type: ignore[dict-item]
    e.Arith: _arith,  # type: ignore[dict-item]
    e.Negate: _negate,  # type: ignore[dict-item]
    e.Call: _call,  # type: ignore[dict-item]
    e.Rank: _rank,  # type: ignore[dict-item]
    e.Else: _else,  # type: ignore[dict-item]
    e.CountPods: _count,  # type: ignore[dict-item]
}
