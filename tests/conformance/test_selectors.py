"""CEL selectors have the results that they have in Kubernetes' own code.

policysched may refuse a selector that kube-scheduler evaluates, since it may take too long or name what is missing; then it says so.
A result that differs is a fault. What the API server refuses has no result there.
"""

from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom

import pytest

from policysched.cluster.devices import cel_formats, cel_macros
from policysched.cluster.devices.cel_selectors import CelSelectorError, DeviceSelectors
from policysched.model.devices import Device
from tests.cluster.test_cel_functions import EXAMPLES, WRONG_VALUES
from tests.conformance.draw_selectors import draw_selector
from tests.conformance.selector_judge import DRIVER, Judgement, judge, judge_binary
from tests.missing_programs import required
from tests.seeded_random import SeededRandom

SELECTORS = 600
Judged = tuple[list[str], list[Judgement]]


@pytest.fixture(scope="module")
def binary(request: pytest.FixtureRequest) -> Path:
    return required(request, "control-plane", judge_binary)


REFUSED_BY_US = (
    "more than the limit",
    "nested too deeply",
    "does not pass optional values",
    "that policysched expands",
    "names, values, operators and brackets",
)


def differences(
    expressions: Sequence[str], judgements: Sequence[Judgement], *, differing_max: int | None = None
) -> tuple[list[str], int]:
    """Expressions with another result (at most this many), and how many have the same."""
    selectors = DeviceSelectors()
    differing, same = list[str](), 0
    for expression, judgement in zip(expressions, judgements, strict=True):
        if len(differing) == differing_max:
            break
        if judgement.is_refused or judgement.error.startswith("internal error"):  # a panic of cel-go
            continue
        try:
            matches: bool | None = selectors.matches(expression, DRIVER, Device("d", {}, {}))
        except CelSelectorError as error:
            if any(words in str(error) for words in REFUSED_BY_US):
                continue
            matches = None
        expected = None if judgement.error else judgement.matches
        if matches == expected:
            same += 1
        else:
            differing.append(f"{expression}: {matches}, in Kubernetes {expected} {judgement.error}")
    return differing, same


def drawn(seed: int, count: int = SELECTORS) -> list[str]:
    random = SeededRandom(seed)
    return [draw_selector(random) for _ in range(count)]


@pytest.fixture(scope="module")
def judged(binary: Path) -> Judged:
    """Selectors of which some show each planted bug, judged once."""
    expressions = drawn(1, 4 * SELECTORS)
    return expressions, judge(binary, expressions)


def test_random_selectors_have_the_results_that_they_have_in_kubernetes(binary: Path) -> None:
    seed = SystemRandom().randrange(2**32)
    expressions = drawn(seed)

    differing, same = differences(expressions, judge(binary, expressions))

    assert not differing, f"seed {seed}"
    assert same > SELECTORS / 2


def test_the_examples_of_the_libraries_have_the_results_that_they_have_in_kubernetes(binary: Path) -> None:
    expressions = [*EXAMPLES, *WRONG_VALUES]

    differing, same = differences(expressions, judge(binary, expressions))

    assert not differing
    assert same > len(EXAMPLES) * 0.9


@pytest.mark.parametrize(
    "bug", ["an index is the last one", "no filter", "an order that descends", "a format that everything has"]
)
def test_a_planted_bug_is_a_difference(judged: Judged, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    templates, formats = cel_macros.TEMPLATES, cel_formats.VALIDATIONS
    match bug:
        case "an index is the last one":
            monkeypatch.setitem(templates, ("indexOf", 1), templates["lastIndexOf", 1])
        case "no filter":
            unfiltered = templates["transformList", 3].replace("A2", "A3")
            monkeypatch.setitem(templates, ("transformList", 4), unfiltered)
        case "an order that descends":
            ascending = templates["sortBy", 2]
            monkeypatch.setitem(
                templates,
                ("sortBy", 2),
                ascending.replace("ITEMS.map(A0, A1)", "ITEMS.map(A0, A1).reverse()"),
            )
        case _:
            monkeypatch.setitem(formats, "dns1123Subdomain", lambda _: [])

    differing, _ = differences(*judged, differing_max=1)

    assert differing


def test_the_planted_bugs_are_no_differences_without_them(judged: Judged) -> None:
    differing, _ = differences(*judged)

    assert not differing
