"""PodDisruptionBudgets: which evictions violate a budget.

Preemption prefers victims whose eviction violates no budget. Source of the counting:
`filterPodsWithPDBViolation` in kubernetes' `pkg/scheduler/framework/plugins/defaultpreemption`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from policysched.model.pods import Pod
from policysched.model.selectors import SelectorByKey
from policysched.model.workloads import DisruptionBudget

_MATCHES_MAX, _CHARACTERS_PER_MATCH = 1_000_000, 64
_CHARACTERS_PER_LABEL = 128
"""Of what is remembered; labels count by their length, and short ones take more than their characters."""
_Labels = tuple[tuple[str, str], ...]


class DisruptionBudgets(Collection[DisruptionBudget]):
    """All budgets, and which of them select pods with certain labels.

    The second is remembered: a tenant with thousands of budgets would otherwise make each preemption compare each of its
    pods with each of them. A changed budget is compared with the remembered labels of its namespace. How long a comparison
    takes does not depend on the number of requirements.
    """

    def __init__(self) -> None:
        self._budgets: dict[str, dict[str, DisruptionBudget]] = {}
        self._selectors: dict[tuple[str, str], SelectorByKey | None] = {}
        self._selecting: dict[str, dict[_Labels, dict[str, DisruptionBudget]]] = {}
        self._match_count = 0

    def __iter__(self) -> Iterator[DisruptionBudget]:
        return (budget for by_name in self._budgets.values() for budget in by_name.values())

    def __len__(self) -> int:
        return sum(map(len, self._budgets.values()))

    def __contains__(self, budget: object) -> bool:
        return any(budget == other for other in self)

    def put(self, budget: DisruptionBudget) -> None:
        """Adds a budget, or replaces the one of its name."""
        self._budgets.setdefault(budget.namespace, {})[budget.name] = budget
        selector = budget.selector if budget.selector and budget.selector.requirements else None
        by_key = None if selector is None else SelectorByKey(selector)
        self._selectors[budget.namespace, budget.name] = by_key
        for labels, selecting in self._selecting.get(budget.namespace, {}).items():
            if by_key is not None and by_key.selects(dict(labels)):
                selecting[budget.name] = budget
            else:
                selecting.pop(budget.name, None)

    def remove(self, namespace: str, name: str) -> None:
        """A budget that does not exist is ignored."""
        self._budgets.get(namespace, {}).pop(name, None)
        self._selectors.pop((namespace, name), None)
        for selecting in self._selecting.get(namespace, {}).values():
            selecting.pop(name, None)

    def selecting(self, pod: Pod) -> list[DisruptionBudget]:
        """The budgets that an eviction of the pod uses."""
        by_name = self._budgets.get(pod.namespace)
        if not by_name or not pod.labels:
            return []
        by_labels = self._selecting.setdefault(pod.namespace, {})
        labels = tuple(sorted(pod.labels.items()))
        selecting = by_labels.get(labels)
        if selecting is None:
            selecting = {
                name: budget
                for name, budget in by_name.items()
                if (selector := self._selectors[pod.namespace, name]) is not None
                and selector.selects(pod.labels)
            }
            characters = sum(map(len, chain(*labels))) + _CHARACTERS_PER_LABEL * len(labels)
            matches = 1 + len(selecting) + characters // _CHARACTERS_PER_MATCH
            self._match_count += matches
            if self._match_count > _MATCHES_MAX:
                self._selecting.clear()
                by_labels, self._match_count = self._selecting.setdefault(pod.namespace, {}), matches
            by_labels[labels] = selecting
        return [budget for budget in selecting.values() if pod.name not in budget.disrupted_pods]


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
    pods: Iterable[Pod], budgets: Collection[DisruptionBudget]
) -> tuple[list[Pod], list[Pod]]:
    """The pods whose eviction violates a budget, and the others, in the given order. All pods count
    as evicted together, in that order: each uses one disruption of every budget that selects it."""
    left: dict[int, int] = {}
    selecting: Callable[[Pod], Iterable[DisruptionBudget]] = (
        budgets.selecting
        if isinstance(budgets, DisruptionBudgets | BudgetsAfterEvictions)
        else lambda pod: (budget for budget in budgets if _budget_selects(budget, pod))
    )
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


def _budget_selects(budget: DisruptionBudget, pod: Pod) -> bool:
    """As in kube-scheduler, an empty selector selects nothing and a pod without labels is in no
    budget. A pod that the budget already lists as disrupted does not count again."""
    if budget.namespace != pod.namespace or pod.name in budget.disrupted_pods:
        return False
    selector = budget.selector
    if not pod.labels or selector is None or not selector.requirements:
        return False
    return selector.selects(pod.labels)
