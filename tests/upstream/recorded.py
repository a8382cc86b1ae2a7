"""The outcomes of the last `make e2e-upstream`, kept in JSON files here, and the tables of them in docs/upstream-tests.md."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

RECORDED = {
    "e2e": Path(__file__).with_name("outcomes.json"),
    "integration": Path(__file__).with_name("integration.json"),
}
TITLES = {
    "e2e": "e2e tests of Kubernetes {} that passed, of those that can run on hollow nodes:",
    "integration": "Cases of integration tests of Kubernetes {} that passed, of those that judge any scheduler:",
}
PASSED = "passed"
SKIPPED = "skipped"
NOT_RUN = "not run"
OTHER_CASES = "/other cases"
"""In the name of a test of which some cases were run, for those that were not."""
NAMED_MOST = 12
"""Tests that cannot run for one reason are named up to this many; the JSON files have all names."""


@dataclass(frozen=True, slots=True)
class Row:
    """One of upstream's tests. `states` are by scheduler; `why` says why it was not run, skipped or did not pass."""

    area: str
    name: str
    states: Mapping[str, str]
    why: str = ""

    @property
    def worse(self) -> bool:
        """Whether it passes with kube-scheduler alone."""
        return self.states.get("kube-scheduler") == PASSED and self.states.get("policysched") != PASSED


@dataclass(frozen=True, slots=True)
class Run:
    kubernetes: str
    rows: Sequence[Row]


def write(run: Run, path: Path) -> None:
    document = {"kubernetes": run.kubernetes, "tests": [asdict(row) for row in run.rows]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Run:
    document = json.loads(path.read_text(encoding="utf-8"))
    return Run(document["kubernetes"], [Row(**row) for row in document["tests"]])


def merged(kept: Run, run: Run) -> Run:
    """The outcomes of `run`, and those that it has not of the same release."""
    if kept.kubernetes != run.kubernetes:
        return run
    ran = {(row.area, row.name): row for row in run.rows}
    tests = {(row.area, row.name.partition("/")[0]) for row in run.rows}
    not_run = {(area, name + rest) for area, name in tests for rest in ("", OTHER_CASES)}
    return Run(
        run.kubernetes,
        [row for row in kept.rows if (row.area, row.name) not in ran.keys() | not_run] + list(run.rows),
    )


def section() -> str:
    """The generated part of docs/upstream-tests.md."""
    return "\n\n".join("\n".join(lines(read(path), TITLES[suite])) for suite, path in RECORDED.items())


def lines(run: Run, title: str) -> Iterator[str]:
    ran = [row for row in run.rows if row.states and set(row.states.values()) != {SKIPPED}]
    yield title.format(run.kubernetes)
    yield ""
    yield "| tests | run | with kube-scheduler | with policysched |"
    yield "| --- | ---: | ---: | ---: |"
    for area, rows in _by_area(ran):
        yield f"| {area} | {len(rows)} | {_passed(rows, 'kube-scheduler')} | {_passed(rows, 'policysched')} |"
    yield f"| all | {len(ran)} | {_passed(ran, 'kube-scheduler')} | {_passed(ran, 'policysched')} |"
    differing = [row for row in ran if set(row.states.values()) != {PASSED}]
    if differing:
        yield from ("", "Those that did not pass with both:", "")
        yield "| test | with kube-scheduler | with policysched | why |"
        yield "| --- | --- | --- | --- |"
        for row in differing:
            kube_scheduler, policysched = (
                row.states.get(name, NOT_RUN) for name in ("kube-scheduler", "policysched")
            )
            yield f"| {row.area}: {_cell(row.name)} | {kube_scheduler} | {policysched} | {_cell(row.why)} |"
    rest = sorted((row for row in run.rows if row not in ran), key=lambda row: row.why)
    yield from ("", "Those that cannot run here, or differ by intent:", "")
    yield "| why | tests |"
    yield "| --- | --- |"
    for why, group in groupby(rest, key=lambda row: row.why):
        rows = list(group)
        names = "; ".join(f"{row.area}: {_cell(row.name)}" for row in rows)
        counts = ", ".join(f"{area}: {len(members)}" for area, members in _by_area(rows))
        yield f"| {_cell(why)} ({len(rows)}) | {names if len(rows) <= NAMED_MOST else counts} |"


def _by_area(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    for area, members in groupby(sorted(rows, key=lambda row: row.area), key=lambda row: row.area):
        yield area, list(members)


def _passed(rows: Iterable[Row], scheduler: str) -> int:
    return sum(row.states.get(scheduler) == PASSED for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
