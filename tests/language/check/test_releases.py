"""`include kube_default` of older releases of kube-scheduler."""

import pytest

from policysched.builtins.registry import (
    BUILTINS,
    KUBE_DEFAULT_VERSION,
    KUBE_SCHEDULER_RELEASES,
    release_of_filters,
)
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore
from policysched.model.identifiers import NodeName
from policysched.scheduler.preemption.post_filter_messages import (
    ClaimPostFilterMessage,
    placement_message,
    preemption_message,
)


def default_of(include: str) -> Program:
    checked = check_text(f"policy test version 1\n{include}\npreemption {{ victims = any }}\n")
    assert checked.program is not None, checked.diagnostics
    return checked.program


def params(program: Program, name: str) -> dict[str, object]:
    [params] = [dict(rule.params) for rule in program.rules.scores if rule.name == name]
    return params


def filter_params(program: Program, name: str) -> dict[str, object]:
    [params] = [dict(rule.params) for rule in program.rules.filters if rule.name == name]  # type: ignore[union-attr]
    return params


def weights(program: Program) -> list[tuple[str, object]]:
    return [(score.name, score.weight) for score in program.rules.scores]


def test_without_a_number_it_is_the_newest() -> None:
    newest, unsaid = (
        default_of(f'include kube_default "{KUBE_DEFAULT_VERSION}"'),
        default_of("include kube_default"),
    )

    def said(program: Program) -> list[tuple[object, ...]]:
        rules = (*program.rules.filters, *program.rules.scores)
        return [(rule.name, rule.params, getattr(rule, "weight", None)) for rule in rules]  # type: ignore[union-attr]

    assert said(newest) == said(unsaid)
    assert [rule.name for rule in unsaid.rules.filters] == [
        name for name, builtin in BUILTINS.items() if builtin.filters
    ]


def test_1_36_has_its_own_order_and_lacks_the_score_by_storage_capacity() -> None:
    older, newest = default_of('include kube_default "1.36"'), default_of("include kube_default")

    filters = [rule.name for rule in newest.rules.filters]
    assert filters[:2] == ["node_name", "node_unschedulable"]
    assert [rule.name for rule in older.rules.filters] == [*reversed(filters[:2]), *filters[2:]]
    assert params(older, "image_locality")["image_volumes"] == "size"
    assert params(newest, "image_locality")["image_volumes"] == "yes"
    assert filter_params(older, "node_volume_limits")["missing_drivers"] == "ignore"
    assert filter_params(newest, "node_volume_limits")["missing_drivers"] == "reject"
    assert weights(older) == [entry for entry in weights(newest) if entry[0] != "volume_binding"]
    assert dict(weights(newest))["volume_binding"] == 1


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_an_older_release_has_its_own_formulas_and_lacks_later_plugins(version: str) -> None:
    older, newer = default_of(f'include kube_default "{version}"'), default_of('include kube_default "1.36"')

    filters = [rule.name for rule in older.rules.filters]
    assert filters == [rule.name for rule in newer.rules.filters if rule.name != "node_declared_features"]
    assert params(older, "node_resources_balanced_allocation")["formula"] == "balance"
    assert params(newer, "node_resources_balanced_allocation")["formula"] == "change"
    assert params(older, "image_locality")["image_volumes"] == "no"
    assert filter_params(older, "dynamic_resources")["extended_resources"] == "no"
    assert filter_params(newer, "dynamic_resources")["extended_resources"] == "yes"
    lacking = {"dynamic_resources"} if version == "1.34" else set()
    assert weights(older) == [entry for entry in weights(newer) if entry[0] not in lacking]


@pytest.mark.parametrize("version", KUBE_SCHEDULER_RELEASES)
def test_preemption_has_the_message_of_the_release(version: str) -> None:
    program = default_of(f'include kube_default "{version}"')

    failed = preemption_message(program, "x")
    deallocated = preemption_message(program, "x", ClaimPostFilterMessage.DEALLOCATED)
    message = placement_message(program, NodeName("a"), 2)

    newest = version == KUBE_DEFAULT_VERSION
    assert failed == ("preemption: x" if newest else "no new claims to deallocate, preemption: x")
    assert deallocated == "deallocation of ResourceClaim completed, preemption: x"
    placement = "preemption: found a potential placement for pod on node a, preempting 2 victims"
    assert message == (placement if newest else "")


def test_the_messages_are_the_newest_where_the_filters_are_those_of_no_release() -> None:
    program = default_of("filter node_name")

    assert preemption_message(program, "x") == "preemption: x"
    assert placement_message(program, NodeName("a"), 1).startswith("preemption: found a potential placement")


def test_the_release_of_a_policy_is_that_of_its_filters_in_their_order() -> None:
    for release in KUBE_SCHEDULER_RELEASES.values():
        filters = list(release.default_filters)
        for among in (filters, ["own", *filters[:3], "own", *filters[3:], "own"]):
            message = release_of_filters(among)
            assert message is not None
            assert message.default_filters == release.default_filters
            assert (message.says_claims, message.says_placement) == (
                release.says_claims,
                release.says_placement,
            )
        assert release_of_filters(filters[1:]) is None
        assert release_of_filters(filters[::-1]) is None


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
