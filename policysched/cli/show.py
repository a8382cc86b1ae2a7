"""`policysched show`: the evaluation plan of a policy, for people and as JSON."""

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from policysched.cli.offline_options import output_console, print_json, report_unusable_files
from policysched.cli.param_option import param_option

if TYPE_CHECKING:
    from rich.console import Console

    from policysched.evaluate.plan.listing import Listing
    from policysched.lang.ir.reads import RuleCost


@click.command()
@click.argument("policy", metavar="POLICY")
@click.option("--name", metavar="NAME", help="Which policy, where the file has several.")
@param_option
@click.option(
    "--layer", "layer_names", multiple=True, metavar="NAME", help="Take this layer to apply; may be repeated."
)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show(
    policy: str, name: str | None, params: tuple[str, ...], layer_names: tuple[str, ...], output_format: str
) -> None:
    """Show what a policy is compiled into: rules with their cost, what they read and what becomes of a
    node without it, the clauses beside them, what an outage of a metric does, steps that rules share, what pods
    must agree on to share an evaluation, and which events would wake a refused pod. POLICY is a policy, a YAML file with
    ConfigMaps, a folder, or - for standard input.

    \b
    policysched show my.policy
    policysched show my.policy --layer urgent
    policysched show my.policy --output-format json | jq '.rules[] | select(.metrics != [])'

    Exit codes: 0 shown; 2 could not run, or the policy has errors.
    """
    from policysched.evaluate import compile as compile_plan
    from policysched.evaluate.plan.listing import listing
    from policysched.harness.inputs import choose_policy
    from policysched.policy_files.source_set import UnusableFile

    with report_unusable_files():
        program = choose_policy(policy, name, params)
        known = [layer.name for layer in program.layers]
        unknown = [one for one in layer_names if one not in known]
        if unknown:
            there = ", ".join(known) or "none"
            raise UnusableFile(f"{policy}: has no layer `{unknown[0]}`; there is {there}")
    active = tuple(index for index, one in enumerate(known) if one in layer_names)
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
        "wakes": [event.value for event in rows.wakes],
        "extenders": [asdict(one) for one in rows.extenders],
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
            return {key: _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case Enum():
            return value.value
        case _:
            return value


def _print(console: "Console", rows: "Listing", layers: list[str]) -> None:
    from rich.table import Table

    from policysched.builtins.unsupported import UNSUPPORTED_FEATURES

    console.print(f"policy [bold]{rows.policy}[/]  sha {rows.sha256[:12]}")
    if layers:
        console.print(f"layers {', '.join(layers)}; shown with {', '.join(rows.layers) or 'none'} of them")
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
    console.print(f"cost   {rows.cost.per_pod} operations a pod, {rows.cost.per_node} a pod and node\n")

    table = Table("rule", "stage", box=None, pad_edge=False, header_style="bold")
    table.add_column("cost", justify="right")
    lacking = any(row.missing is not None for row in rows.rules)
    if lacking:
        table.add_column("missing")
    for heading in ("reads of pods", "reads of nodes", "woken by"):
        table.add_column(heading, overflow="fold")
    for row in rows.rules:
        name = f"{row.kind} {row.name}" + (f" × {row.weight}" if row.weight is not None else "")
        of_nodes = [*row.node_reads, *(f"metric {metric}" for metric in row.metrics)]
        woken = [event.value for event in row.wakes] if row.kind == "filter" else []
        if row.recover is not None:
            name += f"\n  recover {row.recover}"
        words = [
            name,
            row.stage,
            f"{row.cost.per_pod}+{row.cost.per_node}n",
            *([row.missing or ""] if lacking else []),
        ]
        table.add_row(*words, "\n".join(row.pod_reads), "\n".join(of_nodes), "\n".join(woken))
    console.print(table)
    for one in rows.extenders:
        weight = "" if one.weight is None else f" × {one.weight}, missing {one.missing}"
        console.print(
            f"extender {one.name}{weight}  (asked over HTTP, about the nodes that the rules leave)",
            markup=False,
        )
    console.print("\n[bold]Beside the rules:[/]")
    for clause in rows.clauses:
        text = clause.text.replace("\n", "\n  ")
        console.print(f"  {text}{'' if clause.is_explicit else '  (the default)'}", markup=False)
    if rows.outage is not None:
        console.print(f"\n[bold]When samples are lacking:[/]\n  {rows.outage}")

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
    _print_section(console, "Pods that agree on these share one evaluation:", rows.read_set)
    _print_section(console, "A refused pod can be woken by:", tuple(event.value for event in rows.wakes))
    _print_section(
        console,
        "Not covered by this version:",
        tuple(one.description for one in UNSUPPORTED_FEATURES),
    )


def _print_section(console: "Console", heading: str, words: tuple[str, ...]) -> None:
    console.print(f"\n[bold]{heading}[/]")
    for word in words:
        console.print(f"  {word}", markup=False)
