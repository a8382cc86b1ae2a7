"""What evaluating a CEL selector for one device costs at most, estimated from its syntax tree.

The API server estimates too, but in units of Go's runtime: a selector within its limit can take seconds here. The unit is
an operation of `evaluate.decision_cost`, about 20 ns. All branches count, each comprehension as often as its list can be
long, and strings by the length that they can have.

The tree is read from the serialized form of the compiled expression (`cel_tree`).
"""

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from policysched.cluster.devices.cel_environment import FUNCTIONS, Signature
from policysched.cluster.devices.cel_lists import RANGE_MAX
from policysched.cluster.devices.cel_tree import (
    Message,
    all_bytes,
    bytes_of,
    message,
    namespace_of,
    text_of,
    tree_of,
)

OPERATIONS_MAX = 250_000
"""Of one selector for one device: about 5 ms, a slice of the main loop."""
_OPERATIONS_SHOWN_MAX = 10**15
"""More is this many: nested lists multiply to numbers of thousands of digits, which cannot be printed."""
EVALUATION = 1_000
"""What any evaluation costs: the values of the device are converted."""

_CALL = 5
_PYTHON_CALL = 250
_PER_ITEM = 50  # of a list that is converted for such a function
_PER_PAIR = 20  # of items that it compares
_URL_CALL = 1_000  # of a function of `cel_urls` or `cel_formats`
_PER_URL_CHARACTER = 50
_PER_CHARACTER = 2
_MESSAGES_MAX, _MESSAGE_MAX = 4, 512  # about a text that is not in its format
_SCALAR_TEXT_MAX = 64  # characters, but for `%.1000f`
_STEPS_MAX = 10_000  # of all comprehensions of an evaluation, a limit of the runtime
_REPETITION_MAX = 1_000  # of nested `x{n}` in a regular expression, a limit of RE2
_REPETITION = re.compile(r"[{,]0*([1-9]\d{0,3})")
# RE2 compiles a pattern for each evaluation, in time that grows with the ranges of UTF-8 bytes that its classes have.
_PER_PATTERN_CHARACTER = 10
_WIDE_CLASS, _PER_WIDE_CLASS = re.compile(r"\.|\\[CDSWx]|\[:?\^|[^\x00-\x7f]"), 400
_UNICODE_CLASS, _PER_UNICODE_CLASS = re.compile(r"\\[pP]"), 80_000

_PYTHON_FUNCTIONS = {signature.name: signature.returned for signature in map(Signature.of, FUNCTIONS)}
_URL_FUNCTIONS = frozenset(
    "url isURL getScheme getHost getHostname getPort getEscapedPath getQuery @format_errors".split()  # noqa: SIM905
)
_SCALAR_FUNCTIONS = frozenset(
    "_&&_ _||_ !_ _==_ _!=_ _<_ _<=_ _>_ _>=_ @in size startsWith endsWith contains matches indexOf "  # noqa: SIM905
    "lastIndexOf hasValue @not_strictly_false int uint double bool _-_ _*_ _/_ _%_ -_".split()
)
_ELEMENT_FUNCTIONS = frozenset(("_[_]", "_?._", "_[?_]"))


class _Size(NamedTuple):
    """`length`: characters of a string, or items of a list or map, of which `item` is the largest (None: unknown). `total`: the
    characters of all items together, where that is known to be less than the product."""

    length: int
    item: "_Size | None" = None
    total: int | None = None

    @property
    def any_item(self) -> "_Size":
        return self.item or _UNKNOWN

    @property
    def item_count(self) -> int:
        """How many items there are at most, if it is a list or a map."""
        return self.length if self.item is not None else min(self.length, _VALUES_MAX)

    @property
    def characters(self) -> int:
        if self.total is not None:
            return self.total
        return self.length if self.item is None else self.length * max(1, self.item.characters)


_VALUES_MAX = 32
_SCALAR = _Size(0)
_UNKNOWN = _Size(64)
"""A value of a device: it has at most 32 attributes and capacities, of at most 64 characters."""


def _largest(sizes: Iterable[_Size]) -> _Size:
    """As large as each of them."""
    sizes = list(sizes)
    items = [size.item for size in sizes if size.item is not None]
    return _Size(max((size.length for size in sizes), default=0), _largest(items) if items else None)


