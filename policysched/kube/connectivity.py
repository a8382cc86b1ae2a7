"""Whether the API server can be reached, said once when it goes and once when it is back."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Connectivity:
    """Several activities share one: it is away while any of them has failed and not worked since.

        reachable ──something failed──► away ──all that failed have worked again──► reachable

    A single failure that the next try mends is not worth a line. `monotonic_s` is only for saying how long it took.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._failures: dict[str, int] = {}
        self._away_since_s: float | None = None
        self.failures_total = 0

    @property
    def away(self) -> bool:
        return self._away_since_s is not None

    def failed(self, activity: str, why: BaseException) -> None:
        self.failures_total += 1
        self._failures[activity] = self._failures.get(activity, 0) + 1
        if self._failures[activity] < 2 or self._away_since_s is not None:
            log.debug("the API server did not answer", extra={"activity": activity, "why": str(why)})
            return
        self._away_since_s = self._monotonic_s()
        log.warning(
            "the API server cannot be reached or does not answer; trying again until it does",
            extra={"activity": activity, "why": str(why) or type(why).__name__},
        )

    def worked(self, activity: str) -> None:
        if self._failures.pop(activity, 0) == 0 or self._failures or self._away_since_s is None:
            return
        away_s = self._monotonic_s() - self._away_since_s
        self._away_since_s = None
        log.info("the API server answers again", extra={"away_s": round(away_s, 3)})
