"""Writes events and the PodScheduled condition, with lower priority than binds.

Namespaces take turns, since a webhook of one can make its writes slow (`namespace_turns`); within one, conditions come before
events. Both queues are bounded: the namespace with the most entries loses its oldest one, which is counted and logged. Only
the newest condition of a pod is written. A repeated event becomes one object with a count (`series`), updated at most once
per interval. While many binds are queued, reports are written slowly, so that they never delay placements. Each event is
attempted only a few times: the cluster's state does not depend on it.

A condition names the version of its pod, so a late or repeated one cannot overwrite a newer state: a bound pod stays
PodScheduled=True.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from policysched.kube.client.admission import is_denied_by_admission
from policysched.kube.client.api import (
    STRATEGIC_PATCH,
    ApiClient,
    ApiErrors,
    ApiStatusError,
    Conflict,
    Forbidden,
    InvalidResponse,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from policysched.kube.client.backoff import Backoff
from policysched.kube.client.transport import METADATA_LIST_ONLY, METADATA_ONLY, TransportError
from policysched.kube.leader_election import micro_time
from policysched.kube.write.event_requests import EventRequests
from policysched.kube.write.namespace_turns import NamespaceTurns, send_in_turn
from policysched.kube.write.pod_group_status import write_pod_group_status
from policysched.kube.write.rate_limit import RateLimiter
from policysched.kube.write.report_content import (
    EventContent,
    PodScheduledCondition,
    event_name,
)
from policysched.kube.write.report_queue import AnyStatus, EventSeries, ReportQueue
from policysched.model.pod_groups import PodGroupStatus
from policysched.text.sanitize import escape_unprintable

log = logging.getLogger(__name__)
Json = dict[str, Any]
PATCH_SERVER_TIMEOUT = "2s"
"""How long the server may act on the patch of a condition."""
DENIED_LOG_INTERVAL_S = 60.0
BESIDE_BINDS_INTERVAL_S = 0.02
"""Pause between writes while many binds are queued. Writes do not stop: the binds may all be of one namespace."""
CONDITION_CONFLICTS_MAX = 4
"""How often a condition is retried immediately after a version conflict."""


@dataclass(frozen=True, slots=True)
class ReporterSettings:
    """`writes_per_s` 0: limited only by `concurrent_writes_max`. While more than `queued_binds_max` binds are queued: 50 writes a
    second. `series_update_interval_s`: the minimum interval between writes of a repeated event's count. `event_attempts_max` is
    kube-scheduler's: more than a minute with backoff, so a restart of the API server loses no `Scheduled` event."""

    concurrent_writes_max: int = 12
    writes_per_s: float = 1000.0
    burst: int = 2000
    queued_binds_max: int = 200
    queued_events_max: int = 20_000
    queued_conditions_max: int = 50_000
    series_max: int = 20_000
    series_update_interval_s: float = 60.0
    event_attempts_max: int = 12


@dataclass(slots=True)
class ReporterCounts:
    """Running totals, for metrics."""

    events_written: int = 0
    conditions_written: int = 0
    dropped: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class UnboundPodVersion:
    """An unbound pod as last watched: its version, and the generation of its spec (0: not counted)."""

    version: str
    generation: int


