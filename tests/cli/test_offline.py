"""`explain` and `simulate` as their users run them: files in, tables or JSON out, exit codes."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from policysched.cli import main
from policysched.cli.offline_options import print_notes
from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.explanations.record import AgedSample, sample_ages
from policysched.lang.check import check_text
from policysched.lang.ir.recovery import recovery_conditions
from policysched.metric_sources.samples_export import export_samples, read_samples_export, samples_document
from policysched.model.identifiers import NodeName
from policysched.schemas import schema
from tests.builders import node_manifest, pod_manifest
from tests.cli.builders import on_a_terminal

POLICY = """\
policy test version 1
metric net_rx: bandwidth {
  query = "rate(node_network_receive_bytes_total[2m])"
  unit = "B/s"
  join = instance
  every = 15s
  stale = 90s
}
include kube_default
filter link_cool require net_rx < 800Mbps missing pass says "receiving {net_rx}"
score bandwidth weight 5 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral
preemption never
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A policy, a cluster with a busy node, a quiet one and a full one, and samples."""
    nodes = [node_manifest("busy"), node_manifest("quiet"), node_manifest("full", cpu="1")]
    pods = [
        pod_manifest("holder", cpu="900m", node="full", phase="Running"),
        pod_manifest("web", cpu="500m", memory="256Mi"),
        pod_manifest("huge", cpu="64"),
        pod_manifest("other", cpu="100m", scheduler="default-scheduler"),
    ]
    (tmp_path / "test.policy").write_text(POLICY)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([{"kind": "List", "items": nodes}, *pods]))
    (tmp_path / "samples.yaml").write_text("net_rx: {busy: 900Mbps, quiet: 100Mbps, full: 0}\n")
    return tmp_path


def run(files: Path, *args: str) -> Result:
    common = ["--policy", str(files / "test.policy"), "--cluster", str(files / "cluster.yaml")]
    return CliRunner().invoke(main, [*args, *common, "--metrics", str(files / "samples.yaml")])


def answer(result: Result, name: str) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(record, schema(name))
    return record


def test_explain_shows_rejections_and_scores_by_node(files: Path) -> None:
    record = answer(run(files, "explain", "default/web", "--output-format", "json"), "explain")

    assert record["feasible"] == ["quiet"]
    assert record["selected"] == "quiet"
    assert record["rejected"] == {
        "busy": [
            {
                "rule": "link_cool",
                "reason": "receiving 900Mbps",
                "gap": {"subject": "net_rx", "actual": "900Mbps", "limit": "800Mbps", "by": "100Mbps"},
            }
        ],
        "full": [
            {
                "rule": "node_resources_fit",
                "reason": "Insufficient cpu",
                "gap": {"subject": "cpu", "actual": "100m", "limit": "500m", "by": "400m"},
            }
        ],
    }
    assert record["scores"]["bandwidth"]["quiet"] == {"raw": 100e6, "score": 90, "weight": 5, "weighted": 450}
    assert record["totals"]["quiet"] == sum(cells["quiet"]["weighted"] for cells in record["scores"].values())
    assert record["message"] == "default/web would go to quiet"


@pytest.mark.parametrize("command", ["lint", "show", "explain"])
def test_unprintable_characters_of_a_policy_are_shown_as_escapes(files: Path, command: str) -> None:
    hidden = "left\u202eright\x1b[2J"
    rules = f"""filter named require pod.namespace == "{hidden}" says "{hidden}"
