"""One attempt for a gang, whole: all members that fit are found on one state of the cluster.

Member by member is asked for on an overlay in which those before it are placed already; only when they are enough is
anything assumed, and then all of them in the same step; where they are not, room may be made for as many as are needed.
Members that agree on what the policy reads fail together: once one of them finds no node the others are not asked, and
once too few remain the trial ends.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from policysched.evaluate import Within
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import unavailable_message
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.gangs.placement import gang_overlay, in_trial_order
from policysched.scheduler.gangs.topology import worth_trying
from policysched.scheduler.outcome import PLACED_PODS, Failure, Success
from policysched.scheduler.preemption.preemption import MadeRoom, NoRoom, Preemption
from policysched.scheduler.questions import Questions
from policysched.scheduler.queue.admission import Admission
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.reports import PendingReason
from policysched.scheduler.settlement import Settlement
from policysched.scheduler.steps import Steps, asking


@dataclass(slots=True)
class _Found:
    """How far a gang's trial has come: members with a node, and one failure for each kind that has none."""

    fits: list[tuple[PendingPod, Success]] = field(default_factory=list)
    failures: dict[Hashable, Failure] = field(default_factory=dict)
    within: Within | None = None  # the domain that all of them were to be in
    also: list[Failure] = field(default_factory=list)  # in other domains


class GangTrials:
    """`try_gang` is one attempt, for as many members as are due."""

    def __init__(
        self,
        core: Core,
        questions: Questions,
        settlement: Settlement,
        admission: Admission,
        preemption: Preemption,
    ) -> None:
        self._core = core
        self._questions = questions
        self._settlement = settlement
        self._admission = admission
        self._preemption = preemption

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
            self._settlement.assume(pod, success, now_ns)
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
        kin = self._questions.kin_in_trial(gang.in_order())
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
        kin = self._questions.kin_in_trial(members)
        alike = Counter(kin.values())
        possible = len(members)
        overlay = gang_overlay(core, gang)
        for pod in members:
            if vacancies is not None and len(found.fits) >= vacancies:
                break  # the maximum keeps the others from being asked
            if possible < needed:
                break
            if kin[pod.uid] in found.failures:
                continue
            yield asking(len(core.cache.nodes))
            result = self._questions.ask(pod, overlay, now_ns, within)
            if isinstance(result, Success):
                result = replace(result, needs=self._questions.lay(pod, result.node, overlay, now_ns))
                found.fits.append((pod, result))
                alike[kin[pod.uid]] -= 1
            else:
                found.failures[kin[pod.uid]] = result
                possible -= alike[kin[pod.uid]]
        return found

    def _make_room_for_gang(self, gang: Gang, found: _Found, now_ns: int) -> Steps[MadeRoom | NoRoom | None]:
        """None: nobody is evicted, and nothing is said of it."""
        if not any(one.nodes for one in found.failures.values()):
            return None
        room = yield from self._preemption.try_for_gang(
            gang,
            self._questions.kin_in_trial(gang.in_order()),
            lambda pod, overlay, within: self._questions.ask(pod, overlay, now_ns, within),
            lambda pod, node, overlay: self._questions.lay(pod, node, overlay, now_ns),
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
            wakes |= PLACED_PODS  # whose room they wait for
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
            self._settlement.record_failure(pod, told, now_ns)
            core.report(pod, reason, message, now_ns)


def _gang_words(
    gang: Gang, found: _Found, needed: int, some_placed: bool, preemption: str
) -> tuple[PendingReason, str]:
    """Why those wait who are left. The first kind of member that found no node speaks for all, with what is to be said of
    `preemption`."""
    first = next(iter(found.failures.values()), None)
    if first is None:
        return "PolicyPending", gang.full_words
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
