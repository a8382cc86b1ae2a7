"""Liveness and readiness as named checks, in kube-scheduler's format: `[+]sync ok`, `[-]policies failed: none is active`.

The checks read plain attributes that the main loop sets, so any thread can run them at any time.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

STANDBY_HEADER = "Policysched-Standby"
"""Answers of a replica that does not lead have it."""

HealthCheck = Callable[[], str]
"""Empty if it passes, else the reason."""


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: a process that fails one should be restarted. `ready`: a process that fails one is not scheduling.
    `warnings` are shown by `/readyz?verbose` and do not fail it: the process schedules nevertheless."""

    live: Mapping[str, HealthCheck]
    ready: Mapping[str, HealthCheck]
    warnings: Mapping[str, HealthCheck] = field(default_factory=dict)


class Heartbeat:
    """Detects a stuck main loop: the loop calls `beat`, another thread calls `check`."""

    def __init__(self, *, stuck_after_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._stuck_after_s = stuck_after_s
        self._monotonic_s = monotonic_s
        self._last_s = monotonic_s()

    def beat(self) -> None:
        self._last_s = self._monotonic_s()

    def check(self) -> str:
        idle_s = self._monotonic_s() - self._last_s
        return "" if idle_s < self._stuck_after_s else f"the main loop has not run for {idle_s:.0f} s"


def render_health(
    checks: Mapping[str, HealthCheck],
    name: str,
    *,
    verbose: bool,
    shows_reasons: bool,
    warnings: Mapping[str, HealthCheck] | None = None,
) -> tuple[int, str]:
    """HTTP status and text. Without `shows_reasons` it names the checks alone, in the words of kube-scheduler: reasons may have
    names of policies."""
    reasons = {name: check() for name, check in checks.items()}
    failed = [name for name, reason in reasons.items() if reason]
    if not failed and not verbose:
        return 200, "ok"
    warned = {name: check() for name, check in (warnings or {}).items()}
    lines = []
    for results, failure in ((reasons, "[-]{} failed: {}"), (warned, "[!]{} warning: {}")):
        for check_name, reason in results.items():
            shown = reason if shows_reasons else "reason withheld"
            lines.append(failure.format(check_name, shown) if reason else f"[+]{check_name} ok")
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return (500 if failed else 200), "\n".join(lines) + "\n"
