"""What a pending pod waits for, as plain values for `/decisions` and `policysched show`."""

from dataclasses import dataclass

from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import QueueState


@dataclass(frozen=True, slots=True)
class PendingPodStatus:
    """`state` is a value of `QueueState`; `requeue_events` are the cluster events that would requeue it, sorted.
    `gang` is `namespace/key`. Times in ns since 1970."""

    pod: str
    uid: PodUid
    policy: str
    sha256: str
    state: str
    message: str
    attempts: int
    queued_ns: int
    backoff_until_ns: int | None
    requeue_events: tuple[str, ...]
    gang: str | None
    node: NodeName | None


def not_pending_reason(core: SchedulerCore, pod: str) -> str:
    """Why a pod, given as `namespace/name`, is not pending under a running policy."""
    observed = [pending for pending in core.cache.pods.values() if pending.pod.full_name == pod]
    if not observed:
        return f"pod {pod} does not exist or has finished"
    last = observed[-1]
    if last.node is not None:
        return f"it is on {last.node}"
    if last.deleting:
        return "it is being deleted"
    for policy in core.policies.status():
        if (policy.name, policy.phase) == (last.pod.scheduler, "rejected"):
            return f"policy `{policy.name}` is rejected and no earlier version is active; /policy has the errors in {policy.key}"
    names = ", ".join(sorted(core.policies.programs())) or "none"
    return f"its schedulerName is `{last.pod.scheduler}`, and no policy of that name runs here; running policies: {names}"


def pending_status(core: SchedulerCore, uid: PodUid) -> PendingPodStatus | None:
    """None if the pod is not pending under a running policy."""
    pod = core.pods.get(uid)
    if pod is None:
        return None
    gang = core.gangs.gang_of(uid)
    entry = gang if gang is not None and uid in gang.unqueued_members else pod
    group = core.queue.group_of(entry)
    message = pod.pending_message if group is None else group.message
    if not message and gang is not None and not gang.has_quorum:
        message = gang.incomplete_message  # it is reported to users only after a while
    if entry.state is QueueState.ACTIVE and pod.policy in core.samples.first_samples.held_policies:
        message = f"policy {pod.policy} {core.samples.first_samples.message(pod.policy)}"
    elif entry.state is QueueState.ACTIVE and pod.policy in core.counting_policies:
        message = f"policy {pod.policy} is counting the pods for its totals"
    elif entry.state in (QueueState.AWAITING_POLICY, QueueState.ACTIVE) and (
        pod.policy in core.changing_policies
    ):
        message = f"policy {pod.policy} has a new text, which is applied to its pods"
    elif entry.state is QueueState.AWAITING_POLICY:
        message = f"policy {pod.policy} takes long for each pod, and the pods of a namespace take turns"
    return PendingPodStatus(
        pod=pod.pod.full_name,
        uid=uid,
        policy=pod.policy,
        sha256=core.policies.running[pod.policy].program.sha256,
        state=entry.state.value,
        message=message,
        attempts=pod.attempts,
        queued_ns=pod.queued_ns,
        backoff_until_ns=entry.backoff_until_ns or None,
        requeue_events=() if group is None else tuple(sorted(event.value for event in group.requeue_events)),
        gang=None if gang is None else gang.name,
        node=pod.node,
    )


class PendingPods:
    """What users ask about pods, by the names that they use."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core

    def full_names(self, name: str) -> list[str]:
        """The known pods that a user can mean, as `namespace/name`, sorted: a name without a namespace is looked for in all
        namespaces, in the cluster and in the latest decisions."""
        if "/" in name:
            return [name]
        pods, decisions = self._core.cache.pods.values(), self._core.records.decisions
        full_names = {observed.pod.full_name for observed in pods if observed.pod.name == name}
        return sorted(
            full_names or {decision.pod for decision in decisions if decision.pod.partition("/")[2] == name}
        )

    def status(self, name: str) -> PendingPodStatus | None:
        """The state of the pod `namespace/name` and what it waits for; None if it is not pending under a running policy."""
        uids = [uid for uid, pending in self._core.pods.items() if pending.pod.full_name == name]
        return pending_status(self._core, uids[-1]) if uids else None

    def not_pending_reason(self, name: str) -> str:
        """Why `status` returns None."""
        return not_pending_reason(self._core, name)
