"""`policysched explain`: why a pod is placed where it is, or nowhere."""

from pathlib import Path
from typing import Any

import click

from policysched.cli.explain_view import print_explanation
from policysched.cli.live_options import live_options, live_page
from policysched.cli.offline_options import (
    file_options,
    load_inputs,
    load_values,
    print_json,
    print_notes,
    report_unusable_files,
)
from policysched.cli.tables import output_console
from policysched.offline.pod_explanation import explain_pod


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]POD")
@file_options
@live_options
@click.option("--all", "--all-nodes", "in_full", is_flag=True, help="Show every filter and every node.")
def explain(
    pod: str,
    policy_path: str | None,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    config_path: Path | None,
    at_ns: int | None,
    output_format: str,
    in_full: bool,
    **target: Any,
) -> None:
    """Explain why a pod is on its node, or why it is pending: which filters reject nodes, the closest miss, what would
    make the pod fit, and how rules score the nodes.

    Without --policy and --cluster, the running scheduler explains the pod from its own cache, samples and queue; the
    kubeconfig locates it. With both options, the command reads only the given files.

    Examples:

    \b
      policysched explain batch/train-7
      kubectl policysched why train-7
      kubectl get nodes,pods,namespaces -A -o yaml > cluster.yaml
      policysched explain batch/train-7 --policy my.policy --cluster cluster.yaml
      policysched explain web --policy my.policy --cluster cluster.yaml --output-format json | jq .totals

    Exit codes: 0 explained, whether or not the pod fits a node; 2 could not run.
    """
    if policy_path is None and not cluster_paths:
        _explain_running(pod, output_format, in_full=in_full, **target)
        return
    if policy_path is None or not cluster_paths:
        missing = "--policy" if policy_path is None else "--cluster"
        raise click.UsageError(f"{missing} is missing; give both, or neither to ask the running scheduler")
    with report_unusable_files():
        program, files, permissions = load_inputs(policy_path, name, params, cluster_paths, config_path)
        present = load_values(metrics_path, state_path, program, files, at_ns)
        result = explain_pod(
            program,
            files,
            pod,
            samples=present.samples,
            saved_states=present.states,
            permissions=permissions,
            now_ns=present.now_ns,
        )
    record = {**result.record(), "notes": [*result.notes, *present.notes]}
    if output_format == "json":
        print_json(record)
        return
    print_notes(record["notes"])
    print_explanation(output_console(), record, in_full=in_full)


def _explain_running(pod: str, output_format: str, *, in_full: bool, **target: Any) -> None:
    record = live_page("/explain", {"pod": pod}, **target)
    if output_format == "json":
        print_json(record)
        return
    print_notes(record["notes"])
    print_explanation(output_console(), record, in_full=in_full)
