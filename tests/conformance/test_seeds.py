"""The policies that replace other systems give the answers of those systems' recorded cases."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policysched.data_files import data_file
from tests.cli.builders import run
from tests.conformance import seeds
from tests.conformance.seed_systems import choices as listed
from tests.conformance.seed_systems import worlds
from tests.conformance.seed_systems.choices import Choice, choices
from tests.conformance.seed_systems.comparing import Difference, Tolerance, differences

SEEDS = Path(__file__).parent / "cases" / "seeds"
FURTHER = Path(__file__).parent / "cases" / "seeds_further"
"""Cases of this project, written from the descriptions of the systems."""
POLICIES = Path(data_file("policies"))


@dataclass(frozen=True)
class SeedSystem:
    """`cases`: the number of cases in `seeds`. `page`: of docs/seeds, which lists the intended
    differences.
    """

    seeds: str
    further: str
    page: str
    cases: int


SYSTEMS = (
    SeedSystem("annotators.json", "annotators.json", "annotators.md", 4),
    SeedSystem("congestion_foo.json", "foo.json", "congestion.md", 6),
    SeedSystem("extension_article.json", "article.json", "kube-1-17.md", 21),
    SeedSystem("kuberl.json", "kuberl.json", "kube-rl.md", 7),
    SeedSystem("networktraffic.json", "network.json", "network-traffic.md", 10),
    SeedSystem("nthu_lab.json", "lab.json", "nthu-lab.md", 8),
    SeedSystem("pigeon.json", "pigeon.json", "pigeon.md", 12),
    SeedSystem("riya.json", "riya.json", "riya.md", 21),
    SeedSystem("safe.json", "safe.json", "safe.md", 21),
    SeedSystem("stupid_scheduler.json", "stupid.json", "stupid.md", 6),
    SeedSystem("yoda.json", "yoda.json", "yoda.md", 10),
)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.page.removesuffix(".md"))
def test_every_case_is_answered_as_expected_or_its_page_lists_the_difference(system: SeedSystem) -> None:
    known = choices()

    outcomes = seeds.outcomes(SEEDS / system.seeds, known)
    further = seeds.outcomes(FURTHER / system.further, known)

    unlisted = [
        (outcome.case, str(difference))
        for outcome in [*outcomes, *further]
        for difference in outcome.unlisted
    ]
    used = {choice for outcome in [*outcomes, *further] for _, choice in outcome.listed}
    assert unlisted == []
    assert used == {choice for choice in known if choice.page == system.page}, (
        "a page lists a difference that no case shows, or that of another system"
    )
    assert len(outcomes) == system.cases
    assert further


def test_every_file_of_cases_and_every_page_with_differences_belongs_to_one_system() -> None:
    def names(folder: Path) -> list[str]:
        return sorted(path.name for path in folder.glob("*.json"))

    assert names(SEEDS) == sorted(system.seeds for system in SYSTEMS)
    assert names(FURTHER) == sorted(system.further for system in SYSTEMS)
    assert {choice.page for choice in choices()} <= {system.page for system in SYSTEMS}
    assert sum(system.cases for system in SYSTEMS) == 126


def test_an_unlisted_difference_is_printed_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document: dict[str, Any] = json.loads((SEEDS / "networktraffic.json").read_text())
    document["cases"][0]["expected"] = {"normalized": {"n-max": 0, "n1": 31}}
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({**document, "cases": document["cases"][:1]}))

    code = seeds.main([str(path)])

    out = capsys.readouterr().out
    assert code == 1
    assert "normalized.n1: expected 31, found 30" in out
    assert out.splitlines()[-1] == "0 of 1 cases as expected, 0 differ by choice (listed)"


def test_an_unreadable_file_or_case_is_reported_and_the_others_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document: dict[str, Any] = json.loads((SEEDS / "networktraffic.json").read_text())
    good = document["cases"][0]
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "some.json").write_text(
        json.dumps({"cases": ["no case", {**good, "expected": None}, good], "system": document["system"]})
    )
    (tmp_path / "none.json").write_text(json.dumps({**document, "cases": []}))

    code = seeds.main([str(path) for path in [tmp_path / "gone.json", *sorted(tmp_path.glob("*.json"))]])

    output = capsys.readouterr()
    assert code == 2
    assert [line.removeprefix(f"{tmp_path}/").split(":")[:2] for line in output.err.splitlines()] == [
        ["gone.json", " cannot be read"],
        ["empty.json", " cannot be read"],
        ["list.json", " no file of cases"],
        ["some.json", " case 1 is no object"],
        ["some.json", " case nt-doc-example"],
    ]
    assert output.out.splitlines() == [
        "ok      nt-doc-example",
        "1 of 1 cases as expected, 0 differ by choice (listed)",
    ]


def test_the_count_of_unlisted_differences_precedes_the_last_line(tmp_path: Path) -> None:
    document: dict[str, Any] = json.loads((SEEDS / "networktraffic.json").read_text())
    document["cases"][0]["expected"] = {"normalized": {"n1": 31}}
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({**document, "cases": document["cases"][:1]}))

    done = subprocess.run(
        [sys.executable, seeds.__file__, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 of 1 cases as expected, 0 differ by choice (listed)"


def test_a_policy_with_another_formula_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The planted bug: a policy with inverted scores."""
    text = (POLICIES / "network-traffic.policy").read_text()
    (tmp_path / "network-traffic.policy").write_text(text.replace("lower floor", "higher floor"))
    monkeypatch.setattr(worlds, "POLICIES", tmp_path)
    worlds._checked.cache_clear()
    try:
        code = seeds.main([str(SEEDS / "networktraffic.json")])
    finally:
        worlds._checked.cache_clear()

    assert code == 1
    assert "DIFFERS nt-log" in capsys.readouterr().out


