"""What Prometheus reads."""

import pytest

from policysched.serve.prometheus_text import (
    MetricRegistry,
    counter_family,
    exponential_buckets,
    gauge_family,
    render_family,
)


def test_label_values_and_help_are_escaped() -> None:
    family = gauge_family("g", "one\ntwo \\ three", {(("text", 'a "quoted"\nback\\slash'),): 1.5})

    assert render_family(family) == (
        '# HELP g one\\ntwo \\\\ three\n# TYPE g gauge\ng{text="a \\"quoted\\"\\nback\\\\slash"} 1.5\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.1, "0.1"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
        (1e300, "1e+300"),
    ],
)
def test_numbers_are_formatted_for_go(value: float, text: str) -> None:
    assert render_family(gauge_family("g", "", {(): value})).splitlines()[-1] == f"g {text}"


def test_a_histogram_counts_a_value_in_every_bucket_at_or_above_it() -> None:
    registry = MetricRegistry()
    histogram = registry.histogram("h", "", (0.1, 1.0), ("result",))

    for value in (0.05, 0.1, 0.5, 7):
        histogram.observe(value, "ok")

    assert registry.render().splitlines()[2:] == [
        'h_bucket{result="ok",le="0.1"} 2',
        'h_bucket{result="ok",le="1"} 3',
        'h_bucket{result="ok",le="+Inf"} 4',
        'h_sum{result="ok"} 7.65',
        'h_count{result="ok"} 4',
    ]


def test_series_of_what_is_gone_are_dropped() -> None:
    histogram = MetricRegistry().histogram("h", "", (1,), ("result", "profile"))
    for profile in ("a", "b", "c"):
        histogram.observe(0.5, "error", profile)

    histogram.keep_only("profile", {"a", "c", "d"})

    assert [
        dict(labels)["profile"] for suffix, labels, _ in histogram.family().samples if suffix == "_sum"
    ] == ["a", "c"]


def test_a_counter_without_labels_starts_at_zero_and_never_decreases() -> None:
    registry = MetricRegistry()
    plain, labelled = registry.counter("a_total", ""), registry.counter("b_total", "", ("kind",))

    labelled.add(2, "x")

    assert "a_total 0" in registry.render()
    assert 'b_total{kind="x"} 2' in registry.render()
    with pytest.raises(AssertionError):
        plain.add(-1)
    with pytest.raises(AssertionError):
        labelled.add(1)


def test_collected_metrics_are_rendered_and_names_are_unique() -> None:
    registry = MetricRegistry()
    registry.collectors.append(lambda: [counter_family("c_total", "", {(): 3})])
    assert "c_total 3" in registry.render()

    registry.counter("c_total", "")
    with pytest.raises(AssertionError):
        registry.render()


def test_bounds_grow_by_the_factor() -> None:
    assert exponential_buckets(1, 2, 4) == (1, 2, 4, 8)
