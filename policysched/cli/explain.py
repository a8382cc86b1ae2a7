"""`policysched explain`: why one pod goes where it goes, or nowhere."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli.offline_options import (
    load_inputs,
    now_ns,
    offline_options,
    output_console,
    print_json,
    print_notes,
    report_unusable_files,
)
from policysched.harness.inputs import load_samples
from policysched.harness.state_values import load_state_values
from policysched.lang.ir.declarations import Metric
from policysched.lang.types.units import format_value
from policysched.offline.explain import ExplainResult
from policysched.offline.explain import explain_pod as explain_pod
from policysched.scheduler.explain_record import (
    AgedSample,
    explain_record,
    filter_steps,
    pair_ages,
    sample_ages,
)

if TYPE_CHECKING:
    from rich.console import Console

_NODES_SHOWN = 12
_COLUMNS_SHOWN = 5


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]POD")
@offline_options
@click.option("--all-nodes", is_flag=True, help="Show every node in the tables, not only the first.")
def explain(
    pod: str,
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    output_format: str,
    all_nodes: bool,
) -> None:
    """Say for every node which rules refuse the pod, and how the others score it.

    \b
    kubectl get nodes,pods,namespaces -A -o yaml > cluster.yaml
    policysched explain batch/train-7 --policy my.policy --cluster cluster.yaml
    policysched explain web --policy my.policy --cluster cluster.yaml --output-format json | jq .totals

    Exit codes: 0 explained, whether or not a node was found; 2 could not run.
    """
    with report_unusable_files():
        program, files = load_inputs(policy_path, name, params, cluster_paths)
        at_ns = now_ns()
        samples, notes = load_samples(metrics_path, program, files.node_names(), now_ns=at_ns)
        kept, further = load_state_values(state_path, program, files.node_names(), now_ns=at_ns)
        notes += further
        answer = explain_pod(program, files, pod, samples=samples, kept=kept, now_ns=at_ns)
    notes = [*answer.notes, *notes]
    if output_format == "json":
        record = explain_record(
            program,
            answer.pod,
            answer.explanation,
            node_count=answer.node_count,
            samples=answer.samples,
            called=answer.peers,
            now_ns=answer.now_ns,
        )
        print_json({**record, "message": answer.message, "notes": notes})
        return
    print_notes(notes)
    console = output_console()
    print_explanation(console, answer, shown=answer.node_count if all_nodes else _NODES_SHOWN)


def print_explanation(console: "Console", answer: ExplainResult, *, shown: int = _NODES_SHOWN) -> None:
    """The tables for people: filters, refused nodes, scores, and last what the event would say."""
    console.print(f"policy [bold]{answer.program.name}[/]  sha {answer.program.sha256[:12]}")
    console.print(f"pod    [bold]{answer.pod.full_name}[/]\n")
    if answer.explanation.pod_refusal is None:
        _print_filters(console, answer)
        _print_rejected(console, answer, shown)
        _print_scores(console, answer, shown)
        _print_samples(console, answer, shown)
    console.print(answer.message, markup=False)


def _print_filters(console: "Console", answer: ExplainResult) -> None:
    from rich.table import Table

    total = answer.node_count
    table = Table("filter", box=None, pad_edge=False, header_style="bold")
    table.add_column("alone", justify="right")
    table.add_column("left", justify="right")
    steps = filter_steps(answer.explanation.refusals, node_count=total, order=list(answer.filters))
    for step in steps:
        table.add_row(step.rule, f"{step.alone}/{total}", str(step.left))
    console.print(table)
    console.print()


def _print_rejected(console: "Console", answer: ExplainResult, shown: int) -> None:
    from rich.table import Table

    if not answer.explanation.refusals:
        return
    table = Table("node", "refused by", "reason", box=None, pad_edge=False, header_style="bold")
    for node, refusals in sorted(answer.explanation.refusals.items())[:shown]:
        for index, refusal in enumerate(refusals):
            for reason in refusal.reasons:
                style = "" if index == 0 else "dim"
                table.add_row(node if index == 0 else "", refusal.rule, reason, style=style)
    console.print(table)
    _print_omitted_count(console, len(answer.explanation.refusals) - shown)
    console.print()


def _print_scores(console: "Console", answer: ExplainResult, shown: int) -> None:
    """A column a node, the chosen one first; each cell is what the rule adds to the node's total."""
    from rich.table import Table

    found = answer.explanation
    totals = sorted(found.totals.items(), key=lambda item: (item[0] != found.selected, -item[1], item[0]))
    if not totals:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("score × weight")
    columns = totals if shown >= answer.node_count else totals[:_COLUMNS_SHOWN]
    for node, _ in columns:
        chosen = node == found.selected
        table.add_column(f"→ {node}" if chosen else node, justify="right", style="bold" if chosen else "")
    for rule, cells in found.scores.items():
        weight = max((cell.weight for cell in cells.values()), default=0)
        row = (str(cells[node].weighted) if node in cells else "" for node, _ in columns)
        table.add_row(f"{rule} × {weight}", *row)
    table.add_row("total", *(str(total) for _, total in columns), style="bold")
    console.print(table)
    _print_omitted_count(console, len(totals) - len(columns))
    if len(totals) > 1:
        margin, second = totals[0][1] - totals[1][1], totals[1][0]
        words = (
            f"{margin} ahead of {second}" if margin else f"equal with {second}; settled by the hash of names"
        )
        console.print(f"{totals[0][0]} is {words}", markup=False)
    console.print()


def _print_samples(console: "Console", answer: ExplainResult, shown: int) -> None:
    """What the metrics had for each node, and how old it was; those between pods for each other pod."""
    for name in answer.peers:
        _print_pairs(console, answer, name, shown)
    from rich.table import Table

    metrics = {name: one for name, one in answer.program.metrics.items() if name not in answer.peers}
    if not metrics:
        return
    ages = {name: sample_ages(metric, answer.samples, answer.now_ns) for name, metric in metrics.items()}
    nodes = sorted({*answer.explanation.totals, *answer.explanation.refusals})
    table = Table("sample", *metrics, box=None, pad_edge=False, header_style="bold")
    for node in nodes[:shown]:
        cells = (_aged(metrics[name], ages[name].get(node)) for name in metrics)
        table.add_row(node, *cells)
    console.print(table)
    _print_omitted_count(console, len(nodes) - shown)
    console.print()


def _print_pairs(console: "Console", answer: ExplainResult, name: str, shown: int) -> None:
    from rich.table import Table

    metric = answer.program.metrics[name]
    peers = pair_ages(metric, answer.samples, answer.peers[name], answer.now_ns)
    table = Table(
        f"between {'/'.join(answer.peers[name])} and", name, box=None, pad_edge=False, header_style="bold"
    )
    for peer, one in list(peers.items())[:shown]:
        table.add_row(peer, _aged(metric, one))
    if not peers:
        table.add_row("any other pod", "missing")
    console.print(table)
    _print_omitted_count(console, len(peers) - shown)
    console.print()


def _aged(metric: Metric, one: AgedSample | None) -> str:
    if one is None:
        return "missing"
    value = one.value if metric.type.is_float64 else int(one.value)
    return (
        f"{format_value(value, metric.type)}, {one.age_s:g} s old{' (stale: missing)' if one.stale else ''}"
    )


def _print_omitted_count(console: "Console", rest: int) -> None:
    if rest > 0:
        console.print(f"  and {rest} more (--all-nodes shows them)", style="dim")
