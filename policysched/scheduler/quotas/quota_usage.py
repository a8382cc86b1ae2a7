"""What is used of the quotas, and whether a pod may use more.

A decision reads and changes the usage in the same step, so that no two decisions can pass on the same idle amount.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from policysched.evaluate.plan.quotas import QuotaCharge, QuotaEntity
from policysched.scheduler.quotas.quota_limits import QuotaLimits, QuotaNode

BorrowedLimit = tuple[int, QuotaEntity, int]
"""The index of the quota, an entity of it, and the index of the resource of which it uses more than its amount."""


@dataclass(frozen=True, slots=True)
class QuotaBlock:
    """Why a pod may not use more: `used` and `requested` of the resource exceed `limit` at the node (an entity of the
    quota, or its pool). `claims` are the quotas in which the pod's entity stays within its amount: others that borrow
    there have to give back."""

    quota: int
    node: QuotaNode
    resource: int
    used: int
    requested: int
    limit: int
    claims: tuple[int, ...]

    @property
    def in_pool(self) -> bool:
        return not self.node[0]


class QuotaUsage:
    """Use by node, in the order of `QuotaLimits.resources`. With a `base` this is a hypothetical change of it. `part_kept` is
    what nominated pods keep from those that borrow, beside what they keep from everybody."""

    def __init__(self, limits: QuotaLimits, base: "QuotaUsage | None" = None) -> None:
        self._limits = limits
        self._base = base
        self._used: dict[QuotaNode, list[int]] = {}
        self._none_used = [0] * len(limits.resources)
        self.part_kept: Sequence[QuotaCharge] = () if base is None else base.part_kept

    def used(self, node: QuotaNode) -> Sequence[int]:
        """What the entity or pool uses of each resource. Read only."""
        amounts = self._used.get(node)
        if amounts is not None:
            return amounts
        return self._none_used if self._base is None else self._base.used(node)

    def trial(self) -> "QuotaUsage":
        """The same usage, to be changed hypothetically."""
        return QuotaUsage(self._limits, self)

    @property
    def nodes(self) -> Iterable[QuotaNode]:
        """Entities and pools that use something."""
        return self._used

    def add(self, charge: QuotaCharge, sign: int = 1) -> None:
        """Count a pod (`sign` 1), or remove one (-1)."""
        limits = self._limits
        for quota, entity in enumerate(charge.entities):
            before = self.used(entity)
            after = [used + sign * amount for used, amount in zip(before, charge.amounts, strict=True)]
            entity_limits = limits.of(quota, entity)
            pool = limits.pool_of(entity)
            in_pool = list(self.used(pool))
            for index in entity_limits.limited:
                in_pool[index] += entity_limits.pool_use(index, after[index]) - entity_limits.pool_use(
                    index, before[index]
                )
            self._put(entity, after)
            self._put(pool, in_pool)

    def _put(self, node: QuotaNode, used: list[int]) -> None:
        if self._base is None and not any(used):
            self._used.pop(node, None)
        else:
            self._used[node] = used

    def borrowed(self, quota: int, entity: QuotaNode, resource: int) -> int:
        """How much the entity uses beyond its amount."""
        amount = self._limits.of(quota, entity).amounts[resource]
        return 0 if amount is None else max(0, self.used(entity)[resource] - amount)

    def blocked(self, charge: QuotaCharge) -> QuotaBlock | None:
        """The first limit that the pod would exceed, innermost quotas first; None: it may be placed. A pod that
        requests nothing of a resource is never blocked by it, however much of it is used."""
        return next(self.blocks(charge), None)

    def blocks(self, charge: QuotaCharge) -> Iterator[QuotaBlock]:
        """All limits that the pod would exceed, one of each entity and resource."""
        limits = self._limits
        for quota in range(len(charge.entities) - 1, -1, -1):
            entity = charge.entities[quota]
            entity_limits, used = limits.of(quota, entity), self.used(entity)
            for index in entity_limits.limited:
                requested = charge.amounts[index]
                if not requested:
                    continue
                ceiling = entity_limits.ceilings[index]
                if ceiling is not None and used[index] + requested > ceiling:
                    yield self._block(charge, quota, entity, index, used[index], ceiling)
                    continue
                total = limits.pool_total(quota, charge.entities, index)
                extra = self.added_to_pool(quota, entity, index, requested)
                pool = limits.pool_of(entity)
                if total is not None and extra and self.used(pool)[index] + extra > total:
                    yield self._block(charge, quota, pool, index, self.used(pool)[index], total)

    def added_to_pool(self, quota: int, entity: QuotaEntity, index: int, requested: int) -> int:
        """By how much the use of its pool grows if the entity uses so much more."""
        limits, used = self._limits.of(quota, entity), self.used(entity)[index]
        return limits.pool_use(index, used + requested) - limits.pool_use(index, used)

    def _block(
        self, charge: QuotaCharge, quota: int, node: QuotaNode, resource: int, used: int, limit: int
    ) -> QuotaBlock:
        claims = self._claims(charge, quota, node, resource)
        return QuotaBlock(quota, node, resource, used, charge.amounts[resource], limit, claims)

    def claims(self, charge: QuotaCharge, block: QuotaBlock) -> tuple[int, ...]:
        """What the claims of the block were for this charge of the same entities."""
        return self._claims(charge, block.quota, block.node, block.resource)

    def _claims(self, charge: QuotaCharge, quota: int, node: QuotaNode, resource: int) -> tuple[int, ...]:
        sharing = self._limits.inside[quota] if node[0] else (quota, *self._limits.inside[quota])
        return tuple(inner for inner in sharing if self._is_entitled(charge, inner, resource))

    def _is_entitled(self, charge: QuotaCharge, quota: int, resource: int) -> bool:
        """Whether the pod's entity stays within its amount with the pod."""
        entity = charge.entities[quota]
        amount = self._limits.of(quota, entity).amounts[resource]
        return amount is not None and self.used(entity)[resource] + charge.amounts[resource] <= amount

    def entitled_part(self, charge: QuotaCharge) -> QuotaCharge | None:
        """The resources to which the pod is entitled in some quota. None: nothing."""
        quotas = range(len(charge.entities))
        amounts = [
            amount if any(self._is_entitled(charge, quota, index) for quota in quotas) else 0
            for index, amount in enumerate(charge.amounts)
        ]
        return QuotaCharge(charge.entities, tuple(amounts)) if any(amounts) else None

    def for_borrowers(self) -> "QuotaUsage":
        """With what nominated pods keep from them."""
        usage = self.trial()
        for charge in self.part_kept:
            usage.add(charge)
        usage.part_kept = ()
        return usage

    def parts_hold(self) -> bool:
        """Whether those that keep a part are still entitled to it, all together."""
        if not self.part_kept:
            return True
        usage, nothing = self.for_borrowers(), (0,) * len(self._limits.resources)
        return all(
            any(
                usage._is_entitled(QuotaCharge(charge.entities, nothing), quota, index)
                for quota in range(len(charge.entities))
            )
            for charge in self.part_kept
            for index, amount in enumerate(charge.amounts)
            if amount
        )

    def is_within_amounts(self, charge: QuotaCharge) -> bool:
        """Whether the pod borrows nothing in any quota."""
        return all(
            self._is_entitled(charge, quota, index)
            for quota, entity in enumerate(charge.entities)
            for index in self._limits.of(quota, entity).limited
            if charge.amounts[index]
        )

    def borrowing(self, charges: Iterable[QuotaCharge]) -> frozenset[BorrowedLimit]:
        """Where pods that use this together would borrow."""
        usage, together = self.trial(), list(charges)
        for charge in together:
            usage.add(charge)
        return frozenset(
            (quota, entity, index)
            for charge in together
            for quota, entity in enumerate(charge.entities)
            for index in self._limits.of(quota, entity).limited
            if charge.amounts[index] and usage.borrowed(quota, entity, index)
        )

    def is_kept_from(self, borrowing: Iterable[BorrowedLimit], placed: QuotaCharge) -> bool:
        """Whether a placed pod is of another entity than one that would borrow there, and within its amounts: in all quotas that
        limit what it requests, or where it could take back what the other one borrows."""
        others = [limit for limit in borrowing if placed.entities[limit[0]] != limit[1]]
        if not others:
            return False
        owned = [
            not self.borrowed(quota, entity, index)
            for quota, entity in enumerate(placed.entities)
            for index in self._limits.of(quota, entity).limited
            if placed.amounts[index]
        ]
        return (bool(owned) and all(owned)) or any(
            placed.amounts[index]
            and placed.entities[quota][:-1] == entity[:-1]
            and index in self._limits.of(quota, placed.entities[quota]).limited
            and not self.borrowed(quota, placed.entities[quota], index)
            for quota, entity, index in others
        )

    def may_reclaim(
        self, block: QuotaBlock, charge: QuotaCharge, victim: QuotaCharge, *, borrowed_inside: bool = True
    ) -> bool:
        """Whether the victim's entity borrows the resource from the entity of the blocked pod. With `borrowed_inside`, whether it
        gives this victim back before others."""
        return bool(victim.amounts[block.resource]) and any(
            victim.entities[quota] != charge.entities[quota]
            and victim.entities[quota][:-1] == charge.entities[quota][:-1]
            and self.borrowed(quota, victim.entities[quota], block.resource) > 0
            and (not borrowed_inside or self._is_borrowed_inside(quota, victim, block.resource))
            for quota in block.claims
        )

    def _is_borrowed_inside(self, quota: int, victim: QuotaCharge, resource: int) -> bool:
        """Whether the victim borrows inside of its entity, too, if one there must: what the entity divides among those inside is
        theirs before it is of others inside, and would be taken back from these again."""
        inner = self._limits.divides(quota, victim.entities[quota], resource)
        if inner is None:
            return True
        entity = victim.entities[inner]
        is_limited = self._limits.of(inner, entity).amounts[resource] is not None
        if is_limited and not self.borrowed(inner, entity, resource):
            return False
        return self._is_borrowed_inside(inner, victim, resource)


def summed(charges: Iterable[QuotaCharge]) -> list[QuotaCharge]:
    """What pods of the same entities use together. Either may be used where the others may be, in any order."""
    amounts: dict[tuple[QuotaEntity, ...], list[tuple[int, ...]]] = {}
    for charge in charges:
        amounts.setdefault(charge.entities, []).append(charge.amounts)
    return [
        QuotaCharge(entities, tuple(map(sum, zip(*rows, strict=True)))) for entities, rows in amounts.items()
    ]
