"""Exponential backoff with jitter between retries.

The delay doubles from `initial_s` to `max_s`; each wait is drawn between half of it and all of it, so that clients that
failed together do not retry together. The server's `Retry-After` is a lower bound up to `max_s`: a server or webhook that
puts off for an hour can be well again in a second.
"""

from random import Random

from policysched.kube.client.api import ApiStatusError


class Backoff:
    """The consecutive failures of one activity."""

    def __init__(self, random: Random, *, initial_s: float = 0.1, max_s: float = 15.0) -> None:
        self._random = random
        self._initial_s = initial_s
        self._max_s = max_s
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def next_delay_s(self, error: BaseException | None = None) -> float:
        """Seconds to wait before the next attempt."""
        delay_s = min(self._max_s, self._initial_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        jittered_s = delay_s * (0.5 + self._random.random() / 2)
        retry_after_s = error.retry_after_s if isinstance(error, ApiStatusError) else None
        return max(jittered_s, min(retry_after_s or 0.0, self._max_s))
