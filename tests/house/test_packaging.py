"""The installed package is complete: it contains the grammar, the policies and the schemas."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.image.layers import PLATFORMS
from policysched import __version__, data_files
from policysched.cli import OFFLINE_PACKAGES
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
    imported = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name != "vendored.json"
    }
    assert imported == hashes
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


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that an installation of `requirements` has."""
    imported: set[str] = set()
    waiting = list(requirements)
    while waiting:
        required = Requirement(waiting.pop())
        name = canonicalize_name(required.name)
        if name not in imported and (required.marker is None or required.marker.evaluate({"extra": ""})):
            imported.add(name)
            waiting += requires(name) or []
    return imported


def not_in_the_core() -> list[str]:
    """Everything importable in this environment that `pip install policysched` would not bring."""
    core = closure(PROJECT["project"]["dependencies"])
    return sorted(
        package
        for package, distributions in packages_distributions().items()
        if package != "policysched" and core.isdisjoint(map(canonicalize_name, distributions))
    )


def run_with_the_core_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {not_in_the_core()!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from policysched.cli import main\n"
        f"main({list(arguments)!r})"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_core_is_small() -> None:
    try:
        core = closure(PROJECT["project"]["dependencies"])
    except PackageNotFoundError as error:
        pytest.fail(f"not installed: {error}")

    assert {"lark", "click"} <= core
    assert {"numpy", "aiohttp", "kubernetes", "cryptography", "cel-expr-python"}.isdisjoint(core)
    assert {"numpy", "aiohttp", "kubernetes", "rich"} <= set(not_in_the_core())


@pytest.mark.parametrize("machine", [platform.machine for platform in PLATFORMS.values()])
def test_the_image_evaluates_device_selectors_on_each_processor(machine: str) -> None:
    offline = map(Requirement, PROJECT["project"]["optional-dependencies"]["offline"])
    (cel,) = (requirement for requirement in offline if requirement.name == "cel-expr-python")

    assert cel.marker is not None
    assert cel.marker.evaluate({"platform_machine": machine})
    assert not cel.marker.evaluate({"platform_machine": "riscv64"}), "there is no wheel for it"


@pytest.mark.parametrize(
    "arguments",
    [
        "lint policies deploy",
        "lint --output-format sarif policies/riya.policy",
        "fmt --check policies",
        "rule PS201",
        "completion bash",
        "version",
        "--help",
    ],
)
def test_a_command_of_the_core_needs_no_extra(arguments: str) -> None:
    done = run_with_the_core_alone(*arguments.split())

    assert done.returncode == 0, done.stderr


def test_import_config_needs_no_extra(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: []\n"
    )

    done = run_with_the_core_alone("import-config", str(file))

    assert "include kube_default" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --policies a/b", "run needs aiohttp, which is not installed: pip install 'policysched[run]'"),
        ("sandbox", "sandbox needs jsonpatch, which is not installed: pip install 'policysched[run]'"),
        (
            "show policies/riya.policy",
            "show needs numpy, which is not installed: pip install 'policysched[offline]'",
        ),
        (
            "lint --config deploy/settings.yaml policies/riya.policy",
            "lint needs aiohttp, which is not installed: pip install 'policysched[offline]'",
        ),
    ],
)
def test_another_command_says_what_to_install(arguments: str, message: str) -> None:
    done = run_with_the_core_alone(*arguments.split())

    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"policysched: {message}\n")


def test_every_requirement_of_a_message_is_an_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    projects = packages_distributions()

    assert {canonicalize_name(Requirement(text).name) for text in extras["offline"]} == {
        canonicalize_name(project) for package in OFFLINE_PACKAGES for project in projects[package]
    }
    assert "policysched[offline]" in extras["run"]


def test_a_package_without_its_grammar_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policysched").mkdir()
    monkeypatch.setattr(data_files, "__file__", str(tmp_path / "policysched" / "resources.py"))

    assert not data_file("grammar", "policy.lark").exists()
