"""`policysched rule`: explain a diagnostic, with a bad and a good example."""

import json
from difflib import get_close_matches
from textwrap import fill, indent

import click

from policysched.cli import CommandError
from policysched.cli.policy_options import output_format_option
from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS, find_diagnostic_doc
from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc

_EXAMPLE_LINE_MAX = 100


@click.command()
@click.argument("selectors", nargs=-1, metavar="CODE|NAME...")
@click.option(
    "--all", "list_all", is_flag=True, help="List all diagnostics: one line each, or everything as JSON."
)
@output_format_option
def rule(selectors: tuple[str, ...], list_all: bool, output_format: str) -> int:
    """Explain a diagnostic by its code or name.

    Examples:

    \b
      policysched rule PS110
      policysched rule equals-sign
      policysched rule --all

    Exit codes: 0 success; 2 no such diagnostic.
    """
    if list_all == bool(selectors):
        raise click.UsageError("give the code or name of a diagnostic, or --all")
    docs = list(DIAGNOSTIC_DOCS.values()) if list_all else [_find_doc(selector) for selector in selectors]
    if output_format == "json":
        click.echo(json.dumps([_as_json(doc) for doc in docs], indent=2))
    elif list_all:
        width = max(len(doc.name) for doc in docs)
        for doc in docs:
            click.echo(f"{doc.code}  {doc.severity.label:<7}  {doc.name:<{width}}  {doc.summary}")
    else:
        click.echo("\n".join(_as_text(doc) for doc in docs), nl=False)
    return 0


def _find_doc(selector: str) -> DiagnosticDoc:
    doc = find_diagnostic_doc(selector)
    if doc is None:
        close = get_close_matches(selector.lower(), [doc.name for doc in DIAGNOSTIC_DOCS.values()], n=1)
        hint = f"did you mean `{close[0]}`?" if close else "`policysched rule --all` lists them"
        raise CommandError(f"`{selector}` is neither the code nor the name of a diagnostic; {hint}")
    return doc


def _as_text(doc: DiagnosticDoc) -> str:
    examples = (
        f"Bad:\n\n{_indent_example(doc.bad_example)}\nGood:\n\n{_indent_example(doc.good_example)}"
        if doc.bad_example
        else ""
    )
    return (
        f"{doc.code} {doc.name} ({doc.severity.label})\n\n"
        f"{fill(doc.summary[0].upper() + doc.summary[1:] + '.', 100)}\n\n"
        f"{fill(doc.explanation, 100)}\n\n"
        f"{examples}"
    )


def _indent_example(text: str) -> str:
    """Indent an example and truncate long lines: the examples of size limits are large."""
    lines = (
        line if len(line) <= _EXAMPLE_LINE_MAX else f"{line[:_EXAMPLE_LINE_MAX]}..."
        for line in text.split("\n")
    )
    return indent("\n".join(lines), "    ")


def _as_json(doc: DiagnosticDoc) -> dict[str, str]:
    return {
        "code": doc.code,
        "name": doc.name,
        "severity": doc.severity.label,
        "summary": doc.summary,
        "explanation": doc.explanation,
        "bad": doc.bad_example,
        "good": doc.good_example,
    }
