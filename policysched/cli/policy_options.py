"""Options that several commands share: `--name`, `--param` and `--output-format`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import parse_value

Command = TypeVar("Command", bound=Callable[..., Any])

name_option = click.option("--name", metavar="NAME", help="The policy to use, if the file has several.")
param_option = click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value for a parameter of the policy; a list is separated by commas. Can be repeated.",
)


class _Time(click.ParamType[int]):
    """A time as in manifests, in ns since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        at_ns = parse_value(str(value), Type(TypeKind.TIMESTAMP), None)
        if not isinstance(at_ns, int):
            self.fail(f"`{value}` is not a time; write it as 2026-01-01T09:00:00Z", param, ctx)
        return at_ns


class Duration(click.ParamType[int]):
    """A duration as in policies, in ns."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        span_ns = parse_value(str(value), Type(TypeKind.DURATION), None)
        if not isinstance(span_ns, int) or span_ns <= 0:
            self.fail(f"`{value}` is not a duration; write it as 30m, 24h or 7d", param, ctx)
        return span_ns


def recorded_time_options(command: Command) -> Command:
    """`--from`, `--to` and `--last`, as `from_ns`, `to_ns` and `last_ns` (None: not given): a part of a recording."""
    for option in (
        click.option(
            "--last",
            "last_ns",
            type=Duration(),
            metavar="DURATION",
            help="Replay only the end of the recording, such as the last 24h.",
        ),
        click.option("--to", "to_ns", type=_Time(), metavar="TIME", help="Skip decisions after this time."),
        click.option(
            "--from", "from_ns", type=_Time(), metavar="TIME", help="Skip decisions before this time."
        ),
    ):
        command = option(command)
    return command


def at_option(help_text: str) -> Callable[[Command], Command]:
    """`--at`: the present time, as `at_ns` (None: the default)."""
    return click.option("--at", "at_ns", type=_Time(), metavar="TIME", help=help_text)


output_format_option = click.option(
    "--output-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of the output.",
)
