"""`include`, `amend`, `replace`, `reweight`, `drop`, layers, and the text that remains of them."""

from hashlib import sha256

import pytest

from policysched.builtins.registry import BUILTINS
from policysched.lang.check import check_sources, check_text
from policysched.lang.ir.layers import apply_layer
from policysched.lang.ir.program import OnTimeout, Program, rules_for
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, RangeNormalize, ScoreRule
from policysched.text import Source
from tests.language.check.checking import codes, program

BASE = "library base version 1\nlet most: int = 100\nlocked filter few require node.pods < most\nscore ready weight 3 prefer node.ready\n"


def weights(program: Program, *layers: int) -> dict[str, int]:
    return {rule.name: rule.weight for rule in rules_for(program, layers).scores}


def test_kube_default_is_kube_schedulers_filters_and_weights_in_its_order() -> None:
    checked = program()

    assert [rule.name for rule in checked.rules.filters] == [
        name for name, builtin in BUILTINS.items() if builtin.filters
    ]
    assert weights(checked) == {
        "taint_toleration": 3,
        "node_affinity": 2,
        "node_resources_fit": 1,
        "volume_binding": 1,
        "pod_topology_spread": 2,
        "inter_pod_affinity": 2,
        "node_resources_balanced_allocation": 1,
        "image_locality": 1,
        "dynamic_resources": 2,
    }


def test_drop_removes_both_rules_of_a_name_or_the_named_kind() -> None:
    without, score = program("drop taint_toleration"), program("drop score taint_toleration")
    layered = program("layer far when pod.priority > 5 {", "  drop filter taint_toleration", "}")

    assert "taint_toleration" not in {rule.name for rule in (*without.rules.filters, *without.rules.scores)}
    assert "taint_toleration" in {rule.name for rule in score.rules.filters}
    assert "taint_toleration" not in weights(score)
    assert "taint_toleration" in weights(layered, 0)
    assert "taint_toleration" not in {rule.name for rule in rules_for(layered, (0,)).filters}
    assert codes("drop score node_ports") == ["PS229"]


def test_changes_outside_layers_keep_a_rules_place() -> None:
    checked = program(
        "reweight node_affinity 9",
        "drop image_locality",
        "replace score node_resources_fit weight 4 { strategy = most_allocated }",
        "replace filter node_ports when pod.priority < 5",
    )

    fit = dict(next(rule for rule in checked.rules.scores if rule.name == "node_resources_fit").params)
    assert list(weights(checked).values()) == [3, 9, 4, 1, 2, 2, 2, 1]
    assert fit["strategy"] == "most_allocated"
    assert fit["resources"] == (("cpu", 1), ("memory", 1))
    assert [rule.name for rule in checked.rules.filters].index("node_ports") == 4
    assert isinstance(checked.rules.filters[4], BuiltinFilter)
    assert checked.rules.filters[4].when is not None


def test_dropping_a_name_drops_its_filter_and_its_score() -> None:
    checked = program("drop node_affinity")

    for rules in (checked.rules.filters, checked.rules.scores):
        names = {rule.name for rule in rules}
        assert "taint_toleration" in names
        assert "node_affinity" not in names


def test_an_amended_clause_replaces_only_its_own() -> None:
    checked = program(
        'filter f when pod.priority > 1 require node.ready says "words"', "amend f reject node.pods > 3"
    )

    rule = checked.rules.filters[-1]
    assert isinstance(rule, FilterRule)
    assert rule.rejects and rule.when is not None and rule.template is not None
    assert rule.template.text == "words"


