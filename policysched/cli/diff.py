"""`policysched diff`: what a change of a policy would do to the pods of a cluster."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched import __version__
from policysched.cli import CommandError, write_file
from policysched.cli.diff_view import print_comparison
from policysched.cli.offline_options import (
    file_options,
    load_settings_rules,
    print_json,
    print_notes,
    report_unusable_files,
)
from policysched.cli.start_options import context_option, kubeconfig_option
from policysched.cli.tables import output_console
from policysched.comparison.comparison import RUNS_MAX_DEFAULT, Comparison, compare
from policysched.comparison.fail_condition import BadFailCondition, FailCondition, parse_fail_condition
from policysched.comparison.report_texts import count_text
from policysched.comparison.runner import ComparedCluster, Progress, no_progress
from policysched.files import STANDARD_INPUT
from policysched.from_files.cluster_files import ClusterFiles, read_cluster_files
from policysched.from_files.inputs import PolicyHasErrors, PresentInputs, choose_policy, load_present
from policysched.from_files.live_cluster import read_live_cluster
from policysched.from_files.simulate import choose_scope
from policysched.lang.ir.program import Program
from policysched.offline.pod_explanation import missing_inputs_note
from policysched.policy_files.source_set import UnusableFile

if TYPE_CHECKING:
    from policysched.from_files.settings_rules import SettingsRules


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


def _shared_options(command: click.decorators.FC) -> click.decorators.FC:
    """Those of `simulate` but --policy."""
    command = file_options(command)
    params = getattr(command, "__click_params__")  # noqa: B009 - where click keeps options until the command is made
    params[:] = [option for option in params if option.name != "policy_path"]
    return command


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@_shared_options
@kubeconfig_option
@context_option
@click.option(
    "--pods",
    "pods_scope",
    type=click.Choice(["auto", "named", "all"]),
    default="auto",
    show_default=True,
    help="The pods to place. named: those whose schedulerName is the policy OLD; all: every pending pod; auto: named if "
    "there are any, otherwise all.",
)
@click.option(
    "--placed",
    is_flag=True,
    help="Also place the pods again that have a node, except those of DaemonSets: where would they go if they came now?",
)
@click.option(
    "--fail-on",
    type=_FailOn(),
    metavar="CONDITION",
    help="Exit with 1 only if this holds, such as 'newly_pending > 0 or moved > 5%'. Default: if any pod changes.",
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
    pods_scope: str,
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

    Exit codes: 0 the same, or --fail-on does not hold; 1 different, or --fail-on holds; 2 could not run.
    """
    if [old, new, *cluster_paths].count(STANDARD_INPUT) > 1:
        raise CommandError("-: standard input can be read only once")
    with _progress() as progress, report_unusable_files():
        rules = load_settings_rules(config_path)
        programs = [_load_policy(path, name, params, rules) for path in (old, new)]
        files, notes = _read_cluster(cluster_paths, kubeconfig, context, progress)
        scope = (
            choose_scope(files, programs[0].name)
            if pods_scope == "auto"
            else "named"
            if pods_scope == "named"
            else "all"
        )
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
        sys.exit(1)


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


def _load_policy(path: str, name: str | None, params: tuple[str, ...], rules: "SettingsRules") -> Program:
    program = choose_policy(path, name, params, rules.load)
    problems = rules.problems(program)
    if problems:
        raise PolicyHasErrors(problems)
    return program


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
    for malformed in files.malformed:
        click.echo(f"policysched: skipped: {malformed}", err=True)
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


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar if standard error is a terminal. It has no thread: processes are forked while it is shown."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")
        shown_at = 0.0

        def show(what: str, done: int, total: int) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at > 0.1:
                shown_at = time.monotonic()
                bar.update(task, description=what, completed=done, total=total)
                bar.refresh()

        yield show
