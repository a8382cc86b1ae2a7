"""Checks that the parts of the scheduler's state agree. The simulation runs them after every step."""

from policysched.cluster.ledger import PlacementState
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod, QueueState

_ASSUMED_STATES = (PlacementState.ASSUMED, PlacementState.PREBOUND)
_QUEUED_GANG_STATES = (
    QueueState.ACTIVE,
    QueueState.BACKING_OFF,
    QueueState.UNSCHEDULABLE,
    QueueState.GATED,
    QueueState.ATTEMPTING,
)


def check_invariants(core: SchedulerCore) -> list[str]:
    """One sentence for each inconsistency.

    Each part checks itself. Here: each pending pod of a running policy is in exactly one state, and capacity is
    assumed and claims reserved only while a bind is in flight.
    """
    problems = [
        *core.cache.ledger.check(),
        *core.queue.check(),
        *core.gangs.check(),
        *core.samples.assumed_load.check(),
        *core.quotas.check(),
    ]
    for policy, uid, node in core.samples.assumed_load.assumed_pods():
        placement = core.cache.ledger.placement(uid)
        if placement is None or placement.node != node:
            problems.append(f"a metric of policy {policy} counts pod {uid} on {node}, where it is not")
    problems += [
        f"{placement.pod.full_name} is assumed on {placement.node} and no bind is in flight"
        for placement in core.cache.ledger.unconfirmed
        if placement.pod.uid not in core.binds.in_flight
    ]
    for uid in core.binds.prompt:
        if uid not in core.binds.in_flight or uid in core.binds.prebinding:
            problems.append(f"pod {uid}: decisions wait for its bind, and no bind is sent")
    for uid in core.binds.prebinding:
        if uid not in core.binds.in_flight:
            problems.append(f"pod {uid}: its volumes are being bound and no bind is in flight")
    for key, reserved_uid in core.cache.volumes.unwritten_reservations():
        if reserved_uid not in core.binds.prebinding:
            problems.append(f"{key} is reserved for pod {reserved_uid}, which is not in PreBind")
    unconfirmed = core.binds.unconfirmed_device_writes
    for claim, reserved_uid, attempt in core.cache.devices.unwritten_reservations():
        state = core.binds.prebinding.get(reserved_uid)
        if attempt not in unconfirmed and (state is None or state.attempt != attempt):
            problems.append(
                f"devices of {claim} are reserved for attempt {attempt} of pod {reserved_uid}, which is not in PreBind"
            )
    problems += core.cache.devices.check()
    problems += [
        f"claims are reserved for pod {uid}, and no bind is in flight"
        for uid in core.binds.reserved_claims.keys() - core.binds.in_flight.keys()
    ]
    for uid, observed in core.cache.pods.items():
        if uid in core.pods or uid in core.binds.in_flight:
            continue
        is_ours = observed.pod.scheduler in core.policies.running
        is_unplaced = observed.node is None and core.cache.ledger.state(uid) is PlacementState.UNKNOWN
        if is_ours and is_unplaced and not observed.deleting:
            problems.append(f"{observed.pod.full_name} is pending under a running policy and is not tracked")
    for pod in core.pods.values():
        problems += _check_pod_state(core, pod)
    return problems


def _check_pod_state(core: SchedulerCore, pod: PendingPod) -> list[str]:
    uid, name = pod.uid, pod.pod.full_name
    if uid not in core.cache.pods:
        return [f"{name} is {pod.state.value} and not in the cache"]
    gang = core.gangs.gang_of(uid)
    match pod.state:
        case QueueState.DETACHED:
            return [f"{name} is in no queue"]
        case QueueState.BINDING:
            bind = core.binds.in_flight.get(uid)
            if bind is None or bind.pod is not pod:
                return [f"{name} is being bound and no bind is in flight"]
            if core.cache.ledger.state(uid) not in _ASSUMED_STATES:
                return [f"{name} is being bound and the ledger does not assume it"]
        case QueueState.GANG_MEMBER:
            if gang is None or uid not in gang.unqueued_members:
                return [f"{name} is a gang member and in no gang"]
            if gang.state not in _QUEUED_GANG_STATES:
                return [f"{name} waits with {gang}, which is in no queue"]
        case _:
            if uid in core.binds.in_flight:
                return [f"{name} is {pod.state.value} while its bind is in flight"]
            if gang is not None and uid in gang.unqueued_members:
                return [f"{name} is {pod.state.value} while its gang is attempted as a whole"]
    return []