@pytest.mark.parametrize(
    ("change", "name", "parameter", "expected"),
    [
        (
            "amend dynamic_resources { binding_timeout_seconds = 30 }",
            "dynamic_resources",
            "binding_timeout_seconds",
            30,
        ),
        ("amend volume_binding { bind_timeout_seconds = 30 }", "volume_binding", "bind_timeout_seconds", 30),
        (
            'amend node_resources_fit { ignored_resources = ["a/b"] }',
            "node_resources_fit",
            "ignored_resources",
            frozenset({"a/b"}),
        ),
    ],
)
def test_an_amended_parameter_of_a_filter_changes_the_filter(
    change: str, name: str, parameter: str, expected: object
) -> None:
    (rule,) = [rule for rule in program(change).rules.filters if rule.name == name]

    assert isinstance(rule, BuiltinFilter)
    assert dict(rule.params)[parameter] == expected


def test_an_amended_parameter_of_a_score_leaves_the_filter_alone() -> None:
    rules = program("amend node_resources_fit { strategy = most_allocated }").rules

    (score,) = [rule for rule in rules.scores if rule.name == "node_resources_fit"]
    assert isinstance(score, BuiltinScore)
    assert dict(score.params)["strategy"] == "most_allocated"
    assert codes("amend dynamic_resources { binding_timeout_second = 30 }") == ["PS222"]
    assert codes("amend node_resources_fit { strateg = most_allocated }") == ["PS222"]


def test_an_amendment_says_which_rule_of_a_name_it_changes() -> None:
    rules = program(
        "filter busy require node.pods < 80",
        "score busy weight 1 lower node.pods normalize max",
        "amend filter busy when pod.priority > 1",
        "amend score busy when pod.priority > 2",
    ).rules

    (filter_,) = [rule for rule in rules.filters if rule.name == "busy"]
    (score,) = [rule for rule in rules.scores if rule.name == "busy"]
    assert filter_.when is not None and filter_.when.span.text == "pod.priority > 1"
    assert score.when is not None and score.when.span.text == "pod.priority > 2"


def test_layers_apply_from_top_to_bottom_and_leave_the_program_alone() -> None:
    checked = program(
        "score ready weight 1 lower node.pods normalize range(0, 10)",
        "layer a when pod.priority > 1 {\n reweight ready 2\n drop image_locality\n}",
        "layer b when pod.priority > 2 {\n amend ready weight 7 normalize range(5, 6)\n filter extra require node.ready\n}",
        "layer c when pod.priority > 3 { replace score ready weight 4 prefer node.ready }",
    )

    layered = rules_for(checked, (0, 1))
    ready = next(rule for rule in layered.scores if rule.name == "ready")
    last = next(rule for rule in rules_for(checked, (1, 2)).scores if rule.name == "ready")
    assert weights(checked)["ready"] == 1 and "image_locality" in weights(checked)
    assert weights(checked, 0)["ready"] == 2 and "image_locality" not in weights(checked, 0)
    assert isinstance(ready, ScoreRule) and ready.weight == 7 and ready.normalize == RangeNormalize(5, 6)
    assert layered.filters[-1].name == "extra"
    assert isinstance(last, ScoreRule) and last.weight == 4 and last.normalize is None


def test_a_change_whose_rule_an_earlier_layer_dropped_does_nothing() -> None:
    checked = program(
        "layer a when pod.priority > 1 { drop image_locality }",
        "layer b when pod.priority > 2 { drop node_ports }",
    )

    rules = apply_layer(
        apply_layer(apply_layer(checked.rules, checked.layers[0]), checked.layers[0]), checked.layers[1]
    )

    assert "image_locality" not in {rule.name for rule in rules.scores}


@pytest.mark.parametrize(
    "body",
    [
        "filter node_ports",
        "amend node_ports when node.ready",
        "reweight node_resources_fit 3",
        "replace filter node_ports when node.ready",
        "score ready weight 1 prefer node.ready",
    ],
)
def test_a_layer_may_change_what_the_first_layer_dropped_only_by_a_new_rule(body: str) -> None:
    reported = codes(
        "layer a when pod.priority > 1 {\n drop node_ports\n drop node_resources_fit\n}",
        f"layer b when pod.priority > 2 {{ {body} }}",
    )

    assert reported == ([] if body.startswith(("filter", "score")) else ["PS229"])


