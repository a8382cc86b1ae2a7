"""Binds pods: repeats a request until it is answered and delivers the outcome as an event.

    queued ──POST──► 201 ───────────────────────────────────────────────► BindConfirmed
                 ├── no response, 401, 429, 5xx ──backoff──► the same POST again
                 ├── 409, 404 ──GET pod──► on our node ─────────────────► BindConfirmed
                 │                     ├── gone, other UID, other node ─► BindLost
                 │                     └── not bound ───────────────────► BindRefused
                 └── any other status ──────────────────────────────────► BindRefused

A bind without a response may still be carried out. Withdrawing it would give its resources to a second pod, and reading
the pod does not help, since the request can be carried out after the read. Repeating is safe: the server binds a pod of
that UID once. `?timeout=5s` limits the request's lifetime in the server; a new leader waits for it
(`kube.leader_election`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import orjson

from policysched.kube.client.api import (
    ApiClient,
    ApiErrors,
    ApiStatusError,
    Conflict,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import TransportError
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed, BindLost, BindRefused

log = logging.getLogger(__name__)

SERVER_TIMEOUT_S = 5.0
"""How long the server may act on one bind request, set by `?timeout=`."""

RETRYABLE_ERRORS = (TransportError, Unauthorized, TooManyRequests, ServerError)
"""Errors after which the outcome is unknown, or the same request can succeed later."""

BindOutcome = BindConfirmed | BindRefused | BindLost


@dataclass(frozen=True, slots=True)
class BindSettings:
    """`response_timeout_s` exceeds the request's lifetime in the server, so that its response can arrive."""

    binders: int = 48
    response_timeout_s: float = 7.0
    retry_initial_s: float = 0.1
    retry_max_s: float = 5.0


@dataclass(slots=True)
class BindCounts:
    """Running totals, for metrics."""

    confirmed: int = 0
    refused: int = 0
    lost: int = 0
    retried: int = 0


