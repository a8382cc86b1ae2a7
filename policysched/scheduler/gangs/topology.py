"""Where a gang that keeps together may stand: the domains of a label of nodes, in the order in which they are tried.

Who is placed already decides for those who come later. Otherwise the domain of the node that the policy likes best for
the first member comes first, so the scores say which one a gang takes, as they say it of nodes. Who goes first may fit
nowhere at the moment, or where the others do not: then the domains of those behind come into question.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

from policysched.evaluate import Within
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import PodUid
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.preemption.nominated import nominated_overlay

DOMAINS_CHANGE = frozenset(
    {
        ClusterEvent.NODE_LABEL,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.ASSIGNED_POD_DELETE,
        ClusterEvent.ASSIGNED_POD_UPDATE,
    }
)
"""What can make a domain large enough, or a domain at all, whatever refused the nodes of those that were tried."""


def worth_trying(
    core: Core, gang: Gang, key: str, kin: Mapping[PodUid, Hashable], now_ns: int
) -> Iterator[Within]:
    """Those that would do for the first member; then, where none of them takes as many as are needed, those that would do
    for later members alone. `kin` says which members share one verdict. None where no domain would do for anybody, or
    none has room for all."""
    home = _home(core, gang, key)
    if home is not None:
        yield Within(key, home)
        return
    members, tried, asked = gang.in_order(), set[str](), set[Hashable]()
    requests = members[0].pod.requests
    alike = all(one.pod.requests == requests for one in members)
    for member in members:
        if kin[member.uid] in asked:
            continue
        # Nobody who was asked before fits into a domain that only this one brings: the others have to be enough.
        if sum(kin[one.uid] not in asked for one in members) < gang.needed:
            return
        asked.add(kin[member.uid])
        for value in core.evaluator.domains(
            core.plan(member.policy),
            member.pod,
            key,
            **core.known_of(member, now_ns),
            overlay=nominated_overlay(core, member.pod, but=gang.due.keys()) or core.evaluator.overlay(),
            needed=gang.needed,
            alike=alike,
        ):
            if value not in tried:
                tried.add(value)
                yield Within(key, value)


def domains_with_room_to_make(core: Core, gang: Gang, key: str, now_ns: int) -> list[Within]:
    """Those with nodes that would do for the first member if others went, the most of them first, but for the one that the gang
    is nominated to."""
    home = _home(core, gang, key)
    if home is not None:
        return [Within(key, home)]
    first = gang.in_order()[0]
    dry_run = core.evaluator.dry_run(
        core.plan(first.policy),
        first.pod,
        **core.known_of(first, now_ns),
        overlay=nominated_overlay(core, first.pod, but=gang.due.keys()) or core.evaluator.overlay(),
    )
    labels = [core.cache.nodes[node].labels.get(key) for node in dry_run.possible]
    counts = Counter(value for value in labels if value is not None)
    nominated = [core.cache.nominated[uid].nominated_node for uid in gang.due if uid in core.cache.nominated]
    nodes = [core.cache.nodes[node] for node in nominated if node in core.cache.nodes]
    ours = {node.labels.get(key) for node in nodes}
    order = sorted(counts, key=lambda value: (value not in ours, -counts[value], value))
    return [Within(key, value) for value in order]


def _home(core: Core, gang: Gang, key: str) -> str | None:
    """The domain in which most of those stand who are placed; None where nobody is, or on nodes without the label."""
    domains = Counter[str]()
    for uid in gang.placed:
        placement = core.cache.ledger.placement(uid)
        node = None if placement is None else core.cache.nodes.get(placement.node)
        if node is not None and key in node.labels:
            domains[node.labels[key]] += 1
    return max(domains, key=lambda value: (domains[value], value), default=None)


def elsewhere_reason(within: Within) -> str:
    """Of nodes that would do, were they in the gang's domain."""
    if within.value is None:
        return f"node(s) in no domain of {within.key} that has room for the gang"
    return f"node(s) outside {within.key}={within.value}"
