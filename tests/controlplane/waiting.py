"""Wait for a state of a real cluster by polling."""

import time
from collections.abc import Callable
from typing import TypeVar

LOOK_EVERY_S = 0.02
LOOK_EVERY_MAX_S = 0.2
PATIENCE_S = 180.0
"""Generous: a wait that succeeds early costs nothing, and a busy machine can slow a program down
tenfold.
"""

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, *, within_s: float = PATIENCE_S) -> T:
    """The first result of `look` that is neither None, False nor empty."""
    start_s = time.monotonic()
    while not (result := look()):
        waited_s = time.monotonic() - start_s
        if waited_s > within_s:
            raise AssertionError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(look_interval_s(waited_s))
    return result


def look_interval_s(waited_s: float) -> float:
    """Rarer the longer it takes: a look costs CPU time that the program under test needs, and a wait
    gets at most a twentieth longer.
    """
    return min(max(LOOK_EVERY_S, waited_s / 20), LOOK_EVERY_MAX_S)
