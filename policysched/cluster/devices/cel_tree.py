"""The syntax tree of a compiled CEL expression, read from its serialized form.

Source: `checked.proto` and `syntax.proto` of cel-spec v0.25, https://github.com/google/cel-spec.
"""

from collections.abc import Container, Mapping

from policysched.protobuf_wire import wire_fields

_PARSED, _CHECKED = 2, 4  # where the tree is, if it is not type-checked or is
Message = Mapping[int, list["int | bytes"]]


def tree_of(serialized: bytes) -> bytes:
    """Of an expression `serialized` as by `Expression.serialize`."""
    any_message = message(serialized)
    tree = _PARSED if text_of(any_message, 1).endswith("ParsedExpr") else _CHECKED
    return bytes_of(message(bytes_of(any_message, 2)), tree)


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
