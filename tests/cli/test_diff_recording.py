"""`diff --recording` as its users run it."""

import json
from pathlib import Path

import jsonschema
import pytest

from policysched.comparison.rerun import Rerun
from policysched.schemas import schema
from tests.cli.builders import on_a_terminal, run
from tests.comparison.clusters import EDITS, POLICY, edited
from tests.comparison.workloads import random_workload, record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    record(random_workload(1), POLICY, folder / "recording")
    (folder / "old.policy").write_text(POLICY)
    (folder / "new.policy").write_text(edited(EDITS[:1]))
    return folder


def arguments(folder: Path, *args: str, new: str = "new.policy") -> list[str]:
    paths = [str(folder / "old.policy"), str(folder / new)]
    return ["diff", *paths, "--recording", str(folder / "recording"), *args]


def test_a_changed_line_is_named_with_its_pods(folder: Path) -> None:
    different = run(*arguments(folder, "--output-format", "json"))

    page = json.loads(different.out)
    jsonschema.validate(page, schema("diff"))
    assert different.code == 2
    assert page["as_recorded"]["same"] == page["as_recorded"]["pods"] > 20
    assert [change["location"] for change in page["changes"]] == ["new.policy:3"]
    assert page["changed_pods"] and all(pod["causes"] == [[1]] for pod in page["changed_pods"])
    assert page["after"]["placement_waits"]["longest_s"] > 0


def test_the_recorded_policy_changes_nothing_and_a_condition_decides(folder: Path) -> None:
    same = run(*arguments(folder, new="old.policy"))
    condition = run(*arguments(folder, "--fail-on", "newly_evicted > 1000"))

    assert (same.code, condition.code) == (0, 0)
    assert same.out.startswith("No pod changes, of ")
    assert "get the node of the recording" in same.err


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_and_a_page_show_it(folder: Path, tmp_path: Path, columns: int) -> None:
    page = tmp_path / "diff.html"

    output = on_a_terminal(
        *arguments(folder, "--fail-on", "changed > 100%", "--html", str(page)), columns=columns
    )

    assert max(len(line) for line in output.split("\n")) <= columns
    assert "wait of placed pods, mean" in output
    assert "wait of placed pods, mean" in page.read_text()


@pytest.mark.parametrize(
    "args",
    [
        ("--cluster", "cluster.yaml"),
        ("--placed",),
        ("--from", "2026-01-01T00:00:00Z", "--last", "1h"),
    ],
)
def test_options_of_a_cluster_are_usage_errors(folder: Path, args: tuple[str, ...]) -> None:
    assert run(*arguments(folder, *args)).code == 1


def test_the_part_of_a_recording_needs_one(folder: Path) -> None:
    done = run("diff", str(folder / "old.policy"), str(folder / "new.policy"), "--last", "1h")

    assert (done.code, "need --recording" in done.err) == (1, True)


def test_what_cannot_be_run_again_exits_with_1_and_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = run("diff", *[str(folder / "old.policy")] * 2, "--recording", str(tmp_path / "nowhere"))
    monkeypatch.setattr(Rerun, "apply", lambda _self, _item: {}["gone"])
    contradicting = run(*arguments(folder))
    monkeypatch.setattr(Rerun, "apply", lambda _self, _item: 1 // 0)
    malformed = run(*arguments(folder))

    for done, part in (
        (nowhere, "no such folder"),
        (contradicting, "contradicts itself: KeyError 'gone'"),
        (malformed, "contradicts itself: ZeroDivisionError"),
    ):
        assert done.code == 1
        assert part in done.err
        assert len(done.err.strip().split("\n")) == 1, done.err


def test_a_recording_that_is_cut_off_is_compared_up_to_there(folder: Path, tmp_path: Path) -> None:
    (whole,) = (folder / "recording").iterdir()
    (tmp_path / "recording").mkdir()
    (tmp_path / "recording" / whole.name).write_bytes(whole.read_bytes()[:-20])
    for name in ("old.policy", "new.policy"):
        (tmp_path / name).write_text((folder / name).read_text())

    done = run(*arguments(tmp_path))

    assert done.code in (0, 2)
    assert "cut off" in done.err
