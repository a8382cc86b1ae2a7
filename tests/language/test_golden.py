"""What is said about each mistake, word for word: the chapters in `golden/`."""

import re
from pathlib import Path

import pytest

from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS
from tests.language.chapters import answered, check_chapter

GOLDEN = Path(__file__).parent / "golden"
CHAPTERS = sorted(GOLDEN.glob("*.md"))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_the_output_of_lint(chapter: Path, update_golden: bool) -> None:
    check_chapter(chapter, update=update_golden)


def test_every_code_occurs_in_a_chapter() -> None:
    occurring = {
        code for path in CHAPTERS for code in re.findall(r"\[(PS\d{3})\]", path.read_text(encoding="utf-8"))
    }

    elsewhere = {
        code for code in DIAGNOSTIC_DOCS if code[2] in "79"
    }  # of tests, or of a cluster at hand: a text alone does not draw them
    assert set(DIAGNOSTIC_DOCS) - occurring - elsewhere == {
        "PS005",
        "PS006",
        "PS135",
        "PS239",
        "PS241",
    }  # their examples are very long


def test_a_chapter_with_wrong_output_is_detected(tmp_path: Path) -> None:
    wrong = CHAPTERS[0].read_text(encoding="utf-8").replace("[PS", "[PX", 1)
    path = tmp_path / "chapter.md"
    path.write_text(wrong, encoding="utf-8")

    with pytest.raises(AssertionError, match="says something else"):
        check_chapter(path, update=True)
    assert path.read_text(encoding="utf-8") == answered(wrong) != wrong