class _Cost(NamedTuple):
    operations: int
    size: _Size
    text: str | None = None  # of a constant string
    number: int | None = None  # a constant


def selector_operations(serialized: bytes) -> int:
    """What one evaluation costs at most, `serialized` as by `Expression.serialize`."""
    return min(EVALUATION + _expression(tree_of(serialized), {}).operations, _OPERATIONS_SHOWN_MAX)


def _expression(data: bytes, variables: Mapping[str, _Size]) -> _Cost:
    node = message(data)
    if 3 in node:
        return _constant(message(bytes_of(node, 3)))
    if 4 in node:
        name = text_of(message(bytes_of(node, 4)), 1)
        return _Cost(0, variables.get(name, _UNKNOWN))
    if 5 in node:
        operand = _expression(bytes_of(message(bytes_of(node, 5)), 1), variables)
        return _Cost(operand.operations + _CALL, operand.size.any_item)
    if 6 in node:
        return _call(message(bytes_of(node, 6)), variables)
    if 7 in node:
        items = [_expression(item, variables) for item in all_bytes(message(bytes_of(node, 7)), 1)]
        return _collection(items, len(items))
    if 8 in node:
        entries = [message(entry) for entry in all_bytes(message(bytes_of(node, 8)), 2)]
        parts = [
            _expression(part, variables)
            for entry in entries
            for at in (3, 4)
            for part in all_bytes(entry, at)
        ]
        return _collection(parts, len(entries))
    if 9 in node:
        return _comprehension(message(bytes_of(node, 9)), variables)
    return _Cost(0, _SCALAR)


def _constant(constant: Message) -> _Cost:
    for kind in (6, 7):
        if kind in constant:
            value = bytes_of(constant, kind)
            return _Cost(0, _Size(len(value)), value.decode(errors="replace"))
    number = constant.get(3, [None])[-1]
    if isinstance(number, int):  # a negative one is its two's complement
        return _Cost(0, _SCALAR, number=number if number < 2**63 else 0)
    return _Cost(0, _SCALAR)


def _collection(items: list[_Cost], count: int) -> _Cost:
    operations = sum(item.operations for item in items) + _CALL * (1 + len(items))
    return _Cost(operations, _Size(count, _largest(item.size for item in items)))


def _call(call: Message, variables: Mapping[str, _Size]) -> _Cost:
    name, targets = text_of(call, 2), all_bytes(call, 1)
    if targets and (namespace := namespace_of(targets[0], variables)):
        name, targets = f"{namespace}.{name}", []
    arguments = [_expression(argument, variables) for argument in targets + all_bytes(call, 3)]
    operations = sum(argument.operations for argument in arguments)
    sizes = [argument.size for argument in arguments]
    lengths = sum(size.length for size in sizes)
    if name == "matches" and len(arguments) == 2:
        return _Cost(operations + _matching(arguments[0].size, arguments[1]), _SCALAR)
    if name in ("find", "findAll") and len(arguments) > 1:
        searches = 1 if name == "find" else sizes[0].length + 1
        matched = sizes[0] if name == "find" else _Size(searches, sizes[0], total=sizes[0].length)
        return _Cost(operations + searches * (_PYTHON_CALL + _matching(sizes[0], arguments[1])), matched)
    if name in _URL_FUNCTIONS:
        lengths = sum(size.characters for size in sizes)
        return _Cost(operations + _URL_CALL + _PER_URL_CHARACTER * lengths, _url_size(name, lengths))
    if name in _PYTHON_FUNCTIONS:
        items = [size.characters for size in sizes if size.item is not None]
        pairs = 2 * prod(items) if name.startswith("sets.") else 0
        if name == "distinct":
            pairs = sizes[0].item_count * sizes[0].characters
        if name == "@order":
            pairs = sizes[0].length.bit_length() * sum(items)
        if name == "lists.range" and arguments:
            count = arguments[0].number
            made = _Size(RANGE_MAX if count is None else min(count, RANGE_MAX), _SCALAR)
            return _Cost(operations + _PYTHON_CALL + _PER_ITEM * made.length, made)
        if name == "flatten":
            sizes = [_Size(max(sizes[0].characters, sizes[0].item_count), sizes[0].any_item)]
        converted = _PER_CHARACTER * lengths + _PER_ITEM * sum(items) + _PER_PAIR * pairs
        return _Cost(operations + _PYTHON_CALL + converted, _python_size(name, sizes))
    if name in ("_==_", "_!=_", "@in", "join"):
        lengths = sum(size.characters for size in sizes)
    size = _result_size(name, sizes)
    return _Cost(operations + _CALL + _PER_CHARACTER * (lengths + size.length), size)


