"""PodDisruptionBudgets: which evictions violate a budget.

Preemption prefers victims whose eviction violates no budget. Source of the counting:
`filterPodsWithPDBViolation` in kubernetes' `pkg/scheduler/framework/plugins/defaultpreemption`.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from policysched.cluster.selector_index import SelectorIndex
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget

_BUDGETS_MAX, _KEYS_MAX = 16, 32
"""Of a pod: the budgets that select it, and its labels that budgets require something of. An eviction of one that has more, or of
each pod of a namespace with more budgets than are indexed, violates a budget, so that whoever preempts does not count in thousands. Its owner gains nothing: a budget that allows no disruption
does the same, and the eviction API refuses pods of two budgets."""

_MATCHES_MAX = 64
"""Of classes of pods of a gang and their budgets: with more of them each node would ask about hundreds of members."""

_TOO_MANY = DisruptionBudget("", "", None, -(2**31), frozenset())


@dataclass(slots=True)
class _NamespaceBudgets:
    """The budgets of a namespace by name. `selectors` lacks those that select nothing."""

    budgets: dict[str, DisruptionBudget] = field(default_factory=dict)
    selectors: SelectorIndex = field(default_factory=SelectorIndex)


class DisruptionBudgets(Collection[DisruptionBudget]):
    """All budgets, and which of them select a pod. That takes as long for thousands of budgets as for a few: a tenant would
    otherwise make each preemption compare each of its pods with each of them."""

    def __init__(self) -> None:
        self._namespaces: dict[str, _NamespaceBudgets] = {}

    def __iter__(self) -> Iterator[DisruptionBudget]:
        return (budget for of in self._namespaces.values() for budget in of.budgets.values())

    def __len__(self) -> int:
        return sum(len(of.budgets) for of in self._namespaces.values())

    def __contains__(self, budget: object) -> bool:
        return any(budget == other for other in self)

    def put(self, budget: DisruptionBudget) -> None:
        """Adds a budget, or replaces the one of its name."""
        of = self._namespaces.setdefault(budget.namespace, _NamespaceBudgets())
        before, of.budgets[budget.name] = of.budgets.get(budget.name), budget
        if before is not None and before.selector == budget.selector:
            return
        if budget.selector is not None and budget.selector.requirements:
            of.selectors.put(budget.name, budget.selector)
        else:
            of.selectors.remove(budget.name)

    def remove(self, namespace: str, name: str) -> None:
        """A budget that does not exist is ignored."""
        of = self._namespaces.get(namespace)
        if of is None or of.budgets.pop(name, None) is None:
            return
        of.selectors.remove(name)
        if not of.budgets:
            del self._namespaces[namespace]

    def selecting(self, pod: Pod) -> list[DisruptionBudget]:
        """The budgets that an eviction of the pod uses."""
        of = self._namespaces.get(pod.namespace)
        if of is None or not pod.labels:
            return []
        names = of.selectors.selecting(pod.labels, _BUDGETS_MAX, _KEYS_MAX)
        if names is None:
            return [_TOO_MANY]
        budgets = [of.budgets[name] for name in names]
        return [budget for budget in budgets if pod.name not in budget.disrupted_pods]


class BudgetsAfterEvictions(Collection[DisruptionBudget]):
    """The budgets after further evictions. `budgets` do not change meanwhile."""

    def __init__(self, budgets: DisruptionBudgets) -> None:
        self._budgets = budgets
        self._used: dict[tuple[str, str], DisruptionBudget] = {}

    def __iter__(self) -> Iterator[DisruptionBudget]:
        return map(self._after, self._budgets)

    def __len__(self) -> int:
        return len(self._budgets)

    def __contains__(self, budget: object) -> bool:
        return any(budget == other for other in self)

    def selecting(self, pod: Pod) -> list[DisruptionBudget]:
        return [self._after(budget) for budget in self._budgets.selecting(pod)]

    def evict(self, pods: Iterable[Pod]) -> bool:
        """Returns whether a budget selects one of the pods."""
        changed = [budget for pod in pods for budget in self._budgets.selecting(pod)]
        for budget in changed:
            disruptions_left = self._after(budget).disruptions_allowed - 1
            self._used[budget.namespace, budget.name] = replace(budget, disruptions_allowed=disruptions_left)
        return bool(changed)

    def _after(self, budget: DisruptionBudget) -> DisruptionBudget:
        return self._used.get((budget.namespace, budget.name), budget)


def split_by_budget(
    pods: Iterable[Pod], budgets: Collection[DisruptionBudget], left: dict[int, int] | None = None
) -> tuple[list[Pod], list[Pod]]:
    """The pods whose eviction violates a budget, and the others, in the given order. All pods count
    as evicted together, in that order: each uses one disruption of every budget that selects it.
    `left` receives the disruptions that are left of these budgets, by `id`."""
    left = {} if left is None else left
    selecting = _selecting(budgets)
    violating: list[Pod] = []
    others: list[Pod] = []
    for pod in pods:
        (violating if _use(selecting(pod), left) else others).append(pod)
    return violating, others


def _use(budgets: Iterable[DisruptionBudget], left: dict[int, int]) -> bool:
    """Evict a pod of these budgets. Whether it violates one."""
    violates = False
    for budget in budgets:
        remaining = left.get(id(budget), budget.disruptions_allowed) - 1
        left[id(budget)] = remaining
        violates |= remaining < 0
    return violates


class LeastViolations:
    """How many pods that are evicted together violate a budget at least, whatever is evicted before or between them: those for
    which it has no room."""

    def __init__(self, budgets: Collection[DisruptionBudget]) -> None:
        self._selecting = _selecting(budgets)
        self._beyond: dict[int, int] = {}
        self._count = 0

    def add(self, pods: Iterable[Pod]) -> int:
        """More of them. Returns the number so far."""
        for pod in pods:
            for budget in self._selecting(pod):
                key = id(budget)
                beyond = self._beyond[key] = self._beyond.get(key, -max(0, budget.disruptions_allowed)) + 1
                self._count = max(self._count, beyond)
        return self._count


class ViolationCounter:
    """How many of the same pods violate a budget, after evictions of others and without some of them: as
    `split_by_budget`, which would visit them for each question. Pods of the same budgets are a class, and of each budget
    the pods that come late violate it. With many classes it is the number of all pods, as if they were evicted first."""

    def __init__(self, pods: Iterable[Pod], budgets: Collection[DisruptionBudget]) -> None:
        self._selecting = _selecting(budgets)
        self._count = 0
        self._budgets: dict[int, DisruptionBudget] = {}
        self._positions: dict[int, list[int]] = {}  # by budget
        self._class_positions: dict[tuple[int, ...], list[int]] = {}
        self._place: dict[PodUid, tuple[int, tuple[int, ...]]] = {}
        self._matches = 0
        self._left: dict[int, int] = {}
        self._violating = 0  # of all pods, without other evictions
        self.add(pods)

    def add(self, pods: Iterable[Pod]) -> None:
        """Pods that come later."""
        for position, pod in enumerate(pods, self._count):
            self._count += 1
            budgets = list(self._selecting(pod))
            if not budgets:
                continue
            self._violating += _use(budgets, self._left)
            of = tuple(map(id, budgets))
            self._place[pod.uid] = position, of
            if of not in self._class_positions:
                self._matches += len(of)
                self._class_positions[of] = []
                self._budgets |= zip(of, budgets, strict=True)
            self._class_positions[of].append(position)
            for key in of:
                self._positions.setdefault(key, []).append(position)

    def evict(self, without: Collection[PodUid], left: dict[int, int]) -> int:
        """The number for all pods but these; `left`, by budget, is reduced by what they use."""
        if self._matches > _MATCHES_MAX:
            return self._violating
        absent = sorted(self._place[uid] for uid in without if uid in self._place) if self._place else []
        late_from: dict[int, int] = {}
        for key, positions in self._positions.items():
            remaining = left.get(key, self._budgets[key].disruptions_allowed)
            index, used = max(0, remaining), len(positions)
            for position, of in absent:
                if key in of:
                    used -= 1
                    index += bisect_left(positions, position) <= index
            late_from[key] = positions[index] if index < len(positions) else positions[-1] + 1
            left[key] = remaining - used
        count = 0
        for of, positions in self._class_positions.items():
            first = min(late_from[key] for key in of)
            count += len(positions) - bisect_left(positions, first)
            count -= sum(absent_of == of and position >= first for position, absent_of in absent)
        return count


def _selecting(budgets: Collection[DisruptionBudget]) -> Callable[[Pod], Iterable[DisruptionBudget]]:
    if isinstance(budgets, DisruptionBudgets | BudgetsAfterEvictions):
        return budgets.selecting
    return lambda pod: (budget for budget in budgets if _budget_selects(budget, pod))


def _budget_selects(budget: DisruptionBudget, pod: Pod) -> bool:
    """As in kube-scheduler, an empty selector selects nothing and a pod without labels is in no
    budget. A pod that the budget already lists as disrupted does not count again."""
    if budget.namespace != pod.namespace or pod.name in budget.disrupted_pods:
        return False
    selector = budget.selector
    if not pod.labels or selector is None or not selector.requirements:
        return False
    return selector.selects(pod.labels)
