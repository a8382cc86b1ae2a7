"""Values for parameters as ConfigMaps, settings and flags give them."""

import json
from collections.abc import Mapping

import pytest

from policysched.daemon.policy_checker import check_texts, policy_texts
from policysched.lang.check.parameter_values import ParameterValue
from policysched.policy_files.parameter_values import (
    BadParameterFlag,
    parameters_without_policy,
    parse_parameter_flags,
    read_parameter_values,
    settings_parameter_texts,
)
from policysched.scheduler.policies.rejection_message import rejection_message
from policysched.text import Source

BATCH = """policy batch version 1
include kube_default
param crowd: int = 100 range 1..110
param label: string = "pool"
param zones: list<string> = ["a"]
param strict: bool = false
filter crowded require node.pods < crowd
filter zone when strict require node.labels[label] else "" in zones
"""


FORGED = "\n12:00:01.250 info    policy `prod` version 9 is active"


def texts_of(text: str) -> Mapping[str, ParameterValue]:
    return read_parameter_values({"batch.params.yaml": Source("a file", text)})["batch"].values


def values(texts: Mapping[str, str]) -> dict[str, object]:
    """Of the policy `batch` in a ConfigMap with these keys, settings included."""
    checked = check_texts(texts, "ConfigMap a/b").sources["batch.policy"]
    assert checked.program is not None, [diagnostic.message for diagnostic in checked.diagnostics]
    return {name: parameter.value.value for name, parameter in checked.program.parameters.items()}


def test_a_key_of_the_configmap_sets_parameters() -> None:
    texts = {
        "batch.policy": BATCH,
        "batch.params.yaml": "crowd: 90\nlabel: 007\nzones: [x, y]\nstrict: true\n",
    }

    assert values(texts) == {"crowd": 90, "label": "007", "zones": ("x", "y"), "strict": True}


def test_the_settings_win_over_the_configmap_parameter_by_parameter() -> None:
    texts = {"batch.policy": BATCH, "batch.params.yaml": "crowd: 90\nlabel: team\n"}
    set_by_operator = settings_parameter_texts({"batch": {"crowd": 80, "strict": True, "zones": ["q"]}})

    merged = values({**texts, **set_by_operator})

    assert merged == {"crowd": 80, "label": "team", "zones": ("q",), "strict": True}


def test_parameter_values_apply_to_their_policy_only() -> None:
    texts = {"batch.policy": BATCH, "web.policy": BATCH.replace("policy batch", "policy web")}

    bundle = check_texts({**texts, "web.params.yaml": "crowd: 1000\n"}, "ConfigMap a/b")

    assert bundle.sources["batch.policy"].program is not None
    refused = bundle.sources["web.policy"]
    assert refused.program is None and refused.policy_name == "web"
    span = refused.diagnostics[0].span
    assert span is not None and (span.source.name, span.text) == ("ConfigMap a/b key web.params.yaml", "1000")


def test_a_column_is_right_after_characters_of_any_width() -> None:
    read_values = texts_of('# größer, 🙂\n"label": "🙂"\ncrowd:   90  # fewer\n')

    assert read_values["crowd"].span.text == "90" and read_values["label"].span.text == '"🙂"'


@pytest.mark.parametrize(
    "text", ["[1, 2]", "crowd", "crowd: [", "a: &x [*x]", "? [a]\n: 3", "crowd: {a: 1}", "[" * 2000]
)
def test_malformed_parameter_values_reject_only_their_policy(text: str) -> None:
    checked = check_texts({"batch.policy": BATCH, "batch.params.yaml": text}, "ConfigMap a/b").sources

    assert [
        diagnostic.code for diagnostic in checked["batch.policy"].diagnostics if diagnostic.code < "PS3"
    ] == ["PS262"]


def test_an_empty_key_sets_nothing() -> None:
    assert texts_of("") == {} and texts_of("# nothing yet\n") == {}


def test_keys_with_values_travel_with_the_policies_and_nothing_else_does() -> None:
    data = {"a.policy": "", "a.params.yaml": "", "a.yaml": "", "README": ""}

    assert sorted(policy_texts(data)) == ["a.params.yaml", "a.policy"]


def test_values_for_a_policy_that_is_not_there_are_named() -> None:
    texts = {
        "x.policy": BATCH,
        "batch.params.yaml": "",
        "web.params.yaml": "",
        **settings_parameter_texts({"gpu": {}}),
    }

    assert parameters_without_policy(texts) == ["gpu", "web"]


def test_a_flag_is_a_name_and_a_value() -> None:
    parsed = parse_parameter_flags(["crowd=90", "label=a=b", "zones="])["*"].values

    assert {name: value.text for name, value in parsed.items()} == {
        "crowd": "90",
        "label": "a=b",
        "zones": "",
    }
    for wrong in ("crowd", "=3", "1x=3"):
        with pytest.raises(BadParameterFlag, match="NAME=VALUE"):
            parse_parameter_flags([wrong])


@pytest.mark.parametrize("text", [f"crowd: {json.dumps('9' + FORGED)}", f"{json.dumps(FORGED)}: 3"])
def test_a_value_or_key_with_a_line_break_forges_no_line(text: str) -> None:
    checked = check_texts({"batch.policy": BATCH, "batch.params.yaml": text}, "ConfigMap a/b")

    message = rejection_message(checked.sources["batch.policy"])

    assert "active" in message and message.isprintable()
