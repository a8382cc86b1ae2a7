"""Warnings about quotas that do not hold what they say, as events on the ConfigMap.

A minute after a text became active, and every ten minutes from then on: resources that no node has, rows that no pod
counts towards, and entities above their limit (nothing is evicted for that). Each is reported when it changes. Pending pods
are looked at in slices, one for each call.
"""

from collections.abc import Iterable, Iterator

from policysched.scheduler.commands import ReportPolicyEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_messages import amount_text, entity_text
from policysched.scheduler.steps import Steps, pods_per_slice

_FIRST_NS = 60 * SECOND_NS
_PERIOD_NS = 600 * SECOND_NS
_NAMES_MAX = 5
_PODS_PER_SLICE = 200
"""Pending pods that are charged at once, less than 1 ms."""


class QuotaWarnings:
    """Checks each account at its times."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._checked_at_ns: dict[str, tuple[QuotaAccount, int]] = {}
        self._reported: dict[str, dict[str, str]] = {}  # by policy and reason
        self._checks: dict[str, Steps[None]] = {}  # that go on, by policy
        self._advanced_ns = 0

    def next_time_ns(self) -> int | None:
        if self._checks:
            return self._advanced_ns
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
        """Begin the checks that are due, and do one slice."""
        self._advanced_ns = now_ns
        accounts = self._core.quotas.accounts
        for policy in self._checked_at_ns.keys() - accounts.keys():
            del self._checked_at_ns[policy]
            self._reported.pop(policy, None)
            self._checks.pop(policy, None)
        for policy, account in accounts.items():
            if self._due_ns(policy, account) <= now_ns:
                self._checked_at_ns[policy] = account, now_ns
                self._checks[policy] = self._check(policy, account)
        if self._checks:
            policy = next(iter(self._checks))
            check = self._checks.pop(policy)  # gone if it raises
            if next(check, None) is not None:
                self._checks[policy] = check

    def _check(self, policy: str, account: QuotaAccount) -> Steps[None]:
        unused = yield from self._unused_rows(policy, account)
        if self._core.quotas.accounts.get(policy) is not account:
            return
        reported = self._reported.setdefault(policy, {})
        for reason, problem in (
            ("QuotaUnusable", _join(self._absent_resources(account))),
            ("QuotaUnused", _join(unused)),
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

    def _unused_rows(self, policy: str, account: QuotaAccount) -> Steps[list[str]]:
        rows = set(account.limits.listed_entities)
        empty = {
            entity: quota
            for quota, entity in account.entities()
            if entity in rows and not any(True for _ in account.pods_of(entity))
        }
        uids = list(self._core.pods) if empty else []
        slice_size = pods_per_slice(account.plan.quota_operations, _PODS_PER_SLICE)
        for start in range(0, len(uids), slice_size):
            if start:
                yield slice_size
            for uid in uids[start : start + slice_size]:
                pod = self._core.pods.get(uid)
                if pod is not None and pod.policy == policy and policy in self._core.quotas.accounts:
                    for entity in self._core.quotas.charge_of(pod.pod).entities:
                        empty.pop(entity, None)
            if not empty:
                break
        return [  # a pod may have been placed meanwhile
            entity_text(account.limits, quota, entity)
            for entity, quota in empty.items()
            if not any(True for _ in account.pods_of(entity))
        ]


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


def _join(problems: Iterable[str]) -> str:
    listed = list(problems)
    hidden_count = len(listed) - _NAMES_MAX
    return ", ".join(listed[:_NAMES_MAX]) + (f" and {hidden_count} more" if hidden_count > 0 else "")
