"""`param`: a constant of the policy that is set elsewhere, and refused there."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.lang.check import canonical_text, check_text
from policysched.lang.check.parameter_values import (
    ALL_POLICIES,
    ParameterValue,
    ParameterValues,
    ParameterValuesByPolicy,
)
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule
from policysched.text import Source, Span
from tests.strategies import LITERALS, policies

DECLARED = re.compile(r"^param (\w+): (\w+) =", re.MULTILINE)


def values(policy: str = "test", **texts: str | tuple[str, ...]) -> ParameterValuesByPolicy:
    """As if a key of the ConfigMap held them."""
    source = Source("ConfigMap kube-system/policies key test.params.yaml", "\n")
    by_name = {name: ParameterValue(text, "there", Span(source, 0, 1)) for name, text in texts.items()}
    return {policy: ParameterValues(by_name)}


def made_with(text: str, set_to: ParameterValuesByPolicy) -> Program:
    checked = check_text(text, parameter_values=set_to, cost_max=10**9)  # a random one may cost much
    assert checked.program is not None, [diagnostic.message for diagnostic in checked.diagnostics]
    return checked.program


CROWD = (
    "policy test version 1\nparam crowd: int = 100 range 1..110\nfilter crowded require node.pods < crowd\n"
)


def test_a_locked_parameter_has_the_value_of_the_operator_alone() -> None:
    locked = CROWD.replace("param", "locked param")
    source = Source("settings", "90")
    by_operator = ParameterValue("90", "settings", Span(source, 0, 2), by_operator=True)

    set_beside = check_text(locked, parameter_values=values(crowd="90"))
    set_by_operator = made_with(locked, {"test": ParameterValues({"crowd": by_operator})})

    assert set_beside.program is None and [d.code for d in set_beside.diagnostics] == ["PS263"]
    assert set_by_operator.parameters["crowd"].value.value == 90
    again = check_text(set_by_operator.text).program
    assert again is not None and again.sha256 == set_by_operator.sha256
    assert "locked param crowd" in set_by_operator.text
    assert made_with(CROWD, values(crowd="90")).parameters["crowd"].value.value == 90


# ── what a value does ──────────────────────────────────────────────────────────────────────────────────────────────


def test_an_external_value_replaces_every_use_of_the_parameter() -> None:
    text = """policy test version 1
param crowd: int = 100 range 1..110
param heavy: int = 1 range 0..9
param label: string = "pool"
let half: int = crowd - 50
filter crowded require node.pods < half says "{crowd} at most"
score pool weight heavy prefer node.labels[label] else "" == "a"
"""

    plain = made_with(text, {})
    checked = made_with(text, values(crowd="90", heavy="7", label="team"))

    by_hand = made_with(
        """policy test version 1
