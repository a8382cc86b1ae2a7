"""Samples from a file: units, reloading, and errors."""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from policysched.lang.check import check_text
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.file import BadSamplesFile, FileSampleSource, read_samples_file
from policysched.metric_sources.poll_status import SourcePollStatus
from policysched.metric_sources.source import (
    RawSamples,
    SampleConsumer,
    convert_samples,
    describe_dropped_samples,
)
from policysched.scheduler.events import SamplesArrived
from tests.kube.world import on_virtual_time, running

POLICY = """policy test version 1
metric net_rx: bandwidth {
  query = "x"
  unit  = "B/s"
  join  = node
  every = 15s
  stale = 90s
}
metric cpu_util: ratio {
  query = "x"
  unit  = "1"
  join  = node
  every = 5s
  stale = 90s
}
include kube_default
filter link require net_rx < 1Gbps missing pass
filter cool require cpu_util < 85% missing pass
"""


def metrics() -> Mapping[str, Metric]:
    program = check_text(POLICY).program
    assert program is not None
    return program.metrics


def held(metric: str, **values: float | str) -> dict[str, float]:
    converted = convert_samples(metrics()[metric], RawSamples(values, polled_ns=7))
    assert converted.polled_ns == 7
    return {str(node): sample.value for node, sample in converted.values.items()}


def test_a_number_is_in_the_unit_of_the_metric_and_a_string_names_its_own() -> None:
    assert held("net_rx", a=1000, b="1000", c="8kbps", d="1KBps") == {
        "a": 8000,
        "b": 8000,
        "c": 8000,
        "d": 8000,
    }
    assert held("cpu_util", a=0.85, b="85%") == {"a": 0.85, "b": 0.85}


def test_a_value_that_does_not_fit_the_type_is_missing() -> None:
    assert held("cpu_util", a=float("nan"), b=float("inf"), c=-1, d="5m", e="much", f=0.5, g=10**400) == {
        "f": 0.5
    }


def test_dropped_samples_are_described_in_one_line() -> None:
    metric = metrics()["cpu_util"]
    raw = RawSamples({"a": 0.5, "b": "80&", "c": -1, "d": float("nan"), "e": "much", "f": "5m"}, polled_ns=7)

    description = describe_dropped_samples(metric, raw, convert_samples(metric, raw))

    assert description == "metric cpu_util: not a ratio, so missing: `80&` (b), -1 (c), nan (d) and 2 more"
    assert (
        describe_dropped_samples(
            metric, RawSamples({"a": 0.5}, 7), convert_samples(metric, RawSamples({"a": 0.5}, 7))
        )
        is None
    )


