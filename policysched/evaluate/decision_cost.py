"""What the decision about a pod costs at most, estimated before anything is evaluated.

The unit is an operation: one item of the pod (a term, a constraint, a requirement) compared with one
node. Each item costs as much as a thousand nodes before the first node is looked at. The count
depends on the pod and on the number of nodes alone: neither other pods nor the machine can push a
pod over the budget.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policysched.model.affinity import NodeAffinity
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, NodeSelectorTerm

DECISION_BUDGET_DEFAULT = 2_000_000
LONG_DECISION = 1_000_000
"""A decision that takes more operations is not repeated for each preemption candidate, nor for more members of a gang
than the budget allows."""
SLICED_DECISION = 250_000
"""A decision that takes more operations runs in steps, one for each rule."""

MEMBER_ITEMS = 16
"""How many items of each member a gang's allowance covers."""

ITEM_OPERATIONS = 1_000
VALUE_OPERATIONS = 100  # a value of a requirement, or a requirement of a selector
_NAMESPACE_SELECTOR = (
    25_000  # with ten thousand namespaces it takes about half of that: the count does not depend on theirs
)
_CLAIM_READ = 10  # of a claim, for one node: about a microsecond
_COLUMN_READ = 2  # of an amount of one node, compared with one operation on arrays


@dataclass(frozen=True, slots=True)
class _Kind:
    """Items of one kind: `per_item` operations each, and `per_node` for each node."""

    name: str
    per_item: int
    per_node: int


_AFFINITY = _Kind("pod affinity terms", ITEM_OPERATIONS, 1)
_ANTI_AFFINITY = _Kind("pod anti-affinity terms", ITEM_OPERATIONS, 1)
_SPREAD = _Kind(
    "topology spread constraints", 3 * ITEM_OPERATIONS, 3
)  # it sums up its domains: 50 microseconds at 1,000 nodes
_NAMESPACE_SELECTORS = _Kind("namespace selectors of terms", _NAMESPACE_SELECTOR, 0)
_NODE_REQUIREMENTS = _Kind("node affinity requirements", ITEM_OPERATIONS, 1)
_VALUES = _Kind("requirements and values of selectors", VALUE_OPERATIONS, 0)
_TOLERATIONS = _Kind("tolerations", ITEM_OPERATIONS, 0)
_HOST_PORTS = _Kind("host ports", ITEM_OPERATIONS, 0)
_RESOURCES = _Kind("resources", ITEM_OPERATIONS, _COLUMN_READ)
_VOLUMES = _Kind("volumes", ITEM_OPERATIONS, 1)
_DEVICE_CLAIMS = _Kind("resource claims", ITEM_OPERATIONS, _CLAIM_READ)
_EXTENDED_FREE = 32
# Each request is compared with every other.
_EXTENDED = _Kind(
    f"container requests for extended resources beyond {_EXTENDED_FREE}", 10 * ITEM_OPERATIONS, 0
)
_IMAGES = _Kind("images", ITEM_OPERATIONS, 1)


class DecisionCost:
    """The cost in operations of decisions about one pod. Its items are counted once: a tenant can have tens of thousands."""

    __slots__ = ("_counts", "_value_count", "pod")

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self._counts: dict[_Kind, int] | None = None
        self._value_count: int | None = None

    def operations(self, node_count: int, limit: int) -> int:
        """Counting stops once it is over the limit, so that this is fast itself. For a pod without affinity and spreading, a
        result within the limit is an upper bound."""
        pod = self.pod
        if pod.affinity is None and pod.pod_affinity is None and not pod.spread:
            bound = _plain_items(pod) * (ITEM_OPERATIONS + _COLUMN_READ * node_count)
            if bound <= limit:
                return bound  # most pods: nothing more is read
        total = _total(self._items(), node_count)
        return total if total > limit else total + self._values() * VALUE_OPERATIONS

    def over_budget_message(self, node_count: int, budget: int) -> str | None:
        """Why the pod is too expensive to decide about: its costliest items; None: it is not."""
        if self.operations(node_count, budget) <= budget:
            return None
        counts = self._items()
        if _total(counts, node_count) <= budget:
            counts = {**counts, _VALUES: self._values()}
        kind = max(counts, key=lambda kind: counts[kind] * (kind.per_item + kind.per_node * node_count))
        over = f" over {node_count} nodes" if kind.per_node and node_count else ""
        return (
            f"evaluating this pod exceeds the budget of {budget} operations for a decision, mostly by its "
            f"{counts[kind]} {kind.name}{over} (settings: scheduling.decision_budget)"
        )

    def _items(self) -> Mapping[_Kind, int]:
        if self._counts is None:
            self._counts = _item_counts(self.pod)
        return self._counts

    def _values(self) -> int:
        if self._value_count is None:
            self._value_count = _count_values(self.pod)
        return self._value_count


