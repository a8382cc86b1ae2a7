"""Checks every step of one scheduler process as it is made."""

from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import datetime
from random import Random
from typing import Any, Protocol

from policysched.kube.leader_election import LeaseSettings
from policysched.lang.ir.program import DisruptionMode, GangMode, OnBindFailure, OnTimeout
from policysched.model.identifiers import PodUid
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind, Command, Evict, Prebind
from policysched.scheduler.events import BindRefused, Evicted, EvictionRefused, PrebindRefused
from policysched.scheduler.scheduler import Scheduler
from tests.inline import EventLoopLeaderElection
from tests.reference import gang_terms
from tests.reference.gang import GangTerms
from tests.reference.victims import gangs_left_below_minimum
from tests.simulation.churn_teams import NO_PAUSES
from tests.simulation.decision_costs import TimeAccounts
from tests.simulation.fake_extender import vetoes
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.load_checker import LoadChecker
from tests.simulation.oracle_checker import OracleChecker
from tests.simulation.order_checker import OrderChecker
from tests.simulation.quota_checker import QuotaChecker
from tests.simulation.reservation_checker import duplicate_reservations
from tests.simulation.safety_checker import SafetyChecker
from tests.simulation.topology_checker import TopologyChecker
from tests.simulation.traffic_checker import TrafficChecker

CHECK_EVERY_STEPS = 16


class CheckedWorld(Protocol):
    """The parts of the world that the checker reports to."""

    server: ApiServer
    safety_checker: SafetyChecker
    profile: FaultProfile

    def random_stream(self, name: str) -> Random: ...
    def fail(self, words: str) -> None: ...
    def log(self, words: str) -> None: ...


