"""The estimate of a selector's cost for one device bounds what it takes."""

from unittest.mock import Mock

import pytest

from policysched.cluster.devices.cel_macros import CALLS_MAX
from policysched.cluster.devices.cel_selectors import CelSelectorError, DeviceSelectors
from policysched.cluster.devices.selector_cost import EVALUATION, OPERATIONS_MAX
from policysched.kube.decode import devices
from tests.devices import DRIVER, gpu, slice_manifest

ATTRIBUTES = f'device.attributes["{DRIVER}"]'
HUNDRED = "[" + ",".join("1" * 100) + "]"
GI = 'quantity("1Gi")'

ORDINARY = (
    f'device.driver == "{DRIVER}"',
    f'{ATTRIBUTES}.model == "a100" && {ATTRIBUTES}.driverVersion.isLessThan(semver("1.10.0"))',
    f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))',
    f'{ATTRIBUTES}.model.matches("^a[0-9]{{2,4}}$")',
    f'{ATTRIBUTES}.?gone.orValue("none") in ["none", "some"]',
    f"cel.bind(dra, {ATTRIBUTES}, dra.on && dra.index in [1, 3])",
    rf'{ATTRIBUTES}.model.matches("^\\p{{L}}+.*[^x]$")',
    'device.attributes.exists(domain, device.attributes[domain].exists(name, name == "x"))',
    f'{ATTRIBUTES}.map(name, name).filter(name, name.startsWith("a")).size() > 0',
)


def grown(first: str, step: str) -> str:
    """A text that `step` makes longer twenty times."""
    grown = first
    for _ in range(20):
        grown = step.format(grown)
    return f"{grown}.size() > 0"


DOUBLED = "cel.bind(x, {}, x + x)"

EXCESSIVE = {
    "calls in comprehensions": f"{HUNDRED}.all(a, {HUNDRED}.all(b, {GI}.add({GI}).isGreaterThan({GI})))",
    "calls in a comprehension that is bound": f"cel.bind(x, {HUNDRED}.map(a, {GI}), x.all(b, {HUNDRED}.all(c, b.add({GI}) == b)))",
    "long strings in comprehensions": f'{HUNDRED}.all(a, {HUNDRED}.all(b, "{"x" * 5000}".replace("x", "yy").size() > 0))',
    "a string that grows": 'cel.bind(a, "0123456789", cel.bind(b, a.replace("1", a), cel.bind(c, b.replace("1", b), cel.bind(d, '
    'c.replace("1", c), cel.bind(e, d.replace("1", d), e.size() > 0)))))',
    "a string that grows by joining": f'cel.bind(a, {HUNDRED}.map(x, "{"y" * 100}").join(","), {HUNDRED}.map(x, a).join(",").size() > 0)',
    "repetitions in a pattern": f'"{"a" * 4000}".matches("(a{{0,30}}){{0,30}}b")',
    "a pattern that is put together": f'"{"a" * 4000}".matches("(a{{0," + "999}})b")',
    "repetitions of a Unicode class": r'"a".matches("\\pL{100}")',
    "Unicode classes": '"a".matches("' + r"\\PL" * 8 + '")',
    "a Unicode class that is put together": r'"a".find("\\p" + "L{100}") == ""',
    "repetitions of all characters": " || ".join(['"a".matches(".{1000}")'] * 20),
    "comprehensions in a map": f"{{1: {HUNDRED}.all(a, {HUNDRED}.all(b, {GI} == {GI}))}}.size() > 0",
    "quotes that are quoted": grown("'\"'", "strings.quote({})"),
    "a number as a text that grows": grown("string(7)", DOUBLED),
    "the text of a double that grows": grown("string(1.0)", DOUBLED),
    "a formatted number that grows": grown('"%.1000f".format([7])', DOUBLED),
    "a formatted text that grows": grown(f'"%s".format(["{"x" * 5000}"])', DOUBLED),
    "a text that replaces the empty one": grown("'x'", "{}.replace('', 'y')"),
    "nested maps and filters": f"{HUNDRED}.map(a, {HUNDRED}).filter(b, b.all(c, {HUNDRED}.all(d, d + c > 0))).size() > 0",
}


@pytest.mark.parametrize("expression", ORDINARY)
def test_an_ordinary_selector_is_far_below_the_limit(expression: str) -> None:
    assert EVALUATION < DeviceSelectors().operations(expression) < OPERATIONS_MAX


@pytest.mark.parametrize("expression", EXCESSIVE.values(), ids=EXCESSIVE)
def test_a_selector_that_can_take_too_long_is_an_error_before_it_is_evaluated(expression: str) -> None:
    device = devices.decode_resource_slice(slice_manifest("a", gpu("g"))).devices[0]

    with pytest.raises(
        CelSelectorError, match=r"CEL compile error: may take \d+ operations for one device"
    ) as error:
        DeviceSelectors().matches(expression, DRIVER, device)

    assert error.value.is_compile_error


@pytest.mark.parametrize("call", ["[].sortBy(x, x) == []", '"a".split("a") == []', "{}.all(k, v, v)"])
def test_a_selector_that_takes_too_long_to_expand_is_an_error(call: str) -> None:
    """Each call takes 1 to 2 ms: five hundred of them took a second of the main loop in one piece."""
    device = devices.decode_resource_slice(slice_manifest("a", gpu("g"))).devices[0]

    DeviceSelectors().matches(" && ".join([call] * CALLS_MAX), DRIVER, device)
    with pytest.raises(CelSelectorError, match=rf"compile error: .* more than {CALLS_MAX} calls"):
        DeviceSelectors().matches(" && ".join([call] * (CALLS_MAX + 1)), DRIVER, device)
    with pytest.raises(
        CelSelectorError, match=r"compile error: .* or one in an expression with more than 250"
    ):
        DeviceSelectors().matches(call + " || 1 == 1" * 100, DRIVER, device)


