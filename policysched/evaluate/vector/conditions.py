"""Steps for three-valued conditions: `has`, `not`, `and`, `or`, comparisons, `in`, and for `rank`."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import UNKNOWN
from policysched.evaluate.columns.view import map_codes
from policysched.evaluate.vector.functions import as_float
from policysched.evaluate.vector.machine import (
    EvalFrame,
    KnownMask,
    ValueVector,
    VectorMachine,
    VectorOperand,
    VectorStep,
    both_known,
)
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.ir.text_functions import bucket_of, parts_of
from policysched.lang.types.kinds import TypeKind


def has(machine: VectorMachine, expr: e.Has) -> VectorStep:
    target = machine.operand(expr.target)
    return lambda frame: ValueVector(np.asarray(target(frame).known), True)


def logical_not(machine: VectorMachine, expr: e.Not) -> VectorStep:
    operand = machine.operand(expr.operand)

    def run(frame: EvalFrame) -> ValueVector:
        vector = operand(frame)
        return ValueVector(np.logical_not(vector.values), vector.known)

    return run


def conjunction(machine: VectorMachine, expr: e.And) -> VectorStep:
    return _logical_connective([machine.operand(item) for item in expr.items], decisive=False)


def disjunction(machine: VectorMachine, expr: e.Or) -> VectorStep:
    return _logical_connective([machine.operand(item) for item in expr.items], decisive=True)


def _logical_connective(items: Sequence[VectorOperand], *, decisive: bool) -> VectorStep:
    """Kleene logic: known where one item decides, or where all are known."""

    def run(frame: EvalFrame) -> ValueVector:
        decided: Array = np.zeros((), np.bool_)
        all_known: KnownMask = True
        for item in items:
            vector = item(frame)
            decides = np.equal(vector.values, decisive)
            decided = decided | (decides if vector.known is True else decides & vector.known)
            all_known = both_known(all_known, vector.known)
        known: KnownMask = True if all_known is True else np.logical_or(decided, all_known)
        return ValueVector(decided if decisive else ~decided, known)

    return run


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def comparison(machine: VectorMachine, expr: e.Compare) -> VectorStep:
    compare = _COMPARISONS[expr.op]
    left, right = _text_operand(machine, expr.left, expr.right), _text_operand(machine, expr.right, expr.left)
    floating = is_floating(expr.left) or is_floating(expr.right)
    right_first = machine.is_leaf(expr.left)

    def run(frame: EvalFrame) -> ValueVector:
        if right_first:
            second = right(frame)  # first, because the pod's text is looked up among the column's codes
            first = left(frame)
        else:
            first, second = left(frame), right(frame)
        known = both_known(first.known, second.known)
        if floating:
            return ValueVector(compare(as_float(first.values), as_float(second.values)), known)
        return ValueVector(compare(first.values, second.values), known)

    return run


def _text_operand(machine: VectorMachine, expr: e.Expr, other: e.Expr) -> VectorOperand:
    """A text of the pod that is compared with a column is not interned: if no row has it, it equals
    none."""
    other_is_column = isinstance(other, e.Attr | e.InputRef | e.ElementField)
    if type_of(expr).kind is not TypeKind.STRING or not machine.is_leaf(expr) or not other_is_column:
        return machine.operand(expr)
    number = machine.leaf_index(expr)

    def run(frame: EvalFrame) -> ValueVector:
        value = frame.leaf_values[number]
        if value is None:
            return ValueVector(np.zeros((), np.int32), False)
        return ValueVector(np.asarray(frame.view.codes.strings.find(str(value)), np.int32), True)

    return run


def membership(machine: VectorMachine, expr: e.In) -> VectorStep:
    if machine.is_leaf(expr.options):
        return _in_leaf_list(machine, expr)
    if isinstance(expr.options, e.Split):
        return _in_parts(machine, expr.item, expr.options)
    return _in_node_list(machine, expr)


def _in_parts(machine: VectorMachine, item: e.Expr, options: e.Split) -> VectorStep:
    """Each distinct string of the node is split once; each distinct pair of it and an item is looked up once."""
    text, wanted, separator = machine.operand(options.text), machine.operand(item), options.separator

    def run(frame: EvalFrame) -> ValueVector:
        lists, items, texts = text(frame), wanted(frame), frame.view.codes.strings.values
        list_codes, item_codes = np.broadcast_arrays(lists.values, items.values)
        pairs = np.stack([list_codes.ravel(), item_codes.ravel()])
        distinct, positions = np.unique(pairs, axis=1, return_inverse=True)
        parts = {code: parts_of(texts[code], separator) for code in set(distinct[0].tolist()) if code >= 0}
        # Below 0 there is no string: the value is missing.
        is_contained = [
            code >= 0 and 0 <= wanted_code < len(texts) and texts[wanted_code] in parts[code]
            for code, wanted_code in distinct.T.tolist()
        ]
        contained = np.array(is_contained, np.bool_)[positions.reshape(list_codes.shape)]
        return ValueVector(contained, both_known(lists.known, items.known))

    return run


def _in_leaf_list(machine: VectorMachine, expr: e.In) -> VectorStep:
    item, number = machine.operand(expr.item), machine.leaf_index(expr.options)
    element = type_of(expr.options).element
    floating = is_floating(expr.item) or (element is not None and element.is_float64)
    texts = type_of(expr.item).kind is TypeKind.STRING

    def run(frame: EvalFrame) -> ValueVector:
        vector, options = item(frame), frame.leaf_values[number]
        if options is None:
            return ValueVector(np.zeros((), np.bool_), False)
        assert isinstance(options, tuple), f"{options!r} is not a list"
        values = as_float(vector.values) if floating else vector.values
        contained: Array = np.zeros(values.shape, np.bool_)
        if texts:  # a tenant's annotation may have a hundred thousand, of which no node has any
            strings = frame.view.codes.strings
            options = tuple({code for option in options if (code := strings.find(str(option))) != UNKNOWN})
        for option in options:
            assert not isinstance(option, tuple), f"{option!r} is a list in a list"
            contained = contained | (values == (float(option) if floating else option))
        return ValueVector(contained, vector.known)

    return run


def _in_node_list(machine: VectorMachine, expr: e.In) -> VectorStep:
    options, item = machine.operand(expr.options), machine.operand(expr.item)
    leaf = machine.leaf_index(expr.item) if machine.is_leaf(expr.item) else None

    def run(frame: EvalFrame) -> ValueVector:
        codes, lists = options(frame), frame.view.codes.lists.values
        if leaf is not None:
            value = frame.leaf_values[leaf]
            if value is None:
                return ValueVector(np.zeros((), np.bool_), False)
            matches = map_codes(codes.values, lists, lambda texts: value in texts, np.bool_)
            return ValueVector(matches, codes.known)
        items = item(frame)
        texts = frame.view.codes.strings.values
        contained = np.zeros(frame.view.count, np.bool_)
        pairs = zip(items.values.tolist(), codes.values.tolist(), strict=True)
        for position, (text, code) in enumerate(pairs):
            contained[position] = 0 <= text < len(texts) and code < len(lists) and texts[text] in lists[code]
        return ValueVector(contained, both_known(items.known, codes.known))

    return run


def rank(machine: VectorMachine, expr: e.Rank) -> VectorStep:
    item = machine.operand(expr.item)

    def run(frame: EvalFrame) -> ValueVector:
        vector = item(frame)
        ranks = np.full(vector.values.shape, len(expr.order), np.int64)
        for position, text in reversed(list(enumerate(expr.order))):
            ranks = np.where(vector.values == frame.view.codes.strings.find(text), position, ranks)
        return ValueVector(ranks, vector.known)

    return run


def starts_with(machine: VectorMachine, expr: e.StartsWith) -> VectorStep:
    prefix = expr.prefix
    return _function_of_text(machine, expr.text, lambda text: text.startswith(prefix), np.bool_)


def bucket(machine: VectorMachine, expr: e.Bucket) -> VectorStep:
    count, salt = expr.count, expr.salt
    return _function_of_text(machine, expr.text, lambda text: bucket_of(text, count, salt), np.int64)


def _function_of_text(
    machine: VectorMachine, text: e.Expr, function: Callable[[str], bool | int], dtype: DTypeLike
) -> VectorStep:
    """Evaluated once for each distinct string of the view."""
    operand = machine.operand(text)

    def run(frame: EvalFrame) -> ValueVector:
        vector, texts = operand(frame), frame.view.codes.strings.values
        distinct, positions = np.unique(vector.values, return_inverse=True)
        # Below 0 there is no string: the value is missing.
        values = [function(texts[code]) if code >= 0 else 0 for code in distinct.tolist()]
        return ValueVector(np.array(values, dtype)[positions.reshape(vector.values.shape)], vector.known)

    return run
