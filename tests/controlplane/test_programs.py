"""Where the programs are looked up, and the message if they are missing. Nothing is built here:
`go` is not on the PATH.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane import build
from tests.controlplane.programs import find_programs


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache and without `go`."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def put_in_cache(bare: dict[str, str], go_version: str) -> Path:
    folder = (
        Path(bare["XDG_CACHE_HOME"])
        / "policysched"
        / "controlplane"
        / f"{build.sources_key(bare)}-{go_version}"
    )
    return script(folder / "controlplane", "exit 0")


def test_without_go_and_cache_every_program_is_missing_with_a_reason(bare: dict[str, str]) -> None:
    programs = find_programs(bare)

    reason = programs.missing("etcd", "kube-scheduler")
    assert reason is not None
    assert "`go` is not on the PATH" in reason
    with pytest.raises(LookupError, match="kube-apiserver: no control plane"):
        programs["kube-apiserver"]


def test_without_go_a_cached_binary_of_any_go_version_is_used(bare: dict[str, str]) -> None:
    binary = put_in_cache(bare, "go1.99.0")

    programs = find_programs(bare)

    assert programs["kube-scheduler"].argv == (str(binary), "kube-scheduler")
    assert programs["kube-scheduler"].kubernetes_version == build.kubernetes_version(bare)


@pytest.mark.parametrize("release", build.GO_MODS)
def test_the_environment_chooses_the_release(bare: dict[str, str], release: str) -> None:
    bare[build.RELEASE_VARIABLE] = release
    binary = put_in_cache(bare, "go1.99.0")

    programs = find_programs(bare)

    assert programs["kube-scheduler"].argv == (str(binary), "kube-scheduler")
    version = programs["kube-scheduler"].kubernetes_version
    assert version is not None
    assert version.startswith(f"v{release}.")
    others = [build.sources_key({build.RELEASE_VARIABLE: other}) for other in build.GO_MODS]
    assert len(set(others)) == len(build.GO_MODS)


def test_a_release_without_a_go_mod_is_an_error_that_names_the_others(bare: dict[str, str]) -> None:
    with pytest.raises(build.BuildFailed, match=r"KUBERNETES is '1\.2'; it can be 1\.37 or 1\.36"):
        find_programs({**bare, build.RELEASE_VARIABLE: "1.2"})


def test_a_build_reads_the_go_mod_of_its_release(bare: dict[str, str], tmp_path: Path) -> None:
    write = 'while [ "$1" != -o ]; do shift; done; echo "$GOFLAGS" > "$2"'
    script(tmp_path / "bin" / "go", f'test "$1" = env && echo go1.98.0 && exit 0\n{write}')
    bare["PATH"] += os.pathsep + os.environ["PATH"]

    binary = build.make_binary({**bare, build.RELEASE_VARIABLE: "1.36"})

    assert binary.read_text() == "-modfile=kubernetes-1.36.mod\n"


def test_a_binary_of_another_go_version_is_not_used_where_go_can_build_one(
    bare: dict[str, str], tmp_path: Path
) -> None:
    put_in_cache(bare, "go1.99.0")
    script(tmp_path / "bin" / "go", "echo go1.98.0")

    assert build.cached_binary(bare) is None


def test_envtest_programs_take_precedence_over_the_cache(bare: dict[str, str], tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    script(assets / "etcd", "exit 0")
    script(assets / "kube-apiserver", "echo Kubernetes v1.30.1")
    binary = put_in_cache(bare, "go1.99.0")

    programs = find_programs({**bare, "KUBEBUILDER_ASSETS": str(assets)})

    assert programs["etcd"].argv == (str(assets / "etcd"),)
    assert programs["kube-apiserver"].argv == (str(assets / "kube-apiserver"),)
    assert programs["kube-apiserver"].kubernetes_version == "v1.30.1"
    assert programs["kube-scheduler"].argv == (str(binary), "kube-scheduler")


def test_envtest_programs_alone_are_enough_for_an_api_server(bare: dict[str, str], tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    script(assets / "etcd", "exit 0")
    script(assets / "kube-apiserver", "echo Kubernetes v1.30.1")

    programs = find_programs({**bare, "KUBEBUILDER_ASSETS": str(assets)})

    assert programs.missing("etcd", "kube-apiserver") is None
    assert programs.missing("etcd", "kube-scheduler") is not None


def test_a_failed_build_shows_the_output_of_go_and_leaves_nothing(
    bare: dict[str, str], tmp_path: Path
) -> None:
    script(
        tmp_path / "bin" / "go",
        'test "$1" = env && echo go1.98.0 && exit 0\necho "no such module" >&2; exit 1',
    )
    bare["PATH"] += os.pathsep + os.environ["PATH"]

    with pytest.raises(build.BuildFailed, match="exit code 1: no such module"):
        build.make_binary(bare)

    left = Path(bare["XDG_CACHE_HOME"]) / "policysched" / "controlplane"
    assert [path.suffix for path in left.iterdir()] == [".lock"]


def test_a_build_is_atomic_and_is_found_afterwards(bare: dict[str, str], tmp_path: Path) -> None:
    write = 'while [ "$1" != -o ]; do shift; done; echo built > "$2"'
    script(tmp_path / "bin" / "go", f'test "$1" = env && echo go1.98.0 && exit 0\n{write}')
    bare["PATH"] += os.pathsep + os.environ["PATH"]

    binary = build.make_binary(bare)

    assert binary.read_text() == "built\n"
    assert build.cached_binary(bare) == binary


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("docs,control-plane", "1 error")])
def test_a_missing_program_skips_a_test_unless_it_is_required(
    bare: dict[str, str], required: str, outcome: str
) -> None:
    test = "tests/e2e/test_control_plane.py::test_a_request_without_credentials_is_refused"

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        env={**bare, "POLICYSCHED_REQUIRE": required},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )

    assert outcome in run.stdout.splitlines()[-1], run.stdout + run.stderr
    assert "is not on the PATH" in run.stdout
