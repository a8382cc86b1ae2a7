"""`diff` as its users run it: files in, text, JSON or a page out, exit codes."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from policysched.cli import main
from policysched.schemas import schema
from tests.builders import node_manifest, pod_manifest
from tests.cli.builders import on_a_terminal
from tests.comparison.clusters import EDITS, POLICY, edited

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>]]>\x1b[31m\u202e&amp;'


@pytest.fixture
def files(tmp_path: Path) -> Path:
    nodes = [
        node_manifest(f"node-{pool}", labels={"pool": pool, "topology.kubernetes.io/zone": HOSTILE + pool})
        for pool in "ab"
    ]
    pods = [pod_manifest(f"web-{number}", cpu="500m", scheduler="test") for number in range(4)]
    placed = pod_manifest("db", cpu="500m", scheduler="test", node="node-b", phase="Running")
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([*nodes, *pods, placed]))
    (tmp_path / "old.policy").write_text(POLICY)
    (tmp_path / "new.policy").write_text(edited(EDITS[:3]))
    return tmp_path


def run(files: Path, *args: str, new: str = "new.policy") -> Result:
    paths = [str(files / "old.policy"), str(files / new), "--cluster", str(files / "cluster.yaml")]
    return CliRunner().invoke(main, ["diff", *paths, *args])


def test_different_policies_exit_with_2_and_equal_ones_with_0(files: Path) -> None:
    different, same = run(files), run(files, new="old.policy")

    assert (different.exit_code, same.exit_code) == (2, 0)
    assert "No pod changes, of 4 pods" in same.stdout


def test_a_condition_decides_about_the_exit_code(files: Path) -> None:
    holds, fails = run(files, "--fail-on", "moved > 5%"), run(files, "--fail-on", "newly_pending > 3")
    wrong = run(files, "--fail-on", "moved > 5m")

    assert (holds.exit_code, fails.exit_code, wrong.exit_code) == (2, 0, 1)
    assert "does not hold" in fails.stderr
    assert "column 9" in wrong.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--cluster", "nowhere.yaml"),
        ("--kubeconfig", "nowhere.conf"),
        ("--max-simulations", "-1"),
        ("--metrics", "nowhere.yaml"),
    ],
)
def test_what_cannot_run_exits_with_1_and_one_line(files: Path, args: tuple[str, ...]) -> None:
    result = run(files, *args)

    assert result.exit_code == 1
    assert len(result.stderr.strip().split("\n")) == 1, result.stderr


def test_a_policy_with_errors_exits_with_1(files: Path) -> None:
    (files / "new.policy").write_text("policy test version 1\nfilter f require nonsense\n")

    result = run(files)

    assert result.exit_code == 1
    assert "new.policy:2" in result.stderr


def test_the_json_has_the_schema_and_every_changed_pod(files: Path) -> None:
    result = run(files, "--output-format", "json", "--fail-on", "changed > 100%")

    record = json.loads(result.stdout)
    jsonschema.validate(record, schema("diff"))
    assert result.exit_code == 0
    assert sum(record["counts"].values()) == len(record["changed_pods"]) > 0
    assert record["fail_on"] == {"condition": "changed > 100%", "holds": False}


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_causes_with_their_lines_within_its_width(files: Path, columns: int) -> None:
    paths = [str(files / name) for name in ("old.policy", "new.policy", "cluster.yaml")]

    output = on_a_terminal(
        "diff", *paths[:2], "--cluster", paths[2], "--fail-on", "changed > 100%", columns=columns
    )

    assert max(len(line) for line in output.split("\n")) <= columns
    assert re.search(r"new\.policy:\d+", output)


def test_placed_pods_are_placed_again_on_request(files: Path) -> None:
    without, also = (
        json.loads(run(files, *args, "--output-format", "json").stdout) for args in ((), ("--placed",))
    )

    assert (without["pods"], also["pods"]) == (4, 5)
    assert "1 placed pod placed again" in also["notes"]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_in_which_a_hostile_label_stays_text(files: Path) -> None:
    target = files / "diff.html"

    run(files, "--html", str(target))

    text = target.read_text()
    page = _Page()
    page.feed(text)
    assert "svg" in page.tags
    assert not page.tags & {"script", "img", "link", "iframe", "object", "a"}
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href")}
    assert "alert(1)" in page.text
    assert not re.search(r"[\x1b\u202e]", text)
    assert not re.search(r"https?://", text)


def test_a_page_without_escapes_is_detected(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: text is written as markup."""
    monkeypatch.setattr("xml.etree.ElementTree._escape_cdata", lambda text: text)
    monkeypatch.setattr("xml.etree.ElementTree._escape_attrib_html", lambda text: text)

    with pytest.raises(AssertionError):
        test_the_page_is_one_file_in_which_a_hostile_label_stays_text(files)
