"""The result of a search of nodes for a gang, and the message of its pending members."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from policysched.evaluate import Overlay, TopologyDomain
from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.attempt_result import (
    PLACED_POD_EVENTS,
    AttemptFailure,
    AttemptSuccess,
    next_device_search_ns,
    reject_for_quota,
)
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.quotas.quota_limits import QuotaNode
from policysched.scheduler.unschedulable_message import unavailable_message

NEXT_ROUND_NS = 60 * SECOND_NS
"""When the domains are tried from the first one again, after a round that took several attempts."""


@dataclass(slots=True)
class GangSearchResult:
    """Result of a search: members with a node, and one failure for each equivalence class without one."""

    fits: list[tuple[PendingPod, AttemptSuccess]] = field(default_factory=list)
    failures: dict[Hashable, AttemptFailure] = field(default_factory=dict)
    # Members that lost their nodes in a pause: to be placed anew.
    lost: list[tuple[PendingPod, AttemptSuccess]] = field(default_factory=list)
    domain: TopologyDomain | None = None  # the topology domain that was searched
    refusal: QuotaRefusal | None = None  # the first one of a member by a quota
    refused_at: set[QuotaNode] = field(default_factory=set)  # by whichever quotas members were refused
    charges: Sequence[QuotaCharge] = ()  # of all members, if the quotas admit too few
    admitted_count: int | None = None  # members that the quotas admit, if those are too few
    other_domain_failures: list[AttemptFailure] = field(
        default_factory=list
    )  # from the other domains that were tried
    victims: dict[PodUid, NodeName] = field(
        default_factory=dict
    )  # that are not on the overlay, from these nodes
    wanted: object = None  # what the gang needs, as far as it can change in a pause
    overlay: Overlay | None = None  # with the members that have a node; None: to be made again
    # Of devices or volumes beside victims, whose members are not asked in a pause whether they keep them.
    has_reservations: bool = False
    evicts: bool = False
    reclaims: bool = False  # the quotas are judged at the end, as the victims borrow now
    operations: int = 0  # of the members that were evaluated
    evaluations: int = 0
    domains_tried: int | None = None  # by this attempt and those that it continues; None: all
    ends_round: bool = False  # all domains were tried, in several attempts
    backtracks_exceeded: bool = False
    shortage: str | None = None  # what enough members lack of the resources that start together

    @property
    def is_of_nodes(self) -> bool:
        """Whether nodes were searched: neither a limit nor the quotas refused the gang before."""
        return self.wanted is not None

    def take_lost(self) -> Sequence[tuple[PendingPod, AttemptSuccess]]:
        """The members that have lost their nodes since the last call."""
        lost, self.lost = self.lost, []
        return lost

    def add_refusal(self, equivalence_key: Hashable, refusal: QuotaRefusal) -> None:
        """The quotas do not admit the members of a class beside those that have a node."""
        self.refusal = self.refusal or refusal
        self.refused_at.add(refusal.block.node)
        self.failures[equivalence_key] = reject_for_quota(refusal.message)


@dataclass(slots=True)
class SearchPauses:
    """Where an attempt may pause, and what its search is told afterwards. `search`: what is offered in the present step, if the
    cluster may change before the next one. `count`: of the pauses so far. `is_limited`: to slices, as others may wait, which
    `others_wait` tells of the end of the last pause."""

    now_ns: int = 0
    search: GangSearchResult | None = None
    cluster_changed: bool = False
    count: int = 0
    is_limited: bool = False
    others_wait: bool = False


def wanted(gang: QueuedGang) -> object:
    """What a search for the gang depends on beside its members."""
    return gang.levels, gang.needed_count, gang.vacancies


def domains_to_skip(gang: QueuedGang) -> frozenset[TopologyDomain]:
    """The domains that the attempts before this one tried. Placed members fix the domain: none is skipped then."""
    return frozenset() if gang.placed_members else gang.domains_tried


def remember_domains(
    gang: QueuedGang,
    skipped: frozenset[TopologyDomain],
    searches: Sequence[GangSearchResult],
    best: GangSearchResult,
    *,
    left_out: bool,
) -> None:
    """Have the next attempt continue with the domains that this one left out, until none is left."""
    domains = [search.domain for search in searches if search.domain is not None]
    tried = skipped | {domain for domain in domains if domain.value is not None}
    gang.domains_tried = tried if left_out else frozenset()
    best.domains_tried = len(tried) if left_out else None
    best.ends_round = bool(skipped) and not left_out


def requeue_conditions(
    core: SchedulerCore,
    gang: QueuedGang,
    search: GangSearchResult,
    preemption: PreemptionStarted | NoPreemption | None,
    now_ns: int,
) -> tuple[frozenset[ClusterEvent], int | None]:
    """The events and the time after which the gang is attempted again."""
    failures = [*search.failures.values(), *search.other_domain_failures]
    expiries = [failure.valid_until_ns for failure in failures]
    events = core.quotas.requeue_events(gang.policy).union(*(failure.requeue_events for failure in failures))
    if any(uid in core.cache.nominated for uid in gang.pending_members):
        events |= PLACED_POD_EVENTS  # they wait for the capacity of these pods
    if isinstance(preemption, NoPreemption):
        events |= preemption.requeue_events
        expiries.append(preemption.valid_until_ns)
    if search.domains_tried is not None:
        expiries.append(now_ns + core.limits.backoff_ns(1))
    elif search.ends_round:  # the domains of earlier attempts may have changed since
        expiries.append(now_ns + NEXT_ROUND_NS)
    devices = core.cache.devices.allocation_cache
    if devices.is_cut_off and devices.refused is None:  # maybe in the search with evictions
        expiries.append(next_device_search_ns(now_ns))
    return events, earlier_ns(*expiries)


def gang_message(
    gang: QueuedGang, search: GangSearchResult, needed: int, some_placed: bool, preemption: str
) -> tuple[PendingReason, str]:
    """Reason and message for the pending members.

    The first equivalence class without a node represents all; `preemption` (why nothing is evicted) is appended to it.
    """
    first = next(iter(search.failures.values()), None)
    if search.shortage is not None and first is not None:
        return (
            first.reason,
            f"gang {gang.name}: the members that fit now request {search.shortage}: {first.message}",
        )
    if first is None:
        return "PolicyPending", gang.full_message
    message = first.message
    if preemption and first.node_count:
        message = unavailable_message(first.node_count, first.counts, preemption)
    if some_placed or needed == 0:
        return first.reason, f"gang {gang.name}: {message}"
    if search.admitted_count is not None:
        admitted = search.admitted_count + len(gang.placed_members)
        if preemption:  # it says why no quota is reclaimed
            message = f"{message}; {preemption}"
        return first.reason, f"gang {gang.name}: quotas admit {admitted} of {gang.minimum} members: {message}"
    count, domain = len(search.fits) + len(gang.placed_members), ""
    if search.domain is not None and search.domain.value is not None:
        domain = f" in {search.domain.name}"
    if search.domains_tried is not None:
        domain += f" (only {search.domains_tried} domains tried so far; the next attempts try the others)"
    if search.backtracks_exceeded:
        domain += " (not all placements were tried; settings: scheduling.gang_backtracks_max)"
    return (
        first.reason,
        f"gang {gang.name}: {count} of {gang.minimum} members fit now{domain}: {message}",
    )
