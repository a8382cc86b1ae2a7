"""`test` and `lint` in CI: a merge request reads no file of the machine through them."""

import os
from pathlib import Path

import pytest

from tests.cli.builders import GOOD, run

TEST = "tests: [{name: x, nodes: [{name: n}], pods: [{name: p}], expect: {node: {p: n}}}]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("secret-token\n")
    for folder in ("project/.git", "project/tests", "project/policies"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "project/.git/config").write_text("secret-token-of-the-clone\n")
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


def test_a_submodule_is_a_project_of_its_own(project: Path) -> None:
    (project / "sub/tests").mkdir(parents=True)
    (project / "sub/.git").write_text("gitdir: ../.git/modules/sub\n")
    (project / "sub/own.policy").write_text(GOOD)
    (project / "sub/tests/x_test.yaml").write_text(f"policy: ../../policies/good.policy\n{TEST}")
    (project / "sub/tests/y_test.yaml").write_text(f"policy: ../own.policy\n{TEST}")
    (project / "tests/z_test.yaml").write_text(f"policy: ../sub/own.policy\n{TEST}")

    assert f"is not below {project / 'sub'}" in run("test", str(project / "sub/tests/x_test.yaml")).out
    assert "1 passed" in run("test", str(project / "sub/tests/y_test.yaml")).out
    assert "1 passed" in run("test", str(project / "tests")).out


@pytest.mark.parametrize("target", ["../../token", "../.git/config"])
@pytest.mark.parametrize("name", ["y.policy", "good.params.yaml"])
def test_a_link_out_of_the_project_is_not_read(project: Path, name: str, target: str) -> None:
    (project / "policies" / name).symlink_to(target)

    result = run("lint", str(project))

    assert result.code == 2
    assert "secret" not in result.out + result.err


@pytest.mark.parametrize("target", ["../../token", "../.git/config", "/proc/self/environ"])
def test_a_test_file_that_is_a_link_out_of_the_project_is_not_read(project: Path, target: str) -> None:
    (project / "tests/x_test.yaml").symlink_to(target)

    result = run("test", str(project))

    assert result.code == 2
    assert "x_test.yaml: is " in result.out and "secret" not in result.out + result.err


@pytest.mark.parametrize("command", [("lint",), ("fmt", "--check"), ("test",)])
@pytest.mark.parametrize("target", ["../../token", "../.git/config", "../.."])
def test_a_link_that_a_pattern_of_the_shell_names_does_not_lead_out_of_its_repository(
    project: Path, command: tuple[str, ...], target: str
) -> None:
    link = project / "policies/y.policy"
    link.symlink_to(target)
    (project.parent / "z.policy").write_text("secret")
    (project.parent / "z_test.yaml").write_text("secret: [")

    result = run(*command, str(link))

    assert result.code == 2
    assert "y.policy: is " in result.out + result.err
    assert "secret" not in result.out + result.err


def test_what_is_named_may_be_anywhere_and_a_link_may_lead_into_the_repository(project: Path) -> None:
    (outside := project.parent / "link.policy").symlink_to("project/policies/good.policy")
    (inside := project / "tests/y.policy").symlink_to("../policies/good.policy")

    assert run("lint", str(outside), str(inside)).code == 0
    read, write = os.pipe()
    os.write(write, GOOD.encode())
    os.close(write)
    assert run("lint", f"/dev/fd/{read}").code == 0, "as of `lint <(...)`"
    os.close(read)