class StepChecker:
    """Active from construction. `assumed` is called for each decision, `bound` for each bind before it is sent, `preparing`
    for each prebind. `kept` are the names of the policies that were saved when the process started.

    A pod with claims is decided when its prebind begins. Its bind follows when the claims are bound, also while this
    process may not decide; whether it may be sent is checked when it leaves (`World.written`).
    """

    def __init__(
        self,
        app: SchedulerApp,
        world: CheckedWorld,
        name: str,
        identity: str,
        assumed: Callable[[Bind | Prebind], None],
        bound: Callable[[Bind], None],
        preparing: Callable[[Prebind], None],
        kept: Collection[str],
    ) -> None:
        self._scheduler = scheduler = app.scheduler
        self._leadership = app.leadership
        self._world, self._name, self._identity = world, name, identity
        self._assumed, self._bound, self._preparing = assumed, bound, preparing
        self._local = LocalClient(world.server)
        self._load = LoadChecker(scheduler, self._local, app.runtime.now_ns, world.fail)
        self._traffic = TrafficChecker(scheduler, self._local, app.runtime.now_ns, world.fail)
        self._quotas = QuotaChecker(scheduler, self._local, world.fail)
        self._topology = TopologyChecker(scheduler, app.runtime.now_ns, world.fail)
        self._steps = 0
        self._evicting: dict[PodUid, set[PodUid]] = {}  # victims of evictions in flight, by preemptor
        self._deleted: set[PodUid] = set()  # victims whose deletion was accepted
        self._kept = kept
        teams = world.profile.teams
        self._pauses = teams is not None and teams.gang_piece_cost_max < NO_PAUSES
        handle = scheduler.handle

        def checked_handle(event: Any, now_ns: int) -> list[Command]:
            self._load.handled(event)
            self._note_failed_prebind(event)
            self._note_refused_bind(event)
            self._note_answered_eviction(event)
            return handle(event, now_ns)

        scheduler.handle = self._checked(checked_handle)  # type: ignore[method-assign]
        scheduler.decide = self._checked(scheduler.decide)  # type: ignore[method-assign]
        self.time_accounts = TimeAccounts(
            scheduler,
            world.random_stream(f"{identity}/costs") if world.profile.decisions_cost else None,
            app.runtime.now_ns,
        )
        self.oracle_checker = OracleChecker(
            scheduler, world.fail, gangs_pause=self._pauses, is_overdrawn=self.time_accounts.is_overdrawn
        )
        self.order_checker = OrderChecker(scheduler, world.fail, self.time_accounts.is_overdrawn)

    def _checked(self, step: Callable[..., list[Command]]) -> Callable[..., list[Command]]:
        def checked_step(*what: Any) -> list[Command]:
            core = self._scheduler._core
            prebinding, nominated = set(core.binds.prebinding), set(core.cache.nominated)
            commands = step(*what)
            evictions = [command for command in commands if isinstance(command, Evict)]
            for evict in evictions:
                self._record_eviction(evict, nominated)
            if evictions:
                self._check_evicted_gangs(evictions)
            prepares = [command for command in commands if isinstance(command, Prebind)]
            binds = [command for command in commands if isinstance(command, Bind)]
            decisions = [*prepares, *(bind for bind in binds if bind.uid not in prebinding)]
            if decisions:
                self._check_decisions(decisions)
            if prepares:
                self._check_reservations(prepares)
            if binds:
                self._check_binds(binds)
            self._steps += 1
            if self._steps % CHECK_EVERY_STEPS == 0:
                for words in self._scheduler.check():
                    self._world.fail(f"{self._name}: {words}")
            return commands

        return checked_step

    def _record_eviction(self, evict: Evict, nominated_before: Collection[PodUid]) -> None:
        victims = ", ".join(f"{victim.namespace}/{victim.name}" for victim in evict.victims)
        self._world.log(f"{self._name} evicts {victims} on {evict.node} for {evict.namespace}/{evict.name}")
        self._world.safety_checker.record_eviction(evict)
        self.oracle_checker.check_eviction(evict, nominated_before)
        self._quotas.check_eviction(evict)

    def _check_evicted_gangs(self, evictions: Sequence[Evict]) -> None:
        for evict in evictions:
            self._evicting[evict.uid] = {victim.uid for victim in evict.victims}
        victims = {victim.uid for evict in evictions for victim in evict.victims}
        evicting = self._deleted.union(*self._evicting.values())
        for words in gangs_evicted_in_part(self._scheduler, victims, evicting):
            self._world.fail(words)

    def _check_decisions(self, decisions: Sequence[Bind | Prebind]) -> None:
        world, core = self._world, self._scheduler._core
        if not self._leadership.may_decide():
            world.fail(f"{self._name} decides without permission: {decisions}")
        if isinstance(self._leadership, EventLoopLeaderElection):
            self._check_lease()
        lacking = sorted(set(self._kept) - set(core.policies.running))
        if lacking:
            world.fail(f"{self._identity} decides without {lacking}, which were saved")
        for words in (
            *partial_gangs(self._scheduler, decisions),
            *scattered_gangs(self._scheduler, decisions),
        ):
            world.fail(words)
        for decision in decisions:
            world.log(f"{self._name} decides {decision.namespace}/{decision.name} to {decision.node}")
            world.safety_checker.record_decision(decision, self._identity)
            self._assumed(decision)

    def _check_reservations(self, prepares: list[Prebind]) -> None:
        for words in duplicate_reservations(self._scheduler):
            self._world.fail(words)
        for prepare in prepares:
            self._preparing(prepare)

    def _check_binds(self, binds: list[Bind]) -> None:
        world, core = self._world, self._scheduler._core
        self._quotas.check_binds(binds)
        if not self._pauses:
            self._topology.check_binds(binds)
        for bind in binds:
            program = core.policies.running[bind.policy].program
            # After a prebind the bind is of the text that decided then, perhaps before the policy named an extender.
            is_text_of_bind = program.sha256 == bind.policy_sha256
            if is_text_of_bind and program.extenders and vetoes(bind.uid, bind.node):
                world.fail(f"{bind.name} goes to {bind.node}, which an extender rejects")
            self._load.decided(bind)
            self._traffic.decided(bind)
            self._note_best_effort_gang(bind)
            self._bound(bind)

    def _note_best_effort_gang(self, bind: Bind) -> None:
        """A gang that was placed partially under a best-effort policy stays so under a later text."""
        core = self._scheduler._core
        pod = core.cache.pods[bind.uid].pod
        terms = gang_terms(core.policies.running[bind.policy].program, pod, core.namespace_of(pod))
        if terms is not None and terms.on_timeout is OnTimeout.BEST_EFFORT:
            self._world.safety_checker.mark_disturbed(pod)

    def _note_answered_eviction(self, event: Any) -> None:
        """After a refusal, victims that were not deleted run on."""
        if isinstance(event, Evicted | EvictionRefused):
            victims = self._evicting.pop(event.preemptor, set())
            self._deleted.update(victims if isinstance(event, Evicted) else (*event.victims, *event.gone))

    def _note_failed_prebind(self, event: Any) -> None:
        """A member whose prebind fails leaves its gang incomplete while the others are in flight."""
        if isinstance(event, PrebindRefused) and event.uid in self._scheduler._core.cache.pods:
            self._world.safety_checker.mark_disturbed(self._scheduler._core.cache.pods[event.uid].pod)

    def _note_refused_bind(self, event: Any) -> None:
        """A running text that keeps the other members may give way to one that does not, with the gang as it is."""
        core = self._scheduler._core
        if not isinstance(event, BindRefused) or event.uid not in core.cache.pods:
            return
        pod = core.cache.pods[event.uid].pod
        self._world.safety_checker.note_refused_bind(pod)
        running = core.policies.running.get(pod.scheduler)
        gang = None if running is None else running.program.gang
        if gang is not None and gang.on_bind_failure is OnBindFailure.KEEP:
            self._world.safety_checker.mark_disturbed(pod)

    def _check_lease(self) -> None:
        """The deciding process holds a Lease that has not expired, by the server's object."""
        lease = LeaseSettings()
        stored = self._local.get("leases", lease.namespace, lease.name)
        spec = {} if stored is None else stored["spec"]
        if spec.get("holderIdentity") != self._identity:
            self._world.fail(
                f"{self._identity} decides, and the holder of the Lease is {spec.get('holderIdentity')!r}"
            )
            return
        renewed_s = datetime.fromisoformat(spec["renewTime"]).timestamp()
        if self._local.now() > renewed_s + spec["leaseDurationSeconds"]:
            self._world.fail(f"{self._identity} decides, and it renewed its Lease at {spec['renewTime']}")


