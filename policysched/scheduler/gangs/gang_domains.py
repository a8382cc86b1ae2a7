"""Topology domains of a gang that must stay together: candidates, in the order in which they are tried.

Members that are placed already fix the domain. Otherwise the domain of the best-scored node for the
first member comes first, so scores rank domains as they rank nodes. If the first member fits
nowhere, or only where the others do not fit, the domains of later members follow.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping

from policysched.evaluate import TopologyDomain
from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.nominations import nominated_overlay
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gangs import QueuedGang


def candidate_domains(
    core: SchedulerCore,
    gang: QueuedGang,
    key: str,
    equivalence_keys: Mapping[PodUid, Hashable],
    now_ns: int,
    except_values: Collection[str] = (),
) -> Iterator[TopologyDomain]:
    """Domains feasible for the first member, then those feasible only for later members.

    Members with the same entry in `equivalence_keys` share one verdict. Yields nothing if no domain
    is feasible for any member, or only those of `except_values` are.
    """
    placed_value = _placed_domain(core, gang, key)
    if placed_value is not None:
        yield TopologyDomain(key, placed_value)
        return
    members, yielded, tried_keys = gang.members_in_order(), set(except_values), set[Hashable]()
    requests = members[0].pod.requests
    same_requests = all(other.pod.requests == requests for other in members)
    for member in members:
        if equivalence_keys[member.uid] in tried_keys:
            continue
        # Earlier classes do not fit into the domains that only this member adds: the rest must suffice.
        if sum(equivalence_keys[other.uid] not in tried_keys for other in members) < gang.needed_count:
            return
        tried_keys.add(equivalence_keys[member.uid])
        for value in _feasible_domains(core, gang, member, key, gang.needed_count, same_requests, now_ns):
            if value not in yielded:
                yielded.add(value)
                yield TopologyDomain(key, value)


def closest_domain(core: SchedulerCore, gang: QueuedGang, key: str, now_ns: int) -> TopologyDomain | None:
    """The domain with room for most members, by cpu, memory and the number of pods, of those where the first member
    fits; None: there is none, members are unequal, or placed members fix the domain.
    """
    members = gang.members_in_order()
    first = members[0]
    if _placed_domain(core, gang, key) is not None or any(
        other.pod.requests != first.pod.requests for other in members
    ):
        return None

    def domains(pods_needed: int) -> tuple[str, ...]:
        return _feasible_domains(core, gang, first, key, pods_needed, True, now_ns)

    low, high = 0, gang.needed_count  # some domain takes `low` members, and none is known to take `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if domains(middle) else (low, middle)
    return TopologyDomain(key, domains(low)[0]) if low else None


def _feasible_domains(
    core: SchedulerCore,
    gang: QueuedGang,
    member: PendingPod,
    key: str,
    pods_needed: int,
    same_requests: bool,
    now_ns: int,
) -> tuple[str, ...]:
    return core.evaluator.candidate_domains(
        core.plan(member.policy),
        member.pod,
        key,
        **core.evaluation_inputs(member, now_ns),
        overlay=nominated_overlay(core, member.pod, excluding=gang.pending_members.keys())
        or core.evaluator.overlay(),
        pods_needed=pods_needed,
        same_requests=same_requests,
    )


def preemption_domains(core: SchedulerCore, gang: QueuedGang, key: str, now_ns: int) -> list[TopologyDomain]:
    """Domains with nodes where preemption could help the first member.

    The domain that the gang is nominated to comes first, then by number of such nodes, descending.
    """
    placed_value = _placed_domain(core, gang, key)
    if placed_value is not None:
        return [TopologyDomain(key, placed_value)]
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
    nominated_values = {node.labels.get(key) for node in nodes}
    order = sorted(counts, key=lambda value: (value not in nominated_values, -counts[value], value))
    return [TopologyDomain(key, value) for value in order]


def _placed_domain(core: SchedulerCore, gang: QueuedGang, key: str) -> str | None:
    """The domain with most placed members; None if none is placed on a node with the label."""
    domains = Counter[str]()
    for uid in gang.placed_members:
        placement = core.cache.ledger.placement(uid)
        node = None if placement is None else core.cache.nodes.get(placement.node)
        if node is not None and key in node.labels:
            domains[node.labels[key]] += 1
    return max(domains, key=lambda value: (domains[value], value), default=None)
