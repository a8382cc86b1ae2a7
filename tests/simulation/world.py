"""One seed: a world drawn from it, a storm of faults, a calm, and what was wrong during the one and after the other."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from policysched.daemon.compiling import compile_sync
from policysched.kube.client.api import Json
from policysched.lang.check.bundle import PolicyBundle
from policysched.metric_sources.router import SampleSourceRouter
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.faults import FaultInjector
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind, Prebind
from policysched.scheduler.scheduler import Scheduler
from tests.simulation.churn import Churn
from tests.simulation.controllers import DelayedControllers
from tests.simulation.device_checker import DeviceChecker, devices_of
from tests.simulation.extender import PretendExtender, vetoes
from tests.simulation.fault_profile import FaultProfile, draw_fault_profile
from tests.simulation.liveness_checker import LivenessChecker
from tests.simulation.load_watch import loads_wrong_at_rest
from tests.simulation.prometheus import PretendPrometheus, sources
from tests.simulation.replica import LAST_GOOD, POLICIES, Replica
from tests.simulation.safety_checker import SafetyChecker
from tests.simulation.state_checker import StateChecker
from tests.simulation.texts import BAD, EVICTS_ANYBODY, GANG_TIMEOUT_S, GOOD, SCHEDULERS
from tests.simulation.virtual_time import Deadlock, run_virtual
from tests.simulation.volume_checker import VolumeChecker

EPOCH_S = 1_767_225_600
"""2026-01-01: where the world's clock begins."""

REST_S = 150.0
"""How long the world may take to come to rest: a Lease that expires, what a new leader waits, backoffs, a gang's
timeout, the longest silence between two words about a pod."""

LOOK_EVERY_S = 3.0

_TOLD = (
    "pods",
    "nodes",
    "namespaces",
    "configmaps",
    "leases",
    "events",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourceclaims",
    "resourceslices",
)
"""Whose changes stand in the trace."""