def partial_gangs(scheduler: Scheduler, decided: Sequence[Bind | Prebind]) -> list[str]:
    """Whole gangs of which these decisions place some members, but fewer than the minimum. A best-
    effort gang is exempt.
    """
    core, problems = scheduler._core, []
    for command in decided:
        pod = core.cache.pods[command.uid].pod
        program = core.policies.running[pod.scheduler].program
        terms = gang_terms(program, pod, core.cache.namespaces.get(pod.namespace))
        if terms is None or terms.mode is not GangMode.WHOLE or terms.on_timeout is OnTimeout.BEST_EFFORT:
            continue
        members = [
            observed
            for observed in core.cache.pods.values()
            if observed.pod.scheduler == pod.scheduler
            and not observed.deleting
            and core.cache.ledger.placement(observed.pod.uid) is not None
            and (
                group_terms := gang_terms(
                    program, observed.pod, core.cache.namespaces.get(observed.pod.namespace)
                )
            )
            and group_terms.key == terms.key
        ]
        if len(members) < terms.minimum:
            problems.append(
                f"partial gang: {terms.key} has {len(members)} of {terms.minimum} placed after {decided}"
            )
    return problems


def gangs_evicted_in_part(
    scheduler: Scheduler, victims: Collection[PodUid], evicting: Collection[PodUid]
) -> list[str]:
    """Whole gangs that keep some members after these evictions, and fewer than the minimum. `evicting`: victims of
    earlier decisions too. A best-effort gang is exempt.
    """
    members: dict[Hashable, list[PodUid]] = {}
    minima: dict[Hashable, int] = {}
    for uid, observed in scheduler._core.cache.pods.items():
        terms = _placed_member(scheduler, uid)
        if terms is not None and not observed.deleting and (uid in victims or uid not in evicting):
            gang = (observed.pod.scheduler, *terms.key)
            members.setdefault(gang, []).append(uid)
            minimum = 2**31 if terms.disruption is DisruptionMode.ALL else terms.minimum
            minima[gang] = max(minimum, minima.get(gang, 0))
    return [
        f"gang {gang} is evicted in part: of {len(members[gang])} members fewer than {minima[gang]} stay"
        for gang in gangs_left_below_minimum(members, minima, victims)
    ]


def _placed_member(scheduler: Scheduler, uid: PodUid) -> GangTerms | None:
    """The terms of a placed member of a gang that keeps its minimum."""
    core = scheduler._core
    pod = core.cache.pods[uid].pod
    running = core.policies.running.get(pod.scheduler)
    if running is None or core.cache.ledger.placement(uid) is None:
        return None
    terms = gang_terms(running.program, pod, core.namespace_of(pod))
    is_whole = (
        terms is not None and terms.mode is GangMode.WHOLE and terms.disruption is not DisruptionMode.SINGLE
    )
    return terms if is_whole and terms.on_timeout is not OnTimeout.BEST_EFFORT else None


def scattered_gangs(scheduler: Scheduler, decided: Sequence[Bind | Prebind]) -> list[str]:
    """Gangs with a topology whose members, decided together, go to several domains."""
    core = scheduler._core
    homes: dict[tuple[str, str, str], set[str]] = {}
    for command in decided:
        pod = core.cache.pods[command.uid].pod
        program = core.policies.running[pod.scheduler].program
        terms = gang_terms(program, pod, core.cache.namespaces.get(pod.namespace))
        if terms is not None and terms.levels:
            labels = core.cache.nodes[command.node].labels
            home = "/".join(labels.get(level.key, "") for level in terms.levels if level.required)
            homes.setdefault((pod.scheduler, *terms.key), set()).add(home)
    return [
        f"gang {gang} has a topology and goes to domains {sorted(values)}"
        for gang, values in homes.items()
        if len(values) > 1
    ]
