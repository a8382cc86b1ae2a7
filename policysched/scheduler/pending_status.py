"""What a pending pod waits for, as plain values for `/decisions` and for people."""

from dataclasses import dataclass

from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import QueueState


@dataclass(frozen=True, slots=True)
class PendingPodStatus:
    """`state` is a word of `units.Place`; `requeue_events` are the cluster events that would have it tried again, sorted.
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
    """Why a pod, by its `namespace/name`, does not wait for a policy, in words for who looks for it."""
    seen = [one for one in core.cache.pods.values() if one.pod.full_name == pod]
    if not seen:
        return f"no pod {pod} is known that has not finished"
    last = seen[-1]
    if last.node is not None:
        return f"it is on {last.node}"
    if last.deleting:
        return "it is being deleted"
    for policy in core.policies.status():
        if (policy.name, policy.phase) == (last.pod.scheduler, "rejected"):
            return f"policy `{policy.name}` is refused, and nothing runs in its place: /policy says what is wrong with {policy.key}"
    runs = ", ".join(sorted(core.policies.running)) or "none"
    return f"its schedulerName is `{last.pod.scheduler}`, and no policy of that name runs here; those that run: {runs}"


def pending_status(core: SchedulerCore, uid: PodUid) -> PendingPodStatus | None:
    """What is known of a pending pod of ours; None where it is not one."""
    pod = core.pods.get(uid)
    if pod is None:
        return None
    gang = core.gangs.gang_of(uid)
    unit = gang if gang is not None and uid in gang.unqueued_members else pod
    room = core.queue.group_of(unit)
    words = pod.pending_message if room is None else room.message
    if unit.state is QueueState.ACTIVE and pod.policy in core.first_samples.held_policies:
        words = f"policy {pod.policy} {core.first_samples.message(pod.policy)}"
    return PendingPodStatus(
        pod=pod.pod.full_name,
        uid=uid,
        policy=pod.policy,
        sha256=core.policies.running[pod.policy].program.sha256,
        state=unit.state.value,
        message=words,
        attempts=pod.attempts,
        queued_ns=pod.queued_ns,
        backoff_until_ns=unit.backoff_until_ns or None,
        requeue_events=() if room is None else tuple(sorted(event.value for event in room.requeue_events)),
        gang=None if gang is None else gang.name,
        node=pod.node,
    )
