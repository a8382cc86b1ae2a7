"""Parked groups that their quotas admit and no node fits, until others have used what they lack: they may then take it back.

A pod or gang that its quotas admit evicts nobody for its quota, so a placement that uses up the pool changes its verdict.

    entity, resource ──► its groups, the largest request first
    pool, resource   ──► its entities, by what their largest request adds to the use of the pool

While the first of these passes, so do all behind it. A placement costs as much as the groups that it refuses, however many
others wait: tenants make groups, and by labels also entities.
"""

from collections.abc import Collection, Iterator

from policysched.evaluate.plan.quotas import QuotaCharge, QuotaEntity
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.quotas.quota_limits import QuotaLimits, QuotaNode
from policysched.scheduler.quotas.quota_usage import QuotaUsage

Key = object
"""Of a parked group."""


class QuotaAdmitted:
    """Those of one policy."""

    def __init__(self, limits: QuotaLimits) -> None:
        self._limits = limits
        self._quotas = {spec.name: quota for quota, spec in enumerate(limits.specs)}
        self._charges: dict[Key, QuotaCharge] = {}
        self._groups: dict[tuple[QuotaEntity, int], MovableHeap[Key]] = {}
        self._pools: dict[tuple[QuotaNode, int], MovableHeap[QuotaEntity]] = {}

    def add(self, key: Key, charge: QuotaCharge, usage: QuotaUsage) -> None:
        self.discard(key)
        self._charges[key] = charge
        for entity, index in _places(charge):
            self._groups.setdefault((entity, index), MovableHeap()).put(key, -charge.amounts[index])
            self._rank(entity, index, usage)

    def discard(self, key: Key) -> None:
        charge = self._charges.pop(key, None)
        for entity, index in () if charge is None else _places(charge):
            groups = self._groups[entity, index]
            groups.discard(key)
            if groups:
                continue  # its rank may be too high now, until it is first
            del self._groups[entity, index]
            pool = self._limits.pool_of(entity), index
            if (entities := self._pools.get(pool)) is not None:
                entities.discard(entity)
                if not entities:
                    del self._pools[pool]

    def take_refused(self, nodes: Collection[QuotaNode], usage: QuotaUsage) -> list[Key]:
        """Remove the groups that placements at the nodes have refused, and return those that may take back. The others wait
        for a pod that goes, as before."""
        taken = []
        # Entities before their pools, where they have another rank now.
        for node in sorted(nodes, reverse=True):
            for index in range(len(self._limits.resources)):
                refused = self._refused_in_pool if not node[0] else self._refused_at_ceiling
                while (key := refused(node, index, usage)) is not None:
                    block = usage.blocked(self._charges[key])
                    self.discard(key)
                    if block is not None and block.claims:
                        taken.append(key)
        return taken

    def _refused_at_ceiling(self, entity: QuotaEntity, index: int, usage: QuotaUsage) -> Key | None:
        if (entity, index) not in self._groups:
            return None
        self._rank(entity, index, usage)
        ceiling = self._limits.of(self._quotas[entity[0]], entity).ceilings[index]
        key, requested = self._largest(entity, index)
        return key if ceiling is not None and usage.used(entity)[index] + requested > ceiling else None

    def _refused_in_pool(self, pool: QuotaNode, index: int, usage: QuotaUsage) -> Key | None:
        entities = self._pools.get((pool, index))
        while entities is not None and (entity := entities.first()) is not None:
            rank = entities.first_key()
            added = self._rank(entity, index, usage)
            if -added == rank:  # otherwise the entity uses less than before, or its largest group is gone
                total = self._total(entity, index)
                is_refused = added and total is not None and usage.used(pool)[index] + added > total
                return self._largest(entity, index)[0] if is_refused else None
        return None

    def _rank(self, entity: QuotaEntity, index: int, usage: QuotaUsage) -> int:
        """Put the entity where it belongs in its pool, and return what its largest request adds there."""
        if self._total(entity, index) is None:
            return 0
        added = usage.added_to_pool(self._quotas[entity[0]], entity, index, self._largest(entity, index)[1])
        entities = self._pools.setdefault((self._limits.pool_of(entity), index), MovableHeap())
        if entity not in entities or entities.key_of(entity) != -added:
            entities.put(entity, -added)
        return added

    def _total(self, entity: QuotaEntity, index: int) -> int | None:
        """What the pool has for the entity. None: it limits nothing there."""
        quota = self._quotas[entity[0]]
        if self._limits.of(quota, entity).amounts[index] is None:
            return None
        key, _ = self._largest(entity, index)
        return self._limits.pool_total(quota, self._charges[key].entities, index)

    def _largest(self, entity: QuotaEntity, index: int) -> tuple[Key, int]:
        key = self._groups[entity, index].first()
        return key, self._charges[key].amounts[index]


def _places(charge: QuotaCharge) -> Iterator[tuple[QuotaEntity, int]]:
    for entity in charge.entities:
        for index, amount in enumerate(charge.amounts):
            if amount:
                yield entity, index
