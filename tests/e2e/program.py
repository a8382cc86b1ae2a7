"""policysched and stock kubectl as processes, and methods to read their output."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.controlplane.waiting import PATIENCE_S, wait_for

Json = dict[str, Any]
BIN = Path(sys.executable).parent


def kubectl(
    kubeconfig: Path, *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> str:
    """Run kubectl and return its output. Fails if kubectl fails."""
    done = subprocess.run(
        [BIN / "kubectl", "--kubeconfig", kubeconfig, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Running:
    """A process of policysched."""

    def __init__(self, command: Sequence[str], log: Path, port: int) -> None:
        self.port = port
        self._log = log
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("POLICYSCHED_")
        }
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stderr=file, env=environment)

    def log(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[Json]:
        """Its log, complete lines only."""
        whole, _, _ = self.log().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def said(self, words: str) -> list[Json]:
        return [line for line in self.lines() if words in line["msg"]]

    def heard(self, words: str) -> Json:
        """Wait until the log contains the text."""
        return wait_for(lambda: self.said(words), f"the log to say `{words}`")[0]

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def wait_until_ready(self) -> None:
        def look() -> bool:
            try:
                return self.get("/readyz") == "ok"
            except OSError:  # it does not listen yet, or answers 500 while it is not ready
                return False

        wait_for(look, "it to be ready")

    def state_of(self, policy: str) -> str | None:
        """active, last_known_good or rejected; None if it does not answer or has no policy of that
        name.
        """
        try:
            listed = self.json("/policy")["policies"]
        except OSError:
            return None
        return next((item["state"] for item in listed if item["name"] == policy), None)

    def wait_for_state(self, policy: str, state: str) -> None:
        wait_for(lambda: self.state_of(policy) == state, f"policy {policy} to be {state}")

    def metric(self, name: str) -> float:
        """The value of a metric with its labels, or the sum over all labels of a bare name."""
        lines = [
            line for line in self.get("/metrics").splitlines() if line.startswith((name + " ", name + "{"))
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait()
