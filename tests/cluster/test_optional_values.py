"""No list with an optional value reaches a function in Python: the conversion ends the process."""

import subprocess
import sys
from random import Random

import pytest

from tests.cluster.test_cel_selectors import ATTRIBUTES, evaluate
from tests.devices import DRIVER

REFUSED = [
    "[dyn(optional.of(1))].distinct().size() == 1",
    "[optional.of(1)].all(i, v, true)",
    'format.named(dyn(format.named("uri"))).hasValue()',
    '[format.uri().validate("a")].distinct().size() == 1',
    f"[{ATTRIBUTES}.?model].reverse().size() == 1",
    f"[[1, dyn({ATTRIBUTES}.?model)]].flatten().size() == 2",
    "[1].map(x, dyn(optional.of(x))).sort().size() == 1",
    "[{'a': optional.of(1)}].distinct().size() == 1",
    "[dyn(true ? optional.none() : optional.of(1))].distinct().size() == 1",
    "cel.bind(found, optional.of(1), [dyn(found)].distinct().size() == 1)",
    "[optional.of(optional.of(1)).value()].distinct().size() == 1",
    "[dyn(optional.of(1).optMap(x, x))].distinct().size() == 1",
    "[1].map(optional, [dyn(optional.of(1))].distinct().size() == 1)[0]",
    "[1].transformList(i, v, dyn(optional.of(v))).sort().size() == 1",
]


@pytest.mark.parametrize("expression", REFUSED)
def test_a_list_with_an_optional_value_reaches_no_function_in_python(expression: str) -> None:
    assert "optional values" in str(evaluate(expression))


@pytest.mark.parametrize(
    "expression",
    [
        f'device.attributes[?"{DRIVER}"].?model.orValue("") in ["a100", "h100"] && [3, 1].sort() == [1, 3]',
        f'sets.contains(["a100", "h100"], [{ATTRIBUTES}.?model.orValue("")])',
        'sets.contains([device.attributes[?"gone.example.com"].?a.orValue("x")], ["x"])',
        f'["a100", "h100"].includes(device.attributes[?"{DRIVER}"].?model.orValue(""))',
        f'"%s-%d".format([{ATTRIBUTES}.?model.orValue("none"), 3]) == "a100-3"',
        f'{ATTRIBUTES}.?gone.hasValue() || "model-%s".format(["a"]).split("-").reverse() == ["a", "model"]',
        f'{ATTRIBUTES}.?model.optMap(model, [model, "b"].sort()[0]).orValue("") == "a100"',
        f'optional.unwrap([{ATTRIBUTES}.?model, {ATTRIBUTES}.?gone]).distinct() == ["a100"]',
        'format.named("uri").value().validate("a b").hasValue() && [1, 1].distinct().size() == 1',
        f'cel.bind(dra, device.attributes[?"{DRIVER}"], dra.?index.orValue(0) in [1, 3].sort())',
        "[1, 2].transformList(i, v, optional.of(v)).size() == 2",
        "cel.bind(found, optional.of([2, 1]), found.value().sort() == [1, 2])",
    ],
)
def test_other_optional_values_may_stand_beside_such_functions(expression: str) -> None:
    assert evaluate(expression) is True


def expression_of(random: Random, depth: int) -> str:
    """Of lists, maps, optional values and functions, one in another; most of them have some type that fits."""

    def inner() -> str:
        return expression_of(random, depth - 1)

    if depth == 0:
        return random.choice(
            ["1", "'a'", "[1, 2]", "x", f"{ATTRIBUTES}.?model", "optional.none()", "optional"]
        )
    template = random.choice(
        [
            "dyn(optional.of({}))",
            "[dyn({})]",
            "[dyn({}), dyn({})]",
            "[dyn({})].map(x, dyn({}))",
            "[dyn({})].filter(optional, true)",
            "[dyn({})].map(optional, dyn({}))",
            "{{'k': dyn({})}}",
            "dyn({}).value()",
            "dyn({}).orValue({})",
            "dyn({}).?k",
            "dyn({}).k",
            "dyn({})[0]",
            "dyn({})[?0]",
            "dyn({}).optMap(x, dyn({}))",
            "cel.bind(x, dyn({}), dyn({}))",
            "(true ? dyn({}) : dyn({}))",
            "dyn({}).distinct()",
            "dyn({}).reverse()",
            "dyn({}).flatten()",
            "dyn({}).unwrapOpt()",
            "dyn({}).transformList(i, x, dyn({}))",
            "dyn({}).transformMap(i, x, dyn({}))",
            "dyn({}).sortBy(x, 1)",
            "[dyn({})].max()",
        ]
    )
    return template.format(*(inner() for _ in range(template.count("{}"))))


def main(seed: int, count: int) -> None:
    """Prints how many selectors are refused for optional values, and how many of the others are evaluated to a result."""
    random, refused, results = Random(seed), 0, 0
    for _ in range(count):
        expression = f"cel.bind(x, dyn(1), dyn({expression_of(random, random.randint(1, 4))})) == 1"
        answer = str(evaluate(expression))
        refused += "optional values" in answer
        results += answer == "False"
    print(refused, results)


def test_no_generated_selector_ends_the_process() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.cluster.test_optional_values", "1"], capture_output=True, text=True
    )

    assert run.returncode == 0, run.stderr
    refused, results = map(int, run.stdout.split())
    assert refused > 50 and results > 50


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 600)
