"""Making room for a pod that finds none: who is evicted, and what becomes of it.

    no node ──candidates?──► evicting ──all told to end──► nominated ──they are gone──► tried again, and bound
                │               └──refused──► pending, the nomination taken back
                └── none: pending, with the words why

From the decision on the pod is nominated to its node: its room is kept from pods of lower or equal priority. While the
eviction is not answered the pod is not tried; while victims are still ending on its node it evicts nobody else. For a gang
that is placed whole the same is done for as many members as it needs, or for none: `gang_room` finds where, and all of them keep
their nominations until they are placed, or lose them together. Source: DefaultPreemption of kube-scheduler 1.36.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policysched.builtins.registry import BUILTINS, RELEASES
from policysched.cluster.devices.availability import DeviceStock
from policysched.evaluate import DryRun, MayEvict, Overlay, Within
from policysched.lang.ir.program import BuiltinFilter, Program
from policysched.model.messages import unavailable_message
from policysched.model.objects import NodeName, Pod, PodUid
from policysched.scheduler.commands import Evict, Log, ReportPolicies, ReportPreempted, Victim
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.gangs.placement import (
    NEVER,
    STILL_ENDING,
    NoSeats,
    Rules,
    Seats,
    find_seats,
)
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.outcome import Failure, Success
from policysched.scheduler.preemption.breaker import Breaker
from policysched.scheduler.preemption.candidates import (
    NOT_HELPFUL,
    Candidate,
    Cluster,
    find_candidates,
    least_harm,
    nobody_to_evict,
)
from policysched.scheduler.preemption.lazy_candidates import find_best, reasons_of
from policysched.scheduler.preemption.nominated import reserved_for_others
from policysched.scheduler.queue.entries import PendingPod, Place, Unit
from policysched.scheduler.steps import Steps

Ask = Callable[[PendingPod, Overlay, Within | None], Success | Failure]
Lay = Callable[[PendingPod, NodeName, Overlay], object]


class ClaimWords(StrEnum):
    """What kube-scheduler's DynamicResources says before preemption is thought of: of pods without claims for devices, of those with
    some, where a claim has to give its devices back, and where one that was left over is taken away."""

    NONE = "no new claims to deallocate"
    STILL_NOT = "still not schedulable"
    DEALLOCATED = "deallocation of ResourceClaim completed"
    DELETED = "deletion of ResourceClaim completed"


NO_CLAIM_STATE = "not found"
"""What kube-scheduler's DynamicResources says after a pod was refused before it had a look at it."""


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """Victims are on their way, and the pod, or as much of the gang as is needed, is nominated."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Nobody is evicted: what to say of it, and when another try could go otherwise for that reason alone (ns)."""

    words: str
    valid_until_ns: int | None = None


@dataclass(slots=True)
class _Eviction:
    """An `Evict` without an answer. `ending`: whose room it waits for as well, and who was ending already. `woken`: something happened
    meanwhile that may help the pod. `also`: whom members of its gang wait for whose evictions are answered."""

    pod: Pod
    node: NodeName
    victims: dict[PodUid, Victim]
    ending: frozenset[PodUid]
    woken: bool = False
    also: set[PodUid] = field(default_factory=set)