_bundles: dict[tuple[tuple[str, str], ...], PolicyBundle] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a seed. `trace` is a line for everything that happened; `digest` its hash."""

    seed: int
    wrong: tuple[str, ...]
    trace: tuple[str, ...]
    drawn: Mapping[str, int]
    decisions: int
    bound: int

    @property
    def digest(self) -> str:
        return blake2b("\n".join(self.trace).encode(), digest_size=16).hexdigest()


class World:
    """Everything of one seed. Made inside its loop."""

    def __init__(self, seed: int, weather: FaultProfile | None = None) -> None:
        self.seed = seed
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._escaped)
        self.weather = weather or draw_fault_profile(self.dice("weather"))
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self._failed = asyncio.Event()
        self.server = ApiServer(
            now=lambda: EPOCH_S + self.loop.time(),
            seed=seed,
            history_changes_max=self.weather.history_changes_max,
        )
        self.local = LocalClient(self.server)
        for plural in _TOLD:
            self.local.listen(plural, lambda change, plural=plural: self._changed(plural, change))
        self.watchman = SafetyChecker(
            self.server,
            SCHEDULERS,
            self.fail,
            gang_timeout_s=GANG_TIMEOUT_S,
            evicts_anybody=EVICTS_ANYBODY,
        )
        VolumeChecker(self.server, SCHEDULERS, self.fail)
        DeviceChecker(self.server, SCHEDULERS, self.fail)
        self._state_watch = StateChecker(
            self.server,
            policy="epsilon",
            state="ended",
            key="rank",
            kept=(LAST_GOOD.namespace, LAST_GOOD.name),
            fail=self.fail,
        )
        self._hands = DelayedControllers(self.server, self.dice("hands"))
        self.kubelet = Kubelet(self.server, start_s=0.3, stop_s=0.5)
        self.churn = Churn(
            self.server,
            self.dice("churn"),
            schedulers=SCHEDULERS,
            good=GOOD,
            bad=BAD,
            config_map=(POLICIES.namespace, POLICIES.name),
            kubelet=self.kubelet,
            pods_max=self.weather.pods_max,
            cramped=self.weather.small_nodes,
            tell=self.tell,
        )
        self.replicas: list[Replica] = []
        self.calm_from_s = float("inf")
        self.decisions = 0
        self._calm: list[bool] = []
        self._fatal = self.dice("binds")
        self._good_hashes = {one.sha256 for one in good_programs().values()}

    # ── what the replicas need ─────────────────────────────────────────────────────────────────────────────────────

    def now_ns(self) -> int:
        return EPOCH_S * 10**9 + round(self.loop.time() * 1e9)

    def dice(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def fail(self, words: str) -> None:
        self.tell(f"WRONG: {words}")
        self.wrong.append(words)
        self._failed.set()

    def tell(self, words: str) -> None:
        self.trace.append(f"{self.loop.time():10.6f} {words}")

    async def compile_texts(self, texts: Mapping[str, str], place: str) -> PolicyBundle:
        return compiled(texts)

    def samples(self) -> SampleSourceRouter:
        road = PretendPrometheus(self.server, self.dice("samples"), self.weather, self._calm)
        return sources(road, self.now_ns, self.dice("polls"))

    def extender(self) -> PretendExtender:
        return PretendExtender(self.dice("extender"), self.weather, self._calm)

    def bound(self, replica: Replica, bind: Bind) -> None:
        """A bind was decided, and is about to leave."""
        self.decisions += 1
        if bind.policy_sha256 not in self._good_hashes:
            self.fail(f"{bind.name} was decided by a text of {bind.policy} that does not check")
        for other in self.replicas:
            if other is not replica and other.app is not None and other.app.runtime.leadership.may_decide():
                self.fail(f"{replica.name} decides while {other.name} may decide too")
        self._befall(replica, bind)

    def preparing(self, replica: Replica, prepare: Prebind) -> None:
        """Writes for a pod that has its node, and no bind yet, are about to leave."""
        self._befall(replica, prepare)

    def _befall(self, replica: Replica, command: Bind | Prebind) -> None:
        if self._calm:
            return
        roads, dice = self.weather.network_faults, self._fatal
        soon_s = 3 * (roads.latency_s + roads.latency_spread_s) * dice.random()
        if dice.random() < self.weather.deleted_in_flight_share:
            self.loop.call_later(soon_s, self._delete, command)
        if dice.random() < self.weather.killed_in_flight_share:
            self.loop.call_later(soon_s, self._kill, replica, command)

    def _delete(self, command: Bind | Prebind) -> None:
        pod = self._pod_of(command)
        if pod is not None:
            delete = self._fatal.choice((self.churn.delete, self.churn.recreate))
            delete(pod)

    def _kill(self, replica: Replica, command: Bind | Prebind) -> None:
        """Who comes after it finds somebody who would rather have the room that it had promised."""
        replica.kill()
        pod = self._pod_of(command)
        if pod is not None:
            self.churn.create_competing_pod(pod)

    def _pod_of(self, command: Bind | Prebind) -> Json | None:
        pod = self.local.get("pods", command.namespace, command.name)
        return pod if pod is not None and pod["metadata"]["uid"] == command.uid else None

    # ── the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Report:
        self.churn.populate(nodes=self.weather.nodes, pods=self.weather.pods)
        first, second = self._replica("first"), self._replica("second")
        work = [
            asyncio.create_task(self.kubelet.run(), name="kubelet"),
            asyncio.create_task(first.run(), name="first"),
        ]
        storm = [asyncio.create_task(self._deeds()), asyncio.create_task(self._stranger())]
        if self.weather.replicas > 1:
            storm.append(asyncio.create_task(self._second(second)))
        try:
            await self._until_failed(self.weather.fault_phase_s)
            await self._end(storm)
            if not self.wrong:
                await self._come_to_rest(work)
        finally:
            await self._end([*storm, *work])
            self._hands.stop()
        drawn: dict[str, int] = {}
        for replica in self.replicas:
            for name, count in replica.faults.counts.items():
                drawn[name] = drawn.get(name, 0) + count
        return Report(
            self.seed,
            tuple(self.wrong),
            tuple(self.trace),
            drawn,
            self.decisions,
            len(self.watchman.bound_at_s),
        )

    def _replica(self, name: str) -> Replica:
        replica = Replica(name, self, FaultInjector(self.weather.network_faults, self.dice(f"{name}/road")))
        self.replicas.append(replica)
        return replica

    async def _second(self, second: Replica) -> None:
        """Two of us for a while."""
        await asyncio.sleep(self.weather.second_replica_from_s)
        try:
            async with asyncio.timeout(self.weather.second_replica_until_s):
                await second.run()
        except TimeoutError:
            self.tell("second is taken away")

    async def _deeds(self) -> None:
        dice = self.dice("deeds")
        names = list(self.weather.action_weights)
        weights = [self.weather.action_weights[name] for name in names]
        while True:
            await asyncio.sleep(dice.expovariate(1 / self.weather.action_interval_s))
            deed = dice.choices(names, weights)[0]
            replica = dice.choice(self.replicas)
            match deed:
                case "kill a scheduler":
                    replica.kill()
                case "stop a scheduler":
                    replica.stop()
                case "cut a scheduler off":
                    replica.cut_off(dice.uniform(1.0, 3 * self.weather.lease_duration_s))
                case "restart the server":
                    self.tell("the server restarts")
                    span_s = dice.uniform(0.5, 5.0)
                    for one in self.replicas:
                        one.cut_off(span_s)
                case _:
                    self.churn.perform(deed)

    async def _stranger(self) -> None:
        every_s = self.weather.foreign_bind_interval_s
        dice = self.dice("stranger")
        while every_s is not None:
            await asyncio.sleep(dice.expovariate(1 / every_s))
            self.churn.bind_by_other_scheduler()

    async def _until_failed(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._failed.wait()
        except TimeoutError:
            return

    async def _come_to_rest(self, work: list[asyncio.Task[None]]) -> None:
        self.tell("calm")
        self.calm_from_s = self.loop.time()
        self._calm.append(True)
        for replica in self.replicas:
            replica.faults.disable()
        self.churn.restore_policies()
        wrong = ["nobody has looked"]
        while wrong and not self.wrong and self.loop.time() < self.calm_from_s + REST_S:
            await self._until_failed(LOOK_EVERY_S)
            wrong = self._not_at_rest()
        if not self.wrong:
            for words in wrong:
                self.fail(f"at rest: {words}")

    def _not_at_rest(self) -> list[str]:
        leaders = [replica for replica in self.replicas if replica.leads]
        if len(leaders) != 1:
            return [f"{len(leaders)} replicas lead"]
        app = leaders[0].app
        assert app is not None
        if not app.synced:
            return ["the leader has not read the cluster"]
        rest = LivenessChecker(
            self.server,
            app.scheduler,
            now_ns=self.now_ns(),
            expected=self._expected(),
            disturbed=self.watchman.disturbed_gangs,
            vetoes=vetoes,
        )
        return [
            *rest.problems(),
            *self._unsaid(),
            *self._states_at_rest(app.scheduler),
            *loads_wrong_at_rest(app.scheduler, self.local, self.now_ns()),
        ]

    def _states_at_rest(self, scheduler: Scheduler) -> list[str]:
        kept = scheduler._core.samples.policy_states._policies.get("epsilon")
        if kept is None:
            return ["the policy with a state does not run yet"]
        return self._state_watch.problems(kept.tables["ended"].values)

    def _expected(self) -> dict[str, str]:
        found = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        assert found is not None, "the ConfigMap was restored"
        checked = compiled(found["data"]).sources.values()
        return {one.program.name: one.program.sha256 for one in checked if one.program is not None}

    def _unsaid(self) -> list[str]:
        """Who was bound where nothing can have got lost was said to be, once."""
        said: dict[str, int] = {}
        for event in self.local.list("events"):
            if event["reason"] == "Scheduled":
                uid = event["involvedObject"]["uid"]
                said[uid] = said.get(uid, 0) + 1
        nothing_lost = not any(one.lost_words for one in self.replicas)
        there = {pod["metadata"]["uid"] for pod in self.local.list("pods")}
        found = []
        for uid, landed_s in self.watchman.bound_at_s.items():
            in_calm = landed_s - EPOCH_S > self.calm_from_s + 15.0
            if (nothing_lost or in_calm) and uid in there and said.get(uid, 0) != 1:
                found.append(f"{uid} was bound, and that was said {said.get(uid, 0)} times")
        return found

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.fail(f"{task.get_name()} ended with {error!r}")
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── listening ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fail(f"escaped: {context.get('message')}: {context.get('exception')!r}")

    def _changed(self, plural: str, change: StoreChange) -> None:
        self.tell(f"{plural} {change.type} {_in_short(plural, change.entry.obj)}")


def _in_short(plural: str, obj: Json) -> str:
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace', '')}/{metadata['name']} v{metadata['resourceVersion']}"
    match plural:
        case "pods":
            going = " terminating" if metadata.get("deletionTimestamp") else ""
            told = {one["type"]: one.get("message", "") for one in obj["status"].get("conditions") or ()}
            why = f" {obj['status']['reason']}" if obj["status"].get("reason") else ""
            return f"{name} {metadata['uid']} on {obj['spec'].get('nodeName')} {obj['status'].get('phase')}{why}{going} {told.get('PodScheduled')}"
        case "persistentvolumes" | "persistentvolumeclaims":
            ref = (obj["spec"].get("claimRef") or {}).get("name")
            phase = (obj.get("status") or {}).get("phase")
            return f"{name} {metadata['uid']} {phase} of {ref or obj['spec'].get('volumeName')}"
        case "resourceclaims":
            users = [one["name"] for one in (obj.get("status") or {}).get("reservedFor") or ()]
            going = " terminating" if metadata.get("deletionTimestamp") else ""
            return f"{name} {metadata['uid']} has {devices_of(obj)} for {users}{going}"
        case "leases":
            return f"{name} {obj['spec'].get('holderIdentity')} {obj['spec'].get('leaseTransitions')}"
        case "events":
            return f"{name} {obj['reason']} {obj.get('message') or obj.get('note')}"
        case _:
            return name


def compiled(texts: Mapping[str, str]) -> PolicyBundle:
    """Once for each state of the ConfigMap that any seed comes to."""
    key = tuple(sorted(texts.items()))
    found = _bundles.get(key)
    if found is None:
        found = _bundles[key] = compile_sync(dict(key), "ConfigMap of the simulation")
    return found


def good_programs() -> dict[str, Any]:
    """By hash, every program that the good texts can become: each policy alone with each library."""
    found = {}
    for base in GOOD["base.policy"]:
        for key, texts in GOOD.items():
            for text in texts:
                for one in compiled({"base.policy": base, key: text}).sources.values():
                    if one.program is not None:
                        found[one.program.sha256] = one.program
    return found


def run_seed(seed: int, weather: FaultProfile | None = None) -> Report:
    """Play one seed through. A deadlock is a report like any other wrong."""
    world: list[World] = []

    async def main() -> Report:
        world.append(World(seed, weather))
        return await world[0].run()

    log = logging.getLogger("policysched")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        return run_virtual(main())
    except Deadlock as error:
        return Report(seed, (f"deadlock: {error}",), tuple(world[0].trace), {}, 0, 0)
    finally:
        log.setLevel(level)
