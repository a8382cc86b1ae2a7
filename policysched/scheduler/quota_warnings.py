"""Warnings about quotas that do not hold what they say, as events on the ConfigMap.

A minute after a text became active, and every ten minutes from then on: resources that no node has, rows that no pod
counts towards, and entities above their limit (nothing is evicted for that). Each is reported when it changes.
"""

from collections.abc import Iterator

from policysched.scheduler.commands import ReportPolicyEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_messages import amount_text, entity_text

_FIRST_NS = 60 * SECOND_NS
_PERIOD_NS = 600 * SECOND_NS
_NAMES_MAX = 5


class QuotaWarnings:
    """Checks each account at its times."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._checked_at_ns: dict[str, tuple[QuotaAccount, int]] = {}
        self._reported: dict[str, dict[str, str]] = {}  # by policy and reason

    def next_time_ns(self) -> int | None:
        if not self._core.quotas.accounts:
            return None
        return min(
            (self._due_ns(name, account) for name, account in self._core.quotas.accounts.items()),
            default=None,
        )

    def _due_ns(self, policy: str, account: QuotaAccount) -> int:
        checked = self._checked_at_ns.get(policy)
        if checked is None or checked[0] is not account:
            return account.activated_ns + _FIRST_NS
        return checked[1] + _PERIOD_NS

    def advance(self, now_ns: int) -> None:
        for policy in self._checked_at_ns.keys() - self._core.quotas.accounts.keys():
            del self._checked_at_ns[policy], self._reported[policy]
        for policy, account in self._core.quotas.accounts.items():
            if self._due_ns(policy, account) <= now_ns:
                self._checked_at_ns[policy] = account, now_ns
                self._check(policy, account)

    def _check(self, policy: str, account: QuotaAccount) -> None:
        reported = self._reported.setdefault(policy, {})
        for reason, problem in (
            ("QuotaUnusable", _join(self._absent_resources(account))),
            ("QuotaUnused", _join(self._unused_rows(policy, account))),
            ("QuotaExceeded", _join(_exceeded(account))),
        ):
            if problem and reported.get(reason) != problem:
                message = f"policy `{policy}`: {_MEANINGS[reason]}: {problem}"
                self._core.commands.append(
                    ReportPolicyEvent("Normal" if reason == "QuotaUnused" else "Warning", reason, message)
                )
            reported[reason] = problem

    def _absent_resources(self, account: QuotaAccount) -> Iterator[str]:
        nodes = self._core.cache.nodes.values()
        for name in account.limits.resources:
            is_declared = name in account.plan.program.resources
            if nodes and not is_declared and not any(node.allocatable.get(name) for node in nodes):
                yield name

    def _unused_rows(self, policy: str, account: QuotaAccount) -> Iterator[str]:
        waiting = {
            entity
            for pod in self._core.pods.values()
            if pod.policy == policy
            for entity in self._core.quotas.charge_of(pod.pod).entities
        }
        rows = set(account.limits.listed_entities)
        for quota, entity in account.entities():
            if entity in rows and entity not in waiting and not any(True for _ in account.pods_of(entity)):
                yield entity_text(account.limits, quota, entity)


def _exceeded(account: QuotaAccount) -> Iterator[str]:
    limits = account.limits
    for quota, entity in account.entities():
        entity_limits, used = limits.of(quota, entity), account.usage.used(entity)
        for index in entity_limits.limited:
            ceiling = entity_limits.ceilings[index]
            if ceiling is not None and used[index] > ceiling:
                yield f"{entity_text(limits, quota, entity)} uses {amount_text(limits, index, used[index])} of {amount_text(limits, index, ceiling)}"


_MEANINGS = {
    "QuotaUnusable": "no node has a resource that a quota limits; pods that request it stay pending",
    "QuotaUnused": "no pod counts towards these rows; their amounts can be borrowed",
    "QuotaExceeded": "use is above the limit; no pod is evicted, and no further pod is admitted until use is below the limit",
}


def _join(problems: Iterator[str]) -> str:
    listed = list(problems)
    hidden_count = len(listed) - _NAMES_MAX
    return ", ".join(listed[:_NAMES_MAX]) + (f" and {hidden_count} more" if hidden_count > 0 else "")
