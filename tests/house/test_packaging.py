"""The installed package is complete: it contains the grammar, the policies and the schemas."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from policysched import __version__, data_files
from policysched.data_files import data_file

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FORCED: dict[str, str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]


def test_the_project_and_the_package_have_the_same_version() -> None:
    assert PROJECT["project"]["version"] == __version__


@pytest.mark.parametrize(
    "path", ["grammar/policy.lark", "policies/kube-default.policy", "policies/demo/workload.yaml"]
)
def test_a_shipped_file_is_found_in_the_checkout(path: str) -> None:
    assert data_file(*path.split("/")).read_text(encoding="utf-8")


def test_the_wheel_contains_all_data_folders_that_the_code_reads() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "policysched").rglob("*.py"))

    asked_for = set(re.findall(r'\bdata_file\("(\w+)"', code))

    assert {"grammar", "policies"} <= asked_for
    assert [folder for folder in FORCED if not (ROOT / folder).is_dir()] == []
    assert {folder: f"policysched/_data/{folder}" for folder in FORCED} == FORCED
    assert asked_for <= set(FORCED), "a file that the wheel does not take along"


def test_vendored_files_are_those_that_were_recorded() -> None:
    folder = ROOT / "policysched/serve/page/vendor"
    recorded = json.loads((folder / "vendored.json").read_text(encoding="utf-8"))

    hashes = {name: sha for library in recorded.values() for name, sha in library["files"].items()}
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != "vendored.json"
    }
    assert found == hashes
    for name, library in recorded.items():
        assert library["version"] and f"{name}.LICENSE.txt" in library["files"], name


def test_the_page_loads_nothing_from_elsewhere() -> None:
    """No file of ours names another host; the Content-Security-Policy would refuse it too."""
    folder = ROOT / "policysched/serve/page"
    own = [
        file
        for file in folder.rglob("*")
        if file.suffix in (".html", ".js", ".css") and "vendor" not in file.parts
    ]

    assert len(own) > 8
    assert [
        file.name for file in own if re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", file.read_text())
    ] == []
    assert [
        file.name
        for file in own
        if re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", file.read_text())
    ] == []
    assert [file.name for file in own if len(file.read_text().splitlines()) > 450] == []


def installed_in(folder: Path) -> Path:
    """The package laid out as the wheel lays it out."""
    package = folder / "policysched"
    shutil.copytree(ROOT / "policysched", package, ignore=shutil.ignore_patterns("__pycache__"))
    for source, place in FORCED.items():
        shutil.copytree(ROOT / source, folder / place)
    return folder


def test_a_package_without_its_checkout_lints_and_finds_its_policies(tmp_path: Path) -> None:
    folder = installed_in(tmp_path / "site")
    script = (
        "import policysched, sys\n"
        "from policysched.data_files import data_file\n"
        f"assert policysched.__file__.startswith({str(folder)!r}), policysched.__file__\n"
        "from policysched.cli import main\n"
        "main(['lint', str(data_file('policies'))])"
    )

    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(folder), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "no findings in" in done.stderr


def test_a_package_without_its_grammar_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policysched").mkdir()
    monkeypatch.setattr(data_files, "__file__", str(tmp_path / "policysched" / "resources.py"))

    assert not data_file("grammar", "policy.lark").exists()
