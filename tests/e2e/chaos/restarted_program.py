"""policysched whose every request passes the faulty transport. It is started again after it exits for a step of the clock."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.e2e.chaos.bugs import BUGS
from tests.e2e.chaos.faulty_transport import FaultyTransport
from tests.e2e.chaos.safety_checker import Broken
from tests.e2e.chaos.wall_clock import WallClock
from tests.e2e.preloaded import PreloadedProcess, no_change

CLOCK_STEPPED = 4
"""The exit code."""


@dataclass(frozen=True)
class _Plant:
    """Called in the process."""

    clock: WallClock
    bug: Callable[[], None]

    def __call__(self) -> None:
        self.clock.install()
        self.bug()


class RestartedProgram:
    def __init__(self, folder: Path, transport: FaultyTransport, name: str, bug: str) -> None:
        self._transport = transport
        self._log, self._settings = folder / "log", folder / "settings"
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(plain_kubeconfig(transport.url)))
        self._settings.write_text(
            yaml.safe_dump(
                {
                    "policies": f"{name}/policies",
                    "kubeconfig": str(kubeconfig),
                    "leader_election": {"enabled": False},
                    "log": {"level": "debug", "format": "json"},
                }
            )
        )
        self.clock = WallClock(folder / "wall-clock")
        self._plant = _Plant(self.clock, BUGS[bug].plant if bug else no_change)
        self.restarts = 0

    async def __aenter__(self) -> "RestartedProgram":
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text()

    async def run(self) -> None:
        """Raises `Broken` when it exits for another reason."""
        while True:
            while (code := self._process.poll()) is None:
                await asyncio.sleep(0.1)
            if code != CLOCK_STEPPED:
                raise Broken(f"policysched ended with {code}")
            # What the old process has sent is answered before another decides, as the Lease ensures elsewhere.
            while self._transport.is_busy_writing:
                await asyncio.sleep(0.1)
            self._start()
            self.restarts += 1

    def _start(self) -> None:
        self._process = PreloadedProcess(["run", "--config", str(self._settings)], self._log, self._plant)


def plain_kubeconfig(url: str) -> dict[str, object]:
    """Of the proxy, which has the credentials."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "chaos", "cluster": {"server": url}}],
        "users": [{"name": "chaos", "user": {}}],
        "contexts": [{"name": "chaos", "context": {"cluster": "chaos", "user": "chaos"}}],
        "current-context": "chaos",
    }
