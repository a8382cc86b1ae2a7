"""Says that the settings file was changed: the settings are read at the start only.

A reload would have to be all or nothing across sources, ports, the Lease and what policies may do, while decisions are in
flight. A restart is that, and another replica leads meanwhile.
"""

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

POLL_INTERVAL_S = 10.0

log = logging.getLogger(__name__)


class SettingsWatch:
    """Compares the file with its content when this was made; `run` until cancelled. None: there is no file."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._in_use = self._latest = _digest(file)
        self.problem = ""

    async def run(self) -> None:
        while self._file is not None:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.poll()

    def poll(self) -> None:
        """A file that cannot be read for a moment (a mount being replaced) is no change."""
        digest = _digest(self._file)
        if digest is None or digest == self._latest:
            return
        self._latest = digest
        self.problem = (
            ""
            if digest == self._in_use
            else f"{self._file} was changed after the start; restart the process to use it"
        )
        if self.problem:
            log.warning("the settings file changed; restart to apply it", extra={"file": str(self._file)})
        else:
            log.info("the settings file matches the running settings again", extra={"file": str(self._file)})


def _digest(file: Path | None) -> str | None:
    try:
        return None if file is None else sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
