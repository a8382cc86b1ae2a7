"""The commands of docs/tutorial.md, as written, in bash. Different are: `make setup` (the environment exists), the port, and the
editor, which makes the change that the text asks for."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.sandbox_kubectl import PATIENCE_S
from tests.controlplane.process import free_ports
from tests.controlplane.waiting import wait_for
from tests.house.docs import ROOT

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def commands(section: str) -> list[str]:
    """The shell blocks of a section, by the beginning of its heading."""
    text = PAGE.partition(f"\n## {section}")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who follows the tutorial in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self._open: list[subprocess.Popen[bytes]] = []
        (folder / ".venv").symlink_to(sys.prefix)

    def types(self, block: str, *, editor: str = "") -> subprocess.Popen[bytes]:
        """Into a new terminal; what it prints goes to a file of its own."""
        block = block.replace("make setup\n", "").replace("10259", str(self.port))
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("POLICYSCHED_")
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=self.folder,
                env={**environment, "PYTHONPATH": str(ROOT), "EDITOR": editor, "HOME": str(self.folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._open.append(process)
        return process

    def runs(self, block: str, *, editor: str = "") -> str:
        """The same, to its end. Returns what it printed."""
        before = len(self.text())
        exit_code = self.types(self.terminal_3 + block, editor=editor).wait(PATIENCE_S)
        assert exit_code == 0, self.text()
        return self.text()[before:]

    @property
    def terminal_3(self) -> str:
        return commands("3.")[0].splitlines()[0] + "\n"

    @property
    def log(self) -> Path:
        return self.folder / "terminals"

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for_text(self, words: str) -> None:
        wait_for(lambda: words in self.text(), f"`{words}` in a terminal: {self.text()}")

    def closes(self) -> None:
        for process in self._open:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        reader.closes()


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    (start,), (write,) = commands("1."), commands("2.")
    create, edit, restart = commands("3.")
    (dry_run,), (look,) = commands("4."), commands("5.")

    reader.types(start)
    wait_for(lambda: (reader.folder / "sandbox.kubeconfig").exists(), "the sandbox's kubeconfig")
    reader.types(write)
    reader.wait_for_text("acquired the lease; leading")
    first = reader.runs(create)
    active = reader.text().count("is active")
    reader.runs(edit, editor="sed -i s/zone-a/zone-b/")
    wait_for(lambda: reader.text().count("is active") > active, "the edit to be active")
    reader.runs(restart)
    wait_for(lambda: "node-2" not in reader.runs("kubectl get pods -o wide"), "the old pods to be gone")
    second = reader.runs("kubectl get pods -o wide")
    explained = reader.runs(dry_run)
    reader.runs(edit, editor="sed -i s/reject/rejct/")
    wait_for(lambda: "rejct" in reader.runs(look), "the event about the mistake")

    assert nodes_of_running_pods(first) <= {"node-2", "node-3"}
    assert nodes_of_running_pods(second) <= {"node-1", "node-3", "node-4"}
    assert "repair" in explained and "its zone is being repaired" in explained


def nodes_of_running_pods(table: str) -> set[str]:
    nodes = set(re.findall(r"^web-\S+ +1/1 .* (node-\d) ", table, re.MULTILINE))
    assert nodes, table
    return nodes
