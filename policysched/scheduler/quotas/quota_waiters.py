"""Parked groups that wait for a quota, so that a release looks at those alone that it can help.

Groups of the same entities that the same resource blocks at the same node are in one line, the least request first: while
the first is blocked, so are all behind it. A release costs as much as the lines at its nodes, and the groups that it opens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from policysched.evaluate.plan.quotas import QuotaCharge, QuotaEntity
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.quotas.quota_limits import QuotaNode
from policysched.scheduler.quotas.quota_usage import QuotaBlock, QuotaUsage

Key = object
"""Of a parked group."""

_LineKey = tuple[tuple[QuotaEntity, ...], int]
"""The entities, and the index of the resource."""


@dataclass(frozen=True, slots=True)
class Need:
    """What has to pass together at least before a group is attempted again, and the least that one of its pods needs."""

    together: QuotaCharge
    least: QuotaCharge

    @classmethod
    def of(cls, charges: Sequence[QuotaCharge], count: int) -> "Need | None":
        """Of so many of these pods. None: they are of different entities."""
        if len({charge.entities for charge in charges}) != 1:
            return None
        amounts = [sorted(each) for each in zip(*(charge.amounts for charge in charges), strict=True)]
        entities = charges[0].entities
        return cls(
            QuotaCharge(entities, tuple(sum(each[:count]) for each in amounts)),
            QuotaCharge(entities, tuple(each[0] for each in amounts)),
        )

    def block(self, usage: QuotaUsage) -> QuotaBlock | None:
        """What keeps the group from any attempt. None: it may run, or one of its pods may take back what others borrow."""
        block = usage.blocked(self.together)
        return None if block is None or block.claims or usage.claims(self.least, block) else block


@dataclass(slots=True)
class _Line:
    """Keys by what the groups need together, and by the least that one of their pods needs."""

    together: MovableHeap[Key] = field(default_factory=MovableHeap)
    least: MovableHeap[Key] = field(default_factory=MovableHeap)


@dataclass(slots=True)
class _Waiting:
    """`need` None: any release at one of the nodes opens the group. Otherwise it is in the line of the only node."""

    serial: int
    nodes: Collection[QuotaNode]
    need: Need | None
    resource: int


class QuotaWaiters:
    """Those of one policy."""

    def __init__(self) -> None:
        self._serial = 0
        self._waiting: dict[Key, _Waiting] = {}
        self._at_any_release: dict[QuotaNode, dict[Key, None]] = {}
        self._lines: dict[QuotaNode, dict[_LineKey, _Line]] = {}

    def add(self, key: Key, refused_at: Collection[QuotaNode], need: Need | None, usage: QuotaUsage) -> None:
        """The group waits until its need would pass, or for any release where its pods were refused."""
        self.discard(key)
        self._serial += 1
        block = None if need is None else need.block(usage)
        if need is None or block is None:
            self._waiting[key] = _Waiting(self._serial, refused_at, None, 0)
            for node in refused_at:
                self._at_any_release.setdefault(node, {})[key] = None
        else:
            self._waiting[key] = _Waiting(self._serial, (block.node,), need, block.resource)
            self._enter(key, self._waiting[key])

    def discard(self, key: Key) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        if waiting.need is not None:
            self._leave(key, waiting)
            return
        for node in waiting.nodes:
            keys = self._at_any_release[node]
            del keys[key]
            if not keys:
                del self._at_any_release[node]

    def take_released(self, nodes: Collection[QuotaNode], usage: QuotaUsage) -> list[Key]:
        """Remove and return the groups whose verdict may have changed with a release at the nodes: they may run, or wait
        elsewhere now, or are entitled to take back. In the order in which they began to wait."""
        opened: dict[Key, int] = {}
        for node in sorted(nodes):
            for key in [*self._at_any_release.get(node, ())]:
                self._open(key, opened)
            for line_key, line in [*self._lines.get(node, {}).items()]:
                for order in (line.together, line.least):
                    while (key := order.first()) is not None and self._moves(
                        key, node, line_key, usage, opened
                    ):
                        pass
        return sorted(opened, key=opened.__getitem__)

    def _moves(
        self, key: Key, node: QuotaNode, line: _LineKey, usage: QuotaUsage, opened: dict[Key, int]
    ) -> bool:
        """Whether the group leaves its line: it is opened, or another resource blocks it at the node."""
        waiting = self._waiting[key]
        block = None if waiting.need is None else waiting.need.block(usage)
        if block is None or block.node != node:
            self._open(key, opened)
        elif block.resource != line[1]:
            self._leave(key, waiting)
            waiting.resource = block.resource
            self._enter(key, waiting)
        else:
            return False
        return True

    def _open(self, key: Key, opened: dict[Key, int]) -> None:
        opened[key] = self._waiting[key].serial
        self.discard(key)

    def _enter(self, key: Key, waiting: _Waiting) -> None:
        need, resource = waiting.need, waiting.resource
        assert need is not None, f"{key!r} waits for any release"
        [node] = waiting.nodes
        line = self._lines.setdefault(node, {}).setdefault((need.together.entities, resource), _Line())
        line.together.put(key, need.together.amounts[resource])
        if need.least != need.together:
            line.least.put(key, need.least.amounts[resource])

    def _leave(self, key: Key, waiting: _Waiting) -> None:
        need = waiting.need
        assert need is not None, f"{key!r} waits for any release"
        [node] = waiting.nodes
        lines, line_key = self._lines[node], (need.together.entities, waiting.resource)
        lines[line_key].together.discard(key)
        lines[line_key].least.discard(key)
        if not lines[line_key].together:
            del lines[line_key]
            if not lines:
                del self._lines[node]
