"""Leader election on a Lease, compatible with client-go's LeaseLock.

    following ──the lease is free, released or expired, and our update wins──► leading
                                                                                 │ no renewal is confirmed in time
    (the process exits) ◄─────────────────────────────────────────────── lost ◄──┘

Wall clocks of two processes are never compared. Another holder's lease expires on our monotonic clock, counted from when
we saw it change; our own counts from before the renewal was sent. So a leader stops (10 s) before another process may
start (15 s), whatever the server does.

A process can also stand still: stopped, starved, or in a virtual machine that is paused or suspended. `may_write` is
therefore called again when a request is written to its connection. It needs a lease that is valid on a clock that counts
suspended time, and a tick of this module within `STALL_S`, on that clock and on the wall clock: a pause that stops both
clocks of a virtual machine shows only on the wall clock, once it is set. After a stall nothing is written until the
Lease has been renewed, which the server refuses if another process has held it since. `stalls` counts the stalls, so
that what was decided before one is not written after it, and the watches catch up before the next decision.

A new leader does not decide at once. The previous one may have sent a bind just before it died, and the server may act
on it for `SERVER_TIMEOUT_S`; until then the cluster can still change. The wait is skipped only if no such bind can exist:
- the last holder recorded on the lease that no request, its own or an earlier one, could be carried out (`runtime.clean_stop`);
- a lease that has existed for a while was never held;
- there is no lease, or a new one that was never held, and `first_start` finds no trace of an earlier leader. (A lease
  alone does not tell: it may have been deleted a moment ago.)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from random import Random
from typing import Any

from policysched.kube.client.api import ApiClient, ApiErrors, Conflict, InvalidResponse, NotFound
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S

log = logging.getLogger(__name__)
Json = dict[str, Any]

RELEASED_ANNOTATION = "policysched.dev/released-after-transitions"
"""Its value: `leaseTransitions` when a holder that could decide stopped without an open write. Later holders increase that."""

_FAILED_RENEWAL_SPEEDUP = 4.0
"""A failed renewal is retried after `retry_period_s` divided by this, so that many attempts fit before the
deadline and a server that answers only sometimes does not cost the leadership."""
_ATTEMPT_MIN_S = 0.001
"""No response arrives faster. A wait shorter than the clock's resolution could end without the clock moving, and repeat for ever."""

TICK_S = 1.0
STALL_S = 4.0
"""A leader that has not run for this long renews the lease before anything is written."""

NEVER_HELD_AGE_S = 60.0
"""A lease older than this that was never held: no holder of an earlier lease of that name can still be active."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """kube-scheduler's defaults. `handover_wait_s` is the lifetime of a request plus a margin for clocks and network."""

    namespace: str = "kube-system"
    name: str = "policysched"
    lease_duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0
    request_timeout_s: float = 4.0
    handover_wait_s: float = SERVER_TIMEOUT_S + 2.0

    def __post_init__(self) -> None:
        in_order = self.retry_period_s < self.renew_deadline_s < self.lease_duration_s
        assert in_order, f"times in the wrong order: {self}"


class LeadershipStatus(Enum):
    FOLLOWING = "following"
    LEADING = "leading"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """Another holder's lease, and when this renewal was first observed (monotonic seconds)."""

    holder: str
    renew_time: str
    observed_s: float


