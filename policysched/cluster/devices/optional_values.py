"""Whether a CEL selector may pass a list with an optional value to a function in Python: converting it ends the process.

For each expression of the tree: how many optional values, one in another, its value has at most, and whether it is one itself.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from policysched.cluster.devices.cel_environment import FUNCTIONS, Signature
from policysched.cluster.devices.cel_tree import (
    Message,
    all_bytes,
    bytes_of,
    message,
    namespace_of,
    text_of,
    tree_of,
)

_SIGNATURES = [Signature.of(text) for text in FUNCTIONS]
_PYTHON_FUNCTIONS = frozenset(signature.name for signature in _SIGNATURES)
_ON_LISTS = frozenset(
    signature.name for signature in _SIGNATURES if not {"items", "map"}.isdisjoint(signature.kinds)
)
_WRAPPING = frozenset(("optional.of", "optional.ofNonZeroValue", "optional.none", "first", "last"))
_QUALIFIED = _WRAPPING | _PYTHON_FUNCTIONS
"""A call of one in a tree that is not type-checked is a method of its namespace, even if a variable has that name."""
_SELECTING = frozenset(("_?._", "_[?_]"))
_UNWRAPPING = frozenset(("value", "orValue"))
_PLAIN = frozenset(
    "hasValue size @in _&&_ _||_ !_ _==_ _!=_ _<_ _<=_ _>_ _>=_ type string".split()  # noqa: SIM905
)
"""Their results are no optional values, and have none."""


class _Optionals(NamedTuple):
    """`is_one`: for certain."""

    depth: int = 0
    is_one: bool = False


_Variables = Mapping[str, _Optionals]
_NONE = _Optionals()


class _ReachesPython(Exception):
    pass


def may_pass_optionals(serialized: bytes) -> bool:
    """Whether it may pass one to Python, `serialized` as by `Expression.serialize`."""
    try:
        _expression(tree_of(serialized), {})
    except _ReachesPython:
        return True
    return False


def _expression(data: bytes, variables: _Variables) -> _Optionals:
    node = message(data)
    if 4 in node:
        return variables.get(text_of(message(bytes_of(node, 4)), 1), _NONE)
    if 5 in node:  # a field of an optional value is optional
        return _expression(bytes_of(message(bytes_of(node, 5)), 1), variables)
    if 6 in node:
        return _call(message(bytes_of(node, 6)), variables)
    if 7 in node:
        created = message(bytes_of(node, 7))
        return _largest(_expression(item, variables) for item in all_bytes(created, 1))
    if 8 in node:
        entries = (message(entry) for entry in all_bytes(message(bytes_of(node, 8)), 2))
        parts = (part for entry in entries for at in (3, 4) for part in all_bytes(entry, at))
        return _largest(_expression(part, variables) for part in parts)
    if 9 in node:
        return _comprehension(message(bytes_of(node, 9)), variables)
    return _NONE


def _call(call: Message, variables: _Variables) -> _Optionals:
    name, targets = text_of(call, 2), all_bytes(call, 1)
    if targets and (qualified := f"{namespace_of(targets[0], ())}.{name}") in _QUALIFIED:
        name, targets = qualified, []
    arguments = [_expression(argument, variables) for argument in targets + all_bytes(call, 3)]
    depth = max((argument.depth for argument in arguments), default=0)
    if name in _ON_LISTS and depth:
        raise _ReachesPython
    if name in _PLAIN or name in _PYTHON_FUNCTIONS:
        return _NONE
    if name in _WRAPPING:
        return _Optionals(depth + 1, is_one=True)
    if name in _SELECTING:
        return _Optionals(depth if arguments[0].is_one else depth + 1, is_one=True)
    if name in _UNWRAPPING:
        return _Optionals(max([arguments[0].depth - 1, *(other.depth for other in arguments[1:])]))
    is_one = name in ("_[_]", "or") and arguments[0].is_one
    return _Optionals(depth, is_one or (name == "_?_:_" and all(each.is_one for each in arguments[1:])))


def _largest(parts: Iterable[_Optionals]) -> _Optionals:
    """Of a list or a map that has them."""
    return _Optionals(max((part.depth for part in parts), default=0))


def _comprehension(loop: Message, variables: _Variables) -> _Optionals:
    """Macros only add to what they collect, so that one more step changes nothing."""
    ranged, first = (_expression(bytes_of(loop, at), variables) for at in (2, 4))
    item, collected = _Optionals(ranged.depth), text_of(loop, 3)
    inside = {**variables, text_of(loop, 1): item, text_of(loop, 8): item, collected: first}
    step = _expression(bytes_of(loop, 6), inside)
    inside[collected] = _Optionals(max(first.depth, step.depth), first.is_one and step.is_one)
    _expression(bytes_of(loop, 5), inside)
    return _expression(bytes_of(loop, 7), inside)
