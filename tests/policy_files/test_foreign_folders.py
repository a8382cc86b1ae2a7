"""Folders of tools below a given folder are skipped."""

from pathlib import Path

import pytest

from policysched.files import FOREIGN_FOLDERS
from policysched.policy_files.sources import load_policy_sources
from policysched.policytest.runner import find_test_files

POLICY = "policy own version 1\nfilter node_ports\n"


@pytest.mark.parametrize("folder", sorted(FOREIGN_FOLDERS))
def test_files_of_tools_are_neither_policies_nor_tests(tmp_path: Path, folder: str) -> None:
    for parent in (tmp_path / "own", tmp_path / "sub" / folder / "deep"):
        parent.mkdir(parents=True)
        (parent / "a.policy").write_text(POLICY, encoding="utf-8")
        (parent / "a_test.yaml").write_text("", encoding="utf-8")

    tests = find_test_files([str(tmp_path)])

    assert tests == [str(tmp_path / "own" / "a_test.yaml")]
    assert [policies.path for policies in load_policy_sources([str(tmp_path)])] == [str(tmp_path / "own")]
    if folder != ".git":  # nothing below it is read: tests/cli/test_project_files.py
        named = find_test_files([str(tmp_path / "sub" / folder)])
        assert named == [str(tmp_path / "sub" / folder / "deep" / "a_test.yaml")]
