"""Where a gang that keeps together may stand: the domains of a label of nodes, in the order in which they are tried.

Who is placed already decides for those who come later. Otherwise the domain of the node that the policy likes best for
the first member comes first, so the scores say which one a gang takes, as they say it of nodes.
"""

from collections import Counter

from policysched.lang.events import ClusterEvent
from policysched.plan import Within
from policysched.schedule.core import Core
from policysched.schedule.gangs import Gang
from policysched.schedule.nominated import nominated_overlay

DOMAINS_CHANGE = frozenset(
    {
        ClusterEvent.NODE_LABEL,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.ASSIGNED_POD_DELETE,
        ClusterEvent.ASSIGNED_POD_UPDATE,
    }
)
"""What can make a domain large enough, or a domain at all, whatever refused the nodes of those that were tried."""


def worth_trying(core: Core, gang: Gang, key: str, now_ns: int) -> list[Within]:
    """Empty where no domain would do for the first member, or none has room for all."""
    home = _home(core, gang, key)
    if home is not None:
        return [Within(key, home)]
    members = gang.in_order()
    first = members[0]
    found = core.evaluator.domains(
        core.plan(first.policy),
        first.pod,
        key,
        now_ns=now_ns,
        facts=first.facts,
        samples=core.samples.get(first.policy, {}),
        overlay=nominated_overlay(core, first.pod, but=gang.due.keys()) or core.evaluator.overlay(),
        needed=gang.needed,
        alike=all(one.pod.requests == first.pod.requests for one in members),
    )
    return [Within(key, value) for value in found]


def domains_with_room_to_make(core: Core, gang: Gang, key: str, now_ns: int) -> list[Within]:
    """Those with nodes that would do for the first member if others went, the most of them first."""
    home = _home(core, gang, key)
    if home is not None:
        return [Within(key, home)]
    first = gang.in_order()[0]
    dry_run = core.evaluator.dry_run(
        core.plan(first.policy),
        first.pod,
        now_ns=now_ns,
        facts=first.facts,
        samples=core.samples.get(first.policy, {}),
        overlay=nominated_overlay(core, first.pod, but=gang.due.keys()) or core.evaluator.overlay(),
    )
    labels = [core.cache.nodes[node].labels.get(key) for node in dry_run.possible]
    counts = Counter(value for value in labels if value is not None)
    return [Within(key, value) for value in sorted(counts, key=lambda value: (-counts[value], value))]


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
