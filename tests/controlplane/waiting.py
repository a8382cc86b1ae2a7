"""Waiting for a real cluster to come round: look, and look again until it has or the time is up."""

import time
from collections.abc import Callable
from typing import TypeVar

LOOK_EVERY_S = 0.02

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, *, within_s: float = 30.0) -> T:
    """The first thing that `look` returns which is neither None nor False nor empty."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:g} s in vain for {what}")
        time.sleep(LOOK_EVERY_S)
    return seen
