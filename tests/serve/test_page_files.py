"""The files of the page that repeat what the product has elsewhere."""

import re

import pytest

from policysched.lang.parse.keywords import CONTINUATION_KEYWORDS, STATEMENTS
from policysched.serve.page_files import FOLDER

SYNTAX = (FOLDER / "policy_syntax.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "keywords"),
    [("STATEMENTS", {*STATEMENTS}), ("KEYWORDS", {*CONTINUATION_KEYWORDS, "if", "never", "true", "false"})],
)
def test_the_editor_colours_the_keywords_of_the_language(name: str, keywords: set[str]) -> None:
    listed = re.search(rf'{name} = "([^"]+)"', SYNTAX)

    assert listed is not None
    assert set(listed[1].split()) == keywords
