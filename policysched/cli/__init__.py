"""The command line: one file a command, imported when the command is used.

`--help` answers from the table below and imports none of them. To add a command: a module with a click command of the
command's name (dashes as underscores), and a row here.

Exit codes: 0 nothing to say, 1 findings (or a result the command was asked to report so), 2 could not run; 130 after
Ctrl-C, and 141 where nobody reads the output any more.
"""

import errno
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from policysched import __version__
from policysched.cli import closed_output
from policysched.data_files import enable_file_cache
from policysched.gc_tuning import raise_gc_thresholds

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
"""A full or broken disk behind a redirected stdout."""


class CommandError(click.ClickException):
    """Could not run: a line for each thing that is wrong, with what and where; exit 2."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def write_file(path: str, text: str) -> None:
    """What a command makes, in UTF-8; `-` is standard output. Raises Problem."""
    if path == "-":
        click.echo(text, nl=False, color=True)
        return
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None


class _Commands(click.Group):
    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, but what is wrong with the command line or a file is a line on stderr, and exit 2."""
        if args is None:  # the process is ours, and not one that calls a command
            raise_gc_thresholds()
            enable_file_cache()
            closed_output.open_missing_streams()
        if not standalone_mode:
            return super().main(args, prog_name or "policysched", standalone_mode=False, **extra)
        try:
            with closed_output.detect_closed_output():
                code = self._exit_code(args, prog_name or "policysched", extra)
        except closed_output.OutputClosed:
            for stream in (sys.stdout, sys.stderr):
                closed_output.discard_buffer(stream)
            code = closed_output.EXIT_CODE
        sys.exit(code)

    def _exit_code(self, args: Sequence[str] | None, prog_name: str, extra: Mapping[str, Any]) -> int:
        try:
            try:
                code = super().main(args, prog_name, standalone_mode=False, **extra)
            except SystemExit as ended:
                code = ended.code
            sys.stdout.flush()  # what cannot be written is to be known here
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return 2
        except click.ClickException as error:
            context = error.ctx if isinstance(error, click.UsageError) else None
            where = context.command_path if context is not None else "policysched"
            hint = f" (see {where} --help)" if isinstance(error, click.UsageError) else ""
            lines = error.lines if isinstance(error, CommandError) else (error.format_message(),)
            for line in lines:
                click.echo(f"{where}: {' '.join(line.split())}{hint}", err=True)
            return 2
        except click.Abort:
            return 130
        except OSError as error:
            if error.errno not in _OUTPUT_LOST:
                raise
            closed_output.discard_buffer(sys.stdout)
            click.echo(f"policysched: the output cannot be written: {error.strerror}", err=True)
            return 2
        return code if isinstance(code, int) else 0

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """click would end with 1 where nobody reads what `--help` says."""
        with closed_output.detect_closed_output():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """As `make_context`, for what a command says."""
        with closed_output.detect_closed_output():
            return super().invoke(ctx)

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