class Binder:
    """Carries out `Bind` commands with several workers, in order. `deliver` receives exactly one outcome per bind.

    `may_send` is checked before each request: without leadership nothing is sent, and `LostLeadership` ends `run`.
    """

    def __init__(
        self,
        api: ApiClient,
        deliver: Callable[[BindOutcome], None],
        *,
        random: Random,
        connectivity: Connectivity,
        settings: BindSettings = BindSettings(),
        may_send: Callable[[], bool] = lambda: True,
        observe_duration_s: Callable[[float], None] | None = None,
    ) -> None:
        self._api = api
        self._deliver = deliver
        self._random = random
        self._connectivity = connectivity
        self._settings = settings
        self._may_send = may_send
        self._observe_duration_s = observe_duration_s
        self._queue: deque[Bind] = deque()
        self._wake = asyncio.Semaphore(0)
        self._active = 0
        self.counts = BindCounts()

    @property
    def queued(self) -> int:
        """Binds that no worker has taken yet."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Binds without an outcome."""
        return len(self._queue) + self._active

    def put(self, bind: Bind) -> None:
        """Append a bind to the queue."""
        self._queue.append(bind)
        self._wake.release()

    async def run(self) -> None:
        """Until cancelled. Raises LostLeadership (in a group) once `may_send` says no with binds to send."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.binders):
                group.create_task(self._run_worker())

    async def _run_worker(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.acquire()
            bind = self._queue.popleft()
            self._active += 1
            began_s = loop.time()
            try:
                outcome = await self._bind_until_answered(bind)
            finally:
                self._active -= 1
            if self._observe_duration_s is not None:
                self._observe_duration_s(loop.time() - began_s)
            self._count(outcome)
            self._deliver(outcome)

    async def bind_now(self, bind: Bind) -> BindOutcome:
        """Bind without queueing and return the outcome to the caller alone. If the caller cancels, no further request is
        sent, but a sent one may still be carried out: call `resolve_abandoned_bind` then."""
        outcome = await self._bind_until_answered(bind)
        self._count(outcome)
        return outcome

    async def resolve_abandoned_bind(self, bind: Bind) -> BindOutcome:
        """The outcome of a cancelled bind, once none of its requests can be carried out any more."""
        await asyncio.sleep(SERVER_TIMEOUT_S + self._settings.response_timeout_s)
        outcome = await self._read_bind_outcome(bind, ApiStatusError(0, "", "abandoned without an answer"))
        self._count(outcome)
        return outcome

    def _count(self, outcome: BindOutcome) -> None:
        match outcome:
            case BindConfirmed():
                self.counts.confirmed += 1
            case BindRefused():
                self.counts.refused += 1
            case BindLost():
                self.counts.lost += 1

    async def _bind_until_answered(self, bind: Bind) -> BindOutcome:
        backoff = Backoff(
            self._random, initial_s=self._settings.retry_initial_s, max_s=self._settings.retry_max_s
        )
        body = binding_body(bind)
        activity = "binding pods"
        loop = asyncio.get_running_loop()
        unknown_until_s: float | None = None
        while True:
            if not self._may_send():
                raise LostLeadership(bind)
            sent_s = loop.time()
            try:
                await self._api.post_discarding_response(
                    f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}/binding",
                    body,
                    params={"timeout": f"{SERVER_TIMEOUT_S:g}s"},
                    timeout_s=self._settings.response_timeout_s,
                )
            except (Conflict, NotFound) as error:
                self._connectivity.record_success(activity)
                return await self._read_bind_outcome(bind, error)
            except RETRYABLE_ERRORS as error:
                # The way to the server is bounded by the client's time-out, the lifetime there by the request's.
                if not isinstance(error, Unauthorized | TooManyRequests):
                    unknown_until_s = sent_s + self._settings.response_timeout_s + SERVER_TIMEOUT_S
                self._connectivity.record_failure(activity, error)
                self.counts.retried += 1
                await asyncio.sleep(backoff.next_delay_s(error))
            except ApiStatusError as error:
                self._connectivity.record_success(activity)
                if unknown_until_s is not None:
                    # An earlier request may still be carried out; read the pod once it cannot.
                    await asyncio.sleep(max(0.0, unknown_until_s - loop.time()))
                    return await self._read_bind_outcome(bind, error)
                return BindRefused(bind.uid, error.message)
            else:
                self._connectivity.record_success(activity)
                return BindConfirmed(bind.uid, bind.node)

    async def _read_bind_outcome(self, bind: Bind, why: ApiStatusError) -> BindOutcome:
        """Already bound (here or elsewhere), terminating, gated, or another pod of that name: the pod shows which."""
        backoff = Backoff(self._random, max_s=self._settings.retry_max_s)
        activity = "reading a pod after its bind was refused"
        while True:
            try:
                pod = await self._api.get(f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}")
                outcome = _bind_outcome_from_pod(bind, pod, why)
            except NotFound:
                self._connectivity.record_success(activity)
                return BindLost(bind.uid, f"the pod was deleted: {why.message}")
            except ApiErrors as error:
                self._connectivity.record_failure(activity, error)
                await asyncio.sleep(backoff.next_delay_s(error))
            else:
                self._connectivity.record_success(activity)
                return outcome


class LostLeadership(Exception):
    """The bind must not be sent: this process is no longer the leader."""

    def __init__(self, bind: Bind) -> None:
        super().__init__(f"no longer the leader; {bind.namespace}/{bind.name} is left to the next leader")


def _bind_outcome_from_pod(bind: Bind, pod: dict[str, object], why: ApiStatusError) -> BindOutcome:
    meta, spec = pod.get("metadata"), pod.get("spec")
    if not isinstance(meta, dict) or not isinstance(spec, dict):
        raise InvalidResponse(f"the answer for {bind.namespace}/{bind.name} is not a pod")
    if meta.get("uid") != bind.uid:
        return BindLost(bind.uid, f"the name now belongs to another pod: {why.message}")
    node = spec.get("nodeName")
    if node == bind.node:
        return BindConfirmed(bind.uid, bind.node)
    if node:
        return BindLost(bind.uid, f"another client bound it to {node}: {why.message}")
    return BindRefused(bind.uid, why.message)


def binding_body(bind: Bind) -> bytes:
    """With the UID, the server refuses to bind another pod of the same name."""
    return orjson.dumps(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": bind.name, "namespace": bind.namespace, "uid": bind.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
    )
