"""A soak run: the whole scheduler in a cluster that changes all the time, and what it keeps in memory.

Pods, gangs, nodes, policies and namespaces change, static pods appear, and the network has faults. Every two
minutes all pods are deleted and the first policies restored, so the memory held by the scheduler should be
as before. The measure is the bytes of all objects reachable from the app (see `held_bytes`), neither the
simulated cluster nor the process, whose size depends on the allocator. Each edit of a policy is a new text.
"""

import asyncio
import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from policysched.cluster import pod_index
from policysched.config.settings import Settings
from policysched.daemon.app import Runtime
from policysched.evaluate import evaluation_cache, evaluation_rows, nominated_overlays
from policysched.evaluate.columns import (
    columns,
    existing_terms,
    placed_pod_totals,
    placed_pods,
    pod_counter,
    pod_totals,
    tallies,
)
from policysched.kube.watch import known_objects
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.runtime.telemetry import Telemetry
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.faults import FaultInjector, FaultRates
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue import movable_heap
from tests.inline import check_inline
from tests.simulation.churn import Churn
from tests.simulation.fake_extender import PEER, FakeExtender
from tests.simulation.fake_prometheus import FakePrometheus, sources
from tests.simulation.fault_profile import draw_fault_profile
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS
from tests.simulation.replica import LAST_GOOD, POLICIES
from tests.simulation.virtual_time import run_virtual
from tests.soak.flatness import Flatness, flatness
from tests.soak.held_memory import held_bytes, roots_of

EPOCH_S = 1_767_225_600
CHURN_S, REST_S = 100.0, 20.0
"""How long the cluster changes, and how long it is empty before memory is measured."""
BOUNDS: tuple[tuple[Any, str, int], ...] = (
    (columns, "_WEIGHT_PER_ROW_MAX", 1),
    (columns, "_POD_COLUMNS_MAX", 8),
    (evaluation_cache, "_CACHE_BYTES_MAX", 64 * 1024),
    (tallies, "_TALLIES_MAX", 8),
    (placed_pods, "_EMPTY_SIZE_MAX", 8),
    (placed_pods, "_CACHE_ENTRIES_MAX", 16),
    (existing_terms, "_CACHE_ITEMS_MAX", 16),
    (pod_index, "_CHANGES_KEPT_MIN", 4),
    (placed_pod_totals, "_OTHER_SPECS_MAX", 2),
    (pod_counter, "_OTHER_INDEXES_MAX", 2),
    (pod_totals, "_CHANGES_MAX", 16),
    (pod_totals, "_RESULTS_MAX", 16),
    (pod_totals, "_AMOUNTS_MAX", 16),
    (known_objects, "TOMBSTONES_MAX", 50),
    (evaluation_rows, "USAGE_RESULTS_MAX", 8),
    (movable_heap, "_STALE_ENTRIES_MAX", 0),
    (nominated_overlays, "_KEPT_MAX", 1),
)
"""Small bounds for caches, so that they are full early and only unbounded containers grow."""
NO_OP_FILTER = 'filter never_mind require node.name != "nowhere"\n'
"""Added to a text, changes it without changing decisions."""
NEW_DECLARATIONS = """
input wish_{n}: int = node.annotations["wish-{n}"] default 0 invalid default
metric load_{n}: ratio {{
  query = "load"
  unit = "1"
  join = instance
  every = 5s
  stale = 30s
}}
filter wished_{n} require wish_{n} < 10 says "wish {n}"
filter measured_{n} require load_{n} < 99% missing pass
filter closed_{n} require node.labels["edition-{n}"] else "open" != "closed"
"""
EVENT_TTL_S = 120.0
NETWORK_FAULTS = FaultRates(
    latency_s=0.005,
    latency_spread_s=0.02,
    lost_before_share=0.01,
    lost_after_share=0.01,
    late_share=0.01,
    duplicate_share=0.01,
    watch_lifetime_s=120.0,
)
ACTION_WEIGHTS = {
    "create a pod": 12.0,
    "create an urgent pod": 1.0,
    "create a gang": 1.5,
    "delete a pod": 9.0,
    "recreate a pod": 2.0,
    "ungate a pod": 2.0,
    "edit a pod": 2.0,
    "add a node": 0.4,
    "remove a node": 0.3,
    "cordon a node": 0.4,
    "taint a node": 0.4,
    "relabel a node": 0.4,
    "resize a node": 0.4,
    "relabel a namespace": 0.2,
    "edit a policy": 0.15,
    "break a policy": 0.05,
    "delete a policy": 0.05,
    "delete the ConfigMap": 0.02,
    "forget the history": 0.05,
    "start a static pod": 0.3,
}
"""Relative weights of the actions. More pods are created than allowed, so their number stays at the maximum."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`pods` and `waiting` are from before the cleanup. `held_bytes` is the app's memory, `rss_bytes` that of
    the process with the simulated cluster.
    """

    at_s: float
    held_bytes: int
    rss_bytes: int
    pods: int
    waiting: int
    bound: int
    decisions: int
    replaced: int


