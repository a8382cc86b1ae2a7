"""Bodies in protobuf, as kubectl's generators send them."""

import pytest

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.protobuf import read_protobuf


def field(number: int, content: bytes | str | int) -> bytes:
    if isinstance(content, int):
        return bytes([number << 3, content])
    encoded = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2, len(encoded)]) + encoded


def body(kind: str, message: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, "v1") + field(2, kind)) + field(2, message)


METADATA = field(1, field(1, "settings") + field(3, "default"))


def test_a_message_becomes_the_object() -> None:
    entries = field(2, field(1, "key") + field(2, "value")) + field(4, 1)

    assert read_protobuf(body("ConfigMap", METADATA + entries)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": "default"},
        "data": {"key": "value"},
        "immutable": True,
    }


@pytest.mark.parametrize(
    "message",
    [
        METADATA[:-1],
        bytes([2 << 3 | 2, 100]),  # longer than the body
        bytes([1 << 3 | 3]),  # a group
        bytes([1 << 3 | 1, *range(8)]),  # 8 bytes where a message is
        field(1, field(7, b"ten")),  # bytes where a number is
        bytes([0x80]),
    ],
)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        read_protobuf(body("ConfigMap", message))

    assert refused.value.code == 400
