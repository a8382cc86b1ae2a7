"""Measures the guard of each active canary every second, and rolls back a canary whose guard stays broken.

The measure `pending` is the share of the canary's pods that were tried and have no node. Pods that were not tried yet, as all of them
after a restart, may turn out either way: while they could decide, the measure is unknown and nothing changes.
"""

from typing import Literal

from policysched.lang.types.kinds import DURATION, RATIO
from policysched.lang.types.units import format_value
from policysched.scheduler.canaries import ActiveCanary, CanaryStatus
from policysched.scheduler.commands import Log, ReportPolicyEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policy_reload import PolicyReload
from policysched.scheduler.queue.entries import QueueState

_PERIOD_NS = SECOND_NS

GuardState = Literal["holds", "broken", "unknown"]


class CanaryGuards:
    """A part of `Timers`."""

    def __init__(self, core: SchedulerCore, reload: PolicyReload) -> None:
        self._core = core
        self._reload = reload

    def next_time_ns(self) -> int | None:
        sorted_ones = (active for active in self._core.canaries.active.values() if not active.unsorted)
        return min((active.measured_ns + _PERIOD_NS for active in sorted_ones), default=None)

    def advance(self, now_ns: int) -> None:
        for policy, active in list(self._core.canaries.active.items()):
            if not active.unsorted and now_ns >= active.measured_ns + _PERIOD_NS:
                active.measured_ns = now_ns
                with self._core.raises_for_text(self._core.policies.running[policy].program):
                    self._check(policy, active, now_ns)

    def _check(self, policy: str, active: ActiveCanary, now_ns: int) -> None:
        canaries = self._core.canaries
        tried, untried, placed = self.count(active)
        total = tried + untried + placed
        state = guard_state(tried, untried, total, active.spec.pending_max)
        since_ns = canaries.records[policy].broken_since_ns
        # Who creates and deletes pods can change the state each second, and a save is of the states of all policies.
        if state == "holds" and since_ns is not None:
            canaries.update(policy, broken_since_ns=None)
            self._core.samples.policy_states.request_save(now_ns)
        elif state == "broken" and since_ns is None:
            canaries.update(policy, broken_since_ns=now_ns)
            self._core.samples.policy_states.request_save(now_ns)
        elif state == "broken" and since_ns is not None and now_ns - since_ns >= active.spec.broken_for_ns:
            self._roll_back(policy, active, tried, total, now_ns)

    def status(self) -> list[CanaryStatus]:
        """By policy."""
        canaries, statuses = self._core.canaries, []
        for policy, record in sorted(canaries.records.items()):
            active, pending, pods = canaries.active.get(policy), record.pending, record.pods
            if active is not None:
                pending, untried, placed = self.count(active)
                pods = pending + untried + placed
            statuses.append(CanaryStatus(policy, record, pending, pods))
        return statuses

    def count(self, active: ActiveCanary) -> tuple[int, int, int]:
        """The pods of the share that were tried and have no node, those that were not tried yet, and those that have a node.
        Pods that may not be tried at all (a scheduling gate, an incomplete gang) do not count."""
        tried = untried = placed = 0
        for uid in active.members:
            pod = self._core.pods.get(uid)
            if pod is None or pod.state in (QueueState.BINDING, QueueState.BIND_LOST):
                placed += 1
            elif pod.state is QueueState.GATED or pod.admission_rejected:
                continue
            elif pod.pending_message:  # alone, with its gang, or by one of its equivalence class
                tried += 1
            else:
                untried += 1
        return tried, untried, placed

    def _roll_back(self, policy: str, active: ActiveCanary, pending: int, pods: int, now_ns: int) -> None:
        core, spec = self._core, active.spec
        core.canaries.update(policy, rolled_back_ns=now_ns, pending=pending, pods=pods)
        limit, duration = format_value(spec.pending_max, RATIO), format_value(spec.broken_for_ns, DURATION)
        message = (
            f"canary `{spec.name}` of policy `{policy}` is rolled back: {pending} of its {pods} pods are pending, "
            f"and its guard `pending < {limit}` was broken for {duration}; its rules apply to no pod until its text changes"
        )
        core.commands += [
            Log("warning", message, {}),
            ReportPolicyEvent("Warning", "CanaryRolledBack", message),
        ]
        core.save_canary("rollback", now_ns)
        self._reload.restart_without_canary(policy, now_ns)


def guard_state(tried: int, untried: int, total: int, pending_max: float) -> GuardState:
    """Of `total` pods `tried` are known to be pending, and `untried` may be."""
    if total == 0 or tried + untried < pending_max * total:
        return "holds"
    return "broken" if tried >= pending_max * total else "unknown"
