"""`policysched samples`: the metric samples that a running scheduler holds."""

from typing import Any

import click

from policysched.cli.live_options import live_options, live_page
from policysched.cli.offline_options import print_json, print_notes
from policysched.cli.policy_options import output_format_option
from policysched.cli.tables import output_console, print_table
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import format_value


@click.command()
@live_options
@output_format_option
def samples(output_format: str, **target: Any) -> None:
    """Show the metric samples that the policies of a running scheduler read, with their ages.

    `explain` and `simulate` read the JSON output with --metrics.

    Examples:

    \b
      policysched samples
      policysched samples --output-format json > samples.json

    Exit codes: 0 success; 2 could not run.
    """
    page = live_page("/samples", {}, **target)
    if output_format == "json":
        print_json(page)
        return
    print_notes([page["note"]] if page.get("note") else [])
    rows = []
    for policy, record in page["policies"].items():
        for name, metric in record["metrics"].items():
            type_ = Type(TypeKind(metric["type"]))
            for node, sample in metric.get("values", {}).items():
                age_s = (page["time_ns"] - min(sample["at_ns"], metric["polled_ns"])) / 1e9
                assumed = sample.get("assumed")
                rows.append(
                    (
                        policy,
                        name,
                        node,
                        _value(sample["value"], type_),
                        f"{age_s:.0f} s",
                        _value(assumed, type_),
                    )
                )
            for pair in metric.get("pairs", ()):
                age_s = (page["time_ns"] - metric["polled_ns"]) / 1e9
                rows.append(
                    (
                        policy,
                        name,
                        " -> ".join(pair["pods"]),
                        _value(pair["value"], type_),
                        f"{age_s:.0f} s",
                        "",
                    )
                )
    print_table(
        output_console(), ("policy", "metric", "node", "value", "age", "assumed"), rows, right=(3, 4, 5)
    )


def _value(value: float | None, type_: Type) -> str:
    if value is None:
        return ""
    return format_value(float(value) if type_.is_float64 else int(value), type_)