class Preemption:
    """`evicting` are the evictions without an answer, by the pod that is to have the room."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._breaker = Breaker(core.limits)
        self._evicting: dict[PodUid, _Eviction] = {}
        self._doomed: set[PodUid] = set()  # told to end, and the watch has not shown it yet
        self._forbidden_until_ns = 0
        self._forbidden_words = ""

    # ── deciding ───────────────────────────────────────────────────────────────────────────────────────────────────

    def holds_back(self, uid: PodUid) -> bool:
        """Whether an eviction for this pod is not answered yet: it is not tried now, but as soon as that is."""
        eviction = self._evicting.get(uid)
        if eviction is not None:
            eviction.woken = True
        return eviction is not None

    def holds_back_gang(self, gang: Gang) -> bool:
        """Whether an eviction for one of its members is not answered yet."""
        held = [self.holds_back(uid) for uid in gang.due]  # each of them is to know
        return any(held)

    def try_for(
        self, pod: PendingPod, now_ns: int, claims: ClaimWords = ClaimWords.NONE
    ) -> Steps[MadeRoom | NoRoom | None]:
        """The pod found no node, for reasons of nodes. None: the policy evicts nobody. `claims`: what is to be said of its claims
        for devices."""
        core, value = self._core, pod.pod
        plan = core.plan(pod.policy)
        if not plan.preempts:
            return None
        core.counters.preemption_attempts += 1
        if value.preemption_policy == "Never":
            return self._no_room(pod.policy, NEVER, claims=claims)
        if now_ns < self._forbidden_until_ns:
            return self._no_room(pod.policy, self._forbidden_words, self._forbidden_until_ns, claims)
        dry_run = core.evaluator.dry_run(
            plan,
            value,
            **core.known_of(pod, now_ns),
            reserved=reserved_for_others(core, value),
        )
        allowed = plan.may_evict(value, core.namespace_of(value), pod.facts, now_ns)
        if self._still_ending(pod.uid, dry_run, allowed):
            return self._no_room(pod.policy, STILL_ENDING, claims=claims)
        spared_until_ns = self._breaker.next_time_ns()
        lowest = core.cache.ledger.lowest_priority
        if lowest is None or lowest >= value.priority:
            chosen, reasons = None, nobody_to_evict(dry_run, len(core.cache.nodes)).reasons
        else:
            cluster = Cluster(
                self._pods_on, self._started_ns, core.cache.budgets.values(), len(core.cache.nodes)
            )
            chosen, reasons = yield from self._choose(
                dry_run, lambda victim: allowed(victim) and not self._breaker.spares(victim, now_ns), cluster
            )
        if chosen is None:
            self._core.take_back_nomination(pod.uid, now_ns)
            words = unavailable_message(len(core.cache.nodes), reasons)
            return self._no_room(pod.policy, words, spared_until_ns, claims)
        self._evict(pod, chosen, now_ns)
        return MadeRoom()

    def _choose(
        self, dry_run: DryRun, may_evict: Callable[[Pod], bool], cluster: Cluster
    ) -> Steps[tuple[Candidate | None, Mapping[str, int]]]:
        """The candidate of least harm, or why there is none."""
        if dry_run.separate:
            prospects, best = yield from find_best(dry_run, may_evict, cluster)
            return best, reasons_of(prospects, dry_run, cluster)
        found = yield from find_candidates(dry_run, may_evict, cluster)
        return least_harm(found.candidates) if found.candidates else None, found.reasons

    def try_for_gang(
        self, gang: Gang, kin: Mapping[PodUid, Hashable], ask: Ask, lay: Lay, now_ns: int
    ) -> Steps[MadeRoom | NoRoom | None]:
        """It is to be placed whole and does not fit. None: the policy evicts nobody."""
        core = self._core
        plan = core.plan(gang.policy)
        if not plan.preempts:
            self.give_up(gang, now_ns)
            return None
        core.counters.preemption_attempts += 1
        if now_ns < self._forbidden_until_ns:
            return self._no_room_for(gang, self._forbidden_words, self._forbidden_until_ns, now_ns)
        rules = Rules(
            kin=kin,
            allowed=lambda pod: plan.may_evict(pod.pod, core.namespace_of(pod.pod), pod.facts, now_ns),
            spared=lambda victim: self._breaker.spares(victim, now_ns),
            is_ending=self._is_ending,
            started_ns=self._started_ns,
            ask=ask,
            lay=lay,
        )
        spared_until_ns = self._breaker.next_time_ns()
        found = yield from find_seats(core, gang, rules, now_ns)
        match found:
            case NoSeats(words, waits=True):
                return self._no_room(gang.policy, words)
            case NoSeats(words):
                return self._no_room_for(gang, words, spared_until_ns, now_ns)
            case Seats() as seats:
                self._evict_for_gang(gang, seats, now_ns)
                return MadeRoom()

    def _no_room_for(self, gang: Gang, words: str, valid_until_ns: int | None, now_ns: int) -> NoRoom:
        self.give_up(gang, now_ns)
        return self._no_room(gang.policy, words, valid_until_ns)

    def give_up(self, gang: Gang, now_ns: int) -> None:
        """Nobody who waits in the gang goes to the node that it is nominated to: they lose that together."""
        for uid in [one for one in self._core.cache.nominated if one in gang.due]:
            self._core.take_back_nomination(uid, now_ns)

    def _evict_for_gang(self, gang: Gang, found: Seats, now_ns: int) -> None:
        nominated = self._core.cache.nominated
        seated = {seat.pod.uid for seat in found.seats}
        for uid in [one for one in nominated if one in gang.due and one not in seated]:
            self._core.take_back_nomination(uid, now_ns)
        for seat in found.seats:
            known = nominated.get(seat.pod.uid)
            if seat.candidate.victims or known is None or known.nominated_node != seat.node:
                self._evict(seat.pod, seat.candidate, now_ns)
            else:
                self._clear_lesser_nominations(seat.pod, seat.node, now_ns)

    def _still_ending(self, uid: PodUid, dry_run: DryRun, allowed: MayEvict) -> bool:
        """Whether victims of an earlier try are still on the pod's nominated node, which could yet take it."""
        cache = self._core.cache
        nominated = cache.nominated.get(uid)
        node = None if nominated is None else nominated.nominated_node
        if node is None or node not in dry_run.candidates:
            return False
        return any(allowed(one) and self._is_ending(one.uid) for one in self._pods_on(node))

    def _is_ending(self, uid: PodUid) -> bool:
        seen = self._core.cache.pods[uid]
        return self._is_told(uid) or (seen.deleting and seen.preempted)

    def _is_told(self, uid: PodUid) -> bool:
        """Whether it is told to end, or about to be, and the watch has not shown it yet."""
        return uid in self._doomed or any(uid in one.victims for one in self._evicting.values())

    def _evict(self, pod: PendingPod, chosen: Candidate, now_ns: int) -> None:
        core, value = self._core, pod.pod
        ending = [
            one for one in chosen.victims if core.cache.pods[one.uid].deleting or self._is_told(one.uid)
        ]
        victims = [
            Victim(one.uid, one.namespace, one.name, core.cache.pods[one.uid].generation)
            for one in chosen.victims
            if one not in ending
        ]
        if chosen.victims:
            core.counters.victims.append(len(chosen.victims))
        for one in chosen.victims:
            words = None if one in ending else self._breaker.note(one, now_ns)
            if words is not None:
                core.out.append(ReportPolicies("Warning", "PreemptionStopped", words))
        self._clear_lesser_nominations(pod, chosen.node, now_ns)
        core.queue.wake(core.cache.nominate(pod.uid, chosen.node), now_ns)
        self._evicting[pod.uid] = _Eviction(
            value, chosen.node, {one.uid: one for one in victims}, frozenset(one.uid for one in ending)
        )
        core.out.append(
            Evict(value.uid, value.namespace, value.name, value.scheduler, chosen.node, tuple(victims))
        )
        core.out.append(
            Log(
                "info",
                "evicting for a pod",
                {"pod": value.full_name, "node": chosen.node, "victims": _names(chosen.victims)},
            )
        )

    def _clear_lesser_nominations(self, pod: PendingPod, node: NodeName, now_ns: int) -> None:
        """Pods of lower priority that wait for the same node look for another, a gang all of its members."""
        gangs = self._core.gangs
        own = gangs.of(pod.uid)
        for seen in list(self._core.cache.nominated.values()):
            lesser = seen.nominated_node == node and seen.pod.priority < pod.priority
            if lesser and seen.pod.uid != pod.uid:
                gang = gangs.of(seen.pod.uid)
                if gang is None or seen.pod.uid not in gang.idle:
                    self._core.take_back_nomination(seen.pod.uid, now_ns)
                elif gang is not own:
                    self.give_up(gang, now_ns)

    def _no_room(
        self, policy: str, words: str, valid_until_ns: int | None = None, claims: ClaimWords = ClaimWords.NONE
    ) -> NoRoom:
        program = self._core.policies.running[policy].program
        return NoRoom(words_of(program, words, claims), valid_until_ns)

    def _pods_on(self, node: NodeName) -> Collection[Pod]:
        return self._core.cache.ledger.usage(node).pods.values()

    def _started_ns(self, uid: PodUid) -> int | None:
        return self._core.cache.pods[uid].started_ns

    # ── what became of it ──────────────────────────────────────────────────────────────────────────────────────────

    def evicted(self, preemptor: PodUid, victims: tuple[PodUid, ...], now_ns: int) -> None:
        """Every victim was told to end, or had gone."""
        eviction = self._evicting.pop(preemptor, None)
        if eviction is None:
            return
        self._told(eviction, victims)
        awaited = {*eviction.victims, *eviction.ending, *eviction.also}
        companion = self._companion(preemptor)
        if companion is not None:
            companion.woken |= eviction.woken
            companion.also |= awaited
        elif eviction.woken or not any(uid in self._core.cache.pods for uid in awaited):
            self._try_again(preemptor, now_ns, failing=False)

    def _companion(self, preemptor: PodUid) -> _Eviction | None:
        """Another eviction for the same gang that has no answer yet: the last answer counts."""
        gang = self._core.gangs.of(preemptor)
        if gang is None or preemptor not in gang.idle:
            return None
        return next((one for uid, one in self._evicting.items() if uid in gang.idle), None)

    def refused(
        self, preemptor: PodUid, reason: str, victims: tuple[PodUid, ...], now_ns: int, *, forbidden: bool
    ) -> None:
        """It ended early: the pod waits on, and others may have the room of those who were told to end."""
        core = self._core
        eviction = self._evicting.pop(preemptor, None)
        if eviction is None:
            return
        self._told(eviction, victims)
        if forbidden:
            self._forbid(reason, now_ns)
        if preemptor in core.cache.pods and core.cache.pods[preemptor].node is None:
            gang = core.gangs.of(preemptor)
            if gang is not None and preemptor in gang.idle:
                self.give_up(gang, now_ns)
            else:
                core.take_back_nomination(preemptor, now_ns)
        fields = {"pod": eviction.pod.full_name, "node": eviction.node, "why": reason}
        core.out.append(Log("warning", "an eviction was not carried out", fields))
        self._try_again(preemptor, now_ns, failing=not forbidden)

    def _told(self, eviction: _Eviction, victims: tuple[PodUid, ...]) -> None:
        core, pod = self._core, eviction.pod
        for uid in victims:
            seen = core.cache.pods.get(uid)
            if seen is not None and not seen.deleting:
                self._doomed.add(uid)
            core.out.append(
                ReportPreempted(
                    eviction.victims[uid], pod.uid, pod.namespace, pod.name, pod.scheduler, eviction.node
                )
            )

    def _forbid(self, reason: str, now_ns: int) -> None:
        """Said once; another try would end in the same way until somebody changes the permissions."""
        words = f"not carried out, for the API server does not let us evict: {reason}"
        limits = self._core.limits
        self._forbidden_until_ns = now_ns + round(limits.eviction_forbidden_s * SECOND_NS)
        if words != self._forbidden_words:
            self._forbidden_words = words
            again = f"it is tried again every {limits.eviction_forbidden_s:g} s"
            self._core.out.append(
                ReportPolicies("Warning", "PreemptionForbidden", f"preemption is {words}; {again}")
            )

    def _try_again(self, uid: PodUid, now_ns: int, *, failing: bool) -> None:
        """Where the pod, or the gang that it waits in, is parked, that goes into the queue; anywhere else it is on its way
        already. A pod that is held (its gang has failed meanwhile, say) is not to be tried."""
        pod = self._core.pods.get(uid)
        if pod is not None and pod.held:
            return
        unit: Unit | None = pod
        if unit is not None and unit.place is Place.MEMBER:
            unit = self._core.gangs.of(uid)
        if unit is not None and unit.place is Place.UNSCHEDULABLE:
            self._core.queue.take(unit, now_ns)
            unit.failing = failing
            self._core.queue.enqueue(unit, now_ns, "Preemption")

    def forget(self, uid: PodUid) -> None:
        """The pod is gone, or the watch shows that it ends."""
        self._doomed.discard(uid)

    def check(self) -> list[str]:
        """One sentence for each thing that does not agree with the cache."""
        pods = self._core.cache.pods
        return [f"{uid} is told to end and not known any more" for uid in self._doomed if uid not in pods]


