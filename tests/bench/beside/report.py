"""The runs as a table, a Markdown page and an SVG plot."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from tests.bench.beside.rounds import Turn
from tests.bench.beside.workloads import WORKLOADS

COLOURS = {"policysched": "#1b7f79", "kube-scheduler": "#c2571a", "recorded": "#4b5fa6"}
PANEL_WIDTH, PANEL_HEIGHT, MARGIN, PANELS_A_ROW = 420, 260, 56, 2


@dataclass(frozen=True)
class Row:
    """The medians of a scheduler's turns at one size."""

    scheduler: str
    workload: str
    nodes: int
    pods: int
    turns: int
    pods_per_s: float
    last_event_s: float
    events: float
    cpu_s: float
    peak_mib: float


COLUMNS = (
    "workload",
    "nodes",
    "pods",
    "scheduler",
    "pods/s",
    "last event (s)",
    "events",
    "CPU (s)",
    "memory (MiB)",
)


Kind = tuple[str, int, int]


def kind(turn: Turn) -> Kind:
    """The kind of a turn: turns of one kind are compared."""
    return turn.workload, turn.nodes, turn.pods


def kinds(turns: Iterable[Turn]) -> list[Kind]:
    return sorted(
        {kind(turn) for turn in turns},
        key=lambda turn_kind: (list(WORKLOADS).index(turn_kind[0]), turn_kind[1:]),
    )


def rows(turns: Iterable[Turn]) -> list[Row]:
    rows = []
    for turn_kind in kinds(turns):
        for scheduler in COLOURS:
            mine = [turn for turn in turns if kind(turn) == turn_kind and turn.scheduler == scheduler]
            rows += [_row(mine)] if mine else []
    return rows


def _row(turns: Sequence[Turn]) -> Row:
    first = turns[0]
    return Row(
        scheduler=first.scheduler,
        workload=first.workload,
        nodes=first.nodes,
        pods=first.pods,
        turns=len(turns),
        pods_per_s=median(turn.pods_per_s for turn in turns),
        last_event_s=median(turn.last_event_s for turn in turns),
        events=median(turn.events for turn in turns),
        cpu_s=median(turn.cpu_s for turn in turns),
        peak_mib=median(turn.peak_mib for turn in turns),
    )


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.workload,
        f"{row.nodes:,}",
        f"{row.pods:,}",
        row.scheduler,
        f"{row.pods_per_s:,.0f}",
        f"{row.last_event_s:.1f}",
        f"{row.events:,.0f}",
        f"{row.cpu_s:.2f}",
        f"{row.peak_mib:,.0f}",
    )


def ratios(results: Sequence[Row]) -> list[str]:
    """One sentence for each size at which both schedulers had turns, or policysched with and without a recording."""

    def pairs(first: str, second: str) -> list[tuple[Row, Row]]:
        return [
            (row, other)
            for row in results
            for other in results
            if (row.scheduler, other.scheduler) == (first, second)
            and (row.workload, row.nodes, row.pods) == (other.workload, other.nodes, other.pods)
        ]

    return [
        f"{recorded.workload}, {recorded.nodes:,} nodes, recorded: {recorded.pods_per_s / own.pods_per_s:.2f} of the pods per "
        f"second, {recorded.cpu_s / own.cpu_s:.3f} of the CPU."
        for recorded, own in pairs("recorded", "policysched")
    ] + [
        f"{own.workload}, {own.nodes:,} nodes: {own.pods_per_s / upstream.pods_per_s:.1f} times the pods per second, "
        f"the last event after {own.last_event_s / upstream.last_event_s:.2f} of the time, "
        f"{own.cpu_s / upstream.cpu_s:.2f} of the CPU, {own.peak_mib / upstream.peak_mib:.2f} of the memory."
        for own, upstream in pairs("policysched", "kube-scheduler")
    ]


WORDS = ("workload", "scheduler")


def table(results: Sequence[Row]) -> Table:
    shown = Table(title="medians")
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in WORDS else "right")
    for row in results:
        shown.add_row(*cells(row))
    return shown


HOSTILE_LINES = (
    "## Pods with thousands of terms",
    "",
    "`python -m tests.bench hostile`, in processor time and without a network, before and after ADR 43. *Others*: ten such pods of another",
    "scheduler are on ten of 300 nodes, and plain pods come, each unlike the others; the median from the watch event to the",
    "confirmed bind. *Own*: the longest piece of the decision about one such pod at 1,000 nodes, in which nothing else is done.",
    "",
    "| 5,000 of each, 50,000 tolerations | others, before | others, after | own, before | own, after | own, at the budget's limit |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
    "| (no such pods) | 1.1 ms | 1.1 ms | | | |",
    "| required anti-affinity on their own topology keys | 1,320 ms | 1.0 ms | 2.3 s | 0.8 ms | 2 ms |",
    "| required anti-affinity by host that selects nothing | 3.6 ms | 1.2 ms | 4.8 s | 0.6 ms | 7 ms |",
    "| preferred affinity by zone | 36 ms | 1.3 ms | 7.3 s | 2.5 ms | 18 ms |",
    "| resources | 0.9 ms | 1.1 ms | 13.8 s | 1.3 ms | 9 ms |",
    "| hard spread constraints | 1.0 ms | 1.0 ms | 2.4 s | 0.5 ms | 3 ms |",
    "| soft spread constraints | 0.8 ms | 1.0 ms | 2.3 s | 0.6 ms | 4 ms |",
    "| preferred node affinity | 0.9 ms | 1.2 ms | 2.3 s | 5.1 ms | 13 ms |",
    "| tolerations | 1.3 ms | 1.0 ms | 40 ms | 0.6 ms | 3 ms |",
    "",
    "After it, pods of 5,000 items are over the budget and are not evaluated; the last column is for those just below it. The p99 of 300",
    "plain pods beside such pods was 0.6 to 1.3 times that without in most runs. Outliers of 10 to 100 ms in single runs were full collections",
    "of garbage with Python's default thresholds: 58.7 of 59.9 ms and 104.4 of 106.4 ms. With those of the program the longest of 570",
    "decisions takes 12 ms, with and without such pods.",
    "",
    "`python -m tests.bench.beside.latency` on a real control plane, nothing else on the machine: from the request that",
    "creates a plain pod to its bind, 180 pods one after the other at 300 nodes, all bound by both; over two turns:",
    "",
    "| | without, p50 | without, p99 | beside ten pods of 5,000 terms, p50 | p99 | p99, times |",
    "| --- | ---: | ---: | ---: | ---: | ---: |",
    "| policysched | 5.8 ms | 11.4 ms | 5.7 ms | 9.8 ms | 0.86 |",
    "| kube-scheduler | 5.3 ms | 8.2 ms | 6.2 ms | 7.9 ms | 0.96 |",
    "",
    "Such pods cost neither scheduler anything that can be measured here; policysched's p99 is 2 to 3 ms above kube-scheduler's.",
    "",
)
"""Measured with `tests.bench hostile` and not by this program, which repeats them."""


