"""`policysched pending`: what the pending pods of a cluster wait for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from policysched.cli.live_options import live_options, live_page
from policysched.cli.offline_options import print_json, print_notes
from policysched.cli.policy_options import output_format_option
from policysched.cli.tables import output_console, print_table
from policysched.text.abbreviate import abbreviate_names

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@live_options
@output_format_option
def pending(output_format: str, **target: Any) -> None:
    """Show what the pending pods of a running scheduler wait for, the most frequent cause first.

    The cause is what rejects the pod on the closest nodes: those that the fewest rules reject. The last
    list shows how many pods would fit a node without one rule; each pod is checked by itself.

    Examples:

    \b
      policysched pending
      policysched pending --context production --output-format json | jq '.causes[0]'

    Exit codes: 0 success, whether or not pods are pending; 2 could not run.
    """
    page = live_page("/pending", {}, **target)
    if output_format == "json":
        print_json(page)
        return
    print_notes([page["note"]] if page["note"] else [])
    print_causes(output_console(), page)


def print_causes(console: "Console", page: Mapping[str, Any]) -> None:
    """From the JSON of `/pending`."""
    if not console.is_terminal:
        rows = [
            (
                str(cause["pods"]),
                cause["requests"].get("cpu", "0"),
                cause["requests"].get("memory", "0"),
                _others(cause["requests"]),
                str(cause["oldest_s"]),
                cause["cause"],
                ",".join(cause["examples"]),
            )
            for cause in page["causes"]
        ]
        print_table(console, ("pods", "cpu", "memory", "other", "oldest s", "cause", "pods such as"), rows)
        return
    if not page["pods"] and not page.get("note"):  # the note says why nothing is known of any
        console.print("No pod is pending.")
    for cause in page["causes"]:
        _print_cause(console, cause)
    if omitted := page.get("omitted_causes", 0):  # an older scheduler lists all
        console.print(f"and {omitted} more causes of fewer pods\n", style="dim")
    if page["binding"]:
        console.print(
            f"{_pods(page['binding'])} {_have(page['binding'])} a node and {_be(page['binding'])} being bound.\n"
        )
    if page["would_free"]:
        console.print("Pods that would fit a node without one rule:", style="bold")
        freed = [(rule, str(count)) for rule, count in page["would_free"].items()]
        print_table(console, ("rule", "pods"), freed, right=(1,))


def _print_cause(console: "Console", cause: Mapping[str, Any]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    requests = cause["requests"]
    amounts = [f"{requests[name]} {_unit(name)}" for name in ("cpu", "memory") if name in requests]
    other_requests = _others(requests)
    requested = ", ".join([*amounts, *([other_requests] if other_requests else [])])
    head = Text(f"{_pods(cause['pods'])}: {cause['cause']}", style="bold")
    console.print(head)
    facts = [f"oldest {_duration(cause['oldest_s'])}", *([f"they request {requested}"] if requested else [])]
    examples = cause["examples"]
    hidden_count = cause["pods"] - len(examples)
    names = abbreviate_names(examples) + (f" and {hidden_count} more" if hidden_count > 0 else "")
    for text in ("; ".join(facts), names):
        console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
    console.print()


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _unit(resource: str) -> str:
    return "of memory" if resource == "memory" else resource


def _others(requests: Mapping[str, str]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in requests.items() if "/" in name)


def _duration(seconds: float) -> str:
    """In the two largest units: `2h 5m`."""
    seconds_left, parts = int(seconds), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds_left >= size or parts:
            parts.append(f"{seconds_left // size}{unit}")
            seconds_left %= size
    return " ".join(part for part in parts[:2] if not part.startswith("0")) or "0s"
