"""Whether the parts of the state machine agree: for the simulation, which asks after every step."""

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
    """The ledger's recount, the queue's, the gangs' and the metrics' own accounts, and that each pending pod of ours is in exactly
    one place, with room promised only while its bind is in flight. One sentence a difference."""
    found = [*core.cache.ledger.check(), *core.queue.check(), *core.gangs.check(), *core.assumed_load.check()]
    for policy, uid, node in core.assumed_load.assumed_pods():
        placement = core.cache.ledger.placement(uid)
        if placement is None or placement.node != node:
            found.append(f"a metric of policy {policy} counts pod {uid} on {node}, where it is not")
    found += [
        f"{one.pod.full_name} is assumed on {one.node} and no bind is in flight"
        for one in core.cache.ledger.unconfirmed
        if one.pod.uid not in core.in_flight_binds
    ]
    for uid in core.prebinding:
        if uid not in core.in_flight_binds:
            found.append(f"pod {uid}: its volumes are being bound and no bind is in flight")
    for key, promised in core.cache.volumes.unwritten_reservations():
        if promised not in core.prebinding:
            found.append(f"{key} is promised to pod {promised}, which is not being prepared")
    for claim, promised in core.cache.devices.unwritten_reservations():
        if promised not in core.prebinding and promised not in core.unconfirmed_device_writes:
            found.append(f"devices of {claim} are promised to pod {promised}, which is not being prepared")
    found += core.cache.devices.check()
    found += [
        f"claims are reserved for pod {uid}, and no bind is in flight"
        for uid in core.reserved_claims.keys() - core.in_flight_binds.keys()
    ]
    for uid, seen in core.cache.pods.items():
        ours = seen.pod.scheduler in core.policies.running
        free = seen.node is None and core.cache.ledger.state(uid) is PlacementState.UNKNOWN
        if ours and free and not seen.deleting and uid not in core.pods and uid not in core.in_flight_binds:
            found.append(f"{seen.pod.full_name} is pending and ours, and stands nowhere")
    for pod in core.pods.values():
        found += _check_pod_state(core, pod)
    return found


def _check_pod_state(core: SchedulerCore, pod: PendingPod) -> list[str]:
    uid, name = pod.uid, pod.pod.full_name
    if uid not in core.cache.pods:
        return [f"{name} stands {pod.state.value} and is not known any more"]
    gang = core.gangs.gang_of(uid)
    match pod.state:
        case QueueState.DETACHED:
            return [f"{name} stands nowhere"]
        case QueueState.BINDING:
            flight = core.in_flight_binds.get(uid)
            if flight is None or flight.pod is not pod:
                return [f"{name} is being bound and no bind is in flight"]
            if core.cache.ledger.state(uid) not in _ASSUMED_STATES:
                return [f"{name} is being bound and the ledger has no promise for it"]
        case QueueState.GANG_MEMBER:
            if gang is None or uid not in gang.unqueued_members:
                return [f"{name} is a member and no gang decides for it"]
            if gang.state not in _QUEUED_GANG_STATES:
                return [f"{name} waits with {gang}, which stands nowhere"]
        case _:
            if uid in core.in_flight_binds:
                return [f"{name} is {pod.state.value} while its bind is in flight"]
            if gang is not None and uid in gang.unqueued_members:
                return [f"{name} is {pod.state.value} while its gang decides for it"]
    return []
