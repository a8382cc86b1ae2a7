"""How long to wait before trying again.

Doubling from a first delay to a longest one, each drawn between half and the whole of it, so that many clients that
failed together do not come back together. The server's `Retry-After` is a least: it knows better than we do.
"""

from random import Random

from policysched.kube.client.api import Refused


class Backoff:
    """One activity's run of failures. Chance comes from the stream handed in."""

    def __init__(self, random: Random, *, first_s: float = 0.1, longest_s: float = 15.0) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0

    def worked(self) -> None:
        self.failures = 0

    def failed(self, why: BaseException | None = None) -> float:
        """Seconds to wait before the next try."""
        whole_s = min(self._longest_s, self._first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        drawn_s = whole_s * (0.5 + self._random.random() / 2)
        asked_s = why.retry_after_s if isinstance(why, Refused) else None
        return max(drawn_s, asked_s or 0.0)
