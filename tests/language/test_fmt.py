"""Formatting: the pairs in `fmt/`, and what holds of every text."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings

from policysched.data_files import data_file
from policysched.lang.format import expression_text, formatter, layout
from policysched.lang.format.formatter import format_source, trees_equal
from policysched.lang.format.printer import print_tree
from policysched.lang.parse import parse
from policysched.text import Source
from tests.language.chapters import check_chapter
from tests.language.texts import decorated_policies

PAIRS = sorted((Path(__file__).parent / "fmt").glob("*.md"))


@pytest.mark.parametrize("chapter", PAIRS, ids=lambda path: path.stem)
def test_a_pair_is_formatted_as_written_down(chapter: Path, update_golden: bool) -> None:
    check_chapter(chapter, update=update_golden)


def printing_keeps_everything(text: str) -> None:
    document, problems = parse(Source("test.policy", text))
    assert problems == (), text

    printed = print_tree(document)
    again, problems = parse(Source("test.policy", printed))

    assert problems == (), printed
    assert trees_equal(document.statements, again.statements), printed
    assert Counter(c.text for c in document.comments) == Counter(c.text for c in again.comments), printed
    assert print_tree(again) == printed


@settings(max_examples=150, deadline=None)
@given(decorated_policies())
def test_printing_keeps_the_tree_and_the_comments_and_is_a_fixed_point(text: str) -> None:
    printing_keeps_everything(text)


def test_the_property_notices_a_printer_that_forgets_parentheses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expression_text, "_level", lambda _expression: expression_text.PRIMARY_LEVEL)

    with pytest.raises(AssertionError):
        printing_keeps_everything("filter a require (b or c) and d\n")


def test_the_property_notices_a_printer_that_forgets_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_trailing_comment_text", lambda _segment: "")

    with pytest.raises(AssertionError):
        printing_keeps_everything("filter a  # why\n  require node.ready\n")


def test_a_text_with_a_syntax_error_is_not_formatted() -> None:
    result = format_source(Source("test.policy", "filter a require && b\n"))

    assert result.text is None
    assert [diagnostic.code for diagnostic in result.diagnostics] == ["PS111"]


def test_formatting_removes_tabs() -> None:
    result = format_source(Source("test.policy", "filter ready\n\trequire node.ready\n"))

    assert result.text == "filter ready require node.ready\n"


@pytest.mark.parametrize(
    ("printed", "fault"),
    [
        ("filter a require x ==\n", "does not parse"),
        ("filter a require y\n# c\n", "a different meaning"),
        ("filter a require x\n", "different comments"),
        ("filter a   require x\n# c\n", "again"),
    ],
)
def test_a_formatter_that_changes_the_meaning_is_detected_before_writing(
    monkeypatch: pytest.MonkeyPatch, printed: str, fault: str
) -> None:
    texts = iter((printed, "something else"))
    monkeypatch.setattr(formatter, "print_tree", lambda _document: next(texts))

    result = format_source(Source("test.policy", "filter a require x\n# c\n"))

    assert result.text is None
    assert fault in result.internal_error


def test_an_empty_text_stays_empty() -> None:
    assert format_source(Source("test.policy", "")).text == ""


SHIPPED = [
    *data_file("policies").rglob("*.policy"),
    *(Path(__file__).parents[2] / "docs" / "examples").rglob("*.policy"),
]


@pytest.mark.parametrize("path", sorted(SHIPPED), ids=lambda path: path.name)
def test_the_shipped_policies_are_formatted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert format_source(Source(path.name, text)).text == text


def test_a_type_of_thousands_of_levels_does_not_exhaust_the_stack() -> None:
    type_ = "list<" * 5000 + "int" + ">" * 5000

    result = format_source(Source("deep.policy", f"policy deep version 1\nparam x: {type_}=1\n"))

    assert result.text is not None
    assert f"param x: {type_} =" in result.text
