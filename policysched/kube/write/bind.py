"""Binds pods: repeats a request until it is answered and delivers the outcome as an event.

    queued ──POST──► 201 ───────────────────────────────────────────────► BindConfirmed
                 ├── no response, 401, 429, 5xx ──retry queue──► the same POST again
                 ├── 409, 404 ──GET pod──► on our node ─────────────────► BindConfirmed
                 │                     ├── gone, other UID, other node ─► BindLost
                 │                     └── not bound ───────────────────► BindRefused, unless an earlier request is open
                 └── any other status, or it never left ────────────────► BindRefused
      ├──abandon: the pod is gone ────────────────────────────────────────► BindLost
      └──cancel──────────────────────────────────────────────────────────► BindRefused

A bind without a response may still be carried out. Withdrawing it would give its resources to a second pod, and reading
the pod does not help, since the request can be carried out after the read. Repeating is safe: the server binds a pod of
that UID once. `?timeout=5s` limits the request's lifetime in the server; a new leader waits for it
(`kube.leader_election`). Other writes are repeated by `kube.write.idempotent_retry`.

A request that fails leaves its worker. `kube.write.bind_queue` orders what is sent, so that bad namespaces leave workers to others.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from policysched.kube.client.api import (
    ApiClient,
    ApiErrors,
    ApiStatusError,
    Conflict,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import RequestNotSent, TransportError
from policysched.kube.write.bind_object import BindOutcome, bind_outcome_from_pod, binding_body
from policysched.kube.write.bind_queue import BindQueue
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S, WritesClosed
from policysched.kube.write.pending_binds import SLOW_AFTER_S, PendingBind, Standing
from policysched.model.identifiers import PodUid
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed, BindDelayed, BindLost, BindRefused

log = logging.getLogger(__name__)

RETRYABLE_ERRORS = (TransportError, Unauthorized, TooManyRequests, ServerError)
"""Errors after which the outcome is unknown, or the same request can succeed later."""

REPORT_AFTER_FAILURES = 4
"""The pod is reported after this many failed requests, and again whenever their number has doubled."""

DELAYED_AFTER_FAILURES = 2
"""After this many failed requests, a bind no longer counts against `binds_in_flight_max`."""

LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class BindSettings:
    """`response_timeout_s` exceeds the request's lifetime in the server, so that its response can arrive.

    `retry_max_s` also limits the server's `Retry-After`.
    """

    concurrent_binds_max: int = 48
    response_timeout_s: float = 7.0
    retry_initial_s: float = 0.1
    retry_max_s: float = 8.0


@dataclass(slots=True)
class BindCounts:
    """Running totals, for metrics."""

    confirmed: int = 0
    refused: int = 0
    lost: int = 0
    retried: int = 0


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A request without an outcome. `failed`: it had no definite answer; otherwise the pod is read after the delay."""

    delay_s: float
    error: Exception
    failed: bool = True


