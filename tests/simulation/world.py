"""One seed: a world drawn from it, a phase of faults, a recovery, and the invariants violated during both."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any

from policysched.daemon.policy_checker import check_texts
from policysched.gc_tuning import collections_paused
from policysched.kube.client.api import Json
from policysched.kube.client.transport import ApiRequest
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.metric_sources.router import SampleSourceRouter
from policysched.sandbox.apiserver.kinds import POD_GROUP_KINDS
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.faults import FaultInjector
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind, Prebind
from policysched.scheduler.policies.policy_states import CLOCK_SKEW_MAX_NS
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.scheduler.scheduler import Scheduler
from tests.simulation.churn import NAMESPACES, Churn
from tests.simulation.churn_teams import TeamChurn, draw_team_profile
from tests.simulation.controllers import DelayedControllers
from tests.simulation.decision_costs import draw_decision_costs
from tests.simulation.device_checker import DeviceChecker, devices_of
from tests.simulation.fake_extender import FakeExtender, vetoes
from tests.simulation.fake_prometheus import FakePrometheus, sources
from tests.simulation.fault_profile import FaultProfile, draw_fault_profile
from tests.simulation.liveness_checker import LivenessChecker
from tests.simulation.load_checker import missing_load_problems
from tests.simulation.policy_texts import BAD, EVICTS_ANYBODY, GANG_TIMEOUT_S, GOOD, SCHEDULERS
from tests.simulation.replica import LAST_GOOD, POLICIES, Replica
from tests.simulation.safety_checker import SafetyChecker
from tests.simulation.server_faults import WEBHOOK_FAULTS, ServerFaults, draw_hostile_profile
from tests.simulation.state_checker import StateChecker
from tests.simulation.team_texts import QUOTA_POLICY, TEAM_SCHEDULERS, TEAM_TEXTS
from tests.simulation.virtual_time import Deadlock, run_virtual
from tests.simulation.volume_checker import VolumeChecker

EPOCH_S = 1_767_225_600
"""2026-01-01, where the world's clock starts."""

REST_S = 150.0
"""The time for the world to come to rest: the expiry of a Lease, a handover wait, backoffs, a
gang's timeout, and the longest interval between two reports on a pod.
"""

LOOK_EVERY_S = 3.0

