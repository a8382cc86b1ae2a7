"""Who leads: an elector of our own on a Lease in the shape of client-go's LeaseLock.

    following ──the Lease is free, released or expired, and our update won──► leading
                                                                                 │ no renewal was answered in time
    (the process ends) ◄──────────────────────────────────────────────── lost ◄──┘

Two clocks never meet: a foreign holder's time runs on our monotonic clock from when we saw the Lease change, ours from
before the renewal was sent. So we stop (10 s) before anybody else may start (15 s), whatever the server does.

A new leader does not decide at once. The one before it may have sent a bind just before it died, and the server may
act on it for `REQUEST_LIFE_S`; until that is over, the cluster that we see can still change under us. The wait is
skipped only where that is known to be impossible: the last holder was one of us and said on the Lease that it ended
with no bind unanswered, or nobody ever held a Lease that has been there for a while.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from random import Random
from typing import Any

from policysched.kube.client.api import ApiClient, ApiErrors, Conflict, InvalidResponse, NotFound
from policysched.kube.write.bind import SERVER_TIMEOUT_S

log = logging.getLogger(__name__)
Json = dict[str, Any]

RELEASED_ANNOTATION = "policysched.dev/released-after-transitions"
"""Annotation: at this count of transitions the holder ended with nothing in flight. Another holder moves the count."""

_FAILED_RENEWAL_SPEEDUP = 4.0
"""A renewal that failed is tried again after this part of `retry_s`: many tries fit before the deadline, so that a server that
answers only now and then costs nobody the leadership."""
_ATTEMPT_MIN_S = 0.001
"""No answer comes in less. A wait as short as a clock's rounding may end without the clock having moved, and so for ever."""

NEVER_HELD_AGE_S = 60.0
"""A Lease that is older than this and was never held: nobody is left who may have held one of that name before it."""


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """kube-scheduler's times. `handover_wait_s` is the request life and a margin for clocks and roads."""

    namespace: str = "kube-system"
    name: str = "policysched"
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    request_timeout_s: float = 4.0
    handover_wait_s: float = SERVER_TIMEOUT_S + 2.0

    def __post_init__(self) -> None:
        assert self.retry_s < self.renew_deadline_s < self.duration_s, f"times in the wrong order: {self}"


class LeadershipStatus(Enum):
    FOLLOWING = "following"
    LEADING = "leading"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    """The Lease as another left it, and when we first saw it so (monotonic seconds)."""

    holder: str
    renew_time: str
    observed_s: float


