"""policysched and stock kubectl as processes, and methods to read their output."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.controlplane.certificates import KeyPair
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.preloaded import PreloadedProcess, no_change

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


class Process(Protocol):
    """The part of `subprocess.Popen` that is used."""

    pid: int

    def poll(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Running:
    """A process of policysched, changed by `plant` before it starts, or one that somebody else has started. It is asked over plain HTTP (`--insecure-http`), or over HTTPS with the certificate of a
    `client`; its own certificate is self-signed."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        port: int,
        client: KeyPair | None = None,
        plant: Callable[[], None] = no_change,
        process: Process | None = None,
    ) -> None:
        self.port = port
        self._log = log
        self._tls: ssl.SSLContext | None = None
        if client is not None:
            self._tls = ssl._create_unverified_context()
            self._tls.load_cert_chain(client.certificate, client.key)
        self.process: Process = process or PreloadedProcess(arguments, log, plant)

    def log(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[Json]:
        """Its log, complete lines only."""
        whole, _, _ = self.log().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def logged(self, words: str) -> list[Json]:
        return [line for line in self.lines() if words in line["msg"]]

    def wait_for_log(self, words: str) -> Json:
        """Wait until the log contains the text."""
        return wait_for(lambda: self.logged(words), f"the log to contain `{words}`")[0]

    def get(self, path: str, body: bytes | None = None) -> str:
        """With a body it is a POST."""
        scheme = "http" if self._tls is None else "https"
        url = f"{scheme}://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, body, timeout=PATIENCE_S, context=self._tls) as answer:
            text: str = answer.read().decode()
            return text

    def status_with_token(self, path: str, token: str | None) -> int:
        """The status of a request over HTTPS without a client certificate."""
        return self.answer_with_token(path, token)[0]

    def answer_with_token(
        self, path: str, token: str | None, posted: object | None = None
    ) -> tuple[int, str]:
        """Status and body of the same. `posted` is sent as JSON; None: GET."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = None if posted is None else json.dumps(posted).encode()
        headers |= {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", data, headers)
        unverified = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=unverified) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

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
