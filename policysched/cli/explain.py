"""`policysched explain`: why a pod is placed where it is, or nowhere."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli.offline_options import (
    load_authority,
    load_inputs,
    offline_options,
    print_json,
    print_notes,
    report_unusable_files,
)
from policysched.cli.tables import output_console
from policysched.from_files.inputs import load_present
from policysched.lang.ir.declarations import Metric
from policysched.lang.types.units import format_value
from policysched.offline.pod_explanation import ExplainResult, explain_pod
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
@click.option("--all-nodes", is_flag=True, help="Show every node in the tables, not only the first few.")
def explain(
    pod: str,
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    config_path: Path | None,
    at_ns: int | None,
    output_format: str,
    all_nodes: bool,
) -> None:
    """Explain why a pod is placed where it is: which filters reject each node, and how rules score the others.

    Examples:

    \b
      kubectl get nodes,pods,namespaces -A -o yaml > cluster.yaml
      policysched explain batch/train-7 --policy my.policy --cluster cluster.yaml
      policysched explain web --policy my.policy --cluster cluster.yaml --output-format json | jq .totals

    Exit codes: 0 explained, whether or not the pod fits a node; 2 could not run.
    """
    with report_unusable_files():
        program, files = load_inputs(policy_path, name, params, cluster_paths)
        present = load_present(
            metrics_path,
            state_path,
            program,
            files.node_names(),
            at_ns=at_ns,
            clock_ns=time.time_ns(),
        )
        result = explain_pod(
            program,
            files,
            pod,
            samples=present.samples,
            saved_states=present.states,
            authority=load_authority(config_path, program),
            now_ns=present.now_ns,
        )
    notes = [*result.notes, *present.notes]
    if output_format == "json":
        record = explain_record(
            program,
            result.pod,
            result.explanation,
            node_count=result.node_count,
            samples=result.samples,
            called=result.peers,
            now_ns=result.now_ns,
        )
        print_json({**record, "message": result.message, "notes": notes})
        return
    print_notes(notes)
    console = output_console()
    print_explanation(console, result, shown=result.node_count if all_nodes else _NODES_SHOWN)


def print_explanation(console: "Console", answer: ExplainResult, *, shown: int = _NODES_SHOWN) -> None:
    """Print tables of filters, rejected nodes, scores and samples, then the message of the event."""
    console.print(f"policy [bold]{answer.program.name}[/]  sha {answer.program.sha256[:12]}")
    console.print(f"pod    [bold]{answer.pod.full_name}[/]\n")
    if answer.explanation.pod_rejection is None:
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
    steps = filter_steps(answer.explanation.rejections, node_count=total, order=list(answer.filters))
    for step in steps:
        table.add_row(step.rule, f"{step.alone}/{total}", str(step.left))
    console.print(table)
    console.print()


def _print_rejected(console: "Console", answer: ExplainResult, shown: int) -> None:
    from rich.table import Table

    if not answer.explanation.rejections:
        return
    table = Table("node", "rejected by", "reason", box=None, pad_edge=False, header_style="bold")
    for node, rejections in sorted(answer.explanation.rejections.items())[:shown]:
        for index, rejection in enumerate(rejections):
            for reason in rejection.reasons:
                style = "" if index == 0 else "dim"
                table.add_row(node if index == 0 else "", rejection.rule, reason, style=style)
    console.print(table)
    _print_omitted_count(console, len(answer.explanation.rejections) - shown)
    console.print()


def _print_scores(console: "Console", answer: ExplainResult, shown: int) -> None:
    """One column per node, the selected node first. A cell is what the rule adds to the node's total."""
    from rich.table import Table

    explanation = answer.explanation
    selected = explanation.selected
    totals = sorted(explanation.totals.items(), key=lambda item: (item[0] != selected, -item[1], item[0]))
    if not totals:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("score × weight")
    columns = totals if shown >= answer.node_count else totals[:_COLUMNS_SHOWN]
    for node, _ in columns:
        heading, style = (f"→ {node}", "bold") if node == selected else (node, "")
        table.add_column(heading, justify="right", style=style)
    for rule, cells in explanation.scores.items():
        weight = max((cell.weight for cell in cells.values()), default=0)
        row = (str(cells[node].weighted) if node in cells else "" for node, _ in columns)
        table.add_row(f"{rule} × {weight}", *row)
    table.add_row("total", *(str(total) for _, total in columns), style="bold")
    console.print(table)
    _print_omitted_count(console, len(totals) - len(columns))
    if len(totals) > 1:
        margin, second = totals[0][1] - totals[1][1], totals[1][0]
        comparison = (
            f"leads {second} by {margin}"
            if margin
            else f"ties with {second}; the hash of their names breaks the tie"
        )
        console.print(f"{totals[0][0]} {comparison}", markup=False)
    console.print()


def _print_samples(console: "Console", answer: ExplainResult, shown: int) -> None:
    """Print the samples of each node with their age, and of each other pod for metrics between pods."""
    for name in answer.peers:
        _print_pairs(console, answer, name, shown)
    from rich.table import Table

    metrics = {name: metric for name, metric in answer.program.metrics.items() if name not in answer.peers}
    if not metrics:
        return
    ages = {name: sample_ages(metric, answer.samples, answer.now_ns) for name, metric in metrics.items()}
    nodes = sorted({*answer.explanation.totals, *answer.explanation.rejections})
    table = Table("sample", *metrics, box=None, pad_edge=False, header_style="bold")
    for node in nodes[:shown]:
        cells = (_sample_text(metrics[name], ages[name].get(node)) for name in metrics)
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
    for peer, sample in list(peers.items())[:shown]:
        table.add_row(peer, _sample_text(metric, sample))
    if not peers:
        table.add_row("any other pod", "missing")
    console.print(table)
    _print_omitted_count(console, len(peers) - shown)
    console.print()


def _sample_text(metric: Metric, sample: AgedSample | None) -> str:
    if sample is None:
        return "missing"
    value = sample.value if metric.type.is_float64 else int(sample.value)
    stale = " (stale, counts as missing)" if sample.stale else ""
    return f"{format_value(value, metric.type)}, {sample.age_s:g} s old{stale}"


def _print_omitted_count(console: "Console", rest: int) -> None:
    if rest > 0:
        console.print(f"  and {rest} more (use --all-nodes to show them)", style="dim")
