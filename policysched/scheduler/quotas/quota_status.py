"""The use of quotas as plain values, for `/quotas`, the metrics and `explain`."""

from collections.abc import Iterator
from dataclasses import dataclass

from policysched.lang.types.kinds import Type
from policysched.scheduler.quotas.quota_account import QuotaAccount


@dataclass(frozen=True, slots=True)
class QuotaResourceStatus:
    """Amounts in the internal unit of `type`. `ceiling` None: only what others leave limits it."""

    resource: str
    type: Type
    amount: int
    used: int
    borrowed: int
    ceiling: int | None


@dataclass(frozen=True, slots=True)
class QuotaEntityStatus:
    """An entity with a row or with pods. `path`: the names from the outermost quota inward. `dominant_share`: the
    largest part of its amounts that it uses."""

    policy: str
    quota: str
    path: tuple[str, ...]
    listed: bool
    pods: int
    dominant_share: float
    resources: tuple[QuotaResourceStatus, ...]


def quota_status(account: QuotaAccount) -> Iterator[QuotaEntityStatus]:
    """Quotas in the order of the policy, in each the entities with a row before the others."""
    limits = account.limits
    for quota, entity in sorted(account.entities(), key=lambda item: item[0]):
        entity_limits, used = limits.of(quota, entity), account.usage.used(entity)
        resources = []
        for index in entity_limits.limited:
            amount = entity_limits.amounts[index]
            assert amount is not None, f"{entity} has no amount of {limits.resources[index]}"
            resources.append(
                QuotaResourceStatus(
                    limits.resources[index],
                    limits.types[index],
                    amount,
                    used[index],
                    max(0, used[index] - amount),
                    entity_limits.ceilings[index],
                )
            )
        yield QuotaEntityStatus(
            account.plan.program.name,
            entity[0],
            entity[1:],
            entity_limits.listed,
            len(list(account.pods_of(entity))),
            account.dominant_share(quota, entity),
            tuple(resources),
        )
