"""A cluster that never rests, and the whole scheduler in it, in the composition of the program.

Pods come and go, gangs, nodes, policies and namespaces change, static pods appear, roads are bad now and then. Every two
minutes all pods are deleted and the policies are as in the beginning, so what the scheduler holds then should be, too. What is
counted are the bytes of all objects that the app holds (see `holdings`), not the simulated world, and not the process, whose
size depends on the allocator. Each edit of a policy is a text that never was before, as in life.
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

from policysched.config.settings import Settings
from policysched.daemon.compiling import compile_inline
from policysched.evaluate import evaluation, evaluation_cache
from policysched.evaluate.columns import columns, placed_pods
from policysched.kube.watch import reflector
from policysched.kube.write.events_and_conditions import ReporterSettings
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import Runtime, SchedulerApp
from policysched.runtime.telemetry import Telemetry
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.faults import FaultInjector, FaultRates
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue import movable_heap
from tests.simulation.churn import Churn
from tests.simulation.fake_extender import PEER, FakeExtender
from tests.simulation.fake_prometheus import FakePrometheus, sources
from tests.simulation.fault_profile import draw_fault_profile
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS
from tests.simulation.replica import LAST_GOOD, POLICIES
from tests.simulation.virtual_time import run_virtual
from tests.soak.flatness import Flatness, flatness
from tests.soak.holdings import holdings, roots_of

EPOCH_S = 1_767_225_600
CHURN_S, REST_S = 100.0, 20.0
"""How long the cluster churns, and how long it then stands empty before memory is read: so what is read is what stays."""
BOUNDS: tuple[tuple[Any, str, int], ...] = (
    (columns, "_CODES_PER_ROW_MAX", 1),
    (columns, "_POD_COLUMNS_MAX", 8),
    (evaluation_cache, "_CACHE_BYTES_MAX", 64 * 1024),
    (placed_pods, "_TALLIES_MAX", 8),
    (placed_pods, "_EMPTY_CLASSES_MAX", 4),
    (placed_pods, "_CACHE_ENTRIES_MAX", 16),
    (reflector, "TOMBSTONES_MAX", 50),
    (evaluation, "_USAGE_CACHE_MAX", 8),
    (movable_heap, "_STALE_ENTRIES_MAX", 0),
)
"""What remembers a bounded number of things remembers few here, so that it is full soon and only what has no bound grows."""
AFTERWARDS = 'filter never_mind require node.name != "nowhere"\n'
"""What makes any of the texts another one that means the same."""
EDITION = """
input wish_{n}: int = node.annotations["wish-{n}"] default 0 invalid default
metric load_{n}: ratio {{
  query = "load"
  unit = "1"
  join = instance
  every = 5s
  stale = 30s
}}
filter wished_{n} require wish_{n} < 10 else "wish {n}"
filter measured_{n} require load_{n} < 99% missing pass
filter closed_{n} require node.labels["edition-{n}"] else "open" != "closed"
"""
EVENTS_LIVE_S = 120.0
ROADS = FaultRates(
    latency_s=0.005,
    latency_spread_s=0.02,
    lost_before_share=0.01,
    lost_after_share=0.01,
    late_share=0.01,
    duplicate_share=0.01,
    watch_lifetime_s=120.0,
)
DEEDS = {
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
"""The weights that one deed is drawn by. More pods are made than there may be, so their number stays at the most."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`pods` there were just before, of which so many waited. `held_bytes` are the app's, `rss_bytes` has the whole
    process with the simulated world."""

    at_s: float
    held_bytes: int
    rss_bytes: int
    pods: int
    waiting: int
    bound: int
    decisions: int
    replaced: int


def judged(readings: Sequence[Reading]) -> Flatness:
    return flatness([(one.at_s, one.held_bytes) for one in readings])


@dataclass(slots=True)
class Soak:
    """`readings` as they come; `grown` says what holds more than after the first quarter, the most first."""

    span_s: float
    deed_every_s: float = 1.0
    pods_max: int = 60
    seed: int = 0
    readings: list[Reading] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    resting: bool = False
    editions: int = 0

    def run(self, progress: Callable[[float], None] = lambda _: None) -> None:
        """Live through it. `progress` hears the virtual time that has passed."""
        with ExitStack() as stack:
            stack.enter_context(_quiet())
            for module, name, most in BOUNDS:
                stack.enter_context(patch.object(module, name, most))
            run_virtual(self._live(progress))

    async def _live(self, progress: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        server = ApiServer(now=lambda: EPOCH_S + loop.time(), seed=self.seed, history_changes_max=500)
        kubelet = Kubelet(server, start_s=0.3, stop_s=0.5)
        churn = Churn(
            server,
            self._dice("churn"),
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
        app, telemetry = self._app(server)
        work = [
            asyncio.create_task(one, name=name)
            for name, one in {
                "kubelet": kubelet.run(),
                "app": app.run(),
                "deeds": self._deeds(server, churn),
                "stranger": self._stranger(churn),
                "events": _forget_events(server),
            }.items()
        ]
        try:
            before, held = None, Counter[str]()
            while loop.time() < self.span_s:
                self.resting = False
                await asyncio.sleep(CHURN_S)
                self.resting = True
                pods, waiting = len(app.scheduler.cache.pods), sum(app.scheduler.pending_counts().values())
                _clear_away(server)
                # Under other texts first: what is remembered of evaluations goes with the plans.
                _write_policies(
                    server,
                    {
                        key: texts[0] + (AFTERWARDS if key != "base.policy" else "")
                        for key, texts in GOOD.items()
                    },
                )
                await asyncio.sleep(REST_S / 2)
                _write_policies(server, {key: texts[0] for key, texts in GOOD.items()})
                await asyncio.sleep(REST_S / 2)
                for task in work:
                    assert not task.done(), f"{task.get_name()} ended: {task}"
                telemetry.registry.render()
                gc.collect()
                held = holdings(roots_of(app))
                self.readings.append(_read(app, loop.time(), held.total(), pods=pods, waiting=waiting))
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

    def _app(self, server: ApiServer) -> tuple[SchedulerApp, Telemetry]:
        loop, telemetry = asyncio.get_running_loop(), Telemetry()
        settings = Settings(
            policies=POLICIES,
            last_good=LAST_GOOD,
            # What remembers a bounded number of things remembers few, so that it is full soon.
            reporting=ReporterSettings(series_max=20, series_every_s=10.0),
            extenders={PEER.name: PEER},
            limits=SchedulerLimits(decisions_kept=10, rejection_hold_s=10.0, rejection_hold_max_s=40.0),
        )

        def now_ns() -> int:
            return EPOCH_S * 10**9 + round(loop.time() * 1e9)

        weather = draw_fault_profile(
            self._dice("weather")
        )  # of which counts what concerns metrics and extenders
        metrics = FakePrometheus(server, self._dice("samples"), weather, [])
        app = SchedulerApp(
            settings,
            Runtime(
                transport=MemoryTransport(server, faults=FaultInjector(ROADS, self._dice("road"))),
                leadership=NoLeaderElection(),
                compile_texts=compile_inline,
                now_ns=now_ns,
                monotonic_s=loop.time,
                random=self._dice,
                identity="soaked",
                samples=sources(metrics, now_ns, self._dice("polls")),
                extenders={PEER.name: FakeExtender(self._dice("extender"), weather, [])},
                observe_decision_s=telemetry.observe_decision_s,
                observe_bind_s=telemetry.observe_bind_s,
            ),
        )
        telemetry.attach(app, now_ns)
        return app, telemetry

    async def _deeds(self, server: ApiServer, churn: Churn) -> None:
        dice = self._dice("deeds")
        while True:
            await asyncio.sleep(dice.expovariate(1 / self.deed_every_s))
            deed = dice.choices(list(DEEDS), list(DEEDS.values()))[0]
            if self.resting:
                continue
            churn.perform(deed)
            if deed == "edit a policy":
                self._make_it_new(server, dice)
            if deed in ("delete the ConfigMap", "delete a policy"):
                churn.restore_policies()

    def _make_it_new(self, server: ApiServer, dice: Random) -> None:
        """An input, a metric and a key of labels that no text had before."""
        self.editions += 1
        found = LocalClient(server).get("configmaps", POLICIES.namespace, POLICIES.name)
        key = dice.choice(("alpha.policy", "beta.policy"))
        if found is not None and key in found["data"]:
            _write_policies(
                server, {**found["data"], key: found["data"][key] + EDITION.format(n=self.editions)}
            )

    async def _stranger(self, churn: Churn) -> None:
        dice = self._dice("stranger")
        while True:
            await asyncio.sleep(dice.expovariate(1 / 4.0))
            churn.bind_by_other_scheduler()

    def _dice(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")


async def _forget_events(server: ApiServer) -> None:
    """As the real server does after an hour."""
    local, seen = LocalClient(server), dict[str, float]()
    while True:
        await asyncio.sleep(10.0)
        there = {one["metadata"]["uid"]: one for one in local.list("events")}
        seen = {uid: seen.get(uid, local.now()) for uid in there}
        for uid, since_s in seen.items():
            if local.now() - since_s > EVENTS_LIVE_S:
                local.delete("events", there[uid])


def _clear_away(server: ApiServer) -> None:
    local = LocalClient(server)
    for pod in local.list("pods"):
        local.delete("pods", pod, grace_period_s=0)


def _write_policies(server: ApiServer, texts: Mapping[str, str]) -> None:
    local = LocalClient(server)
    found = local.get("configmaps", POLICIES.namespace, POLICIES.name)
    assert found is not None, "what deletes the ConfigMap makes it anew"
    local.update("configmaps", found, lambda one: {**one, "data": texts})


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
    return [f"{road}: {size / 1024:+,.1f} KiB" for road, size in grown.most_common(8) if size > 512]


def _rss_bytes() -> int:
    """Of this process, now."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _quiet() -> Any:
    log = logging.getLogger("policysched")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
