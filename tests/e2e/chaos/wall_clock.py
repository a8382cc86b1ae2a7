"""The wall clock of the process under test, which the test sets. Monotonic clocks do not change."""

import mmap
import time
from pathlib import Path
from random import Random

ABSORBED_S = (-25, -5, 5, 25)
"""The process adjusts its clock to these gradually, also from one end to the other."""

RESTARTS_S = (-3600, 3600)
"""After a step of more than a minute the process exits, to be started again."""

_SIZE_BYTES = 8


class WallClock:
    """The test and the process share the file. `install` is called in the process, before the program starts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started_at_s = 0.0
        path.write_bytes(bytes(_SIZE_BYTES))

    def step(self, rng: Random) -> bool:
        """Set it forward or back. True: by so much that the process exits."""
        if restarts := rng.random() < 0.5:
            self._started_at_s += rng.choice(RESTARTS_S)
        self._set(self._started_at_s + (0 if restarts else rng.choice(ABSORBED_S)))
        return restarts

    def set_back(self) -> None:
        """By so much that the process exits."""
        self._started_at_s += min(RESTARTS_S)
        self._set(self._started_at_s)

    def _set(self, offset_s: float) -> None:
        with self._path.open("r+b") as file:  # one write of eight bytes: no reader sees half of them
            file.write(round(offset_s * 1e9).to_bytes(_SIZE_BYTES, "little", signed=True))

    def install(self) -> None:
        from policysched.daemon.clock import NonDecreasingClock, uptime_ns

        with self._path.open("rb") as file:
            offset = mmap.mmap(file.fileno(), _SIZE_BYTES, prot=mmap.PROT_READ)
        machine_ns = time.time_ns

        def time_ns() -> int:
            return machine_ns() + int.from_bytes(offset[:], "little", signed=True)

        time.time_ns = time_ns
        time.time = lambda: time_ns() / 1e9
        # Its default is the function that the module had when it was imported.
        assert NonDecreasingClock.__init__.__defaults__ == (machine_ns, uptime_ns)
        NonDecreasingClock.__init__.__defaults__ = (time_ns, uptime_ns)
