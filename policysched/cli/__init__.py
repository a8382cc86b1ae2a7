"""The command line: one module per command, imported when the command runs.

`--help` is answered from the table below without importing any command. To add a command, write a
module with a click command of the same name (dashes as underscores) and add a row here.

Exit codes: 0 success, 1 findings (or a result that an option turns into a failure), 2 could not
run, 130 after Ctrl-C, 141 if the reader of the output has closed it. `diff` has those of
`terraform plan -detailed-exitcode`: 0 the same, 1 could not run, 2 different.
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
    "run": ("policysched.cli.run", "Schedule pods by the policies in a ConfigMap."),
    "extender": ("policysched.cli.extender", "Serve policies to kube-scheduler as an extender."),
    "policies": ("policysched.cli.policies", "List, remove and restore the policies of a cluster."),
    "sandbox": ("policysched.cli.sandbox", "Run a simulated cluster on this machine."),
    "demo": ("policysched.cli.demo", "Edit a policy live on a simulated cluster (10 seconds)."),
    "lint": ("policysched.cli.lint", "Check policies for errors and likely mistakes."),
    "fmt": ("policysched.cli.fmt", "Format policies."),
    "rule": ("policysched.cli.rule", "Explain a diagnostic by its code or name."),
    "show": ("policysched.cli.show", "Show the compiled plan of a policy."),
    "explain": ("policysched.cli.explain", "Explain why a pod is on its node, or why it is pending."),
    "pending": ("policysched.cli.pending", "Show what the pending pods of a cluster wait for."),
    "queue": ("policysched.cli.queue", "Show the pending pods in scheduling order."),
    "top": ("policysched.cli.top", "Show what the pods on each node request."),
    "samples": ("policysched.cli.samples", "Show the metric samples that a scheduler holds."),
    "page": ("policysched.cli.page", "Show a running scheduler in the browser."),
    "simulate": ("policysched.cli.simulate", "Place the pending pods of a cluster file."),
    "replay": ("policysched.cli.replay", "Repeat the decisions of a recording and compare the results."),
    "diff": ("policysched.cli.diff", "Show which pods of a cluster a changed policy affects."),
    "shadow": ("policysched.cli.shadow", "Compare a policy with the binds of another scheduler."),
    "test": ("policysched.cli.test", "Run the tests of policies."),
    "import-config": ("policysched.cli.import_config", "Convert a kube-scheduler configuration to policies."),
    "completion": ("policysched.cli.completion", "Print a script for completion in a shell."),
    "version": ("policysched.cli.version", "Print the versions of the program and of what it supports."),
}
"""Name -> module and one line of help, in the order shown by `--help`."""


_OFFLINE_COMMANDS = frozenset({"lint", "show", "explain", "simulate", "test"})
OFFLINE_PACKAGES = frozenset({"aiohappyeyeballs", "aiohttp", "cel_expr_python", "numpy", "re2", "rich"})
"""What the extra `offline` of the package installs, and the commands for which it is enough; `run` includes it."""

_ALIASES = {"why": "explain"}
"""Other names of commands: `kubectl policysched why POD`."""

_ERROR_CODES = {"diff": 1}
"""The exit code of a command that could not run, where it is not 2."""

_OUTPUT_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""A full or broken disk behind a redirected stdout."""


class CommandError(click.ClickException):
    """The command could not run (exit code 2, 1 for `diff`). One line per problem, with its place."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def write_file(path: str, text: str) -> None:
    """Write a command's output as UTF-8; `-` is standard output. Raises CommandError."""
    if path == "-":
        click.echo(text, nl=False, color=True)
        return
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None


def echo_error(text: str) -> None:
    """Write a line to standard error. It can have texts of tenants or of a file, such as a pod's schedulerName, which must
    not move the cursor or fill the clipboard of whoever reads it, or begin a line of its own."""
    from policysched.text.sanitize import escape_to_line  # `--help` needs none of it

    click.echo(escape_to_line(text), err=True)


def _not_installed(command: str, error: ModuleNotFoundError) -> Exception:
    """What to install for a command; the error itself if a module of this package is missing."""
    package = (error.name or "policysched").partition(".")[0]
    if package == "policysched":
        return error
    extra = "offline" if command in _OFFLINE_COMMANDS and package in OFFLINE_PACKAGES else "run"
    if package == "opentelemetry":
        extra = "otlp"
    return CommandError(
        f"{command} needs {package}, which is not installed: pip install 'policysched[{extra}]'"
    )


class _Commands(click.Group):
    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Like click's, but a wrong command line or file is one line on stderr and exit code 2."""
        if args is None:  # run as a program, not called from a test or another program
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
        command = next(iter(sys.argv[1:] if args is None else args), "")
        error_code = _ERROR_CODES.get(command, 2)
        try:
            try:
                code = super().main(args, prog_name, standalone_mode=False, **extra)
            except SystemExit as error:
                code = error.code
            sys.stdout.flush()  # so that a failing write is reported here
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return error_code
        except click.ClickException as error:
            context = error.ctx if isinstance(error, click.UsageError) else None
            where = context.command_path if context is not None else "policysched"
            hint = f" (see {where} --help)" if isinstance(error, click.UsageError) else ""
            lines = error.lines if isinstance(error, CommandError) else (error.format_message(),)
            for line in lines:
                echo_error(f"{where}: {' '.join(line.split())}{hint}")
            return error_code
        except click.Abort:
            return 130
        except OSError as error:
            if error.errno not in _OUTPUT_LOST:
                raise
            closed_output.discard_buffer(sys.stdout)
            click.echo(f"policysched: cannot write the output: {error.strerror}", err=True)
            return error_code
        return code if isinstance(code, int) else 0

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Detects closed output while `--help` prints; click would exit with 1."""
        with closed_output.detect_closed_output():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Detects closed output while the command prints."""
        with closed_output.detect_closed_output():
            try:
                return super().invoke(ctx)
            except ModuleNotFoundError as error:
                raise _not_installed(ctx.invoked_subcommand or "", error) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        try:
            command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name.replace("-", "_"))
        except ModuleNotFoundError as error:
            raise _not_installed(cmd_name, error) from error
        assert isinstance(command, click.Command), f"{cmd_name} is {command!r}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args and args[0] not in {*COMMANDS, *_ALIASES} and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, "--version", prog_name="policysched", message="%(prog)s %(version)s")
def main() -> None:
    """A Kubernetes scheduler whose rules are readable policies.

    \b
    policysched lint my.policy          check a policy
    policysched COMMAND --help          options and examples of a command

    Exit codes: 0 success, 1 findings, 2 could not run.
    """
