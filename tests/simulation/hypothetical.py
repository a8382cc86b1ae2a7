"""Placements that a checker makes to judge a decision, and takes back."""

from collections.abc import Iterator
from contextlib import contextmanager

from policysched.cluster.ledger import Ledger


@contextmanager
def without_listeners(ledger: Ledger) -> Iterator[None]:
    """Nobody is told of changes of the ledger, which the caller takes back: a release of quota that never happened would
    requeue who waits for one, and the recorded run would differ from its replay."""
    listeners, ledger.listeners = ledger.listeners, []
    try:
        yield
    finally:
        ledger.listeners = listeners
