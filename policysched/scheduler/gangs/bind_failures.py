"""What a refused bind does to the rest of a gang that is placed whole.

    refused, and the gang is below its minimum ──► members in PreBind: withdrawn
                                               ──► binds that were not sent: cancelled
                                               ──► binds that were sent: awaited
    all answered, still below the minimum ──► `on_bind_failure`: keep the bound members, or evict them

A bind that was sent may be carried out until it is answered (ADR 6), so such a member may still become bound. The
withdrawn members are pending again, and the gang is attempted with them after its backoff. A process that starts in
between reads in the condition of the refused pod what happened (`PolicyTextEvents`), and evicts. Nothing newer is written there
before the evictions are answered. The bound members stay if that pod is gone, or if its condition was not written.
"""

from policysched.lang.ir.program import OnBindFailure
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.commands import CancelBind, ReportPodEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.in_flight_binds import GangBindFailure
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.queue.gang_registry import QueuedGang


class GangBindFailures:
    """Works on `InFlightBinds.gang_failures`. A part of the timers, so that it comes before the next attempt."""

    def __init__(self, core: SchedulerCore, prebinder: Prebinder, preemption: DefaultPreemption) -> None:
        self._core = core
        self._prebinder = prebinder
        self._preemption = preemption

    def next_time_ns(self) -> int | None:
        """When the first answer arrived that was not looked at."""
        return next(iter(self._core.binds.due_gang_failures.values()), None)

    def advance(self, now_ns: int) -> None:
        binds = self._core.binds
        for gang_id in list(binds.due_gang_failures):
            if self._core.is_uncounted(gang_id[0], gang_id[1]):
                continue  # the members that it has under a new text are not all known
            gang, failure = self._core.gangs.get(gang_id), binds.gang_failures[gang_id]
            with raises_for(pod_id(failure.pod)):
                if gang is None or len(gang.placed_members) >= gang.minimum:
                    self._core.end_gang_failure(gang_id)
                elif self._withdraw_unbound(gang, failure, now_ns):
                    binds.end_gang_failure(gang_id)
                    if not self._settle(gang, failure, now_ns):
                        self._core.reports.release(failure.pod.uid)

    def _withdraw_unbound(self, gang: QueuedGang, failure: GangBindFailure, now_ns: int) -> bool:
        """Withdraw the members that are not bound, as far as possible. Returns whether none is left."""
        core = self._core
        message = f"withdrawn, because gang {gang.name} is incomplete: {failure.pod.name}: {failure.message}"
        for uid in self._unbound(gang):
            core.binds.in_flight[uid].awaited_by.add(gang.id)
            if uid in core.binds.prebinding:
                self._prebinder.withdraw(uid, message, now_ns)
            elif uid not in failure.cancelled:
                failure.cancelled.add(uid)
                core.commands.append(CancelBind(uid))
        del core.binds.due_gang_failures[gang.id]  # until the next answer
        return not self._unbound(gang)

    def _unbound(self, gang: QueuedGang) -> list[PodUid]:
        return [uid for uid in gang.placed_members if uid in self._core.binds.in_flight]

    def _settle(self, gang: QueuedGang, failure: GangBindFailure, now_ns: int) -> bool:
        """No member is on its way any more: keep the bound ones or evict them. Returns whether they are evicted."""
        core = self._core
        running = core.policies.running.get(gang.policy)
        clause = None if running is None else running.program.gang
        members = tuple(core.cache.pods[uid].pod for uid in gang.placed_members)
        if clause is None or not members:
            return False
        effect, evicts = "they keep their nodes", False
        if clause.on_bind_failure is OnBindFailure.EVICT:
            obstacle = self._obstacle(gang, members, now_ns)
            effect, evicts = obstacle or "they are evicted", obstacle is None
            if evicts:
                reason = f"gang {gang.name} is incomplete: the bind of {failure.pod.name} was refused"
                self._preemption.evict_rest_of_gang(failure.pod, members, reason, now_ns)
        bound = f"{len(members)} of the {gang.minimum} needed members are bound"
        message = f"gang {gang.name}: {failure.message}; {bound}, and {effect}"
        pod = failure.pod
        core.commands.append(
            ReportPodEvent(
                pod.uid, pod.namespace, pod.name, pod.scheduler, "Warning", "GangBindFailed", message
            )
        )
        return evicts

    def _obstacle(self, gang: QueuedGang, members: tuple[Pod, ...], now_ns: int) -> str | None:
        """Why no member is evicted: they are evicted together or not at all."""
        core, preemption = self._core, self._preemption
        for pod in members:
            if core.permissions.protects(gang.policy, pod, core.namespace_of(pod)):
                return f"they keep their nodes, because the settings protect {pod.name} from eviction"
            if preemption.evictions.is_eviction_blocked(pod, now_ns):
                return f"they keep their nodes, because pods like {pod.name} were evicted too often"
        if preemption.evictions.is_forbidden(now_ns):
            return "they keep their nodes, because the API server forbids evictions"
        return None
