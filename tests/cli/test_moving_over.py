"""The commands under *Moving over* in docs/seeds, as a user of each system runs them, on a sandbox."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from policysched.lint.linter import lint
from policysched.policy_files.sources import load_policy_sources
from policysched.text import Severity
from tests.cli.sandbox_kubectl import PATIENCE_S, Kubectl
from tests.cli.sandbox_kubectl import cluster as cluster
from tests.house.docs import ROOT

PAGES = sorted(path for path in (ROOT / "docs" / "seeds").glob("*.md") if path.stem != "README")
WITHOUT_COMMANDS = {"annotators"}

OLD_SCHEDULER = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: kube-system}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec: {containers: [{name: scheduler, image: "old:1"}]}
"""


def commands(page: Path) -> list[str]:
    section = page.read_text(encoding="utf-8").partition("\n## Moving over\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def user(cluster: Kubectl) -> Iterator[Callable[[str, Path], subprocess.CompletedProcess[str]]]:
    """A shell in a folder with the shipped policies; kubectl and policysched are on its path."""
    cluster("create", "namespace", "policysched")
    cluster("-n", "policysched", "create", "configmap", "policies", "--from-literal=kept.policy=kept")
    cluster("create", "deployment", "web", "--image=web:1")
    for name in ("riya-scheduler", "custom-scheduler", "my-scheduler", "yoda-scheduler"):
        cluster("apply", "-f", "-", stdin=OLD_SCHEDULER.replace("NAME", name))

    def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
        (folder / "policies").symlink_to(ROOT / "policies")
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        program = bin_folder / "policysched"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m policysched "$@"\n')
        program.chmod(0o755)
        path = os.pathsep.join((str(bin_folder), str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {**cluster.environment, "PATH": path, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    yield run


def test_every_page_has_commands() -> None:
    assert {page.stem for page in PAGES if not commands(page)} == WITHOUT_COMMANDS


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_the_commands_add_the_policy_and_keep_the_others(
    page: Path,
    cluster: Kubectl,
    user: Callable[[str, Path], subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    empty = '{"metadata": {"name": "policies"}, "apiVersion": "v1", "kind": "ConfigMap", "data": {"kept.policy": "kept"}}'
    cluster("-n", "policysched", "replace", "-f", "-", stdin=empty)

    done = user("".join(commands(page)), tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    after = config_map(cluster)
    assert after["kept.policy"] == "kept"
    assert [key for key in after if key.endswith(".policy")] != ["kept.policy"], "no policy was added"
    assert errors_of(after, tmp_path) == []


def test_a_command_that_fails_is_detected(
    user: Callable[[str, Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = user("policysched lint policies/no-such.policy\ntrue\n", tmp_path)

    assert done.returncode == 2


def config_map(cluster: Kubectl) -> dict[str, str]:
    data: dict[str, str] = yaml.safe_load(
        cluster("-n", "policysched", "get", "configmap", "policies", "-o", "yaml")
    )["data"]
    return data


def errors_of(data: dict[str, str], folder: Path) -> list[str]:
    manifest = folder / "stored.yaml"
    stored = {key: text for key, text in data.items() if key != "kept.policy"}
    manifest.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "p"}, "data": stored})
    )
    findings = lint(load_policy_sources((str(manifest),)))
    return [str(diagnostic) for diagnostic in findings if diagnostic.severity >= Severity.ERROR]
