"""`policysched fmt`: policies in their one layout, in place."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from io import FileIO
from pathlib import Path

import click

from policysched.cli import CommandError
from policysched.cli.colour import wants_colour
from policysched.files import UnreadableFile, read_text
from policysched.lang.format.formatter import format_source
from policysched.policy_files.source_set import SourceSet, TextBlock, UnusableFile
from policysched.policy_files.sources import load_policy_sources, parse_sources
from policysched.text import Diagnostic, Source
from policysched.text.render_text import render_report


@dataclass(slots=True)
class FormattedFile:
    """One file: its text, and what it becomes."""

    name: str
    before: str
    after: str


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--check", is_flag=True, help="Write nothing; list what would change and exit with 1.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change and exit with 1.")
@click.option("--stdin-filename", default="-", metavar="NAME", help="What `-` is called in messages.")
def fmt(paths: tuple[str, ...], check: bool, diff: bool, stdin_filename: str) -> int:
    """Format policies.

    A PATH is a policy, a YAML file with ConfigMaps (only their block scalars are rewritten), a folder, or - for
    standard input to standard output. A file with a syntax error is left alone.

    \b
    policysched fmt my.policy
    policysched fmt --check deploy/

    Exit codes: 0 all formatted, 1 something would change (--check, --diff) or does not parse, 2 could not run.
    """
    failed = changed = False
    passed_over: list[UnusableFile] = []
    for name, text in _files(paths, stdin_filename, passed_over):
        try:
            job = _format_file(name, text)
        except UnusableFile as error:
            raise CommandError(str(error)) from None
        if job is None:
            failed = True
            continue
        different = job.after != job.before
        changed = changed or different
        if diff and different:
            click.echo(_diff(job), nl=False)
        elif check and different:
            click.echo(f"would reformat {name}")
        elif not (check or diff):
            _write_result(job, standard=name == stdin_filename and "-" in paths)
    for unusable in passed_over:
        click.echo(f"policysched: {unusable}", err=True)
    return 2 if passed_over else int(failed or (changed and (check or diff)))


def _files(
    paths: tuple[str, ...], stdin_filename: str, passed_over: list[UnusableFile]
) -> Iterator[tuple[str, str]]:
    """Each file once, by its name; those that cannot be used are added to `passed_over`."""
    sets = load_policy_sources([path for path in paths if path != "-"], unusable=passed_over)
    names = [source.name for one in sets for key, source in one.sources.items() if key in one.requested]
    for name in dict.fromkeys(names):
        with Path(name).open(encoding="utf-8", newline="") as file:
            yield name, file.read()
    if "-" in paths:
        try:
            yield stdin_filename, read_text("-")
        except UnreadableFile as error:
            raise CommandError(f"-: {error}") from None


def _format_file(name: str, text: str) -> FormattedFile | None:
    """None where the text has syntax errors, which are printed."""
    before, broken = text, False
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    lines = text.split("\n")
    after = text
    changes: list[tuple[TextBlock, str]] = []
    for one in parse_sources(text, name):
        for key in one.requested:
            result = format_source(one.sources[key])
            if result.internal_error:
                raise UnusableFile(
                    f"{name}: left alone, since {result.internal_error}; please report this policy"
                )
            if result.text is None:
                _print_diagnostics(result.diagnostics)
                broken = True
            elif key in one.blocks:
                changes.append((one.blocks[key], result.text))
            elif key in one.quoted_keys:
                click.echo(
                    f"{name}: {key} is a quoted text and is left alone; write it as a block (`{key}: |`)",
                    err=True,
                )
            else:
                after = result.text
    if broken:
        return None
    if changes:
        after = _replace_blocks(name, lines, changes)
    return FormattedFile(name, before, after)


def _replace_blocks(name: str, lines: list[str], changes: list[tuple[TextBlock, str]]) -> str:
    """The YAML file with its block scalars replaced, read again to see that they hold the new texts."""
    for place, text in sorted(changes, key=lambda change: -change[0].first_line):
        block = [" " * place.indent + line if line else "" for line in text.rstrip("\n").split("\n")]
        lines[place.first_line : place.first_line + place.line_count] = block
    after = "\n".join(lines)
    held = sorted(source.text.rstrip("\n") for one in parse_sources(after, name) for source in _blocks(one))
    if held != sorted(text.rstrip("\n") for _, text in changes):
        raise UnusableFile(
            f"{name}: left alone, since the rewritten YAML would hold another text; please report this file"
        )
    return after


def _blocks(one: SourceSet) -> Iterator[Source]:
    return (one.sources[key] for key in one.blocks)


def _print_diagnostics(diagnostics: tuple[Diagnostic, ...]) -> None:
    for lines in render_report(
        diagnostics, colour=wants_colour(sys.stderr), explain_command="policysched rule"
    ):
        click.echo(lines, err=True, color=True)


def _diff(job: FormattedFile) -> str:
    return "".join(
        unified_diff(
            job.before.splitlines(True), job.after.splitlines(True), job.name, f"{job.name} (formatted)"
        )
    )


def _write_result(job: FormattedFile, *, standard: bool) -> None:
    if standard:
        click.echo(job.after, nl=False)
    elif job.after != job.before:
        rewrite_in_place(job.name, job.after)
        click.echo(f"reformatted {job.name}")


def rewrite_in_place(path: str, text: str) -> None:
    """In place, so that links, owner and mode stay; where the disk is full in the midst, what was there stands there again. Raises
    Problem."""
    left = "it is as it was"
    try:
        with Path(path).open("r+b", buffering=0) as file:
            before = file.readall()
            try:
                _write_content(file, text.encode())
            except (OSError, KeyboardInterrupt):
                left = "and it could not be put back as it was"
                _write_content(file, before)  # it has had the room for that
                left = "it is as it was"
                raise
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}; {left}") from None


def _write_content(file: FileIO, content: bytes) -> None:
    """From the beginning, and only then cut: what is behind it keeps its room on the disk until all is written."""
    file.seek(0)
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
    file.truncate()
