"""Whether the API server is reachable and grants what the scheduler needs. Logged once per outage, at its start and end."""

import logging
import time
from collections.abc import Callable

from policysched.kube.client.api import Forbidden
from policysched.kube.client.transport import RequestNotSent

log = logging.getLogger(__name__)


class Connectivity:
    """Shared by several activities: unreachable while any of them has failed and not succeeded since.

        reachable ──an activity fails twice──► unreachable ──all failed activities succeed──► reachable

    A single failure that the next attempt repairs is not logged. Permissions that RBAC denies are logged for each
    activity, so that an operator sees all of them at once. `monotonic_s` only measures the outage for the log.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._failures: dict[str, int] = {}
        self._forbidden: set[str] = set()
        self._unreachable_since_s: float | None = None
        self.on_doubt: Callable[[], None] | None = None
        """Requests a probe of the server (`kube.client.server_probe`)."""
        self.failures_total = 0
        self.successes_total = 0

    @property
    def unreachable(self) -> bool:
        return self._unreachable_since_s is not None

    @property
    def problem(self) -> str:
        """One line about the problem; empty if there is none."""
        if not self.unreachable:
            return ""
        if self._forbidden:
            return f"the API server forbids {', '.join(sorted(self._forbidden))}"
        return "the API server cannot be reached"

    def record_failure(self, activity: str, error: BaseException) -> None:
        if isinstance(error, RequestNotSent):
            return  # this says nothing about the server
        self.failures_total += 1
        self._failures[activity] = self._failures.get(activity, 0) + 1
        if self._failures[activity] >= 2 and isinstance(error, Forbidden):
            self._log_forbidden(activity, error)
            return
        if self._failures[activity] < 2 or self._unreachable_since_s is not None:
            log.debug("the API server did not answer", extra={"activity": activity, "error": str(error)})
            return
        self._unreachable_since_s = self._monotonic_s()
        log.warning(
            "the API server is unreachable or does not answer; retrying",
            extra={"activity": activity, "error": str(error) or type(error).__name__},
        )

    def record_no_answer(self, activity: str, error: BaseException, *, others_answered: bool) -> None:
        """A request got a 401, or no answer, perhaps because of a webhook of one namespace. It may never be sent again, so other
        requests that are answered meanwhile, or else a probe of the server, tell whether it is an outage."""
        if not others_answered and self.on_doubt is None:
            self.record_failure(activity, error)
            return
        self.record_error_response(activity, error)
        if not others_answered and self.on_doubt is not None:
            self.on_doubt()

    def record_error_response(self, activity: str, error: BaseException) -> None:
        """The server answered with an error that concerns this request alone: it counts as a failure, not as an outage."""
        self.failures_total += 1
        log.debug("a request to the API server failed", extra={"activity": activity, "error": str(error)})
        self._clear(activity)

    def _log_forbidden(self, activity: str, reason: Forbidden) -> None:
        if self._unreachable_since_s is None:
            self._unreachable_since_s = self._monotonic_s()
        if activity not in self._forbidden:
            self._forbidden.add(activity)
            log.warning(
                "the API server denies a required permission; retrying (deploy/rbac.yaml has the roles)",
                extra={"activity": activity, "error": str(reason)},
            )

    def record_success(self, activity: str) -> None:
        self.successes_total += 1
        if self._failures or self._forbidden:
            self._clear(activity)

    def _clear(self, activity: str) -> None:
        self._forbidden.discard(activity)
        if self._failures.pop(activity, 0) == 0 or self._failures or self._unreachable_since_s is None:
            return
        unreachable_s = self._monotonic_s() - self._unreachable_since_s
        self._unreachable_since_s = None
        log.info("the API server answers again", extra={"unreachable_s": round(unreachable_s, 3)})
