"""Cases of the seed systems, answered by the policies that stand in for them.

    python tests/conformance/seeds.py tests/conformance/cases/seeds/*.json

A line a case: `ok`, `choice` (it differs, and the policy's page in docs/seeds says why) or `DIFFERS`; last how many. Exit
1 where something differs that no page lists, 2 where a file cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from policysched.kube.malformed import Malformed
from tests.conformance.seed_systems.answers import answer
from tests.conformance.seed_systems.choices import Choice, choices
from tests.conformance.seed_systems.comparing import Difference, Tolerance, differences
from tests.conformance.seed_systems.worlds import Refused

Json = dict[str, Any]


_UNFORESEEN = (
    Refused,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    Malformed,
)
"""What a case of a shape that nobody foresaw may raise: it is a difference, and the other cases go on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case. `listed` are the differences that a page explains, `unlisted` the others."""

    case: str
    listed: tuple[tuple[Difference, Choice], ...]
    unlisted: tuple[Difference, ...]

    @property
    def word(self) -> str:
        return "DIFFERS" if self.unlisted else "choice" if self.listed else "ok"


def judge(system: str, case: Json, known: Sequence[Choice]) -> Outcome:
    try:
        found = differences(case["expected"], answer(system, case), Tolerance.of(case.get("tolerance", {})))
    except _UNFORESEEN as error:
        found = [Difference("", case["expected"], f"{type(error).__name__}: {error}")]
    listed, unlisted = [], []
    for one in found:
        why = next((choice for choice in known if choice.covers(case["id"], one.key)), None)
        if why is None:
            unlisted.append(one)
        else:
            listed.append((one, why))
    return Outcome(case["id"], tuple(listed), tuple(unlisted))


def outcomes(path: Path, known: Sequence[Choice]) -> list[Outcome]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return [judge(document["system"], case, known) for case in document["cases"]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cases of the seed systems, answered by our policies.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    files: list[Path] = parser.parse_args(arguments).files
    known = choices()
    found: list[Outcome] = []
    for path in files:
        try:
            found += outcomes(path, known)
        except (OSError, ValueError, KeyError) as error:
            print(f"{path}: cannot be used: {type(error).__name__} {error}", file=sys.stderr)
            return 2
    for one in found:
        print(f"{one.word:7} {one.case}")
        for difference, why in one.listed:
            print(f"          {difference} (docs/seeds/{why.page}: {why.why})")
        for difference in one.unlisted:
            print(f"          {difference}")
    counts = {word: sum(one.word == word for one in found) for word in ("ok", "choice", "DIFFERS")}
    print(f"{counts['ok']} of {len(found)} cases as expected, {counts['choice']} differ by choice (listed)")
    if counts["DIFFERS"]:
        print(f"{counts['DIFFERS']} differ and are not listed", file=sys.stderr)
    return int(counts["DIFFERS"] > 0)


if __name__ == "__main__":
    sys.exit(main())
