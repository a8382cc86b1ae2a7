"""Which devices each CEL selector selects, evaluated once for each version of a slice.

A new selector is evaluated for all devices of the cluster before a pod that has it is attempted, in pieces
(`evaluate_some`). Evaluations that were not prepared are made on demand.

There may be more selectors than are kept. So that pods that are prepared in turns do not drop each other's results without
end, those of the pod with the fewest selectors are dropped last, and of the earlier one among equals: it always gets on.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from policysched.cluster.devices.cel_macros import may_expand
from policysched.cluster.devices.cel_selectors import CelSelectorError, DeviceSelectors
from policysched.model.devices import ResourceSlice

SELECTORS_CACHED_MAX = 256
SELECTORS_MAX = 128
"""Of a pod or a gang, which is not attempted with more: they would drop each other's results."""
_UNKNOWN, _NOT_SELECTED, _SELECTED, _FIRST_ERROR = 0, 1, 2, 3
_ERRORS_MAX = 256 - _FIRST_ERROR
_OPERATIONS_PER_SELECTOR, _OPERATIONS_PER_CHARACTER = 10_000, 300  # of compiling it and estimating its cost
_OPERATIONS_OF_TEMPLATES = 450  # for each character more
_OPERATIONS_PER_SLICE = 50
_LOG_SPARE = 100
_PREPARED_TOGETHER_MAX = 16  # more of them share what the others leave
_TURNS_MAX = 1_000
"""Preparations that had no turn for so many turns of others are over: their pods are gone."""


class _Selector:
    """`slot`: where its results are. `position`: in the log of slices; what is before it is evaluated. `errors`: messages of
    distinct errors; beyond the last code, an error has the message of the last."""

    __slots__ = ("errors", "operations", "position", "slot")

    def __init__(self, slot: int, operations: int) -> None:
        self.slot = slot
        self.operations = operations
        self.position = 0
        self.errors: list[tuple[str, bool]] = []

    def code_of(self, error: CelSelectorError) -> int:
        evaluation_error = str(error.args[0]), error.is_compile_error
        if evaluation_error in self.errors:
            return _FIRST_ERROR + self.errors.index(evaluation_error)
        if len(self.errors) < _ERRORS_MAX:
            self.errors.append(evaluation_error)
        return _FIRST_ERROR + len(self.errors) - 1

    def error(self, code: int) -> CelSelectorError:
        message, is_compile_error = self.errors[code - _FIRST_ERROR]
        return CelSelectorError(message, compiling=is_compile_error)


@dataclass(slots=True)
class _Preparation:
    """Of the selectors of a pod or gang, from the first turn until all are evaluated."""

    expressions: frozenset[str]
    begun: int
    last_turn: int


