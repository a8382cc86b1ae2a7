"""The result of one attempt of a pod."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

from policysched.cluster.devices.node_searches import has_devices_now
from policysched.cluster.devices.search_limits import SEARCH_CONTINUES
from policysched.evaluate import PrebindRequirements
from policysched.evaluate.verdict import DecisionDetail, RejectionCause
from policysched.lang.ir.program import Extender, Program
from policysched.lang.ir.verdict import ShadowEffect
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.unschedulable_message import filter_error_message, unavailable_message

PLACED_POD_EVENTS = frozenset({ClusterEvent.ASSIGNED_POD_DELETE, ClusterEvent.ASSIGNED_POD_UPDATE})
"""Events that can help a pod that no new node would help."""

EVICTIONS_UNANSWERED = "waiting for the API server to answer the evictions made for this pod"
"""For a pod that was not attempted by this process: its earlier message is unknown after a restart."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why no node was found, the events that could change that, and when the verdict expires (ns; None: never). `cause` is
    what keeps the pod from the nearest nodes; `detail` is for recordings."""

    reason: PendingReason
    message: str
    node_count: int
    counts: Mapping[str, int]
    requeue_events: frozenset[ClusterEvent]
    valid_until_ns: int | None
    cause: RejectionCause | None = None
    detail: DecisionDetail | None = None

    def without_preemption(
        self, message: str, valid_until_ns: int | None, requeue_events: frozenset[ClusterEvent]
    ) -> "AttemptFailure":
        """The failure after a preemption without victims; there may be some from then on, or after these events."""
        return replace(
            self,
            message=message,
            valid_until_ns=earlier_ns(self.valid_until_ns, valid_until_ns),
            requeue_events=self.requeue_events | requeue_events,
        )


@dataclass(frozen=True, slots=True)
class AttemptSuccess:
    """The selected node, and the work before the bind (None: none, or not known yet)."""

    node: NodeName
    score: int
    node_count: int
    feasible_count: int
    prebind_work: PrebindRequirements | None = None
    detail: DecisionDetail | None = None
    shadows: tuple[ShadowEffect, ...] = ()


_OVER_BUDGET_EVENTS = frozenset(
    {
        ClusterEvent.NODE_DELETE,
        ClusterEvent.RESOURCE_CLAIM_ADD,
        ClusterEvent.RESOURCE_CLAIM_UPDATE,
        ClusterEvent.DEVICE_CLASS_UPDATE,
    }
)


DOMAIN_CHANGE_EVENTS = frozenset(
    {
        ClusterEvent.NODE_LABEL,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.ASSIGNED_POD_DELETE,
        ClusterEvent.ASSIGNED_POD_UPDATE,
    }
)
"""Events that can create a topology domain or make one large enough, whatever rejected the nodes of those tried."""


def reject_over_budget(message: str) -> AttemptFailure:
    """The pod was not evaluated. A larger cluster makes it more expensive, a smaller one may not, nor may changes of its
    claims and their classes, which have its selectors of devices."""
    return AttemptFailure("PolicyPending", message, 0, {}, _OVER_BUDGET_EVENTS, None)


def reject_device_search(message: str) -> AttemptFailure:
    """The same for the search for devices. Fewer slices or other ones make it shorter."""
    return replace(
        reject_over_budget(message),
        requeue_events=_OVER_BUDGET_EVENTS | {ClusterEvent.RESOURCE_SLICE_UPDATE},
    )


def continue_device_search(core: SchedulerCore, now_ns: int) -> AttemptFailure:
    """The search for devices was cut off. Its results are kept, and the next attempt continues with the other nodes, unless they are
    too many."""
    refused = core.cache.devices.allocation_cache.refused
    if refused is not None:
        return reject_device_search(refused)
    return AttemptFailure(
        "Unschedulable", SEARCH_CONTINUES, 0, {}, frozenset(), next_device_search_ns(now_ns)
    )


def next_device_search_ns(now_ns: int) -> int:
    """When a search for devices that was cut off goes on."""
    return now_ns + SECOND_NS


def devices_go_on_at_once(core: SchedulerCore, entry: QueueEntry, *, counted: bool = True) -> bool:
    """Whether only a slice of the search for devices is over. The entry is put back then, as if it had not been attempted.
    `counted`: the attempt began with this slice."""
    if not core.cache.devices.allocation_cache.goes_on_at_once:
        return False
    if counted:
        entry.attempts -= 1
    core.queue.put_back(entry)
    return True


def has_devices(core: SchedulerCore, pod: PendingPod, node: NodeName | None) -> bool:
    """Whether the search for devices visited all nodes, and the selected one has them now: its result may be older than the last
    change."""
    if node is not None and core.cache.devices.allocation_cache.accepted:
        with_extended = core.plan(pod.policy).covers_extended_resources
        return has_devices_now(pod.pod, core.cache, node, with_extended=with_extended)
    return not core.cache.devices.allocation_cache.is_cut_off


def again_if_outdated(core: SchedulerCore, failure: AttemptFailure, now_ns: int) -> AttemptFailure:
    """A change that the search for devices has not seen may help: its event came before the failure."""
    if not core.cache.devices.allocation_cache.accepted:
        return failure
    again_ns = earlier_ns(next_device_search_ns(now_ns), failure.valid_until_ns)
    return replace(failure, valid_until_ns=again_ns)


def reject_for_quota(message: str) -> AttemptFailure:
    """A quota does not admit the pod: no node would help, but a release of what the quota lacks."""
    return AttemptFailure("PolicyPending", message, 0, {}, frozenset({ClusterEvent.QUOTA}), None)


def reject_pod(message: str) -> AttemptFailure:
    """The pod itself is rejected: no new node would help, but the removal of placed pods may."""
    return AttemptFailure("PolicyPending", message, 0, {}, PLACED_POD_EVENTS, None)


@dataclass(frozen=True, slots=True)
class EarlyRejection:
    """The equivalence class of a pod that is rejected before any node is evaluated; `failure` composes its message."""

    equivalence_key: Hashable
    failure: Callable[[], AttemptFailure]


def rejected_early(
    policy: str,
    namespace: str,
    gang: QueuedGang | None,
    refusal: QuotaRefusal | None,
    equivalence_key: Callable[[], Hashable],
) -> EarlyRejection | None:
    """The rejection of a pod before any node is evaluated; None: its nodes are evaluated."""
    if gang is not None and gang.vacancies == 0:
        full = gang.full_message
        return EarlyRejection(("rejected early", policy, full), lambda: reject_pod(full))
    if refusal is None:
        return None
    # Whether others give back depends on where the pod fits.
    nodes_key = equivalence_key() if refusal.block.claims else None
    key = ("quota", policy, namespace, refusal.block.node, refusal.charge, nodes_key)
    return EarlyRejection(key, lambda: reject_for_quota(refusal.message))


def stop_attempt(
    error: str, requeue_events: frozenset[ClusterEvent], valid_until_ns: int | None
) -> AttemptFailure:
    """A filter failed on a node."""
    return AttemptFailure(
        "SchedulerError", filter_error_message(error), 0, {}, requeue_events, valid_until_ns
    )


def with_preemption_skipped(failure: AttemptFailure, extenders: tuple[Extender, ...]) -> AttemptFailure:
    """No preemption while extenders apply: they were not called about the node, and may reject it."""
    names = ", ".join(extender.name for extender in extenders)
    reason = f"preemption: not tried, because extender {names} applies to this pod."
    return replace(failure, message=unavailable_message(failure.node_count, failure.counts, reason))


def sample_sources_message(core: SchedulerCore, program: Program) -> str:
    """Where an operator looks for the missing samples."""
    sources = {core.samples.source_name_of(metric) for metric in program.metrics.values()} - {None}
    names = ", ".join(sorted(str(source) for source in sources))
    return f"The policy's samples come from source {names}." if names else ""
