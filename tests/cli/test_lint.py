"""`policysched lint` from end to end."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jsonschema
import pytest
import yaml

import policysched
from policysched.cli.lint import MACHINE_FORMAT_NAMES
from policysched.text.render_machine import MACHINE_FORMATS
from tests.cli.builders import BAD, GOOD, WARNED, config_map, run, write

SCHEMA = Path(policysched.__file__).parent / "schemas" / "lint.json"


def test_a_good_policy_has_no_findings_and_exit_0(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=GOOD)

    done = run("lint", path)

    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[0] == "no findings in 1 file"


def test_an_invalid_policy_is_reported_with_its_line_and_exit_1(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=BAD)

    done = run("lint", path)

    assert done.code == 1
    assert f"--> {path}:3:14" in done.out
    assert "3 | filter ready requires node.ready" in done.out
    assert "  |              ^^^^^^^^ unknown keyword" in done.out
    assert "help: did you mean `require`?" in done.out
    assert done.err.splitlines()[0] == "1 error in 1 file"


METRIC = 'metric rx: ratio {{ query = "q"{source}, unit = "1", join = node, every = 15s, stale = 90s }}'


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "it names no source and the settings have several: one, two"),
        (", source = one", ""),
        (", source = three", "the settings have no source `three`"),
        (', source = "two"', 'source `two`: the metrics API has "cpu" and "memory", not `q`'),
    ],
)
def test_with_the_settings_at_hand_a_metric_that_no_source_serves_is_named(
    source: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text(
        "policies: a/b\nsources: {one: {kind: prometheus, url: 'http://p:9090'}, two: {kind: metrics-api}}\n"
    )
    text = f"policy test version 1\ninclude kube_default\n{METRIC.format(source=source)}\nfilter f require rx < 1 missing pass\n"
    (path,) = write(tmp_path, a_policy=text)

    without = run("lint", path)
    given = run("lint", path, "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise")

    assert (without.code, without.out) == (0, "")
    assert (given.code, message in given.out, "PS902" in given.out) == (0, True, bool(message))


def test_with_the_settings_at_hand_an_extender_that_they_lack_is_an_error_at_its_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "settings.yaml").write_text(
        "policies: a/b\nextenders: {gpu: {url: 'http://gpu', filter: filter}}\n"
    )
    text = (
        "policy test version 1\ninclude kube_default\nextender gpu\nextender npu weight 5 missing neutral\n"
    )
    (path,) = write(tmp_path, a_policy=text)

    without = run("lint", path)
    given = run("lint", path, "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise")

    assert without.code == 0
    assert (given.code, given.out) == (
        1,
        f"{path}:4:10: error[PS906] extender `npu` is not configured in the settings (configured: gpu)\n",
    )


def test_with_the_settings_a_name_that_they_do_not_allow_is_an_error_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(
        "policies: a/b\npolicy_permissions: {policies_allowed: [{name: ml-*}]}\n"
    )
    (path,) = write(tmp_path, a_policy="policy test version 1\ninclude kube_default\n")

    without = run("lint", path)
    given = run("lint", path, "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise")

    assert without.code == 0
    assert (given.code, given.out) == (
        1,
        f"{path}:1:8: error[PS908] the settings do not allow a policy called `test` (allowed: ml-*)\n",
    )


TEAM_SETTINGS = """\
policies: a/b
policy_permissions: {policies_allowed: [{name: "*"}, {name: ml-*, owner: ml}]}
team_policies: {required_base: base.policy}
"""
TEAM_BASE = """\
library base version 1
include kube_default
replace locked filter node_resources_fit
locked param most: int = 100 range 1..110
locked filter crowded require node.pods < most
"""


def test_what_a_team_may_not_read_is_shown_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(TEAM_SETTINGS)
    (tmp_path / "base.policy").write_text(TEAM_BASE)
    (tmp_path / "a.policy").write_text(
        'policy ml-a version 1\ninclude "base.policy"\n'
        'filter a when has node.annotations["x"] require count(all pods) < 9\n'
        "filter b require count(placed pods\n"
        '  where has other.annotations["x"] or starts_with(other.labels["y"] else "", "z")) < 9\n'
    )

    shown = run("lint", str(tmp_path), "--config", str(tmp_path / "settings.yaml"))

    assert shown.code == 1
    assert re.sub(
        r"-->.*/", "--> ", shown.out.replace("note: run `policysched rule PS914` for an explanation\n", "")
    ) == (
        """\
