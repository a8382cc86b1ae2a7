"""`policysched diff`: what a change of a policy would do to the pods of a cluster."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from policysched import __version__
from policysched.cli import CommandError, write_file
from policysched.cli.diff_view import print_comparison
from policysched.cli.offline_options import (
    input_options,
    load_policy,
    load_settings_rules,
    pods_option,
    print_json,
    print_notes,
    report_malformed,
    report_unusable_files,
)
from policysched.cli.progress import progress_bar
from policysched.cli.start_options import context_option, kubeconfig_option
from policysched.cli.tables import output_console
from policysched.comparison.comparison import RUNS_MAX_DEFAULT, Comparison, compare
from policysched.comparison.fail_condition import BadFailCondition, FailCondition, parse_fail_condition
from policysched.comparison.report_texts import count_text
from policysched.comparison.runner import ComparedCluster, Progress
from policysched.files import STANDARD_INPUT
from policysched.from_files.cluster_files import ClusterFiles, read_cluster_files
from policysched.from_files.inputs import PresentInputs, load_present
from policysched.from_files.live_cluster import read_live_cluster
from policysched.from_files.simulate import RequestedScope, choose_scope
from policysched.lang.ir.program import Program
from policysched.offline.pod_explanation import missing_inputs_note
from policysched.policy_files.source_set import UnusableFile

_DIFFERENT = 2
"""As `terraform plan -detailed-exitcode`; 1 is an error."""


class _FailOn(click.ParamType[FailCondition]):
    name = "condition"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> FailCondition:
        if isinstance(value, FailCondition):
            return value
        try:
            return parse_fail_condition(str(value))
        except BadFailCondition as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@input_options
@kubeconfig_option
@context_option
@pods_option
@click.option(
    "--placed",
    is_flag=True,
    help="Also place the pods again that have a node, except those of DaemonSets: where would they go if they came now?",
)
@click.option(
    "--fail-on",
    type=_FailOn(),
    metavar="CONDITION",
    help="Exit with 2 only if this holds, such as 'newly_pending > 0 or moved > 5%'. Default: if any pod changes.",
)
@click.option("--html", "html_path", metavar="FILE", help="Also write a page with plots, in one file.")
@click.option(
    "--max-simulations",
    "runs_max",
    type=click.IntRange(0),
    default=RUNS_MAX_DEFAULT,
    show_default=True,
    help="The most simulations with some of the changes, by which the causes are found.",
)
def diff(
    old: str,
    new: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    metrics_path: Path | None,
    state_path: Path | None,
    config_path: Path | None,
    at_ns: int | None,
    output_format: str,
    kubeconfig: str | None,
    context: str | None,
    pods_scope: RequestedScope,
    placed: bool,
    fail_on: FailCondition | None,
    html_path: str | None,
    runs_max: int,
) -> None:
    """Compare the policies OLD and NEW: which pods move, become pending or schedulable, are evicted or change their
    order, and which changed lines of the policy cause it.

    The pending pods are placed by each policy on the same cluster, as `simulate` places them: that of --cluster, or the
    one of the kubeconfig, which is read and not changed.

    Examples:

    \b
      policysched diff old.policy new.policy --cluster cluster.yaml
      policysched diff old.policy new.policy --kubeconfig ~/.kube/config --placed --html diff.html
      policysched diff old.policy new.policy --cluster cluster.yaml --fail-on 'newly_pending > 0 or moved > 5%'

    Exit codes: 0 the same, or --fail-on does not hold; 1 could not run; 2 different, or --fail-on holds.
    """
    if [old, new, *cluster_paths].count(STANDARD_INPUT) > 1:
        raise CommandError("-: standard input can be read only once")
    with progress_bar() as progress, report_unusable_files():
        rules = load_settings_rules(config_path)
        programs = [load_policy(path, name, params, rules) for path in (old, new)]
        files, notes = _read_cluster(cluster_paths, kubeconfig, context, progress)
        scope = choose_scope(files, programs[0].name, pods_scope)
        if placed:
            files, taken = _with_placed_pods_pending(files, None if scope == "all" else programs[0].name)
            notes.append(f"{count_text(taken, 'placed pod')} placed again")
        nodes = files.node_names()
        now_ns = load_present(
            metrics_path, state_path, programs[0], nodes, at_ns=at_ns, clock_ns=time.time_ns()
        ).now_ns

        def present_of(program: Program) -> PresentInputs:
            return load_present(metrics_path, state_path, program, nodes, at_ns=now_ns, clock_ns=now_ns)

        for program in programs:
            notes += [note for note in present_of(program).notes if note not in notes]
            notes += [missing_inputs_note(program)] if program.extenders else []
        if programs[0].name != programs[1].name:
            notes.append(
                f"{programs[1].name} is evaluated under the name {programs[0].name}, for the same pods"
            )
        cluster = ComparedCluster(files, scope, now_ns, present_of, rules.authority)
        comparison = compare(programs[0], programs[1], cluster, runs_max=runs_max, progress=progress)
    if html_path is not None:
        from policysched.comparison.html_page import render_page

        write_file(html_path, render_page(comparison, notes))
    failed = bool(comparison.changed) if fail_on is None else fail_on.holds(comparison)
    _print(comparison, notes, output_format, fail_on, failed=failed)
    if failed:
        sys.exit(_DIFFERENT)


def _print(
    comparison: Comparison,
    notes: list[str],
    output_format: str,
    fail_on: FailCondition | None,
    *,
    failed: bool,
) -> None:
    if output_format == "json":
        condition = None if fail_on is None else {"condition": fail_on.text, "holds": failed}
        print_json({**comparison.record(), "fail_on": condition, "notes": notes})
        return
    print_notes(notes)
    print_comparison(output_console(), comparison.record())
    if fail_on is not None:
        print_notes([f"--fail-on {fail_on.text}: {'holds' if failed else 'does not hold'}"])


def _read_cluster(
    paths: tuple[str, ...], kubeconfig: str | None, context: str | None, progress: Progress
) -> tuple[ClusterFiles, list[str]]:
    if paths and (kubeconfig or context):
        raise click.UsageError("--cluster and --kubeconfig exclude each other")
    if paths:
        files, notes = read_cluster_files(paths), list[str]()
    else:
        files, notes = read_live_cluster(
            None if kubeconfig is None else Path(kubeconfig),
            context,
            user_agent=f"policysched-diff/{__version__}",
            progress=progress,
        )
    report_malformed(files)
    if not files.nodes:
        raise UnusableFile("the cluster has no nodes, so that every pod is pending with both policies")
    return files, notes


def _with_placed_pods_pending(files: ClusterFiles, scheduler: str | None) -> tuple[ClusterFiles, int]:
    """The same cluster before the pods of this scheduler (None: of any) were placed, and how many these are."""
    taken = {
        observed.pod.uid
        for observed in files.pods
        if observed.node is not None
        and not observed.finished
        and not observed.deleting
        and observed.pod.owner_kind not in ("DaemonSet", "Node")
        and scheduler in (None, observed.pod.scheduler)
    }
    pods = [
        replace(observed, node=None, phase="Pending", started_ns=None)
        if observed.pod.uid in taken
        else observed
        for observed in files.pods
    ]
    return replace(files, pods=pods), len(taken)
