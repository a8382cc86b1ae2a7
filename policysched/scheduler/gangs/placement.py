"""Room for a gang that is placed whole: where each member would stand, and who would have to go for it.

    members that fit as it is ──► laid on an overlay
    the others, one after the other: fits now? ── yes ──► laid
                                       └── no: DefaultPreemption on the overlay ── victims lifted, laid ──► next
                                                   └── nobody may go for it, or it would not help ──► no room for its kin
    as many laid as are needed ──► all of it may be carried out; fewer ──► nothing is

Each member is thought through as a single pod is, on a cluster where those before it stand and their victims have left. Nothing of
this leaves the overlay. Members beyond the minimum evict nobody. Where the gang keeps together, domains are tried one by one
and the one that is hurt least is taken.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from policysched.cluster.budgets import after_evicting
from policysched.evaluate import DryRun, MayEvict, Overlay, Within
from policysched.model.messages import unavailable_message
from policysched.model.objects import DisruptionBudget, NodeName, Pod, PodUid
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.gangs.topology import domains_with_room_to_make
from policysched.scheduler.outcome import Failure, Success
from policysched.scheduler.preemption.candidates import (
    CANDIDATES_LEAST,
    Candidate,
    Cluster,
    Found,
    find_candidates,
    least_harm,
    nobody_to_evict,
)
from policysched.scheduler.preemption.lazy_candidates import Prospects, find_best, reasons_of
from policysched.scheduler.preemption.nominated import nominated_overlay
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps, asking

NEVER = "not eligible due to preemptionPolicy=Never."
STILL_ENDING = "not eligible due to a terminating pod on the nominated node."
_DOMAINS_MAX, _DOMAINS_ENOUGH = 16, 4
"""So many domains are thought through at most, those first with the most nodes that could take a member, and so many that
would do are enough."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a member is to stand, and who goes for it; nobody where there is room."""

    pod: PendingPod
    candidate: Candidate

    @property
    def node(self) -> NodeName:
        return self.candidate.node


@dataclass(frozen=True, slots=True)
class Seats:
    """One for each member that is needed, in the order in which they were laid."""

    seats: tuple[Seat, ...]

    @property
    def harm(self) -> tuple[int, int, int]:
        """The less, the better: broken budgets, the highest priority that goes, how many go."""
        victims = [one for seat in self.seats for one in seat.candidate.victims]
        return (
            sum(seat.candidate.violations for seat in self.seats),
            max((one.priority for one in victims), default=0),
            len(victims),
        )


