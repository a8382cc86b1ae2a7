"""`policysched test`: play the tests that stand beside policies."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli import write_file
from policysched.cli.colour import wants_colour
from policysched.cli.offline_options import report_unusable_files
from policysched.text.render_text import render_concise, render_full

if TYPE_CHECKING:
    from policysched.policytest.runner import PolicyTestRun

_POLL_INTERVAL_S = 0.5


def _pattern(
    _context: click.Context, parameter: click.Parameter, value: str | None
) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"`{value}` is no regular expression: {error}", param=parameter) from None


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--run", "only", callback=_pattern, metavar="REGEX", help="Play the tests whose name it finds.")
@click.option(
    "--threshold",
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="Fail where less of the rules' outcomes was brought about.",
)
@click.option(
    "--coverage", "show_coverage", is_flag=True, help="List every outcome that no test brings about."
)
@click.option(
    "--output-format", type=click.Choice(["text", "json", "junit"]), default="text", show_default=True
)
@click.option(
    "--output-file", type=click.Path(dir_okay=False), help="Write the answer there instead of stdout."
)
@click.option(
    "--watch", is_flag=True, help="Play them again whenever a file changes, until it is interrupted."
)
def test(
    paths: tuple[str, ...],
    only: re.Pattern[str] | None,
    threshold: int | None,
    show_coverage: bool,
    output_format: str,
    output_file: str | None,
    watch: bool,
) -> int:
    """Play the tests of policies: every *_test.yaml below the folders, or below the present one.

    \b
    policysched test policies/
    policysched test my_test.yaml --run 'hot node' --watch
    policysched test --threshold 100 --output-format junit --output-file tests.xml

    Exit codes: 0 every test passed; 1 one failed, there is none, or less than --threshold was brought about;
    2 could not run: a file that cannot be used, a name that is not there, a policy with errors.
    """
    from policysched.policytest.runner import find_test_files
    from policysched.policytest.runner import run_test_files as play

    def once() -> tuple["PolicyTestRun", int]:
        found = play(find_test_files(paths or (".",)), only=only)
        write_file(output_file or "-", _PRINTERS[output_format](found, show_coverage))
        if threshold is not None and found.percent() < threshold:
            click.echo(f"coverage of {found.percent()}% is below {threshold}%", err=True)
        return found, _exit_code(found, threshold)

    if not watch:
        with report_unusable_files():
            return once()[1]
    return _watch(lambda: find_test_files(paths or (".",)), once)


def _watch(test_files: Callable[[], list[str]], once: Callable[[], tuple["PolicyTestRun", int]]) -> int:
    code = 0
    rests_on: set[str] = set()
    try:
        for _ in watch_changes(lambda: {*test_files(), *rests_on}, wait=time.sleep, now_ns=time.time_ns):
            click.clear()
            with report_unusable_files():
                found, code = once()
            rests_on.clear()
            rests_on.update(path for file in found.files for path in file.dependencies)
            click.echo(f"watching {len(rests_on)} files; Ctrl-C ends it", err=True)
    except KeyboardInterrupt:
        pass
    return code


def watch_changes(
    watched: Callable[[], Iterable[str]], *, wait: Callable[[float], None], now_ns: Callable[[], int]
) -> Iterator[None]:
    """Once at first, and then whenever one of the files is another than it was before the last time. A file that is
    watched for the first time has changed if it was written since then. Endless."""
    began_ns = now_ns()
    known: dict[str, _FileStamp] = {path: _file_stamp(path) for path in watched()}
    yield
    while True:
        now = {path: _file_stamp(path) for path in watched()}
        changed = any(now[path] != known[path] for path in now.keys() & known.keys())
        written = any(_is_modified_since(began_ns, now[path]) for path in now.keys() - known.keys())
        gone = known.keys() - now.keys()
        known = now
        if changed or written or gone:
            began_ns = now_ns()
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


def _text(run: "PolicyTestRun", show_coverage: bool) -> str:
    colour = wants_colour(sys.stdout)
    lines: list[str] = []
    for file in run.files:
        for problem in file.problems:
            lines += [render_full(problem, colour=colour, explain_command="policysched rule"), ""]
        for one in file.results:
            lines.append(f"{'FAIL' if one.failures else 'ok  '}  {file.path}: {one.name}")
            for failure in one.failures:
                place = failure.span.source.file_position(failure.span.start)
                lines.append(f"      {file.path}:{place.line}:{place.column}: {failure.message}")
    if show_coverage:
        lines += [render_concise(found) for found in run.not_reached()]
    if lines:
        lines.append("")
    for (_, name), coverage in run.coverages.items():
        reached, whole = len(coverage.reached), len(coverage.outcomes)
        lines.append(
            f"{name}: {reached} of {whole} outcomes of its rules brought about ({coverage.percent}%)"
        )
    lines.append(_summary(run))
    return "".join(f"{line}\n" for line in lines)


def _summary(run: "PolicyTestRun") -> str:
    unusable = sum(1 for file in run.files if file.problems)
    if not run.results and not unusable:
        return "no test was found" if not run.files else "no test was played"
    words = [f"{len(run.results) - run.failed} passed", f"{run.failed} failed"]
    if unusable:
        words.append(f"{unusable} file{'' if unusable == 1 else 's'} could not be used")
    return ", ".join(words)


def _json(run: "PolicyTestRun", _show_coverage: bool) -> str:
    import orjson

    from policysched.policytest.reports import run_record

    return orjson.dumps(run_record(run), option=orjson.OPT_INDENT_2).decode() + "\n"


def _junit(run: "PolicyTestRun", _show_coverage: bool) -> str:
    from policysched.policytest.reports import junit_xml

    return junit_xml(run)


_PRINTERS: dict[str, Callable[["PolicyTestRun", bool], str]] = {"text": _text, "json": _json, "junit": _junit}
