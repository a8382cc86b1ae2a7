"""Macros and functions of Kubernetes' CEL that the runtime lacks, written with what it has.

Each is a template that replaces the call in the syntax tree. For example `[3, 1].sortBy(x, -x)` becomes

    cel.bind(ITEMS, [3, 1], ORDER(ITEMS.map(x, -x)).map(INDEX, ITEMS[INDEX]))

Names in capitals are variables of this module and functions in Python (`cel_environment`). In the tree they begin with `@`, which
no selector can write. Such a function takes one list, since a function in Python has no parameter for a value of any type, and one
that chooses items returns their positions, so that the items keep their types.

A rewritten expression is not type-checked: the API server has checked it. Source: `syntax.proto` of cel-spec v0.25; the macros in
`ext/comprehensions.go` and `ext/lists.go` of cel-go v0.29.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count

from policysched.protobuf_wire import wire_fields, wire_message

_ITEM = "cel.bind(A1, ITEMS[A0], {})"
_SPLIT = "cel.bind(ITEMS, TARGET, cel.bind(ITEM, A0, ITEMS == '' && ITEM == '' ? [] : ITEMS.split(ITEM{})))"
_UNWRAPPED = "{}.filter(ITEM, ITEM.hasValue()).map(ITEM, ITEM.value())"


def _each(macro: str, argument: str, *, filtered: bool = False) -> str:
    """A macro with two variables: A0 is a key of a map or a position in a list, A1 the value."""
    kept = f".filter(A0, {_ITEM.format('A2')})" if filtered else ""
    return f"cel.bind(ITEMS, TARGET, KEYS([ITEMS]){kept}.{macro}(A0, {argument}))"


def _entries(value: str, *, filtered: bool = False) -> str:
    return f"MERGED({_each('map', value, filtered=filtered)})"


TEMPLATES = {
    ("sortBy", 2): "cel.bind(ITEMS, TARGET, ORDER(ITEMS.map(A0, A1)).map(INDEX, ITEMS[INDEX]))",
    ("all", 3): _each("all", _ITEM.format("A2")),
    ("exists", 3): _each("exists", _ITEM.format("A2")),
    ("existsOne", 3): _each("exists_one", _ITEM.format("A2")),
    ("exists_one", 3): _each("exists_one", _ITEM.format("A2")),
    ("transformList", 3): _each("map", _ITEM.format("A2")),
    ("transformList", 4): _each("map", _ITEM.format("A3"), filtered=True),
    ("transformMap", 3): _entries("{A0: " + _ITEM.format("A2") + "}"),
    ("transformMap", 4): _entries("{A0: " + _ITEM.format("A3") + "}", filtered=True),
    ("transformMapEntry", 3): _entries(_ITEM.format("A2")),
    ("transformMapEntry", 4): _entries(_ITEM.format("A3"), filtered=True),
    ("indexOf", 1): "INDEX_OF([TARGET, A0])",
    ("lastIndexOf", 1): "LAST_INDEX_OF([TARGET, A0])",
    ("split", 1): _SPLIT.format(""),
    ("split", 2): _SPLIT.format(", A1"),
    ("format", 1): "cel.bind(ITEMS, A0, cel.bind(ITEM, TARGET, CAN_FORMAT(ITEMS) ? ITEM.format(ITEMS) : ''))",
    ("validate", 1): "optional.ofNonZeroValue(FORMAT_ERRORS([TARGET, A0]))",
    ("format.named", 1): "optional.ofNonZeroValue(FORMAT_NAMED([A0]))",
    ("optional.unwrap", 1): _UNWRAPPED.format("A0"),
    ("unwrapOpt", 0): _UNWRAPPED.format("TARGET"),
}
"""The name and the number of arguments to the template. TARGET is what the function is called on, A0 the first argument."""

CALLS_MAX, SYMBOLS_MAX = 8, 250
"""Of templates, in one selector, and of what a selector with one has. A call takes up to 3 ms to expand and compile, and a symbol
0.06 ms, all in one piece."""

_BINDING_MACROS = {"bind", "optMap", "optFlatMap"}
_NAMES = re.compile(
    rf"\b(?:{'|'.join(sorted(_BINDING_MACROS | {name.rpartition('.')[2] for name, _ in TEMPLATES}))})\b"
)
_NAMES_IN_TREE = re.compile(_NAMES.pattern.replace(r"\b", "").encode())

_ID, _IDENTIFIER, _SELECT, _CALL, _LIST, _STRUCT, _COMPREHENSION = 2, 4, 5, 6, 7, 8, 9
_TARGET, _FUNCTION, _ARGUMENT = 1, 2, 3
_OPERANDS = {_SELECT: {1}, _CALL: {_TARGET, _ARGUMENT}, _LIST: {1}, _COMPREHENSION: {2, 4, 5, 6, 7}}
"""The fields with expressions of each kind of expression."""
_ENTRY, _ENTRY_OPERANDS = 1 + 1, {3, 4}  # of a map
_VARIABLES = {1, 3, 8}  # of a comprehension
_LOOP_VARIABLE, _LOOP_CONDITION = 1, 5
_NO_LOOP, _ENDS_EARLY = b"#unused", b"@not_strictly_false"
"""The loop variable of a comprehension that only gives a value a name, and what the condition of `all` and `exists` calls."""
_TRUE = wire_message([(_ID, 0), (3, wire_message([(2, 1)]))])


def may_expand(expression: str) -> bool:
    """Whether it has the name of a template or of a macro that names a value. Then compiling takes two to three times as long."""
    return _NAMES.search(expression) is not None


class MacroExpander:
    """`parse` returns the serialized tree of an expression that is not type-checked."""

    def __init__(self, parse: Callable[[str], bytes]) -> None:
        self._parse = parse
        self._templates: dict[tuple[str, int], bytes] = {}
        self._calls_left = 0

    def expand(self, expression: str, symbols: int) -> bytes | None:
        """The serialized tree with the templates in place of the calls. None: the runtime can evaluate the expression as it is.
        Raises RuntimeError.

        A variable of `cel.bind` or `optMap` has a wrong value in the runtime after an `all` or `exists` that ended early: it is
        evaluated when it is read first, and its place still has that of the loop. In the tree such a macro is a loop over an empty
        list with the condition false. With another condition it is an ordinary loop, whose variable is evaluated before.
        """
        if not may_expand(expression):
            return None
        self._calls_left = CALLS_MAX if symbols <= SYMBOLS_MAX else 0
        any_message = dict(wire_fields(self._parse(expression)))
        parsed = dict(wire_fields(_bytes(any_message[2])))
        tree = _bytes(parsed[2])
        expanded = self._expand(tree)
        if expanded == tree and not (_NO_LOOP in tree and _ENDS_EARLY in tree):
            return None
        numbers = count(1)
        parsed[2] = _numbered(expanded, numbers)
        return wire_message({**any_message, 2: wire_message(parsed.items())}.items())

    def _expand(self, tree: bytes) -> bytes:
        if _NAMES_IN_TREE.search(tree) is None:
            return tree
        tree = _with_operands(tree, self._expand)
        call = dict(wire_fields(tree)).get(_CALL)
        if not isinstance(call, bytes):
            return tree
        arguments = [_bytes(value) for number, value in wire_fields(call) if number == _ARGUMENT]
        fields = dict(wire_fields(call))
        target, function = fields.get(_TARGET), _bytes(fields[_FUNCTION]).decode()
        parts = {f"A{index}": argument for index, argument in enumerate(arguments)}
        if isinstance(target, bytes):
            qualified = (f"{_identifier(target)}.{function}", len(arguments))
            if qualified in TEMPLATES:
                return _filled(self._template(qualified), parts)
            if (function, len(arguments)) in TEMPLATES:
                return _filled(self._template((function, len(arguments))), {**parts, "TARGET": target})
        return tree

    def _template(self, signature: tuple[str, int]) -> bytes:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise RuntimeError(
                f"more than {CALLS_MAX} calls of functions and macros that policysched expands, "
                f"or one in an expression with more than {SYMBOLS_MAX} names, values, operators and brackets"
            )
        if signature not in self._templates:
            parsed = _bytes(dict(wire_fields(self._parse(TEMPLATES[signature])))[2])
            self._templates[signature] = _bytes(dict(wire_fields(parsed))[2])
        return self._templates[signature]


def _filled(template: bytes, parts: Mapping[str, bytes]) -> bytes:
    name = _identifier(template)
    if name in parts:
        return parts[name]

    def renamed(name: bytes) -> bytes:
        text = name.decode()
        if text in parts:  # a variable
            return (_identifier(parts[text]) or text).encode()
        return f"@{text.lower()}".encode() if text.isupper() else name

    def fields() -> Iterator[tuple[int, int | bytes]]:
        for number, value in wire_fields(_with_operands(template, lambda operand: _filled(operand, parts))):
            match number:
                case 4 if isinstance(value, bytes):
                    yield number, _changed(value, {1}, renamed)
                case 6 if isinstance(value, bytes):
                    yield number, _changed(value, {_FUNCTION}, renamed)
                case 9 if isinstance(value, bytes):
                    yield number, _changed(value, _VARIABLES, renamed)
                case _:
                    yield number, value

    return wire_message(fields())


def _numbered(tree: bytes, numbers: Iterator[int]) -> bytes:
    """With an ID of its own for each expression: a template's arguments have those of another tree."""
    eager = _changed(tree, {_COMPREHENSION}, _evaluated_before) if _NO_LOOP in tree else tree
    numbered = _with_operands(eager, lambda operand: _numbered(operand, numbers))
    return wire_message(
        (number, next(numbers) if number == _ID else value) for number, value in wire_fields(numbered)
    )


