"""Parked groups that wait for a quota, so that a release looks at those alone that it can help.

Groups of the same entities that the same resource blocks at the same node are in one line, the least request first: while
the first is blocked, so are all behind it. Of the lines at a node, that which adds least to its use comes first. A release costs
as much as the lines of its entities and the groups that it opens, however many entities of others wait.
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
        self._ranks: dict[QuotaNode, dict[int, MovableHeap[_LineKey]]] = {}
        """By resource: lines by what their least group adds to the use of the node, or less."""
        self._of: dict[QuotaEntity, dict[tuple[QuotaNode, _LineKey], None]] = {}

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
            self._enter(key, self._waiting[key], block, usage)

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
        # What an entity has released may entitle its own groups, and count less in its pool.
        lines = dict.fromkeys(line for entity in sorted(nodes) for line in self._of.get(entity, ()))
        for at, line_key in lines:
            if at in nodes:
                self._shorten(at, line_key, usage, opened)
        for node in sorted(nodes):
            for ranks in [*self._ranks.get(node, {}).values()]:
                while (first := ranks.first()) is not None and (node, first) not in lines:
                    lines[node, first] = None  # while it is first, all behind it are blocked as well
                    self._shorten(node, first, usage, opened)
        return sorted(opened, key=opened.__getitem__)

    def _shorten(
        self, node: QuotaNode, line_key: _LineKey, usage: QuotaUsage, opened: dict[Key, int]
    ) -> None:
        """Open the groups of the line that may run, and put what is left of it where it belongs among the others."""
        line = self._lines.get(node, {}).get(line_key)
        if line is None:
            return
        for order in line.least, line.together:
            block = None
            while block is None and (key := order.first()) is not None:
                block = self._block_in_line(key, node, line_key, usage, opened)
                if block is not None and order is line.together:
                    self._rank(node, line_key, self._added(key, block, usage))

    def _block_in_line(
        self, key: Key, node: QuotaNode, line: _LineKey, usage: QuotaUsage, opened: dict[Key, int]
    ) -> QuotaBlock | None:
        """What keeps the group in its line. None: it has left it, as it is opened, or another resource blocks it at the node."""
        waiting = self._waiting[key]
        block = None if waiting.need is None else waiting.need.block(usage)
        if block is None or block.node != node:
            self._open(key, opened)
        elif block.resource != line[1]:
            self._leave(key, waiting)
            waiting.resource = block.resource
            self._enter(key, waiting, block, usage)
        else:
            return block
        return None

    def _added(self, key: Key, block: QuotaBlock, usage: QuotaUsage) -> int:
        """What the group adds to the use of the node that blocks it."""
        need = self._waiting[key].need
        assert need is not None, f"{key!r} waits for any release"
        requested = need.together.amounts[block.resource]
        if not block.in_pool:
            return requested
        return usage.added_to_pool(
            block.quota, need.together.entities[block.quota], block.resource, requested
        )

    def _rank(self, node: QuotaNode, line_key: _LineKey, added: int) -> None:
        ranks = self._ranks.setdefault(node, {}).setdefault(line_key[1], MovableHeap())
        if (
            line_key not in ranks or ranks.key_of(line_key) != added
        ):  # of equal ones the first stays the first
            ranks.put(line_key, added)

    def _open(self, key: Key, opened: dict[Key, int]) -> None:
        opened[key] = self._waiting[key].serial
        self.discard(key)

    def _enter(self, key: Key, waiting: _Waiting, block: QuotaBlock, usage: QuotaUsage) -> None:
        need, resource = waiting.need, waiting.resource
        assert need is not None, f"{key!r} waits for any release"
        [node] = waiting.nodes
        line_key = need.together.entities, resource
        line = self._lines.setdefault(node, {}).setdefault(line_key, _Line())
        ranks, added = self._ranks.get(node, {}).get(resource), self._added(key, block, usage)
        if ranks is None or line_key not in ranks or added < ranks.key_of(line_key):
            self._rank(node, line_key, added)
        for entity in line_key[0]:
            self._of.setdefault(entity, {})[node, line_key] = None
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
            ranks = self._ranks[node]
            ranks[waiting.resource].discard(line_key)
            if not ranks[waiting.resource]:
                del ranks[waiting.resource]
                if not ranks:
                    del self._ranks[node]
            for entity in line_key[0]:
                del self._of[entity][node, line_key]
                if not self._of[entity]:
                    del self._of[entity]
