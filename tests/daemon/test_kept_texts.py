"""What tenants and sources of metrics write is not kept for long: large texts, each different, do not fill the memory."""

import tracemalloc
from collections.abc import Callable

import pytest

from policysched.cluster.pod_index import compact_ended_pod
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.records import parse_typed_value
from policysched.lang.types.units import parse_value
from policysched.metric_sources.series_join import instance_host
from policysched.text import short_text_cache
from tests.builders import pod

CHARACTERS, COUNT = 100_000, 200
"""20 MB in all."""


def number(text: str) -> object:
    return parse_value(text, Type(TypeKind.BYTES), None)


def field_of_json(text: str) -> object:
    return parse_typed_value(f'{{"a": "{text}"}}', Type(TypeKind.STRING), None, "a")


def image_of_an_ended_pod(text: str) -> object:
    compact_ended_pod(pod("ended", spec={"containers": [{"name": "c", "image": text}]}))
    return None


@pytest.mark.parametrize("read", [number, field_of_json, instance_host, image_of_an_ended_pod])
def test_long_texts_are_not_kept(read: Callable[[str], object]) -> None:
    read("warm")
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    for index in range(COUNT):
        read(f"{index}" + "x" * CHARACTERS)

    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < COUNT * CHARACTERS / 10


def test_short_texts_are_read_once() -> None:
    calls: list[str] = []

    @short_text_cache.cache_short_texts(maxsize=10)
    def read(text: str) -> int:
        calls.append(text)
        return len(text)

    long = "x" * 1_000

    assert [read("a"), read("a"), read(long), read(long)] == [1, 1, 1_000, 1_000]
    assert calls == ["a", long, long]
