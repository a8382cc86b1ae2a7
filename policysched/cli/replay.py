"""`policysched replay`: make the decisions of a recording again and compare them."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from policysched.cli import CommandError
from policysched.cli.offline_options import print_json, print_notes
from policysched.cli.policy_options import output_format_option, recorded_time_options
from policysched.cli.progress import progress_bar
from policysched.cli.tables import output_console

if TYPE_CHECKING:
    from policysched.recording.replay import Difference, ReplayReport

LISTED_MAX = 10


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@recorded_time_options
@output_format_option
def replay(
    folder: Path, from_ns: int | None, to_ns: int | None, last_ns: int | None, output_format: str
) -> None:
    """Repeat the decisions of a recording (`policysched run --record DIR`), and compare the results
    byte for byte.

    A run that was recorded from its start is replayed as a whole. If the recording begins later or
    has a gap, or with --from or --last, each decision is repeated on the cluster as it was then, in
    the recorded order.

    Examples:

    \b
      policysched replay /var/lib/policysched/recording
      policysched replay DIR --last 24h --output-format json | jq '.differences[0]'

    Exit codes: 0 every decision is the same; 1 some differ; 2 could not run.
    """
    from policysched.recording.reader import UnusableRecording, open_recording
    from policysched.recording.replay import replay as replay_recording

    if from_ns is not None and last_ns is not None:
        raise click.UsageError("give --from or --last, not both")
    try:
        recording = open_recording(folder)
    except UnusableRecording as error:
        raise CommandError(str(error)) from None
    since_ns = from_ns if last_ns is None else recording.ends_ns - last_ns
    bytes_total = recording.bytes_total(since_ns)
    with progress_bar() as show:
        report = replay_recording(
            recording, since_ns, to_ns, progress=lambda done: show("replaying", done, bytes_total)
        )
    if output_format == "json":
        print_json(report_record(report))
    else:
        print_notes(_notes(report))
        _print(report)
    if report.decisions == 0 and report.problems:
        sys.exit(2)
    if report.different:
        sys.exit(1)


def report_record(report: "ReplayReport") -> dict[str, Any]:
    """The JSON output; schema: `schemas/replay.json`."""
    return {
        "format_version": 1,
        "decisions": report.decisions,
        "same": sum(report.same.values()),
        "same_from_snapshot": report.same["snapshot"],
        "different": report.different,
        "skipped": report.skipped,
        "recorded_by": report.policysched,
        "from": _time(report.first_ns),
        "to": _time(report.last_ns),
        "gaps": [{"at": _time(gap.at_ns), "calls": gap.lines, "reason": gap.reason} for gap in report.gaps],
        "problems": report.problems,
        "differences": [
            {
                "file": difference.file,
                "at": _time(difference.at_ns),
                "id": difference.id,
                "unit": difference.unit,
                "basis": difference.basis,
                "recorded": difference.recorded,
                "replayed": difference.replayed,
                "fields": {
                    name: {"recorded": recorded, "replayed": replayed}
                    for name, (recorded, replayed) in difference.fields.items()
                },
            }
            for difference in report.differences
        ],
    }


def _notes(report: "ReplayReport") -> list[str]:
    from policysched import __version__

    notes = list(report.problems)
    notes += [
        f"{gap.lines} recorded lines are missing before {_time(gap.at_ns)}: {gap.reason}"
        for gap in report.gaps
    ]
    if report.policysched and report.policysched != __version__:
        notes.append(f"recorded by policysched {report.policysched}, replayed by {__version__}")
    return notes


def _print(report: "ReplayReport") -> None:
    console = output_console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)

    for difference in report.differences[:LISTED_MAX]:
        _print_difference(say, difference)
    if report.different > LISTED_MAX:
        say(f"... and {report.different - LISTED_MAX} more; a difference can cause later ones\n")
    parts = [f"{report.decisions} decisions", f"{sum(report.same.values())} the same"]
    if report.same["snapshot"]:
        parts[-1] += f" ({report.same['snapshot']} from a snapshot)"
    parts.append(f"{report.different} different")
    if report.skipped:
        parts.append(f"{report.skipped} not replayed (answers of extenders)")
    say(", ".join(parts))


def _print_difference(say: Callable[[str], None], difference: "Difference") -> None:
    say(f"decision {difference.id} at {_time(difference.at_ns)}: {difference.unit}")
    say(f"  recorded  {difference.recorded or 'no decision'}")
    say(f"  replayed  {difference.replayed or 'no decision'}")
    other_fields = [name for name in difference.fields if name not in ("node", "score", "message", "result")]
    for name in other_fields:
        recorded, replayed = difference.fields[name]
        say(f"  {name}: {recorded} recorded, {replayed} replayed")
    say("")


def _time(at_ns: int | None) -> str | None:
    if at_ns is None:
        return None
    seconds, rest_ns = divmod(at_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"
