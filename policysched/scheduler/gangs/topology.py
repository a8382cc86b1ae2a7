"""Where a gang that keeps together may stand: the domains of a label of nodes, in the order in which they are tried.

Who is placed already decides for those who come later. Otherwise the domain of the node that the policy likes best for
the first member comes first, so the scores say which one a gang takes, as they say it of nodes. Who goes first may fit
nowhere at the moment, or where the others do not: then the domains of those behind come into question.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

from policysched.evaluate import TopologyDomain
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.preemption.nominations import nominated_overlay

DOMAIN_CHANGE_EVENTS = frozenset(
    {
        ClusterEvent.NODE_LABEL,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.ASSIGNED_POD_DELETE,
        ClusterEvent.ASSIGNED_POD_UPDATE,
    }
)
"""What can make a domain large enough, or a domain at all, whatever refused the nodes of those that were tried."""


def candidate_domains(
    core: SchedulerCore, gang: QueuedGang, key: str, equivalence_keys: Mapping[PodUid, Hashable], now_ns: int
) -> Iterator[TopologyDomain]:
    """Those that would do for the first member; then, where none of them takes as many as are needed, those that would do
    for later members alone. `equivalence_keys` says which members share one verdict. None where no domain would do for anybody, or
    none has room for all."""
    home = _placed_domain(core, gang, key)
    if home is not None:
        yield TopologyDomain(key, home)
        return
    members, tried, asked = gang.members_in_order(), set[str](), set[Hashable]()
    requests = members[0].pod.requests
    alike = all(one.pod.requests == requests for one in members)
    for member in members:
        if equivalence_keys[member.uid] in asked:
            continue
        # Nobody who was asked before fits into a domain that only this one brings: the others have to be enough.
        if sum(equivalence_keys[one.uid] not in asked for one in members) < gang.needed_count:
            return
        asked.add(equivalence_keys[member.uid])
        for value in core.evaluator.candidate_domains(
            core.plan(member.policy),
            member.pod,
            key,
            **core.evaluation_inputs(member, now_ns),
            overlay=nominated_overlay(core, member.pod, excluding=gang.pending_members.keys())
            or core.evaluator.overlay(),
            pods_needed=gang.needed_count,
            same_requests=alike,
        ):
            if value not in tried:
                tried.add(value)
                yield TopologyDomain(key, value)


def preemption_domains(core: SchedulerCore, gang: QueuedGang, key: str, now_ns: int) -> list[TopologyDomain]:
    """Those with nodes that would do for the first member if others went, the most of them first, but for the one that the gang
    is nominated to."""
    home = _placed_domain(core, gang, key)
    if home is not None:
        return [TopologyDomain(key, home)]
    first = gang.members_in_order()[0]
    dry_run = core.evaluator.dry_run(
        core.plan(first.policy),
        first.pod,
        **core.evaluation_inputs(first, now_ns),
        overlay=nominated_overlay(core, first.pod, excluding=gang.pending_members.keys())
        or core.evaluator.overlay(),
    )
    labels = [core.cache.nodes[node].labels.get(key) for node in dry_run.potential_or_feasible_nodes]
    counts = Counter(value for value in labels if value is not None)
    nominated = [
        core.cache.nominated[uid].nominated_node
        for uid in gang.pending_members
        if uid in core.cache.nominated
    ]
    nodes = [core.cache.nodes[node] for node in nominated if node in core.cache.nodes]
    ours = {node.labels.get(key) for node in nodes}
    order = sorted(counts, key=lambda value: (value not in ours, -counts[value], value))
    return [TopologyDomain(key, value) for value in order]


def _placed_domain(core: SchedulerCore, gang: QueuedGang, key: str) -> str | None:
    """The domain in which most of those stand who are placed; None where nobody is, or on nodes without the label."""
    domains = Counter[str]()
    for uid in gang.placed_members:
        placement = core.cache.ledger.placement(uid)
        node = None if placement is None else core.cache.nodes.get(placement.node)
        if node is not None and key in node.labels:
            domains[node.labels[key]] += 1
    return max(domains, key=lambda value: (domains[value], value), default=None)


def outside_domain_reason(within: TopologyDomain) -> str:
    """Of nodes that would do, were they in the gang's domain."""
    if within.value is None:
        return f"node(s) in no domain of {within.key} that has room for the gang"
    return f"node(s) outside {within.key}={within.value}"
