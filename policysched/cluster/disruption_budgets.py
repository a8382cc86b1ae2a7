"""PodDisruptionBudgets: which evictions violate a budget.

Preemption prefers victims whose eviction violates no budget. Source of the counting:
`filterPodsWithPDBViolation` in kubernetes' `pkg/scheduler/framework/plugins/defaultpreemption`.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from policysched.cluster.change_log import ChangeLog
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.model.selectors import SelectorByKey
from policysched.model.workloads import DisruptionBudget

_MATCHES_MAX, _CHARACTERS_PER_MATCH = 1_000_000, 64
_CHARACTERS_PER_LABEL = 128
"""Of what is remembered; labels count by their length, and short ones take more than their characters."""
_Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Remembered:
    """The names of the budgets that select pods with certain labels, as of a version of the namespace's changes.
    `matches`: its size."""

    version: int
    selecting: dict[str, None]
    matches: int


@dataclass(slots=True)
class _NamespaceBudgets:
    """The budgets of a namespace by name. `selectors` lacks those that select nothing; `changes` are of selectors alone."""

    budgets: dict[str, DisruptionBudget] = field(default_factory=dict)
    selectors: dict[str, SelectorByKey] = field(default_factory=dict)
    changes: ChangeLog[str] = field(default_factory=ChangeLog)
    remembered: dict[_Labels, _Remembered] = field(default_factory=dict)
    matches: int = 0


class DisruptionBudgets(Collection[DisruptionBudget]):
    """All budgets, and which of them select pods with certain labels.

    The second is remembered: a tenant with thousands of budgets would otherwise make each preemption compare each of its
    pods with each of them. What is remembered catches up with changed budgets where it is read, as most of it can be of
    pods that are gone. How long a comparison takes does not depend on the number of requirements.
    """

    def __init__(self) -> None:
        self._namespaces: dict[str, _NamespaceBudgets] = {}
        self._matches = 0
        self._last: tuple[_NamespaceBudgets, Mapping[str, str], _Remembered] = (
            _NamespaceBudgets(),
            {},
            _Remembered(0, {}, 0),
        )
        """Of the pod that was asked about before: members of a gang follow each other, and mostly have the same labels."""

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
        of.selectors.pop(budget.name, None)
        if budget.selector is not None and budget.selector.requirements:
            of.selectors[budget.name] = SelectorByKey(budget.selector)
        of.changes.record(budget.name)

    def remove(self, namespace: str, name: str) -> None:
        """A budget that does not exist is ignored."""
        of = self._namespaces.get(namespace)
        if of is None or of.budgets.pop(name, None) is None:
            return
        of.selectors.pop(name, None)
        of.changes.record(name)
        if not of.budgets:
            del self._namespaces[namespace]
            self._matches -= of.matches

    def selecting(self, pod: Pod) -> list[DisruptionBudget]:
        """The budgets that an eviction of the pod uses."""
        of = self._namespaces.get(pod.namespace)
        if of is None or not pod.labels:
            return []
        last_of, last_labels, remembered = self._last
        if last_of is not of or last_labels != pod.labels or remembered.version != of.changes.version:
            labels = tuple(sorted(pod.labels.items()))
            before = of.remembered.get(labels)
            if before is None or before.version != of.changes.version:
                before = self._remember(of, labels, pod, before)
            remembered = before
            self._last = of, pod.labels, remembered
        budgets = (of.budgets[name] for name in remembered.selecting)
        return [budget for budget in budgets if pod.name not in budget.disrupted_pods]

    def _remember(
        self, of: _NamespaceBudgets, labels: _Labels, pod: Pod, before: _Remembered | None
    ) -> _Remembered:
        """What is remembered, after the changes since it was."""
        changed = None if before is None else of.changes.since(before.version)
        selecting = {} if before is None or changed is None else before.selecting
        for name in of.selectors if changed is None else changed:
            if (selector := of.selectors.get(name)) is not None and selector.selects(pod.labels):
                selecting[name] = None
            else:
                selecting.pop(name, None)
        characters = sum(map(len, chain(*labels))) + _CHARACTERS_PER_LABEL * len(labels)
        matches = 1 + len(selecting) + characters // _CHARACTERS_PER_MATCH
        more = matches - (0 if before is None else before.matches)
        if self._matches + more > _MATCHES_MAX:
            for other in self._namespaces.values():
                other.remembered.clear()
                other.matches = 0
            self._matches, more = 0, matches
        self._matches, of.matches = self._matches + more, of.matches + more
        remembered = of.remembered[labels] = _Remembered(of.changes.version, selecting, matches)
        return remembered


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
        violates = False
        for budget in selecting(pod):
            remaining = left.get(id(budget), budget.disruptions_allowed) - 1
            left[id(budget)] = remaining
            violates |= remaining < 0
        (violating if violates else others).append(pod)
    return violating, others


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
    the pods that come late violate it."""

    def __init__(self, pods: Iterable[Pod], budgets: Collection[DisruptionBudget]) -> None:
        self._selecting = _selecting(budgets)
        self._count = 0
        self._budgets: dict[int, DisruptionBudget] = {}
        self._positions: dict[int, list[int]] = {}  # by budget
        self._class_positions: dict[tuple[int, ...], list[int]] = {}
        self._place: dict[PodUid, tuple[int, tuple[int, ...]]] = {}
        self.add(pods)

    def add(self, pods: Iterable[Pod]) -> None:
        """Pods that come later."""
        for position, pod in enumerate(pods, self._count):
            self._count += 1
            budgets = list(self._selecting(pod))
            if not budgets:
                continue
            of = tuple(map(id, budgets))
            self._place[pod.uid] = position, of
            if of not in self._class_positions:
                self._class_positions[of] = []
                self._budgets |= zip(of, budgets, strict=True)
            self._class_positions[of].append(position)
            for key in of:
                self._positions.setdefault(key, []).append(position)

    def evict(self, without: Collection[PodUid], left: dict[int, int]) -> int:
        """The number for all pods but these; `left`, by budget, is reduced by what they use."""
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
