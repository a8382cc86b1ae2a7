"""One attempt: ask the plan, and either assume and bind or park with the words why not.

A pod is asked for on the cluster as it stands. A gang is asked for member by member on an overlay in which those
before it are placed already, so all that fit are found on one state of the cluster; only when they are enough is
anything assumed, and then all of them in the same step; where they are not, room may be made for as many as are needed.
Members that agree on what the policy reads fail together: once one of them finds no node the others are not asked, and
once too few remain the trial ends. An attempt is a generator of steps: one that looks at much is carried out over several calls of
`decide`, between which nothing happens to the cluster.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from policysched.cluster.device_stock import DeviceStock
from policysched.cluster.objects import NodeName, PodUid
from policysched.cluster.resource_claims import LEFT_OVER, NOT_HERE, devices_of, lost_claims, unusable_claim
from policysched.lang.events import ClusterEvent
from policysched.lang.message import refused_message, unavailable_message
from policysched.lang.program import Extender
from policysched.plan import BeforeBind, Overlay, Verdict, Within
from policysched.schedule.admission import Admission
from policysched.schedule.commands import Deallocate, DropClaim
from policysched.schedule.consulting import Consulting
from policysched.schedule.core import Core, Flight
from policysched.schedule.gang_room import gang_overlay, in_trial_order
from policysched.schedule.gangs import Gang
from policysched.schedule.nominated import reserved_for_others
from policysched.schedule.outcome import Failure, Success
from policysched.schedule.preemption import (
    ClaimWords,
    MadeRoom,
    NoRoom,
    Preemption,
    words_after_refusal,
)
from policysched.schedule.preparing import Preparing, bind_command
from policysched.schedule.records import Decision, samples_seen
from policysched.schedule.reports import PendingReason
from policysched.schedule.steps import Steps, asking
from policysched.schedule.topology import DOMAINS_CHANGE, elsewhere_reason, worth_trying
from policysched.schedule.units import PendingPod, Place

_PLACED_PODS = frozenset({ClusterEvent.ASSIGNED_POD_DELETE, ClusterEvent.ASSIGNED_POD_UPDATE})
_ALWAYS = frozenset({ClusterEvent.NODE_ADD})  # a node that was not there is one that refused nobody


@dataclass(slots=True)
class _Found:
    """How far a gang's trial has come: members with a node, and one failure for each kind that has none."""

    fits: list[tuple[PendingPod, Success]] = field(default_factory=list)
    failures: dict[Hashable, Failure] = field(default_factory=dict)
    surplus: bool = False  # the maximum kept some from being asked
    within: Within | None = None  # the domain that all of them were to be in
    also: list[Failure] = field(default_factory=list)  # in other domains


