"""`policysched rule` from end to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS
from tests.cli.builders import run


def test_a_rule_is_explained_by_code_and_by_name() -> None:
    by_code, by_name = run("rule", "ps110"), run("rule", "equals-sign")

    assert by_code.code == 0
    assert by_code.out == by_name.out
    assert by_code.out.startswith("PS110 equals-sign (error)\n")
    assert "Bad:" in by_code.out and "Good:" in by_code.out


def test_all_lists_each_code_once() -> None:
    done = run("rule", "--all")

    assert [line.split()[0] for line in done.out.splitlines()] == list(DIAGNOSTIC_DOCS)


def test_json_has_the_examples() -> None:
    (entry,) = json.loads(run("rule", "PS110", "--output-format", "json").out)

    assert entry["name"] == "equals-sign"
    assert entry["bad"] != entry["good"]


def test_an_unknown_code_is_reported_in_one_line() -> None:
    done = run("rule", "equal-sign")

    assert done.code == 2
    assert (
        done.err
        == "policysched: `equal-sign` is neither the code nor the name of a diagnostic; did you mean `equals-sign`?\n"
    )


def test_the_large_examples_are_cut() -> None:
    assert max(map(len, run("rule", "PS005").out.splitlines())) < 200


@pytest.mark.parametrize("args", [["rule", "--all"], ["rule", "PS110"], ["lint", "-"]])
def test_a_full_disk_is_reported_in_one_line(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "policysched", *args],
            input="filter",
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 2
    assert done.stderr == "policysched: cannot write the output: No space left on device\n"
