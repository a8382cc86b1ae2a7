"""The command line: one file a command, imported when the command is used.

`--help` answers from the table below and imports none of them. To add a command: a module with a click command of the
command's name (dashes as underscores), and a row here.

Exit codes: 0 nothing to say, 1 findings (or a result the command was asked to report so), 2 could not run.
"""

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from policysched import __version__
from policysched.garbage import look_rarely
from policysched.resources import keep_files

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("policysched.cli.run", "Schedule a cluster's pods by the policies of a ConfigMap."),
    "extender": ("policysched.cli.extender", "Answer for policies where kube-scheduler stays: its extender."),
    "sandbox": ("policysched.cli.sandbox", "A pretend cluster on this machine."),
    "demo": ("policysched.cli.demo", "A cluster, the scheduler and a policy edited live, in twenty seconds."),
    "lint": ("policysched.cli.lint", "Check policies and say what is wrong with them."),
    "fmt": ("policysched.cli.fmt", "Format policies."),
    "rule": ("policysched.cli.rule", "Explain a diagnostic by its code or name."),
    "show": ("policysched.cli.show", "Show what a policy is compiled into."),
    "explain": ("policysched.cli.explain", "Say why a pod of a cluster file goes where it goes."),
    "simulate": ("policysched.cli.simulate", "Place the pending pods of a cluster file."),
    "test": ("policysched.cli.test", "Play the tests that stand beside policies."),
    "import-config": ("policysched.cli.import_config", "Turn kube-scheduler's configuration into policies."),
}
"""Name -> module and one line of help, in the order in which `--help` shows them."""


_OUTPUT_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""A full or broken disk behind a redirected stdout. A closed pipe is click's to handle."""


class Problem(click.ClickException):
    """Could not run: one line that says what and where, exit 2."""

    exit_code = 2


class _Commands(click.Group):
    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, but what is wrong with the command line or a file is one line on stderr, and exit 2."""
        if args is None:  # the process is ours, and not one that calls a command
            look_rarely()
            keep_files()
        if not standalone_mode:
            return super().main(args, prog_name or "policysched", standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name or "policysched", standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(2)
        except click.ClickException as error:
            context = error.ctx if isinstance(error, click.UsageError) else None
            where = context.command_path if context is not None else "policysched"
            hint = f" (see {where} --help)" if isinstance(error, click.UsageError) else ""
            click.echo(f"{where}: {' '.join(error.format_message().split())}{hint}", err=True)
            sys.exit(2)
        except click.Abort:
            sys.exit(130)
        except OSError as error:
            if error.errno not in _OUTPUT_LOST:
                raise
            # Python flushes what is left of it once more at the end, and would fail anew.
            sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (lives as long as the process)
            click.echo(f"policysched: the output cannot be written: {error.strerror}", err=True)
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command), f"{cmd_name} is {command!r}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="policysched", message="%(prog)s %(version)s")
def main() -> None:
    """A Kubernetes scheduler whose rules are a policy that people can read.

    \b
    policysched lint my.policy          check a policy
    policysched COMMAND --help          what a command does, with examples
    """
