"""Waiting for a real cluster to come round: look, and look again until it has or the time is up."""

import time
from collections.abc import Callable
from typing import TypeVar

LOOK_EVERY_S = 0.02
PATIENCE_S = 180.0
"""A wait that ends early costs nothing, and a busy machine gives a program a tenth of the time that it needs."""

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, *, within_s: float = PATIENCE_S) -> T:
    """The first thing that `look` returns which is neither None nor False nor empty."""
    deadline = time.monotonic() + within_s
    while not (result := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(LOOK_EVERY_S)
    return result
