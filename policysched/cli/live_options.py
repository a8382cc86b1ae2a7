"""Options of the commands that ask a running scheduler."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from policysched.cli import CommandError
from policysched.cli.start_options import context_option, kubeconfig_option

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    kubeconfig_option,
    context_option,
    click.option(
        "--scheduler-namespace",
        metavar="NAMESPACE",
        default="policysched",
        show_default=True,
        help="The namespace in which the scheduler runs.",
    ),
    click.option(
        "--url",
        metavar="URL",
        help="The address of the scheduler, such as http://127.0.0.1:10259 (default: found through the kubeconfig).",
    ),
)


def live_options(command: Command) -> Command:
    """`--kubeconfig --context --scheduler-namespace --url`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def live_page(
    path: str,
    query: Mapping[str, str],
    *,
    kubeconfig: str | None,
    context: str | None,
    scheduler_namespace: str,
    url: str | None,
) -> dict[str, Any]:
    """A page of the running scheduler. Raises CommandError with one line."""
    from policysched.live.connection import LiveFailed, LiveTarget, get_page

    target = LiveTarget(url, None if kubeconfig is None else Path(kubeconfig), context, scheduler_namespace)
    try:
        return get_page(target, path, query)
    except LiveFailed as error:
        raise CommandError(str(error)) from error
