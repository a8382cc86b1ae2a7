"""`policysched top`: what pods request of each node, as the running scheduler counts it."""

from typing import Any

import click

from policysched.cli.live_options import live_options, live_page
from policysched.cli.offline_options import print_json, print_notes
from policysched.cli.policy_options import output_format_option
from policysched.cli.tables import output_console, print_table
from policysched.lang.ir.attributes import resource_type
from policysched.lang.types.units import format_value

_HIDDEN = ("pods", "ephemeral-storage")


@click.command()
@click.option("--sort", "sort_by", default="cpu", show_default=True, metavar="RESOURCE", help="The resource whose fullest nodes come first; `node`: by name.")  # fmt: skip
@live_options
@output_format_option
def top(sort_by: str, output_format: str, **target: Any) -> None:
    """Show what the pods on each node request, the fullest nodes first.

    The scheduler's count includes pods that it has assigned but that the API server does not show yet.
    For actual use see `kubectl top`.

    Examples:

    \b
      policysched top
      policysched top --sort memory

    Exit codes: 0 success; 2 could not run.
    """
    page = live_page("/nodes", {}, **target)
    if output_format == "json":
        print_json(page)
        return
    print_notes([page["note"]] if page["note"] else [])
    nodes = page["nodes"]
    present = {name for node in nodes for name, amount in node["allocatable"].items() if amount}
    resources = [name for name in ("cpu", "memory") if name in present]
    resources += sorted(
        name for name in present if name not in (*resources, *_HIDDEN) and not name.startswith("hugepages-")
    )
    if sort_by != "node":
        if nodes and sort_by not in present:
            raise click.BadParameter(f"no node has `{sort_by}`; there is {', '.join(sorted(present))}", param_hint="--sort")  # fmt: skip
        nodes = sorted(nodes, key=lambda node: (-_share(node, sort_by), node["node"]))
    rows = [
        (
            node["node"] + (" (cordoned)" if node["unschedulable"] else ""),
            f"{node['pods']}/{node['allocatable'].get('pods', 0)}",
            *(_cell(node, resource) for resource in resources),
        )
        for node in nodes
    ]
    print_table(output_console(), ("node", "pods", *resources), rows, right=range(1, len(resources) + 2))


def _share(node: dict[str, Any], resource: str) -> float:
    allocatable = node["allocatable"].get(resource, 0)
    used = node["pods"] if resource == "pods" else node["requested"].get(resource, 0)
    return used / allocatable if allocatable else -1.0


def _cell(node: dict[str, Any], resource: str) -> str:
    allocatable, type_ = node["allocatable"].get(resource, 0), resource_type(resource)
    if not allocatable:
        return "-"
    used = node["requested"].get(resource, 0)
    return f"{format_value(used, type_)}/{format_value(allocatable, type_)} {100 * used // allocatable}%"
