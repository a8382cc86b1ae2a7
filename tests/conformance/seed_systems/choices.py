"""Intended differences from a seed system, read from the documentation, where each has its reason.

A row of the table under `## Where it differs` is `| case | key | why |`: shell patterns for the
case's id and for the key of the expectation.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs" / "seeds"
_HEADING = "## Where it differs"
_ROW = re.compile(r"^\| `(?P<case>[^`]+)` \| `(?P<key>[^`]+)` \| (?P<why>.+?) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Choice:
    page: str
    case: str
    key: str
    why: str

    def covers(self, case: str, key: str) -> bool:
        return fnmatchcase(case, self.case) and fnmatchcase(key, self.key)


def choices(folder: Path = DOCS) -> list[Choice]:
    return [choice for page in sorted(folder.glob("*.md")) for choice in _choices_of(page)]


def _choices_of(page: Path) -> Iterator[Choice]:
    _, _, section = page.read_text(encoding="utf-8").partition(_HEADING)
    section = section.partition("\n## ")[0]
    for row in _ROW.finditer(section):
        yield Choice(page.name, row["case"], row["key"], row["why"])