class Reporter:
    """`record_event` and `set_condition` never wait. `discard_condition` drops the unsent condition of a pod that is about
    to be bound.

    `queued_binds` is the binder's load. `unbound_version` is the last watched version of a pod by UID; None if it is on a
    node or gone. `instance` identifies this process in events.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        instance: str,
        now_ns: Callable[[], int],
        random: Random,
        queued_binds: Callable[[], int],
        unbound_version: Callable[[str], UnboundPodVersion | None],
        settings: ReporterSettings = ReporterSettings(),
    ) -> None:
        self._api = api
        self._events = EventRequests(api, instance)
        self._now_ns = now_ns
        self._random = random
        self._queued_binds = queued_binds
        self._unbound_version = unbound_version
        self._settings = settings
        self._turns: NamespaceTurns[str] = NamespaceTurns(settings.concurrent_writes_max)
        self._queue = ReportQueue(self._turns)
        self._series: OrderedDict[EventContent, EventSeries] = OrderedDict()
        # The newest status of each object until it is written or abandoned: older ones are not retried.
        self._latest_conditions: dict[str, AnyStatus] = {}
        self._in_flight: set[str] = set()
        self._backoffs: dict[str, Backoff] = {}
        # The conditions that the server has. Bounded: an evicted entry costs one patch. An entry is removed before a
        # patch is sent, since the server's state is unknown until the response.
        self._written_conditions: OrderedDict[str, tuple[str, str] | PodGroupStatus] = OrderedDict()
        self._delayed_events: set[asyncio.TimerHandle] = set()
        self._active = 0
        self._drop_logged_s = self._denied_logged_s = float("-inf")
        self._denied_count = 0  # since the last log line
        self.counts = ReporterCounts()

    @property
    def pending_writes(self) -> int:
        """Writes without a response."""
        return len(self._queue) + self._active

    @property
    def prompt_writes(self) -> int:
        """Writes without a response, of namespaces that are not slow."""
        return self._turns.prompt()

    # ── queueing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def record_event(self, content: EventContent) -> None:
        """Queue an event, or count it if an equal one was recorded before."""
        content = content.remembered
        series = self._series.get(content)
        if series is None:
            series = EventSeries(name=event_name(content.regarding.name, self._random))
            self._series[content] = series
            if len(self._series) > self._settings.series_max:
                self._series.popitem(last=False)
        else:
            self._series.move_to_end(content)
            series.count += 1
        series.last_ns = self._now_ns()
        if series.queued:
            return
        wait_s = (
            series.written_s + self._settings.series_update_interval_s - asyncio.get_running_loop().time()
        )
        series.queued = True
        if series.written == 0 or wait_s <= 0:
            self._enqueue_event(content, series)
        else:
            self._enqueue_event_later(wait_s, content, series)

    def set_condition(self, condition: AnyStatus) -> None:
        """Queue the status of a pod or PodGroup, replacing an older one that is not yet written."""
        written = self._written_conditions.get(condition.uid)
        if written == condition.content and condition.uid not in self._latest_conditions:
            return
        self._latest_conditions[condition.uid] = condition
        self._queue.put_status(condition)
        if self._queue.status_count > self._settings.queued_conditions_max:
            oldest = self._queue.oldest_status_of_most()
            self._queue.remove_status(oldest)
            self._finish_condition(oldest)
            self._count_dropped()

    def discard_condition(self, uid: str) -> None:
        """Drop the queued condition of a pod that is about to be bound. A write in flight may arrive before the binding,
        which overrides it; it cannot arrive after it, since the pod then has another version."""
        condition = self._latest_conditions.pop(uid, None)
        if condition is not None:
            self._queue.remove_status(condition)
        self._backoffs.pop(uid, None)
        self._written_conditions.pop(uid, None)

    def _enqueue_event(self, content: EventContent, series: EventSeries) -> None:
        self._queue.put_event((content, series))
        if self._queue.event_count > self._settings.queued_events_max:
            dropped = self._queue.pop_event_of_most()
            if dropped is not None:
                dropped[1].queued = False
            self._count_dropped()

    def _enqueue_event_later(self, wait_s: float, content: EventContent, series: EventSeries) -> None:
        def due() -> None:
            self._delayed_events.discard(handle)
            self._enqueue_event(content, series)

        handle = asyncio.get_running_loop().call_later(wait_s, due)
        self._delayed_events.add(handle)

    def _count_dropped(self) -> None:
        self.counts.dropped += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._drop_logged_s > 60:
            self._drop_logged_s = now_s
            log.warning(
                "the write queue is full; dropped events or conditions",
                extra={"dropped_total": self.counts.dropped},
            )

    def _count_denied(self, error: ApiStatusError) -> None:
        """Only the webhook's owner can fix this, but the operator has to know if conditions of the whole cluster are denied."""
        self._denied_count += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._denied_logged_s >= DENIED_LOG_INTERVAL_S:
            log.warning(
                "admission denies conditions; their pods do not show why they are pending",
                extra={"count": self._denied_count, "error": error.message},
            )
            self._denied_logged_s, self._denied_count = now_s, 0

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Until cancelled."""
        limiter = RateLimiter(self._settings.writes_per_s, self._settings.burst)
        try:
            await self._turns.run(self._write_next, partial(self._wait_until_allowed, limiter))
        finally:
            for handle in self._delayed_events:
                handle.cancel()

    async def _wait_until_allowed(self, limiter: RateLimiter) -> None:
        if self._queued_binds() > self._settings.queued_binds_max:
            await asyncio.sleep(BESIDE_BINDS_INTERVAL_S)
        await limiter.acquire()

    async def _write_next(self, namespace: str) -> None:
        """Write the namespace's next condition or event, unless it was dropped or discarded."""
        # Two concurrent writes for a pod could arrive out of order.
        condition = self._queue.first_status(namespace, busy=self._in_flight)
        self._active += 1
        try:
            if condition is not None:
                self._queue.remove_status(condition)
                await self._write_condition(condition)
            elif (event := self._queue.pop_event(namespace)) is not None:
                await self._write_event(*event)
        finally:
            self._active -= 1

    async def _write_condition(self, condition: AnyStatus) -> None:
        self._in_flight.add(condition.uid)
        wait_s = 0.0
        try:
            if self._latest_conditions.get(condition.uid) is condition:
                await send_in_turn(partial(self._patch_status, condition))
                self._finish_condition(condition)
        except (TransportError, InvalidResponse, Unauthorized, TooManyRequests, ServerError) as error:
            self.counts.failed += 1
            backoff = self._backoffs.get(condition.uid) or Backoff(self._random, initial_s=0.5)
            if condition.uid in self._latest_conditions:  # otherwise nothing removes the backoff
                self._backoffs[condition.uid] = backoff
            wait_s = backoff.next_delay_s(error)
        except ApiStatusError as error:
            # The pod is gone or replaced, or RBAC denies the write: retrying does not help.
            self.counts.failed += 1
            self._finish_condition(condition)
            is_denied = is_denied_by_admission(error.message)
            level = logging.WARNING if isinstance(error, Forbidden) and not is_denied else logging.DEBUG
            log.log(level, "cannot write a condition", extra={"error": error.message})
            if is_denied:
                self._count_denied(error)
        finally:
            # During the backoff no newer condition of this pod is written, and `discard_condition` still works.
            await asyncio.sleep(wait_s)
            self._in_flight.discard(condition.uid)
        if wait_s and self._latest_conditions.get(condition.uid) is condition:
            self._queue.put_status(condition)
        else:
            self._queue.add_turn(condition)

    def _finish_condition(self, condition: AnyStatus) -> None:
        """The condition is written or abandoned; a newer one stays queued."""
        if self._latest_conditions.get(condition.uid) is condition:
            del self._latest_conditions[condition.uid]
            self._backoffs.pop(condition.uid, None)

    async def _patch_status(self, status: AnyStatus) -> None:
        if isinstance(status, PodScheduledCondition):
            await self._patch_condition(status)
            return
        written = self._written_conditions.pop(status.uid, None)
        before = written if isinstance(written, PodGroupStatus) else None
        now = micro_time(self._now_ns())[:19] + "Z"
        await write_pod_group_status(self._api, status, now, before, PATCH_SERVER_TIMEOUT)
        self._count_written(status)

    def _count_written(self, status: AnyStatus) -> None:
        self.counts.conditions_written += 1
        self._written_conditions[status.uid] = status.content
        if len(self._written_conditions) > self._settings.series_max:
            self._written_conditions.popitem(last=False)

    async def _patch_condition(self, condition: PodScheduledCondition) -> None:
        """Patch the last watched version of the pod, or after a conflict the current one."""
        path = f"/api/v1/namespaces/{condition.namespace}/pods/{condition.name}"
        first = self._written_conditions.pop(condition.uid, None) is None
        shown = self._unbound_version(condition.uid)
        for _ in range(CONDITION_CONFLICTS_MAX):
            if shown is None or self._latest_conditions.get(condition.uid) is not condition:
                return
            body = self._condition_body(condition, shown, first=first)
            try:
                await self._api.patch(
                    f"{path}/status",
                    body,
                    STRATEGIC_PATCH,
                    params={"timeout": PATCH_SERVER_TIMEOUT},
                    timeout_s=4.0,
                    accept=METADATA_ONLY,
                )
            except Conflict:
                shown = await self._current_unbound_version(condition)
            else:
                self._count_written(condition)
                return
        raise InvalidResponse(f"{path} conflicted on all {CONDITION_CONFLICTS_MAX} attempts")

    async def _current_unbound_version(self, condition: PodScheduledCondition) -> UnboundPodVersion | None:
        """None: the pod is on a node or gone, or another pod has its name. The field selector tells the node, so metadata alone is
        enough: a whole pod can be a megabyte. Raises InvalidResponse."""
        path = f"/api/v1/namespaces/{condition.namespace}/pods"
        selected = {"fieldSelector": f"metadata.name={condition.name},spec.nodeName="}
        answer = await self._api.get(path, params=selected, accept=METADATA_LIST_ONLY)
        pods = answer.get("items", [{}]) or []  # an empty list can be null
        for pod in pods if isinstance(pods, list) else [None]:
            meta = pod.get("metadata") if isinstance(pod, dict) else None
            if not isinstance(meta, dict) or not meta.get("resourceVersion"):
                raise InvalidResponse(f"GET {path}: the answer is not a list of pods")
            if meta.get("uid") == condition.uid:
                generation = meta.get("generation")
                return UnboundPodVersion(
                    str(meta["resourceVersion"]), generation if isinstance(generation, int) else 0
                )
        return None

    def _condition_body(
        self, condition: PodScheduledCondition, shown: UnboundPodVersion, *, first: bool
    ) -> Json:
        """A strategic merge by `type`. UID and version make the server refuse it for another pod of that name and for this
        pod once it is bound. Only the first patch sets the transition time: later ones change reason and message.
        `observedGeneration` as in kube-scheduler 1.36; older servers drop it."""
        changed = {"lastTransitionTime": micro_time(self._now_ns())[:19] + "Z"} if first else {}
        observed = {"observedGeneration": shown.generation} if shown.generation else {}
        entry = {
            "type": "PodScheduled",
            "status": "False",
            "reason": condition.reason,
            "message": escape_unprintable(condition.message),
            **observed,
            **changed,
        }
        return {
            "metadata": {"uid": condition.uid, "resourceVersion": shown.version},
            "status": {"conditions": [entry]},
        }

    async def _write_event(self, content: EventContent, series: EventSeries) -> None:
        series.queued = False
        backoff = Backoff(self._random, initial_s=0.5)
        for _ in range(self._settings.event_attempts_max):
            count = series.count
            try:
                write = self._events.create if series.written == 0 else self._events.patch_count
                await send_in_turn(partial(write, content, series))
            except (ServerError, TooManyRequests) as error:
                await asyncio.sleep(backoff.next_delay_s(error))
            except NotFound as error:
                if series.written == 0:  # the namespace is gone
                    return self._abandon_event(content, error)
                series.written = 0  # the event has expired: create it again
                series.name = event_name(content.regarding.name, self._random)
            except Conflict as error:
                if error.reason == "AlreadyExists":
                    series.written = count  # created by an earlier attempt whose response was lost
                    return None
                await asyncio.sleep(backoff.next_delay_s(error))  # such as of a quota
            except ApiStatusError as error:
                return self._abandon_event(content, error)
            except ApiErrors as error:
                await asyncio.sleep(backoff.next_delay_s(error))
            else:
                series.written = count
                series.written_s = asyncio.get_running_loop().time()
                self.counts.events_written += 1
                return None
        return self._abandon_event(content, None)

    def _abandon_event(self, content: EventContent, error: ApiStatusError | None) -> None:
        self.counts.failed += 1
        log.debug(
            "cannot write an event",
            extra={
                "reason": content.reason,
                "about": content.regarding.name,
                "error": str(error or "no response"),
            },
        )
