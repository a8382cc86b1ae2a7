"""`show` prints the plan that really runs: rules, shared steps, read set, waking events, and what is not covered."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from policysched.cli import main
from policysched.data_files import data_file
from policysched.lang.check import check_text
from policysched.lang.format.clauses import render_clauses
from policysched.schemas import schema
from tests.cli.builders import on_a_terminal

ROOT = Path(__file__).resolve().parents[2]

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


def test_the_json_output_has_the_reads_and_requeue_events_of_rules(policy: str) -> None:
    result = CliRunner().invoke(main, ["show", policy, "--output-format", "json"])

    record = json.loads(result.stdout)
    jsonschema.validate(record, schema("show"))
    rules = {rule["name"]: rule for rule in record["rules"]}
    assert list(rules) == ["fits", "roomy", "stable"]
    assert rules["fits"]["pod_reads"] == ["pod.requests.cpu"]
    assert rules["fits"]["node_reads"] == ["node.free.cpu"]
    assert "AssignedPodDelete" in rules["fits"]["requeue_events"]
    assert rules["stable"]["weight"] == 2
    assert len(record["uncovered"]) == len(UNSUPPORTED_FEATURES)


def test_an_expression_that_two_rules_need_is_one_step(policy: str) -> None:
    record = json.loads(CliRunner().invoke(main, ["show", policy, "--output-format", "json"]).stdout)

    shared = [step["text"] for step in record["steps"] if step["rules"] == ["fits", "roomy"]]

    assert shared == ["node.free.cpu"]


def test_a_layer_changes_the_output(policy: str) -> None:
    record = json.loads(
        CliRunner().invoke(main, ["show", policy, "--layer", "night", "--output-format", "json"]).stdout
    )

    assert record["layers"] == ["night"]
    assert "stable" not in [rule["name"] for rule in record["rules"]]


def test_a_layer_that_is_not_there_is_one_line_and_exit_2(policy: str) -> None:
    result = CliRunner().invoke(main, ["show", policy, "--layer", "day"])

    assert result.exit_code == 2
    assert "no layer is named `day` (layers: night)" in result.stderr


@pytest.mark.parametrize("path", sorted(data_file("policies").glob("*.policy")), ids=lambda path: path.stem)
def test_every_shipped_policy_can_be_shown_as_text(path: Path) -> None:
    result = CliRunner().invoke(main, ["show", str(path)])

    assert result.exit_code == 0, result.output
    assert path.stem in result.stdout
    assert "Pods that are equal in these share an evaluation:" in result.stdout


def test_a_parameter_is_shown_with_its_value_its_range_and_its_origin(tmp_path: Path) -> None:
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


def test_a_flag_for_an_unknown_parameter_is_reported_in_one_line_with_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "crowd.policy"
    path.write_text("policy crowd version 1\ninclude kube_default\n")

    for command in ("show", "lint"):
        result = CliRunner().invoke(main, [command, str(path), "--param", "most=80"])

        assert result.exit_code == 2
        assert "no policy here has a parameter `most`; none is declared" in result.stderr


def test_extenders_are_shown(policy: str) -> None:
    Path(policy).write_text(POLICY + "extender gpu weight 5 missing neutral\nextender rack\n")

    record = json.loads(CliRunner().invoke(main, ["show", policy, "--output-format", "json"]).stdout)
    output = CliRunner().invoke(main, ["show", policy]).stdout

    jsonschema.validate(record, schema("show"))
    assert record["extenders"] == [
        {"name": "gpu", "weight": 5, "missing": "neutral"},
        {"name": "rack", "weight": None, "missing": None},
    ]
    assert "extender gpu × 5, missing neutral" in output and "extender rack  (called" in output


METRIC_POLICY = """\
policy test version 1
param most: ratio = 40%
let patience: duration = 2m
metric net_rx: bandwidth {
  query = "x"
  unit = "B/s"
  join = node
  every = 15s
  stale = patience
}
OUTAGE
filter link require net_rx < 800Mbps recover 600Mbps for 2m missing pass
score quiet weight 2 lower net_rx normalize range(0bps, 1Gbps) missing neutral
"""


@pytest.mark.parametrize(
    ("clause", "sentence"),
    [
        (
            "outage { above = most, then = wait }",
            "while more than 40% of a pod's candidates have no fresh sample of a metric, pods wait if a rule "
            "that reads it applies to them",
        ),
        (
            "outage { above = 50%, then = disable }",
            "while more than 50% of a pod's candidates have no fresh sample of a metric, the rules that read it do not apply",
        ),
        (
            "outage { above = 100%, then = wait }",
            "`above` is 100%: each rule decides on nodes without a sample (`missing`, `else`)",
        ),
        ("", "no outage handling: each rule decides on nodes without a sample (`missing`, `else`)"),
    ],
)
def test_the_behaviour_during_an_outage_is_shown(policy: str, clause: str, sentence: str) -> None:
    Path(policy).write_text(METRIC_POLICY.replace("OUTAGE", clause))

    record = json.loads(CliRunner().invoke(main, ["show", policy, "--output-format", "json"]).stdout)
    output = CliRunner().invoke(main, ["show", policy]).stdout

    jsonschema.validate(record, schema("show"))
    assert record["outage"] == sentence
    assert f"When samples are missing:\n  {sentence}\n" in output
    rules = {rule["name"]: (rule["missing"], rule["recover"]) for rule in record["rules"]}
    assert rules == {"link": ("pass", "600Mbps for 2m"), "quiet": ("neutral", None)}
    fields = [line.split("\t") for line in output.splitlines() if line.startswith(("filter\t", "score\t"))]
    assert [(row[1], row[8], row[9]) for row in fields] == [
        ("link", "pass", "600Mbps for 2m"),
        ("quiet", "neutral", ""),
    ]


def test_clauses_are_shown_with_their_constants_and_defaults(policy: str) -> None:
    Path(policy).write_text(METRIC_POLICY.replace("OUTAGE", "queue by pod.created desc"))

    record = json.loads(CliRunner().invoke(main, ["show", policy, "--output-format", "json"]).stdout)
    output = CliRunner().invoke(main, ["show", policy]).stdout

    written = [clause["text"].split(" ")[:2] for clause in record["clauses"] if clause["written"]]
    assert written == [["let", "patience:"], ["metric", "net_rx:"], ["queue", "by"]]
    assert [clause["text"] for clause in record["clauses"] if not clause["written"]] == [
        "preemption { victims = own }"
    ]
    assert "    stale = patience\n  }\n  queue by pod.created desc\n" in output
    assert "  preemption { victims = own }  (the default)\n" in output


def test_the_shown_defaults_are_the_defaults_in_effect() -> None:
    text = "policy test version 1\nfilter fits require node.free.cpu >= 1\n"
    bare = check_text(text).program
    assert bare is not None
    shown = [clause.text for clause in render_clauses(bare) if not clause.is_explicit]

    checked = check_text(text + "\n".join(shown) + "\n").program

    assert len(shown) == 2
    assert checked is not None and (checked.queue, checked.preemption) == (bare.queue, bare.preemption)


def test_each_unsupported_part_is_listed_by_name(policy: str) -> None:
    shown = CliRunner().invoke(main, ["show", policy]).stdout

    output = " ".join(shown.split())
    assert UNSUPPORTED_FEATURES
    assert [row.description for row in UNSUPPORTED_FEATURES if row.description not in output] == []


def test_on_a_terminal_own_rules_come_first_and_includes_are_one_paragraph() -> None:
    output = on_a_terminal("show", str(ROOT / "docs" / "examples" / "quiet.policy"))

    assert output.index("filter link_cool  quiet.policy:13") < output.index("score bandwidth × 5")
    assert output.index("score bandwidth × 5") < output.index("include kube_default")
    assert "14 filters: node_name, node_unschedulable" in " ".join(output.split())
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("policy", sorted(path.name for path in (ROOT / "policies").glob("*.policy")))
def test_the_plan_of_each_shipped_policy_fits_80_columns(policy: str) -> None:
    output = on_a_terminal("show", str(ROOT / "policies" / policy), "--all")

    assert max(map(len, output.splitlines())) <= 80


def test_in_a_pipe_each_rule_is_one_line_of_tab_separated_fields(policy: str) -> None:
    lines = CliRunner().invoke(main, ["show", policy]).stdout.splitlines()

    rules = [line.split("\t") for line in lines if line.startswith(("filter\t", "score\t"))]
    assert [(kind, name, weight, place) for kind, name, weight, place, *_ in rules] == [
        ("filter", "fits", "", "test.policy:3"),
        ("filter", "roomy", "", "test.policy:4"),
        ("score", "stable", "2", "test.policy:5"),
    ]