@dataclass(frozen=True, slots=True)
class NoSeats:
    """Why not, as kube-scheduler says it of the first member for which there is none. `waits`: nothing is to be decided
    before those have gone who were told to go for an earlier try."""

    words: str
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Whom a member may evict, which placed pods are ending for an eviction, and how the rest of a trial is asked. `kin`:
    members that agree on it find a node together, or none."""

    kin: Mapping[PodUid, Hashable]
    allowed: Callable[[PendingPod], MayEvict]
    spared: Callable[[Pod], bool]
    is_ending: Callable[[PodUid], bool]
    started_ns: Callable[[PodUid], int | None]
    ask: Callable[[PendingPod, Overlay, Within | None], Success | Failure]
    lay: Callable[[PendingPod, NodeName, Overlay], object]


def in_trial_order(core: Core, gang: Gang) -> list[PendingPod]:
    """Those first who have a node in prospect, then as the queue has it."""
    return sorted(gang.in_order(), key=lambda pod: pod.uid not in core.cache.nominated)


def gang_overlay(core: Core, gang: Gang) -> Overlay:
    """The cluster with all on it that are nominated, but for the gang itself."""
    return nominated_overlay(core, gang.speaker, but=gang.due.keys()) or core.evaluator.overlay()


def find_seats(core: Core, gang: Gang, rules: Rules, now_ns: int) -> Steps[Seats | NoSeats]:
    """For as many members as are needed. The gang has been tried, and did not fit."""
    if gang.topology is None:
        return (yield from _Search(core, gang, None, rules, now_ns).run())
    found: list[Seats | NoSeats] = []
    whole: list[Seats] = []
    for within in domains_with_room_to_make(core, gang, gang.topology, now_ns)[:_DOMAINS_MAX]:
        outcome = yield from _Search(core, gang, within, rules, now_ns).run()
        if isinstance(outcome, Seats):
            whole.append(outcome)
        elif outcome.waits:
            return outcome
        found.append(outcome)
        if len(whole) == _DOMAINS_ENOUGH:
            break
    if not found:
        found.append((yield from _Search(core, gang, Within(gang.topology, None), rules, now_ns).run()))
    return min(whole, key=lambda one: one.harm) if whole else found[0]


@dataclass(slots=True)
class _Known:
    """What was found for members of one kind, and how many seats there were then. `Prospects` where what goes from one node changes
    nothing for another."""

    found: Found | Prospects
    seats: int


@dataclass(slots=True)
class _Search:
    core: Core
    gang: Gang
    within: Within | None
    rules: Rules
    now_ns: int
    overlay: Overlay = field(init=False)
    seats: list[Seat] = field(init=False, default_factory=list)
    budgets: list[DisruptionBudget] = field(init=False)
    gone: set[PodUid] = field(init=False, default_factory=set)
    words: str | None = field(init=False, default=None)
    known: dict[Hashable, _Known] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.overlay = gang_overlay(self.core, self.gang)
        self.budgets = list(self.core.cache.budgets.values())

    def run(self) -> Steps[Seats | NoSeats]:
        needed = self.gang.needed
        left = yield from self._lay_those_that_fit(needed)
        possible = Counter(self.rules.kin[pod.uid] for pod in left)
        hopeless: set[Hashable] = set()
        for pod in left:
            if len(self.seats) >= needed:
                break
            if len(self.seats) + possible.total() < needed:
                break
            if self.rules.kin[pod.uid] in hopeless:
                continue
            yield asking(len(self.core.cache.nodes))
            outcome = yield from self._seat(pod)
            if isinstance(outcome, Seat):
                self._take(outcome)
                possible[self.rules.kin[pod.uid]] -= 1
            elif outcome.waits:
                return outcome
            else:
                self.words = self.words or outcome.words
                hopeless.add(self.rules.kin[pod.uid])
                del possible[self.rules.kin[pod.uid]]
        if len(self.seats) >= needed:
            return Seats(tuple(self.seats))
        return NoSeats(self.words or "")

    def _lay_those_that_fit(self, needed: int) -> Steps[list[PendingPod]]:
        """The others, in order."""
        left, failed = [], set[Hashable]()
        for pod in in_trial_order(self.core, self.gang):
            if len(self.seats) >= needed or self.rules.kin[pod.uid] in failed:
                left.append(pod)
                continue
            yield asking(len(self.core.cache.nodes))
            result = self.rules.ask(pod, self.overlay, self.within)
            if isinstance(result, Success):
                self._take(Seat(pod, _nobody_goes(result.node)))
            else:
                failed.add(self.rules.kin[pod.uid])
                left.append(pod)
        return left

    def _take(self, seat: Seat) -> None:
        for victim in seat.candidate.victims:
            self.overlay.remove(victim.uid)
            self.gone.add(victim.uid)
        after = after_evicting(seat.candidate.victims, self.budgets)
        if after != self.budgets:
            self.budgets = after
            self.known.clear()  # what breaks a budget now may not have before
        self.rules.lay(seat.pod, seat.node, self.overlay)
        self.seats.append(seat)

    # ── one member ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _seat(self, pod: PendingPod) -> Steps[Seat | NoSeats]:
        result = self.rules.ask(pod, self.overlay, self.within)  # those before it may have left room for two
        if isinstance(result, Success):
            return Seat(pod, _nobody_goes(result.node))
        if not result.nodes:
            return NoSeats(result.message)
        if pod.pod.preemption_policy == "Never":
            return NoSeats(NEVER)
        core = self.core
        dry_run = core.evaluator.dry_run(
            core.plan(pod.policy),
            pod.pod,
            **core.known_of(pod, self.now_ns),
            overlay=self.overlay,
            within=self.within,
        )
        allowed = self.rules.allowed(pod)
        if self._still_ending(pod, dry_run, allowed):
            return NoSeats(STILL_ENDING, waits=True)
        node_count, lowest = len(core.cache.nodes), core.cache.ledger.lowest_priority
        if lowest is None or lowest >= pod.pod.priority:
            return NoSeats(unavailable_message(node_count, nobody_to_evict(dry_run, node_count).reasons))
        found = yield from self._least_harm(pod, dry_run, allowed)
        return found if isinstance(found, NoSeats) else Seat(pod, found)

    def _still_ending(self, pod: PendingPod, dry_run: DryRun, allowed: MayEvict) -> bool:
        """As for a single pod: victims of an earlier try are still on its nominated node, which could yet take it."""
        seen = self.core.cache.nominated.get(pod.uid)
        node = None if seen is None else seen.nominated_node
        if node is None or node not in dry_run.candidates:
            return False
        return any(allowed(one) and self.rules.is_ending(one.uid) for one in self._pods_on(node))

    def _least_harm(self, pod: PendingPod, dry_run: DryRun, allowed: MayEvict) -> Steps[Candidate | NoSeats]:
        """Of members that agree the first pays: for the others only what the seats since then changed is thought through again,
        and where a rule looks across nodes, only what may have changed."""
        members = self.gang.terms.keys()

        def may_evict(victim: Pod) -> bool:
            return victim.uid not in members and allowed(victim) and not self.rules.spared(victim)

        node_count = len(self.core.cache.nodes)
        cluster = Cluster(self._pods_on, self.rules.started_ns, self.budgets, node_count)
        kin, seats = self.rules.kin[pod.uid], len(self.seats)
        known = self.known.get(kin)
        changed = set() if known is None else {seat.node for seat in self.seats[known.seats :]}
        before = None if known is None else known.found
        if dry_run.separate:
            if isinstance(before, Prospects):
                yield from before.renew(dry_run, cluster, changed)
                best = yield from before.best(dry_run, cluster)
                self.known[kin] = _Known(before, seats)
                if best is not None:
                    return best
            prospects, best = yield from find_best(dry_run, may_evict, cluster)
            if best is None:
                return NoSeats(unavailable_message(node_count, reasons_of(prospects, dry_run, cluster)))
            self.known[kin] = _Known(prospects, seats)
            return best
        if isinstance(before, Found):
            refused = {node: why for node, why in before.beforehand.items() if node not in changed}
            before = replace(before, beforehand=refused)
        else:
            before = None
        least = max(1, CANDIDATES_LEAST // self.gang.needed)
        found = yield from find_candidates(dry_run, may_evict, cluster, least=least, before=before)
        if not found.candidates:
            return NoSeats(unavailable_message(node_count, found.reasons))
        if before is not None:
            found = replace(found, failed=before.failed | found.failed)
        self.known[kin] = _Known(found, seats)
        return least_harm(found.candidates)

    def _pods_on(self, node: NodeName) -> list[Pod]:
        usage = self.core.cache.ledger.usage(node)
        return [one for one in usage.pods.values() if one.uid not in self.gone]


def _nobody_goes(node: NodeName) -> Candidate:
    return Candidate(node, (), 0, 0)
