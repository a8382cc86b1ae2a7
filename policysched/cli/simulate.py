"""`policysched simulate`: place the pending pods of a cluster file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from policysched.from_files.inputs import load_samples
from policysched.from_files.simulate import SimulationResult, choose_scope
from policysched.from_files.simulate import simulate as simulate_cluster
from policysched.from_files.state_values import load_state_values
from policysched.offline.pod_explanation import missing_inputs_note


@click.command()
@offline_options
@click.option(
    "--pods",
    "pods_scope",
    type=click.Choice(["auto", "named", "all"]),
    default="auto",
    show_default=True,
    help="The pods to place. named: those whose schedulerName is the policy; all: every pending pod; auto: named if "
    "there are any, otherwise all.",
)
@click.option("--fail-on-pending", is_flag=True, help="Exit with 1 if a pod stays pending.")
def simulate(
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    config_path: Path | None,
    output_format: str,
    pods_scope: str,
    fail_on_pending: bool,
) -> None:
    """Place the pending pods of a cluster file, one after another in the order of the policy's queue.

    Examples:

    \b
      kubectl get nodes,pods,namespaces -A -o yaml > cluster.yaml
      policysched simulate --policy my.policy --cluster cluster.yaml
      policysched simulate --policy my.policy --cluster cluster.yaml --output-format json --fail-on-pending

    Exit codes: 0 success; 1 a pod stays pending (with --fail-on-pending); 2 could not run.
    """
    with report_unusable_files():
        program, files, authority = load_inputs(policy_path, name, params, cluster_paths, config_path)
        at_ns = now_ns()
        samples, notes = load_samples(metrics_path, program, files.node_names(), now_ns=at_ns)
        states, state_notes = load_state_values(state_path, program, files.node_names(), now_ns=at_ns)
        notes += state_notes
    scope = (
        choose_scope(files, program.name)
        if pods_scope == "auto"
        else "named"
        if pods_scope == "named"
        else "all"
    )
    if pods_scope == "auto" and scope == "all" and files.pods:
        notes.append(f"no pending pod has schedulerName {program.name}; all pending pods are placed")
    if program.extenders:
        notes.append(missing_inputs_note(program))
    with _progress() as progress:
        result = simulate_cluster(
            program,
            files,
            samples=samples,
            saved_states=states,
            authority=authority,
            scope=scope,
            now_ns=at_ns,
            progress=progress,
        )
    if output_format == "json":
        print_json({**result.record(), "notes": notes})
    else:
        print_notes(notes)
        _print(result)
    if fail_on_pending and result.pending:
        sys.exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("placing pods")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(result: SimulationResult) -> None:
    from rich.table import Table

    console = output_console()
    if result.placements:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("order", justify="right")
        table.add_column("pod")
        table.add_column("node")
        table.add_column("score", justify="right")
        for row in result.placements:
            table.add_row(str(row.order), row.pod, row.node, str(row.score))
        console.print(table)
    if result.preempted:
        console.print(f"\npreempted: {', '.join(result.preempted)}")
    if result.pending:
        table = Table("pending", "reason", box=None, pad_edge=False, header_style="bold")
        for pod, message in result.pending:
            table.add_row(pod, message)
        console.print()
        console.print(table)
    console.print(f"\n{len(result.placements)} placed, {len(result.pending)} pending")
