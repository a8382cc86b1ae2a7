"""Compare the policies that replace the seed systems with recorded cases of those systems.

    python tests/conformance/seeds.py tests/conformance/cases/seeds/*.json

Prints one line per case: `ok`, `choice` (it differs, and the policy's page in docs/seeds says why)
or `DIFFERS`; the last line counts them. Exits 1 if a difference is not listed on a page, and 2 if a
file or case cannot be read; the other cases are compared nevertheless.
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

from policysched.kube.decode.errors import MalformedObject
from tests.conformance.seed_systems.answers import answer
from tests.conformance.seed_systems.choices import Choice, choices
from tests.conformance.seed_systems.comparing import Difference, Tolerance, differences
from tests.conformance.seed_systems.worlds import Refused

Json = dict[str, Any]


_UNEXPECTED = (
    Refused,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    MalformedObject,
)
"""A case has an unexpected shape: it counts as a difference, and the other cases are compared."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one case. `listed` are the differences that a page explains, `unlisted` the
    others.
    """

    case: str
    listed: tuple[tuple[Difference, Choice], ...]
    unlisted: tuple[Difference, ...]

    @property
    def word(self) -> str:
        return "DIFFERS" if self.unlisted else "choice" if self.listed else "ok"


def judge(system: str, case: Json, known: Sequence[Choice]) -> Outcome:
    try:
        unequal = differences(
            case["expected"], answer(system, case), Tolerance.of(case.get("tolerance") or {})
        )
    except _UNEXPECTED as error:
        unequal = [Difference("", case["expected"], f"{type(error).__name__}: {error}")]
    listed, unlisted = [], []
    for difference in unequal:
        choice = next((choice for choice in known if choice.covers(case["id"], difference.key)), None)
        if choice is None:
            unlisted.append(difference)
        else:
            listed.append((difference, choice))
    return Outcome(case["id"], tuple(listed), tuple(unlisted))


class Unreadable(Exception):
    """A file or case cannot be read. The message says where and why."""


def outcomes(path: Path, known: Sequence[Choice]) -> list[Outcome]:
    """Raises Unreadable."""
    judged = []
    for case in _cases(path):
        if isinstance(case, Unreadable):
            raise case
        judged.append(judge(*case, known))
    return judged


def _cases(path: Path) -> Iterator[tuple[str, Json] | Unreadable]:
    """Each case with its system, or Unreadable for a malformed case. Raises Unreadable for a malformed
    file.
    """
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
    parser = argparse.ArgumentParser(description="Compare policies with recorded cases of the seed systems.")
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
                outcome = judge(*case, known)
                counts[outcome.word] += 1
                _print_outcome(outcome)
        except Unreadable as error:
            wrong += 1
            print(error, file=sys.stderr)
    if counts["DIFFERS"]:
        print(f"{counts['DIFFERS']} differ and are not listed", file=sys.stderr, flush=True)
    print(
        f"{counts['ok']} of {counts.total()} cases as expected, {counts['choice']} differ by choice (listed)"
    )
    return 2 if wrong else int(counts["DIFFERS"] > 0)


def _print_outcome(outcome: Outcome) -> None:
    print(f"{outcome.word:7} {outcome.case}")
    for difference, choice in outcome.listed:
        print(f"          {difference} (docs/seeds/{choice.page}: {choice.why})")
    for difference in outcome.unlisted:
        print(f"          {difference}")


if __name__ == "__main__":
    sys.exit(main())
