"""Prints a comparison of two policies (the JSON of `schemas/diff.json`) for people."""

from typing import TYPE_CHECKING

from policysched.cli.tables import print_table
from policysched.comparison.report_texts import (
    KIND_WORDS,
    Record,
    before_and_after_texts,
    cause_numbers,
    cause_text,
    count_text,
    examples,
    headline,
    kinds_text,
    measure_rows,
    pods_by_kind,
)

if TYPE_CHECKING:
    from rich.console import Console

_PODS_SHOWN = 20


def print_comparison(console: "Console", record: Record) -> None:
    """The answer first, then the causes, the cluster before and after, and the pods. In a pipe one changed pod a line."""
    if not console.is_terminal:
        _print_lines(console, record)
        return
    console.print(headline(record), style="bold", markup=False)
    if not record["changed_pods"]:
        return
    rows = [
        (str(count), KIND_WORDS[kind], f"{count / max(1, record['pods']):.1%}")
        for kind, count in record["counts"].items()
        if count
    ]
    print_table(console, ("pods", "", "share"), rows, right=(0, 2))
    _print_causes(console, record)
    console.print("\nThe cluster", style="bold")
    print_table(console, ("", "before", "after", ""), measure_rows(record), right=(1, 2, 3))
    _print_pods(console, record)
    _print_changes(console, record)


def _print_causes(console: "Console", record: Record) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print("\nCauses", style="bold")
    for cause in record["causes"]:
        pods = count_text(cause["pods"], "pod")
        console.print(f"{pods} by {cause_text(record, cause['changes'])}", markup=False)
        for text in (kinds_text(cause["counts"]), *examples(cause, 2)):
            console.print(Padding(Text(text, style="dim"), (0, 0, 0, 2), expand=False))


def _print_pods(console: "Console", record: Record) -> None:
    pods = pods_by_kind(record)
    console.print("\nPods", style="bold")
    rows = [(pod["pod"], *before_and_after_texts(pod), cause_numbers(pod)) for pod in pods[:_PODS_SHOWN]]
    print_table(console, ("pod", "before", "after", "changes"), rows)
    if len(pods) > _PODS_SHOWN:
        more_text = f"and {len(pods) - _PODS_SHOWN:,} more; --output-format json has all of them"
        console.print(more_text, style="dim")


def _print_changes(console: "Console", record: Record) -> None:
    console.print("\nChanges of the policy", style="bold")
    rows = [
        (str(change["number"]), change["location"], change["change"], change["statement"])
        for change in record["changes"]
    ]
    print_table(console, ("", "location", "", "statement"), rows, right=(0,))


def _print_lines(console: "Console", record: Record) -> None:
    rows = [
        (pod["pod"], pod["change"], *before_and_after_texts(pod), cause_text(record, pod["causes"]))
        for pod in record["changed_pods"]
    ]
    if rows:
        print_table(console, ("pod", "change", "before", "after", "cause"), rows)
    counts = kinds_text(record["counts"])
    console.print(f"{headline(record)}{f': {counts}' if counts else ''}", markup=False)
