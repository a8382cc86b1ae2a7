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
from collections.abc import Iterator
from dataclasses import dataclass
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


def test_the_readme_lists_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert COMMANDS
    assert [name for name in COMMANDS if f"| `policysched {name}" not in readme] == []


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
