"""The signals that request a graceful shutdown: nothing new is started, requests in flight are completed."""

import signal


def shutdown_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP is included, since closing the terminal would otherwise cut off binds and leave the Lease held. Not under
    `nohup`, where the process must outlive its terminal."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signals = (signal.SIGTERM, signal.SIGINT)
    return signals if ignores_hangup else (*signals, signal.SIGHUP)