def _names(pods: tuple[Pod, ...]) -> str:
    return ", ".join(one.full_name for one in pods)


def words_of(program: Program, words: str, claims: ClaimWords = ClaimWords.NONE) -> str:
    """What stands behind the filters' reasons, as kube-scheduler puts it."""
    return f"{f'{claims}, ' if _is_whole(program) else ''}preemption: {words}"


def words_of_claims(pod: Pod, stock: DeviceStock) -> ClaimWords:
    """Where nothing is done about its claims for devices, or about those that classes give it."""
    given = any(stock.class_of(one.resource) is not None for one in pod.extended)
    return ClaimWords.STILL_NOT if pod.device_claims or given else ClaimWords.NONE


def words_after_refusal(program: Program, node_count: int, refused_by: str | None = None) -> str:
    """What stands behind the reason for which a filter refuses a pod whatever the node. With the default profile
    preemption is not thought of then, unless it is for claims for devices; with fewer filters it is, to no avail."""
    if _is_whole(program) and refused_by != "dynamic_resources":
        return NO_CLAIM_STATE
    if program.preemption.mode == "never":
        return ""
    return words_of(program, unavailable_message(node_count, {NOT_HELPFUL: node_count}))


def _is_whole(program: Program) -> bool:
    """Whether the policy has all filters of kube-scheduler's default profile, in one of its releases. Then it also says what that profile's
    DynamicResources says before preemption: that there is no claim whose devices could be taken back."""
    there = {one.builtin for one in program.rules.filters if isinstance(one, BuiltinFilter)}
    filters = {name for name, one in BUILTINS.items() if one.filters}
    return any(filters - release.without <= there for release in RELEASES.values())
