"""`policysched simulate`: where the pending pods of a cluster file would go."""

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
from policysched.harness.inputs import load_samples
from policysched.harness.simulate import SimulationResult, choose_scope
from policysched.harness.simulate import simulate as simulate_cluster
from policysched.harness.state_values import load_state_values
from policysched.offline.explain import missing_inputs_note


@click.command()
@offline_options
@click.option(
    "--pods",
    "pods_scope",
    type=click.Choice(["auto", "named", "all"]),
    default="auto",
    show_default=True,
    help="Which pending pods: those that name the policy in schedulerName, all, or the former where there are any.",
)
@click.option("--fail-on-pending", is_flag=True, help="Exit 1 if a pod found no node.")
def simulate(
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    output_format: str,
    pods_scope: str,
    fail_on_pending: bool,
) -> None:
    """Place the pending pods of a cluster file, in the policy's order, each on what those before it left.

    \b
    kubectl get nodes,pods,namespaces -A -o yaml > cluster.yaml
    policysched simulate --policy my.policy --cluster cluster.yaml
    policysched simulate --policy my.policy --cluster cluster.yaml --output-format json --fail-on-pending

    Exit codes: 0 simulated; 1 a pod found no node and --fail-on-pending is given; 2 could not run.
    """
    with report_unusable_files():
        program, files = load_inputs(policy_path, name, params, cluster_paths)
        at_ns = now_ns()
        samples, notes = load_samples(metrics_path, program, files.node_names(), now_ns=at_ns)
        kept, further = load_state_values(state_path, program, files.node_names(), now_ns=at_ns)
        notes += further
    scope = (
        choose_scope(files, program.name)
        if pods_scope == "auto"
        else "named"
        if pods_scope == "named"
        else "all"
    )
    if pods_scope == "auto" and scope == "all" and files.pods:
        notes.append(f"no pending pod names the scheduler {program.name}: every pending pod is placed")
    if program.extenders:
        notes.append(missing_inputs_note(program))
    with _progress() as progress:
        answer = simulate_cluster(
            program, files, samples=samples, kept=kept, scope=scope, now_ns=at_ns, progress=progress
        )
    if output_format == "json":
        print_json({**answer.record(), "notes": notes})
    else:
        print_notes(notes)
        _print(answer)
    if fail_on_pending and answer.pending:
        sys.exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("placing pods")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(answer: SimulationResult) -> None:
    from rich.table import Table

    console = output_console()
    if answer.placements:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("order", justify="right")
        table.add_column("pod")
        table.add_column("node")
        table.add_column("score", justify="right")
        for one in answer.placements:
            table.add_row(str(one.order), one.pod, one.node, str(one.score))
        console.print(table)
    if answer.preempted:
        console.print(f"\nevicted for others: {', '.join(answer.preempted)}")
    if answer.pending:
        table = Table("pending", "why", box=None, pad_edge=False, header_style="bold")
        for pod, message in answer.pending:
            table.add_row(pod, message)
        console.print()
        console.print(table)
    console.print(f"\n{len(answer.placements)} placed, {len(answer.pending)} pending")