class LeaderElector:
    """`run` ends only as LOST. `stalls` counts the stalls that ended with a renewal, and those of a follower. `leads`,
    `may_write` and `may_decide` are safe from any thread: they compare clocks with numbers, so they are right even while
    the elector's event loop is blocked.

    `first_start` says whether nothing in the cluster shows that a process of this configuration ever led; it may raise
    an API error, which counts as no.

    Decisions use `monotonic_s`, which should count the time that the machine is suspended; `now_ns` is the wall clock, used
    for times written to the lease, and to notice a stall.
    """

    def __init__(
        self,
        api: ApiClient,
        settings: LeaseSettings,
        *,
        identity: str,
        monotonic_s: Callable[[], float],
        now_ns: Callable[[], int],
        random: Random,
        first_start: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._first_start = first_start
        self._identity = identity
        self._monotonic_s = monotonic_s
        self._now_ns = now_ns
        self._random = random
        self.on_change: Callable[[LeadershipStatus], None] | None = None
        self._observed: _ObservedLease | None = None
        self._last_logged = ""
        self._leads_until_s = float("-inf")
        self._decides_from_s = float("inf")
        self._written_lease: Json | None = None
        self._unanswered_renewals_s: dict[str, float] = {}  # by renewTime: when it was sent
        self._ticked_s, self._ticked_wall_ns = float("-inf"), 0
        self._stalled = asyncio.Event()
        self.stalls = 0
        self.status = LeadershipStatus.FOLLOWING
        self.holder = ""

    @property
    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._settings.namespace}/leases"

    @property
    def _name(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"

    def leads(self) -> bool:
        """Whether a request sent now is still covered by the lease."""
        return self._monotonic_s() < self._leads_until_s

    def may_write(self) -> bool:
        """Whether a request may leave now: leading, and this process has not stalled since the lease was renewed."""
        return self.leads() and self._since_tick_s() < STALL_S

    def may_decide(self) -> bool:
        """As `may_write`, and no request of a previous leader can still change the cluster."""
        return self._decides_from_s <= self._monotonic_s() and self.may_write()

    def decides_in_s(self) -> float:
        """Seconds until `may_decide` can become true; infinite while following."""
        return max(0.0, self._decides_from_s - self._monotonic_s())

    async def run(self) -> None:
        """Ends only as LOST; cancel it to stop earlier."""
        self._tick()
        watching = asyncio.create_task(self._watch_for_stalls())
        try:
            while self.status is LeadershipStatus.FOLLOWING:
                try:
                    await self._try_to_acquire()
                except Conflict:
                    log.debug("another process wrote the lease first", extra={"lease": self._name})
                except ApiErrors as error:
                    message = "not leading: cannot read or acquire the lease; retrying"
                    self._log_once(logging.WARNING, message, error=str(error))
                if self.status is LeadershipStatus.FOLLOWING:
                    await asyncio.sleep(self._settings.retry_period_s * (1 + 0.2 * self._random.random()))
            await self._renew_until_lost()
        finally:
            watching.cancel()

    async def release(self, *, nothing_in_flight: bool) -> None:
        """Call on a clean stop, after cancelling `run`. With writes in flight the lease is left to expire: others wait."""
        if self.status is not LeadershipStatus.LEADING:
            return
        self._leads_until_s = float("-inf")
        self._set_status(LeadershipStatus.LOST)
        if not nothing_in_flight:
            log.warning("stopping with writes in flight; leaving the lease to expire")
            return
        try:
            lease = await self._get()
            spec = lease["spec"]
            if spec.get("holderIdentity") != self._identity:
                return
            if not self.decides_in_s():  # else writes of the previous leader may still be carried out
                annotations = lease["metadata"].setdefault("annotations", {})
                annotations[RELEASED_ANNOTATION] = str(spec.get("leaseTransitions") or 0)
            lease["spec"] = {
                **spec,
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": micro_time(self._now_ns()),
            }
            await self._replace(lease)
        except ApiErrors as error:
            log.warning("cannot release the lease; it will expire", extra={"error": str(error)})

    # ── following ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _try_to_acquire(self) -> None:
        sent_s = self._monotonic_s()
        try:
            lease = await self._get()
        except NotFound:
            body: Json = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            }
            handover_wait_s = await self._handover_wait_s(None)
            body["spec"], sent_s = self._spec({}, transitions=0), self._monotonic_s()
            self._written_lease = _require_lease(
                await self._api.create(self._path, body, timeout_s=self._settings.request_timeout_s)
            )
            self._acquired(sent_s, handover_wait_s=handover_wait_s)
            return
        spec = lease["spec"]
        self.holder = str(spec.get("holderIdentity") or "")
        if self.holder and self.holder != self._identity and (left_s := self._expires_in_s(spec)) > 0:
            self._log_once(
                logging.INFO, "not leading: the lease is held by another process", holder=self.holder
            )
            facts = {"renewed": spec.get("renewTime"), "expires_in_s": round(left_s, 1)}
            log.debug("the lease is held", extra={"holder": self.holder, **facts})
            return
        transitions = int(spec.get("leaseTransitions") or 0)
        handover_wait_s = await self._handover_wait_s(lease)
        lease["metadata"].get("annotations", {}).pop(RELEASED_ANNOTATION, None)
        lease["spec"] = self._spec(
            spec, transitions=transitions + 1 if spec.get("acquireTime") else transitions
        )
        sent_s = self._monotonic_s()
        await self._replace(lease)
        self._acquired(sent_s, handover_wait_s=handover_wait_s)

    def _log_once(self, level: int, message: str, **facts: str) -> None:
        """Skip a message that equals the last one."""
        entry = f"{message} {facts}"
        if entry != self._last_logged:
            log.log(level, message, extra={"lease": self._name, **facts})
        self._last_logged = entry

    def _expires_in_s(self, spec: Json) -> float:
        """On our clock, counted from when this renewal was first observed."""
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        now_s = self._monotonic_s()
        if self._observed is None or (self._observed.holder, self._observed.renew_time) != (holder, renewed):
            self._observed = _ObservedLease(holder, renewed, now_s)
        duration_s = float(spec.get("leaseDurationSeconds") or self._settings.lease_duration_s)
        return self._observed.observed_s + duration_s - now_s

    async def _handover_wait_s(self, lease: Json | None) -> float:
        if lease is not None and self._no_bind_in_flight(lease):
            return 0.0
        never_held = lease is None or not (
            lease["spec"].get("holderIdentity") or lease["spec"].get("acquireTime")
        )
        if never_held and self._first_start is not None:
            try:
                if await self._first_start():
                    return 0.0
            except ApiErrors as error:
                log.debug("cannot determine whether another process led before", extra={"error": str(error)})
        return self._settings.handover_wait_s

    def _no_bind_in_flight(self, lease: Json) -> bool:
        meta, spec = lease["metadata"], lease["spec"]
        if spec.get("holderIdentity"):
            return False
        if not spec.get("acquireTime"):
            created = meta.get("creationTimestamp")
            age_s = self._now_ns() / 1e9 - datetime.fromisoformat(created).timestamp() if created else 0.0
            return age_s > NEVER_HELD_AGE_S
        released = (meta.get("annotations") or {}).get(RELEASED_ANNOTATION)
        return released is not None and released == str(spec.get("leaseTransitions") or 0)

    def _acquired(self, sent_s: float, *, handover_wait_s: float) -> None:
        self.holder = self._identity
        self._leads_until_s = sent_s + self._settings.renew_deadline_s
        self.stalls += self._since_tick_s() >= STALL_S
        self._tick()
        self._decides_from_s = self._monotonic_s() + handover_wait_s
        log.info(
            "acquired the lease; leading", extra={"lease": self._name, "first_decision_in_s": handover_wait_s}
        )
        self._set_status(LeadershipStatus.LEADING)

    # ── leading ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _renew_until_lost(self) -> None:
        await self._renew_until_deadline()
        self._leads_until_s = float("-inf")
        log.error("lost the lease", extra={"lease": self._name, "holder": self.holder})
        self._set_status(LeadershipStatus.LOST)

    def _tick(self) -> None:
        self._ticked_s, self._ticked_wall_ns = self._monotonic_s(), self._now_ns()

    def _since_tick_s(self) -> float:
        return self._gap_s(self._monotonic_s(), self._now_ns())

    def _gap_s(self, monotonic_s: float, wall_ns: int) -> float:
        """Seconds since the last tick, on the clock that advanced more."""
        return max(monotonic_s - self._ticked_s, (wall_ns - self._ticked_wall_ns) / 1e9)

    async def _watch_for_stalls(self) -> None:
        """Tick while the process runs. After a stall, the next tick of a leader comes from a renewal that was sent after it."""
        warned = False
        while True:
            await asyncio.sleep(TICK_S)
            stalled_s = self._since_tick_s()
            if stalled_s < STALL_S or self.status is LeadershipStatus.FOLLOWING:
                self.stalls += stalled_s >= STALL_S
                self._tick()
                warned = False
                continue
            if not warned:
                log.warning(
                    "the process stalled; suspending writes until the lease is renewed",
                    extra={"lease": self._name, "for_s": round(stalled_s, 1)},
                )
            warned = True
            self._stalled.set()

    async def _sleep_until_renewal(self, delay_s: float) -> None:
        """Renew at once after a stall, but not again until the next time."""
        try:
            async with asyncio.timeout(delay_s):
                await self._stalled.wait()
                self._stalled.clear()
        except TimeoutError:
            return

    async def _renew_until_deadline(self) -> None:
        failing = False
        while True:
            left_s = self._leads_until_s - self._monotonic_s()
            if left_s < _ATTEMPT_MIN_S:
                break
            retry_s = self._settings.retry_period_s / (_FAILED_RENEWAL_SPEEDUP if failing else 1)
            await self._sleep_until_renewal(min(retry_s, left_s))
            try:
                async with asyncio.timeout(max(0.0, self._leads_until_s - self._monotonic_s())):
                    if not await self._renew():
                        break
                failing = False
            except ApiErrors as error:
                if not failing:
                    message = "cannot renew the lease; retrying until the renew deadline"
                    log.warning(message, extra={"error": str(error)})
                failing = True
            except TimeoutError:
                failing = True  # lost, unless a read has shown meanwhile that an earlier renewal arrived

    async def _renew(self) -> bool:
        """False if another process holds the lease, or it was deleted: then any process may create it at any time. The last
        written version is replaced without reading it first, because a server that fails often is more likely to answer
        one request than two in a row."""
        lease = self._written_lease or await self._read_if_held()
        if lease is None:
            return False
        try:
            await self._write_renewal(lease)
        except (Conflict, NotFound):
            # It changed meanwhile, perhaps by an earlier renewal of ours without a response: read who holds it.
            self._written_lease = None
            lease = await self._read_if_held()
            if lease is None:
                return False
            try:
                await self._write_renewal(lease)
            except Conflict:
                self._written_lease = None
        return True

    async def _read_if_held(self) -> Json | None:
        """The current lease; None if it is no longer ours. A renewal that it shows has been carried out."""
        try:
            lease = await self._get()
        except NotFound:
            return None
        self.holder = str(lease["spec"].get("holderIdentity") or "")
        if self.holder != self._identity:
            return None
        sent_s = self._unanswered_renewals_s.get(str(lease["spec"].get("renewTime")))
        if sent_s is not None:
            # A renewal without a response was carried out, and no process observed it before it was sent.
            self._leads_until_s = max(self._leads_until_s, sent_s + self._settings.renew_deadline_s)
        return lease

    async def _write_renewal(self, lease: Json) -> None:
        spec = lease["spec"]
        lease = {**lease, "spec": self._spec(spec, transitions=int(spec.get("leaseTransitions") or 0))}
        sent_s, sent_wall_ns, renew_time = self._monotonic_s(), self._now_ns(), lease["spec"]["renewTime"]
        if renew_time != spec.get("renewTime"):  # else it is indistinguishable from the previous renewal
            self._unanswered_renewals_s[renew_time] = sent_s
        await self._replace(lease)
        self._unanswered_renewals_s.clear()
        self._leads_until_s = sent_s + self._settings.renew_deadline_s
        if sent_s > self._ticked_s or sent_wall_ns > self._ticked_wall_ns:
            self.stalls += self._gap_s(sent_s, sent_wall_ns) >= STALL_S  # before the tick, for other threads
            self._ticked_s, self._ticked_wall_ns = sent_s, sent_wall_ns

    # ── the Lease on the wire ──────────────────────────────────────────────────────────────────────────────────────

    async def _get(self) -> Json:
        path = f"{self._path}/{self._settings.name}"
        return _require_lease(await self._api.get(path, timeout_s=self._settings.request_timeout_s))

    async def _replace(self, lease: Json) -> None:
        """With the version that was read: of two concurrent writers, one gets a Conflict."""
        self._written_lease = _require_lease(
            await self._api.replace(
                f"{self._path}/{self._settings.name}", lease, timeout_s=self._settings.request_timeout_s
            )
        )

    def _spec(self, before: Json, *, transitions: int) -> Json:
        now = micro_time(self._now_ns())
        ours = before.get("holderIdentity") == self._identity
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._settings.lease_duration_s),
            "acquireTime": before["acquireTime"] if ours and before.get("acquireTime") else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _set_status(self, status: LeadershipStatus) -> None:
        self.status = status
        if self.on_change is not None:
            self.on_change(status)


def _require_lease(answer: Json) -> Json:
    if not isinstance(answer.get("metadata"), dict) or not isinstance(answer.get("spec"), dict | None):
        raise InvalidResponse("the response is not a Lease")
    answer["spec"] = answer.get("spec") or {}
    return answer


def micro_time(now_ns: int) -> str:
    """`metav1.MicroTime`: six digits of a second, in UTC."""
    return datetime.fromtimestamp(now_ns / 1e9, UTC).isoformat("T", "microseconds")[:26] + "Z"
