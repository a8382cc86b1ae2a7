"""What ships with the program: policies that lint clean, chapters for every code."""

import re
from pathlib import Path

import pytest

from policysched.data_files import data_file
from policysched.lang.diagnostics.name_docs import NAME_DOCS
from policysched.lang.diagnostics.parameter_docs import PARAMETER_DOCS
from policysched.lang.diagnostics.warning_docs import WARNING_DOCS
from policysched.lang.format.formatter import format_source
from policysched.lint.linter import lint
from policysched.policy_files.sources import parse_sources
from policysched.text import Source

POLICIES = sorted(Path(data_file("policies")).glob("*.policy"))
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_shipped_policy_lints_clean_is_formatted_and_explains_itself(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    diagnostics = list(lint(parse_sources(text, path.name)))

    assert diagnostics == []
    assert format_source(Source(path.name, text)).text == text
    assert text.startswith("# ")
    assert f"policy {path.stem} version 1" in text


def test_every_code_of_the_checker_occurs_in_a_chapter() -> None:
    occurring = {
        code
        for path in GOLDEN.glob("*.md")
        for code in re.findall(r"\[(PS\d{3})\]", path.read_text(encoding="utf-8"))
    }

    checker_docs = (*NAME_DOCS, *PARAMETER_DOCS, *WARNING_DOCS)
    assert {doc.code for doc in checker_docs} - occurring == {"PS239", "PS241"}  # very long examples
