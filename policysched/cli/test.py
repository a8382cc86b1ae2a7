"""`policysched test`: run the tests of policies."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli import write_file
from policysched.cli.colour import wants_colour
from policysched.cli.offline_options import load_settings_rules, report_unusable_files
from policysched.cli.policy_options import at_option
from policysched.text.render_text import format_location, render_concise, render_full
from policysched.text.sanitize import escape_json, escape_to_line

if TYPE_CHECKING:
    from policysched.policytest.runner import PolicyTestRun

_POLL_INTERVAL_S = 0.5


def _pattern(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"`{value}` is not a regular expression: {error}", param=parameter) from None


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option(
    "--run", "only", callback=_pattern, metavar="REGEX", help="Run only the tests whose name matches."
)
@click.option(
    "--threshold",
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="Exit with 1 if the tests cover less than this share of the rules' outcomes.",
)
@click.option("--coverage", "show_coverage", is_flag=True, help="List the outcomes that no test covers.")
@click.option(
    "--output-format",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="The format of the results.",
)
@click.option(
    "--output-file", type=click.Path(dir_okay=False), help="Write the results to this file instead of stdout."
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The scheduler's settings file: how it checks the policies, which namespaces they serve, and which pods they may "
    "evict.",
)
@at_option("The start time of tests without `start` (default: 2026-01-01T00:00:00Z).")
@click.option("--quiet", is_flag=True, help="Print failures only, without passed tests and the summary.")
@click.option("--watch", is_flag=True, help="Run the tests again when a file changes, until Ctrl-C.")
def test(
    paths: tuple[str, ...],
    only: re.Pattern[str] | None,
    threshold: int | None,
    show_coverage: bool,
    output_format: str,
    output_file: str | None,
    config_path: Path | None,
    at_ns: int | None,
    quiet: bool,
    watch: bool,
) -> int:
    """Run the tests of policies: all *_test.yaml files in the given folders, or in the current one.

    Examples:

    \b
      policysched test policies/
      policysched test my_test.yaml --run 'hot node' --watch
      policysched test --threshold 100 --output-format junit --output-file tests.xml

    Exit codes: 0 all tests pass; 1 a test fails, there are no tests, or coverage is below --threshold;
    2 could not run: a file is unusable, or a policy has errors.
    """
    from policysched.policytest.runner import find_test_files, run_test_files

    def run_once() -> tuple["PolicyTestRun", int]:
        rules = load_settings_rules(config_path)
        run = run_test_files(find_test_files(paths or (".",)), only=only, rules=rules, start_ns=at_ns)
        write_file(output_file or "-", _PRINTERS[output_format](run, show_coverage, quiet))
        if threshold is not None and run.percent() < threshold:
            click.echo(f"coverage of {run.percent()}% is below {threshold}%", err=True)
        return run, _exit_code(run, threshold)

    if not watch:
        with report_unusable_files():
            return run_once()[1]
    config = () if config_path is None else (str(config_path),)
    return _watch(lambda: [*find_test_files(paths or (".",)), *config], run_once)


def _watch(test_files: Callable[[], list[str]], run_once: Callable[[], tuple["PolicyTestRun", int]]) -> int:
    code = 0
    dependencies: set[str] = set()
    try:
        for _ in watch_changes(lambda: {*test_files(), *dependencies}, wait=time.sleep, now_ns=time.time_ns):
            click.clear()
            with report_unusable_files():
                run, code = run_once()
            dependencies.clear()
            dependencies.update(path for file in run.files for path in file.dependencies)
            click.echo(f"watching {len(dependencies)} files; stop with Ctrl-C", err=True)
    except KeyboardInterrupt:
        pass
    return code


def watch_changes(
    watched: Callable[[], Iterable[str]], *, wait: Callable[[float], None], now_ns: Callable[[], int]
) -> Iterator[None]:
    """Yield once at first, then after each change of the watched files, without end.

    A file that is newly watched counts as changed if it was written after the last yield.
    """
    yielded_ns = now_ns()
    stamps: dict[str, _FileStamp] = {path: _file_stamp(path) for path in watched()}
    yield
    while True:
        now = {path: _file_stamp(path) for path in watched()}
        changed = any(now[path] != stamps[path] for path in now.keys() & stamps.keys())
        written = any(_is_modified_since(yielded_ns, now[path]) for path in now.keys() - stamps.keys())
        removed = stamps.keys() - now.keys()
        stamps = now
        if changed or written or removed:
            yielded_ns = now_ns()
            yield
        else:
            wait(_POLL_INTERVAL_S)


def _is_modified_since(at_ns: int, stamp: "_FileStamp") -> bool:
    return stamp is not None and stamp[0] >= at_ns


_FileStamp = tuple[int, int] | None


def _file_stamp(path: str) -> _FileStamp:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _exit_code(run: "PolicyTestRun", threshold: int | None) -> int:
    if run.has_unusable_file:
        return 2
    return int(not run.results or run.failed > 0 or (threshold is not None and run.percent() < threshold))


# ── printing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(run: "PolicyTestRun", show_coverage: bool, quiet: bool) -> str:
    colour = wants_colour(sys.stdout)
    lines: list[str] = []
    for file in run.files:
        path = escape_to_line(file.path)
        for problem in file.problems:
            lines += [render_full(problem, colour=colour, explain_command="policysched rule"), ""]
        for result in file.results:
            if quiet and not result.failures:
                continue
            lines.append(f"{'FAIL' if result.failures else 'ok  '}  {path}: {escape_to_line(result.name)}")
            for failure in result.failures:
                lines.append(f"      {format_location(failure.span)}: {escape_to_line(failure.message)}")
    if show_coverage:
        lines += [render_concise(diagnostic) for diagnostic in run.not_reached()]
    if quiet:
        return "".join(f"{line}\n" for line in lines)
    if lines:
        lines.append("")
    for (_, name), coverage in run.coverages.items():
        reached, total = len(coverage.reached), len(coverage.outcomes)
        lines.append(f"{name}: {reached} of {total} rule outcomes covered ({coverage.percent}%)")
    lines.append(_summary(run))
    return "".join(f"{line}\n" for line in lines)


def _summary(run: "PolicyTestRun") -> str:
    unusable = sum(1 for file in run.files if file.problems)
    if not run.results and not unusable:
        return "no tests found" if not run.files else "no tests selected"
    counts = [f"{len(run.results) - run.failed} passed", f"{run.failed} failed"]
    if unusable:
        counts.append(f"{unusable} unusable file{'' if unusable == 1 else 's'}")
    return ", ".join(counts)


def _json(run: "PolicyTestRun", _show_coverage: bool, _quiet: bool) -> str:
    import orjson

    from policysched.policytest.reports import run_record

    return escape_json(orjson.dumps(run_record(run), option=orjson.OPT_INDENT_2).decode()) + "\n"


def _junit(run: "PolicyTestRun", _show_coverage: bool, _quiet: bool) -> str:
    from policysched.policytest.reports import junit_xml

    return junit_xml(run)


_PRINTERS: dict[str, Callable[["PolicyTestRun", bool, bool], str]] = {
    "text": _text,
    "json": _json,
    "junit": _junit,
}
