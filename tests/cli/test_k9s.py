"""k9s against the sandbox, in a pseudo-terminal: what an operator looks at every day.

k9s is not built for the tests (its Go modules are 2,400 packages); where it is not on the PATH they are skipped. On a terminal that
changes its size k9s draws the whole screen again, so the text can be read without a terminal's memory.
"""

import fcntl
import itertools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.sandbox_kubectl import PATIENCE_S, Kubectl, cluster, kubectl
from tests.missing_programs import leave_out

__all__ = ["cluster", "kubectl"]

DRAWN_WITHIN_S = 2.0
ROWS, COLUMNS = 40, 160
CONTROL = re.compile(
    rb"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[=>78]"
)
ESCAPE, CONTROL_D = "\x1b", "\x04"

WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Weight, type: integer, jsonPath: .spec.weight}]
    schema:
      openAPIV3Schema:
        {type: object, properties: {spec: {type: object, properties: {weight: {type: integer}}}}}
"""
WIDGET = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: hammer}\nspec: {weight: 4711}\n"


class K9s:
    """A running k9s and its screen."""

    def __init__(self, program: str, environment: dict[str, str], log: Path) -> None:
        self._master, slave = pty.openpty()
        self._sizes = itertools.cycle((COLUMNS, COLUMNS - 1))
        self._resize()
        self._process = subprocess.Popen(
            [program, "--logFile", str(log)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            preexec_fn=lambda: _take_terminal(slave),
        )
        os.close(slave)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def go_to(self, resource: str) -> None:
        self.press(f":{resource}\r")

    def wait_for(self, pattern: str) -> str:
        """The screen once it has the pattern."""
        began_s, text = time.monotonic(), ""
        while time.monotonic() - began_s < PATIENCE_S:
            self._resize()
            text = self._drawn()
            if re.search(pattern, text):
                return text
        raise AssertionError(f"waited in vain for {pattern!r}; k9s shows:\n{text}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _resize(self) -> None:
        size = struct.pack("HHHH", ROWS, next(self._sizes), 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _drawn(self) -> str:
        """What is drawn until k9s draws nothing for a while."""
        drawn, began_s = b"", time.monotonic()
        while time.monotonic() - began_s < DRAWN_WITHIN_S and select.select([self._master], [], [], 0.5)[0]:
            drawn += os.read(self._master, 65536)
        return re.sub(r" +", " ", CONTROL.sub(b" ", drawn).decode(errors="replace"))


def _take_terminal(slave: int) -> None:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


@pytest.fixture
def objects(kubectl: Kubectl) -> None:
    """k9s reads the kinds of resources when it starts, so they are there before."""
    if shutil.which("k9s") is None:
        leave_out("k9s", "k9s is not on the PATH")
    kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2")
    kubectl("run", "waits", "--image=web:1")
    kubectl("apply", "-f", "-", stdin=WIDGETS)
    kubectl("wait", "--for=condition=Established", "crd/widgets.example.com")
    kubectl("apply", "-f", "-", stdin=WIDGET)


@pytest.fixture
def k9s(objects: None, kubectl: Kubectl, tmp_path: Path) -> Iterator[K9s]:
    program = shutil.which("k9s")
    assert program is not None
    folders = {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    environment = {
        **kubectl.environment,
        **folders,
        "TERM": "xterm-256color",
        "K9S_CONFIG_DIR": str(tmp_path),
    }
    running = K9s(program, environment, tmp_path / "log")
    yield running
    running.end()


def test_k9s_shows_and_changes_what_an_operator_works_with(k9s: K9s, kubectl: Kubectl) -> None:
    k9s.wait_for(r"waits\W.* Pending")
    k9s.go_to("deploy")
    k9s.wait_for(r"web\W+0/2")
    k9s.press("s")
    k9s.wait_for("Scale deployment")
    k9s.press("\x7f3\t\r")
    k9s.wait_for(r"web\W+0/3")
    k9s.go_to("nodes")
    k9s.wait_for(r"node-3 Ready")
    k9s.press("c")
    k9s.wait_for("Cordon node-1")
    k9s.press("\t\r")
    k9s.wait_for(r"node-1 Ready,SchedulingDisabled")
    k9s.press("d")
    k9s.wait_for(r"Describe\( ?node-1")
    k9s.press(ESCAPE)
    k9s.wait_for(r"node-3 Ready")
    k9s.go_to("crd")
    k9s.wait_for(r"widgets example\.com Widget")
    k9s.go_to("widgets")
    k9s.wait_for(r"hammer 4711")
    k9s.go_to("pods")
    k9s.wait_for(r"waits\W.* Pending")
    k9s.press(CONTROL_D)
    k9s.wait_for(r"Delete pods .*waits")
    k9s.press("\t\r")

    kubectl("wait", "--for=delete", "pod/waits")
