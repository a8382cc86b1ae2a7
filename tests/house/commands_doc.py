"""docs/commands.md: the `--help` text of every command, and the exit codes."""

import re
from collections.abc import Iterator

import click

from policysched.cli import COMMANDS, closed_output, main

ABORTED = 130

EXIT_CODES = {
    "0": "success",
    "1": "findings, or a result that a flag turns into a failure",
    "2": "could not run: standard error names the problem of the command line, a file or the settings",
    f"{ABORTED}": "Ctrl-C",
    f"{closed_output.EXIT_CODE}": "the reader of the output has closed it, for example `\\| head`",
}

_HEAD = f"""\
# Commands

Every command with its flags, as in `policysched COMMAND --help`. `policysched --version` prints the version.

| exit code | meaning |
|---|---|
{chr(10).join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())}

Results are written to standard output, everything else to standard error. `run` and `extender` have
[further exit codes](running.md#start), `diff` has those of `terraform plan -detailed-exitcode`. Output to terminals is coloured; `NO_COLOR` and `FORCE_COLOR` are respected.
`-h` is `--help`.
"""


def page() -> str:
    return "\n".join([_HEAD, *(_section(name) for name in COMMANDS)])


def _section(name: str) -> str:
    command = main.get_command(click.Context(main), name)
    assert command is not None, f"there is no command {name}"
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    lines = [f"## {name}", "", f"`{usage}`", ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [*_paragraph(paragraph), ""]
    options = [param for param in command.params if isinstance(param, click.Option)]
    if options:
        lines += ["| flag | |", "|---|---|", *map(_row, options), ""]
    return "\n".join(lines)


def _paragraph(text: str) -> Iterator[str]:
    """Paragraphs after `\\b` are command lines, which are shown unchanged."""
    words = text.strip()
    if words.startswith("\b"):
        yield from ("```sh", *(line.strip() for line in words.splitlines()[1:]), "```")
    else:
        # Escape what Markdown would read as HTML or as emphasis, except in code.
        parts = re.split(r"(`[^`]*`)", " ".join(words.split()))
        yield "".join(
            part if part.startswith("`") else re.sub(r"[*<>\\]", r"\\\g<0>", part) for part in parts
        )


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    value = value_of(option)
    what = f" {value.replace('|', chr(92) + '|')}" if value else ""
    return f"| {names}{what} | {help_of(option).replace('|', chr(92) + '|')} |"


def value_of(option: click.Option) -> str:
    """What the option takes, empty for a flag."""
    kind = option.type
    if isinstance(kind, click.Choice):
        return ", ".join(map(str, kind.choices))
    return "" if option.is_flag else option.metavar or ("FILE" if isinstance(kind, click.Path) else "N")


def help_of(option: click.Option) -> str:
    default = option.default if option.show_default and not option.is_flag else None
    more = f" Default: {default}." if default is not None else ""
    return ((option.help or "").strip() + more).strip()