def test_an_amend_is_checked_against_every_form_that_the_rule_can_have() -> None:
    metric = 'metric m: ratio { query = "q" unit = "1" join = instance every = 15s stale = 90s }'
    first = (
        "layer a when pod.priority > 1 { replace filter f when pod.priority > 3 require m < 1 missing pass }"
    )

    assert (
        codes(
            metric,
            "filter f require node.ready",
            first,
            "layer b when pod.priority > 2 { amend f scaleup no }",
        )
        == []
    )
    assert codes(
        metric,
        'filter f when has node.labels["a"] require node.labels["a"] == "x"',
        first,
        "layer b when pod.priority > 2 { amend f when node.ready }",
    ) == ["PS201"]


def test_a_library_brings_its_rules_and_declarations() -> None:
    checked = program('include "base.policy"', "reweight ready 5", others={"base.policy": BASE})

    assert weights(checked)["ready"] == 5
    assert checked.rules.filters[-1].name == "few"
    assert checked.rules.filters[-1].locked


def test_a_library_that_two_libraries_include_comes_once() -> None:
    others = {
        "base.policy": BASE,
        "a.policy": 'library a version 1\ninclude "base.policy"\n',
        "b.policy": 'library b version 1\ninclude "base.policy"\n',
    }

    checked = program('include "a.policy"', 'include "b.policy"', others=others)

    assert list(weights(checked)).count("ready") == 1


def test_a_collision_with_a_library_is_reported_at_the_include() -> None:
    checked = check_text(
        'policy test version 1\ninclude kube_default\nfilter few require node.ready\ninclude "base.policy"\n',
        other_texts={"base.policy": BASE},
    )

    (diagnostic,) = checked.diagnostics
    assert (diagnostic.code, diagnostic.span.text if diagnostic.span else "") == (
        "PS213",
        'include "base.policy"',
    )
    assert diagnostic.notes == ("in `base.policy`, line 3",)


def test_the_text_of_a_program_makes_the_same_program_and_comments_change_nothing() -> None:
    lines = ('include "base.policy"', "reweight ready 5", "layer l when pod.priority > 1 { drop ready }")

    checked = program(*lines, others={"base.policy": BASE})
    again = check_text(checked.text).program
    commented = program(lines[0], "# why", lines[1] + "  # so", *lines[2:], others={"base.policy": BASE})

    assert again == checked
    assert commented.sha256 == checked.sha256 == sha256(checked.text.encode()).hexdigest()
    assert "include" not in checked.text
    assert program(lines[0], others={"base.policy": BASE}).sha256 != checked.sha256


def test_without_a_queue_clause_the_order_is_by_priority_then_by_waiting_time() -> None:
    stated = program("queue by pod.priority desc, pod.queued")

    assert program().queue == stated.queue
    assert program().gang is None and program().preemption.mode == "own"


def test_a_gang_has_its_terms() -> None:
    gang = program(
        'gang by pod.labels["g"] { min = 2 max = 4 timeout = 30s on_timeout = fail mode = gate }'
    ).gang

    assert gang is not None
    assert gang.on_timeout is OnTimeout.FAIL and gang.mode.value == "gate"
    assert gang.maximum is not None and gang.timeout is not None


def test_one_broken_text_leaves_the_others_alone() -> None:
    texts = {
        "a.policy": "policy a version 1\ninclude kube_default\n",
        "b.policy": "policy b version 1\nfilter x\n",
        "c.policy": BASE,
    }

    bundle = check_sources({key: Source(key, text) for key, text in texts.items()})

    assert {
        key: (source.is_library, source.program is not None) for key, source in bundle.sources.items()
    } == {
        "a.policy": (False, True),
        "b.policy": (False, False),
        "c.policy": (True, False),
    }
