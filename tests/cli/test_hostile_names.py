"""Names of files and objects of others: they move no cursor and begin no line of their own in what the commands print."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from policysched.cli.offline_options import print_json
from tests.builders import node_manifest, pod_manifest
from tests.cli.builders import BAD, GOOD, run

HOSTILE = "x\x1b]0;title\x07\x9b31m\u202e\n::error::forged"


def assert_harmless(text: str) -> None:
    assert "forged" in text
    assert not [char for char in text if not char.isprintable() and char not in "\n\t"], ascii(text)
    assert not [line for line in text.split("\n") if line.startswith("::error::forged")], text


@pytest.mark.parametrize("command", [["lint"], ["show"], ["fmt", "--check"], ["simulate", "--policy"]])
def test_names_of_a_config_map_cannot_write_to_the_terminal(tmp_path: Path, command: list[str]) -> None:
    path, cluster = tmp_path / "map.json", tmp_path / "cluster.json"
    data = {f"{HOSTILE}.policy": GOOD if "fmt" in command else BAD}
    meta = {"name": HOSTILE, "namespace": HOSTILE}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}))
    cluster.write_text(json.dumps(node_manifest("a")))

    result = run(*command, str(path), *(["--cluster", str(cluster)] if "simulate" in command else []))

    assert_harmless(result.out + result.err)


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_the_name_of_a_test_cannot_write_to_the_terminal(tmp_path: Path, output_format: str) -> None:
    (tmp_path / "good.policy").write_text(GOOD)
    tests = [
        {"name": HOSTILE, "nodes": [{"name": "n"}], "pods": [{"name": "p"}], "expect": {"node": {"p": None}}}
    ]
    (tmp_path / "some_test.yaml").write_text(json.dumps({"policy": "good.policy", "tests": tests}))

    result = run("test", str(tmp_path), "--output-format", output_format)

    assert result.code == 1
    assert_harmless(result.out + result.err)


def test_json_has_escapes_for_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": HOSTILE})

    shown = capsys.readouterr().out
    assert_harmless(shown)
    assert json.loads(shown) == {"name": HOSTILE}


@pytest.mark.parametrize("output_format", ["full", "concise", "github", "junit"])
def test_the_name_of_a_file_begins_no_line(tmp_path: Path, output_format: str) -> None:
    (tmp_path / f"{HOSTILE}.policy").write_text(BAD)

    result = run("lint", str(tmp_path), "--output-format", output_format)

    assert_harmless(result.out + result.err)
    if output_format == "junit":
        (suite,) = ElementTree.fromstring(result.out)
        assert "x\\x1b]0;" in str(suite.get("name"))


@pytest.mark.parametrize("field", ["name", "namespace"])
def test_an_object_with_a_name_that_the_api_server_refuses_is_skipped(tmp_path: Path, field: str) -> None:
    (tmp_path / "good.policy").write_text(GOOD)
    pod = pod_manifest("web")
    pod["metadata"][field] = HOSTILE
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [node_manifest("a"), pod]}))

    result = run(
        "simulate", "--policy", str(tmp_path / "good.policy"), "--cluster", str(tmp_path / "cluster.json")
    )

    assert f"metadata.{field}: has unprintable characters" in result.err
    assert "forged" not in result.out
    assert_harmless(result.err + ("" if field == "name" else "forged"))
