"""`policysched rule`: the prose about a diagnostic, with a bad and a good example."""

import json
from difflib import get_close_matches
from textwrap import fill, indent

import click

from policysched.cli import Problem
from policysched.lang.diagnostics.catalogue import RULES, RuleDoc, find_rule

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
    rules = list(RULES.values()) if every else [_found(word) for word in wanted]
    if output_format == "json":
        click.echo(json.dumps([_as_json(one) for one in rules], indent=2))
    elif every:
        width = max(len(one.name) for one in rules)
        for one in rules:
            click.echo(f"{one.code}  {one.severity.word:<7}  {one.name:<{width}}  {one.summary}")
    else:
        click.echo("\n".join(_as_text(one) for one in rules), nl=False)
    return 0


def _found(word: str) -> RuleDoc:
    one = find_rule(word)
    if one is None:
        close = get_close_matches(word.lower(), [rule.name for rule in RULES.values()], n=1)
        hint = f"did you mean `{close[0]}`?" if close else "`policysched rule --all` lists them"
        raise Problem(f"`{word}` is neither the code nor the name of a diagnostic; {hint}")
    return one


def _as_text(one: RuleDoc) -> str:
    examples = f"Bad:\n\n{_example(one.bad)}\nGood:\n\n{_example(one.good)}" if one.bad else ""
    return (
        f"{one.code} {one.name} ({one.severity.word})\n\n"
        f"{fill(one.summary[0].upper() + one.summary[1:] + '.', 100)}\n\n"
        f"{fill(one.explanation, 100)}\n\n"
        f"{examples}"
    )


def _example(text: str) -> str:
    """Indented, long lines cut: the examples about size are large."""
    lines = (
        line if len(line) <= _EXAMPLE_LINE_MAX else f"{line[:_EXAMPLE_LINE_MAX]}..."
        for line in text.split("\n")
    )
    return indent("\n".join(lines), "    ")


def _as_json(one: RuleDoc) -> dict[str, str]:
    return {
        "code": one.code,
        "name": one.name,
        "severity": one.severity.word,
        "summary": one.summary,
        "explanation": one.explanation,
        "bad": one.bad,
        "good": one.good,
    }
