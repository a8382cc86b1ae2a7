"""`policysched fmt`: format policies in place."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from io import FileIO
from pathlib import Path

import click

from policysched.cli import CommandError, echo_error
from policysched.cli.colour import wants_colour
from policysched.files import UnreadableFile, read_text
from policysched.lang.format.formatter import format_source
from policysched.policy_files.source_set import SourceSet, TextBlock, UnusableFile
from policysched.policy_files.sources import load_policy_sources, parse_sources
from policysched.text import Diagnostic, Source
from policysched.text.render_text import render_report
from policysched.text.sanitize import escape_to_line, escape_unprintable


@dataclass(slots=True)
class FormattedFile:
    """A file's text before and after formatting."""

    name: str
    before: str
    after: str


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--check", is_flag=True, help="Write nothing. List the files that would change and exit with 1."
)
@click.option("--diff", is_flag=True, help="Write nothing. Print a diff of the changes and exit with 1.")
@click.option("--stdin-filename", default="-", metavar="NAME", help="The file name shown for standard input.")
def fmt(paths: tuple[str, ...], check: bool, diff: bool, stdin_filename: str) -> int:
    """Format policies in place.

    A PATH is a policy, a YAML file with ConfigMaps (only block scalars are formatted), a folder, or -
    to read standard input and write standard output. Files with syntax errors are not changed.

    Examples:

    \b
      policysched fmt my.policy
      policysched fmt --check deploy/

    Exit codes: 0 all files are formatted; 1 a file has a syntax error, or would change (--check,
    --diff); 2 could not run.
    """
    failed = changed = False
    unusable_files: list[UnusableFile] = []
    for name, text in _files(paths, stdin_filename, unusable_files):
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
            _print(_diff(job))
        elif check and different:
            click.echo(f"would reformat {escape_to_line(name)}")
        elif not (check or diff):
            _write_result(job, standard=name == stdin_filename and "-" in paths)
    for unusable in unusable_files:
        echo_error(f"policysched: {unusable}")
    return 2 if unusable_files else int(failed or (changed and (check or diff)))


def _files(
    paths: tuple[str, ...], stdin_filename: str, unusable_files: list[UnusableFile]
) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file once. Unusable files are added to `unusable_files`."""
    source_sets = load_policy_sources([path for path in paths if path != "-"], unusable=unusable_files)
    names = [
        source.name
        for source_set in source_sets
        for key, source in source_set.sources.items()
        if key in source_set.requested
    ]
    for name in dict.fromkeys(names):
        with Path(name).open(encoding="utf-8", newline="") as file:
            yield name, file.read()
    if "-" in paths:
        try:
            yield stdin_filename, read_text("-")
        except UnreadableFile as error:
            raise CommandError(f"-: {error}") from None


def _format_file(name: str, text: str) -> FormattedFile | None:
    """Format a file. None if it has syntax errors, which are printed."""
    before, broken = text, False
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    lines = text.split("\n")
    after = text
    changes: list[tuple[TextBlock, str]] = []
    for source_set in parse_sources(text, name):
        for key in source_set.requested:
            result = format_source(source_set.sources[key])
            if result.internal_error:
                raise UnusableFile(
                    f"{name}: not changed, because {result.internal_error}; please report this policy"
                )
            if result.text is None:
                _print_diagnostics(result.diagnostics)
                broken = True
            elif key in source_set.blocks:
                changes.append((source_set.blocks[key], result.text))
            elif key in source_set.quoted_keys:
                echo_error(
                    f"{name}: {key} is a quoted string and is not formatted; use a block scalar (`{key}: |`)"
                )
            else:
                after = result.text
    if broken:
        return None
    if changes:
        after = _replace_blocks(name, lines, changes)
    return FormattedFile(name, before, after)


def _replace_blocks(name: str, lines: list[str], changes: list[tuple[TextBlock, str]]) -> str:
    """Replace the block scalars of a YAML file, and parse the result to verify the new texts."""
    for block, text in sorted(changes, key=lambda change: -change[0].first_line):
        block_lines = [" " * block.indent + line if line else "" for line in text.rstrip("\n").split("\n")]
        lines[block.first_line : block.first_line + block.line_count] = block_lines
    after = "\n".join(lines)
    parsed_texts = sorted(
        source.text.rstrip("\n")
        for source_set in parse_sources(after, name)
        for source in _blocks(source_set)
    )
    if parsed_texts != sorted(text.rstrip("\n") for _, text in changes):
        raise UnusableFile(
            f"{name}: not changed, because the rewritten YAML would not parse to the formatted text; "
            "please report this file"
        )
    return after


def _blocks(source_set: SourceSet) -> Iterator[Source]:
    return (source_set.sources[key] for key in source_set.blocks)


def _print_diagnostics(diagnostics: tuple[Diagnostic, ...]) -> None:
    for lines in render_report(
        diagnostics, colour=wants_colour(sys.stderr), explain_command="policysched rule"
    ):
        click.echo(lines, err=True, color=True)


def _diff(job: FormattedFile) -> str:
    name = escape_to_line(job.name)
    return "".join(
        unified_diff(job.before.splitlines(True), job.after.splitlines(True), name, f"{name} (formatted)")
    )


def _print(text: str) -> None:
    """On a terminal, control characters of comments are escaped. A file or a pipe gets what there is: `click.echo` would leave
    some out."""
    if sys.stdout.isatty():
        text = "\t".join(map(escape_unprintable, text.split("\t")))
    click.echo(text, nl=False, color=True)


def _write_result(job: FormattedFile, *, standard: bool) -> None:
    if standard:
        _print(job.after)
    elif job.after != job.before:
        rewrite_in_place(job.name, job.after)
        click.echo(f"reformatted {escape_to_line(job.name)}")


def rewrite_in_place(path: str, text: str) -> None:
    """Overwrite a file in place, which keeps links, owner and mode.

    Restores the old content if the disk fills up. Raises CommandError.
    """
    outcome = "the file is unchanged"
    try:
        with Path(path).open("r+b", buffering=0) as file:
            before = file.readall()
            try:
                _write_content(file, text.encode())
            except (OSError, KeyboardInterrupt):
                outcome = "the old content could not be restored"
                _write_content(file, before)  # fits: its space is not freed until truncate
                outcome = "the file is unchanged"
                raise
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}; {outcome}") from None


def _write_content(file: FileIO, content: bytes) -> None:
    """Write from the start, then truncate, so that the old content's disk space stays allocated."""
    file.seek(0)
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]
    file.truncate()