class SelectorResults:
    """One byte for each device and selector; the least recently used selectors are dropped, those of no preparation
    first. `slices` are the present ones;
    `slice_added` and `forget_slice` report their changes."""

    def __init__(self, slices: Mapping[str, ResourceSlice]) -> None:
        self._slices = slices
        self.selectors = DeviceSelectors()
        self._known: OrderedDict[str, _Selector] = OrderedDict()
        self._free_slots = list(range(SELECTORS_CACHED_MAX))
        self._codes: dict[str, bytearray] = {}  # by slice: for each slot a byte for each device
        self._preparations: dict[frozenset[str], _Preparation] = {}
        self._turn = 0
        self._log: list[str] = []  # slices in the order of their last changes

    def matches(self, expression: str, resource_slice: ResourceSlice, index: int) -> bool:
        """Whether the selector selects the device at the index of the slice. Raises CelSelectorError."""
        selector = self._selector(expression)
        code = self._code(expression, selector, resource_slice, index)
        if code >= _FIRST_ERROR:
            raise selector.error(code)
        return code == _SELECTED

    def is_evaluated(self, expressions: Iterable[str]) -> bool:
        """Whether these are evaluated for all devices."""
        end = len(self._log)
        return all(
            (selector := self._known.get(expression)) is not None and selector.position == end
            for expression in expressions
        )

    def evaluate_some(self, expressions: Collection[str], operations_max: int | None) -> bool:
        """Evaluate those that are not evaluated yet, within a number of operations (None: no limit). Returns whether all are evaluated."""
        self._turn += 1
        subject = frozenset(expressions)
        preparation = self._preparations.setdefault(subject, _Preparation(subject, self._turn, self._turn))
        preparation.last_turn = self._turn
        if self._evaluate_some(expressions, operations_max):
            del self._preparations[subject]
            return True
        return False

    def _evaluate_some(self, expressions: Iterable[str], operations_max: int | None) -> bool:
        operations = 0
        for expression in expressions:
            if expression not in self._known:
                operations += _compiling(expression)
            selector = self._selector(expression)
            while selector.position < len(self._log):
                resource_slice = self._slices.get(self._log[selector.position])
                for index in self._unknown(selector, resource_slice):
                    if operations_max is not None and operations >= operations_max:
                        return False
                    assert resource_slice is not None, "a slice that is gone has no devices"
                    if not self.selectors.is_compiled(expression):  # any more
                        operations += _compiling(expression)
                    self._code(expression, selector, resource_slice, index)
                    operations += selector.operations
                selector.position += 1
                operations += _OPERATIONS_PER_SLICE
        return True

    def slice_added(self, name: str) -> None:
        self.selectors.load()
        self._log.append(name)
        if len(self._log) > 2 * len(self._slices) + _LOG_SPARE:
            self._log = list(self._slices)
            for selector in self._known.values():
                selector.position = 0  # what is evaluated is passed over

    def forget_slice(self, name: str) -> None:
        """The slice changed or was deleted."""
        self._codes.pop(name, None)

    def _selector(self, expression: str) -> _Selector:
        result = self._known.get(expression)
        if result is not None:
            self._known.move_to_end(expression)
            return result
        if not self._free_slots:
            dropped = self._known.pop(self._to_drop())
            for name, codes in self._codes.items():
                at = self._slot_in(dropped, len(self._slices[name].devices))
                codes[at] = bytes(len(codes[at]))
            self._free_slots.append(dropped.slot)
        selector = _Selector(self._free_slots.pop(), self.selectors.operations(expression))
        self._known[expression] = selector
        return selector

    def _to_drop(self) -> str:
        oldest_turn = self._turn - _TURNS_MAX
        for preparation in list(self._preparations.values()):
            if preparation.last_turn < oldest_turn:
                del self._preparations[preparation.expressions]
        by_rank = sorted(self._preparations.values(), key=lambda each: (len(each.expressions), each.begun))
        ranks: dict[str, int] = {}
        for rank, preparation in enumerate(by_rank[:_PREPARED_TOGETHER_MAX]):
            for expression in preparation.expressions:
                ranks.setdefault(expression, rank)
        # The first of several is the least recently used.
        return max(self._known, key=lambda expression: ranks.get(expression, _PREPARED_TOGETHER_MAX))

    @staticmethod
    def _slot_in(selector: _Selector, device_count: int) -> slice:
        return slice(selector.slot * device_count, (selector.slot + 1) * device_count)

    def _unknown(self, selector: _Selector, resource_slice: ResourceSlice | None) -> Sequence[int]:
        """The indexes of devices for which the selector is not evaluated."""
        if resource_slice is None:
            return ()
        device_count = len(resource_slice.devices)
        codes = self._codes.get(resource_slice.name, b"")[self._slot_in(selector, device_count)]
        if not codes:
            return range(device_count)
        return [index for index, code in enumerate(codes) if code == _UNKNOWN] if _UNKNOWN in codes else ()

    def _code(self, expression: str, selector: _Selector, resource_slice: ResourceSlice, index: int) -> int:
        device_count = len(resource_slice.devices)
        codes = self._codes.setdefault(resource_slice.name, bytearray())
        slot = self._slot_in(selector, device_count)
        if len(codes) < slot.stop:
            codes.extend(bytes(slot.stop - len(codes)))
        code: int = codes[slot.start + index]
        if code == _UNKNOWN:
            device = resource_slice.devices[index]
            try:
                is_selected = self.selectors.matches(expression, resource_slice.pool.driver, device)
                code = _SELECTED if is_selected else _NOT_SELECTED
            except CelSelectorError as error:
                code = selector.code_of(error)
            codes[slot.start + index] = code
        return code


def _compiling(expression: str) -> int:
    """The operations of it."""
    per_character = _OPERATIONS_PER_CHARACTER + _OPERATIONS_OF_TEMPLATES * may_expand(expression)
    return _OPERATIONS_PER_SELECTOR + per_character * len(expression)
