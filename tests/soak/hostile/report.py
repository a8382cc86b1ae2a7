"""One table of what was measured, and the verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from tests.soak.hostile.latencies import Latencies, percentile_s

RATIO_MAX = 2.0
NOISE_S = 0.005
"""Added to each limit: a turn of another process on the processor."""
PODS_MIN = 100
"""Of each scheduler in each kind of window. With fewer, the p99 is a single pod."""
HITS_MIN = 1
"""Of each attack, for each hostile window, after its burst: one of those by large objects hits once or twice in a minute."""
QUIET_CREATE_P99_MAX_S = 0.05
"""Of the API server's answers to creations, before the first attack. Above it the machine has other work, and the run says nothing
of the attacks."""
WINDOWS = ("quiet", "burst", "hostile", "after")
"""burst: what each attack sends at once at its begin, which saturates a small API server. It is shown, not judged."""
_JUDGED = ("quiet", "hostile", "after")

Measured = Mapping[str, Mapping[str, Latencies]]
"""By window, then by scheduler."""


@dataclass(frozen=True)
class Verdict:
    """`holds` None: what was measured says nothing."""

    holds: bool | None
    sentence: str

    @property
    def word(self) -> str:
        return {True: "held", False: "EXCEEDED", None: "NOT MEASURED"}[self.holds]


def print_report(
    console: Console,
    measured: Measured,
    hits: Sequence[Mapping[str, int]],
    subject: str,
    reference: str | None = None,
) -> int:
    """Exit code: 0 if all verdicts hold, 1 if a limit is exceeded, 2 if too little was measured."""
    console.print(_latency_table(measured))
    console.print(_hits_table(hits))
    said = verdicts(measured, hits, subject, reference)
    for verdict in said:
        console.print(f"{verdict.word}: {verdict.sentence}", soft_wrap=True, highlight=False)
    if any(verdict.holds is None for verdict in said):
        return 2
    return 0 if all(verdict.holds for verdict in said) else 1


def verdicts(
    measured: Measured, hits: Sequence[Mapping[str, int]], subject: str, reference: str | None = None
) -> list[Verdict]:
    """`subject` against its own quiet window, and against `reference` in the same windows, if one ran. Quiet is the window before the first attack: what an attack leaves behind must not raise the limit. Where
    the API server alone exceeds the same limit for the same pods, the run says nothing of the scheduler."""
    reasons = _missing(measured, hits)
    if reasons:
        return [Verdict(None, reason) for reason in reasons]
    quiet_s = _p99_s(measured, "quiet", subject)
    said = []
    for window in ("hostile", "after"):
        p99_s, limit_s = _p99_s(measured, window, subject), _limit_s(quiet_s)
        sentence = (
            f"{window}, create to bound: p99 {_ms(p99_s)}, {p99_s / quiet_s:.1f} times the quiet one. The limit is "
            f"{_ms(limit_s)}: {RATIO_MAX:g} times the quiet one, and {_ms(NOISE_S)} of noise"
        )
        said.append(Verdict(p99_s <= limit_s, sentence))
        quiet_create_s, create_s = (_create_p99_s(measured, name) for name in ("quiet", window))
        if p99_s > limit_s and create_s > _limit_s(quiet_create_s):
            said[-1] = Verdict(
                None,
                f"{sentence}. But the API server alone takes {_ms(create_s)} for a creation, {_ms(quiet_create_s)} "
                "when it is quiet: the machine is too small for the bounds of the tenant, or has other work",
            )
    if reference is not None:
        p99_s, other_s = _p99_s(measured, "hostile", subject), _p99_s(measured, "hostile", reference)
        sentence = f"hostile, create to bound: p99 {_ms(p99_s)}, {reference} {_ms(other_s)}, and {_ms(NOISE_S)} of noise"
        said.append(Verdict(p99_s <= other_s + NOISE_S, sentence))
    return said


def _limit_s(quiet_s: float) -> float:
    return RATIO_MAX * quiet_s + NOISE_S


def _create_p99_s(measured: Measured, window: str) -> float:
    """Of the pods of all schedulers."""
    creations_s = [span_s for latencies in measured[window].values() for span_s in latencies.creations]
    return percentile_s(creations_s, 99)


def _missing(measured: Measured, hits: Sequence[Mapping[str, int]]) -> list[str]:
    few = [
        f"{window}: {len(latencies.by_pod)} pods of {name}, fewer than {PODS_MIN}"
        for window in _JUDGED
        for name, latencies in measured[window].items()
        if len(latencies.by_pod) < PODS_MIN
    ]
    in_all = Counter[str]()
    for by_attack in hits:
        in_all.update(by_attack)
    weak = [
        f"hits of the attack {name} in {len(hits)} hostile windows: {count}, fewer than {HITS_MIN * len(hits)}"
        for name, count in in_all.items()
        if count < HITS_MIN * len(hits)
    ]
    if few or weak:
        return few + weak
    quiet_s = _create_p99_s(measured, "quiet")
    if quiet_s > QUIET_CREATE_P99_MAX_S:
        return [
            f"quiet: the API server's p99 of creations {_ms(quiet_s)}, more than {_ms(QUIET_CREATE_P99_MAX_S)}: the machine is busy"
        ]
    return []


def _latency_table(measured: Measured) -> Table:
    table = Table(
        title="The friendly tenant's pods: create to bound, the answer to the creation, and the scheduler's part, in ms",
        box=SIMPLE,
    )
    table.add_column("window")
    table.add_column("scheduler", no_wrap=True)
    for column in ("pods", "p50", "p99", "longest", "create p99", "part p50", "part p99"):
        table.add_column(column, justify="right")
    for window, by_scheduler in measured.items():
        for name, latencies in by_scheduler.items():
            parts_s = latencies.scheduler_part
            table.add_row(
                window,
                name,
                str(len(latencies.by_pod)),
                *(_cell(latencies.pods, percent) for percent in (50, 99, None)),
                _cell(latencies.creations, 99),
                *(_cell(parts_s, percent) for percent in (50, 99)),
            )
    return table


def _hits_table(hits: Sequence[Mapping[str, int]]) -> Table:
    table = Table(title="What hit: requests that were accepted", box=SIMPLE)
    table.add_column("attack")
    table.add_column("in all", justify="right")
    table.add_column("least in a window", justify="right")
    for name in dict.fromkeys(name for by_attack in hits for name in by_attack):
        counts = [by_attack.get(name, 0) for by_attack in hits]
        table.add_row(name.replace("_", " "), f"{sum(counts):,}", f"{min(counts):,}")
    return table


def _cell(latencies_s: list[float], percent: int | None) -> str:
    if not latencies_s:
        return "-"
    value_s = max(latencies_s) if percent is None else percentile_s(latencies_s, percent)
    return f"{value_s * 1000:.0f}"


def _p99_s(measured: Measured, window: str, scheduler: str) -> float:
    return percentile_s(measured[window][scheduler].pods, 99)


def _ms(span_s: float) -> str:
    return f"{span_s * 1000:.0f} ms"
