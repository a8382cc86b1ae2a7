"""How long to wait before trying again.

Doubling from a first delay to a longest one, each drawn between half and the whole of it, so that many clients that
failed together do not come back together. The server's `Retry-After` is a least: it knows better than we do.
"""

from random import Random

from policysched.kube.client.api import ApiStatusError


class Backoff:
    """One activity's run of failures. Chance comes from the stream handed in."""

    def __init__(self, random: Random, *, initial_s: float = 0.1, max_s: float = 15.0) -> None:
        self._random = random
        self._initial_s = initial_s
        self._max_s = max_s
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def next_delay_s(self, error: BaseException | None = None) -> float:
        """Seconds to wait before the next try."""
        whole_s = min(self._max_s, self._initial_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        drawn_s = whole_s * (0.5 + self._random.random() / 2)
        asked_s = error.retry_after_s if isinstance(error, ApiStatusError) else None
        return max(drawn_s, asked_s or 0.0)
