"""The verdict of the soak with a hostile tenant, also on what is too little to judge."""

from io import StringIO

import pytest
from rich.console import Console

from tests.soak.hostile.latencies import Latencies, scheduler_parts_s
from tests.soak.hostile.report import PODS_MIN, print_report, verdicts

SUBJECT, REFERENCE = "ours", "kube-scheduler"
QUIET_S = 0.02


def latencies(p99_s: float, pods: int = PODS_MIN) -> Latencies:
    """One pod in a hundred has twice the p99."""
    every_s = [p99_s * 2] + [p99_s] * (pods // 2) + [p99_s / 4] * (pods - pods // 2 - 1)
    return Latencies({f"pod-{number}": latency_s for number, latency_s in enumerate(every_s)})


def measured(
    hostile_s: float,
    *,
    after_s: float = QUIET_S,
    other_s: float = 0.5,
    pods: int = PODS_MIN,
    quiet_s: float = QUIET_S,
) -> dict[str, dict[str, Latencies]]:
    return {
        "quiet": {SUBJECT: latencies(QUIET_S), REFERENCE: latencies(quiet_s)},
        "hostile": {SUBJECT: latencies(hostile_s, pods), REFERENCE: latencies(other_s)},
        "after": {SUBJECT: latencies(after_s), REFERENCE: latencies(QUIET_S)},
    }


@pytest.mark.parametrize(
    ("windows", "hits", "exit_code", "words"),
    [
        (measured(0.2), 10, 0, ""),
        (measured(0.3, other_s=0.2), 10, 1, "hostile, create to bound: p99 600 ms, kube-scheduler 400 ms"),
        (measured(0.6), 10, 1, "hostile, create to bound: p99 1200 ms"),
        (measured(0.2, after_s=0.2), 10, 1, "after, create to bound: p99 400 ms, 10.0 times the quiet one"),
        (measured(0.2, pods=PODS_MIN - 1), 10, 2, "hostile: 99 pods of ours, fewer than 100"),
        (measured(0.2), 9, 2, "hostile window 2: the attack churn hit 9 times, fewer than 10"),
        (
            measured(0.2, quiet_s=0.3),
            10,
            2,
            "quiet: p99 of kube-scheduler 600 ms, more than 100 ms: the machine is busy",
        ),
    ],
)
def test_the_exit_code_says_whether_the_limits_hold_or_nothing_was_measured(
    windows: dict[str, dict[str, Latencies]], hits: int, exit_code: int, words: str
) -> None:
    shown = StringIO()
    console = Console(file=shown, width=120)

    assert print_report(console, windows, [{"churn": 10}, {"churn": hits}], SUBJECT, REFERENCE) == exit_code
    failed = [
        v.sentence
        for v in verdicts(windows, [{"churn": 10}, {"churn": hits}], SUBJECT, REFERENCE)
        if not v.holds
    ]
    assert any(words in sentence for sentence in failed) if words else not failed
    assert all(sentence in shown.getvalue() for sentence in failed)


def test_the_scheduler_s_part_ends_with_its_first_request_to_bind() -> None:
    def record(
        name: str, received: str, answered: str, subresource: str = "", code: int = 201
    ) -> dict[str, object]:
        times = {"requestReceivedTimestamp": received, "stageTimestamp": answered}
        what = {"resource": "pods", "name": name, **({"subresource": subresource} if subresource else {})}
        return {**times, "objectRef": what, "responseStatus": {"code": code}}

    day = "2026-01-01T00:00:"
    records = [
        record("a", f"{day}01.000000Z", f"{day}01.010000Z"),
        record("refused", f"{day}01.000000Z", f"{day}01.010000Z", code=403),
        record("a", f"{day}01.030000Z", f"{day}01.040000Z", "binding", code=500),
        record("a", f"{day}02.000000Z", f"{day}02.010000Z", "binding"),
        record("other", f"{day}02.000000Z", f"{day}02.010000Z", "binding"),
    ]

    assert scheduler_parts_s(records) == {"a": pytest.approx(0.02)}
