"""`policysched queue`: the pending pods in scheduling order."""

from typing import Any

import click

from policysched.cli.live_options import live_options, live_page
from policysched.cli.offline_options import print_json, print_notes
from policysched.cli.policy_options import output_format_option
from policysched.cli.tables import output_console, print_table


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(0, 1_000),
    default=100,
    show_default=True,
    help="How many pods to show, at most 1,000.",
)
@live_options
@output_format_option
def queue(limit: int, output_format: str, **target: Any) -> None:
    """Show the pending pods of a running scheduler in the order of each policy's queue.

    Pods that wait for an event keep their position.

    Examples:

    \b
      policysched queue --limit 20
      policysched queue | cut -f2

    Exit codes: 0 success; 2 could not run.
    """
    page = live_page("/queue", {"limit": str(limit)}, **target)
    if output_format == "json":
        print_json(page)
        return
    print_notes([page["note"]] if page["note"] else [])
    console = output_console()
    rows = [
        (
            pod["policy"],
            pod["pod"],
            pod["queue"],
            str(pod["attempts"]),
            pod["queued"].partition(".")[0] + "Z",
            *([] if console.is_terminal else [pod["gang"] or "", pod["message"]]),
        )
        for pod in page["pods"]
    ]
    headings = ("policy", "pod", "state", "attempts", "queued")
    print_table(
        console, headings if console.is_terminal else (*headings, "gang", "message"), rows, right=(3,)
    )
    if page["omitted"] and console.is_terminal:
        console.print(f"and {page['omitted']} more; --limit shows up to 1,000", style="dim")
