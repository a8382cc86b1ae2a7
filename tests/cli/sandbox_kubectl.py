"""A sandbox and the stock kubectl that knows it, for the modules that import these fixtures."""

import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policysched.sandbox.sandbox import Sandbox

PATIENCE_S = 180.0
WITHIN = f"--timeout={PATIENCE_S:g}s"
NUMBERS = itertools.count(1)


class Kubectl:
    """kubectl with its own home, against one sandbox."""

    def __init__(self, program: str, environment: dict[str, str]):
        self._program = program
        self.environment = environment

    def __call__(self, *words: str, stdin: str | None = None, editor: str = "") -> str:
        """Standard output. Fails where kubectl does, or where it warns of anything."""
        done = self.run(*words, stdin=stdin, editor=editor)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        assert done.stderr == "", f"kubectl {' '.join(words)} said: {done.stderr}"
        return done.stdout

    def run(
        self, *words: str, stdin: str | None = None, editor: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *words],
            env={**self.environment, "EDITOR": editor},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    @contextmanager
    def reading(self, *words: str) -> Iterator[Iterator[list[str]]]:
        """The columns of each row as it comes; ended with the block."""
        process = subprocess.Popen(
            [self._program, *words], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process:
            try:
                yield (line.split() for line in process.stdout)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A sandbox on a thread of its own, and a kubectl that knows it."""
    home = tmp_path_factory.mktemp("home")
    beside_python = Path(sys.executable).parent / "kubectl"
    program = str(beside_python) if beside_python.exists() else shutil.which("kubectl")
    assert program is not None, "kubectl is neither beside Python nor on the PATH"
    up, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with Sandbox(nodes=3, kubeconfig_path=home / "kubeconfig", start_s=0.05, stop_s=0.05):
            up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert up.wait(timeout=PATIENCE_S), "the sandbox is not up"
    environment = {"HOME": str(home), "KUBECONFIG": str(home / "kubeconfig"), "PATH": os.environ["PATH"]}
    yield Kubectl(program, environment)
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=PATIENCE_S)
    loop.close()


@pytest.fixture
def kubectl(cluster: Kubectl) -> Iterator[Callable[..., str]]:
    """kubectl in a namespace that goes with the test."""
    name = f"test-{next(NUMBERS)}"
    cluster("create", "namespace", name)
    cluster("config", "set-context", "--current", f"--namespace={name}")
    yield cluster
    cluster("delete", "namespace", name, WITHIN)
