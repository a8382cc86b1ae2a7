"""Conditions of a pod that could take long: windows of more than a thousand spans, and hashes of long annotations."""

from datetime import UTC, datetime
from hashlib import blake2b
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.evaluate.scalar import next_change, operations
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.check.windows import _merge_spans
from policysched.lang.ir import text_functions
from policysched.lang.ir.text_functions import bucket_of
from policysched.model.namespaces import Namespace
from policysched.model.pods import QueuedPodInfo
from tests.builders import pod

WEEK = 7 * 24 * 60
MINUTE_NS = 60 * 10**9
MONDAY_NS = round(datetime(2026, 6, 1, tzinfo=UTC).timestamp()) * 10**9
SPANS = st.lists(
    st.tuples(st.integers(0, WEEK - 1), st.integers(1, WEEK)).map(lambda each: (each[0], sum(each))),
    min_size=1,
    max_size=5,
)


def check_window(spans: list[tuple[int, int]], minute: int) -> None:
    """By looking at every span, and at every minute that follows."""
    merged = _merge_spans(spans)
    context = EvalContext(
        pod("p"), Namespace("default", {}, {}), QueuedPodInfo(0, 0), MONDAY_NS + minute * MINUTE_NS
    )
    inside = [any(start <= each < end for start, end in merged) for each in range(WEEK)]

    assert operations.window(merged, "UTC")(context) == inside[minute]
    edges = tuple(edge for span in merged for edge in span)
    changes_ns = next_change._next_edge_ns(edges, ZoneInfo("UTC"), context.now_ns)
    minutes = (changes_ns - context.now_ns) // MINUTE_NS
    assert 0 < minutes <= 30
    assert {inside[(minute + each) % WEEK] for each in range(minutes)} == {inside[minute]}
    assert minutes == 30 - minute % 30 or minute + minutes in (*edges, *(edge + WEEK for edge in edges))


@given(SPANS, st.integers(0, WEEK - 1))
def test_windows_agree_with_a_look_at_every_span(spans: list[tuple[int, int]], minute: int) -> None:
    check_window(spans, minute)


def test_a_planted_window_without_its_first_minute_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        operations, "bisect_right", lambda edges, minute: sum(each < minute for each in edges)
    )
    with pytest.raises(AssertionError):
        check_window([(5, 10)], 5)


def test_the_hash_of_a_long_text_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[int]()

    def counting(data: bytes, *, digest_size: int) -> object:
        hashed.append(len(data))
        return blake2b(data, digest_size=digest_size)

    monkeypatch.setattr(text_functions, "blake2b", counting)
    text = "abcde" * 1_000

    numbers = [bucket_of(text, count) for count in range(2, 200)]

    assert hashed == [len(text)]
    expected = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    assert numbers == [expected % count for count in range(2, 200)]
    assert bucket_of(text, 1_000, "salt") != bucket_of(text, 1_000)
