"""docs/man/policysched.1: the manual page, from the same command tree as docs/commands.md. The wheel installs it."""

import re
from collections.abc import Iterator

import click

from policysched.cli import COMMANDS, main
from tests.house.commands_doc import EXIT_CODES, help_of, value_of

_HEAD = r"""\" Generated from the command tree.
.TH POLICYSCHED 1 "" policysched "User Commands"
.SH NAME
policysched, kubectl-policysched \- a Kubernetes scheduler whose rules are readable policies
.SH SYNOPSIS
.B policysched
.I COMMAND
.RI [ OPTIONS ]
.RI [ ARGUMENTS ]
.SH DESCRIPTION
"""

_TAIL = r"""
.SH ENVIRONMENT
.TP
.B KUBECONFIG
The kubeconfig, as for kubectl.
.TP
.BR NO_COLOR ", " FORCE_COLOR
Turn the colours of the output off or on.
.SH SEE ALSO
.BR kubectl (1)
"""


def page() -> str:
    lines = [*_paragraphs(main.help or ""), ".SH COMMANDS"]
    for name in COMMANDS:
        lines += _command(name)
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", rf".B {code}", _text(meaning.replace("\\|", "|"))]
    return _HEAD + "\n".join(lines) + _TAIL


def _command(name: str) -> Iterator[str]:
    command = main.get_command(click.Context(main), name)
    assert command is not None, f"there is no command {name}"
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    yield from (rf".SS {_text(name)} {_text(usage)}", *_paragraphs(command.help or ""))
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = ", ".join(map(_text, (*option.opts, *option.secondary_opts)))
            yield from (".TP", rf"\fB{names}\fR \fI{_text(value_of(option))}\fR".removesuffix(r" \fI\fR"))
            yield _text(help_of(option))


def _paragraphs(help_text: str) -> Iterator[str]:
    """Paragraphs after `\\b` are command lines, which are shown unchanged."""
    for paragraph in help_text.split("\n\n"):
        words = paragraph.strip()
        if words.startswith("\b"):
            yield from (
                ".PP",
                ".RS 4",
                ".nf",
                *(_text(line.strip()) for line in words.splitlines()[1:]),
                ".fi",
                ".RE",
            )
        elif words:
            yield from (".PP", _text(" ".join(words.split())))


def _text(words: str) -> str:
    """Escape what roff would read as a request or as typography: backslashes, dashes, and dots and quotes that begin a line."""
    escaped = words.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)