class Trials:
    def __init__(
        self,
        core: Core,
        admission: Admission,
        preemption: Preemption,
        consulting: Consulting,
        preparing: Preparing,
    ) -> None:
        self._core = core
        self._preparing = preparing
        self._admission = admission
        self._preemption = preemption
        self._consulting = consulting

    # ── a pod ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def try_pod(self, pod: PendingPod, now_ns: int) -> Steps[None]:
        """The pod was just popped from the queue."""
        core = self._core
        if self._preemption.holds_back(pod.uid):
            self._park_until_evicted(pod, now_ns)
            return
        answered = self._consulting.take_answer(pod.uid)
        gang = core.gangs.of(pod.uid)
        refused = _refused_beforehand(gang)
        kin = self._kin(pod) if refused is None else ("refused beforehand", pod.policy, refused)
        room = core.queue.blocked(kin)
        if room is not None:
            core.queue.join(pod, room, now_ns)
            core.report(pod, room.reason, room.message, now_ns)
            return
        if answered is None:  # else an attempt goes on that has asked
            pod.attempts += 1
        result = self._ask(pod, None, now_ns) if refused is None else _refused(refused)
        extenders, by_extenders = self._consulting.extenders_of(pod), False
        if isinstance(result, Success) and extenders:
            asked = self._consulting.decide(pod, extenders, answered, now_ns)
            if asked is None:
                return
            result, by_extenders = asked, True
            kin = "refused by extenders", pod.policy, pod.uid
        if isinstance(result, Success):
            result = replace(result, needs=self._before_bind(pod, result.node, None, now_ns))
            self._assume(pod, result, now_ns)
            if gang is not None:
                self._admission.refresh(gang, now_ns, "GangScheduled")
            return
        claims = self._about_claims(pod, result, now_ns, alone=gang is None)
        if result.nodes and not extenders:
            result = yield from self._make_room(pod, result, now_ns, claims)
        else:  # nobody will be evicted for it, whatever an earlier try has found
            core.take_back_nomination(pod.uid, now_ns)
            if result.nodes and core.plan(pod.policy).preempts:
                result = _without_room(result, extenders)
        self._record_failure(pod, result, now_ns)
        core.queue.punish(pod, now_ns)
        self._admission.rekey(pod, now_ns)
        core.queue.park(
            pod,
            kin if refused is not None or by_extenders else self._kin(pod),
            now_ns=now_ns,
            wakes=result.wakes,
            valid_until_ns=result.valid_until_ns,
            reason=result.reason,
            message=result.message,
        )
        core.report(pod, result.reason, result.message, now_ns)

    def _about_claims(self, pod: PendingPod, result: Failure, now_ns: int, *, alone: bool) -> ClaimWords:
        """What is done about the claims of a pod without a node before preemption is thought of. An `alone` pod is no member of a gang."""
        if LEFT_OVER in result.counts:
            return ClaimWords.DELETED
        if alone and NOT_HERE in result.counts and self._deallocate(pod, now_ns):
            return ClaimWords.DEALLOCATED
        stock = DeviceStock(self._core.cache.devices)
        given = any(stock.class_of(one.resource) is not None for one in pod.pod.extended)
        return ClaimWords.STILL_NOT if pod.pod.device_claims or given else ClaimWords.NONE

    def _deallocate(self, pod: PendingPod, now_ns: int) -> bool:
        """A claim that keeps the pod to nodes that do not take it gives its devices back, if nobody else uses them."""
        devices = devices_of(pod.pod, DeviceStock(self._core.cache.devices))
        if isinstance(devices, str):
            return False
        lost = lost_claims(devices, now_ns, self._core.plan(pod.policy).devices_timeout_s)
        claim = unusable_claim(pod.pod, replace(devices, lost=lost))
        if claim is None:
            return False
        self._core.out.append(Deallocate(claim.key, claim.uid, claim.version))
        return True

    def _make_room(
        self, pod: PendingPod, failure: Failure, now_ns: int, claims: ClaimWords
    ) -> Steps[Failure]:
        """What is to be said and waited for once preemption was thought of."""
        room = yield from self._preemption.try_for(pod, now_ns, claims)
        match room:
            case None:
                self._core.take_back_nomination(pod.uid, now_ns)
                return failure
            case MadeRoom():
                return replace(failure, wakes=failure.wakes | _PLACED_PODS)
            case NoRoom(words, valid_until_ns):
                message = unavailable_message(failure.nodes, failure.counts, words)
                times = [one for one in (failure.valid_until_ns, valid_until_ns) if one is not None]
                return replace(failure, message=message, valid_until_ns=min(times, default=None))

    def _park_until_evicted(self, pod: PendingPod, now_ns: int) -> None:
        """Its own eviction is under way: the answer to that brings it back, whatever happens meanwhile."""
        self._core.queue.park(
            pod,
            ("evicting", pod.policy, pod.uid),
            now_ns=now_ns,
            wakes=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=pod.explanation,
        )

    def _kin(self, pod: PendingPod) -> Hashable:
        """Pods that fail together now. Terms of placed pods tell kin apart by their labels; nominated pods are counted
        against those of lower or equal priority, so then kin agree on that as well. One that is nominated itself waits
        for a node of its own, one of which a claim was left for that to be gone."""
        nominated = self._core.cache.nominated
        if pod.uid in nominated:
            return "nominated", pod.policy, pod.uid
        if self._core.cache.devices.made_for(pod.uid):
            return "claim left over", pod.policy, pod.uid
        kin = pod.kin, self._seen_by_others(pod)
        return (*kin, pod.priority) if nominated else kin

    def _kin_in_trial(self, members: list[PendingPod]) -> dict[PodUid, Hashable]:
        """Terms of members that are placed in the trial may ask about any label."""
        made_for = self._core.cache.devices.made_for
        if any(pod.pod.pod_affinity or made_for(pod.uid) for pod in members):
            labels = {pod.uid: tuple(sorted(pod.pod.labels.items())) for pod in members}
            return {
                pod.uid: ("claim left over", pod.uid) if made_for(pod.uid) else (pod.kin, labels[pod.uid])
                for pod in members
            }
        return {pod.uid: (pod.kin, self._seen_by_others(pod)) for pod in members}

    def _seen_by_others(self, pod: PendingPod) -> Hashable:
        return self._core.evaluator.seen_by_others(self._core.plan(pod.policy), pod.pod)

    def _ask(
        self, pod: PendingPod, overlay: Overlay | None, now_ns: int, within: Within | None = None
    ) -> Success | Failure:
        """On an overlay, which has all nominated pods on it, or on the cluster, where each node is asked with and without
        its own."""
        core = self._core
        nominated = core.cache.nominated.get(pod.uid)
        verdict = core.evaluator.evaluate(
            core.plan(pod.policy),
            pod.pod,
            now_ns=now_ns,
            facts=pod.facts,
            samples=core.samples.get(pod.policy, {}),
            overlay=overlay,
            nominated=None if nominated is None else nominated.nominated_node,
            within=within,
            reserved=() if overlay is not None else reserved_for_others(core, pod.pod),
        )
        if verdict.selected is not None:
            return Success(verdict.selected, verdict.score, verdict.node_count, verdict.feasible_count)
        if LEFT_OVER in verdict.counts():
            core.out += [DropClaim(key, pod.uid) for key in sorted(core.cache.devices.made_for(pod.uid))]
        if verdict.refused_by is not None:
            return self._refused_by_filter(pod, verdict)
        if verdict.pod_refusal is not None:
            return _refused(verdict.pod_refusal)
        counts, wakes = dict(verdict.counts()), verdict.wakes() | _ALWAYS
        waits_for_policy = verdict.node_count and verdict.only_scaleup_no() and not verdict.elsewhere
        if within is not None:
            wakes |= DOMAINS_CHANGE
            if verdict.elsewhere:
                counts[elsewhere_reason(within)] = verdict.elsewhere
        return Failure(
            "PolicyPending" if waits_for_policy else "Unschedulable",
            unavailable_message(verdict.node_count, counts),
            verdict.node_count,
            counts,
            wakes,
            verdict.valid_until_ns,
        )

    def _refused_by_filter(self, pod: PendingPod, verdict: Verdict) -> Failure:
        """No node was looked at, and nobody is evicted: what the filter reads has to change."""
        assert verdict.pod_refusal is not None, f"{verdict} has no words"
        wakes = verdict.wakes() | _ALWAYS
        if verdict.only_scaleup_no():  # it waits for a metric
            message = refused_message(verdict.node_count, verdict.pod_refusal)
            return Failure("PolicyPending", message, 0, {}, wakes, verdict.valid_until_ns)
        program = self._core.plan(pod.policy).program
        post = words_after_refusal(program, verdict.node_count, verdict.refused_by)
        message = refused_message(verdict.node_count, verdict.pod_refusal, post)
        return Failure("Unschedulable", message, 0, {}, wakes, None)

    def _before_bind(
        self, pod: PendingPod, node: NodeName, overlay: Overlay | None, now_ns: int
    ) -> BeforeBind | None:
        core = self._core
        return core.evaluator.before_bind(
            core.plan(pod.policy),
            pod.pod,
            node,
            now_ns=now_ns,
            facts=pod.facts,
            samples=core.samples.get(pod.policy, {}),
            overlay=overlay,
        )

    # ── a gang ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def try_gang(self, gang: Gang, now_ns: int) -> Steps[None]:
        """The gang was just popped from the queue. Afterwards it, or what of it is left, stands somewhere again."""
        gang.last_in_line = False
        if self._preemption.holds_back_gang(gang):
            self._park_gang_until_evicted(gang, now_ns)
            return
        gang.attempts += 1
        for pod in gang.due.values():
            pod.attempts += 1
        needed = gang.needed
        found = yield from self._search(gang, now_ns)
        placed = found.fits if len(found.fits) >= needed else []
        for pod, success in placed:
            self._assume(pod, success, now_ns)
        if placed:
            gang.attempts, gang.overdue = 0, False
        if not gang.due:
            self._admission.refresh(gang, now_ns, "GangScheduled")
            return
        if gang.overdue:
            self._preemption.give_up(gang, now_ns)
            self._admission.time_up(gang, now_ns)
            return
        room: MadeRoom | NoRoom | None = None
        if needed and not placed:
            room = yield from self._make_room_for_gang(gang, found, now_ns)
        if room is None:
            self._preemption.give_up(gang, now_ns)
        self._park_gang(gang, found, placed, needed, room, now_ns)

    def _search(self, gang: Gang, now_ns: int) -> Steps[_Found]:
        """Members with a node. Where they are to keep together, in the first domain that takes as many as are needed; if
        none does, as far as it went in the one that took most."""
        if gang.topology is None:
            return (yield from self._search_within(gang, None, now_ns))
        tried = []
        kin = self._kin_in_trial(gang.in_order())
        for within in worth_trying(self._core, gang, gang.topology, kin, now_ns):
            found = yield from self._search_within(gang, within, now_ns)
            if found.fits and len(found.fits) >= gang.needed:
                return found
            tried.append(found)
        if not tried:
            tried.append((yield from self._search_within(gang, Within(gang.topology, None), now_ns)))
        best = max(tried, key=lambda one: len(one.fits))
        best.also = [failure for one in tried if one is not best for failure in one.failures.values()]
        return best

    def _search_within(self, gang: Gang, within: Within | None, now_ns: int) -> Steps[_Found]:
        core, found = self._core, _Found(within=within)
        members, vacancies, needed = in_trial_order(core, gang), gang.vacancies, gang.needed
        kin = self._kin_in_trial(members)
        alike = Counter(kin.values())
        possible = len(members)
        overlay = gang_overlay(core, gang)
        for pod in members:
            if vacancies is not None and len(found.fits) >= vacancies:
                found.surplus = True
                break
            if possible < needed:
                break
            if kin[pod.uid] in found.failures:
                continue
            yield asking(len(core.cache.nodes))
            result = self._ask(pod, overlay, now_ns, within)
            if isinstance(result, Success):
                result = replace(result, needs=self._lay(pod, result.node, overlay, now_ns))
                found.fits.append((pod, result))
                alike[kin[pod.uid]] -= 1
            else:
                found.failures[kin[pod.uid]] = result
                possible -= alike[kin[pod.uid]]
        return found

    def _lay(self, pod: PendingPod, node: NodeName, overlay: Overlay, now_ns: int) -> BeforeBind | None:
        """As if the pod were on the node and its volumes and devices its own; answers what has to be done about these."""
        needs = self._before_bind(pod, node, overlay, now_ns)
        overlay.place(pod.pod, node)
        if needs is not None:
            overlay.promise_devices(needs.devices)
            if needs.volumes is not None:
                overlay.promise(pod.uid, needs.volumes.choice, node)
        return needs

    def _make_room_for_gang(self, gang: Gang, found: _Found, now_ns: int) -> Steps[MadeRoom | NoRoom | None]:
        """None: nobody is evicted, and nothing is said of it."""
        if not any(one.nodes for one in found.failures.values()):
            return None
        room = yield from self._preemption.try_for_gang(
            gang,
            self._kin_in_trial(gang.in_order()),
            lambda pod, overlay, within: self._ask(pod, overlay, now_ns, within),
            lambda pod, node, overlay: self._lay(pod, node, overlay, now_ns),
            now_ns,
        )
        return room

    def _park_gang_until_evicted(self, gang: Gang, now_ns: int) -> None:
        """The answers to its evictions bring it back, whatever happens meanwhile."""
        self._core.queue.park(
            gang,
            gang.id,
            now_ns=now_ns,
            wakes=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=next(iter(gang.due.values())).explanation,
        )

    def _park_gang(
        self,
        gang: Gang,
        found: _Found,
        placed: list[tuple[PendingPod, Success]],
        needed: int,
        room: MadeRoom | NoRoom | None,
        now_ns: int,
    ) -> None:
        """What is left of a gang waits as one for whatever could help any of its members."""
        core = self._core
        failures = list(found.failures.values())
        all_failures = [*failures, *found.also]
        expiries = [one.valid_until_ns for one in all_failures if one.valid_until_ns is not None]
        wakes = frozenset[ClusterEvent]().union(*(one.wakes for one in all_failures))
        if any(uid in core.cache.nominated for uid in gang.due):
            wakes |= _PLACED_PODS  # whose room they wait for
        if isinstance(room, NoRoom) and room.valid_until_ns is not None:
            expiries.append(room.valid_until_ns)
        reason, message = _gang_words(
            gang, found, needed, bool(placed), room.words if isinstance(room, NoRoom) else ""
        )
        for pod in gang.due.values():
            self._admission.rekey(pod, now_ns)
            gang.reorder(pod)
        gang.stand()
        core.queue.punish(gang, now_ns)
        core.queue.park(
            gang,
            gang.id,
            now_ns=now_ns,
            wakes=wakes,
            valid_until_ns=min(expiries, default=None),
            reason=reason,
            message=message,
        )
        told = Failure(reason, message, 0, {}, frozenset(), None)
        if failures:
            told = Failure(reason, message, failures[0].nodes, failures[0].counts, frozenset(), None)
        for pod in gang.due.values():
            self._record_failure(pod, told, now_ns)
            core.report(pod, reason, message, now_ns)

    # ── the outcome ────────────────────────────────────────────────────────────────────────────────────────────────

    def _assume(self, pod: PendingPod, success: Success, now_ns: int) -> None:
        core, value = self._core, pod.pod
        program = core.policies.running[pod.policy].program
        gang = core.gangs.of(pod.uid)
        if gang is not None:
            core.gangs.add_placed(pod.uid, pod.policy, gang.terms[pod.uid])
        events = core.cache.assume(value, success.node)
        core.follow_placement(pod.uid, None, now_ns)
        pod.place, pod.node, pod.explanation = Place.BINDING, success.node, ""
        flight = core.in_flight[pod.uid] = Flight(pod, success.node, program.sha256, now_ns)
        self._admission.stop_clock(pod)
        core.reports.hush(pod.uid)
        core.queue.succeeded(pod, now_ns)
        core.queue.wake(events, now_ns)
        if success.needs is None:
            core.out.append(bind_command(flight))
        else:
            self._preparing.begin(flight, success.needs, now_ns)
        self._record(pod, success.node, success.score, success.nodes, success.feasible, "", {}, now_ns)

    def _record_failure(self, pod: PendingPod, failure: Failure, now_ns: int) -> None:
        self._core.counters.count("unschedulable", pod.policy)
        self._record(pod, None, None, failure.nodes, 0, failure.message, failure.counts, now_ns)

    def _record(
        self,
        pod: PendingPod,
        node: NodeName | None,
        score: int | None,
        nodes: int,
        feasible: int,
        message: str,
        counts: Mapping[str, int],
        now_ns: int,
    ) -> None:
        core = self._core
        core.decision_count += 1
        program = core.policies.running[pod.policy].program
        gang = core.gangs.of(pod.uid)
        core.decisions.append(
            Decision(
                id=core.decision_count,
                at_ns=now_ns,
                pod=pod.pod.full_name,
                uid=pod.uid,
                policy=program.name,
                sha256=program.sha256,
                version=program.version,
                node=node,
                score=score,
                nodes=nodes,
                feasible=feasible,
                message=message,
                counts=counts,
                gang=None if gang is None else gang.name,
                attempt=pod.attempts,
                queued_ns=pod.queued_ns,
                samples=samples_seen(program.metrics, core.samples.get(program.name, {}), node, now_ns),
            )
        )


