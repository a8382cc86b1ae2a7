"""The commands of docs/install.md."""

import os
import re
import subprocess
from pathlib import Path

from tests.controlplane.waiting import PATIENCE_S
from tests.e2e.deployed import DEPLOY
from tests.e2e.program import BIN

REPOSITORY = DEPLOY.parent


def commands(title: str) -> str:
    """The shell block of a section."""
    page = (REPOSITORY / "docs" / "install.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None, title
    return block.group(1)


def run_section(title: str, kubeconfig: Path, folder: Path, *programs: Path) -> str:
    """The output of a section's commands, run in `folder`, where programs keep their caches as well. The folders `programs` are
    first on the path."""
    environment = {
        **os.environ,
        "HOME": str(folder),
        "KUBECONFIG": str(kubeconfig),
        "PATH": os.pathsep.join([*map(str, programs), str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands(title)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
