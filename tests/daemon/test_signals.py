"""A terminal that closes ends the programs in good order, but for those that are to outlive it."""

import signal
from collections.abc import Iterator

import pytest

from policysched.daemon.signals import shutdown_signals


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_requests_a_shutdown() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    assert set(shutdown_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def test_under_nohup_it_does_not() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    assert set(shutdown_signals()) == {signal.SIGTERM, signal.SIGINT}
