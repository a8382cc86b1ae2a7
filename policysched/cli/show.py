"""`policysched show`: the compiled plan of a policy, as text or JSON."""

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from policysched.cli.offline_options import output_console, print_json, report_unusable_files
from policysched.cli.policy_options import name_option, output_format_option, param_option

if TYPE_CHECKING:
    from rich.console import Console

    from policysched.evaluate.plan.listing import Listing
    from policysched.lang.ir.cost import RuleCost


@click.command()
@click.argument("policy", metavar="POLICY")
@name_option
@param_option
@click.option(
    "--layer",
    "layer_names",
    multiple=True,
    metavar="NAME",
    help="Show the plan with this layer applied. Can be repeated.",
)
@output_format_option
def show(
    policy: str, name: str | None, params: tuple[str, ...], layer_names: tuple[str, ...], output_format: str
) -> None:
    """Show the compiled plan of a policy.

    It lists the rules with their cost, the values that they read and what happens if one is missing;
    the other clauses; the steps that rules share; the attributes that make pods share an evaluation;
    and the events that requeue a rejected pod. POLICY is a policy, a YAML file with ConfigMaps, a
    folder, or - for standard input.

    Examples:

    \b
      policysched show my.policy
      policysched show my.policy --layer urgent
      policysched show my.policy --output-format json | jq '.rules[] | select(.metrics != [])'

    Exit codes: 0 success; 2 could not run, or the policy has errors.
    """
    from policysched.evaluate import compile as compile_plan
    from policysched.evaluate.plan.listing import listing
    from policysched.from_files.inputs import choose_policy
    from policysched.policy_files.source_set import UnusableFile

    with report_unusable_files():
        program = choose_policy(policy, name, params)
        known = [layer.name for layer in program.layers]
        unknown = [layer for layer in layer_names if layer not in known]
        if unknown:
            raise UnusableFile(
                f"{policy}: no layer is named `{unknown[0]}` (layers: {', '.join(known) or 'none'})"
            )
    active = tuple(index for index, layer in enumerate(known) if layer in layer_names)
    rows = listing(compile_plan(program), active)
    if output_format == "json":
        print_json(_record(rows))
    else:
        _print(output_console(), rows, known)


def _record(rows: "Listing") -> dict[str, Any]:
    from policysched.builtins.unsupported import UNSUPPORTED_FEATURES

    return {
        "format_version": 1,
        "policy": {"name": rows.policy, "sha256": rows.sha256},
        "params": [asdict(row) for row in rows.parameters],
        "layers": list(rows.layers),
        "rules": [_plain({**asdict(row), "cost": _cost_record(row.cost)}) for row in rows.rules],
        "steps": [_plain(asdict(row)) for row in rows.steps],
        "cost": _cost_record(rows.cost),
        "pods_agree_on": list(rows.read_set),
        "requeue_events": [event.value for event in rows.requeue_events],
        "extenders": [asdict(row) for row in rows.extenders],
        "clauses": [{"text": clause.text, "written": clause.is_explicit} for clause in rows.clauses],
        "outage": rows.outage,
        "uncovered": [
            {"plugin": feature.plugin, "uses": feature.usage, "happens": feature.effect}
            for feature in UNSUPPORTED_FEATURES
        ],
    }


def _cost_record(cost: "RuleCost") -> dict[str, int]:
    return {"pod": cost.per_pod, "node": cost.per_node}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Enum():
            return value.value
        case _:
            return value


def _print(console: "Console", rows: "Listing", layers: list[str]) -> None:
    from rich.table import Table

    from policysched.builtins.unsupported import UNSUPPORTED_FEATURES

    console.print(f"policy [bold]{rows.policy}[/]  sha {rows.sha256[:12]}")
    if layers:
        console.print(f"layers {', '.join(layers)} (applied: {', '.join(rows.layers) or 'none'})")
    for parameter in rows.parameters:
        limits = f" {parameter.limits}" if parameter.limits else ""
        where = (
            f"set by {parameter.given_in}; the default is {parameter.default}"
            if parameter.given_in
            else "the default"
        )
        console.print(
            f"param  {parameter.name}: {parameter.type} = {parameter.value}{limits}  ({where})", markup=False
        )
    console.print(f"cost   {rows.cost.per_pod} operations per pod, {rows.cost.per_node} per pod and node\n")

    table = Table("rule", "stage", box=None, pad_edge=False, header_style="bold")
    table.add_column("cost", justify="right")
    has_missing = any(row.missing is not None for row in rows.rules)
    if has_missing:
        table.add_column("missing")
    for heading in ("reads of pods", "reads of nodes", "requeued by"):
        table.add_column(heading, overflow="fold")
    for row in rows.rules:
        name = f"{row.kind} {row.name}" + (f" × {row.weight}" if row.weight is not None else "")
        node_reads = [*row.node_reads, *(f"metric {metric}" for metric in row.metrics)]
        events = [event.value for event in row.requeue_events] if row.kind == "filter" else []
        if row.recover is not None:
            name += f"\n  recover {row.recover}"
        cells = [
            name,
            row.stage,
            f"{row.cost.per_pod}+{row.cost.per_node}n",
            *([row.missing or ""] if has_missing else []),
        ]
        table.add_row(*cells, "\n".join(row.pod_reads), "\n".join(node_reads), "\n".join(events))
    console.print(table)
    for extender in rows.extenders:
        weight = "" if extender.weight is None else f" × {extender.weight}, missing {extender.missing}"
        console.print(
            f"extender {extender.name}{weight}  (called over HTTP for the nodes that pass the filters)",
            markup=False,
        )
    console.print("\n[bold]Clauses:[/]")
    for clause in rows.clauses:
        text = clause.text.replace("\n", "\n  ")
        console.print(f"  {text}{'' if clause.is_explicit else '  (the default)'}", markup=False)
    if rows.outage is not None:
        console.print(f"\n[bold]When samples are missing:[/]\n  {rows.outage}")

    if rows.steps:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("step", justify="right")
        for heading in ("operation", "text", "stage", "used by"):
            table.add_column(heading, overflow="fold")
        for step in rows.steps:
            table.add_row(
                str(step.number),
                step.operation,
                " ".join(step.text.split()),
                step.stage,
                ", ".join(step.rules),
            )
        console.print()
        console.print(table)
    _print_section(console, "Pods that are equal in these share an evaluation:", rows.read_set)
    _print_section(
        console, "Events that requeue a rejected pod:", tuple(event.value for event in rows.requeue_events)
    )
    _print_section(
        console,
        "Not supported by this version:",
        tuple(feature.description for feature in UNSUPPORTED_FEATURES),
    )


def _print_section(console: "Console", heading: str, lines: tuple[str, ...]) -> None:
    console.print(f"\n[bold]{heading}[/]")
    for line in lines:
        console.print(f"  {line}", markup=False)