class LeaderElector:
    """`run` until it ends: as LOST. `leads` and `may_decide` can be asked from any thread:
    they compare a clock with a number and so are right even while the elector's own loop is stuck.

    `monotonic_s` is the clock that counts, `now_ns` the wall clock, only for what others read.
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
    ) -> None:
        self._api = api
        self._settings = settings
        self._identity = identity
        self._monotonic_s = monotonic_s
        self._now_ns = now_ns
        self._random = random
        self.on_change: Callable[[LeadershipStatus], None] | None = None
        self._observed: _ObservedLease | None = None
        self._last_logged = ""  # the last that was said of standing by
        self._leads_until_s = float("-inf")
        self._decides_from_s = float("inf")
        self._written_lease: Json | None = None
        self._unanswered_renewals_s: dict[str, float] = {}  # by renewTime: when it was sent
        self.status = LeadershipStatus.FOLLOWING
        self.holder = ""

    @property
    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._settings.namespace}/leases"

    @property
    def _name(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"

    def leads(self) -> bool:
        """Whether what we send now is still covered by the Lease."""
        return self._monotonic_s() < self._leads_until_s

    def may_decide(self) -> bool:
        """Leading, and nothing that a leader before us sent can still change the cluster."""
        now_s = self._monotonic_s()
        return self._decides_from_s <= now_s < self._leads_until_s

    def decides_in_s(self) -> float:
        """Seconds until `may_decide` can become true; infinite while following."""
        return max(0.0, self._decides_from_s - self._monotonic_s())

    async def run(self) -> None:
        """Ends only as LOST; cancel it to stop without that."""
        while self.status is LeadershipStatus.FOLLOWING:
            try:
                await self._try_to_acquire()
            except Conflict:
                log.debug("another process wrote the lease first", extra={"lease": self._name})
            except ApiErrors as error:
                self._log_once(
                    logging.WARNING, "not leading: cannot read or acquire the lease; retrying", why=str(error)
                )
            if self.status is LeadershipStatus.FOLLOWING:
                await asyncio.sleep(self._settings.retry_s * (1 + 0.2 * self._random.random()))
        await self._renew_until_lost()

    async def release(self, *, nothing_in_flight: bool) -> None:
        """Give the Lease up on a clean stop. With binds still unanswered it is left to expire, so that the next
        leader waits. Call it after `run` was cancelled."""
        if self.status is not LeadershipStatus.LEADING:
            return
        self._leads_until_s = float("-inf")
        self._set_status(LeadershipStatus.LOST)
        if not nothing_in_flight:
            log.warning("stopping with binds in flight; the lease is left to expire")
            return
        try:
            lease = await self._get()
            spec = lease["spec"]
            if spec.get("holderIdentity") != self._identity:
                return
            annotations = lease["metadata"].setdefault("annotations", {})
            annotations[RELEASED_ANNOTATION] = str(spec.get("leaseTransitions") or 0)
            lease["spec"] = {
                **spec,
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "renewTime": self._now_micro_time(),
            }
            await self._replace(lease)
        except ApiErrors as error:
            log.warning("cannot release the lease; it will expire", extra={"why": str(error)})

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
                "spec": self._spec({}, transitions=0),
            }
            self._written_lease = _require_lease(
                await self._api.create(self._path, body, timeout_s=self._settings.request_timeout_s)
            )
            self._acquired(sent_s, handover_wait_s=self._settings.handover_wait_s)
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
        settle_s = 0.0 if self._no_bind_in_flight(lease) else self._settings.handover_wait_s
        lease["metadata"].get("annotations", {}).pop(RELEASED_ANNOTATION, None)
        lease["spec"] = self._spec(
            spec, transitions=transitions + 1 if spec.get("acquireTime") else transitions
        )
        sent_s = self._monotonic_s()
        await self._replace(lease)
        self._acquired(sent_s, handover_wait_s=settle_s)

    def _log_once(self, level: int, message: str, **facts: str) -> None:
        """Again only when it is another thing than the last time."""
        said = f"{message} {facts}"
        if said != self._last_logged:
            log.log(level, message, extra={"lease": self._name, **facts})
        self._last_logged = said

    def _expires_in_s(self, spec: Json) -> float:
        """By our own clock, from when we first saw this renewal."""
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        now_s = self._monotonic_s()
        if self._observed is None or (self._observed.holder, self._observed.renew_time) != (holder, renewed):
            self._observed = _ObservedLease(holder, renewed, now_s)
        duration_s = float(spec.get("leaseDurationSeconds") or self._settings.duration_s)
        return self._observed.observed_s + duration_s - now_s

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
        self._decides_from_s = self._monotonic_s() + handover_wait_s
        log.info(
            "acquired the lease; leading", extra={"lease": self._name, "first_decision_in_s": handover_wait_s}
        )
        self._set_status(LeadershipStatus.LEADING)

    # ── leading ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _renew_until_lost(self) -> None:
        failing = False
        while True:
            left_s = self._leads_until_s - self._monotonic_s()
            if left_s < _ATTEMPT_MIN_S:
                break
            retry_s = self._settings.retry_s / _FAILED_RENEWAL_SPEEDUP if failing else self._settings.retry_s
            await asyncio.sleep(min(retry_s, left_s))
            try:
                async with asyncio.timeout(max(0.0, self._leads_until_s - self._monotonic_s())):
                    if not await self._renew():
                        break
                failing = False
            except ApiErrors as error:
                if not failing:
                    log.warning(
                        "cannot renew the lease; retrying until the deadline", extra={"why": str(error)}
                    )
                failing = True
            except TimeoutError:
                failing = True  # and over, unless a look has told meanwhile that an earlier try arrived
        self._leads_until_s = float("-inf")
        log.error("lost the lease", extra={"lease": self._name, "holder": self.holder})
        self._set_status(LeadershipStatus.LOST)

    async def _renew(self) -> bool:
        """False where another holds it now, or it was deleted: then anybody may create it anew at any time. The version
        that we wrote last is written over without a look, for a server that fails often is more likely to answer one
        request than two in a row."""
        lease = self._written_lease or await self._read_if_held()
        if lease is None:
            return False
        try:
            await self._write_renewal(lease)
        except (Conflict, NotFound):
            # Somebody changed it between, perhaps an earlier try of ours that got no answer: the look tells whose it is.
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
        """The Lease as it is now; None where it is not ours any more. A renewal of ours that it shows has been made."""
        try:
            lease = await self._get()
        except NotFound:
            return None
        self.holder = str(lease["spec"].get("holderIdentity") or "")
        if self.holder != self._identity:
            return None
        sent_s = self._unanswered_renewals_s.get(str(lease["spec"].get("renewTime")))
        if sent_s is not None:
            # A renewal that got no answer is there all the same, and nobody saw it before it was sent.
            self._leads_until_s = max(self._leads_until_s, sent_s + self._settings.renew_deadline_s)
        return lease

    async def _write_renewal(self, lease: Json) -> None:
        spec = lease["spec"]
        lease = {**lease, "spec": self._spec(spec, transitions=int(spec.get("leaseTransitions") or 0))}
        sent_s, renew_time = self._monotonic_s(), lease["spec"]["renewTime"]
        if renew_time != spec.get("renewTime"):  # else it could not be told from the one before it
            self._unanswered_renewals_s[renew_time] = sent_s
        await self._replace(lease)
        self._unanswered_renewals_s.clear()
        self._leads_until_s = sent_s + self._settings.renew_deadline_s

    # ── the Lease on the wire ──────────────────────────────────────────────────────────────────────────────────────

    async def _get(self) -> Json:
        path = f"{self._path}/{self._settings.name}"
        return _require_lease(await self._api.get(path, timeout_s=self._settings.request_timeout_s))

    async def _replace(self, lease: Json) -> None:
        """With the version that was read: of two that try at once, one gets a Conflict."""
        self._written_lease = _require_lease(
            await self._api.replace(
                f"{self._path}/{self._settings.name}", lease, timeout_s=self._settings.request_timeout_s
            )
        )

    def _spec(self, before: Json, *, transitions: int) -> Json:
        now = self._now_micro_time()
        ours = before.get("holderIdentity") == self._identity
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._settings.duration_s),
            "acquireTime": before["acquireTime"] if ours and before.get("acquireTime") else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _now_micro_time(self) -> str:
        return micro_time(self._now_ns())

    def _set_status(self, standing: LeadershipStatus) -> None:
        self.status = standing
        if self.on_change is not None:
            self.on_change(standing)


def _require_lease(answer: Json) -> Json:
    if not isinstance(answer.get("metadata"), dict) or not isinstance(answer.get("spec"), dict | None):
        raise InvalidResponse("the answer is not a Lease")
    answer["spec"] = answer.get("spec") or {}
    return answer


def micro_time(now_ns: int) -> str:
    """`metav1.MicroTime`: six digits of a second, in UTC."""
    return datetime.fromtimestamp(now_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
