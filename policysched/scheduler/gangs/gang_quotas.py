"""Whether the quotas admit enough members of a gang together."""

from policysched.scheduler.attempt_result import reject_for_quota
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.gangs.member_order import members_in_attempt_order
from policysched.scheduler.queue.gang_registry import QueuedGang


def refused_by_quotas(core: SchedulerCore, gang: QueuedGang) -> GangSearchResult | None:
    """The result if the quotas admit too few members together; None: enough. No member is evaluated for it."""
    trial = core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
    if trial is None:
        return None
    first, admitted = None, 0
    for pod in members_in_attempt_order(core, gang):
        refusal = core.quotas.refusal(pod.pod, trial)
        if refusal is None:
            trial.add(core.quotas.charge_of(pod.pod))
            admitted += 1
        first = first or refusal
        if admitted >= max(1, gang.needed_count):
            return None
    if first is None:
        return None
    failure = reject_for_quota(first.message)
    return GangSearchResult(failures={"quota": failure}, refusal=first, admitted_count=admitted)
