"""Lists of records over all nodes at once: every element of every node's list is a row.

The lists of the rows in view are gathered end to end (`packed_lists`), values of the node are repeated
for each of its elements, and the results are reduced by node. A condition on elements then costs
the same as a condition on that many nodes. A list of the pod that is compared with the nodes is repeated for each of
them, some nodes at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from policysched.cluster.node_usage import NodeUsage
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.interner import ScratchInterner
from policysched.evaluate.columns.packed_lists import Elements, RepeatedElements, record_columns
from policysched.evaluate.columns.shared_interners import Interners
from policysched.evaluate.columns.view import View
from policysched.evaluate.scalar.operations import sum_numbers
from policysched.evaluate.vector.machine import (
    EvalFrame,
    KnownMask,
    ValueVector,
    VectorMachine,
    VectorStep,
    both_known,
)
from policysched.evaluate.vector.node_values import columns_read_by
from policysched.lang.ir import expr as e
from policysched.lang.types.kinds import FLOAT64_MAX, RecordType
from policysched.lang.types.records import RecordValue
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.quantity import INT64_MAX, INT64_MIN

_LEAST = {np.int64: INT64_MIN, np.float64: -np.inf}
_GREATEST = {np.int64: INT64_MAX, np.float64: np.inf}
_REPEATED_ROWS_MAX = 65_536
"""Elements of a list of the pod, times nodes, that are compared at once."""
_EXACT_MAX = 2.0**62
"""Integer sums with smaller magnitudes cannot overflow int64 midway."""


class ElementsView(View):
    """A view whose rows are the elements of the lists of a base view; `owners` are the positions of
    their nodes in that view."""

    __slots__ = ("_base", "_codes", "lists", "owners")

    def __init__(self, base: View, lists: Elements, codes: Interners) -> None:
        # Without the parent's state: every read goes to the base view.
        self._base = base
        self._codes = codes
        self.lists = lists
        self.owners = lists.owners
        self.count = len(lists.owners)

    @property
    def codes(self) -> Interners:
        return self._codes

    def field(self, index: int) -> tuple[Array, Array]:
        """Values, and the mask of those that are present."""
        return self.lists.field(index)

    def column(self, kind: ColumnKind) -> Array:
        column: Array = self._base.column(kind)[self.owners]
        return column

    def from_node_values(self, values: Mapping[NodeName, float], otherwise: float) -> Array:
        array: Array = self._base.from_node_values(values, otherwise)[self.owners]
        return array

    def metric(self, name: str) -> tuple[Array, Array]:
        values, known = self._base.metric(name)
        return values[self.owners], known[self.owners]

    def node_at(self, position: int) -> tuple[Node, NodeUsage] | None:
        return self._base.node_at(int(self.owners[position]))


def repeat_per_element(vector: ValueVector, frame: EvalFrame) -> ValueVector:
    """Each node's value, repeated for each element of its list."""
    assert isinstance(frame.view, ElementsView), "a nested frame is over elements of lists"
    owners = frame.view.owners
    values = vector.values[owners] if vector.values.ndim else vector.values
    known = vector.known
    return ValueVector(values, known[owners] if isinstance(known, np.ndarray) and known.ndim else known)


def once_per_node(step: VectorStep) -> VectorStep:
    """The step, and over elements the value of each node repeated. Made here, since a function that calls itself by its local
    name is in a cycle."""
    return lambda frame: step(frame) if frame.outer is None else _of_nodes(step, frame)


def _of_nodes(step: VectorStep, frame: EvalFrame) -> ValueVector:
    return step(frame) if frame.outer is None else repeat_per_element(_of_nodes(step, frame.outer), frame)


def element_field(machine: VectorMachine, expr: e.ElementField) -> VectorStep:
    def run(frame: EvalFrame) -> ValueVector:
        assert isinstance(frame.view, ElementsView), f"{expr.name} is read outside a list"
        return ValueVector(*frame.view.field(expr.index))

    return run


def fold_elements(machine: VectorMachine, expr: e.ListFold) -> VectorStep:
    where = None if expr.where is None else machine.operand(expr.where)
    value = None if expr.value is None else machine.operand(expr.value)
    element = expr.items.type.element
    assert element is not None and element.record is not None, f"{expr.items.type} is not a list of records"
    record = element.record

    def fold(frame: EvalFrame, lists: Elements, codes: Interners) -> ValueVector:
        """By row of the frame."""
        elements = EvalFrame(
            ElementsView(frame.view, lists, codes), frame.context, frame.leaf_values, outer=frame
        )
        count = frame.view.count
        chosen = None if where is None else _true_mask(where(elements), elements.view.count)
        if value is None:
            counts = _count_by_row(lists, chosen, count)
            return ValueVector(counts > 0 if expr.function == "any" else counts, True)
        vector = value(elements)
        chosen = _chosen_and_known(chosen, vector.known, elements.view.count)
        values = np.broadcast_to(vector.values, (elements.view.count,))
        if expr.function == "sum":
            return ValueVector(_sum_by_row(lists, values, chosen, count, floating=expr.floating), True)
        nonempty = _count_by_row(lists, chosen, count) > 0
        return ValueVector(_extremes_by_row(expr, lists, values, chosen, nonempty), nonempty)

    if machine.is_leaf(expr.items):
        return _fold_list_of_pod(machine, expr, record, fold)
    items = machine.operand(expr.items)

    def run(frame: EvalFrame) -> ValueVector:
        listed, count = items(frame), frame.view.count
        known = np.broadcast_to(listed.known, (count,))
        flat = frame.view.codes.packed_lists(record)
        lists = flat.gather(expr.items.name, np.broadcast_to(listed.values, (count,)), known)
        folded = fold(frame, lists, frame.view.codes)
        return ValueVector(folded.values, both_known(listed.known, folded.known))

    return run


