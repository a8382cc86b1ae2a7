"""`include kube_default` of older releases of kube-scheduler."""

import pytest

from policysched.builtins.registry import BUILTINS, KUBE_SCHEDULER_RELEASES
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore
from policysched.scheduler.preemption.post_filter_messages import preemption_message


def default_of(include: str) -> Program:
    checked = check_text(f"policy test version 1\n{include}\npreemption {{ victims = any }}\n")
    assert checked.program is not None, checked.diagnostics
    return checked.program


def params(program: Program, name: str) -> dict[str, object]:
    [params] = [dict(rule.params) for rule in program.rules.scores if rule.name == name]
    return params


def test_without_a_number_it_is_the_newest() -> None:
    newest, unsaid = default_of('include kube_default "1.36"'), default_of("include kube_default")

    def said(program: Program) -> list[tuple[object, ...]]:
        rules = (*program.rules.filters, *program.rules.scores)
        return [(rule.name, rule.params, getattr(rule, "weight", None)) for rule in rules]  # type: ignore[union-attr]

    assert said(newest) == said(unsaid)
    assert [rule.name for rule in unsaid.rules.filters] == [
        name for name, builtin in BUILTINS.items() if builtin.filters
    ]


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_an_older_release_has_its_own_formulas_and_lacks_later_plugins(version: str) -> None:
    older, newest = default_of(f'include kube_default "{version}"'), default_of("include kube_default")

    filters = [rule.name for rule in older.rules.filters]
    assert filters == [rule.name for rule in newest.rules.filters if rule.name != "node_declared_features"]
    assert params(older, "node_resources_balanced_allocation")["formula"] == "balance"
    assert params(newest, "node_resources_balanced_allocation")["formula"] == "change"
    assert params(older, "image_locality")["image_volumes"] == "no"
    [devices] = [dict(rule.params) for rule in older.rules.filters if rule.name == "dynamic_resources"]
    assert devices["extended_resources"] == "no"
    lacking = KUBE_SCHEDULER_RELEASES[version].builtins_without_score
    weights = [(score.name, score.weight) for score in older.rules.scores]
    assert weights == [
        (score.name, score.weight) for score in newest.rules.scores if score.name not in lacking
    ]
    assert lacking == ({"dynamic_resources"} if version == "1.34" else set())


@pytest.mark.parametrize("version", KUBE_SCHEDULER_RELEASES)
def test_in_every_release_preemption_has_the_message_of_the_whole_profile(version: str) -> None:
    assert (
        preemption_message(default_of(f'include kube_default "{version}"'), "x")
        == "no new claims to deallocate, preemption: x"
    )


def test_the_differences_of_releases_name_existing_built_ins() -> None:
    assert KUBE_SCHEDULER_RELEASES
    for release in KUBE_SCHEDULER_RELEASES.values():
        assert release.missing_builtins | release.builtins_without_score <= BUILTINS.keys()
        values = [*release.filter_parameter_values.items(), *release.score_parameter_values.items()]
        for name, words in values:
            builtin = BUILTINS[name]
            choices = {
                parameter.name: parameter.choices
                for parameter in (*builtin.filter_parameters, *builtin.parameters)
            }
            assert words
            for parameter_name, word in words.items():
                assert word in choices[parameter_name]


def test_every_rule_of_a_release_is_a_built_in() -> None:
    rules = default_of('include kube_default "1.34"').rules

    assert {type(rule) for rule in rules.filters} == {BuiltinFilter}
    assert {type(rule) for rule in rules.scores} == {BuiltinScore}
