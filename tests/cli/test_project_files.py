"""`test` and `lint` in CI: a merge request reads no file of the machine through them."""

from pathlib import Path

import pytest

from tests.cli.builders import GOOD, run

TEST = "tests: [{name: x, nodes: [{name: n}], pods: [{name: p}], expect: {node: {p: n}}}]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret-token\n")
    for folder in ("project/.git", "project/tests", "project/policies"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "project/policies/good.policy").write_text(GOOD)
    return tmp_path / "project"


@pytest.mark.parametrize("named", ["policy: ../../token", "policy: /proc/self/environ", "policy: /dev/null"])
def test_a_test_file_reads_only_files_of_its_project(project: Path, named: str) -> None:
    (project / "tests/x_test.yaml").write_text(f"{named}\n{TEST}")

    result = run("test", str(project))

    assert result.code == 2
    assert f"is not below {project}" in result.out and "x_test.yaml:1:" in result.out
    assert "secret" not in result.out


def test_a_cluster_file_is_of_the_project(project: Path) -> None:
    (project / "tests/x_test.yaml").write_text(f"policy: ../policies/good.policy\ncluster: /dev/null\n{TEST}")

    assert f"/dev/null: is not below {project}" in run("test", str(project)).out


def test_policies_in_another_folder_of_the_project_are_tested(project: Path) -> None:
    (project / "tests/x_test.yaml").write_text(f"policy: ../policies/good.policy\n{TEST}")

    assert "1 passed" in run("test", str(project / "tests")).out


@pytest.mark.parametrize("name", ["y.policy", "good.params.yaml"])
def test_a_link_out_of_the_project_is_not_read(project: Path, name: str) -> None:
    (project / "policies" / name).symlink_to("../../token")

    result = run("lint", str(project))

    assert result.code == 2
    assert "secret" not in result.out + result.err
