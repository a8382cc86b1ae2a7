"""The syntax tree of a compiled CEL expression, read from its serialized form.

Source: `checked.proto` and `syntax.proto` of cel-spec v0.25, https://github.com/google/cel-spec.
"""

from collections.abc import Container, Iterator, Mapping

from policysched.protobuf_wire import wire_fields

_PARSED, _CHECKED = 2, 4  # where the tree is, if it is not type-checked or is
Message = Mapping[int, list["int | bytes"]]
_CALL, _MAP = 6, 8
_OPERANDS = {5: (1,), _CALL: (1, 3), 7: (1,), 9: (2, 4, 5, 6, 7)}
"""Fields with expressions, of each kind of expression but maps, whose entries have them."""
_ENTRIES, _KEY_AND_VALUE = 2, (3, 4)


def tree_of(serialized: bytes) -> bytes:
    """Of an expression `serialized` as by `Expression.serialize`."""
    any_message = message(serialized)
    tree = _PARSED if text_of(any_message, 1).endswith("ParsedExpr") else _CHECKED
    return bytes_of(message(bytes_of(any_message, 2)), tree)


def calls_in(tree: bytes) -> Iterator[Message]:
    """The calls of functions in an expression, at any depth, in no order."""
    pending = [tree]
    while pending:
        node = message(pending.pop())
        if _CALL in node:
            yield message(bytes_of(node, _CALL))
        pending += _operands(node)


def size_with_copies(tree: bytes, copying: Mapping[str, int]) -> int:
    """How many expressions it has once each call of these methods is replaced by so many expressions and a second copy of what it
    is called on. Nothing is copied to count them: a chain of such calls doubles with each."""
    size, pending = 0, [(tree, 1)]
    while pending:
        data, copies = pending.pop()
        node = message(data)
        call = message(bytes_of(node, _CALL))
        made = copying.get(text_of(call, 2))
        copied = () if made is None else all_bytes(call, 1)
        size += copies * (made or 1)
        pending += [(operand, 2 * copies if operand in copied else copies) for operand in _operands(node)]
    return size


def _operands(node: Message) -> Iterator[bytes]:
    for kind, fields in _OPERANDS.items():
        parts = message(bytes_of(node, kind))
        for field in fields:
            yield from all_bytes(parts, field)
    for entry in all_bytes(message(bytes_of(node, _MAP)), _ENTRIES):
        for field in _KEY_AND_VALUE:
            yield from all_bytes(message(entry), field)


def namespace_of(target: bytes, variables: Container[str]) -> str:
    """The `lists` of `lists.range(3)`, in a tree that is not type-checked."""
    name = text_of(message(bytes_of(message(target), 4)), 1)
    return "" if name in variables or name == "device" else name


def message(data: bytes) -> Message:
    fields: dict[int, list[int | bytes]] = {}
    for number, value in wire_fields(data):
        fields.setdefault(number, []).append(value)
    return fields


def all_bytes(message: Message, field: int) -> list[bytes]:
    return [value for value in message.get(field, ()) if isinstance(value, bytes)]


def bytes_of(message: Message, field: int) -> bytes:
    values = all_bytes(message, field)
    return values[-1] if values else b""


def text_of(message: Message, field: int) -> str:
    return bytes_of(message, field).decode()