def _evaluated_before(comprehension: bytes) -> bytes:
    """The comprehension; if it only gives a value a name, with a condition that makes it an ordinary loop."""
    is_name = (_LOOP_VARIABLE, _NO_LOOP) in wire_fields(comprehension)
    return _changed(comprehension, {_LOOP_CONDITION}, lambda _: _TRUE) if is_name else comprehension


def _identifier(tree: bytes) -> str:
    """The name, if the expression is one."""
    identifier = dict(wire_fields(tree)).get(_IDENTIFIER)
    return _bytes(dict(wire_fields(identifier)).get(1, b"")).decode() if isinstance(identifier, bytes) else ""


def _with_operands(tree: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The expression with its direct sub-expressions changed."""

    def changed(kind: int, value: int | bytes) -> int | bytes:
        if kind == _STRUCT:
            return _changed(_bytes(value), {_ENTRY}, lambda entry: _changed(entry, _ENTRY_OPERANDS, change))
        return _changed(_bytes(value), _OPERANDS[kind], change) if kind in _OPERANDS else value

    return wire_message((number, changed(number, value)) for number, value in wire_fields(tree))


def _changed(message: bytes, numbers: set[int], change: Callable[[bytes], bytes]) -> bytes:
    return wire_message(
        (number, change(value) if number in numbers and isinstance(value, bytes) else value)
        for number, value in wire_fields(message)
    )


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes), value
    return value
