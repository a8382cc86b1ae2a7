"""`show` prints the plan that really runs: rules, shared steps, read set, waking events, and what is not covered."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from policysched.cli import main
from policysched.lang.uncovered import UNCOVERED
from policysched.resources import resource
from policysched.schemas import schema

POLICY = """\
policy test version 1
input pool: string = node.labels["pool"] default "general"
filter fits require node.free.cpu >= pod.requests.cpu
filter roomy when pod.namespace == "batch" require node.free.cpu >= 2
score stable weight 2 prefer pool == "general"
layer night when pod.namespace == "batch" { drop stable }
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "test.policy"
    path.write_text(POLICY)
    return str(path)


def test_the_record_has_rules_with_what_they_read_and_what_wakes(policy: str) -> None:
    result = CliRunner().invoke(main, ["show", policy, "--output-format", "json"])

    record = json.loads(result.stdout)
    jsonschema.validate(record, schema("show"))
    rules = {rule["name"]: rule for rule in record["rules"]}
    assert list(rules) == ["fits", "roomy", "stable"]
    assert rules["fits"]["pod_reads"] == ["pod.requests.cpu"]
    assert rules["fits"]["node_reads"] == ["node.free.cpu"]
    assert "AssignedPodDelete" in rules["fits"]["wakes"]
    assert rules["stable"]["weight"] == 2
    assert len(record["uncovered"]) == len(UNCOVERED)


def test_an_expression_that_two_rules_need_is_one_step(policy: str) -> None:
    record = json.loads(CliRunner().invoke(main, ["show", policy, "--output-format", "json"]).stdout)

    shared = [step["text"] for step in record["steps"] if step["rules"] == ["fits", "roomy"]]

    assert shared == ["node.free.cpu"]


def test_a_layer_changes_what_is_shown(policy: str) -> None:
    record = json.loads(
        CliRunner().invoke(main, ["show", policy, "--layer", "night", "--output-format", "json"]).stdout
    )

    assert record["layers"] == ["night"]
    assert "stable" not in [rule["name"] for rule in record["rules"]]


def test_a_layer_that_is_not_there_is_one_line_and_exit_2(policy: str) -> None:
    result = CliRunner().invoke(main, ["show", policy, "--layer", "day"])

    assert result.exit_code == 2
    assert "has no layer `day`; there is night" in result.stderr


@pytest.mark.parametrize("path", sorted(resource("policies").glob("*.policy")), ids=lambda path: path.stem)
def test_every_shipped_policy_can_be_shown_to_people(path: Path) -> None:
    result = CliRunner().invoke(main, ["show", str(path)])

    assert result.exit_code == 0, result.output
    assert path.stem in result.stdout
    assert "Pods that agree on these share one evaluation:" in result.stdout


def test_a_parameter_is_shown_with_its_value_its_limits_and_who_set_it(tmp_path: Path) -> None:
    path = tmp_path / "crowd.policy"
    path.write_text(
        "policy crowd version 1\ninclude kube_default\n"
        "param most: int = 100 range 1..110\nfilter crowded require node.pods < most\n"
    )
    (tmp_path / "crowd.params.yaml").write_text("most: 90\n")

    by_file = CliRunner().invoke(main, ["show", str(path)])
    by_flag = CliRunner().invoke(main, ["show", str(path), "--param", "most=80", "--output-format", "json"])

    assert "param  most: int = 90 range 1..110  (set by" in by_file.stdout
    (row,) = json.loads(by_flag.stdout)["params"]
    assert row == {
        "name": "most",
        "type": "int",
        "value": "80",
        "default": "100",
        "limits": "range 1..110",
        "given_in": "--param",
    }


def test_a_flag_for_no_parameter_is_one_line_and_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "crowd.policy"
    path.write_text("policy crowd version 1\ninclude kube_default\n")

    for command in ("show", "lint"):
        found = CliRunner().invoke(main, [command, str(path), "--param", "most=80"])

        assert found.exit_code == 2
        assert "no policy here has a parameter `most`; there is none" in found.stderr


def test_who_is_asked_over_http_is_shown(policy: str) -> None:
    Path(policy).write_text(POLICY + "extender gpu weight 5 missing neutral\nextender rack\n")

    record = json.loads(CliRunner().invoke(main, ["show", policy, "--output-format", "json"]).stdout)
    said = CliRunner().invoke(main, ["show", policy]).stdout

    jsonschema.validate(record, schema("show"))
    assert record["extenders"] == [
        {"name": "gpu", "weight": 5, "missing": "neutral"},
        {"name": "rack", "weight": None, "missing": None},
    ]
    assert "extender gpu × 5, missing neutral" in said and "extender rack  (asked" in said


def test_each_part_that_is_left_out_is_shown_by_name(policy: str) -> None:
    shown = CliRunner().invoke(main, ["show", policy]).stdout

    said = " ".join(shown.split())
    assert all(one.sentence in said for one in UNCOVERED)
