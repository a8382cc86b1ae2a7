"""How planted bugs are made (`bugs_of_*.py`). Each patches one thing, and some seed or scenario must report it with the
message of its invariant.

Where the scheduler's own audit or the oracle checker would report it first, they are switched off
too, so that the checkers of the server's objects are what is tested.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.oracle_checker import OracleChecker

Plant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def all_patches(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def without_oracle_checks() -> AbstractContextManager[Any]:
    """Skip the comparisons with the reference implementation."""
    return all_patches(
        patch.object(OracleChecker, "_check_gang_member", lambda *_: None),
        patch.object(OracleChecker, "_compare", lambda *_: None),
    )
