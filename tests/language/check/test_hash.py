"""The hash of a policy is that of its rules: comments, empty lines and formatting do not change it."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from policysched.data_files import data_file
from policysched.lang.check import canonical_text, check_text
from policysched.lang.format import printer
from policysched.lang.format.formatter import format_source
from policysched.text import Source

TEXTS = {
    path.name: path.read_text(encoding="utf-8")
    for path in sorted(Path(data_file("policies")).iterdir())
    if path.suffix == ".policy"
}
POLICIES = [name for name, text in TEXTS.items() if f"policy {Path(name).stem} version 1" in text]
LIBRARIES = {name: text for name, text in TEXTS.items() if name not in POLICIES}


def sha256(text: str, others: Mapping[str, str] = LIBRARIES) -> str:
    program = check_text(text, other_texts=dict(others)).program
    assert program is not None, text
    return program.sha256


def spread(text: str, random: Random) -> str:
    """The text with comments and empty lines between its lines."""
    lines = []
    for line in text.splitlines():
        lines += random.choice([[], [], [""], ["", ""], ["# a remark"], ["", "# a remark", ""]])
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", POLICIES)
def test_comments_empty_lines_and_formatting_keep_the_hash(name: str) -> None:
    expected = sha256(TEXTS[name])

    for seed in range(3):
        text = spread(TEXTS[name], Random(seed))
        formatted = format_source(Source(name, text)).text
        assert formatted is not None, text

        assert sha256(text) == expected
        assert sha256(formatted) == expected


def test_another_value_changes_the_hash() -> None:
    text = "policy test version 1\nfilter big require node.free.cpu >= 2\n"

    assert sha256(text) != sha256(text.replace("2\n", "3\n"))


def test_a_canonical_text_with_empty_lines_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_text, "print_tree", lambda document, **_: printer.print_tree(document))

    with pytest.raises(AssertionError):
        test_comments_empty_lines_and_formatting_keep_the_hash(POLICIES[0])