error[PS914] a policy that a team owns cannot read `node.annotations["x"]`
 --> a.policy:3:19
  |
3 | filter a when has node.annotations["x"] require count(all pods) < 9
  |                   ^^^^^^^^^^^^^^^^^^^^^ only the operator's texts read it
  |
help: use an `input` or `let` of the operator's libraries

error[PS914] a policy that a team owns cannot read `all pods` of other namespaces
 --> a.policy:3:49
  |
3 | filter a when has node.annotations["x"] require count(all pods) < 9
  |                                                 ^^^^^^^^^^^^^^^ also pods that are on no node
  |
help: count `placed pods`; or begin the condition with `other.namespace == pod.namespace and`, or use a `let` of the operator's libraries

error[PS914] a policy that a team owns cannot read `other.annotations["x"]` of pods of other namespaces
 --> a.policy:5:13
  |
5 |   where has other.annotations["x"] or starts_with(other.labels["y"] else "", "z")) < 9
  |             ^^^^^^^^^^^^^^^^^^^^^^ only allowed for pods of its own namespace
  |
help: begin the condition with `other.namespace == pod.namespace and`, or use a `let` of the operator's libraries

error[PS914] a policy that a team owns cannot read `other.labels["y"]` of pods of other namespaces
 --> a.policy:5:51
  |
5 |   where has other.annotations["x"] or starts_with(other.labels["y"] else "", "z")) < 9
  |                                                   ^^^^^^^^^^^^^^^^^ only allowed beside `==`, `!=`, `in`, `not in` and in `has`
  |
help: begin the condition with `other.namespace == pod.namespace and`, or use a `let` of the operator's libraries

"""
    )


def test_a_key_that_teams_can_choose_is_shown_in_the_base_alone(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(TEAM_SETTINGS)
    (tmp_path / "base.policy").write_text(
        'library base version 1\nparam key: string = "heat"\nfilter cool require not has node.annotations[key]\n'
    )

    without = run("lint", str(tmp_path))
    shown = run("lint", str(tmp_path), "--config", str(tmp_path / "settings.yaml"))

    assert "PS915" not in without.out
    assert shown.code == 0
    assert re.sub(r"-->.*/", "--> ", shown.out) == (
        """\
warning[PS915] teams can choose which key `node.annotations[key]` reads
 --> base.policy:3:29
  |
3 | filter cool require not has node.annotations[key]
  |                             ^^^^^^^^^^^^^^^^^^^^^ the parameter is not locked
  |
help: write `locked param`, or list the keys that teams may read: `in ["KEY", ...]`
note: run `policysched rule PS915` for an explanation