def page(results: Sequence[Row], *, kubernetes: str | None, plot: str, note: str) -> str:
    """The Markdown page."""
    lines = [
        "# Beside kube-scheduler",
        "",
        "Both on one control plane (etcd without fsync, kube-apiserver, no kubelets), in one run, alternating: so many pods wait, the scheduler",
        "is started, all are bound and told so, they are deleted. Timed by a third party's watch, from the first bind to the last; CPU from the",
        "first bind to the last event. Pods of 100m and 64 MiB, nodes of 32 cores in three zones. kube-scheduler has its default",
        "profile with client QPS and burst 5,000; policysched runs `include kube_default` with the roles and settings that `deploy/` ships.",
        "Everything shares the machine, so ratios are what counts.",
        "",
        f"Machine: {machine()}. Kubernetes {kubernetes or 'of unknown version'}, Python {platform.python_version()}. Medians of {_turns_said(results)}.",
        *([note] if note else []),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join(" --- " if name in WORDS else " ---: " for name in COLUMNS) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in results),
        "",
        *(f"- {sentence}" for sentence in ratios(results)),
        "",
        f"![Pods bound over time]({plot})",
        "",
        *HOSTILE_LINES,
        "Measure it where you are: `python -m tests.bench.beside --nodes 1000 --nodes 5000 --pods 3000` (`make bench-beside`); it needs the",
        "control plane that the tests use (`tests/controlplane/README.md`).",
        "",
    ]
    return "\n".join(lines)


def _turns_said(results: Sequence[Row]) -> str:
    counts = sorted({row.turns for row in results})
    return f"{' or '.join(str(count) for count in counts)} turn{'s' if counts != [1] else ''} each"


def machine() -> str:
    """The machine, without its name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({platform.machine()}), {memory_gib:.0f} GiB, {platform.system()}"


# ── the plot ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(turns: Sequence[Turn]) -> str:
    """SVG: a panel for each size, pods bound over seconds, a line for each turn."""
    panels = kinds(turns)
    rows_count = -(-len(panels) // PANELS_A_ROW)
    width, height = PANEL_WIDTH * min(len(panels), PANELS_A_ROW), PANEL_HEIGHT * rows_count + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, (workload, nodes, pods) in enumerate(panels):
        mine = [turn for turn in turns if kind(turn) == (workload, nodes, pods)]
        title = f"{workload}: {nodes:,} nodes, {pods:,} pods"
        row, column = divmod(index, PANELS_A_ROW)
        parts += _panel(mine, left=column * PANEL_WIDTH, top=row * PANEL_HEIGHT, title=title)
    for index, (name, colour) in enumerate(COLOURS.items()):
        x = MARGIN + 150 * index
        parts.append(f'<rect x="{x}" y="{height - 22}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{height - 16}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(turns: Sequence[Turn], *, left: int, top: int, title: str) -> Iterator[str]:
    inner_width, inner_height = PANEL_WIDTH - MARGIN - 16, PANEL_HEIGHT - 2 * 32
    longest_s, most = max(turn.bound_s[-1] for turn in turns), max(turn.pods for turn in turns)

    def x(at_s: float) -> float:
        return left + MARGIN + inner_width * at_s / longest_s

    def y(count: float) -> float:
        return top + 32 + inner_height * (1 - count / most)

    yield f'<text x="{left + MARGIN}" y="{top + 18}" font-weight="bold">{title}</text>'
    for quarter in range(5):
        count, at_s = most * quarter / 4, longest_s * quarter / 4
        yield (
            f'<line x1="{x(0):.1f}" y1="{y(count):.1f}" x2="{x(longest_s):.1f}" y2="{y(count):.1f}" stroke="#ddd"/>'
        )
        yield f'<text x="{x(0) - 6:.1f}" y="{y(count) + 4:.1f}" text-anchor="end">{count:,.0f}</text>'
        # The last label ends at the edge of the picture.
        anchor = "end" if quarter == 4 else "middle"
        yield f'<text x="{x(at_s):.1f}" y="{y(0) + 18:.1f}" text-anchor="{anchor}">{at_s:.1f} s</text>'
    for turn in turns:
        step = max(1, turn.pods // 200)
        picked = [*range(0, turn.pods, step), turn.pods - 1]
        points = " ".join(f"{x(turn.bound_s[i]):.1f},{y(i + 1):.1f}" for i in picked)
        yield f'<polyline points="{points}" fill="none" stroke="{COLOURS[turn.scheduler]}" stroke-width="1.5"/>'
