"""`policysched diff`: what a change of a policy would do to the pods of a cluster."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from policysched.cli import CommandError, write_file
from policysched.cli.diff_inputs import read_cluster, read_recording, reject_both
from policysched.cli.diff_view import print_comparison
from policysched.cli.offline_options import (
    input_options,
    load_policy,
    load_settings_rules,
    pods_option,
    print_json,
    print_notes,
    report_unusable_files,
)
from policysched.cli.policy_options import recorded_time_options
from policysched.cli.progress import progress_bar
from policysched.cli.start_options import context_option, kubeconfig_option
from policysched.cli.tables import output_console
from policysched.comparison.comparison import RUNS_MAX_DEFAULT, Comparison, compare
from policysched.comparison.fail_condition import BadFailCondition, FailCondition, parse_fail_condition
from policysched.comparison.report_texts import recorded_note
from policysched.comparison.runner import Compared
from policysched.files import STANDARD_INPUT
from policysched.from_files.simulate import RequestedScope
from policysched.recording.reader import UnusableRecording

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
@click.option(
    "--recording",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Replay the recording of `policysched run --record DIR` with each of the policies.",
)
@recorded_time_options
@pods_option
@click.option(
    "--placed",
    is_flag=True,
    help="Also place the pods that already have a node, except those of DaemonSets, to show where they would go now.",
)
@click.option(
    "--fail-on",
    type=_FailOn(),
    metavar="CONDITION",
    help="Exit with 2 only if this condition holds, such as 'newly_pending > 0 or moved > 5%' (default: any pod changes).",
)
@click.option("--html", "html_path", metavar="FILE", help="Also write a self-contained HTML page with plots.")
@click.option(
    "--max-simulations",
    "runs_max",
    type=click.IntRange(0),
    default=RUNS_MAX_DEFAULT,
    show_default=True,
    help="Maximum number of simulations in the search for causes. Each applies some of the changes.",
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
    recording: Path | None,
    from_ns: int | None,
    to_ns: int | None,
    last_ns: int | None,
    pods_scope: RequestedScope,
    placed: bool,
    fail_on: FailCondition | None,
    html_path: str | None,
    runs_max: int,
) -> None:
    """Compare the policies OLD and NEW: which pods move, become pending or schedulable, are evicted or change their
    order, and which changed lines of the policy cause it.

    Each policy places the pending pods on the same cluster, as `simulate` does. The cluster is read from --cluster or
    through the kubeconfig; nothing is written to it. With --recording, each policy schedules the recorded
    pods again: nodes, samples and pods come and go as they did then.

    Examples:

    \b
      policysched diff old.policy new.policy --cluster cluster.yaml
      policysched diff old.policy new.policy --kubeconfig ~/.kube/config --placed --html diff.html
      policysched diff old.policy new.policy --recording /var/lib/policysched/recording --last 24h
      policysched diff old.policy new.policy --cluster cluster.yaml --fail-on 'newly_pending > 0 or moved > 5%'

    Exit codes: 0 the same, or --fail-on does not hold; 1 could not run; 2 different, or --fail-on holds.
    """
    if [old, new, *cluster_paths].count(STANDARD_INPUT) > 1:
        raise CommandError("-: standard input can be read only once")
    of_a_cluster = (
        *(("--cluster", cluster_paths), ("--kubeconfig", kubeconfig), ("--context", context)),
        *(("--metrics", metrics_path), ("--state", state_path), ("--at", at_ns), ("--placed", placed)),
        ("--pods", pods_scope != "auto"),
    )
    reject_both(recording, of_a_cluster, only=any(part is not None for part in (from_ns, to_ns, last_ns)))
    with progress_bar() as progress, report_unusable_files(), _report_unusable_recordings():
        rules = load_settings_rules(config_path)
        programs = load_policy(old, name, params, rules), load_policy(new, name, params, rules)
        compared: Compared
        if recording is not None:
            compared, notes = read_recording(recording, programs, from_ns, to_ns, last_ns)
        else:
            compared, notes = read_cluster(
                programs,
                rules.permissions,
                progress,
                paths=cluster_paths,
                kubeconfig=kubeconfig,
                context=context,
                metrics_path=metrics_path,
                state_path=state_path,
                at_ns=at_ns,
                pods_scope=pods_scope,
                placed=placed,
            )
        comparison = compare(*programs, compared, runs_max=runs_max, progress=progress)
        notes += compared.notes
        recorded = recorded_note(comparison.record())
        notes += [] if recorded is None else [recorded]
    if html_path is not None:
        from policysched.comparison.html_page import render_page

        write_file(html_path, render_page(comparison, notes))
    failed = bool(comparison.changed) if fail_on is None else fail_on.holds(comparison)
    _print(comparison, notes, output_format, fail_on, failed=failed)
    if failed:
        sys.exit(_DIFFERENT)


@contextmanager
def _report_unusable_recordings() -> Iterator[None]:
    try:
        yield
    except UnusableRecording as error:
        raise CommandError(str(error)) from None


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