def judge(readings: Sequence[Reading]) -> Flatness:
    return flatness([(reading.at_s, reading.held_bytes) for reading in readings])


@dataclass(slots=True)
class Soak:
    """`grown` lists what holds more than after the first quarter, the largest first."""

    span_s: float
    action_interval_s: float = 1.0
    pods_max: int = 60
    seed: int = 0
    readings: list[Reading] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    resting: bool = False
    added_declarations: int = 0

    def run(self, progress: Callable[[float], None] = lambda _: None) -> None:
        """Run to the end. `progress` is called with the virtual time passed."""
        with ExitStack() as stack:
            stack.enter_context(quiet())
            for module, name, most in BOUNDS:
                stack.enter_context(patch.object(module, name, most))
            run_virtual(self._run(progress))

    async def _run(self, progress: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        server = ApiServer(now=lambda: EPOCH_S + loop.time(), seed=self.seed, history_changes_max=500)
        kubelet = Kubelet(LocalClient(server), start_s=0.3, stop_s=0.5)
        churn = Churn(
            server,
            self.random_stream("churn"),
            schedulers=SCHEDULERS,
            good=GOOD,
            bad=BAD,
            config_map=(POLICIES.namespace, POLICIES.name),
            kubelet=kubelet,
            pods_max=self.pods_max,
            small_nodes=False,
            log=lambda _: None,
        )
        churn.populate(nodes=12, pods=self.pods_max // 2)
        app, telemetry = self.app(server)
        work = [
            asyncio.create_task(task, name=name)
            for name, task in {
                "kubelet": kubelet.run(),
                "app": app.run(),
                "deeds": self._run_actions(server, churn),
                "stranger": self._run_other_scheduler(churn),
                "events": expire_events(server),
            }.items()
        ]
        others_bytes = held_bytes(roots_of(None)).total()  # what earlier tests left in the caches of modules
        try:
            before, held = None, Counter[str]()
            while loop.time() < self.span_s:
                self.resting = False
                await asyncio.sleep(CHURN_S)
                self.resting = True
                pods, waiting = len(app.scheduler.cache.pods), sum(app.scheduler.pending_counts().values())
                _delete_pods(server)
                # First with changed texts: cached evaluations are dropped with their plans.
                write_policies(
                    server,
                    {
                        key: texts[0] + (NO_OP_FILTER if key != "base.policy" else "")
                        for key, texts in GOOD.items()
                    },
                )
                await asyncio.sleep(REST_S / 2)
                write_policies(server, {key: texts[0] for key, texts in GOOD.items()})
                await asyncio.sleep(REST_S / 2)
                for task in work:
                    assert not task.done(), f"{task.get_name()} ended: {task}"
                telemetry.registry.render()
                gc.collect()
                held = held_bytes(roots_of(app))
                held_by_app = held.total() - others_bytes
                self.readings.append(_read(app, loop.time(), held_by_app, pods=pods, waiting=waiting))
                for _ in range(self.pods_max // 2):
                    churn.create_pod()
                if before is None and loop.time() >= self.span_s / 4:
                    before = held
                progress(loop.time())
            self.grown = _growth(before, held)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    def app(
        self, server: ApiServer, transport: type[MemoryTransport] = MemoryTransport
    ) -> tuple[SchedulerApp, Telemetry]:
        loop, telemetry = asyncio.get_running_loop(), Telemetry()
        settings = Settings(
            policies=POLICIES,
            last_good=LAST_GOOD,
            # Small bounds, so that they are reached early.
            reporting=ReporterSettings(series_max=20, series_update_interval_s=10.0),
            extenders={PEER.name: PEER},
            limits=SchedulerLimits(decision_records_max=10, rejection_hold_s=10.0, rejection_hold_max_s=40.0),
        )

        def now_ns() -> int:
            return EPOCH_S * 10**9 + round(loop.time() * 1e9)

        profile = draw_fault_profile(self.random_stream("weather"))
        metrics = FakePrometheus(server, self.random_stream("samples"), profile, [])
        app = SchedulerApp(
            settings,
            Runtime(
                transport=transport(server, faults=FaultInjector(NETWORK_FAULTS, self.random_stream("road"))),
                check_texts=check_inline,
                now_ns=now_ns,
                monotonic_s=loop.time,
                random=self.random_stream,
                identity="soaked",
                samples=sources(metrics, now_ns, self.random_stream("polls")),
            ),
            NoLeaderElection(),
            extenders={PEER.name: FakeExtender(self.random_stream("extender"), profile, [])},
            observe_decision_s=telemetry.observe_decision_s,
            observe_bind_s=telemetry.observe_bind_s,
        )
        telemetry.attach(app, now_ns)
        return app, telemetry

    async def _run_actions(self, server: ApiServer, churn: Churn) -> None:
        random = self.random_stream("deeds")
        while True:
            await asyncio.sleep(random.expovariate(1 / self.action_interval_s))
            action = random.choices(list(ACTION_WEIGHTS), list(ACTION_WEIGHTS.values()))[0]
            if self.resting:
                continue
            churn.perform(action)
            if action == "edit a policy":
                self._add_declarations(server, random)
            if action in ("delete the ConfigMap", "delete a policy"):
                churn.restore_policies()

    def _add_declarations(self, server: ApiServer, random: Random) -> None:
        """Add an input, a metric and a label key that no text had before."""
        self.added_declarations += 1
        config_map = LocalClient(server).get("configmaps", POLICIES.namespace, POLICIES.name)
        key = random.choice(("alpha.policy", "beta.policy"))
        if config_map is not None and key in config_map["data"]:
            write_policies(
                server,
                {
                    **config_map["data"],
                    key: config_map["data"][key] + NEW_DECLARATIONS.format(n=self.added_declarations),
                },
            )

    async def _run_other_scheduler(self, churn: Churn) -> None:
        random = self.random_stream("stranger")
        while True:
            await asyncio.sleep(random.expovariate(1 / 4.0))
            churn.bind_by_other_scheduler()

    def random_stream(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")


async def expire_events(server: ApiServer) -> None:
    """Delete old events, as the real server does after an hour."""
    local, since = LocalClient(server), dict[str, float]()
    while True:
        await asyncio.sleep(10.0)
        events = {event["metadata"]["uid"]: event for event in local.list("events")}
        since = {uid: since.get(uid, local.now()) for uid in events}
        for uid, since_s in since.items():
            if local.now() - since_s > EVENT_TTL_S:
                local.delete("events", events[uid])


def _delete_pods(server: ApiServer) -> None:
    local = LocalClient(server)
    for pod in local.list("pods"):
        local.delete("pods", pod, grace_period_s=0)


def write_policies(server: ApiServer, texts: Mapping[str, str]) -> None:
    local = LocalClient(server)
    config_map = local.get("configmaps", POLICIES.namespace, POLICIES.name)
    assert config_map is not None, "whatever deletes the ConfigMap restores it"
    local.update("configmaps", config_map, lambda config_map: {**config_map, "data": texts})


def _read(app: SchedulerApp, at_s: float, held_bytes: int, *, pods: int, waiting: int) -> Reading:
    counters = app.scheduler.counters
    return Reading(
        at_s=at_s,
        held_bytes=held_bytes,
        rss_bytes=_rss_bytes(),
        pods=pods,
        waiting=waiting,
        bound=app.binder.counts.confirmed,
        decisions=sum(counters.attempts.values()),
        replaced=sum(app.scheduler.reloads().values()),
    )


def _growth(before: Counter[str] | None, after: Counter[str]) -> list[str]:
    if before is None:
        return []
    grown = Counter(after)
    grown.subtract(before)
    return [f"{path}: {size / 1024:+,.1f} KiB" for path, size in grown.most_common(8) if size > 512]


def _rss_bytes() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def quiet() -> Any:
    log = logging.getLogger("policysched")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