def _python_size(name: str, sizes: list[_Size]) -> _Size:
    """Functions that begin with `@` have a list as their only argument."""
    if name == "@keys":
        (items,) = (size.any_item for size in sizes)
        return _Size(items.item_count, items.any_item)
    if name == "@merged":
        (maps,) = sizes
        return _Size(maps.length * maps.any_item.item_count, maps.any_item.any_item)
    if name == "@order":
        return _Size(sizes[0].length, _SCALAR)
    if name == "sum" or _PYTHON_FUNCTIONS[name] in ("number", "truth", "double"):
        return _SCALAR
    if name in ("min", "max"):
        return sizes[0].any_item
    return _largest([_UNKNOWN, *sizes])


def _url_size(name: str, length: int) -> _Size:
    """Percent-encoded, each byte can take three characters."""
    if name == "@format_errors":
        return _Size(_MESSAGES_MAX, _Size(_MESSAGE_MAX))
    if name == "getQuery":
        return _Size(length, _Size(length, _Size(length)), total=length)
    return _Size(3 * length if name == "url" else length)


def _matching(target: _Size, pattern: _Cost) -> int:
    """RE2 takes time in the product of both lengths, once repetitions are written out. Of a pattern that is put together
    nothing is known but its length."""
    length, text = pattern.size.length, pattern.text
    if text is None:
        repeated = _REPETITION_MAX if length > len("{9}") else 1
        wide, unicode = length, length // len(r"\pL")
    else:
        repeated = min(prod(map(int, _REPETITION.findall(text))), _REPETITION_MAX)
        wide, unicode = len(_WIDE_CLASS.findall(text)), len(_UNICODE_CLASS.findall(text))
    compiling = _PER_PATTERN_CHARACTER * length + _PER_WIDE_CLASS * wide + _PER_UNICODE_CLASS * unicode
    return 100 + repeated * (compiling + target.length * length // 4)


def _result_size(name: str, sizes: list[_Size]) -> _Size:
    if name in _SCALAR_FUNCTIONS or not sizes:
        return _SCALAR
    target = sizes[0]
    if name in _ELEMENT_FUNCTIONS:
        return target.any_item
    if name == "_?_:_":
        return _largest(sizes[1:])._replace(total=max(size.characters for size in sizes[1:]))
    if name == "replace" and len(sizes) > 2:
        return _Size(target.length + (target.length + 1) * sizes[2].length)  # an empty text is everywhere
    if name == "join":
        return _Size(target.length * (target.any_item.length + sum(size.length for size in sizes[1:])))
    if name == "split":
        return _Size(target.length + 1, target, total=target.length)
    if name == "string":
        return _Size(max(target.length, _SCALAR_TEXT_MAX))
    if name == "strings.quote":
        return _Size(2 * sum(size.length for size in sizes) + 2)
    if name == "format":
        items = _largest(sizes[1:])
        return _Size(target.length + 2 * items.characters + _SCALAR_TEXT_MAX * items.item_count)
    return _Size(sum(size.length for size in sizes), _largest(sizes).item)


def _comprehension(loop: Message, variables: Mapping[str, _Size]) -> _Cost:
    ranged, first = (_expression(bytes_of(loop, at), variables) for at in (2, 4))
    count = min(ranged.size.item_count, _STEPS_MAX)
    item, collected = ranged.size.any_item, first.size
    if first.size != _SCALAR and count:
        collected = _Size(first.size.length + count, first.size.item)  # an iteration adds one item at most
    inside = {**variables, text_of(loop, 1): item, text_of(loop, 8): item, text_of(loop, 3): collected}
    condition, step = (_expression(bytes_of(loop, at), inside) for at in (5, 6))
    if step.size.item is not None:
        inside[text_of(loop, 3)] = collected._replace(item=step.size.item)
    result = _expression(bytes_of(loop, 7), inside)
    operations = count * (condition.operations + step.operations + _CALL)
    return _Cost(ranged.operations + first.operations + operations + result.operations, result.size)