def test_a_choice_covers_the_cases_and_keys_that_its_patterns_match(tmp_path: Path) -> None:
    (tmp_path / "some.md").write_text(
        "# Some\n\n| `x` | `y` | not in the section |\n\n## Where it differs\n\n| case | key | why |\n|---|---|---|\n"
        "| `a-*` | `log` | it has events |\n\n## After\n\n| `z` | `z` | z |\n"
    )

    choices = listed.choices(tmp_path)

    assert choices == [Choice("some.md", "a-*", "log", "it has events")]
    assert (
        choices[0].covers("a-1", "log"),
        choices[0].covers("a-1", "logs"),
        choices[0].covers("b", "log"),
    ) == (
        True,
        False,
        False,
    )


def test_behaviour_of_the_original_is_compared_only_where_it_is_answered() -> None:
    expected = {"seed": "panics", "recommended": {"a": 100}}

    assert differences(expected, {"recommended": {"a": 100}}, Tolerance()) == []
    assert differences(expected, {"recommended": {"a": 100}, "seed": 3}, Tolerance()) == [
        Difference("seed", "panics", 3)
    ]
    assert len(differences({"seed": "panics"}, {}, Tolerance())) == 1


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        (0.5, 0.5004, True),
        (0.5, 0.502, False),
        (5, 6, False),
        (True, 1, False),
        ([1, 2], [1], False),
        ([1, 2], [2, 1], False),
        ({"feasible": ["a", "b"]}, {"feasible": ["b", "a"]}, True),
        ({"feasible": ["a", "b"]}, {"feasible": ["b", "b"]}, False),
        ({"a": None}, {}, False),
        (None, 0, False),
    ],
)
def test_only_floats_have_a_tolerance(expected: Any, actual: Any, equal: bool) -> None:
    assert (differences({"x": expected}, {"x": actual}, Tolerance(absolute=0.001)) == []) is equal


def test_every_shipped_policy_has_passing_tests_that_cover_every_outcome() -> None:
    result = run("test", str(POLICIES), "--threshold", "100")

    tested = {path.name.removesuffix("_test.yaml") for path in POLICIES.glob("*_test.yaml")}
    assert result.code == 0, result.out + result.err
    assert tested == {path.stem for path in POLICIES.glob("*.policy")}
