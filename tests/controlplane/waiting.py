"""Wait for a state of a real cluster by polling."""

import time
from collections.abc import Callable
from typing import TypeVar

LOOK_EVERY_S = 0.02
PATIENCE_S = 180.0
"""Generous: a wait that succeeds early costs nothing, and a busy machine can slow a program down
tenfold.
"""

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, *, within_s: float = PATIENCE_S) -> T:
    """The first result of `look` that is neither None, False nor empty."""
    deadline = time.monotonic() + within_s
    while not (result := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(LOOK_EVERY_S)
    return result