_TRACED_KINDS = (
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
"""The kinds whose changes are in the trace."""

_TEXTS_LOCATION = "ConfigMap of the simulation"
_bundles: dict[tuple[tuple[str, str], ...], PolicyBundle] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a seed. `trace` has a line for each change and action; `digest` is its hash."""

    seed: int
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    drawn: Mapping[str, int]
    decisions: int
    bound: int

    @property
    def digest(self) -> str:
        return blake2b("\n".join(self.trace).encode(), digest_size=16).hexdigest()


class World:
    """Everything of one seed. Created inside its loop."""

    def __init__(self, seed: int, profile: FaultProfile | None = None) -> None:
        self.seed = seed
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._unhandled)
        self.profile = profile or replace(
            draw_fault_profile(self.random_stream("weather")),
            hostile=draw_hostile_profile(self.random_stream("hostile")),
            teams=draw_team_profile(self.random_stream("teams")),
            decisions_cost=draw_decision_costs(self.random_stream("costs")),
        )
        teams = self.profile.teams
        self.server_faults = ServerFaults()
        self.permissions = PolicyPermissions()
        self.problems: list[str] = []
        self.trace: list[str] = []
        self._failed = asyncio.Event()
        self.server = ApiServer(
            now=lambda: EPOCH_S + self.loop.time(),
            seed=seed,
            history_changes_max=self.profile.history_changes_max,
            extra_kinds=() if teams is None else POD_GROUP_KINDS[:2],
        )
        self.local = LocalClient(self.server)
        for plural in _TRACED_KINDS:
            self.local.listen(plural, lambda change, plural=plural: self._changed(plural, change))
        self.safety_checker = SafetyChecker(
            self.server,
            SCHEDULERS if teams is None else (*SCHEDULERS, *TEAM_SCHEDULERS),
            self.fail,
            gang_timeout_s=GANG_TIMEOUT_S * (1.0 if self.profile.hostile is None else 8 / 9),
            evicts_anybody=EVICTS_ANYBODY,
            reclaims=(QUOTA_POLICY,),
        )
        VolumeChecker(self.server, SCHEDULERS, self.fail)
        DeviceChecker(self.server, SCHEDULERS, self.fail)
        self._state_checker = StateChecker(
            self.server,
            policy="epsilon",
            state="ended",
            key="rank",
            kept=(LAST_GOOD.namespace, LAST_GOOD.name),
            fail=self.fail,
        )
        self._controllers = DelayedControllers(self.server, self.random_stream("hands"))
        self.kubelet = Kubelet(self.local, start_s=0.3, stop_s=0.5)
        self.churn = Churn(
            self.server,
            self.random_stream("churn"),
            schedulers=SCHEDULERS,
            good=GOOD,
            bad=BAD,
            config_map=(POLICIES.namespace, POLICIES.name),
            kubelet=self.kubelet,
            pods_max=self.profile.pods_max,
            small_nodes=self.profile.small_nodes,
            log=self.log,
        )
        self.team_churn = TeamChurn(
            self.local,
            self.random_stream("team deeds"),
            log=self.log,
            texts=self.churn.policies,
            write_texts=self.churn.write_policies,
            disturb=self.safety_checker.disturbed_gangs.add,
        )
        self.replicas: list[Replica] = []
        self.recovering_since_s = float("inf")
        self.decisions = 0
        self._unsent: dict[str, tuple[Replica, float]] = {}  # binds by path: who decided, and when
        self._recovering: list[bool] = []
        self._fatal = self.random_stream("binds")
        self._good_hashes = {program.sha256 for program in good_programs().values()}

    # ── interface for replicas ─────────────────────────────────────────────────────────────────────────────────────

    def now_ns(self) -> int:
        return EPOCH_S * 10**9 + round(self.loop.time() * 1e9)

    def random_stream(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def fail(self, words: str) -> None:
        self.log(f"WRONG: {words}")
        self.problems.append(words)
        self._failed.set()

    def log(self, words: str) -> None:
        self.trace.append(f"{self.loop.time():10.6f} {words}")

    async def check_texts(self, texts: Mapping[str, str], place: str) -> PolicyBundle:
        return compiled(texts)

    def samples(self, now_ns: Callable[[], int]) -> SampleSourceRouter:
        """Of a process with this clock."""
        transport = FakePrometheus(self.server, self.random_stream("samples"), self.profile, self._recovering)
        return sources(transport, now_ns, self.random_stream("polls"))

    def extender(self) -> FakeExtender:
        return FakeExtender(self.random_stream("extender"), self.profile, self._recovering)

    @property
    def recovering(self) -> bool:
        return bool(self._recovering)

    def written(self, replica: Replica, request: ApiRequest) -> None:
        """Called when a request of a leader leaves its process."""
        if request.method == "GET":
            return
        for other in self.replicas:
            if other is not replica and other.app is not None and other.app.leadership.leads():
                self.fail(f"{replica.name} sends {request.method} {request.path} while {other.name} leads")
        decided = self._unsent.pop(request.path, None)
        if decided is not None and decided[0] is replica and replica.caught_up_from_s > decided[1]:
            self.fail(f"{replica.name} sends {request.path}, decided before it had caught up after a stall")

    def assumed(self, replica: Replica, decision: Bind | Prebind) -> None:
        """Called when a pod is assumed on a node."""
        self.decisions += 1
        for other in self.replicas:
            if other is not replica and other.app is not None and other.app.leadership.may_decide():
                self.fail(f"{replica.name} decides {decision.name} while {other.name} can decide too")

    def bound(self, replica: Replica, bind: Bind) -> None:
        """Called when a bind follows from a decision, at once or after the PreBind, and before it is sent."""
        self._unsent[_bind_path(bind)] = replica, self.loop.time()
        if bind.policy_sha256 not in self._good_hashes:
            self.fail(f"{bind.name} was decided by an invalid text of {bind.policy}")
        self._inject_process_fault(replica, bind)

    def preparing(self, replica: Replica, prepare: Prebind) -> None:
        """Called before the claims of a pod are written."""
        self._inject_process_fault(replica, prepare)

    def _inject_process_fault(self, replica: Replica, command: Bind | Prebind) -> None:
        if self._recovering:
            return
        network, random = self.profile.network_faults, self._fatal
        soon_s = 3 * (network.latency_s + network.latency_spread_s) * random.random()
        if random.random() < self.profile.deleted_in_flight_share:
            self.loop.call_later(soon_s, self._delete, command, context=Context())
        if random.random() < self.profile.killed_in_flight_share:
            self.loop.call_later(soon_s, self._kill, replica, command, context=Context())

    def _delete(self, command: Bind | Prebind) -> None:
        pod = self._pod_of(command)
        if pod is not None:
            delete = self._fatal.choice((self.churn.delete, self.churn.recreate))
            delete(pod)

    def _kill(self, replica: Replica, command: Bind | Prebind) -> None:
        """Kill the process, and let its successor find a pod that competes for the same room."""
        replica.kill()
        pod = self._pod_of(command)
        if pod is not None:
            self.churn.create_competing_pod(pod)

    def _pod_of(self, command: Bind | Prebind) -> Json | None:
        pod = self.local.get("pods", command.namespace, command.name)
        return pod if pod is not None and pod["metadata"]["uid"] == command.uid else None

    # ── run ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Report:
        self.churn.populate(nodes=self.profile.nodes, pods=self.profile.pods)
        if self.profile.teams is not None:
            self.team_churn.populate()
        first, second = self._replica("first"), self._replica("second")
        work = [
            asyncio.create_task(self.kubelet.run(), name="kubelet"),
            asyncio.create_task(first.run(), name="first"),
        ]
        storm = [
            asyncio.create_task(self._run_actions()),
            asyncio.create_task(self._run_other_scheduler()),
            asyncio.create_task(self._run_hostile_actions()),
            asyncio.create_task(self._run_team_actions()),
            asyncio.create_task(self._limit_config_maps()),
        ]
        if self.profile.replicas > 1:
            storm.append(asyncio.create_task(self._run_second_replica(second)))
        try:
            await self._wait_for_failure(self.profile.fault_phase_s)
            await self._end(storm)
            if not self.problems:
                await self._wait_for_rest(work)
        finally:
            await self._end([*storm, *work])
            self._controllers.stop()
        # All objects of the seed: tasks and futures in cycles report the exceptions that nobody retrieved.
        gc.collect(0)
        drawn = dict(self.server_faults.counts)
        for replica in self.replicas:
            for name, count in replica.faults.counts.items():
                drawn[name] = drawn.get(name, 0) + count
        return Report(
            self.seed,
            tuple(self.problems),
            tuple(self.trace),
            drawn,
            self.decisions,
            len(self.safety_checker.bound_at_s),
        )

    def _replica(self, name: str) -> Replica:
        replica = Replica(
            name, self, FaultInjector(self.profile.network_faults, self.random_stream(f"{name}/road"))
        )
        self.replicas.append(replica)
        return replica

    async def _run_second_replica(self, second: Replica) -> None:
        """Run a second replica for a while."""
        await asyncio.sleep(self.profile.second_replica_from_s)
        try:
            async with asyncio.timeout(self.profile.second_replica_until_s):
                await second.run()
        except TimeoutError:
            self.log("second is taken away")

    async def _run_actions(self) -> None:
        random = self.random_stream("deeds")
        names = list(self.profile.action_weights)
        weights = [self.profile.action_weights[name] for name in names]
        while True:
            await asyncio.sleep(random.expovariate(1 / self.profile.action_interval_s))
            action = random.choices(names, weights)[0]
            replica = random.choice(self.replicas)
            match action:
                case "kill a scheduler":
                    replica.kill()
                case "stop a scheduler":
                    replica.stop()
                case "cut a scheduler off":
                    replica.cut_off(random.uniform(1.0, 3 * self.profile.lease_duration_s))
                case "restart the server":
                    self.log("the server restarts")
                    span_s = random.uniform(0.5, 5.0)
                    for replica in self.replicas:
                        replica.cut_off(span_s)
                case _:
                    self.churn.perform(action)

    async def _run_hostile_actions(self) -> None:
        hostile, random = self.profile.hostile, self.random_stream("hostile deeds")
        if hostile is None:
            return
        self.server_faults.failing_objects_share = hostile.failing_objects_share
        names, weights = list(hostile.action_weights), list(hostile.action_weights.values())
        while True:
            await asyncio.sleep(random.expovariate(1 / hostile.action_interval_s))
            action, replica = random.choices(names, weights)[0], random.choice(self.replicas)
            match action:
                case "freeze a scheduler":
                    replica.freeze(random.uniform(0.5, 3 * self.profile.lease_duration_s))
                case "set the wall clock":
                    replica.wall_offset_ns = round(random.choice((-3600, -20, -5, 0, 5, 20, 3600)) * 1e9)
                    self._state_checker.runs_may_repeat |= replica.wall_offset_ns < -CLOCK_SKEW_MAX_NS
                    self.log(f"the clock of {replica.name} is {replica.wall_offset_ns / 1e9:g} s off")
                case "break the webhook":
                    namespace, fault = random.choice(NAMESPACES), random.choice((*WEBHOOK_FAULTS, None))
                    self.log(f"the webhook for {namespace}: {fault}")
                    self.server_faults.webhooks.pop(namespace, None)
                    if fault is not None:
                        self.server_faults.webhooks[namespace] = fault
                case "fill the disk":
                    self.log("the disk is full")
                    self.server_faults.fill_disk(random.uniform(0.5, 8.0))
                case "overload the server":
                    self.log("the server is overloaded")
                    self.server_faults.overload(random.uniform(0.5, 4.0))
                case "take the file descriptors":
                    replica.take_descriptors(random.uniform(0.5, 6.0))
                case _:
                    raise AssertionError(f"unknown action {action}")

    async def _run_team_actions(self) -> None:
        teams, random = self.profile.teams, self.random_stream("team times")
        if teams is None:
            return
        self.server_faults.refused_members_share = teams.refused_binds_share
        names, weights = list(teams.action_weights), list(teams.action_weights.values())
        while True:
            await asyncio.sleep(random.expovariate(1 / teams.action_interval_s))
            self.team_churn.perform(random.choices(names, weights)[0])

    async def _limit_config_maps(self) -> None:
        """The limit is that of an API server or of an admission rule: one text may pass, all together may not."""
        hostile, random = self.profile.hostile, self.random_stream("ConfigMap limits")
        while hostile is not None and hostile.config_map_limit_interval_s is not None:
            await asyncio.sleep(random.expovariate(1 / hostile.config_map_limit_interval_s))
            limit = random.choice((None, 300, 1_000, 2_000, 4_000))
            self.log(f"ConfigMaps may have {limit} bytes")
            self.server_faults.config_map_bytes_max = limit

    async def _run_other_scheduler(self) -> None:
        every_s = self.profile.foreign_bind_interval_s
        random = self.random_stream("stranger")
        while every_s is not None:
            await asyncio.sleep(random.expovariate(1 / every_s))
            self.churn.bind_by_other_scheduler()

    async def _wait_for_failure(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._failed.wait()
        except TimeoutError:
            return

    async def _wait_for_rest(self, work: list[asyncio.Task[None]]) -> None:
        self.log("recovering")
        self.recovering_since_s = self.loop.time()
        self._recovering.append(True)
        for replica in self.replicas:
            replica.faults.disable()
            replica.wall_offset_ns = 0
        self.server_faults.disable()
        self.churn.restore_policies()
        if self.profile.teams is not None:
            self.team_churn.restore_policies()
        at_rest = False
        while not at_rest and not self.problems and self.loop.time() < self.recovering_since_s + REST_S:
            await self._wait_for_failure(LOOK_EVERY_S)
            at_rest = next(self._rest_problems(), None) is None
        if not at_rest and not self.problems:
            for words in list(self._rest_problems()):
                self.fail(f"at rest: {words}")

    def _rest_problems(self) -> Iterator[str]:
        leaders = [replica for replica in self.replicas if replica.leads]
        if len(leaders) != 1:
            yield f"{len(leaders)} replicas are leading"
            return
        app = leaders[0].app
        assert app is not None
        if not app.synced:
            yield "the leader is not synced"
            return
        now_ns = app.runtime.now_ns()
        yield from self._scheduled_event_problems()
        yield from self._state_problems(app.scheduler)
        yield from missing_load_problems(app.scheduler, self.local, now_ns)
        rest = LivenessChecker(
            self.server,
            app.scheduler,
            now_ns=now_ns,
            expected=self._expected(),
            disturbed=self.safety_checker.disturbed_gangs,
            refused=self.safety_checker.refused_gangs,
            vetoes=vetoes,
        )
        yield from rest.problems()

    def _state_problems(self, scheduler: Scheduler) -> list[str]:
        kept = scheduler._core.samples.policy_states._policies.get("epsilon")
        if kept is None:
            return ["the policy with a state does not run yet"]
        held = {cell: value for cell, (value, _) in kept.tables["ended"].values.items()}
        return self._state_checker.problems(held)

    def _expected(self) -> dict[str, str]:
        config_map = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        assert config_map is not None, "the ConfigMap was restored"
        checked = compiled(config_map["data"]).sources.values()
        return {
            source.program.name: source.program.sha256 for source in checked if source.program is not None
        }

    def _scheduled_event_problems(self) -> list[str]:
        """Each bind that cannot have lost its event has exactly one."""
        events_by_pod: dict[str, int] = {}
        for event in self.local.list("events"):
            if event["reason"] == "Scheduled":
                uid = event["involvedObject"]["uid"]
                events_by_pod[uid] = events_by_pod.get(uid, 0) + 1
        nothing_lost = not any(replica.may_have_lost_reports for replica in self.replicas)
        uids = {pod["metadata"]["uid"] for pod in self.local.list("pods")}
        problems = []
        for uid, landed_s in self.safety_checker.bound_at_s.items():
            in_calm = landed_s - EPOCH_S > self.recovering_since_s + 15.0
            if (nothing_lost or in_calm) and uid in uids and events_by_pod.get(uid, 0) != 1:
                problems.append(f"{uid} was bound and has {events_by_pod.get(uid, 0)} Scheduled events")
        return problems

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.fail(f"{task.get_name()} ended with {error!r}")
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ── listeners ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.fail(f"unhandled exception: {context.get('message')}: {context.get('exception')!r}")

    def _changed(self, plural: str, change: StoreChange) -> None:
        self.log(f"{plural} {change.type} {_summary(plural, change.entry.obj)}")


def _bind_path(bind: Bind) -> str:
    return f"/api/v1/namespaces/{bind.namespace}/pods/{bind.name}/binding"


def _summary(plural: str, obj: Json) -> str:
    metadata = obj["metadata"]
    name = f"{metadata.get('namespace', '')}/{metadata['name']} v{metadata['resourceVersion']}"
    match plural:
        case "pods":
            going = " terminating" if metadata.get("deletionTimestamp") else ""
            messages = {
                condition["type"]: condition.get("message", "")
                for condition in obj["status"].get("conditions") or ()
            }
            reason = f" {obj['status']['reason']}" if obj["status"].get("reason") else ""
            return f"{name} {metadata['uid']} on {obj['spec'].get('nodeName')} {obj['status'].get('phase')}{reason}{going} {messages.get('PodScheduled')}"
        case "persistentvolumes" | "persistentvolumeclaims":
            ref = (obj["spec"].get("claimRef") or {}).get("name")
            phase = (obj.get("status") or {}).get("phase")
            return f"{name} {metadata['uid']} {phase} of {ref or obj['spec'].get('volumeName')}"
        case "resourceclaims":
            users = [consumer["name"] for consumer in (obj.get("status") or {}).get("reservedFor") or ()]
            going = " terminating" if metadata.get("deletionTimestamp") else ""
            return f"{name} {metadata['uid']} has {devices_of(obj)} for {users}{going}"
        case "leases":
            return f"{name} {obj['spec'].get('holderIdentity')} {obj['spec'].get('leaseTransitions')}"
        case "events":
            return f"{name} {obj['reason']} {obj.get('message') or obj.get('note')}"
        case _:
            return name


def compiled(texts: Mapping[str, str]) -> PolicyBundle:
    """Compile a ConfigMap's texts, once for all seeds: those that are drawn each with the library alone, because they
    occur in ever new combinations.
    """
    key = tuple(sorted(texts.items()))
    bundle = _bundles.get(key)
    if bundle is None:
        is_drawn = texts.keys() <= GOOD.keys() | TEAM_TEXTS.keys()
        library = texts.get("base.policy")
        bundle = _bundles[key] = (
            PolicyBundle({name: _compiled_alone(name, text, library) for name, text in key})
            if is_drawn
            else check_texts(dict(key), _TEXTS_LOCATION)
        )
    return bundle


@cache
def _compiled_alone(name: str, text: str, library: str | None) -> CheckedSource:
    beside = {} if library is None else {"base.policy": library}
    return check_texts({**beside, name: text}, _TEXTS_LOCATION).sources[name]


def good_programs() -> dict[str, Any]:
    """Every program of the valid texts by its hash, each policy with each library."""
    programs = {}
    for base in GOOD["base.policy"]:
        for key, texts in {**GOOD, **TEAM_TEXTS}.items():
            for text in texts:
                for source in compiled({"base.policy": base, key: text}).sources.values():
                    if source.program is not None:
                        programs[source.program.sha256] = source.program
    return programs


def run_seed(seed: int, profile: FaultProfile | None = None) -> Report:
    """Play one seed. A deadlock is reported as a violation. No garbage is collected meanwhile, which would take a quarter of
    the time; most of it lives as long as the seed. Who plays thousands collects what is left.
    """
    world: list[World] = []

    async def main() -> Report:
        world.append(World(seed, profile))
        return await world[0].run()

    log = logging.getLogger("policysched")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with collections_paused():
            return run_virtual(main())
    except Deadlock as error:
        return Report(seed, (f"deadlock: {error}",), tuple(world[0].trace), {}, 0, 0)
    finally:
        log.setLevel(level)
