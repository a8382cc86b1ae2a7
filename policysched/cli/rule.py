"""`policysched rule`: the prose about a diagnostic, with a bad and a good example."""

import json
from difflib import get_close_matches
from textwrap import fill, indent

import click

from policysched.cli import CommandError
from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS, find_diagnostic_doc
from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc

_EXAMPLE_LINE_MAX = 100


@click.command()
@click.argument("wanted", nargs=-1, metavar="CODE|NAME...")
@click.option("--all", "every", is_flag=True, help="All diagnostics, one line each unless as JSON.")
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", help="For people or for machines."
)
def rule(wanted: tuple[str, ...], every: bool, output_format: str) -> int:
    """Explain a diagnostic by its code or name.

    \b
    policysched rule PS110
    policysched rule equals-sign
    policysched rule --all

    Exit codes: 0 explained, 2 there is no such diagnostic.
    """
    if every == bool(wanted):
        raise click.UsageError("give the code or name of a diagnostic, or --all")
    rules = list(DIAGNOSTIC_DOCS.values()) if every else [_find_rule(word) for word in wanted]
    if output_format == "json":
        click.echo(json.dumps([_as_json(one) for one in rules], indent=2))
    elif every:
        width = max(len(one.name) for one in rules)
        for one in rules:
            click.echo(f"{one.code}  {one.severity.label:<7}  {one.name:<{width}}  {one.summary}")
    else:
        click.echo("\n".join(_as_text(one) for one in rules), nl=False)
    return 0


def _find_rule(word: str) -> DiagnosticDoc:
    one = find_diagnostic_doc(word)
    if one is None:
        close = get_close_matches(word.lower(), [rule.name for rule in DIAGNOSTIC_DOCS.values()], n=1)
        hint = f"did you mean `{close[0]}`?" if close else "`policysched rule --all` lists them"
        raise CommandError(f"`{word}` is neither the code nor the name of a diagnostic; {hint}")
    return one


def _as_text(one: DiagnosticDoc) -> str:
    examples = (
        f"Bad:\n\n{_indent_example(one.bad_example)}\nGood:\n\n{_indent_example(one.good_example)}"
        if one.bad_example
        else ""
    )
    return (
        f"{one.code} {one.name} ({one.severity.label})\n\n"
        f"{fill(one.summary[0].upper() + one.summary[1:] + '.', 100)}\n\n"
        f"{fill(one.explanation, 100)}\n\n"
        f"{examples}"
    )


def _indent_example(text: str) -> str:
    """Indented, long lines cut: the examples about size are large."""
    lines = (
        line if len(line) <= _EXAMPLE_LINE_MAX else f"{line[:_EXAMPLE_LINE_MAX]}..."
        for line in text.split("\n")
    )
    return indent("\n".join(lines), "    ")


def _as_json(one: DiagnosticDoc) -> dict[str, str]:
    return {
        "code": one.code,
        "name": one.name,
        "severity": one.severity.label,
        "summary": one.summary,
        "explanation": one.explanation,
        "bad": one.bad_example,
        "good": one.good_example,
    }
