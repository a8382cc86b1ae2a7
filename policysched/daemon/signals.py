"""Which signals ask a program of ours to end in good order: nothing more is begun, what is under way is answered."""

import signal


def shutdown_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP is among them, for a terminal that closes would else cut off binds in the midst and keep the Lease from the next one;
    not under `nohup`, where the process is to outlive its terminal."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    usual = (signal.SIGTERM, signal.SIGINT)
    return usual if outlives else (*usual, signal.SIGHUP)
