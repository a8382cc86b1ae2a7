"""What a story is told for: a bug that is planted in it, and what has to be said of that."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.simulation.story import Story

Bug = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Told:
    """With the `bug` planted somebody who watches over the story `says` that, and without it nobody says anything. Where the bug is
    one of the pretended cluster, `whose` says so: no fault of ours could make that happen."""

    bug: Bug
    story: Callable[[Story], Awaitable[None]]
    says: str
    whose: str = "policysched"