def _fold_list_of_pod(
    machine: VectorMachine,
    expr: e.ListFold,
    record: RecordType,
    fold: Callable[[EvalFrame, Elements, Interners], ValueVector],
) -> VectorStep:
    """For a list of the pod that is compared with the nodes: every element is a row for every node."""
    number = machine.leaf_index(expr.items)
    parts = (part for part in (expr.where, expr.value) if part is not None)
    columns = [kind for part in parts for kind in columns_read_by(part, machine.program)]
    dtype = np.float64 if expr.floating else dtype_of(expr.type.kind)

    def run(frame: EvalFrame) -> ValueVector:
        records = frame.leaf_values[number]
        if records is None:
            return ValueVector(np.zeros((), dtype), False)
        assert isinstance(records, tuple), f"{expr.items.name} is {records!r}, not a list"
        for kind in columns:  # so that the texts of nodes have codes before those of the elements get some
            frame.view.column(kind)
        count = frame.view.count
        codes = replace(frame.view.codes, strings=ScratchInterner(frame.view.codes.strings))
        fields = record_columns(record, cast(tuple[RecordValue, ...], records), codes.strings)
        values, known = np.zeros(count, dtype), np.zeros(count, np.bool_)
        step = max(1, _REPEATED_ROWS_MAX // max(1, len(records)))
        for first in range(0, count, step):
            rows = slice(first, min(count, first + step))
            folded = fold(frame, RepeatedElements(fields, len(records), rows.start, rows.stop), codes)
            values[rows] = folded.values[rows]
            known[rows] = folded.known if isinstance(folded.known, bool) else folded.known[rows]
        return ValueVector(values, known)

    return run


def _true_mask(condition: ValueVector, count: int) -> Array:
    mask = condition.values if condition.known is True else np.logical_and(condition.values, condition.known)
    return np.broadcast_to(mask, (count,))


def _chosen_and_known(chosen: Array | None, known: KnownMask, count: int) -> Array | None:
    """None: all elements."""
    if known is True:
        return chosen
    present = np.broadcast_to(known, (count,))
    return present if chosen is None else chosen & present


def _count_by_row(lists: Elements, chosen: Array | None, count: int) -> Array:
    """The number of chosen elements by row."""
    counts = np.zeros(count, np.int64)
    if len(lists.nonempty):
        counts[lists.nonempty] = (
            np.diff(lists.starts, append=len(lists.owners))
            if chosen is None
            else _segment_sums(lists, chosen)
        )
    return counts


def _sum_by_row(lists: Elements, values: Array, chosen: Array | None, count: int, *, floating: bool) -> Array:
    """The sum of the chosen elements by row, in the order of the lists."""
    if floating:
        # Not `reduceat`, which may add in another order. Elements that are not chosen add 0.
        weights = values.astype(np.float64) if chosen is None else np.where(chosen, values, 0.0)
        totals = np.bincount(lists.owners, weights=weights, minlength=count)
        return np.clip(totals, -FLOAT64_MAX, FLOAT64_MAX)
    sums: Array = np.zeros(count, np.int64)
    if not len(lists.nonempty):
        return sums
    amounts = values.astype(np.int64) if chosen is None else np.where(chosen, values, 0)
    if np.abs(amounts.astype(np.float64)).sum() < _EXACT_MAX:
        sums[lists.nonempty] = _segment_sums(lists, amounts)
        return sums
    ends = [*lists.starts[1:].tolist(), len(amounts)]
    for row, start, end in zip(lists.nonempty.tolist(), lists.starts.tolist(), ends, strict=True):
        sums[row] = sum_numbers(amounts[start:end].tolist(), floating=False)
    return sums


def _segment_sums(lists: Elements, amounts: Array) -> Array:
    """The sum of the elements of each nonempty row, as differences of a cumulative sum of integers,
    which stay right even if it wraps. Three times as fast as `reduceat` for short lists."""
    cumulative = np.cumsum(amounts, dtype=np.int64)
    at_ends = cumulative[np.append(lists.starts[1:], len(cumulative)) - 1]
    return np.diff(at_ends, prepend=0)


def _extremes_by_row(
    expr: e.ListFold, lists: Elements, values: Array, chosen: Array | None, nonempty: Array
) -> Array:
    """The minimum or maximum of the chosen elements by row; 0 where there is none."""
    dtype = np.float64 if expr.floating else np.int64
    extremes = np.zeros(len(nonempty), dtype)
    if not len(lists.nonempty):
        return extremes
    greatest = expr.function == "max"
    candidates = values.astype(dtype)
    if chosen is not None:
        # Elements that are not chosen never win.
        candidates = np.where(chosen, candidates, dtype(_LEAST[dtype] if greatest else _GREATEST[dtype]))
    reduction = np.maximum if greatest else np.minimum
    extremes[lists.nonempty] = reduction.reduceat(candidates, lists.starts)
    return np.where(nonempty, extremes, dtype(0))
