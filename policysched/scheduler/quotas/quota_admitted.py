"""Parked groups that their quotas admit and no node fits, until others have used what they lack: they may then take it back.

A pod that its quotas admit evicts nobody for its quota, so a placement that uses up the pool changes its verdict.
Groups of the same entities are in one line for each resource that they request, the largest request first: while it
passes, so do all behind it. A placement costs as much as the lines at its nodes, and the groups that leave them.
"""

from collections.abc import Collection, Iterator

from policysched.evaluate.plan.quotas import QuotaCharge, QuotaEntity
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.quotas.quota_limits import QuotaLimits, QuotaNode
from policysched.scheduler.quotas.quota_usage import QuotaUsage

Key = object
"""Of a parked group."""

_LineKey = tuple[tuple[QuotaEntity, ...], int]
"""The entities, and the index of the resource."""


class QuotaAdmitted:
    """Those of one policy."""

    def __init__(self, limits: QuotaLimits) -> None:
        self._limits = limits
        self._charges: dict[Key, QuotaCharge] = {}
        self._lines: dict[_LineKey, MovableHeap[Key]] = {}
        self._lines_at: dict[QuotaNode, dict[_LineKey, None]] = {}

    def add(self, key: Key, charge: QuotaCharge) -> None:
        self.discard(key)
        self._charges[key] = charge
        for line_key in _line_keys(charge):
            if line_key not in self._lines:
                self._lines[line_key] = MovableHeap()
                for node in self._nodes(line_key):
                    self._lines_at.setdefault(node, {})[line_key] = None
            self._lines[line_key].put(key, -charge.amounts[line_key[1]])

    def discard(self, key: Key) -> None:
        charge = self._charges.pop(key, None)
        for line_key in () if charge is None else _line_keys(charge):
            line = self._lines[line_key]
            line.discard(key)
            if not line:
                del self._lines[line_key]
                for node in self._nodes(line_key):
                    del self._lines_at[node][line_key]
                    if not self._lines_at[node]:
                        del self._lines_at[node]

    def take_refused(self, nodes: Collection[QuotaNode], usage: QuotaUsage) -> list[Key]:
        """Remove the groups that a placement at the nodes has refused, and return those that may take back. The others wait
        for a pod that goes, as before."""
        taken = []
        for line_key in dict.fromkeys(
            line for node in sorted(nodes) for line in self._lines_at.get(node, ())
        ):
            while (line := self._lines.get(line_key)) is not None and (key := line.first()) is not None:
                charge = self._charges[key]
                if all(block.resource != line_key[1] for block in usage.blocks(charge)):
                    break
                self.discard(key)
                if (block := usage.blocked(charge)) is not None and block.claims:
                    taken.append(key)
        return taken

    def _nodes(self, line_key: _LineKey) -> Iterator[QuotaNode]:
        for entity in line_key[0]:
            yield entity
            yield self._limits.pool_of(entity)


def _line_keys(charge: QuotaCharge) -> list[_LineKey]:
    return [(charge.entities, index) for index, amount in enumerate(charge.amounts) if amount]