filter crowded require node.pods < 40 says "90 at most"
score pool weight 7 prefer node.labels["team"] else "" == "a"
""",
        {},
    )
    crowded, expected = checked.rules.filters[0], by_hand.rules.filters[0]
    assert isinstance(crowded, FilterRule) and isinstance(expected, FilterRule)
    assert replace(crowded, template=None) == replace(expected, template=None)
    assert checked.rules.scores == by_hand.rules.scores
    assert plain.sha256 != checked.sha256
    assert checked.parameters["crowd"].set_in == "there" and plain.parameters["crowd"].set_in == ""


def test_the_canonical_text_alone_makes_the_same_program_again() -> None:
    """The last known good text is all that is kept over a restart."""
    checked = made_with(CROWD, values(crowd="7"))

    again = check_text(checked.text).program

    assert again is not None and again.sha256 == checked.sha256 and again.rules == checked.rules
    assert again.parameters["crowd"].value.value == 7


@st.composite
def set_policies(draw: st.DrawFn) -> tuple[str, ParameterValuesByPolicy]:
    text = draw(policies())
    set_values: dict[str, str | tuple[str, ...]] = {}
    for name, kind in DECLARED.findall(text):
        if draw(st.booleans()):
            choices = {"key": ("pool", "gen", "a b"), "heavy": ("0", "9")}.get(name) or LITERALS[kind]
            set_values[name] = draw(st.sampled_from(choices))
    return text, values(**set_values)


def makes_itself_again(text: str, set_to: ParameterValuesByPolicy) -> None:
    checked = made_with(text, set_to)
    again = made_with(checked.text, {})
    assert again.sha256 == checked.sha256
    assert replace(again, parameters={}) == replace(checked, parameters={})


@settings(max_examples=60, deadline=None)
@given(set_policies())
def test_every_policy_with_values_from_outside_can_be_made_again_from_its_text(
    drawn: tuple[str, ParameterValuesByPolicy],
) -> None:
    makes_itself_again(*drawn)


def test_a_text_without_its_parameter_values_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_text, "with_value_as_default", lambda node, _one: node)

    with pytest.raises(AssertionError):
        makes_itself_again(CROWD, values(crowd="7"))


@pytest.mark.parametrize(
    ("kind", "text", "held"),
    [
        ("int", "-3", -3),
        ("float", "1e-3", 0.001),
        ("ratio", "12.5%", 0.125),
        ("cpu", "1500m", 1500),
        ("bytes", "1.5Gi", 1610612736),
        ("bandwidth", "1.5Gbps", 1.5e9),
        ("duration", "1.5s", 1_500_000_000),
        ("bool", "true", True),
        ("qos", "Guaranteed", 2),
        ("string", 'a "b" \\c', 'a "b" \\c'),
        ("list<string>", ("a", "b"), ("a", "b")),
        ("list<string>", "a, b", ("a", "b")),
        ("list<duration>", ("1s", "90ms"), (10**9, 90_000_000)),
    ],
)
def test_values_are_read_by_their_type_and_written_so_that_they_stay(
    kind: str, text: str | tuple[str, ...], held: object
) -> None:
    default = {"bool": "false", "qos": "BestEffort", "string": '""', "duration": "5s", "bandwidth": "0bps"}
    written = default.get(kind, '["x"]' if kind == "list<string>" else "[5s]" if "list" in kind else "0")
    policy = f"policy test version 1\nparam p: {kind} = {written}\ninclude kube_default\n"

    checked = made_with(policy, values(p=text))

    assert checked.parameters["p"].value.value == held
    assert made_with(checked.text, {}).parameters["p"].value.value == held


# ── what is refused ────────────────────────────────────────────────────────────────────────────────────────────────


def said(text: str, set_to: ParameterValuesByPolicy) -> list[tuple[str, str]]:
    """Codes, and what their places are called."""
    checked = check_text(text, parameter_values=set_to)
    assert checked.program is None
    return [
        (diagnostic.code, diagnostic.span.source.name)
        for diagnostic in checked.diagnostics
        if diagnostic.span and diagnostic.code < "PS3"
    ]


@pytest.mark.parametrize("text", ["0", "111", "many", "1.5", "", "99999999999999999999", ("1", "2")])
def test_a_value_outside_its_type_or_limits_refuses_the_policy_at_the_place_of_the_value(
    text: str | tuple[str, ...],
) -> None:
    reported = said(CROWD, values(crowd=text))

    assert reported == [("PS260", "ConfigMap kube-system/policies key test.params.yaml")]


def test_a_value_that_no_text_of_a_policy_can_say_is_refused() -> None:
    text = 'policy test version 1\nparam p: string = "x"\nparam r: ratio = 1\ninclude kube_default\n'

    assert [code for code, _ in said(text, values(p="a\tb", r="1e-300"))] == ["PS260", "PS260"]
    assert [code for code, _ in said(text, values(p="{{ .Values.p }}"))] == ["PS260"]


def test_a_value_for_a_parameter_that_is_not_there_refuses_the_policy() -> None:
    assert [code for code, _ in said(CROWD, values(crowds="90"))] == ["PS261"]


def test_a_value_for_every_policy_is_for_those_that_have_the_parameter() -> None:
    for_all = values(ALL_POLICIES, crowd="90", other="x")

    assert made_with(CROWD, for_all).parameters["crowd"].value.value == 90
    assert made_with("policy test version 1\ninclude kube_default\n", for_all).parameters == {}


def test_the_parameters_of_a_library_are_set_by_each_policy_that_includes_it() -> None:
    library = CROWD.replace("policy test", "library base")
    others = {"base.policy": library}
    policy = 'policy test version 1\ninclude "base.policy"\n'

    checked = check_text(policy, other_texts=others, parameter_values=values(crowd="90"))

    assert checked.program is not None and checked.program.parameters["crowd"].value.value == 90
    refused = check_text(policy, other_texts=others, parameter_values=values(crowd="900"))
    assert [diagnostic.code for diagnostic in refused.diagnostics if diagnostic.code < "PS3"] == ["PS260"]


# ── doubts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rule_that_a_parameter_switches_off_today_draws_no_doubt() -> None:
    text = """policy test version 1
include kube_default
param strict: bool = false
param limit: int = 110
filter ready when strict require node.ready
filter few require limit > 100
layer careful when strict { reweight image_locality 2 }
"""

    codes = {diagnostic.code for diagnostic in check_text(text).diagnostics}

    assert not codes & {"PS301", "PS302"}


def test_a_parameter_that_nothing_reads_is_reported() -> None:
    checked = check_text("policy test version 1\ninclude kube_default\nparam crowd: int = 3\n")

    assert [diagnostic.code for diagnostic in checked.diagnostics] == ["PS306"]


def test_bounds_of_a_policy_are_numbers_of_the_parameters_type() -> None:
    text = "policy test version 1\nparam wait: duration = 5m range 1..60\ninclude kube_default\n"

    assert [diagnostic.code for diagnostic in check_text(text).diagnostics if diagnostic.code < "PS3"] == [
        "PS207",
        "PS207",
    ]


def test_a_choice_by_a_parameter_is_not_a_comparison_of_one_thing_with_itself() -> None:
    text = (
        'policy test version 1\nparam mode: string = "most" in ["least", "most"]\nfilter fit require node.ready\n'
        'score size weight 1 higher if mode == "most" then node.pods else -node.pods normalize minmax\n'
    )

    reported = {diagnostic.code for diagnostic in check_text(text).diagnostics}
    of_one_thing = {
        diagnostic.code for diagnostic in check_text(text.replace('mode == "most"', "1 == 1")).diagnostics
    }

    assert "PS308" not in reported
    assert "PS308" in of_one_thing
