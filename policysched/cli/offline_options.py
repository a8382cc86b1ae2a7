"""Options that the offline commands share, and how they report unusable input."""

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from policysched.cli import CommandError, echo_error
from policysched.cli.policy_options import at_option, name_option, output_format_option, param_option
from policysched.cli.progress import progress_bar
from policysched.files import STANDARD_INPUT
from policysched.from_files.cluster_files import ClusterFiles, read_cluster_files
from policysched.from_files.inputs import PolicyHasErrors, PresentInputs, choose_policy, load_present
from policysched.lang.ir.program import Program
from policysched.metric_sources.file import BadSamplesFile
from policysched.policy_files.source_set import UnusableFile
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.text.render_text import render_full
from policysched.text.sanitize import escape_json, escape_to_line

if TYPE_CHECKING:
    from policysched.from_files.settings_rules import SettingsRules

Command = TypeVar("Command", bound=Callable[..., Any])


def offline_options(command: Command) -> Command:
    """Those of `file_options`; --policy and --cluster are required."""
    return policy_option(required=True)(_with_input_options(command, cluster_required=True))


def file_options(command: Command) -> Command:
    """`--policy` and those of `input_options`."""
    return policy_option(required=False)(input_options(command))


def input_options(command: Command) -> Command:
    """`--name --param --cluster --metrics --state --config --at --output-format`."""
    return _with_input_options(command, cluster_required=False)


def _with_input_options(command: Command, *, cluster_required: bool) -> Command:
    cluster_option = click.option(
        "--cluster",
        "cluster_paths",
        multiple=True,
        required=cluster_required,
        metavar="FILE",
        help="Kubernetes objects in YAML or JSON, such as the output of `kubectl get nodes,pods,namespaces -A -o "
        "yaml`; `-` is standard input. Can be repeated.",
    )
    for option in reversed((name_option, param_option, cluster_option, *_VALUE_OPTIONS)):
        command = option(command)
    return command


def policy_option(*, required: bool) -> Callable[[Command], Command]:
    return click.option(
        "--policy",
        "policy_path",
        required=required,
        metavar="FILE",
        help="A policy, or a ConfigMap with policies; `-` is standard input.",
    )


pods_option = click.option(
    "--pods",
    "pods_scope",
    type=click.Choice(["auto", "named", "all"]),
    default="auto",
    show_default=True,
    help="The pods to place. named: those whose schedulerName is the policy; all: every pending pod; auto: named if "
    "there are any, otherwise all.",
)

_VALUE_OPTIONS = (
    click.option(
        "--metrics",
        "metrics_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Metric samples, {metric: {node: value}} in YAML or JSON, or what `policysched samples --output-format json` prints.",
    ),
    click.option(
        "--state",
        "state_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Values of the policy's states, {state: {key: {node: value}}} in YAML or JSON, or a POLICY.state.json "
        "file of a scheduler.",
    ),
    click.option(
        "--config",
        "config_path",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The scheduler's settings file: how it checks the policy, which namespaces the policy serves, and which pods "
        "it may evict.",
    ),
    at_option(
        "The time at which to evaluate, such as 2026-01-01T09:00:00Z (default: the time of the samples in --metrics, otherwise now)."
    ),
    output_format_option,
)


@contextmanager
def report_unusable_files() -> Iterator[None]:
    """Exit with 2 and one line for an unusable file, or one line per mistake in a file of samples.

    Errors of a policy are printed in full.
    """
    try:
        yield
    except UnusableFile as error:
        raise CommandError(str(error)) from error
    except BadSamplesFile as error:
        raise CommandError(*error.problems) from error
    except PolicyHasErrors as error:
        for diagnostic in error.diagnostics:
            click.echo(render_full(diagnostic, explain_command="policysched rule") + "\n", err=True)
        raise CommandError("the policy has errors and was not evaluated") from error


def load_inputs(
    policy_path: str,
    name: str | None,
    params: tuple[str, ...],
    cluster_paths: tuple[str, ...],
    config_path: Path | None,
) -> tuple[Program, ClusterFiles, PolicyPermissions]:
    """Read the policy, the cluster, and what the settings allow. Malformed objects are reported and skipped."""
    if [policy_path, *cluster_paths].count(STANDARD_INPUT) > 1:
        raise UnusableFile("-: standard input can be read only once: for the policy or for the cluster")
    rules = load_settings_rules(config_path)
    program = load_policy(policy_path, name, params, rules)
    with progress_bar() as progress:
        files = read_cluster_files(cluster_paths, progress)
    report_malformed(files)
    return program, files, rules.permissions


def load_policy(path: str, name: str | None, params: tuple[str, ...], rules: "SettingsRules") -> Program:
    """Read a policy. Raises `PolicyHasErrors`, also if the settings do not allow it."""
    program = choose_policy(path, name, params, rules.load)
    problems = rules.problems(program)
    if problems:
        raise PolicyHasErrors(problems)
    return program


def report_malformed(files: ClusterFiles) -> None:
    """Print the objects that are skipped to standard error."""
    for malformed in files.malformed:
        echo_error(f"policysched: skipped: {malformed}")


def load_values(
    metrics_path: Path | None,
    state_path: Path | None,
    program: Program,
    files: ClusterFiles,
    at_ns: int | None,
) -> PresentInputs:
    """Read the samples and the values of states. `at_ns`: the present time; None: that of the samples, otherwise now."""
    nodes = files.node_names()
    return load_present(metrics_path, state_path, program, nodes, at_ns=at_ns, clock_ns=time.time_ns())


def load_settings_rules(config_path: Path | None) -> "SettingsRules":
    """What the settings say about policies. Without a file every name is allowed."""
    from policysched.config.layers import BadSettings
    from policysched.from_files.settings_rules import read_settings_rules

    try:
        return read_settings_rules(config_path)
    except BadSettings as error:
        raise CommandError(*error.problems) from None


def print_json(record: Mapping[str, Any]) -> None:
    import orjson

    sys.stdout.write(escape_json(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode()) + "\n")


def print_notes(notes: tuple[str, ...] | list[str]) -> None:
    """Print notes to standard error, which keeps standard output for the result. A terminal gets lines of its width."""
    for note in notes:
        line = f"note: {escape_to_line(note)}"
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            line = textwrap.fill(
                line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        click.echo(line, err=True)
