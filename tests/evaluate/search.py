"""Search for disagreements between evaluation and reference, for any number of examples.

    python -m tests.evaluate.search [--examples 10000]

Prints the policy and the differences at the first disagreement and exits with 1.
"""

import argparse
import sys
from collections.abc import Sequence

from hypothesis import given, settings

from tests.evaluate.clusters import Scene, scenes
from tests.evaluate.test_reference_property import SEARCH, all_agree
from tests.strategies import policies
from tests.strategies import program as checked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Search for a policy on which evaluation and reference disagree."
    )
    parser.add_argument("--examples", type=int, default=10_000)
    options = parser.parse_args(arguments)
    problems: list[str] = []

    @settings(SEARCH, max_examples=options.examples, database=None)
    @given(text=policies(), scene=scenes(pods=3))
    def search(text: str, scene: Scene) -> None:
        try:
            all_agree(checked(text), scene)
        except AssertionError as error:
            problems.append(f"{text}\n{error}")
            raise

    try:
        search()
    except AssertionError:
        print(problems[0])
        return 1
    print(f"{options.examples} policies, no disagreement")
    return 0


if __name__ == "__main__":
    sys.exit(main())
