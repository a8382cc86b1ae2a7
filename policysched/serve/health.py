"""Alive and ready, as named checks in kube-scheduler's manner: `[+]sync ok`, `[-]policies failed: none is active`.

The checks read plain attributes that the main loop sets, so any thread can ask at any time.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HealthCheck = Callable[[], str]
"""Empty where all is well, else why not."""


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: a process that fails one is better restarted. `ready`: one that fails is not yet, or not any more, at work."""

    live: Mapping[str, HealthCheck]
    ready: Mapping[str, HealthCheck]


class Heartbeat:
    """The main loop beats, another thread looks: a loop that stands still for long is stuck, not busy."""

    def __init__(self, *, stuck_after_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._stuck_after_s = stuck_after_s
        self._monotonic_s = monotonic_s
        self._last_s = monotonic_s()

    def beat(self) -> None:
        self._last_s = self._monotonic_s()

    def check(self) -> str:
        still_s = self._monotonic_s() - self._last_s
        return "" if still_s < self._stuck_after_s else f"the main loop has not run for {still_s:.0f} s"


def render_health(checks: Mapping[str, HealthCheck], name: str, *, verbose: bool) -> tuple[int, str]:
    """HTTP status and text."""
    found = {name: check() for name, check in checks.items()}
    failed = [name for name, why in found.items() if why]
    if not failed and not verbose:
        return 200, "ok"
    lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
    lines.append(f"{name} check {'failed' if failed else 'passed'}")
    return (500 if failed else 200), "\n".join(lines) + "\n"
