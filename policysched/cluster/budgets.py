"""PodDisruptionBudgets: which evictions violate a budget.

Preemption prefers victims whose eviction violates no budget. Source of the counting:
`filterPodsWithPDBViolation` in kubernetes' `pkg/scheduler/framework/plugins/defaultpreemption`.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget


def split_by_budget(
    pods: Iterable[Pod], budgets: Collection[DisruptionBudget]
) -> tuple[list[Pod], list[Pod]]:
    """The pods whose eviction violates a budget, and the others, in the given order. All pods count
    as evicted together, in that order: each uses one disruption of every budget that selects it."""
    left = {id(budget): budget.disruptions_allowed for budget in budgets}
    violating: list[Pod] = []
    others: list[Pod] = []
    for pod in pods:
        violates = False
        for budget in budgets:
            if _budget_selects(budget, pod):
                left[id(budget)] -= 1
                violates |= left[id(budget)] < 0
        (violating if violates else others).append(pod)
    return violating, others


def budgets_after_evicting(
    pods: Collection[Pod], budgets: Iterable[DisruptionBudget]
) -> list[DisruptionBudget]:
    """The budgets after these pods are evicted."""
    remaining = []
    for budget in budgets:
        used = sum(_budget_selects(budget, pod) for pod in pods)
        left = budget.disruptions_allowed - used
        remaining.append(replace(budget, disruptions_allowed=left) if used else budget)
    return remaining


def _budget_selects(budget: DisruptionBudget, pod: Pod) -> bool:
    """As in kube-scheduler, an empty selector selects nothing and a pod without labels is in no
    budget. A pod that the budget already lists as disrupted does not count again."""
    if budget.namespace != pod.namespace or budget.selector is None or not pod.labels:
        return False
    if not budget.selector.requirements or pod.name in budget.disrupted_pods:
        return False
    return budget.selector.selects(pod.labels)
