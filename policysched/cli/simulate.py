"""`policysched simulate`: place the pending pods of a cluster file."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli.offline_options import (
    load_inputs,
    load_values,
    offline_options,
    pods_option,
    print_json,
    print_notes,
    report_unusable_files,
)
from policysched.cli.progress import progress_bar
from policysched.cli.tables import output_console, print_table
from policysched.from_files.inputs import with_assumed_load
from policysched.from_files.simulate import RequestedScope, SimulationResult, choose_scope
from policysched.from_files.simulate import simulate as simulate_cluster
from policysched.offline.pod_explanation import missing_inputs_note
from policysched.text.abbreviate import abbreviate_names

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@offline_options
@pods_option
@click.option("--fail-on-pending", is_flag=True, help="Exit with 1 if a pod stays pending.")
def simulate(
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    config_path: Path | None,
    at_ns: int | None,
    output_format: str,
    pods_scope: RequestedScope,
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
        program, files, permissions = load_inputs(policy_path, name, params, cluster_paths, config_path)
        present = load_values(metrics_path, state_path, program, files, at_ns)
    notes = present.notes
    scope = choose_scope(files, program.name, pods_scope)
    if pods_scope == "auto" and scope == "all" and files.pods:
        notes.append(f"no pending pod has schedulerName {program.name}; all pending pods are placed")
    if program.extenders:
        notes.append(missing_inputs_note(program))
    with progress_bar() as show:
        result = simulate_cluster(
            program,
            files,
            samples=with_assumed_load(present.samples),
            saved_states=present.states,
            permissions=permissions,
            scope=scope,
            now_ns=present.now_ns,
            progress=partial(show, "placing pods"),
        )
    if output_format == "json":
        print_json({**result.record(), "notes": notes})
    else:
        print_notes(notes)
        _print(result)
    if fail_on_pending and result.pending:
        sys.exit(1)


def _print(result: SimulationResult) -> None:
    console = output_console()
    if result.placements:
        rows = [(str(row.order), row.pod, row.node, str(row.score)) for row in result.placements]
        print_table(console, ("order", "pod", "node", "score"), rows, right=(0, 3))
    if result.preempted:
        console.print(f"\npreempted: {', '.join(result.preempted)}", markup=False)
    if result.pending:
        console.print()
        if console.is_terminal:
            _print_pending_by_message(console, result)
        else:
            print_table(console, ("pending", "reason"), result.pending)
    console.print(f"\n{len(result.placements)} placed, {len(result.pending)} pending")


def _print_pending_by_message(console: "Console", result: SimulationResult) -> None:
    """Each message once, the one of most pods first."""
    from rich.padding import Padding
    from rich.text import Text

    pods_by_message: dict[str, list[str]] = {}
    for pod, message in result.pending:
        pods_by_message.setdefault(message, []).append(pod)
    for message, pods in sorted(pods_by_message.items(), key=lambda item: -len(item[1])):
        count = f"{len(pods)} pods pending: " if len(pods) > 1 else "pending: "
        console.print(f"{count}{abbreviate_names(pods)}", style="bold", markup=False)
        console.print(Padding(Text(message), (0, 0, 0, 2), expand=False))