"""
    )


@pytest.mark.parametrize(
    ("statements", "params", "code"),
    [
        ('include "base.policy"', "", ""),
        ("include kube_default", "", "PS910"),
        ('include "base.policy"\ndrop node_resources_fit', "", "PS230"),
        ('include "base.policy"\nextender theirs', "", "PS911"),
        ('include "base.policy"', "most: 110\n", "PS263"),
        ('include "base.policy"\nfilter a require count(pods) < 9', "", "PS914"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_with_the_settings_a_text_of_a_team_is_checked_as_the_scheduler_loads_it(
    statements: str, params: str, code: str, apart: bool, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text(TEAM_SETTINGS)
    (tmp_path / "operator").mkdir()
    base = tmp_path / ("operator" if apart else ".") / "base.policy"
    base.write_text(TEAM_BASE)
    data = {"a.policy": f"policy ml-a version 1\n{statements}\n", "ml-a.params.yaml": params}
    text = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x"}, "data": data}
    if apart:
        (tmp_path / "team.yaml").write_text(yaml.safe_dump(text, default_style="|"))
        paths = [str(base), str(tmp_path / "team.yaml")]
    else:
        for key, value in data.items():
            (tmp_path / key).write_text(value)
        paths = [str(tmp_path)]

    given = run("lint", *paths, "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise")

    errors = set(re.findall(r"error\[(PS\d+)\]", given.out))
    assert code in errors if code else not errors, given.out


def test_with_the_settings_the_limit_on_the_cost_of_teams_is_that_of_their_policies_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "settings.yaml").write_text(
        TEAM_SETTINGS.replace("base.policy}", "base.policy, policy_cost_max: 100}")
    )
    (tmp_path / "base.policy").write_text(TEAM_BASE)
    for name in ("ml-a", "main"):
        (tmp_path / f"{name}.policy").write_text(f'policy {name} version 1\ninclude "base.policy"\n')

    given = run(
        "lint", str(tmp_path), "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise"
    )

    (error,) = [line for line in given.out.splitlines() if "error[PS501]" in line]
    assert "ml-a.policy" in error and "the limit is 100" in error


def test_with_the_settings_their_parameter_values_count(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("policies: a/b\nparams: {test: {most: 500}}\n")
    text = "policy test version 1\nparam most: int = 5 range 1..9\nfilter f require node.pods < most\n"
    (path,) = write(tmp_path, a_policy=text)

    without = run("lint", path)
    given = run("lint", path, "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise")

    assert "error" not in without.out and "500" in given.out and given.code == 1


def test_the_operators_limit_on_the_cost_of_a_policy_counts(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("policies: a/b\npolicy_cost_max: 100\n")
    (path,) = write(tmp_path, a_policy="policy test version 1\ninclude kube_default\n")

    without = run("lint", path)
    given = run("lint", path, "--config", str(tmp_path / "settings.yaml"), "--output-format", "concise")

    assert without.code == 0
    assert given.code == 1
    assert "error[PS501]" in given.out and "the limit is 100" in given.out


def test_each_mistake_in_the_settings_is_reported_in_one_line(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=GOOD)
    settings = tmp_path / "settings.yaml"
    settings.write_text("polices: a/b\nhttp: here\n")

    done = run("lint", path, "--config", str(settings))

    assert done.code == 2
    assert [line.partition(f"{settings}: ")[2] for line in done.err.splitlines()] == [
        "line 1: polices: is unknown here; did you mean `policies`?",
        "line 2: http: is `here`, expected HOST:PORT or :PORT for health, metrics and status.",
        "",
    ]


def test_servers_are_queried_only_with_settings_and_an_unreachable_one_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(
        "policies: a/b\nsources: {one: {kind: prometheus, url: 'http://127.0.0.1:1'}}\n"
    )
    text = f"policy test version 1\ninclude kube_default\n{METRIC.format(source='')}\nfilter f require rx < 1 missing pass\n"
    (path,) = write(tmp_path, a_policy=text)

    without = run("lint", path, "--live")
    away = run("lint", path, "--live", "--config", str(tmp_path / "settings.yaml"))

    assert (without.code, away.code) == (2, 2)
    assert "--live needs --config FILE" in without.err
    assert "source `one`: cannot connect to 127.0.0.1:1: Connection refused\n" in away.err


def test_unreadable_settings_are_a_failure_and_not_a_finding(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=GOOD)
    (tmp_path / "settings.yaml").write_text("polices: a/b\n")

    done = run("lint", path, "--config", str(tmp_path / "settings.yaml"))

    assert done.code == 2
    assert "polices: is unknown here; did you mean `policies`?" in done.err


def test_a_config_map_is_reported_with_the_lines_and_columns_of_its_file(tmp_path: Path) -> None:
    (path,) = write(
        tmp_path, a_yaml="# stream\n---\n" + config_map(good=GOOD) + "---\n" + config_map(bad=BAD)
    )

    done = run("lint", path, "--output-format", "concise")

    line = (tmp_path / "a.yaml").read_text().split("\n").index("    filter ready requires node.ready") + 1
    assert done.out == f"{path}:{line}:18: error[PS106] unexpected `requires`\n"


def test_a_diagnostic_in_a_quoted_text_is_reported_at_its_key(tmp_path: Path) -> None:
    text = json.dumps({"kind": "ConfigMap", "metadata": {"name": "p"}, "data": {"a.policy": BAD}}, indent=1)
    (path,) = write(tmp_path, a_json=text)

    done = run("lint", path, "--output-format", "concise")

    places = {line.split(" ")[0] for line in done.out.splitlines()}
    assert places == {f"{path}:7:3:"}
    assert "PS105" in done.out and "PS106" in done.out


def test_a_library_is_found_in_the_same_config_map_and_the_same_folder(tmp_path: Path) -> None:
    base = "library base version 1\nfilter ready require node.ready\n"
    uses = 'policy example version 1\ninclude kube_default\ninclude "base.policy"\n'
    together, alone, _ = write(
        tmp_path, cm_yaml=config_map(base=base, example=uses), uses_policy=uses, base_policy=base
    )

    assert run("lint", together).code == 0
    assert run("lint", alone).code == 0
    (tmp_path / "base.policy").unlink()
    assert run("lint", alone).code == 1


def test_a_folder_is_searched_for_policies_and_config_maps(tmp_path: Path) -> None:
    write(tmp_path, a_policy=GOOD, cm_yaml=config_map(bad=BAD), other_yaml="kind: Service\n", notes_md="no")

    done = run("lint", str(tmp_path), "--output-format", "concise")

    assert done.code == 1
    assert [line.split(":")[0] for line in done.out.splitlines()] == [str(tmp_path / "cm.yaml")]
    assert done.err.splitlines()[0].endswith("in 2 files")


def test_standard_input_has_the_name_that_it_is_given() -> None:
    assert run("lint", "-", stdin=BAD).out.split("\n")[1].strip() == "--> -:3:14"
    assert "--> a/b.policy:3:14" in run("lint", "-", "--stdin-filename", "a/b.policy", stdin=BAD).out
    assert "key bad.policy" in run("lint", "-", stdin=config_map(bad=BAD)).out


def test_the_fail_level_decides_about_the_exit_code(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=WARNED)

    assert run("lint", path).code == 0
    assert run("lint", path, "--fail-level", "warning").code == 1
    assert run("lint", path, "--fail-level", "warning", "--exit-zero").code == 0


def test_findings_are_selected_and_ignored_by_code_name_and_block(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=WARNED)

    def codes(*options: str) -> list[str]:
        return [
            entry["code"]
            for entry in json.loads(run("lint", path, "--output-format", "json", *options).out)["diagnostics"]
        ]

    assert codes() == ["PS412"]
    assert (
        codes("--ignore", "PS412")
        == codes("--ignore", "default-scheduler-name")
        == codes("--ignore", "PS4")
        == []
    )
    assert codes("--select", "PS1,PS2") == []
    assert codes("--select", "ps412") == ["PS412"]


def test_a_selection_says_that_it_was_made_from_the_first_findings_only(tmp_path: Path) -> None:
    lets = "".join(f"let a{index}: int = {index}\n" for index in range(600))
    (path,) = write(tmp_path, a_policy=f"policy a version 1\n{lets}")

    shown = run("lint", path, "--select", "PS412", "--output-format", "concise")
    ignored = run("lint", path, "--select", "PS412", "--ignore", "PS006", "--output-format", "concise")

    assert "PS006" in shown.out and "more diagnostics in this text" in shown.out
    assert "PS006" not in ignored.out
    assert run("lint", path, "--select", "PS999").code == 2


@pytest.mark.parametrize(
    ("text", "code"), [("filter x require && y", "PS1"), ("filter x require pod.priority > 3s", "PS2")]
)
@pytest.mark.parametrize("options", [("--select", "PS412"), ("--ignore", "PS1,PS2")], ids=" ".join)
def test_an_error_is_reported_whatever_is_selected(
    tmp_path: Path, options: tuple[str, ...], text: str, code: str
) -> None:
    (path,) = write(tmp_path, a_policy=f"policy a version 1\n{text}\n")

    result = run("lint", path, *options, "--output-format", "concise")

    assert result.code == 1
    assert code in result.out


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("  # policysched: ignore[PS412] we are alone here", []),
        ("  # policysched: ignore[default-scheduler-name] we are alone here", []),
        ("  # policysched: ignore[PS412]", ["PS002"]),
        ("  # policysched: ignore[PS306] because", ["PS412", "PS001"]),
        ("  # policysched: ignore[PS777] because", ["PS412", "PS001"]),
    ],
)
def test_a_comment_silences_a_warning_and_says_why(tmp_path: Path, comment: str, codes: list[str]) -> None:
    lines = WARNED.split("\n")
    behind, above = write(
        tmp_path,
        behind_policy="\n".join([lines[0] + comment, *lines[1:]]),
        above_policy="\n".join([comment.strip(), *lines]),
    )

    for path in (behind, above):
        diagnostics = json.loads(run("lint", path, "--output-format", "json").out)["diagnostics"]
        assert sorted(entry["code"] for entry in diagnostics) == sorted(codes)


def test_a_comment_cannot_silence_an_error(tmp_path: Path) -> None:
    (path,) = write(
        tmp_path, a_policy=BAD.replace("node.ready\n", "node.ready  # policysched: ignore[PS106] please\n")
    )

    done = run("lint", path, "--output-format", "concise")

    assert done.code == 1
    assert "error[PS106]" in done.out
    assert "`PS106` is an error and cannot be ignored" in done.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lint", "nowhere.policy"], "policysched: nowhere.policy: no such file"),
        (["lint", "--frmat", "x"], "policysched lint: No such option '--frmat'"),
        (["lint"], "policysched lint: Missing argument 'PATH...'."),
        (["lintt"], "policysched: No such command 'lintt'. Did you mean 'lint'?"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line_with_exit_2(args: list[str], message: str) -> None:
    done = run(*args)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a_yaml", "a: [1\nb: 2\n", "a.yaml:2:2: not YAML"),
        ("b_yaml", "kind: Service\n", "contains no ConfigMap with a key that ends in .policy"),
    ],
)
def test_a_file_without_a_policy_is_reported_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (path,) = write(tmp_path, **{name: text})

    done = run("lint", path)

    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_bytes_that_are_not_utf_8_are_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.policy"
    path.write_bytes(b"policy \xff\xfe")

    done = run("lint", str(path))

    assert (done.code, done.err) == (2, f"policysched: {path}: not UTF-8 text (byte 7)\n")


# ── formats ────────────────────────────────────────────────────────────────────────────────────────────────────────


def printed(tmp_path: Path, output_format: str) -> tuple[str, str]:
    (path,) = write(tmp_path, a_policy=BAD)
    return path, run("lint", path, "--output-format", output_format).out


def test_an_unreadable_file_does_not_hide_diagnostics_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "latin.policy").write_bytes(b"policy caf\xe9 version 1\n")
    (tmp_path / "bad.yaml").write_text("kind: ConfigMap\ndata: {a.policy: [\n")
    (tmp_path / "wrong.policy").write_text(
        "policy wrong version 1\ninclude kube_default\nfilter f rejct true\n"
    )

    linted = run("lint", str(tmp_path), "missing.policy", "--output-format", "concise")
    formatted = run("fmt", str(tmp_path), "missing.policy")

    for done in (linted, formatted):
        assert done.code == 2
        assert "latin.policy: not UTF-8 text (byte 10)" in done.err
        assert "policysched: missing.policy: no such file" in done.err
        assert "bad.yaml" in done.err
    assert "PS106" in linted.out
    assert "PS106" in formatted.err


def test_json_has_places_and_follows_its_schema(tmp_path: Path) -> None:
    path, text = printed(tmp_path, "json")
    report = json.loads(text)
    schema = json.loads(SCHEMA.read_text())

    jsonschema.validate(report, schema)
    (entry,) = report["diagnostics"]
    assert (entry["code"], entry["name"], entry["severity"], entry["filename"]) == (
        "PS106",
        "misspelled-keyword",
        "error",
        path,
    )
    assert entry["location"] == {"row": 3, "column": 14}
    assert entry["end_location"] == {"row": 3, "column": 22}
    assert report["error_count"] == 1


def test_json_lines_has_the_same_entries(tmp_path: Path) -> None:
    whole = json.loads(printed(tmp_path, "json")[1])
    lines = [json.loads(line) for line in printed(tmp_path, "json-lines")[1].splitlines()]

    assert lines == whole["diagnostics"]


def test_github_annotations_escape_what_their_syntax_needs(tmp_path: Path) -> None:
    path, text = printed(tmp_path, "github")

    assert text == (
        f"::error title=policysched (PS106),file={path},line=3,col=14,endLine=3,endColumn=22::"
        f"{path}:3:14: error[PS106] unexpected `requires`%0A  help: did you mean `require`?\n"
    )


def test_gitlab_fingerprints_do_not_depend_on_the_lines_above(tmp_path: Path) -> None:
    def fingerprint(text: str) -> str:
        (path,) = write(tmp_path, a_policy=text)
        (entry,) = json.loads(run("lint", path, "--output-format", "gitlab").out)
        assert entry["severity"] == "major"
        return str(entry["fingerprint"])

    before = fingerprint(BAD)

    assert fingerprint(BAD.replace("filter", "# a comment\nfilter")) == before
    assert fingerprint(BAD.replace("ready requires", "other requires")) != before


def test_junit_has_a_suite_for_each_file(tmp_path: Path) -> None:
    good, bad = write(tmp_path, good_policy=GOOD, bad_policy=BAD)

    suites = ElementTree.fromstring(run("lint", good, bad, "--output-format", "junit").out)

    assert [(suite.get("name"), suite.get("failures")) for suite in suites] == [(good, "0"), (bad, "1")]
    assert suites[1][0].get("name") == "org.policysched.PS106"


def test_sarif_has_the_rule_and_the_region(tmp_path: Path) -> None:
    path, text = printed(tmp_path, "sarif")
    report = json.loads(text)

    (run_,) = report["runs"]
    (result,) = run_["results"]
    assert report["version"] == "2.1.0"
    assert run_["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "PS106"
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == path
    assert physical["region"] == {"startLine": 3, "startColumn": 14, "endLine": 3, "endColumn": 22}
    assert set(result["partialFingerprints"]) == {"policysched/v1"}


def test_machine_formats_are_the_only_output_on_stdout(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=GOOD)

    for output_format in ("json", "gitlab", "sarif"):
        json.loads(run("lint", path, "--output-format", output_format).out)


def test_diagnostics_can_be_written_to_a_file(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=BAD)

    done = run("lint", path, "--output-format", "json", "--output-file", str(tmp_path / "out.json"))

    assert done.out == ""
    assert json.loads((tmp_path / "out.json").read_text())["error_count"] == 1


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_follow_the_environment_where_there_is_no_terminal(
    tmp_path: Path, env: dict[str, str], coloured: bool
) -> None:
    (path,) = write(tmp_path, a_policy=BAD)

    assert ("\x1b[" in run("lint", path, env=env).out) is coloured


# ── what it costs ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("args", [["lint"], ["fmt", "--check"]])
def test_lint_and_fmt_import_nothing_of_the_cluster(tmp_path: Path, args: list[str]) -> None:
    (path,) = write(tmp_path, a_policy=GOOD)
    script = (
        "import sys\nfrom policysched.cli import main\n"
        f"try: main({[*args, path]!r})\nexcept SystemExit as end: assert not end.code\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'numpy', 'aiohttp', 'kubernetes', 'rich', 'asyncio', 'jsonschema', 'orjson', 'yaml'}))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_help_imports_no_command() -> None:
    script = (
        "import sys\nfrom policysched.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('policysched.')))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    light = [
        "policysched.cli",
        "policysched.cli.closed_output",
        "policysched.data_files",
        "policysched.gc_tuning",
    ]
    assert done.stdout.splitlines()[-1] == str(light)
    assert "lint" in done.stdout


def test_every_machine_format_can_be_selected() -> None:
    assert set(MACHINE_FORMAT_NAMES) == set(MACHINE_FORMATS)


def test_a_policy_with_complete_built_ins_gets_no_note(tmp_path: Path) -> None:
    path = tmp_path / "own.policy"
    path.write_text("policy own version 1\n\nfilter node_resources_fit\n")

    assert "not covered" not in run("lint", str(path)).err


def test_a_policy_under_binary_data_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(
        "kind: ConfigMap\nmetadata: {name: policies}\n"
        "data:\n  a.policy: |\n    policy a version 1\n    include kube_default\nbinaryData:\n  b.policy: /A==\n"
    )

    result = run("lint", str(path))

    assert result.code == 2
    assert result.err == (
        f"policysched: {path}:8:3: key b.policy of ConfigMap policies is under binaryData, "
        "where kubectl puts files that are not UTF-8\n"
    )


def test_a_file_of_windows_is_clean_in_the_configmap_that_kubectl_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    text = "\ufeffpolicy win version 1\r\ninclude kube_default\r\n"
    path.write_text(json.dumps({"kind": "ConfigMap", "data": {"win.policy": text}}))

    result = run("lint", str(path), "--fail-level", "warning")

    assert (result.code, "error" in result.out) == (0, False)


def test_quiet_prints_findings_and_nothing_else(tmp_path: Path) -> None:
    (good,) = write(tmp_path, good=GOOD)
    (bad,) = write(tmp_path, bad=BAD)

    clean, broken = run("lint", "--quiet", good), run("lint", "--quiet", bad)

    assert (clean.code, clean.out, clean.err) == (0, "", "")
    assert (broken.code, broken.err) == (1, "")
    assert "unknown keyword" in broken.out
