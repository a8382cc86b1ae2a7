"""`addedAffinity`: the imported rules reject the same nodes as a pod's own affinity with the same
terms.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysched.lang.ir.verdict import PlacementExplanation
from policysched.migrate import affinity
from policysched.model.pods import QueuedPodInfo
from policysched.policy_files.source_set import UnusableFile
from tests.builders import node, pod, world
from tests.migrate.helpers import config, imported, of_the_file, only, program_of, rules
from tests.reference import evaluate

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def with_affinity(**added: Any) -> str:
    args = json.dumps({"addedAffinity": added})
    return config(
        f"profiles:\n- schedulerName: web\n  pluginConfig:\n  - name: NodeAffinity\n    args: {args}\n"
    )


def terms(*each: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": expressions} for expressions in each]}


def test_each_operator_has_its_expression() -> None:
    done = imported(
        with_affinity(
            requiredDuringSchedulingIgnoredDuringExecution=terms(
                [
                    {"key": "pool", "operator": "In", "values": ["web", "any"]},
                    {"key": "example.com/old", "operator": "DoesNotExist"},
                ],
                [
                    {"key": "pool", "operator": "NotIn", "values": ["gpu"]},
                    {"key": "gen", "operator": "Gt", "values": ["3"]},
                    {"key": "ssd", "operator": "Exists"},
                ],
            )
        )
    )

    assert rules(done) == (
        'input added_label_1: int = node.labels["gen"] optional invalid default\n'
        "\n"
        "include kube_default\n"
        "\n"
        "filter added_affinity\n"
        '  require has node.labels["pool"] and node.labels["pool"] in ["web", "any"] '
        'and not has node.labels["example.com/old"]\n'
        '    or (not has node.labels["pool"] or node.labels["pool"] not in ["gpu"]) and has added_label_1 '
        'and added_label_1 > 3 and has node.labels["ssd"]\n'
        '  says "node(s) didn\'t match scheduler-enforced node affinity"\n'
    )
    assert of_the_file(done.not_imported) == []


def test_a_selector_without_terms_lets_no_node_through() -> None:
    done = imported(with_affinity(**{REQUIRED: {"nodeSelectorTerms": [{}]}}))

    assert "filter added_affinity require false says \"node(s) didn't match" in only(done)


def test_a_preferred_term_becomes_a_score_with_a_note_on_the_difference() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}

    done = imported(with_affinity(**{PREFERRED: [{"weight": 30, "preference": term}]}))

    assert (
        'score added_affinity weight 2 prefer has node.labels["disk"] and node.labels["disk"] in ["ssd"]\n'
        in only(done)
    )
    assert [subject for *_, subject in of_the_file(done.not_imported)] == ["preferred terms of addedAffinity"]


def test_several_preferred_terms_are_listed() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}

    done = imported(with_affinity(**{PREFERRED: [{"weight": 3, "preference": term}] * 2}))

    assert "score added_affinity" not in only(done)
    assert [subject for *_, subject in of_the_file(done.not_imported)] == ["preferred terms of addedAffinity"]


def test_a_selector_too_long_for_an_expression_is_listed() -> None:
    many = [{"key": f"k{n}", "operator": "Exists"} for n in range(100)]

    done = imported(with_affinity(**{REQUIRED: terms(many)}))

    assert "added_affinity" not in rules(done)
    assert [subject for *_, subject in of_the_file(done.not_imported)] == ["a selector of 100 requirements"]


@pytest.mark.parametrize(
    "requirement",
    [
        {"key": "a", "operator": "In", "values": []},
        {"key": "a", "operator": "Exists", "values": ["x"]},
        {"key": "a", "operator": "Gt", "values": ["many"]},
        {"key": "a", "operator": "Lt", "values": ["1", "2"]},
        {"key": "a", "operator": "Near", "values": ["1"]},
        {"key": "no key", "operator": "Exists"},
        {"key": "a", "operator": "In", "values": ['"] or true or node.name in ["']},
    ],
    ids=lambda requirement: f"{requirement['key']} {requirement['operator']} {requirement.get('values')}",
)
def test_a_requirement_that_kubernetes_rejects_is_rejected(requirement: dict[str, Any]) -> None:
    with pytest.raises(
        UnusableFile, match=r"^scheduler.yaml:7:\d+: profiles\[0\].pluginConfig\[0\].args.addedAffinity"
    ):
        imported(with_affinity(**{REQUIRED: terms([requirement])}))


# ── compared with a pod's own affinity ─────────────────────────────────────────────────────────────────────────────

KEYS = st.sampled_from(["pool", "gen", "example.com/disk"])
VALUES = st.sampled_from(["web", "gpu", "", "3", "7", "007", "99999999999999999999"])
LABELS = st.sampled_from(["web", "gpu", "", "3", "7", "007", "4.5", "1e1", "99999999999999999999", "0x10"])


@st.composite
def requirements(draw: st.DrawFn) -> dict[str, Any]:
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]))
    values: list[str] = []
    if operator in ("In", "NotIn"):
        values = draw(st.lists(VALUES, min_size=1, max_size=3))
    elif operator in ("Gt", "Lt"):
        values = [str(draw(st.integers(-2, 12)))]
    return {"key": draw(KEYS), "operator": operator, "values": values}


FIELDS = st.fixed_dictionaries(
    {
        "key": st.just("metadata.name"),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.sampled_from([["n0"], ["n1"], ["n9"]]),
    }
)
SELECTORS = st.lists(
    st.fixed_dictionaries(
        {"matchExpressions": st.lists(requirements(), max_size=3)},
        optional={"matchFields": st.lists(FIELDS, max_size=1)},
    ),
    min_size=1,
    max_size=3,
)
NODES = st.lists(st.dictionaries(KEYS, LABELS), min_size=1, max_size=5)


def feasible(
    policy: str, name: str, labels: list[dict[str, str]], spec: dict[str, Any]
) -> PlacementExplanation:
    cache = world([node(f"n{index}", labels=label) for index, label in enumerate(labels)])
    return evaluate(
        program_of(name, policy), pod("p", spec=spec), cache, now_ns=0, facts=QueuedPodInfo(0, 0), samples={}
    )


def difference(selector: list[dict[str, Any]], labels: list[dict[str, str]]) -> set[str]:
    """The nodes on which the imported rule and a pod's own affinity of the same terms differ."""
    added = only(imported(with_affinity(**{REQUIRED: {"nodeSelectorTerms": selector}})))
    plain = only(imported(config("profiles: [{schedulerName: web}]\n")))
    own = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": selector}}}}

    by_rule = set(feasible(added, "web", labels, {}).feasible)
    by_pod = set(feasible(plain, "web", labels, own).feasible)
    return by_rule ^ by_pod


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SELECTORS, NODES)
def test_the_rule_rejects_the_nodes_that_the_same_terms_of_a_pod_reject(
    selector: list[dict[str, Any]], labels: list[dict[str, str]]
) -> None:
    assert difference(selector, labels) == set()


def test_a_not_in_that_ignores_absent_labels_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = [{"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["gpu"]}]}]
    labels: list[dict[str, str]] = [{}, {"pool": "gpu"}]
    before = difference(selector, labels)
    right = affinity.NodeSelectorTranslator._expression

    def forgetful(self: affinity.NodeSelectorTranslator, path: Any, requirement: Any) -> str:
        return right(self, path, requirement).replace("(not has", "(has").replace(" or ", " and ")

    monkeypatch.setattr(affinity.NodeSelectorTranslator, "_expression", forgetful)

    assert before == set()
    assert difference(selector, labels) == {"n0"}