class Binder:
    """Carries out `Bind` commands with several workers, in order within a namespace. `deliver` receives exactly one
    outcome per bind, and `BindDelayed` before it while requests fail.

    `may_send` is checked before each request: without leadership nothing is sent, and `LostLeadership` ends `run`. The
    transport checks again at the write (`ApiClient.may_write`), after the wait for a connection. It also checks what `fence`
    returned when the bind was put: a bind that was decided before this process stalled never leaves after it, unless
    an earlier request for it may have left.
    """

    def __init__(
        self,
        api: ApiClient,
        deliver: Callable[[BindOutcome | BindDelayed], None],
        *,
        random: Random,
        connectivity: Connectivity,
        settings: BindSettings = BindSettings(),
        may_send: Callable[[], bool] = lambda: True,
        fence: Callable[[], Callable[[], bool] | None] = lambda: None,
        observe_duration_s: Callable[[float], None] | None = None,
    ) -> None:
        self._api = api
        self._deliver = deliver
        self._random = random
        self._connectivity = connectivity
        self._settings = settings
        self._may_send = may_send
        self._fence = fence
        self._observe_duration_s = observe_duration_s
        self._queue = BindQueue(settings.concurrent_binds_max)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._retry_timer: asyncio.Handle | None = None
        self._retry_timer_due_s = 0.0  # uvloop's handle of a call that is due has no `when`
        self._failing_logged_s = float("-inf")
        self.counts = BindCounts()

    @property
    def queued(self) -> int:
        """Binds that no worker has taken yet, outside namespaces whose binds keep failing or are slow."""
        return self._queue.queued

    @property
    def in_flight(self) -> int:
        """Binds without an outcome."""
        return len(self._queue)

    def in_flight_in(self, admits: Callable[[str], bool]) -> int:
        """Those of these namespaces."""
        return self._queue.count(admits)

    @property
    def retrying(self) -> int:
        """Binds that wait to be retried."""
        return self._queue.retrying

    @property
    def failing_namespaces(self) -> int:
        return self._queue.failing_namespaces

    def put(self, bind: Bind) -> None:
        """Append a bind to the queue."""
        pending = PendingBind(bind, is_current=self._fence())
        if not self._queue.put(pending):
            self._deliver_delayed(pending, self._queue.reported_reason(bind.namespace))
        self._wake(1)

    def cancel(self, uid: PodUid) -> None:
        """Do not send the bind of this pod if no worker has taken it. It is then refused."""
        if self._queue.cancel(uid):
            self._conclude(BindRefused(uid, "not sent: cancelled"))

    def abandon(self, uid: PodUid) -> None:
        """The pod is gone, and no request can bind it any more: its bind is lost, or will be once its request has ended."""
        if self._queue.abandon(uid) is not None:
            self._conclude(BindLost(uid, "the pod was deleted"))

    async def run(self) -> None:
        """Until cancelled. Raises LostLeadership (in a group) once `may_send` says no with binds to send."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._queue.places.requests_max):
                    group.create_task(self._run_worker())
        finally:
            if self._retry_timer is not None:
                self._retry_timer.cancel()

    async def _run_worker(self) -> None:
        loop, worker = asyncio.get_running_loop(), asyncio.current_task()
        assert worker is not None, "a worker is a task"
        while True:
            now_s = loop.time()
            pending = self._queue.take(now_s)
            if pending is None:
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            if pending.throttled:
                self._set_retry_timer()  # for the rest of its namespace
            if pending.began_s is None:
                pending.began_s = now_s
            pending.worker = worker
            timer = loop.call_later(SLOW_AFTER_S, self._note_slow, pending)
            try:
                result = await self._attempt(pending)
            except asyncio.CancelledError:
                if not pending.is_leaving or worker.uncancel() > 0:
                    raise
                result = self._give_up(pending, now_s)
            finally:
                timer.cancel()
            prompt = loop.time() - now_s < SLOW_AFTER_S
            if isinstance(result, RetryLater):
                self._schedule_retry(pending, result, prompt=prompt)
                if pending.is_gone:
                    self.abandon(pending.bind.uid)
            else:
                if self._queue.finish(pending, loop.time(), answered=True, prompt=prompt):
                    self._wake(len(self._idle))
                self._queue.remove(pending)
                if self._observe_duration_s is not None:
                    self._observe_duration_s(loop.time() - pending.began_s)
                self._conclude(result)
            if pending.standing is not Standing.TRUSTED or pending.throttled or self._queue.queued:
                self._wake(1)  # this worker may go on with a bind of another kind

    def _note_slow(self, pending: PendingBind) -> None:
        """Its request takes long: decisions and reports do not wait for the other binds of its namespace."""
        if self._queue.note_slow(pending, asyncio.get_running_loop().time()):
            self._note_change(pending.bind.namespace)
        self._wake(1)

    def _note_change(self, namespace: str) -> None:
        """The namespace is set aside now, or is not any more."""
        if self._queue.is_set_aside(namespace):
            for queued in self._queue.first_attempts(namespace):
                self._deliver_delayed(queued, None)
        self._wake(len(self._idle))

    def _schedule_retry(self, pending: PendingBind, retry: RetryLater, *, prompt: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        namespace = pending.bind.namespace
        self._queue.schedule_retry(pending, now_s + retry.delay_s)
        was_failing = self._queue.is_failing(namespace)
        if self._queue.finish(pending, now_s, answered=not retry.failed, prompt=prompt):
            self._note_change(namespace)
        if self._queue.is_failing(namespace) and not was_failing:
            self._log_failing(namespace, retry.error)
        self._set_retry_timer()
        if not retry.failed:
            return
        pending.failures += 1
        reason = _describe(retry.error)
        for waiting in self._queue.to_report(namespace, reason, now_s):
            self._deliver_delayed(waiting, reason)
        if pending.failures >= DELAYED_AFTER_FAILURES or self._queue.is_failing(namespace):
            is_due = pending.failures >= REPORT_AFTER_FAILURES and pending.failures.bit_count() == 1
            is_first = not pending.is_reported and self._queue.reported_reason(namespace) is not None
            self._deliver_delayed(pending, reason if is_due or is_first else None)

    def _deliver_delayed(self, pending: PendingBind, reason: str | None) -> None:
        if reason is not None or not pending.is_delayed:
            pending.is_delayed = True
            pending.is_reported |= reason is not None
            self._deliver(BindDelayed(pending.bind.uid, reason))

    def _set_retry_timer(self) -> None:
        due_s = self._queue.next_due_s
        if due_s is None:
            return
        if self._retry_timer is not None:
            if self._retry_timer_due_s <= due_s:
                return
            self._retry_timer.cancel()
        self._retry_timer_due_s = due_s
        self._retry_timer = asyncio.get_running_loop().call_at(due_s, self._release_due, due_s)

    def _release_due(self, due_s: float) -> None:
        self._retry_timer = None
        self._wake(self._queue.release_due(max(due_s, asyncio.get_running_loop().time())))
        self._set_retry_timer()

    def _wake(self, workers: int) -> None:
        while workers > 0 and self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                workers -= 1
        if workers > 0 and (hanging := self._queue.surplus()) is not None:
            assert hanging.worker is not None, f"{hanging.bind} has no request"
            hanging.worker.cancel()

    def _give_up(self, pending: PendingBind, sent_s: float) -> RetryLater:
        """Its request hangs, and others wait for the worker. It is sent again as a throttled one, which has all its time."""
        if pending.rejection is None:
            pending.unknown_until_s = sent_s + self._settings.response_timeout_s + SERVER_TIMEOUT_S
        error = TransportError("no response yet")
        self.counts.retried += 1
        return RetryLater(self._retry_delay_s(pending, error), error)

    def _log_failing(self, namespace: str, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        is_due = now_s - self._failing_logged_s >= LOG_INTERVAL_S and not self._connectivity.unreachable
        if is_due:
            self._failing_logged_s = now_s
        log.log(
            logging.WARNING if is_due else logging.DEBUG,
            "binds in a namespace keep failing; limiting their share of workers",
            extra={"namespace": namespace, "error": _describe(error)},
        )

    async def bind_now(self, bind: Bind) -> BindOutcome:
        """Bind without queueing and return the outcome only to the caller. If the caller cancels, no further request is
        sent, but a sent one may still be carried out: call `resolve_abandoned_bind` then."""
        return await self._bind_until_answered(PendingBind(bind))

    async def resolve_abandoned_bind(self, bind: Bind) -> BindOutcome:
        """The outcome of a cancelled bind, once none of its requests can be carried out any more."""
        await asyncio.sleep(SERVER_TIMEOUT_S + self._settings.response_timeout_s)
        pending = PendingBind(bind)
        pending.rejection = ApiStatusError(0, "", "abandoned without a response")
        return await self._bind_until_answered(pending)

    async def _bind_until_answered(self, pending: PendingBind) -> BindOutcome:
        while True:
            result = await self._attempt(pending)
            if not isinstance(result, RetryLater):
                self._count(result)
                return result
            await asyncio.sleep(result.delay_s)

    def _conclude(self, outcome: BindOutcome) -> None:
        self._count(outcome)
        self._deliver(outcome)

    def _count(self, outcome: BindOutcome) -> None:
        match outcome:
            case BindConfirmed():
                self.counts.confirmed += 1
            case BindRefused():
                self.counts.refused += 1
            case BindLost():
                self.counts.lost += 1

    async def _attempt(self, pending: PendingBind) -> BindOutcome | RetryLater:
        """Send the bind once; read its pod if an answer says that it was rejected."""
        if pending.rejection is not None:
            return await self._read_bind_outcome(pending, pending.rejection)
        bind, activity, connectivity = pending.bind, "binding pods", self._connectivity
        if not self._may_send():
            raise LostLeadership(bind)
        loop = asyncio.get_running_loop()
        sent_s, successes = loop.time(), connectivity.successes_total
        try:
            await self._api.post_discarding_response(
                f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}/binding",
                binding_body(bind),
                params={"timeout": f"{SERVER_TIMEOUT_S:g}s"},
                timeout_s=self._settings.response_timeout_s,
                is_current=pending.is_current if pending.unknown_until_s is None else None,
            )
        except (Conflict, NotFound) as error:
            connectivity.record_success(activity)
            pending.rejection = error
            return await self._read_bind_outcome(pending, error)
        except RequestNotSent as error:
            if not self._may_send():
                raise LostLeadership(bind) from None
            if pending.unknown_until_s is None and not isinstance(error, WritesClosed):
                reason = "not sent: this process stalled after the decision"
                return BindRefused(bind.uid, reason, stalled=True)
            return RetryLater(self._retry_delay_s(pending, error), error, failed=False)
        except RETRYABLE_ERRORS as error:
            # The way to the server is bounded by the client's time-out, the lifetime there by the request's.
            if not isinstance(error, Unauthorized | TooManyRequests):
                given_up_s = max(sent_s + self._settings.response_timeout_s, loop.time())
                pending.unknown_until_s = given_up_s + SERVER_TIMEOUT_S
            self._record_failure(activity, error, successes)
            self.counts.retried += 1
            return RetryLater(self._retry_delay_s(pending, error), error)
        except ApiStatusError as error:
            connectivity.record_success(activity)
            return self._refused_unless_unknown(pending, error)
        else:
            connectivity.record_success(activity)
            return BindConfirmed(bind.uid, bind.node)

    async def _read_bind_outcome(
        self, pending: PendingBind, reason: ApiStatusError
    ) -> BindOutcome | RetryLater:
        """Already bound (here or elsewhere), terminating, gated, or another pod of that name: the pod shows which."""
        bind, activity = pending.bind, "reading a pod after its bind was refused"
        successes = self._connectivity.successes_total
        try:
            pod = await self._api.get(f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}")
            outcome = bind_outcome_from_pod(bind, pod, reason)
        except NotFound:
            self._connectivity.record_success(activity)
            return BindLost(bind.uid, f"the pod was deleted: {reason.message}")
        except ApiErrors as error:
            self._record_failure(activity, error, successes)
            return RetryLater(self._retry_delay_s(pending, error), error)
        else:
            self._connectivity.record_success(activity)
            return (
                self._refused_unless_unknown(pending, reason) if isinstance(outcome, BindRefused) else outcome
            )

    def _refused_unless_unknown(
        self, pending: PendingBind, error: ApiStatusError
    ) -> BindOutcome | RetryLater:
        """While an earlier request may still be carried out, a rejection is not final: read the pod once it cannot."""
        unknown_s = (pending.unknown_until_s or 0.0) - asyncio.get_running_loop().time()
        if pending.unknown_until_s is None or (unknown_s <= 0.0 and pending.rejection is not None):
            return BindRefused(pending.bind.uid, error.message)
        pending.rejection = error
        return RetryLater(max(0.0, unknown_s), error, failed=False)

    def _record_failure(self, activity: str, error: Exception, successes_before: int) -> None:
        """A 5xx or 429 is an answer of the server, often of a webhook for one namespace."""
        connectivity = self._connectivity
        if isinstance(error, ServerError | TooManyRequests):
            connectivity.record_error_response(activity, error)
        else:
            is_of_credentials = isinstance(error, ApiStatusError)  # no webhook's fault
            others_answered = connectivity.successes_total > successes_before and not is_of_credentials
            connectivity.record_no_answer(activity, error, others_answered=others_answered)

    def _retry_delay_s(self, pending: PendingBind, error: Exception) -> float:
        settings = self._settings
        if pending.backoff is None:
            pending.backoff = Backoff(
                self._random, initial_s=settings.retry_initial_s, max_s=settings.retry_max_s
            )
        return pending.backoff.next_delay_s(error)


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


class LostLeadership(Exception):
    """The bind must not be sent: this process is no longer the leader."""

    def __init__(self, bind: Bind) -> None:
        super().__init__(f"no longer the leader; {bind.namespace}/{bind.name} is left to the next leader")
