"""The options that the offline commands share, and how they say that something cannot be used."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from policysched.cli import CommandError
from policysched.cli.param_option import param_option
from policysched.files import STANDARD_INPUT
from policysched.harness.cluster_files import ClusterFiles, read_cluster_files
from policysched.harness.inputs import PolicyHasErrors, choose_policy
from policysched.lang.ir.program import Program
from policysched.metric_sources.file import BadSamplesFile
from policysched.policy_files.source_set import UnusableFile
from policysched.text.render_text import render_full

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 240
Command = TypeVar("Command", bound=Callable[..., Any])


def offline_options(command: Command) -> Command:
    """`--policy --name --param --cluster --metrics --state --output-format`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--policy",
        "policy_path",
        required=True,
        metavar="FILE",
        help="A policy, or a ConfigMap with policies; `-` is standard input.",
    ),
    click.option("--name", metavar="NAME", help="Which policy, where the file has several."),
    param_option,
    click.option(
        "--cluster",
        "cluster_paths",
        required=True,
        multiple=True,
        metavar="FILE",
        help="Kubernetes objects, YAML or JSON, such as `kubectl get nodes,pods,namespaces -A -o yaml` prints; "
        "`-` is standard input. May be given several times.",
    ),
    click.option(
        "--metrics",
        "metrics_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Samples, {metric: {node: value}} in YAML or JSON.",
    ),
    click.option(
        "--state",
        "state_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Values of the policy's states, {state: {key: {node: value}}} in YAML or JSON, or a POLICY.state.json that a "
        "scheduler has kept.",
    ),
    click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
)


@contextmanager
def report_unusable_files() -> Iterator[None]:
    """A file that cannot be used ends the command with exit 2 and one line, a file of samples with one for each mistake; a policy's
    errors are shown in full."""
    try:
        yield
    except UnusableFile as error:
        raise CommandError(str(error)) from error
    except BadSamplesFile as error:
        raise CommandError(*error.problems) from error
    except PolicyHasErrors as error:
        for found in error.diagnostics:
            click.echo(render_full(found, explain_command="policysched rule") + "\n", err=True)
        raise CommandError("the policy has errors, nothing was evaluated") from error


def load_inputs(
    policy_path: str, name: str | None, params: tuple[str, ...], cluster_paths: tuple[str, ...]
) -> tuple[Program, ClusterFiles]:
    """The policy and the cluster; what is wrong with single objects is said and does not stop anything."""
    if [policy_path, *cluster_paths].count(STANDARD_INPUT) > 1:
        raise UnusableFile("-: standard input can be read once, for the policy or for the cluster")
    program = choose_policy(policy_path, name, params)
    files = read_cluster_files(cluster_paths)
    for malformed in files.malformed:
        click.echo(f"policysched: left out: {malformed}", err=True)
    return program, files


def now_ns() -> int:
    return time.time_ns()


def print_json(record: Mapping[str, Any]) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode() + "\n")


def output_console() -> "Console":
    """Tables on standard output: as wide as the terminal, and wide enough for any table where it is a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def print_notes(notes: tuple[str, ...] | list[str]) -> None:
    """Notes go to standard error, so that the answer alone is on standard output."""
    for note in notes:
        click.echo(f"note: {note}", err=True)
