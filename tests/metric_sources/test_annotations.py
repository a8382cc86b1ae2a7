"""Samples from node annotations: a value with its time in crane's format, a plain value, and
malformed texts.
"""

import asyncio

import pytest

from policysched.metric_sources import annotations as annotations_module
from policysched.metric_sources.annotations import AnnotationQueryClient, AnnotationsSettings
from policysched.metric_sources.clock_skew import ClockSkewTracker, QuerySkew
from policysched.model.identifiers import NodeName
from tests.builders import node
from tests.metric_sources.builders import metric

NOW_NS = 1_795_273_200 * 10**9  # 2026-11-21T15:00:00Z


def asker(time_zone: str | None = None) -> AnnotationQueryClient:
    return AnnotationQueryClient(AnnotationsSettings(time_zone), now_ns=lambda: NOW_NS)


def age_s(text: str, time_zone: str | None = None) -> float | None:
    sample = asker(time_zone).parse_annotation(text)
    return None if sample is None or sample[1] is None else (NOW_NS - sample[1]) / 1e9


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("0.35,2026-11-21T14:58:00Z", 120),
        ("0.35, 2026-11-21T15:58:00+01:00", 120),
        ("0.35,2026-11-21T14:58:00.5Z", 119.5),
        ("0.35,2026-11-21T14:58:00", 120),
        ("0.35,1795273080", 120),
        ("0.35,1795273080.5", 119.5),
    ],
)
def test_the_time_after_the_comma_is_when_the_value_was_measured(text: str, age: float) -> None:
    assert age_s(text) == age


def test_times_are_read_in_the_time_zone_of_the_settings_whatever_zone_they_name() -> None:
    assert age_s("0.35,2026-11-21T22:58:00Z", "Asia/Shanghai") == 120


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "0.35,",
        ",2026-11-21T14:58:00Z",
        "0.35,soon",
        "0.35,2026-13-40T00:00:00Z",
        "1,nan",
        "1,-5",
        "1,1e99",
    ],
)
def test_an_annotation_that_is_not_a_value_or_a_value_with_a_time_is_ignored(text: str) -> None:
    assert asker().parse_annotation(text) is None


def test_values_are_read_for_each_node_and_a_value_without_time_has_the_time_of_the_poll() -> None:
    nodes = {
        NodeName(name): node(name, annotations={"load": text} if text is not None else {})
        for name, text in {
            "dated": "0.5,2026-11-21T14:59:00Z",
            "ahead": "0.5,2026-11-21T15:59:00Z",
            "plain": "0.25",
            "unit": "85%",
            "none": None,
            "broken": "0.5,soon",
        }.items()
    }

    measured = asyncio.run(asker().fetch("load", lambda: nodes))

    assert measured.raw.values == {"dated": 0.5, "ahead": 0.5, "plain": 0.25, "unit": "85%"}
    assert measured.raw.sampled_ns == {"dated": NOW_NS - 60 * 10**9, "ahead": NOW_NS}
    assert measured.unreadable == 1


def ages_s(*texts: str, minutes_between: float = 1) -> list[float]:
    """The samples of one node whose annotation has these texts in turn."""
    clock = [NOW_NS]
    looking = AnnotationQueryClient(AnnotationsSettings(None), now_ns=lambda: clock[0])
    samples = []
    for text in texts:
        nodes = {NodeName("a"): node("a", annotations={"load": text})}
        raw = asyncio.run(looking.fetch("load", lambda shown=nodes: shown)).raw
        samples.append((clock[0] - raw.sampled_ns["a"]) / 1e9)
        clock[0] += round(minutes_between * 60 * 10**9)
    return samples


def test_a_sample_from_the_future_ages_from_its_first_observation() -> None:
    ahead, renewed = "0.5,2026-11-21T15:30:00Z", "0.5,2026-11-21T15:32:00Z"

    assert ages_s(ahead, ahead, ahead, renewed, renewed) == [0, 60, 120, 0, 60]


def test_another_value_with_the_same_time_is_another_sample() -> None:
    assert ages_s("0.5,2026-11-21T15:30:00Z", "0.6,2026-11-21T15:30:00Z") == [0, 0]


def test_a_future_time_that_has_passed_makes_no_sample_younger() -> None:
    soon = "0.5,2026-11-21T15:01:30Z"

    assert ages_s(soon, soon, soon) == [0, 60, 120]


def test_planted_clock_skew_without_memory_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ClockSkewTracker, "begin_query", lambda _self, _question, _nodes, now_ns: QuerySkew({}, now_ns)
    )

    with pytest.raises(AssertionError):
        test_a_sample_from_the_future_ages_from_its_first_observation()


def test_an_unsupported_join_or_sampled_at_is_rejected() -> None:
    assert asker().unsupported_reason(metric(join="node")) is None
    assert "write `join = node`" in (asker().unsupported_reason(metric(join="instance")) or "")
    assert "remove `sampled_at`" in (
        asker().unsupported_reason(metric(join="node", more='sampled_at = "x"')) or ""
    )


def test_planted_annotation_time_that_is_ignored_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations_module.AnnotationQueryClient, "_time_ns", lambda *_: NOW_NS)

    with pytest.raises(AssertionError):
        test_the_time_after_the_comma_is_when_the_value_was_measured("0.35,1795273080", 120)
