"""Bodies in protobuf that the sandbox's API server reads: every malformed one is status 400 or 415."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.protobuf import read_protobuf
from tests.cluster.test_protobuf_wire import VALUES, encoded

META, CONFIG_MAP_DATA = 1, 2


def body(*fields: tuple[int, int | bytes]) -> bytes:
    """A ConfigMap with these fields."""
    kind = encoded([(1, b"v1"), (2, b"ConfigMap")])
    return b"k8s\x00" + encoded([(1, kind), (2, encoded(fields))])


def test_a_config_map_is_read() -> None:
    entry = encoded([(1, b"key"), (2, b"value")])
    meta = encoded([(1, b"name"), (3, b"default")])

    assert read_protobuf(body((META, meta), (CONFIG_MAP_DATA, entry))) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "name", "namespace": "default"},
        "data": {"key": "value"},
    }


@pytest.mark.parametrize("number", [META, CONFIG_MAP_DATA])
def test_an_integer_in_place_of_bytes_is_an_error(number: int) -> None:
    """It names no length: `bytes` of it would be as many zeros."""
    with pytest.raises(StatusError) as refused:
        read_protobuf(body((number, 2**40)))
    assert refused.value.code == 400


@given(st.lists(st.tuples(st.integers(0, 8), VALUES), max_size=4), st.binary(max_size=32))
def test_any_fields_are_read_or_refused(fields: list[tuple[int, int | bytes]], rest: bytes) -> None:
    for given_body in (body(*fields), body(*fields) + rest, b"k8s\x00" + rest, encoded(fields)):
        try:
            read_protobuf(given_body)
        except StatusError as error:
            assert error.code in (400, 415)