queue by rank(pod.namespace, ["{hidden}"]), pod.queued
filter all reject pod.namespace == "{hidden}" and "{hidden}" == "{hidden}"
"""
    (files / "test.policy").write_text(POLICY + rules)
    alone = [command, str(files / "test.policy")]
    result = run(files, "explain", "default/web") if command == "explain" else CliRunner().invoke(main, alone)

    assert result.exit_code == 0, result.output
    assert "left\\u202eright\\x1b[2J" in result.stdout
    assert not [char for char in result.output if not char.isprintable() and char not in "\t\n"]


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_markup_in_a_pods_annotation_is_shown_as_it_is(files: Path, command: str) -> None:
    """A closing tag ended the command with a traceback; a link would lead the operator elsewhere."""
    note = "[/x] [link=http://evil]click[/link]"
    rules = 'input note: string = pod.annotations["note"] default ""\nfilter f require note == "" says "has {note}"\n'
    web = pod_manifest("web", cpu="500m")
    web["metadata"]["annotations"] = {"note": note}
    (files / "test.policy").write_text(POLICY + rules)
    (files / "cluster.yaml").write_text(yaml.safe_dump_all([node_manifest("quiet"), web]))

    result = run(files, "simulate") if command == "simulate" else run(files, "explain", "default/web")

    assert result.exit_code == 0, result.output
    assert f"has {note}" in result.output


def test_explain_shows_samples_and_their_age(files: Path) -> None:
    record = answer(run(files, "explain", "web", "--output-format", "json"), "explain")
    shown = run(files, "explain", "web").stdout

    assert record["samples"]["net_rx"]["busy"] == {"value": 900e6, "age_s": 0.0, "stale": False}
    assert "quiet\t100Mbps\t0 s" in shown


def test_a_sample_is_as_old_as_the_older_of_its_own_time_and_the_poll() -> None:
    second, now_ns = 10**9, 1000 * 10**9
    program = check_text(POLICY).program
    assert program is not None
    values = {
        NodeName("fresh"): Sample(1.0, now_ns - 10 * second),
        NodeName("dated"): Sample(2.0, now_ns - 95 * second),
    }

    ages = sample_ages(
        program.metrics["net_rx"], {"net_rx": MetricSamples(values, now_ns - 20 * second)}, now_ns
    )

    assert ages == {"fresh": AgedSample(1.0, 20.0, stale=False), "dated": AgedSample(2.0, 95.0, stale=True)}


def test_explain_of_an_unschedulable_pod_has_the_message_of_its_event(files: Path) -> None:
    record = answer(run(files, "explain", "huge", "--output-format", "json"), "explain")

    assert record["selected"] is None
    assert record["message"] == "0/3 nodes are available: 3 Insufficient cpu."
    assert [refusal["rule"] for refusal in record["rejected"]["busy"]] == ["node_resources_fit", "link_cool"]


def test_explain_shows_what_preemption_could_do(files: Path) -> None:
    (files / "test.policy").write_text(
        "policy test version 1\ninclude kube_default\npreemption { victims = any }\n"
    )
    cluster = [
        *(node_manifest("a", cpu="1"), node_manifest("b", cpu="1")),
        pod_manifest("equal", cpu="900m", node="a", phase="Running", priority=100),
        pod_manifest("low", cpu="900m", node="b", phase="Running", priority=5),
        pod_manifest("another", cpu="600m", priority=100),
        *(pod_manifest("urgent", cpu="600m", priority=100), pod_manifest("humble", cpu="600m", priority=1)),
    ]
    (files / "cluster.yaml").write_text(yaml.safe_dump_all(cluster))

    urgent = answer(run(files, "explain", "urgent", "--output-format", "json"), "explain")
    humble = answer(run(files, "explain", "humble", "--output-format", "json"), "explain")
    output = run(files, "explain", "humble").stdout

    assert urgent["message"] == (
        "0/2 nodes are available: 2 Insufficient cpu. preemption: found a potential placement for pod on node b, "
        "preempting 1 victims"
    )
    assert "would be nominated to b, evicting default/low" in urgent["notes"]
    assert humble["message"].endswith(
        "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
    )
    assert humble["message"] in output.replace("\n", " ")


def test_the_text_output_of_explain_has_every_part(files: Path) -> None:
    result = run(files, "explain", "web")

    assert result.exit_code == 0
    for words in ("link_cool", "receiving 900Mbps", "bandwidth × 5", "would go to quiet"):
        assert words in result.stdout


def test_a_bound_pod_is_explained_as_if_its_own_room_were_free(files: Path) -> None:
    record = answer(run(files, "explain", "holder", "--output-format", "json"), "explain")

    assert "full" in record["feasible"]
    assert any("is on full" in note for note in record["notes"])


def test_simulate_places_only_pods_of_the_policy(files: Path) -> None:
    record = answer(run(files, "simulate", "--output-format", "json"), "simulate")

    assert [(placement["pod"], placement["node"]) for placement in record["placements"]] == [
        ("default/web", "quiet")
    ]
    assert record["pending"] == [
        {"pod": "default/huge", "message": "0/3 nodes are available: 3 Insufficient cpu."}
    ]
    assert record["considered"] == "named"


def test_simulate_places_everything_where_nothing_names_the_policy(files: Path) -> None:
    renamed = POLICY.replace("policy test", "policy newcomer")
    (files / "test.policy").write_text(renamed)

    record = answer(run(files, "simulate", "--output-format", "json"), "simulate")

    assert {placement["pod"] for placement in record["placements"]} == {"default/web", "default/other"}
    assert record["considered"] == "all"


def test_simulate_shows_victims_and_their_preemptor(files: Path) -> None:
    (files / "test.policy").write_text(
        "policy test version 1\ninclude kube_default\npreemption { victims = any }\n"
    )
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": 0},
    }
    cluster = [
        *(node_manifest("a", cpu="1"), node_manifest("b", cpu="1"), budget),
        pod_manifest("db", cpu="900m", node="a", phase="Running", labels={"app": "db"}),
        pod_manifest("web", cpu="900m", node="b", phase="Running", priority=5),
        pod_manifest("urgent", cpu="600m", priority=100),
    ]
    (files / "cluster.yaml").write_text(yaml.safe_dump_all(cluster))

    record = answer(run(files, "simulate", "--output-format", "json"), "simulate")
    output = run(files, "simulate").stdout

    assert [(placement["pod"], placement["node"]) for placement in record["placements"]] == [
        ("default/urgent", "b")
    ]
    assert record["preempted"] == ["default/web"]
    assert record["pending"] == []
    assert "preempted: default/web" in output


def test_each_placement_reduces_the_room_for_the_next(files: Path) -> None:
    cluster = [
        node_manifest("only", cpu="1"),
        *(pod_manifest(name, cpu="600m") for name in ("first", "second")),
    ]
    (files / "cluster.yaml").write_text(yaml.safe_dump_all(cluster))

    result = run(files, "simulate", "--output-format", "json", "--fail-on-pending")

    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert len(record["placements"]) == 1
    assert record["pending"][0]["message"] == "0/1 nodes are available: 1 Insufficient cpu."


def test_a_malformed_object_is_reported_and_left_out(files: Path) -> None:
    broken = node_manifest("broken", cpu="many")
    (files / "cluster.yaml").write_text(
        yaml.safe_dump_all([node_manifest("good"), broken, pod_manifest("web")])
    )

    result = run(files, "simulate", "--output-format", "json")

    assert "skipped: Node broken: status.allocatable.cpu" in result.stderr
    assert [placement["node"] for placement in json.loads(result.stdout)["placements"]] == ["good"]


def test_json_lines_and_typed_lists_are_read_as_clusters(files: Path) -> None:
    nodes = {"kind": "NodeList", "items": [{k: v for k, v in node_manifest("a").items() if k != "kind"}]}
    (files / "cluster.yaml").write_text(f"{json.dumps(nodes)}\n{json.dumps(pod_manifest('web'))}\n")

    record = answer(run(files, "simulate", "--output-format", "json"), "simulate")

    assert [placement["node"] for placement in record["placements"]] == ["a"]


def test_a_list_item_that_is_not_an_object_is_reported_and_the_others_are_used(files: Path) -> None:
    objects = list(yaml.safe_load_all((files / "cluster.yaml").read_text()))
    listed = {"kind": "List", "items": [None, *objects[0]["items"], 5]}
    (files / "cluster.yaml").write_text(yaml.safe_dump_all([listed, *objects[1:]]))

    result = run(files, "explain", "web")

    assert result.exit_code == 0
    assert "items[0]: is null, expected a map\n" in result.stderr
    assert "items[4]: is 5, expected a map\n" in result.stderr
    assert "would go to quiet" in result.stdout


def test_each_mistake_in_a_samples_file_is_a_line(files: Path) -> None:
    (files / "samples.yaml").write_text("net_rx:\n  quiet: [80Mbps]\n  busy:\n")

    result = run(files, "explain", "web")

    where = f"policysched: {files / 'samples.yaml'}"
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"{where}: line 2: net_rx.quiet: is a list, expected a number or a text",
        f"{where}: line 3: net_rx.busy: is null, expected a number or a text",
    ]


def test_invalid_values_and_unknown_nodes_in_a_samples_file_are_reported(files: Path) -> None:
    (files / "samples.yaml").write_text(
        "net_rx: {quiet: 80Mpbs, busy: NaN, full: 10Mbps, quite: 1, ful: 2}\n"
    )

    result = run(files, "explain", "web")

    assert result.exit_code == 0
    assert (
        "samples.yaml: metric net_rx: not a bandwidth, so missing: `80Mpbs` (quiet), `NaN` (busy)\n"
        in result.stderr
    )
    assert "metric net_rx has samples of unknown nodes: quite, ful\n" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just words", "has no `kind`"),
        ("- 1\n- 2\n", "has no `kind`"),
        ("", "contains no Kubernetes object"),
        ("kind: [unclosed", "cluster.yaml:2:1: not YAML"),
        ("kind: " + "9" * 5000, "cluster.yaml: not YAML: Exceeds the limit"),
        ('{"kind": "Pod"', "not JSON"),
        ("a: " + "[" * 200_000, "nests more than 1000 levels deep"),
    ],
)
def test_a_file_that_is_not_a_cluster_is_one_line_and_exit_2(files: Path, text: str, words: str) -> None:
    (files / "cluster.yaml").write_text(text)

    result = run(files, "simulate")

    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["explain", "default/zzz"], "pod default/zzz is in none of the cluster files (4 pods)\n"),
        (["explain", "pod/huge"], "(4 pods); did you mean default/huge?\n"),
        (["explain", "hugh"], "(4 pods); did you mean default/huge?\n"),
        (["simulate", "--name", "other"], "has no policy `other`; there is test"),
        (["simulate", "--cluster", "/nowhere.yaml"], "/nowhere.yaml"),
        (["simulate", "--colour"], "--colour"),
    ],
)
def test_unusable_arguments_are_reported_in_one_line_with_exit_2(
    files: Path, args: list[str], words: str
) -> None:
    result = run(files, *args)

    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_all_errors_of_a_policy_are_reported_and_nothing_is_evaluated(files: Path) -> None:
    (files / "test.policy").write_text(POLICY.replace("net_rx <", "net_rz <"))

    result = run(files, "simulate")

    assert result.exit_code == 2
    assert "unknown" in result.stderr
    assert "`net_rx`" in result.stderr
    assert result.stdout == ""


def test_a_burst_that_the_samples_do_not_show_yet_spreads_where_the_metric_assumes_it(files: Path) -> None:
    nodes = [node_manifest("busy"), node_manifest("idle")]
    burst = [pod_manifest(f"web-{index}", cpu="100m") for index in range(6)]
    (files / "cluster.yaml").write_text(yaml.safe_dump_all([{"kind": "List", "items": nodes}, *burst]))
    (files / "samples.yaml").write_text("net_rx: {busy: 400Mbps, idle: 0}\n")
    text = POLICY.replace("weight 5", "weight 100")

    def taken() -> list[str]:
        record = answer(run(files, "simulate", "--output-format", "json"), "simulate")
        return sorted(placement["node"] for placement in record["placements"])

    (files / "test.policy").write_text(text)
    without = taken()
    (files / "test.policy").write_text(text.replace("stale = 90s", "stale = 90s\n  assume = 200Mbps"))
    spread = taken()

    assert without == ["idle"] * 6
    assert spread == ["busy"] * 2 + ["idle"] * 4


def test_a_parameter_is_set_on_the_command_line(files: Path) -> None:
    policy = files / "limit.policy"
    policy.write_text(
        "policy test version 1\nparam most: int = 10 range 0..10\ninclude kube_default\n"
        "filter crowded require node.pods < most\npreemption never\n"
    )
    args = ["explain", "web", "--policy", str(policy), "--cluster", str(files / "cluster.yaml")]

    explained = json.loads(
        CliRunner().invoke(main, [*args, "--param", "most=0", "--output-format", "json"]).stdout
    )
    refused = CliRunner().invoke(main, [*args, "--param", "most=11"])

    jsonschema.validate(explained, schema("explain"))
    assert explained["policy"]["params"] == {"most": "0"} and explained["selected"] is None
    assert refused.exit_code == 2 and "PS260" in refused.stderr


def test_extenders_are_not_called_and_a_note_is_printed(files: Path) -> None:
    policy = files / "test.policy"
    policy.write_text(POLICY + "extender gpu weight 5 missing best\n")

    placed = answer(run(files, "simulate", "--output-format", "json"), "simulate")
    explained = answer(run(files, "explain", "default/web", "--output-format", "json"), "explain")

    policy.write_text(POLICY)
    without = answer(run(files, "simulate", "--output-format", "json"), "simulate")
    for record in (placed, explained):
        assert "extender gpu is not called; its rejections and scores are not included" in record["notes"]
    assert placed["placements"] == without["placements"] != []


def test_explain_shows_the_rules_that_an_outage_disables(files: Path) -> None:
    (files / "samples.yaml").write_text("net_rx: {full: 0}\n")
    policy = files / "test.policy"
    policy.write_text(POLICY + "outage { above = 50%  then = disable }\n")

    record = answer(run(files, "explain", "default/web", "--output-format", "json"), "explain")
    people = run(files, "explain", "default/web")

    words = (
        "outage of net_rx: too many nodes have no fresh sample; rules that do not apply: link_cool, bandwidth"
    )
    assert record["notes"] == [words]
    assert words in " ".join(people.stderr.split())


def test_explain_does_not_mention_outages_without_an_outage(files: Path) -> None:
    policy = files / "test.policy"
    policy.write_text(POLICY + "outage { above = 50%  then = disable }\n")

    record = answer(run(files, "explain", "default/web", "--output-format", "json"), "explain")

    assert record["notes"] == []


STATED = """\
policy test version 1
include kube_default
state reward: float {
  key = pod.labels["app"] else pod.name
  value = if container.exit_code == 0 then 1.0 else 0.0
  keep = 50%
  start = 1.0
}
state broken: ratio { per = cluster  on = failed  value = 100%  keep = 0%  start = 0% }
filter trusted require reward > 0.3 and broken < 50%
score learnt weight 100 higher reward normalize range(0, 1)
preemption never
"""


@pytest.mark.parametrize(
    "given",
    [
        "reward: {web: {busy: 0.4, full: 0.2}, huge: {gone: 0.1}}\nbroken: 30%\n",
        '{"fed_ns": 5, "values": {"reward": [["web", "busy", 0.4], ["web", "full", 0.2]], "broken": [["", "", 0.3]]}}',
    ],
)
def test_state_values_are_read_from_a_file_in_short_or_saved_form(files: Path, given: str) -> None:
    (files / "test.policy").write_text(STATED)
    (files / "state.yaml").write_text(given)
    option = ("--state", str(files / "state.yaml"), "--output-format", "json")

    explained = answer(run(files, "explain", "web", *option), "explain")
    without = answer(run(files, "explain", "web", "--output-format", "json"), "explain")
    simulated = answer(run(files, "simulate", *option), "simulate")

    assert {node: score["raw"] for node, score in explained["scores"]["learnt"].items()} == {
        "busy": 0.4,
        "quiet": 1,
    }
    assert [rejection["rule"] for rejection in explained["rejected"]["full"]] == [
        "node_resources_fit",
        "trusted",
    ]
    assert {score["raw"] for score in without["scores"]["learnt"].values()} == {1.0}
    assert (
        "states have their start values: reward 1, broken 0 (no --state file was given)" in without["notes"]
    )
    strange = f"{files / 'state.yaml'}: state reward has values of unknown nodes: gone"
    assert (strange in explained["notes"]) is ("gone" in given)
    assert [(placement["pod"], placement["node"]) for placement in simulated["placements"]] == [
        ("default/web", "quiet")
    ]


def test_container_statuses_in_a_cluster_file_do_not_change_state_values(files: Path) -> None:
    (files / "test.policy").write_text(STATED)
    ended = {"exitCode": 1, "containerID": "one", "finishedAt": "2026-01-01T00:01:30Z"}
    crashed = pod_manifest("crashed", node="quiet", phase="Running", labels={"app": "web"}, scheduler="test")
    crashed["status"]["containerStatuses"] = [{"name": "c", "state": {"terminated": ended}}]
    (files / "more.yaml").write_text(yaml.safe_dump(crashed))
    (files / "state.yaml").write_text("reward: {web: {quiet: 0.9, busy: 0.6}}")

    result = run(
        files, "simulate", "--cluster", str(files / "more.yaml"), "--state", str(files / "state.yaml")
    )

    assert "default/web\tquiet" in result.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a map of states"),
        ("{", "did not find expected node content"),
        ("reward: 3", "reward: expected a map of keys"),
        ("reward: {web: 3}", "reward.web: expected a map of nodes"),
        ("reward: {web: {busy: much}}", "reward.web.busy: `much` is not a value of type float"),
        ("reward: {web: {busy: .inf}}", "reward.web.busy: `inf` is not a value of type float"),
        ("broken: {busy: 1}", "broken: `{'busy': 1}` is not a value of type ratio"),
        ("reward: {1: {busy: 1}}", "reward: the key `1` is not a string; put it in quotes"),
        ('{"fed_ns": 1, "values": {"reward": [["web", "busy", true]]}}', "invalid value True"),
    ],
)
def test_an_unusable_state_file_is_reported_in_one_line_with_exit_2(
    files: Path, text: str, words: str
) -> None:
    (files / "test.policy").write_text(STATED)
    (files / "state.yaml").write_text(text)

    result = run(files, "explain", "web", "--state", str(files / "state.yaml"))

    assert result.exit_code == 2
    assert words in result.stderr.splitlines()[-1]


def test_custom_resources_in_the_cluster_files_are_read_by_their_kind(files: Path) -> None:
    policy = files / "cards.policy"
    policy.write_text(
        "policy test version 1\ninclude kube_default\nrecord card { health: string }\n"
        'input cards: list<card> = node.objects["scv"] at "status.cardList" default [] invalid default\n'
        'filter card require any(cards where card.health == "Healthy")\npreemption never\n'
    )
    scv = {
        "apiVersion": "core.run-linux.com/v1",
        "kind": "Scv",
        "metadata": {"name": "busy"},
        "status": {"cardList": [{"health": "Healthy"}]},
    }
    (files / "scv.json").write_text(json.dumps(scv))
    args = ["--policy", str(policy), "--cluster", str(files / "cluster.yaml"), "--output-format", "json"]
    args += ["--cluster", str(files / "scv.json")]

    explained = json.loads(CliRunner().invoke(main, ["explain", "web", *args]).stdout)
    placed = json.loads(CliRunner().invoke(main, ["simulate", *args]).stdout)

    assert explained["feasible"] == ["busy"]
    assert {placement["node"] for placement in placed["placements"]} == {"busy"}


def test_explain_and_simulate_keep_to_the_authority_of_the_settings(tmp_path: Path) -> None:
    policy = "policy test version 1\ninclude kube_default\npreemption { victims = any }\n"
    pods = [
        pod_manifest("low", cpu="900m", node="full", phase="Running", scheduler="other", namespace="batch"),
        pod_manifest(
            "agent", cpu="900m", node="agents", phase="Running", owner=("apps/v1", "DaemonSet", "agent")
        ),
        pod_manifest("urgent", cpu="900m", priority=9, namespace="web"),
    ]
    nodes = [node_manifest("full", cpu="1"), node_manifest("agents", cpu="1")]
    (tmp_path / "test.policy").write_text(policy)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([*nodes, *pods]))
    (tmp_path / "samples.yaml").write_text("{}\n")
    narrow, closed = tmp_path / "narrow.yaml", tmp_path / "closed.yaml"
    narrow.write_text("policies: a/b\npolicy_permissions: {victims_allowed: {namespaces: [other]}}\n")
    closed.write_text(
        "policies: a/b\npolicy_permissions: {policies_allowed: [{name: test, namespaces: [ml]}]}\n"
    )
    wants = ("--output-format", "json")

    default = answer(run(tmp_path, "simulate", *wants), "simulate")
    ceiling = answer(run(tmp_path, "simulate", *wants, "--config", str(narrow)), "simulate")
    explained = answer(run(tmp_path, "explain", "web/urgent", *wants, "--config", str(narrow)), "explain")
    unserved = answer(run(tmp_path, "simulate", *wants, "--config", str(closed)), "simulate")
    refused = answer(run(tmp_path, "explain", "web/urgent", *wants, "--config", str(closed)), "explain")

    assert default["preempted"] == ["batch/low"]
    assert ceiling["preempted"] == []
    assert "2 pods are protected from eviction by the settings." in ceiling["pending"][0]["message"]
    assert explained["message"] == ceiling["pending"][0]["message"]
    assert unserved["pending"][0]["message"] == refused["message"]
    assert refused["message"].startswith("policy test does not serve namespace web")


# ── the present time, pipes and terminals ──────────────────────────────────────────────────────────────────────────

AGED = 'policy test version 1\nfilter patient require pod.waited >= 1h says "waited {pod.waited}"\n'


@pytest.mark.parametrize(("at", "fits"), [("2026-01-01T00:59:59Z", False), ("2026-01-01T01:00:00Z", True)])
def test_explain_and_simulate_count_the_wait_from_the_creation_to_the_same_present(
    tmp_path: Path, at: str, fits: bool
) -> None:
    (tmp_path / "test.policy").write_text(AGED)
    created = pod_manifest("web")
    created["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([node_manifest("a"), created]))
    options = ["--policy", str(tmp_path / "test.policy"), "--cluster", str(tmp_path / "cluster.yaml")]
    options += ["--at", at, "--output-format", "json"]

    explained = answer(CliRunner().invoke(main, ["explain", "web", *options]), "explain")
    simulated = answer(CliRunner().invoke(main, ["simulate", *options]), "simulate")

    assert (explained["selected"] == "a") is fits
    assert (len(simulated["placements"]) == 1) is fits


def test_a_time_that_is_none_is_a_usage_error(files: Path) -> None:
    result = run(files, "explain", "web", "--at", "yesterday")

    assert result.exit_code == 2
    assert "`yesterday` is not a time; write it as 2026-01-01T09:00:00Z" in result.stderr


def test_a_pipe_gets_one_pending_pod_a_line_and_a_terminal_each_message_once(files: Path) -> None:
    crowd = [pod_manifest(f"huge-{number}", cpu="64", scheduler="test") for number in range(5)]
    (files / "more.yaml").write_text(yaml.safe_dump_all(crowd))
    arguments = ["simulate", "--policy", str(files / "test.policy"), "--cluster", str(files / "cluster.yaml")]
    arguments += ["--cluster", str(files / "more.yaml"), "--metrics", str(files / "samples.yaml")]

    piped = CliRunner().invoke(main, arguments).stdout.splitlines()
    shown = on_a_terminal(*arguments)

    waiting = [line.split("\t") for line in piped if line.startswith("default/huge")]
    assert [pod for pod, _ in waiting] == ["default/huge", *(f"default/huge-{number}" for number in range(5))]
    assert len({message for _, message in waiting}) == 1
    assert "6 pods pending: default/huge, default/huge-0, default/huge-1 and 3 more" in shown
    assert shown.count("Insufficient cpu") == 1


def test_a_name_without_a_namespace_is_found_in_any_and_ambiguous_in_two(files: Path) -> None:
    (files / "more.yaml").write_text(
        yaml.safe_dump_all([pod_manifest("alone", namespace="shop"), pod_manifest("web", namespace="shop")])
    )
    more = ["--cluster", str(files / "more.yaml"), "--output-format", "json"]

    assert answer(run(files, "explain", "alone", *more), "explain")["pod"] == "shop/alone"
    ambiguous = run(files, "explain", "web", *more)

    assert ambiguous.exit_code == 2
    assert (
        ambiguous.stderr.strip()
        == "policysched: several pods are named web: default/web, shop/web; name one as NAMESPACE/NAME"
    )


# ── samples as a scheduler exports them ────────────────────────────────────────────────────────────────────────────


def test_explain_reads_samples_as_a_scheduler_exports_them(files: Path) -> None:
    recovering = POLICY.replace("require net_rx < 800Mbps", "require net_rx < 800Mbps recover 600Mbps for 2m")
    (files / "test.policy").write_text(recovering)
    program = check_text(recovering).program
    assert program is not None
    second, now_ns = 10**9, 1_767_225_600 * 10**9
    (condition,) = recovery_conditions(program)
    held = MetricSamples(
        {
            NodeName("busy"): Sample(500e6, now_ns - 20 * second),
            NodeName("quiet"): Sample(100e6, now_ns - 10 * second),
        },
        polled_ns=now_ns - 5 * second,
        assumed={NodeName("quiet"): 50e6},
        recovering_until_ns={condition: {NodeName("busy"): now_ns + 60 * second}},
    )
    page = samples_document({"test": export_samples(program, {"net_rx": held}, None)}, now_ns, None)
    (files / "samples.yaml").write_text(json.dumps(page))

    record = answer(run(files, "explain", "default/web", "--output-format", "json"), "explain")

    jsonschema.validate(page, schema("samples-export"))
    assert read_samples_export(page, program).samples == {"net_rx": held}
    assert record["samples"]["net_rx"]["busy"] == {"value": 500e6, "age_s": 20.0, "stale": False}
    assert [rejection["rule"] for rejection in record["rejected"]["busy"]] == ["link_cool"]
    assert record["scores"]["bandwidth"]["quiet"]["raw"] == 150e6  # with the assumed load


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 9}, "is an export of format version 9; this program reads 1"),
        ({"time_ns": "now"}, "is not a complete export of samples"),
        ({"policies": {"other": {"sha256": "", "metrics": {}}}}, "has no samples of policy test; it has those of: other"),
    ],
)  # fmt: skip
def test_an_unusable_export_is_reported_in_one_line(files: Path, change: dict[str, Any], words: str) -> None:
    page = samples_document({}, 0, None) | change
    (files / "samples.yaml").write_text(json.dumps(page))

    result = run(files, "explain", "default/web")

    assert result.exit_code == 2
    assert words in result.stderr and len(result.stderr.splitlines()) == 1


# ── explanations in depth ──────────────────────────────────────────────────────────────────────────────────────────


def explained(files: Path, *args: str, columns: int = 80) -> str:
    common = ["--policy", str(files / "test.policy"), "--cluster", str(files / "cluster.yaml")]
    return on_a_terminal("explain", *args, *common, "--metrics", str(files / "samples.yaml"), columns=columns)


def test_a_pending_pod_is_explained_by_its_closest_node_and_by_what_would_help(files: Path) -> None:
    shown = explained(files, "huge")

    assert "filter              alone  left" in shown and "  <- no node left" in shown
    assert "closest miss: quiet" in shown
    assert "Insufficient cpu (requests 64, 4 free: 60 short)" in shown
    assert "  - request 4 cpu instead of 64 (goes to quiet)" in shown
    assert "14 other filters pass every node" in shown or "13 other filters pass every node" in shown


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["web", "huge", "holder"])
def test_an_explanation_fits_the_terminal(files: Path, name: str, columns: int) -> None:
    nodes = [node_manifest(f"ip-10-0-{number}-100.eu-central-1.compute.internal") for number in range(30)]
    (files / "more.yaml").write_text(yaml.safe_dump_all(nodes))

    shown = explained(files, name, "--cluster", str(files / "more.yaml"), columns=columns)

    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_note_fits_the_terminal_and_is_one_line_in_a_pipe(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)

    print_notes(["the gang was not tried; `policysched explain --policy FILE` has no time limit"])

    lines = capsys.readouterr().err.splitlines()
    assert (max(len(line) for line in lines) <= 40) == is_terminal
    assert " ".join(line.strip() for line in lines).endswith(
        "`policysched explain --policy FILE` has no time limit"
    )


def test_the_scores_say_rule_by_rule_why_a_node_leads(files: Path) -> None:
    (files / "more.yaml").write_text(yaml.safe_dump(node_manifest("third")))
    (files / "samples.yaml").write_text("net_rx: {busy: 900Mbps, quiet: 100Mbps, full: 0, third: 600Mbps}\n")

    shown = explained(files, "web", "--cluster", str(files / "more.yaml"))

    assert "quiet leads third by 250, most of it by bandwidth." in shown
    assert re.search(r"bandwidth × 5 +450 +200 +\+250", shown)


def test_a_placed_pod_is_compared_with_the_best_other_node(files: Path) -> None:
    shown = explained(files, "holder")

    assert "node    full" in shown
    assert re.search(r"full (leads|is \d+ behind) (quiet|busy)", shown)


def test_the_best_other_node_is_the_one_of_the_tie_where_the_pod_would_go(files: Path) -> None:
    (files / "more.yaml").write_text(yaml.safe_dump_all(node_manifest(f"even-{n}") for n in range(8)))
    (files / "samples.yaml").write_text("net_rx: {busy: 900Mbps, quiet: 900Mbps, full: 600Mbps, ")
    with (files / "samples.yaml").open("a") as samples:
        samples.write(", ".join(f"even-{n}: 0" for n in range(8)) + "}\n")

    shown = " ".join(explained(files, "holder", "--cluster", str(files / "more.yaml")).split())

    goes_to = re.search(r"would go to (even-\d)", shown)
    assert goes_to is not None and goes_to[1] != "even-0"
    assert re.search(rf"full is \d+ behind {goes_to[1]}, where the pod would go now", shown)


@pytest.mark.parametrize(
    "command", [("explain", "default/w0"), ("simulate",)], ids=lambda command: command[0]
)
def test_a_group_of_a_composite_pod_group_is_named_as_not_supported(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "test.policy").write_text("policy test version 1\ninclude kube_default\ninclude pod_groups\n")
    policy = {"gang": {"minCount": 1}}
    parent = {
        "apiVersion": "scheduling.k8s.io/v1alpha3",
        "kind": "CompositePodGroup",
        "metadata": {"name": "tree"},
    }
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"parentCompositePodGroupName": "tree", "schedulingPolicy": policy},
    }
    pod = pod_manifest("w0", cpu="1")
    pod["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([node_manifest("a"), parent, group, pod]))
    (tmp_path / "samples.yaml").write_text("{}\n")

    said = run(tmp_path, *command).stdout

    assert "belongs to CompositePodGroup tree; CompositePodGroups are not supported" in " ".join(said.split())
