"""Cases of the seed systems, answered by the policies that stand in for them.

    python tests/conformance/seeds.py tests/conformance/cases/seeds/*.json

A line a case: `ok`, `choice` (it differs, and the policy's page in docs/seeds says why) or `DIFFERS`; last how many. Exit
1 where something differs that no page lists, 2 where a file or a case in it cannot be read; the others are answered all the same.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from policysched.kube.decode.errors import Malformed
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
        found = differences(case["expected"], answer(system, case), Tolerance.of(case.get("tolerance") or {}))
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


class Unreadable(Exception):
    """A file or a case that is none. The text says where, and what is wrong."""


def outcomes(path: Path, known: Sequence[Choice]) -> list[Outcome]:
    """Raises Unreadable."""
    found = []
    for one in _cases(path):
        if isinstance(one, Unreadable):
            raise one
        found.append(judge(*one, known))
    return found


def _cases(path: Path) -> Iterator[tuple[str, Json] | Unreadable]:
    """Each case with its system; in the place of a case that is none, what is wrong with it. Raises Unreadable: nothing in the file
    can be told from anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: cannot be read: {error}") from error
    if not (
        isinstance(document, dict)
        and isinstance(document.get("system"), str)
        and isinstance(document.get("cases"), list)
    ):
        raise Unreadable(f"{path}: no file of cases: it needs a `system` (text) and `cases` (a list)")
    for number, case in enumerate(document["cases"], 1):
        wanted = {"id": str, "input": dict, "expected": dict}
        if not isinstance(case, dict):
            yield Unreadable(f"{path}: case {number} is no object")
            continue
        wrong = [key for key, kind in wanted.items() if not isinstance(case.get(key), kind)]
        if wrong:
            name = case.get("id", number)
            yield Unreadable(f"{path}: case {name}: without a good {', '.join(f'`{key}`' for key in wrong)}")
        else:
            yield document["system"], case


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cases of the seed systems, answered by our policies.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    files: list[Path] = parser.parse_args(arguments).files
    known = choices()
    counts, wrong = Counter[str](), 0
    for path in files:
        try:
            for case in _cases(path):
                if isinstance(case, Unreadable):
                    wrong += 1
                    print(case, file=sys.stderr)
                    continue
                one = judge(*case, known)
                counts[one.word] += 1
                _tell(one)
        except Unreadable as error:
            wrong += 1
            print(error, file=sys.stderr)
    if counts["DIFFERS"]:
        print(f"{counts['DIFFERS']} differ and are not listed", file=sys.stderr, flush=True)
    print(
        f"{counts['ok']} of {counts.total()} cases as expected, {counts['choice']} differ by choice (listed)"
    )
    return 2 if wrong else int(counts["DIFFERS"] > 0)


def _tell(one: Outcome) -> None:
    print(f"{one.word:7} {one.case}")
    for difference, why in one.listed:
        print(f"          {difference} (docs/seeds/{why.page}: {why.why})")
    for difference in one.unlisted:
        print(f"          {difference}")


if __name__ == "__main__":
    sys.exit(main())
