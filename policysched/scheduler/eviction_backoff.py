"""How long evictions wait that the API server, or a webhook, refused."""

from policysched.scheduler.limits import SECOND_NS

WAIT_INITIAL_S = 10
WAIT_MAX_S = 160


def wait_ns(refusals: int) -> int:
    """From the last of so many refusals in a row to the next attempt. It doubles with each."""
    return min(WAIT_INITIAL_S << min(refusals - 1, 10), WAIT_MAX_S) * SECOND_NS