def row_items(pod: Pod) -> int:
    """The number of the pod's items for which an evaluation keeps values for each node."""
    return sum(count for kind, count in _item_counts(pod).items() if kind.per_node)


def member_allowance(node_count: int) -> int:
    """The operations that each member adds to the budget of its gang."""
    return MEMBER_ITEMS * (ITEM_OPERATIONS + _COLUMN_READ * node_count)


def _total(counts: Mapping[_Kind, int], node_count: int) -> int:
    return sum(count * (kind.per_item + kind.per_node * node_count) for kind, count in counts.items())


def _plain_items(pod: Pod) -> int:
    return (
        len(pod.tolerations)
        + len(pod.host_ports)
        + len(pod.requests)
        + len(pod.claims)
        + 5 * len(pod.device_claims)
        + 10 * max(0, len(pod.extended) - _EXTENDED_FREE)
        + _disk_count(pod)
        + len(pod.mounts)
        + len(pod.images)
        + len(pod.image_volumes)
        + len(pod.node_selector)
    )


def _disk_count(pod: Pod) -> int:
    """The number of disks, each counted once per monitor: an RBD image can have thousands."""
    return sum([len(disk.monitors) or 1 for disk in pod.disks])


def _item_counts(pod: Pod) -> dict[_Kind, int]:
    counts = {
        _TOLERATIONS: len(pod.tolerations),
        _HOST_PORTS: len(pod.host_ports),
        _RESOURCES: len(pod.requests),
        _VOLUMES: len(pod.claims) + _disk_count(pod) + len(pod.mounts),
        _DEVICE_CLAIMS: len(pod.device_claims),
        _EXTENDED: max(0, len(pod.extended) - _EXTENDED_FREE),
        _IMAGES: len(pod.images) + len(pod.image_volumes),
        _NODE_REQUIREMENTS: len(pod.node_selector),
        _SPREAD: len(pod.spread),
    }
    if pod.affinity is not None:
        counts[_NODE_REQUIREMENTS] += sum(
            len(term.expressions) + len(term.fields) for term in _node_terms(pod.affinity)
        )
    if pod.pod_affinity is not None:
        affinity = pod.pod_affinity
        attracting = sum(term.weight > 0 for term in affinity.preferred)
        counts[_AFFINITY] = len(affinity.required) + attracting
        counts[_ANTI_AFFINITY] = len(affinity.required_anti) + len(affinity.preferred) - attracting
        terms = [*affinity.required, *affinity.required_anti, *[each.term for each in affinity.preferred]]
        # One list, without a call for each of thousands of terms.
        selectors = [term for term in terms if (each := term.pods.namespace_selector) and each.requirements]
        counts[_NAMESPACE_SELECTORS] = len(selectors)
    return counts


def _node_terms(affinity: NodeAffinity) -> Iterator[NodeSelectorTerm]:
    yield from affinity.required or ()
    for preference in affinity.preferred:
        yield preference.term


def _count_values(pod: Pod) -> int:
    """Requirements of label selectors, and values of all requirements."""
    requirements = 0
    values = 0
    for selector in _label_selectors(pod):
        if selector is not None:
            requirements += len(selector.requirements)
            values += sum(len(requirement.values) for requirement in selector.requirements)
    for term in () if pod.affinity is None else _node_terms(pod.affinity):
        values += sum(len(requirement.values) for requirement in (*term.expressions, *term.fields))
    return requirements + values


def _label_selectors(pod: Pod) -> Iterator[LabelSelector | None]:
    for constraint in pod.spread:
        yield constraint.label_selector
    if pod.pod_affinity is not None:
        affinity = pod.pod_affinity
        for term in (
            *affinity.required,
            *affinity.required_anti,
            *(preferred.term for preferred in affinity.preferred),
        ):
            yield term.pods.label_selector
            yield term.pods.namespace_selector
