"""Planted bugs of what is written for whom: pods of other schedulers, events, leaders and restarts.

Each function returns the patch (`planted`).
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from policysched.daemon.last_good_store import LastGoodStore
from policysched.kube.client.api import ApiClient
from policysched.kube.client.transport import Transport
from policysched.kube.decode.pods import decode_pod
from policysched.kube.leader_election import LeaderElector
from policysched.kube.watch.resources import PODS
from policysched.kube.write.bind import Binder
from policysched.kube.write.event_requests import EventRequests
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.report_content import EventContent
from policysched.model.pod_status import ObservedPod
from policysched.runtime import scheduler_app, watched_resources
from policysched.scheduler.commands import ReportPodEvent
from policysched.scheduler.events import PodUpdated
from policysched.scheduler.pod_events import PodEvents
from policysched.scheduler.policies.policy_states import PolicyStates
from tests.simulation.churn import UNKNOWN_SCHEDULER
from tests.simulation.planted import all_patches

# ── leadership ────────────────────────────────────────────────────────────────────────────────


def leadership_is_not_checked_at_the_write() -> AbstractContextManager[Any]:
    def unfenced(self: ApiClient, transport: Transport, *, may_write: object = None) -> None:
        del may_write
        self._transport, self._may_write = transport, None

    return patch.object(ApiClient, "__init__", unfenced)


def a_bind_outlives_a_stall_of_its_process() -> AbstractContextManager[Any]:
    return patch.object(scheduler_app.SchedulerApp, "_make_fence", lambda _: lambda: True)


# ── pods of other schedulers ────────────────────────────────────────────────────────────────────────


def pods_of_unknown_schedulers_are_scheduled() -> AbstractContextManager[Any]:
    def decode(obj: Any) -> PodUpdated:
        observed = decode_pod(obj)
        is_unknown = observed.pod.scheduler == UNKNOWN_SCHEDULER
        return PodUpdated(
            replace(observed, pod=replace(observed.pod, scheduler="beta")) if is_unknown else observed
        )

    pods = replace(PODS, updated_event=decode, decode_update=None)
    return patch.object(watched_resources, "pods_within", lambda *_: pods)


def pods_of_unknown_schedulers_get_conditions() -> AbstractContextManager[Any]:
    """They are scheduled, and no bind is sent."""
    return all_patches(
        pods_of_unknown_schedulers_are_scheduled(), patch.object(Binder, "put", lambda *_: None)
    )


def pods_of_unknown_schedulers_get_events() -> AbstractContextManager[Any]:
    updated = PodEvents.updated

    def updated_with_event(
        self: PodEvents, observed: ObservedPod, now_ns: int, **more: bool
    ) -> list[ObservedPod]:
        others = updated(self, observed, now_ns, **more)
        pod = observed.pod
        if pod.scheduler == UNKNOWN_SCHEDULER:
            about = (pod.uid, pod.namespace, pod.name, "beta")
            self._core.commands.append(ReportPodEvent(*about, "Normal", "Seen", "is nobody's"))
        return others

    return patch.object(PodEvents, "updated", updated_with_event)


# ── events ──────────────────────────────────────────────────────────────────────────────────────────


def each_retry_of_an_event_creates_another() -> AbstractContextManager[Any]:
    create, numbers = EventRequests.create, count()

    async def anew(self: EventRequests, words: EventContent, series: Any) -> None:
        series.name = f"{words.regarding.name}.{next(numbers):016x}"
        await create(self, words, series)

    return patch.object(EventRequests, "create", anew)


def scheduled_events_are_not_recorded() -> AbstractContextManager[Any]:
    say = Reporter.record_event

    def hushed(self: Reporter, words: EventContent) -> None:
        if words.reason != "Scheduled":
            say(self, words)

    return patch.object(Reporter, "record_event", hushed)


# ── leaders and restarts ────────────────────────────────────────────────────────────────────────────


def a_leader_that_lost_the_lease_keeps_deciding() -> AbstractContextManager[Any]:
    """The leader does not notice that renewals fail, nor that another replica holds the Lease."""

    async def keep(self: LeaderElector) -> None:
        self._leads_until_s = float("inf")
        await asyncio.Event().wait()

    return all_patches(
        patch.object(LeaderElector, "_renew_until_lost", keep),
        patch.object(LeaderElector, "may_write", LeaderElector.leads),
    )


def a_restart_ignores_the_last_known_good_policies() -> AbstractContextManager[Any]:
    async def nothing(self: LastGoodStore) -> Mapping[str, str]:
        return {}

    return patch.object(LastGoodStore, "read", nothing)


def a_restart_forgets_the_policy_state() -> AbstractContextManager[Any]:
    return patch.object(PolicyStates, "restore", lambda *_: [])


def each_pod_update_counts_the_run_again() -> AbstractContextManager[Any]:
    see = PolicyStates.pod_updated

    def forgetful(self: PolicyStates, observed: ObservedPod, now_ns: int) -> str | None:
        self.pod_deleted(observed.pod.uid)
        return see(self, observed, now_ns)

    return patch.object(PolicyStates, "pod_updated", forgetful)
