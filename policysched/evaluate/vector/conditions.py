"""Conditions as steps, three-valued: `has`, `not`, `and`, `or`, comparisons, `in` and `rank`."""

from collections.abc import Callable, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import by_code
from policysched.evaluate.vector.functions import as_float
from policysched.evaluate.vector.machine import (
    Frame,
    Known,
    Machine,
    Operand,
    Step,
    Vector,
    both,
    is_leaf,
)
from policysched.lang.ir import expr as e
from policysched.lang.types.kinds import Kind


def has(machine: Machine, expr: e.Has) -> Step:
    target = machine.operand(expr.target)
    return lambda frame: Vector(np.asarray(target(frame).known), True)


def negation(machine: Machine, expr: e.Not) -> Step:
    operand = machine.operand(expr.operand)

    def run(frame: Frame) -> Vector:
        found = operand(frame)
        return Vector(np.logical_not(found.values), found.known)

    return run


def conjunction(machine: Machine, expr: e.And) -> Step:
    return _junction([machine.operand(item) for item in expr.items], decisive=False)


def disjunction(machine: Machine, expr: e.Or) -> Step:
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


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def comparison(machine: Machine, expr: e.Compare) -> Step:
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
    in_column = isinstance(other, e.Attr | e.InputRef | e.Element)
    if e.type_of(expr).kind is not Kind.STRING or not is_leaf(expr) or not in_column:
        return machine.operand(expr)
    number = machine.leaf_number(expr)

    def run(frame: Frame) -> Vector:
        value = frame.leaves[number]
        if value is None:
            return Vector(np.zeros((), np.int32), False)
        return Vector(np.asarray(frame.view.codes.strings.find(str(value)), np.int32), True)

    return run


def membership(machine: Machine, expr: e.In) -> Step:
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
            assert not isinstance(one, tuple), f"`in` looks among single values, not for {one!r}"
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


def rank(machine: Machine, expr: e.Rank) -> Step:
    item = machine.operand(expr.item)

    def run(frame: Frame) -> Vector:
        found = item(frame)
        places = np.full(found.values.shape, len(expr.order), np.int64)
        for place, text in reversed(list(enumerate(expr.order))):
            places = np.where(found.values == frame.view.codes.strings.find(text), place, places)
        return Vector(places, found.known)

    return run
