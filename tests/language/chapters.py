"""Golden chapters: Markdown with prose, policies, and what is said about each.

A block ` ```policy ` (or ` ```yaml `, a ConfigMap) is an example; ` ```policy base.policy ` before it is a text that it
may include. The ` ```diagnostics ` block behind it holds what lint says; nothing stands in it where there is nothing to
say; ` ```selected ` holds it with the opt-in diagnostics. For `fmt` chapters the second block is ` ```formatted `.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from policysched.lang.diagnostics.catalogue import OPT_IN_CODES
from policysched.lang.format.formatter import format_source
from policysched.lint.linter import lint
from policysched.policy_files.source_set import SourceSet
from policysched.policy_files.sources import parse_sources
from policysched.text import Source
from policysched.text.render_text import render_full

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANSWERS = frozenset({"diagnostics", "selected", "formatted"})


@dataclass(frozen=True)
class Example:
    kind: str
    text: str
    others: dict[str, str]


def answered(chapter: str) -> str:
    """The chapter with each answer as it is now."""
    others: dict[str, str] = {}
    example: Example | None = None

    def replace(match: re.Match[str]) -> str:
        nonlocal example
        kind, name, body = match.groups()
        if kind in _ANSWERS:
            assert example is not None, f"an answer without an example before it:\n{match.group()}"
            answer = ANSWERS[kind](example)
            example = None
            others.clear()
            return f"```{kind}\n{answer}```"
        if name is not None:
            others[name] = body
        else:
            example = Example(kind, body, dict(others))
        return match.group()

    return _FENCE.sub(replace, chapter)


def _diagnostics(example: Example, select: Collection[str] = ()) -> str:
    if example.kind == "yaml":
        sets = parse_sources(example.text, "policies.yaml")
    else:
        texts = {**example.others, "test.policy": example.text}
        sources = {key: Source(key, text) for key, text in texts.items()}
        sets = [SourceSet("test.policy", sources, frozenset({"test.policy"}), {})]
    return "\n".join(f"{render_full(diagnostic)}\n" for diagnostic in lint(sets, select=select))


def _formatted(example: Example) -> str:
    result = format_source(Source("test.policy", example.text))
    return (
        result.text
        if result.text is not None
        else f"{result.internal_error}{[d.message for d in result.diagnostics]}\n"
    )


def _opted_in(example: Example) -> str:
    return _diagnostics(example, OPT_IN_CODES)


ANSWERS: dict[str, Callable[[Example], str]] = {
    "diagnostics": _diagnostics,
    "selected": _opted_in,
    "formatted": _formatted,
}


def check_chapter(path: Path, *, update: bool) -> None:
    """Fails where an answer differs; with `update` the file is rewritten first."""
    expected = path.read_text(encoding="utf-8")
    actual = answered(expected)
    if update and actual != expected:
        path.write_text(actual, encoding="utf-8")
    assert actual == expected, f"{path.name} says something else now; look, then run pytest --update-golden"
