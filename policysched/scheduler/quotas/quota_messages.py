"""What a pod that waits for a quota says: which quota, how much is used, by whom, and what would free it."""

from collections.abc import Sequence
from heapq import nlargest

from policysched.evaluate.plan.quotas import QuotaEntity
from policysched.lang.types.kinds import Type
from policysched.lang.types.units import format_value
from policysched.model.pods import Pod
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_limits import QuotaLimits, QuotaNode
from policysched.scheduler.quotas.quota_usage import QuotaBlock, QuotaUsage

_USERS_MAX = 3


def entity_text(limits: QuotaLimits, quota: int, entity: QuotaNode) -> str:
    """`quota team "vision" in "research"`."""
    return f"quota {limits.specs[quota].name} {_path_text(entity[1:])}"


def _path_text(names: Sequence[str]) -> str:
    """`"vision" in "research"`, the innermost first."""
    return " in ".join(f'"{name}"' for name in reversed(names))


def amount_text(limits: QuotaLimits, resource: int, amount: int) -> str:
    """`40 cpu`, `512Mi of memory`, `3 pods`."""
    return f"{format_amount(amount, limits.types[resource])} {limits.resources[resource]}"


def format_amount(amount: int, type_: Type) -> str:
    """An amount of a resource without its name, in the notation of its type."""
    return format_value(float(amount) if type_.is_float64 else amount, type_)


def quota_message(account: QuotaAccount, usage: QuotaUsage, block: QuotaBlock, namespace: str) -> str:
    """The message of a pod of the namespace that is blocked, one line."""
    limits = account.limits
    text = format_amount(block.used, limits.types[block.resource])
    requested = amount_text(limits, block.resource, block.requested)
    limit_text = amount_text(limits, block.resource, block.limit)
    missing = amount_text(limits, block.resource, block.used + block.requested - block.limit)
    if block.in_pool:
        where = f"quota {limits.specs[block.quota].name}"
        if len(block.node) > 2:
            where += f" in {_path_text(block.node[2:])}"
        share = "all rows together"
    else:
        where, share = entity_text(limits, block.quota, block.node), _with_borrowed(limits, block)
    users = _users_text(account, usage, block, namespace)
    return (
        f"waits for {where}: {text} of {limit_text} used ({share}), {requested} requested; "
        f"used by {users}; {missing} must become free"
    )


def _with_borrowed(limits: QuotaLimits, block: QuotaBlock) -> str:
    amount = limits.of(block.quota, block.node).amounts[block.resource]
    assert amount is not None, f"{block} is about a resource without an amount"
    if amount == block.limit:
        return "no borrowing"
    type_ = limits.types[block.resource]
    return f"{format_amount(amount, type_)} of its own, at most {format_amount(block.limit - amount, type_)} borrowed"


def _users_text(account: QuotaAccount, usage: QuotaUsage, block: QuotaBlock, namespace: str) -> str:
    """The largest users: entities where the node has any inside, else pods. Pods of other namespaces are counted: who reads
    the message may not list them."""
    limits, resource = account.limits, block.resource
    type_ = limits.types[resource]
    used_by: list[tuple[int, QuotaEntity | Pod]]
    if block.in_pool:
        prefix, inner = block.node[1:], block.quota
    else:
        children = [index for index, parent in enumerate(limits.parents) if parent == block.quota]
        inner = children[0] if children else -1
        prefix = (limits.specs[inner].name, *block.node[1:]) if children else ()
    if inner >= 0:
        used_by = [
            (used, entity)
            for entity in account.usage.nodes
            if entity[:-1] == prefix and (used := usage.used(entity)[resource])
        ]
    else:
        used_by = [
            (amount, charged.pod)
            for charged in account.pods_of(block.node)
            if (amount := charged.charge.amounts[resource])
        ]
    if not used_by:
        return "no pod"
    named = [use for use in used_by if not isinstance(use[1], Pod) or use[1].namespace == namespace]
    if not named:
        return f"{len(used_by)} pod{'s' if len(used_by) > 1 else ''} of other namespaces"

    def text(used: int, user: QuotaEntity | Pod) -> str:
        if isinstance(user, Pod):
            return f"{user.full_name} ({format_amount(used, type_)})"
        borrowed = usage.borrowed(inner, user, resource)
        note = f", {format_amount(borrowed, type_)} borrowed" if borrowed else ""
        return f'"{user[-1]}" ({format_amount(used, type_)}{note})'

    def rank(use: tuple[int, QuotaEntity | Pod]) -> tuple[int, str]:
        used, user = use
        return used, user.full_name if isinstance(user, Pod) else user[-1]

    listed = ", ".join(text(*use) for use in nlargest(_USERS_MAX, named, rank))
    hidden_count = len(used_by) - min(_USERS_MAX, len(named))
    return f"{listed} and {hidden_count} more" if hidden_count > 0 else listed
