"""`policysched show`: the compiled plan of a policy, as text or JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

from policysched.cli.offline_options import print_json, report_unusable_files
from policysched.cli.policy_options import name_option, output_format_option, param_option
from policysched.cli.tables import output_console, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from policysched.evaluate.plan.listing import Listing, RuleRow
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
@click.option("--all", "in_full", is_flag=True, help="Also show the rules of includes in full.")
@output_format_option
def show(
    policy: str,
    name: str | None,
    params: tuple[str, ...],
    layer_names: tuple[str, ...],
    in_full: bool,
    output_format: str,
) -> None:
    """Show the compiled plan of a policy.

    It lists the policy's own rules with their cost, the values that they read and what happens if one
    is missing; the rules of its includes by name; the other clauses; the steps that rules share; the
    attributes that make pods share an evaluation; and the events that requeue a rejected pod. POLICY is a policy, a YAML file with ConfigMaps, a
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
        declared_layers = [layer.name for layer in program.layers]
        unknown = [layer for layer in layer_names if layer not in declared_layers]
        if unknown:
            raise UnusableFile(
                f"{policy}: no layer is named `{unknown[0]}` (layers: {', '.join(declared_layers) or 'none'})"
            )
    active = tuple(index for index, layer in enumerate(declared_layers) if layer in layer_names)
    rows = listing(compile_plan(program), active)
    if output_format == "json":
        print_json(_record(rows))
    else:
        _print(output_console(), rows, declared_layers, in_full=in_full)


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


def _print(console: "Console", rows: "Listing", layers: list[str], *, in_full: bool) -> None:
    from policysched.builtins.unsupported import UNSUPPORTED_FEATURES

    _print_heading(console, rows, layers)
    if console.is_terminal:
        _print_rules(console, rows.rules, in_full=in_full)
    else:
        print_table(console, _FIELDS, (_fields(row) for row in rows.rules))
    for extender in rows.extenders:
        weight = "" if extender.weight is None else f" × {extender.weight}, missing {extender.missing}"
        _print_wrapped(
            console,
            f"extender {extender.name}{weight}  (called over HTTP for the nodes that pass the filters)",
        )
    console.print("\nClauses:", style="bold")
    for clause in rows.clauses:
        for line in f"{clause.text}{'' if clause.is_explicit else '  (the default)'}".split("\n"):
            text = line.lstrip()
            _print_wrapped(console, text, indent=2 + len(line) - len(text))
    if rows.outage is not None:
        console.print("\nWhen samples are missing:", style="bold")
        _print_wrapped(console, rows.outage, indent=2)
    if rows.steps:
        console.print("\nSteps of expressions, each evaluated once:", style="bold")
        print_table(
            console,
            ("step", "text", "stage", "used by"),
            (
                (str(step.number), " ".join(step.text.split()), step.stage, ", ".join(step.rules))
                for step in rows.steps
            ),
            right=(0,),
        )
    _print_section(console, "Pods that are equal in these share an evaluation:", rows.read_set)
    _print_section(
        console, "Events that requeue a rejected pod:", tuple(event.value for event in rows.requeue_events)
    )
    if in_full or not console.is_terminal:
        console.print("\nNot supported by this version:", style="bold")
        for feature in UNSUPPORTED_FEATURES:
            _print_wrapped(console, feature.description, indent=2)
    else:
        console.print(
            f"\n{len(UNSUPPORTED_FEATURES)} features of pods are not supported by this version; --all lists them.",
            style="dim",
        )


def _print_heading(console: "Console", rows: "Listing", layers: list[str]) -> None:
    from rich.text import Text

    console.print("policy", Text(rows.policy, style="bold"), f" sha {rows.sha256[:12]}")
    if layers:
        console.print(
            f"layers {', '.join(layers)} (applied: {', '.join(rows.layers) or 'none'})", markup=False
        )
    for parameter in rows.parameters:
        limits = f" {parameter.limits}" if parameter.limits else ""
        where = (
            f"set by {parameter.given_in}; the default is {parameter.default}"
            if parameter.given_in
            else "the default"
        )
        _print_wrapped(
            console, f"param  {parameter.name}: {parameter.type} = {parameter.value}{limits}  ({where})"
        )
    console.print(f"cost   {rows.cost.per_pod} operations per pod, {rows.cost.per_node} per pod and node\n")


def _print_rules(console: "Console", rules: Sequence["RuleRow"], *, in_full: bool) -> None:
    """The policy's own rules first, each with what it reads; then those of each include, by name unless `in_full`."""
    own_rules = [row for row in rules if not row.included_by]
    for row in own_rules:
        _print_rule(console, row)
    for include in dict.fromkeys(row.included_by for row in rules if row.included_by):
        included = [row for row in rules if row.included_by == include]
        console.print(include, style="bold", markup=False)
        if in_full:
            for row in included:
                _print_rule(console, row)
            continue
        for kind in ("filter", "score"):
            names = [_with_weight(row) for row in included if row.kind == kind]
            if names:
                count = f"{len(names)} {kind}{'s' if len(names) > 1 else ''}: "
                _print_wrapped(console, count + ", ".join(names), indent=2)
    if not in_full and len(own_rules) < len(rules):
        console.print("  --all shows what they read and what requeues a pod", style="dim")


def _print_rule(console: "Console", row: "RuleRow") -> None:
    from rich.text import Text

    heading = Text(f"{row.kind} {_with_weight(row)}", style="bold")
    if not row.included_by:
        heading.append(f"  {row.location}", style="not bold dim")
    console.print(heading)
    facts = [row.stage, f"cost {row.cost.per_pod}+{row.cost.per_node}n"]
    if row.missing is not None:
        facts.append(f"missing {row.missing}")
    if row.recover is not None:
        facts.append(f"recover {row.recover}")
    _print_wrapped(console, ", ".join(facts), indent=2)
    for label, values in (
        ("reads of pods", row.pod_reads),
        ("reads of nodes", _node_reads(row)),
        ("requeued by", _requeue_events(row)),
    ):
        if values:
            _print_wrapped(console, f"{label}: {', '.join(values)}", indent=2)


_FIELDS = (
    "kind", "rule", "weight", "location", "included by", "stage", "cost per pod", "cost per node", "missing", "recover",
    "reads of pods", "reads of nodes", "requeued by",
)  # fmt: skip


def _fields(row: "RuleRow") -> tuple[str, ...]:
    return (
        row.kind,
        row.name,
        "" if row.weight is None else str(row.weight),
        row.location,
        row.included_by,
        row.stage,
        str(row.cost.per_pod),
        str(row.cost.per_node),
        row.missing or "",
        row.recover or "",
        ",".join(row.pod_reads),
        ",".join(_node_reads(row)),
        ",".join(_requeue_events(row)),
    )


def _with_weight(row: "RuleRow") -> str:
    return row.name if row.weight is None else f"{row.name} × {row.weight}"


def _node_reads(row: "RuleRow") -> tuple[str, ...]:
    return (*row.node_reads, *(f"metric {metric}" for metric in row.metrics))


def _requeue_events(row: "RuleRow") -> tuple[str, ...]:
    return tuple(event.value for event in row.requeue_events) if row.kind == "filter" else ()


def _print_section(console: "Console", heading: str, names: tuple[str, ...]) -> None:
    console.print(f"\n{heading}", style="bold")
    _print_wrapped(console, ", ".join(names), indent=2)


def _print_wrapped(console: "Console", text: str, *, indent: int = 0) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text), (0, 0, 0, indent), expand=False))