def test_a_metric_is_delivered_when_due_and_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "samples.yaml"
    path.write_text("cpu_util: {a: 0.1}\n")
    delivered: list[SamplesArrived] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        source = FileSampleSource(path, SourcePollStatus("file"), now_ns=lambda: int(loop.time() * 1e9))
        async with running(source.run(SampleConsumer(lambda: {"test": metrics()}, dict, delivered.append))):
            await asyncio.sleep(12)
            assert [arrival.samples.polled_ns // 10**9 for arrival in delivered] == [0, 5, 10]

            path.write_text("cpu_util: {a: 0.9}\nnet_rx: {a: 5}\n")
            await asyncio.sleep(1.5)

        assert {arrival.metric for arrival in delivered[3:]} == {"cpu_util", "net_rx"}
        assert delivered[-1].policy == "test"

    on_virtual_time(scenario)


def test_an_invalid_file_is_logged_once_and_delivers_nothing_until_it_is_fixed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "samples.yaml"
    path.write_text("cpu_util: {a: 0.1}\n")
    delivered: list[SamplesArrived] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        poll_status = SourcePollStatus("--metrics")
        source = FileSampleSource(path, poll_status, now_ns=lambda: int(loop.time() * 1e9))
        async with running(source.run(SampleConsumer(lambda: {"test": metrics()}, dict, delivered.append))):
            await asyncio.sleep(0.5)
            assert poll_status.polls_by_outcome == {"ok": 1}
            path.write_text("cpu_util: [broken\n")
            await asyncio.sleep(30)
            assert len(delivered) == 1
            assert poll_status.polls_by_outcome == {"ok": 1, "malformed": 30}
            failure = poll_status.failures["test", "cpu_util"]
            assert (failure.kind, failure.since_ns) == ("malformed", 10**9)
            assert failure.message.startswith(f"{path}: line 2: not YAML: ")

            path.unlink()
            await asyncio.sleep(30)
            path.write_text("cpu_util: {a: 0.2}\n")
            os.utime(path, (1, 1))
            await asyncio.sleep(2)
        assert len(delivered) == 2
        assert poll_status.failures == {}

    with caplog.at_level(logging.INFO, "policysched.metric_sources.file"):
        on_virtual_time(scenario)

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("[]", "(top level): is a list, expected a map"),
        ("ok: {}\nload:\n  node-1: null\n", "line 3: load.node-1: is null, expected a number or a text"),
        ("load: {node-1: [5]}", "line 1: load.node-1: is a list, expected a number or a text"),
        (
            "ok: {}\n'two words': {}",
            "line 2: two words: is `two words`, expected a metric's name (letters, digits",
        ),
        (f"load: {{node-1: {'9' * 5000}}}", "not YAML: Exceeds the limit"),
        ("load: {node-1: !!bool x}", "not YAML: a value does not fit its tag"),
        ('load: {node-1: !!int ""}', "not YAML: a value does not fit its tag"),
        ("load: {node-1: !!timestamp x}", "not YAML: a value does not fit its tag"),
        ("load: {node-1: !!timestamp {=: 1}}", "not YAML: a value does not fit its tag"),
        ("load: {node-1: !!timestamp 2026-01-31}", "expected a number or a text"),
        ("[" * 3000, "nests more than 1000 levels deep"),
        ("- " * 200_000, "nests more than 1000 levels deep"),
        ("- " * 150, "line 1: nests more than 100 levels deep"),
    ],
)
def test_an_invalid_file_is_reported_with_its_position(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.yaml"
    path.write_text(text)

    with pytest.raises(BadSamplesFile) as error:
        read_samples_file(path)

    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_every_error_of_a_file_is_reported_with_its_line_in_order(tmp_path: Path) -> None:
    path = tmp_path / "samples.yaml"
    path.write_text("net_rx:\n  b: null\n  ok: 5\n  a: [1]\n9lives: {}\ncpu_util: 7\n")

    with pytest.raises(BadSamplesFile) as error:
        read_samples_file(path)

    assert error.value.problems == (
        f"{path}: line 2: net_rx.b: is null, expected a number or a text",
        f"{path}: line 4: net_rx.a: is a list, expected a number or a text",
        f"{path}: line 5: 9lives: is `9lives`, expected a metric's name (letters, digits and _, no digit first)",
        f"{path}: line 6: cpu_util: is 7, expected a map",
    )


def test_the_first_errors_are_reported_and_the_rest_counted(tmp_path: Path) -> None:
    path = tmp_path / "samples.yaml"
    path.write_text("net_rx:\n" + "".join(f"  node-{number}: null\n" for number in range(50)))

    with pytest.raises(BadSamplesFile) as error:
        read_samples_file(path)

    *problems, rest = error.value.problems
    assert [problem.split(": ")[2] for problem in problems] == [
        f"net_rx.node-{number}" for number in range(20)
    ]
    assert rest == f"{path}: and 30 more errors"


def test_the_greatest_int64_is_not_a_sample_since_a_float_rounds_it_up() -> None:
    text = (
        POLICY.replace("net_rx: bandwidth", "net_rx: bytes").replace('"B/s"', '"B"').replace("1Gbps", "1Gi")
    )
    program = check_text(text).program
    assert program is not None
    metric = program.metrics["net_rx"]

    converted = convert_samples(
        metric, RawSamples({"a": "9223372036854775807", "b": "9223372036854774784"}, polled_ns=7)
    )

    assert {node: int(sample.value) for node, sample in converted.values.items()} == {
        "b": 9223372036854774784
    }
