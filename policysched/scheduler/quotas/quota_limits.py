"""The limits of every entity of a policy's quotas, by entity and resource.

A *pool* is what the entities of one quota share under one parent: the sum of the amounts of its rows. It limits
borrowing where the parent itself does not limit the resource. Entities without a row have their own amount outside the
pool and only borrow from it.
"""

from dataclasses import dataclass

from policysched.evaluate.plan.quotas import CompiledQuotas, QuotaEntity
from policysched.lang.ir.attributes import resource_type
from policysched.lang.ir.program import Program
from policysched.lang.ir.quotas import QuotaLimit
from policysched.lang.types.kinds import Type
from policysched.text.short_key import short_key

QuotaNode = tuple[str, ...]
"""A `QuotaEntity`, or a pool: "", the name of the quota, and the path of the parent."""


@dataclass(frozen=True, slots=True)
class EntityLimits:
    """By index of the resource. `amounts` None: not limited. `ceilings` None: only limited by what others leave.
    `limited` are the indexes with an amount. `listed`: the entity has a row."""

    amounts: tuple[int | None, ...]
    ceilings: tuple[int | None, ...]
    limited: tuple[int, ...]
    listed: bool

    def pool_use(self, index: int, used: int) -> int:
        """How much of an entity's use counts towards its pool."""
        amount = self.amounts[index]
        if amount is None:
            return 0
        return used if self.listed else max(0, used - amount)


class QuotaLimits:
    """The limits of one program. Quotas and resources are known by their index in `specs` and `resources`."""

    def __init__(self, program: Program, compiled: CompiledQuotas) -> None:
        self.specs = compiled.specs
        self.resources = compiled.resources
        self.types: tuple[Type, ...] = tuple(
            program.resources[name].type if name in program.resources else resource_type(name)
            for name in self.resources
        )
        position = {spec.name: index for index, spec in enumerate(self.specs)}
        self.parents = tuple(None if spec.parent is None else position[spec.parent] for spec in self.specs)
        self.inside = tuple(self._inside(index) for index in range(len(self.specs)))
        self._child = tuple(self._only_child(index) for index in range(len(self.specs)))
        self._rows: dict[QuotaEntity, EntityLimits] = {
            (spec.name, *map(short_key, row.path)): self._entity_limits(row.limits, listed=True)
            for spec in self.specs
            for row in spec.rows
        }
        self._others = [self._entity_limits(spec.others, listed=False) for spec in self.specs]
        self._pool_totals: dict[QuotaNode, list[int]] = {}
        for spec in self.specs:
            for row in spec.rows:
                totals = self._pool_totals.setdefault(
                    ("", spec.name, *map(short_key, row.path[:-1])), [0] * len(self.resources)
                )
                for limit in row.limits:
                    totals[self.resources.index(limit.resource)] += limit.amount

    @property
    def listed_entities(self) -> list[QuotaEntity]:
        """The entities with a row, in the order of the policy."""
        return list(self._rows)

    def of(self, quota: int, entity: QuotaEntity) -> EntityLimits:
        return self._rows.get(entity) or self._others[quota]

    def pool_of(self, entity: QuotaEntity) -> QuotaNode:
        return ("", *entity[:-1])

    def pool_total(self, quota: int, entities: tuple[QuotaEntity, ...], index: int) -> int | None:
        """What the pool of the quota's entity has of the resource. None: the parent limits it instead."""
        parent = self.parents[quota]
        if parent is not None and self.of(parent, entities[parent]).amounts[index] is not None:
            return None
        totals = self._pool_totals.get(self.pool_of(entities[quota]))
        return 0 if totals is None else totals[index]

    @property
    def are_nested(self) -> bool:
        return any(parent is not None for parent in self.parents)

    def divides(self, quota: int, entity: QuotaEntity, resource: int) -> int | None:
        """The quota that divides what the entity has among others: if the entity borrows, so does one of those inside, or one that
        is not limited there. None: there is no such quota, or several, or it gives more than there is."""
        inner = self._child[quota]
        amount = self.of(quota, entity).amounts[resource]
        if inner is None or amount is None or self._others[inner].amounts[resource]:
            return None
        totals = self._pool_totals.get(("", self.specs[inner].name, *entity[1:]))
        return inner if totals is None or totals[resource] <= amount else None

    def _only_child(self, quota: int) -> int | None:
        children = [index for index, parent in enumerate(self.parents) if parent == quota]
        return children[0] if len(children) == 1 else None

    def _inside(self, quota: int) -> tuple[int, ...]:
        """The quotas nested in this one, at any depth."""
        nested: set[int] = set()
        for index, parent in enumerate(self.parents):
            if parent == quota or parent in nested:
                nested.add(index)
        return tuple(sorted(nested))

    def _entity_limits(self, limits: tuple[QuotaLimit, ...], *, listed: bool) -> EntityLimits:
        by_name = {limit.resource: limit for limit in limits}
        row = [by_name.get(name) for name in self.resources]
        return EntityLimits(
            tuple(None if limit is None else limit.amount for limit in row),
            tuple(None if limit is None else limit.ceiling for limit in row),
            tuple(index for index, limit in enumerate(row) if limit is not None),
            listed,
        )
