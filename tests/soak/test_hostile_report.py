"""The verdict of the soak with a hostile tenant, also on what is too little to judge."""

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from tests.kube.world import on_virtual_time
from tests.soak.hostile.bounds import BURST_BYTES, BURST_REQUESTS, Pace, Rates
from tests.soak.hostile.latencies import Latencies, Latency, scheduler_parts_s
from tests.soak.hostile.report import PODS_MIN, print_report, verdicts

SUBJECT, REFERENCE = "ours", "kube-scheduler"
QUIET_S = 0.02


def latencies(p99_s: float, pods: int = PODS_MIN, create_s: float = 0.003) -> Latencies:
    """One pod in a hundred has twice the p99; the API server answers each creation after `create_s`."""
    every_s = [p99_s * 2] + [p99_s] * (pods // 2) + [p99_s / 4] * (pods - pods // 2 - 1)
    return Latencies({f"pod-{number}": Latency(create_s, bound_s) for number, bound_s in enumerate(every_s)})


def measured(
    hostile_s: float,
    *,
    after_s: float = QUIET_S,
    other_s: float = 0.5,
    pods: int = PODS_MIN,
    quiet_create_s: float = 0.003,
    create_s: float = 0.003,
) -> dict[str, dict[str, Latencies]]:
    return {
        "quiet": {name: latencies(QUIET_S, create_s=quiet_create_s) for name in (SUBJECT, REFERENCE)},
        "burst": {SUBJECT: latencies(60.0, 10), REFERENCE: latencies(60.0, 10)},
        "hostile": {SUBJECT: latencies(hostile_s, pods, create_s), REFERENCE: latencies(other_s)},
        "after": {SUBJECT: latencies(after_s), REFERENCE: latencies(QUIET_S)},
    }


@pytest.mark.parametrize(
    ("windows", "hits", "exit_code", "words"),
    [
        (measured(0.04), 10, 0, ""),
        (measured(0.04, other_s=0.03), 10, 1, "hostile, create to bound: p99 80 ms, kube-scheduler 60 ms"),
        (measured(0.05), 10, 1, "hostile, create to bound: p99 100 ms, 2.5 times the quiet one"),
        (measured(0.05, create_s=0.05), 10, 2, "the API server alone takes 50 ms for a creation, 3 ms when"),
        (measured(0.04, create_s=0.05), 10, 0, ""),
        (measured(0.04, after_s=0.2), 10, 1, "after, create to bound: p99 400 ms, 10.0 times the quiet one"),
        (measured(0.04, pods=PODS_MIN - 1), 10, 2, "hostile: 99 pods of ours, fewer than 100"),
        (measured(0.04), 0, 2, "hits of the attack churn in 2 hostile windows: 1"),
        (
            measured(0.04, quiet_create_s=0.06),
            10,
            2,
            "quiet: the API server's p99 of creations 60 ms, more than 50 ms: the machine is busy",
        ),
    ],
)
def test_the_exit_code_says_whether_the_limits_hold_or_nothing_was_measured(
    windows: dict[str, dict[str, Latencies]], hits: int, exit_code: int, words: str
) -> None:
    shown = StringIO()
    console = Console(file=shown, width=120)

    assert print_report(console, windows, [{"churn": 1}, {"churn": hits}], SUBJECT, REFERENCE) == exit_code
    failed = [
        v.sentence
        for v in verdicts(windows, [{"churn": 1}, {"churn": hits}], SUBJECT, REFERENCE)
        if not v.holds
    ]
    assert any(words in sentence for sentence in failed) if words else not failed
    assert all(sentence in shown.getvalue() for sentence in failed)


def test_alone_only_its_own_quiet_window_is_the_limit() -> None:
    windows = {
        name: {SUBJECT: by_scheduler[SUBJECT]} for name, by_scheduler in measured(0.04, other_s=0.001).items()
    }

    held = verdicts(windows, [{"churn": 10}], SUBJECT)

    assert [verdict.word for verdict in held] == ["held", "held"]
    assert print_report(Console(file=StringIO(), width=120), windows, [{"churn": 10}], SUBJECT) == 0


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


@pytest.mark.parametrize(
    ("size", "per_s", "burst"), [(0, 5.0, BURST_REQUESTS), (2**20, 0.1, BURST_BYTES / 2**20)]
)
def test_an_attack_sends_its_burst_at_once_and_then_no_more_than_its_rate(
    size: int, per_s: float, burst: float
) -> None:
    times_s: list[float] = []

    async def scenario() -> None:
        loop, pace = asyncio.get_running_loop(), Pace(Rates(5.0, 2**20 / 10))
        began_s = loop.time()
        for _ in range(round(burst + 30 * per_s)):
            await pace.wait(size)
            times_s.append(loop.time() - began_s)

    on_virtual_time(scenario)

    assert sum(time_s < 0.01 for time_s in times_s) == pytest.approx(burst, abs=1)
    assert times_s[-1] == pytest.approx(30, rel=0.05)


def test_what_is_left_of_a_burst_is_not_sent_after_its_end() -> None:
    async def scenario() -> None:
        loop, pace = asyncio.get_running_loop(), Pace(Rates(5.0, 100_000))
        await pace.wait(0)
        pace.end_burst()
        began_s = loop.time()
        for _ in range(10):
            await pace.wait(0)
        assert loop.time() - began_s == pytest.approx(2.0, rel=0.2)

    on_virtual_time(scenario)
