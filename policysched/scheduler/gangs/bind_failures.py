"""What a refused bind does to the rest of a gang that is placed whole.

    refused, and the gang is below its minimum ──► members in PreBind: withdrawn
                                               ──► binds that were not sent: cancelled
                                               ──► binds that were sent: awaited
    all answered, still below the minimum ──► `on_bind_failure`: keep the bound members, or evict them
                                                   ▲ after 10 s, twice as long each time, 160 s at most │
                                                   └──────────── not now, or refused by the server ─────┘

A bind that was sent may be carried out until it is answered (ADR 6), so such a member may still become bound. The
withdrawn members are pending again, and the gang is attempted with them after its backoff. A process that starts in
between reads in the condition of the refused pod what happened (`PolicyTextEvents`), and evicts. What is newer is written behind
it there until the members are evicted. The bound members stay if that pod is gone, or if its condition was not written.
"""

from dataclasses import dataclass

from policysched.lang.ir.program import OnBindFailure
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.commands import CancelBind
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.in_flight_binds import GangBindFailure
from policysched.scheduler.limits import PREBINDS_PER_SLICE_MAX, SECOND_NS
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.queue.gang_registry import QueuedGang

_RECHECK_NS = 10 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no member is evicted ("": they are), and until when. None: they stay."""

    effect: str = ""
    until_ns: int | None = None


class GangBindFailures:
    """Works on `InFlightBinds.gang_failures`. A part of the timers, so that it comes before the next attempt."""

    def __init__(self, core: SchedulerCore, prebinder: Prebinder, preemption: DefaultPreemption) -> None:
        self._core = core
        self._prebinder = prebinder
        self._preemption = preemption
        self._withdrawals_left = 0  # in this call

    def next_time_ns(self) -> int | None:
        """When the first answer arrived that was not looked at, or when members are to be evicted."""
        return self._core.binds.due_gang_failures.first_key()

    def advance(self, now_ns: int) -> None:
        """Evictions are tried again for one gang at a time: decisions for others come in between."""
        binds, first_ns = self._core.binds, self.next_time_ns()
        if first_ns is None or first_ns > now_ns:
            return
        due, has_repeated = binds.due_gang_failures, False
        self._withdrawals_left = PREBINDS_PER_SLICE_MAX
        for gang_id in [gang_id for gang_id in due if due.key_of(gang_id) <= now_ns]:
            if self._core.is_uncounted(gang_id[0], gang_id[1]):
                continue  # the members that it has under a new text are not all known
            gang, failure = self._core.gangs.get(gang_id), binds.gang_failures[gang_id]
            if failure.reported and has_repeated:
                continue
            has_repeated |= bool(failure.reported)
            with raises_for(pod_id(failure.pod)):
                if gang is None or len(gang.placed_members) >= gang.minimum:
                    self._core.end_gang_failure(gang_id)
                elif self._withdraw_unbound(gang, failure, now_ns):
                    self._settle(gang, failure, now_ns)

    def _withdraw_unbound(self, gang: QueuedGang, failure: GangBindFailure, now_ns: int) -> bool:
        """Withdraw the members that are not bound, as far as possible, those in PreBind in slices. Returns whether none is left."""
        core, has_more = self._core, False
        message = f"withdrawn, because gang {gang.name} is incomplete: {failure.pod.name}: {failure.message}"
        for uid in self._unbound(gang):
            core.binds.in_flight[uid].awaited_by.add(gang.id)
            if (prebind := core.binds.prebinding.get(uid)) is not None:
                if prebind.withdrawal is not None:
                    continue
                has_more = has_more or not self._withdrawals_left
                if self._withdrawals_left:
                    self._withdrawals_left -= 1
                    self._prebinder.withdraw(uid, message, now_ns)
            elif uid not in failure.cancelled:
                failure.cancelled.add(uid)
                core.commands.append(CancelBind(uid))
        if has_more:
            core.binds.due_gang_failures.put(gang.id, now_ns)
            return False
        core.binds.due_gang_failures.discard(gang.id)  # until the next answer
        return not self._unbound(gang)

    def _unbound(self, gang: QueuedGang) -> list[PodUid]:
        return [uid for uid in gang.placed_members if uid in self._core.binds.in_flight]

    def _settle(self, gang: QueuedGang, failure: GangBindFailure, now_ns: int) -> None:
        """No member is on its way any more: keep the bound ones or evict them, now or later."""
        core = self._core
        running = core.policies.running.get(gang.policy)
        clause = None if running is None else running.program.gang
        members = tuple(core.cache.pods[uid].pod for uid in gang.placed_members)
        if clause is None or not members:
            core.end_gang_failure(gang.id)
            return
        obstacle = Obstacle("they keep their nodes")
        if clause.on_bind_failure is OnBindFailure.EVICT:
            obstacle = self._obstacle(gang, members, now_ns)
        bound = f"{len(members)} of the {gang.minimum} needed members are bound"
        core.report_gang_failure(gang, failure, f"{bound}, and {obstacle.effect or 'they are evicted'}")
        if not obstacle.effect:
            reason = f"gang {gang.name} is incomplete: the bind of {failure.pod.name} was refused"
            self._preemption.evict_rest_of_gang(gang.id, failure, members, reason, now_ns)
        elif obstacle.until_ns is None:
            core.end_gang_failure(gang.id)
        else:
            core.binds.due_gang_failures.put(gang.id, obstacle.until_ns)

    def _obstacle(self, gang: QueuedGang, members: tuple[Pod, ...], now_ns: int) -> Obstacle:
        """They are evicted together or not at all."""
        core, evictions = self._core, self._preemption.evictions
        later_ns = max(now_ns + _RECHECK_NS, evictions.resumes_ns(gang.namespace, now_ns) or 0)
        for pod in members:
            if core.permissions.protects(gang.policy, pod, core.namespace_of(pod)):
                return Obstacle(
                    f"they keep their nodes, because the settings protect {pod.name} from eviction"
                )
            if evictions.breaker.blocks(pod, pod.namespace, now_ns):
                effect = f"they are evicted later, because pods like {pod.name} were evicted too often"
                return Obstacle(effect, later_ns)
        if evictions.is_forbidden(now_ns):
            return Obstacle("they are evicted later, because the API server forbids evictions now", later_ns)
        return Obstacle()
