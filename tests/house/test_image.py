"""The container image, checked without building it: its inputs exist and its user can run the program."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

WITHOUT_A_HOME = """\
import os, pwd, sys

def nobody(uid):
    raise KeyError(uid)

pwd.getpwuid = nobody
os.environ.pop("HOME", None)
sys.argv = ["policysched", "run", "--policies", "a/b", "--kubeconfig", "/no/such/file"]
from policysched.cli import main
main()
"""


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_files_copied_into_the_image_exist_and_are_not_ignored() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}

    assert copied()
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    assert set(copied()) == let_through


def test_all_build_inputs_of_the_package_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]

    needed = {
        "pyproject.toml",
        "requirements.lock",
        project["project"]["readme"],
        *project["project"]["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
    }

    assert needed == set(copied())


def test_the_user_of_the_image_is_that_of_the_manifests_and_has_a_home() -> None:
    manifest: Any = yaml.safe_load((ROOT / "deploy" / "deployment.yaml").read_text())
    context = manifest["spec"]["template"]["spec"]["securityContext"]

    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)

    assert user is not None
    assert (int(user[1]), int(user[2])) == (context["runAsUser"], context["runAsGroup"])
    assert re.search(r"^ENV .*\bHOME=/", DOCKERFILE, re.MULTILINE)


def test_a_user_without_a_passwd_entry_can_run_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}

    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_HOME], env=environment, capture_output=True, text=True, timeout=60
    )

    assert process.stderr == "policysched: /no/such/file: no such kubeconfig file\n"
    assert process.returncode == 2