LARGE = {
    "empty maps": "[" + ",".join(["{}"] * 3_000) + "].size() > 0",
    "numbers": f"{list(range(1_500))}.size() > 0",
    "comparisons": "||".join(["1==1"] * 1_500),
    "comprehensions": "||".join(["[].all(x,x)"] * 750),
    "negations": "||".join(["!true"] * 1_000),
    "operators behind a quote in a comment": '// " \n true' + "||1==1" * 1_500 + ' // "',
    "operators behind a name with slashes": "device.`a//` == 1" + "||1==1" * 1_500,
    "operators behind an empty raw string of bytes": r"br'' == b'' || r'''\ ''' == ''" + "||1==1" * 1_500,
}


@pytest.mark.parametrize("expression", LARGE.values(), ids=LARGE)
def test_a_selector_of_too_many_symbols_is_not_compiled(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 10 KiB took up to 0.2 s to compile in one piece."""
    selectors = DeviceSelectors()
    monkeypatch.setattr(selectors, "_compiled_tree", compiled := Mock(side_effect=RuntimeError("compiled")))

    with pytest.raises(CelSelectorError, match="more than 750 names, values, operators and brackets"):
        selectors.matches(expression, DRIVER, Mock())

    assert not compiled.called


COPIED = {
    "a chain": "optional.of(1)" + ".optMap(x, x)" * 12 + ".hasValue()",
    "a chain in brackets": "(" * 8 + "optional.of(1)" + ".optFlatMap(x, optional.of(x)))" * 8 + ".hasValue()",
    "a chain that a loop repeats": "[1].all(y, optional.of(y)" + ".optMap(x, x)" * 8 + ".hasValue())",
    "a chain in a map": "{1: optional.of(1)" + ".optMap(x, x)" * 8 + "}.size() == 1",
    "chains over comments": "optional.of(1)" + ".optMap // (\n (x, x)" * 8 + ".hasValue()",
}


@pytest.mark.parametrize("expression", COPIED.values(), ids=COPIED)
def test_a_selector_whose_macros_repeat_what_they_are_called_on_is_not_compiled(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of a chain doubled the tree: sixteen took 3 s and 0.5 GB, in one piece, and twenty the memory of the process."""
    selectors = DeviceSelectors()
    monkeypatch.setattr(selectors, "_compiled_tree", compiled := Mock(side_effect=RuntimeError("compiled")))

    with pytest.raises(CelSelectorError, match="each optMap and optFlatMap repeats what it is called on"):
        selectors.matches(expression, DRIVER, Mock())

    assert not compiled.called


def test_macros_that_repeat_what_they_are_called_on_are_compiled_side_by_side() -> None:
    one = 'device.attributes["a.b"].?model.optMap(model, model.startsWith("a")).orValue(false)'

    assert DeviceSelectors().operations("||".join([one] * 12)) > EVALUATION


OF_TEXTS = {
    "the UUIDs of many devices": [f'"GPU-{number:08}-9a3b-4c5d-8e7f-0123456789ab"' for number in range(225)],
    "the addresses of many devices": [f'"0000:{number:02x}:00.0"' for number in range(580)],
    "texts with operators": [
        *['"""a"b + c"""', "'''a'b + c'''", r'"\" + + +"', r"r'+ + \d'", "R'''' + '''", r"'''+ + \''''"] * 80
    ],
    "long comments": ["1, // 'a' + + + + + + +\n 2"] * 200,
}


@pytest.mark.parametrize("items", OF_TEXTS.values(), ids=OF_TEXTS)
def test_a_selector_with_long_texts_is_compiled(items: list[str]) -> None:
    expression = f"{ATTRIBUTES}.uuid in [{', '.join(items)}]"

    assert EVALUATION < DeviceSelectors().operations(expression) < OPERATIONS_MAX


@pytest.mark.parametrize("count", [10, 20, 40])
def test_the_estimate_grows_with_each_nested_list(count: int) -> None:
    numbers = str(list(range(count)))
    inner = f"{numbers}.all(a, a >= 0)"

    once, twice = (
        DeviceSelectors().operations(expression) - EVALUATION
        for expression in (inner, f"{numbers}.all(b, {inner})")
    )

    assert count * once <= twice <= 2 * count * once


def test_the_branch_that_costs_most_counts_wherever_it_stands() -> None:
    costly = f"{HUNDRED}.all(a, {GI} == {GI})"
    selectors = DeviceSelectors()

    places = [f"false && {costly}", f"true ? true : {costly}", f"!(true || {costly})", f"[{costly}][0]"]

    assert all(selectors.operations(place) >= selectors.operations(costly) for place in places)


def test_an_estimate_of_thousands_of_digits_can_be_told() -> None:
    expression = grown("[1]", "cel.bind(x, {}, [x, x].flatten())")

    with pytest.raises(CelSelectorError, match=r"may take \d+ operations for one device"):
        DeviceSelectors().matches(expression, DRIVER, Mock())


@pytest.mark.parametrize("call", ["dyn('a').find()", "dyn('a').findAll()", "lists.range()"])
def test_a_call_without_arguments_in_a_macro_is_an_error(call: str) -> None:
    """The API server refuses it: what a macro is written with is not type-checked here."""
    with pytest.raises(CelSelectorError, match="CEL runtime error"):
        DeviceSelectors().matches(f"[1].all(i, v, {call} == v)", DRIVER, Mock(attributes={}, capacity={}))
