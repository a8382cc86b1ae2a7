"""The verdict on the latency of plain pods beside hostile ones."""

import pytest

from tests.bench.beside.latency import OURS, THEIRS, verdict


def times(quiet_ms: float, beside_ms: float, theirs_ms: float) -> dict[tuple[str, bool], list[float]]:
    of_all = {
        (OURS, False): quiet_ms,
        (OURS, True): beside_ms,
        (THEIRS, False): 10.0,
        (THEIRS, True): theirs_ms,
    }
    return {key: [p99_ms / 1000] * 100 for key, p99_ms in of_all.items()}


@pytest.mark.parametrize(
    ("quiet_ms", "beside_ms", "theirs_ms", "exceeded"),
    [
        (15, 30, 40, []),
        (15, 40, 60, ["2 times that without"]),
        (30, 50, 20, ["that of kube-scheduler beside them"]),
        (10, 80, 20, ["2 times that without", "that of kube-scheduler beside them"]),
    ],
)
def test_each_limit_is_judged(
    quiet_ms: float, beside_ms: float, theirs_ms: float, exceeded: list[str]
) -> None:
    lines, held = verdict(times(quiet_ms, beside_ms, theirs_ms))

    assert held == (not exceeded)
    found = [line for line in lines if line.startswith("EXCEEDED")]
    assert len(found) == len(exceeded)
    assert all(words in line for words, line in zip(exceeded, found, strict=True))
    assert f"{OURS}: p99 of plain pods {quiet_ms:.1f} ms without and {beside_ms:.1f} ms with" in lines[0]
