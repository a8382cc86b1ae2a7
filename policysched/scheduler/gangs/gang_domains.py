"""Topology domains of a gang that must stay together: candidates, in the order in which they are tried.

Members that are placed already fix the domain. Otherwise the domain of the best-scored node for the
first member comes first, so scores rank domains as they rank nodes. If the first member fits
nowhere, or only where the others do not fit, the domains of later members follow.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

from policysched.evaluate import TopologyDomain, nested_domain
from policysched.lang.ir.program import TopologyLevel
from policysched.model.identifiers import PodUid
from policysched.model.nodes import Node
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.nominations import nominated_overlay
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang


def candidate_domains(
    core: SchedulerCore,
    gang: QueuedGang,
    keys: Sequence[str],
    equivalence_keys: Mapping[PodUid, Hashable],
    clock: Callable[[], int],
    except_domains: Collection[TopologyDomain] = (),
) -> Iterator[TopologyDomain | PendingPod]:
    """Domains feasible for the first member, then those feasible only for later members. `keys`: their labels, the
    widest first.

    Yields each member that is evaluated for it before: of a thousand unequal ones that fit nowhere all are. The search may
    pause then, and between two domains; `clock` is the time. Members with the same entry in `equivalence_keys` share one
    verdict. Yields no domain if none is feasible for any member, or only those of `except_domains` are.
    """
    placed = _placed_domain(core, gang, keys)
    if placed is not None:
        yield placed
        return
    members, yielded, tried_keys = gang.members_in_order(), set(except_domains), set[Hashable]()
    requests = members[0].pod.requests
    same_requests = all(other.pod.requests == requests for other in members)
    class_sizes = Counter(equivalence_keys[member.uid] for member in members)
    untried_count = len(members)
    for member in members:
        key = equivalence_keys[member.uid]
        if key in tried_keys:
            continue
        # Earlier classes do not fit into the domains that only this member adds: the rest must suffice.
        if untried_count < gang.needed_count:
            return
        tried_keys.add(key)
        untried_count -= class_sizes[key]
        yield member
        for values in _feasible_domains(core, gang, member, keys, gang.needed_count, same_requests, clock()):
            domain = _domain(keys, values)
            if domain not in yielded:
                yielded.add(domain)
                yield domain


def closest_domain(
    core: SchedulerCore, gang: QueuedGang, keys: Sequence[str], now_ns: int
) -> TopologyDomain | None:
    """The domain that fits the most members, by cpu, memory and the number of pods, of those where the first member
    fits; None: there is none, members are unequal, or placed members fix the domain.
    """
    members = gang.members_in_order()
    first = members[0]
    if _placed_domain(core, gang, keys) is not None or any(
        other.pod.requests != first.pod.requests for other in members
    ):
        return None

    taken = _feasible_domains(core, gang, first, keys, 1, True, now_ns)
    most = min(max(taken.values(), default=0), gang.needed_count - 1)
    return next((_domain(keys, values) for values, pods in taken.items() if pods >= most > 0), None)


def _feasible_domains(
    core: SchedulerCore,
    gang: QueuedGang,
    member: PendingPod,
    keys: Sequence[str],
    pods_needed: int,
    same_requests: bool,
    now_ns: int,
) -> Mapping[tuple[str, ...], int]:
    """Values of the labels, with how many pods they may take."""
    return core.evaluator.candidate_domains(
        core.plan(member.policy),
        member.pod,
        keys,
        **core.evaluation_inputs(member, now_ns),
        overlay=nominated_overlay(core, member.pod, excluding=gang.pending_members.keys())
        or core.evaluator.overlay(),
        pods_needed=pods_needed,
        same_requests=same_requests,
    )


def preemption_domains(
    core: SchedulerCore, gang: QueuedGang, keys: Sequence[str], now_ns: int
) -> list[TopologyDomain]:
    """Domains with nodes where preemption could help the first member.

    The domain that the gang is nominated to comes first, then by number of such nodes, descending.
    """
    placed = _placed_domain(core, gang, keys)
    if placed is not None:
        return [placed]
    first = gang.members_in_order()[0]
    dry_run = core.evaluator.dry_run(
        core.plan(first.policy),
        first.pod,
        **core.evaluation_inputs(first, now_ns),
        overlay=nominated_overlay(core, first.pod, excluding=gang.pending_members.keys())
        or core.evaluator.overlay(),
    )
    counts = Counter(
        values
        for node in dry_run.potential_or_feasible_nodes
        if (values := _label_values(core.cache.nodes[node], keys)) is not None
    )
    nominated = [
        core.cache.nominated[uid].nominated_node
        for uid in gang.pending_members
        if uid in core.cache.nominated
    ]
    nodes = [core.cache.nodes[node] for node in nominated if node in core.cache.nodes]
    nominated_values = {_label_values(node, keys) for node in nodes}
    order = sorted(counts, key=lambda values: (values not in nominated_values, -counts[values], values))
    return [_domain(keys, values) for values in order]


def neighbour_domains(
    levels: Sequence[TopologyLevel], neighbour: Node, domain: TopologyDomain | None
) -> Iterator[TopologyDomain]:
    """Domains around a neighbour's node inside of `domain`, the narrowest first: those of the levels that `domain` does
    not fix."""
    depth, outer = 0, domain
    while outer is not None:
        depth, outer = depth + 1, outer.outer
    for end in range(len(levels), depth, -1):
        keys = [level.key for level in levels[depth:end]]
        values = _label_values(neighbour, keys)
        if values is not None:
            yield _domain(keys, values, domain)


def _placed_domain(core: SchedulerCore, gang: QueuedGang, keys: Sequence[str]) -> TopologyDomain | None:
    """The domain with most placed members; None if none is placed on a node with the labels."""
    domains = Counter[tuple[str, ...]]()
    for uid in gang.placed_members:
        placement = core.cache.ledger.placement(uid)
        node = None if placement is None else core.cache.nodes.get(placement.node)
        values = None if node is None else _label_values(node, keys)
        if values is not None:
            domains[values] += 1
    if not domains:
        return None
    return _domain(keys, max(domains.items(), key=lambda item: (item[1], item[0]))[0])


def _label_values(node: Node, keys: Sequence[str]) -> tuple[str, ...] | None:
    """None where the node lacks one of the labels."""
    values = tuple(node.labels[key] for key in keys if key in node.labels)
    return values if len(values) == len(keys) else None


def _domain(
    keys: Sequence[str], values: Sequence[str], outer: TopologyDomain | None = None
) -> TopologyDomain:
    domain = nested_domain(keys, values, outer)
    assert domain is not None, "a domain has at least one label"
    return domain