def _without_room(failure: Failure, extenders: tuple[Extender, ...]) -> Failure:
    """Nobody is evicted for a node that somebody may refuse who was not asked."""
    names = ", ".join(one.name for one in extenders)
    words = f"preemption: not tried, for extender {names} has a say about this pod."
    return replace(failure, message=unavailable_message(failure.nodes, failure.counts, words))


def _refused(why: str) -> Failure:
    """The pod itself is refused: no new node would help, what is placed now may go."""
    return Failure("PolicyPending", why, 0, {}, _PLACED_PODS, None)


def _gang_words(
    gang: Gang, found: _Found, needed: int, some_placed: bool, preemption: str
) -> tuple[PendingReason, str]:
    """Why those wait who are left. The first kind of member that found no node speaks for all, with what is to be said of
    `preemption`."""
    first = next(iter(found.failures.values()), None)
    if first is None:
        return "PolicyPending", _full(gang)
    message = first.message
    if preemption and first.nodes:
        message = unavailable_message(first.nodes, first.counts, preemption)
    if some_placed or needed == 0:
        return first.reason, f"gang {gang.name}: {message}"
    count, where = len(found.fits) + len(gang.placed), ""
    if found.within is not None and found.within.value is not None:
        where = f" in {found.within.key}={found.within.value}"
    return (
        first.reason,
        f"gang {gang.name}: {count} of {gang.minimum} members fit now{where}: {message}",
    )


def _refused_beforehand(gang: Gang | None) -> str | None:
    return _full(gang) if gang is not None and gang.vacancies == 0 else None


def _full(gang: Gang) -> str:
    return f"gang {gang.name} has as many members as it may have, {gang.maximum}"
