"""The examples of the documentation work.

A block fenced as `policy` is linted. Codes after the word (`policy PS201`) have to be reported,
whether errors or hints, and no other errors are allowed. An excerpt without a header is linted
after `policy example version 1` and `include kube_default`. `policy file=base.policy` stores the
block for later blocks of the page. Commands in blocks fenced as `sh` or `text` are parsed by the
command line's own options.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote

import click
import pytest
import yaml

from policysched.cli import COMMANDS, main
from policysched.lint.linter import lint
from policysched.policy_files.source_set import SourceSet
from policysched.schemas import findings
from policysched.text import Severity, Source
from tests.house.docs import ROOT, written_pages

PRELUDE = "policy example version 1\n\ninclude kube_default\n\n"
_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADER = re.compile(r"(?:\s*#[^\n]*\n|\s*\n)*(?:policy|library) ")
MADE_FROM_THE_CATALOGUE = {"docs/rules.md"}
"""Its examples have a separate test, code by code."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    rest: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> list[Block]:
    mistakes = []
    for match in _FENCE.finditer(text):
        language, _, rest = match[2].strip().partition(" ")
        mistakes.append(Block(page, text.count("\n", 0, match.start()) + 1, language, rest, match[3]))
    return mistakes


def all_blocks() -> list[Block]:
    pages = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in written_pages()}
    return [block for page, text in pages.items() for block in blocks_of(page, text)]


BLOCKS = all_blocks()
POLICIES = [block for block in BLOCKS if block.language == "policy"]


def said_of(block: Block, others: dict[str, str]) -> tuple[set[str], set[str]]:
    """The codes of the errors in an example, and the codes of all its diagnostics."""
    whole = block.text if _HEADER.match(block.text) else PRELUDE + block.text
    sources = {key: Source(key, text) for key, text in {**others, "example.policy": whole}.items()}
    diagnostics = lint([SourceSet("example", sources, frozenset({"example.policy"}), {})])
    return {diagnostic.code for diagnostic in diagnostics if diagnostic.severity >= Severity.ERROR}, {
        diagnostic.code for diagnostic in diagnostics
    }


def beside(block: Block) -> dict[str, str]:
    """The files that earlier blocks of the page define."""
    return {
        policy.rest.removeprefix("file="): policy.text
        for policy in POLICIES
        if policy.page == block.page and policy.line < block.line and policy.rest.startswith("file=")
    }


@pytest.mark.parametrize("block", POLICIES, ids=str)
def test_a_policy_example_has_only_its_declared_errors(block: Block) -> None:
    meant = set(block.rest.split()) if not block.rest.startswith("file=") else set()

    errors, everything = said_of(block, beside(block))

    assert errors <= meant, "an error that is not meant"
    assert meant <= everything, "what is meant is not said"


def test_a_broken_example_is_detected() -> None:
    mistaken = blocks_of("x.md", "```policy\nfilter a require nope\n```\n")

    assert [said_of(block, {})[0] for block in mistaken] == [{"PS210"}]


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.page not in MADE_FROM_THE_CATALOGUE], ids=str
)
def test_a_block_is_fenced_with_its_language(block: Block) -> None:
    fragment = block.page in ("docs/builtins.md", "docs/ARCHITECTURE.md")

    assert block.language or fragment, "a fence without a language"
    if block.language not in ("policy", "sh"):
        assert not _HEADER.match(block.text), "a policy that no test reads: fence it as `policy`"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_a_json_example_matches_the_schema_of_its_page(block: Block) -> None:
    answer = json.loads(block.text)

    name = "policy" if "policies" in answer else "quotas" if "quotas" in answer else "decisions"
    assert findings(name, answer) == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_a_yaml_example_is_the_file_that_its_first_line_names(block: Block) -> None:
    value = yaml.safe_load(block.text)

    kind = re.match(r"# (settings|samples)\.yaml\n", block.text)
    assert value and (kind is None or findings(kind[1], value, block.text) == [])


# ── commands ───────────────────────────────────────────────────────────────────────────────────────────────────────


def commands_in(text: str) -> Iterator[list[str]]:
    """The arguments of `policysched` in the lines of a shell; continued lines are joined."""
    inside = False
    for line in text.replace("\\\n", " ").splitlines():
        if "<<'" in line:
            inside = True
        elif inside:
            inside = line != "POLICY"
        elif command := re.search(r"(?:^|\||&&|\$) *(?:\.venv/bin/)?policysched ((?:'[^']*'|[^|>])*)", line):
            yield shlex.split(command[1].replace("$(", "(").replace("(", "").replace(")", ""), comments=True)


