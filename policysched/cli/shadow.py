"""`policysched shadow`: decide beside another scheduler, and compare."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from policysched.cli import CommandError
from policysched.cli.offline_options import (
    load_policy,
    load_settings_rules,
    policy_option,
    report_unusable_files,
)
from policysched.cli.policy_options import Duration, name_option, output_format_option, param_option
from policysched.cli.start_options import (
    config_option,
    context_option,
    kubeconfig_option,
    metrics_option,
    report_start_errors,
)
from policysched.cli.tables import output_console, print_table
from policysched.text.sanitize import escape_json, sanitize_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from policysched.shadow.observer import BindComparison
    from policysched.shadow.program import ShadowState

_REFRESHES_PER_S = 4


@click.command()
@policy_option(required=True)
@name_option
@param_option
@click.option(
    "--for",
    "other",
    metavar="NAME",
    default="default-scheduler",
    show_default=True,
    help="The schedulerName of the pods to compare: those that the other scheduler binds.",
)
@kubeconfig_option
@context_option
@metrics_option
@config_option
@click.option(
    "--duration", "duration_ns", type=Duration(), metavar="TIME", help="Stop after this time, such as 10m."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Record the nodes, pods and samples of the cluster, for `policysched diff OLD NEW --recording DIR`.",
)
@output_format_option
def shadow(
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    other: str,
    kubeconfig: str | None,
    context: str | None,
    metrics: str | None,
    config: str | None,
    duration_ns: int | None,
    record: Path | None,
    output_format: str,
) -> None:
    """Watch another scheduler, and compare each of its binds with what a policy would have chosen, on the cluster as it was
    just before the bind. Nothing is written to the cluster, and nothing is installed in it.

    \b
    agrees              the same node
    agrees among equals another node with the same total
    differs             the policy's node has a higher total: by which rule and how many points
    rejects             the policy rejects the node, or does not try the pod at all

    If the policy had a node for the pod at least one second before the bind, the output says so. The summary follows at
    the end: after --duration or Ctrl-C.

    Examples:

    \b
      policysched shadow --policy policies/kube-default.policy
      policysched shadow --policy my.policy --for default-scheduler --duration 1h --output-format json > binds.jsonl
      policysched shadow --policy my.policy --record seen

    Exit codes: 0 ended by --duration or a signal; 2 could not run.
    """
    from policysched.recording.writer import check_writable
    from policysched.shadow.program import ShadowSettings, recording_settings, run_shadow

    with report_unusable_files():
        rules = load_settings_rules(None if config is None else Path(config))
        program = load_policy(policy_path, name, params, rules)
    if record is not None:
        try:
            check_writable(record)
        except OSError as error:
            raise CommandError(f"cannot record to {record}: {error.strerror or error}") from error
    with report_start_errors():
        from policysched.config.settings import read_settings

        configured = None if config is None else read_settings(Path(config), {}, {})
        settings = ShadowSettings(
            program,
            other,
            None if kubeconfig is None else Path(kubeconfig),
            context,
            None if duration_ns is None else duration_ns / 1e9,
            None if metrics is None else Path(metrics),
            rules.permissions,
            configured,
            None if record is None else recording_settings(record, configured),
        )
        if program.extenders:
            click.echo("note: extenders are not called", err=True)
        with _view(output_format) as (compared, refresh):
            state = run_shadow(settings, compared, refresh)
    if not (state.synced or state.failed):  # it may be reading the cluster again
        raise CommandError(state.problem or "the first lists of the cluster were not complete in time")
    if state.not_recorded:
        click.echo(f"note: {state.not_recorded}", err=True)
    if output_format == "json":
        _print_json_line({"summary": state.record()})
    else:
        print_summary(output_console(), state)


@contextmanager
def _view(
    output_format: str,
) -> Iterator[tuple[Callable[["BindComparison"], None], Callable[["ShadowState"], None]]]:
    """A line for each bind, or on a terminal a table that is kept up to date."""
    console = output_console()
    if output_format == "json":
        yield lambda comparison: _print_json_line(comparison.record()), lambda _state: None
    elif not console.is_terminal:
        yield _print_line, lambda _state: None
    else:
        from rich.live import Live

        with Live(console=console, auto_refresh=False, transient=True) as live:
            calls = 0

            def refresh(state: "ShadowState") -> None:
                nonlocal calls
                calls += 1
                if calls % (20 // _REFRESHES_PER_S) == 1:
                    live.update(_table(state), refresh=True)

            yield lambda _comparison: None, refresh


def _print_json_line(record: object) -> None:
    import orjson

    sys.stdout.write(escape_json(orjson.dumps(record).decode()) + "\n")
    sys.stdout.flush()


def _print_line(comparison: "BindComparison") -> None:
    fields = comparison.pod, comparison.result, comparison.node, comparison.choice or "-", _why(comparison)
    click.echo("\t".join(sanitize_line(field) for field in fields))


def _why(comparison: "BindComparison") -> str:
    rule = f"{comparison.rule} ({comparison.location}) " if comparison.rule else ""
    parts = [f"{rule}{comparison.text}".strip()]
    if comparison.in_flight:
        parts.append(f"binds in flight: {comparison.in_flight}")
    if comparison.earlier_ns:
        parts.append(f"would have been {comparison.earlier_ns / 1e9:.1f} s earlier")
    return "; ".join(part for part in parts if part)


def _table(state: "ShadowState") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from policysched.shadow.observer import RESULTS

    counts = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (*RESULTS, "pending"):
        counts.add_column(heading, justify="right")
    counts.add_row(*(str(state.summary.results[result]) for result in RESULTS), str(state.pending))
    status = "watching" if state.synced else "reading the cluster"
    lines: list[RenderableType] = [
        Text(f"{status}, {state.running_s:.0f} s, {state.summary.binds} binds", style="bold"),
        counts,
    ]
    if state.problem:
        lines.append(Text(state.problem, style="red"))
    for comparison in state.summary.latest:
        text = f"{comparison.pod} {comparison.result}: {_why(comparison)}"
        lines += [Text(text, overflow="ellipsis", no_wrap=True)]
    return Group(*lines)


def print_summary(console: "Console", state: "ShadowState") -> None:
    """Counts by result, and which rules differ."""
    record = state.record()
    binds = max(1, state.summary.binds)
    console.print(f"\n{state.summary.binds} binds in {state.running_s:.0f} s, {state.pending} pods pending")
    rows = [(str(count), result, f"{count / binds:.1%}") for result, count in record["results"].items()]  # type: ignore[attr-defined]
    print_table(console, ("binds", "", "share"), rows, right=(0, 2))
    if state.summary.in_flight:
        console.print(
            f"{state.summary.in_flight} of them agree with binds in flight counted in another order"
        )
    if state.summary.earlier:
        mean_s = state.summary.earlier_ns / 1e9 / state.summary.earlier
        console.print(f"{state.summary.earlier} would have been earlier, by {mean_s:.1f} s on average")
    if state.unseen:
        console.print(f"{state.unseen} binds were not compared: the pods were never seen pending")
    if state.late:
        console.print(f"{state.late} binds were not compared: more happened than there was time for")
    if state.failed:
        console.print(f"{state.failed} binds were not compared: an exception, see the log")
    if state.summary.rules:
        rules = [(str(count), *key) for key, count in state.summary.rules.most_common()]
        print_table(console, ("binds", "result", "rule", "location"), rules, right=(0,))