def all_commands() -> list[tuple[str, list[str]]]:
    fenced = [
        (f"{block} {' '.join(words)}", words)
        for block in BLOCKS
        if block.language in ("sh", "text") and block.page not in MADE_FROM_THE_CATALOGUE
        for words in commands_in(block.text)
    ]
    inline = [
        (f"{path.name} {code}", shlex.split(code)[1:])
        for path in written_pages()
        for code in re.findall(r"`(policysched [a-z]+ [^`…]*)`", path.read_text(encoding="utf-8"))
    ]
    in_help = [
        (f"--help of {name}: {' '.join(words)}", words)
        for name in COMMANDS
        for words in commands_in(re.sub(r"^ +", "", command(name).help or "", flags=re.MULTILINE))
    ]
    return fenced + inline + in_help


def command(name: str) -> click.Command:
    command = main.get_command(click.Context(main), name)
    assert command is not None, f"there is no command {name}"
    return command


def complaint(words: list[str]) -> str:
    """The command line's error for these arguments; no command runs."""
    name, *arguments = words
    if name not in COMMANDS:
        return f"no command {name}"
    try:
        command(name).make_context(name, arguments, resilient_parsing=False)
    except click.exceptions.Exit:
        return ""  # --help
    except click.ClickException as error:
        return error.format_message()
    return ""


@pytest.mark.parametrize(
    "words", [words for _, words in all_commands()], ids=[where for where, _ in all_commands()]
)
def test_a_command_line_of_the_documentation_has_valid_options(words: list[str]) -> None:
    error = complaint(words)

    assert "no such file" not in error.lower() and "does not exist" not in error, (
        "the options are parsed, not the files"
    )
    assert error == ""


def test_a_command_line_with_an_unknown_option_is_detected() -> None:
    lines = "kubectl get pods -o yaml | policysched lint - --strict\n"

    assert ["No such option" in complaint(words) for words in commands_in(lines)] == [True]


# ── links ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def links_of(text: str) -> list[str]:
    """Link targets that are not URLs, outside of fences and code."""
    plain = re.sub(r"`[^`\n]*`", "code", _FENCE.sub("", text))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", plain) if "://" not in link]


def anchors_of(text: str) -> set[str]:
    """Anchors as GitHub generates them from headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path, text: str) -> list[str]:
    broken = []
    for link in links_of(text):
        target, _, anchor = unquote(link).partition("#")
        linked = (path.parent / target).resolve() if target else path
        if not linked.exists() or (
            anchor
            and anchor not in anchors_of(text if linked == path else linked.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", written_pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_link_targets_exist(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_detected() -> None:
    text = "# A heading\n\n[a](#a-heading) [b](#b) [c](nowhere.md) [d](docs/language.md#types) [e](docs/language.md#typs)\n"

    assert broken_links(ROOT / "README.md", text) == ["#b", "nowhere.md", "docs/language.md#typs"]


# ── the site ───────────────────────────────────────────────────────────────────────────────────────────────────────


def navigation_patterns(entry: object) -> Iterator[str]:
    """The files and patterns of `docs/.nav.yml`, in their order."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        yield from (pattern for value in entry.values() for pattern in navigation_patterns(value))
    elif isinstance(entry, list):
        yield from (pattern for value in entry for pattern in navigation_patterns(value))


def places_in_the_navigation(page: str, patterns: Sequence[str]) -> int:
    """How often the site shows a page; `folder/*` leaves out what has an entry of its own."""
    if page in patterns:
        return list(patterns).count(page)
    return sum(fnmatch(page, pattern) for pattern in patterns)


def test_every_page_has_one_place_in_the_navigation_of_the_site() -> None:
    patterns = list(
        navigation_patterns(yaml.safe_load((ROOT / "docs" / ".nav.yml").read_text(encoding="utf-8")))
    )
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]

    assert [page for page in pages if places_in_the_navigation(page, patterns) != 1] == [], (
        "see docs/.nav.yml"
    )
    assert [pattern for pattern in patterns if not any(fnmatch(page, pattern) for page in pages)] == []


def test_a_page_without_a_place_or_with_two_is_detected() -> None:
    nav = {"nav": ["index.md", {"A": ["a/README.md", "a/*"]}, {"B": ["b.md", "b.md"]}]}
    patterns = list(navigation_patterns(nav))

    pages = ("index.md", "a/README.md", "a/x.md", "b.md", "c.md")
    assert [places_in_the_navigation(page, patterns) for page in pages] == [1, 1, 1, 2, 0]


def indents_read_differently(text: str) -> list[str]:
    """Lines that the site's Markdown reads differently from GitHub's: it wants four spaces for what is in an item."""
    lines = re.findall(r"^ {1,3}(?:```|[-*] |\d+\. ).*$", _FENCE.sub("", text), flags=re.MULTILINE)
    return lines + [match[0] for match in _FENCE.finditer(text) if len(match[1]) % 4]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_lists_and_fences_are_indented_by_four(path: Path) -> None:
    assert indents_read_differently(path.read_text(encoding="utf-8")) == []


def test_an_indent_that_the_site_reads_differently_is_detected() -> None:
    text = "- a\n  - b\n\n1. c\n\n   ```sh\n   x\n   ```\n\n- d\n\n    ```sh\n    - y\n    ```\n"

    assert indents_read_differently(text) == ["  - b", "   ```sh\n   x\n   ```"]
