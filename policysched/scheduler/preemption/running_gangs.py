"""Running gangs as victims: a gang goes whole, or keeps at least its minimum.

Of the members on a node that may be evicted, as many as the gang can spare are single pods. The others are one unit,
whose eviction is that of the whole gang, wherever its members run:

    members on the node, most important first:  [ needed for the minimum ][ spare ]
                                                   one unit: evicted with    reprieved one by one,
                                                   the whole gang            after the unit

This holds for gangs with `mode = whole`. With `gate`, and once `best_effort` has placed a part, members are single pods.
With `disruption = all` no member is spare, with `single` all are single pods.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from policysched.cluster.disruption_budgets import ViolationCounter, split_by_budget
from policysched.evaluate import VictimOrder
from policysched.lang.ir.program import DisruptionMode, GangMode, OnTimeout
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps

Value = TypeVar("Value")
_MEMBERS_PER_STEP = 100


@dataclass(frozen=True, slots=True, eq=False)
class RunningGang:
    """The placed `members` of a gang, without those that are being evicted, and how many must stay. Those that are `doubtful` may
    leave or stay, as an eviction for another namespace is not answered: nothing else is spared for them, and a gang that goes whole
    goes with them. Valid for one search, which visits the members a few times and not for each node: `once` remembers what it
    learns of them."""

    members: Mapping[PodUid, Pod]
    minimum: int
    doubtful: Collection[PodUid] = frozenset()
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def spare_count(self) -> int:
        """Beside the doubtful ones."""
        return max(0, len(self.members) - len(self.doubtful) - self.minimum)

    def once(self, what: str, compute: Callable[[Collection[Pod]], Value]) -> Value:
        """What `compute` returns for the members. It is called the first time."""
        if what not in self._known:
            self._known[what] = compute(self.members.values())
        value: Value = self._known[what]
        return value

    def in_parts(self) -> Iterator[list[Pod]]:
        """The members, as many at once as a piece of a search visits."""
        members = list(self.members.values())
        return (
            members[start : start + _MEMBERS_PER_STEP] for start in range(0, len(members), _MEMBERS_PER_STEP)
        )

    def remember(self, what: str, value: object) -> None:
        """What `once` is to return."""
        self._known[what] = value

    def remembers(self, what: str) -> bool:
        return what in self._known

    @property
    def highest_priority(self) -> int:
        return self.once("priority", lambda pods: max(pod.priority for pod in pods))


GangOf = Callable[[Pod], RunningGang | None]
"""The running gang that keeps its minimum together with this pod; None: the pod is evicted by itself."""


class RunningGangs:
    """Running gangs for one search, while the cluster does not change. `is_leaving`: a pod's eviction is decided, and the preemptor
    can count on it. `may_leave`: anybody evicts it."""

    def __init__(
        self,
        core: SchedulerCore,
        is_leaving: Callable[[PodUid], bool],
        may_leave: Callable[[PodUid], bool],
    ) -> None:
        self._core = core
        self._is_leaving, self._may_leave = is_leaving, may_leave
        self._known: dict[PodUid, RunningGang | None] = {}

    def __call__(self, pod: Pod) -> RunningGang | None:
        if pod.uid not in self._known:
            self._known[pod.uid] = None
            gang = self._find(pod)
            if gang is not None and pod.uid in gang.members:
                self._known |= dict.fromkeys(gang.members, gang)
        return self._known[pod.uid]

    def _find(self, pod: Pod) -> RunningGang | None:
        """Not asked again for members of a gang that was found."""
        gang = self._core.gangs.gang_of(pod.uid)
        if gang is None:
            return self._group_of_another_scheduler(pod)
        if not keeps_minimum(gang) or self._is_leaving(pod.uid):
            return None
        pods = self._core.cache.pods
        members = {uid: pods[uid].pod for uid in gang.placed_members if not self._is_leaving(uid)}
        return self._running(members, len(members) if gang.disruption is DisruptionMode.ALL else gang.minimum)

    def _group_of_another_scheduler(self, pod: Pod) -> RunningGang | None:
        """The PodGroup of a pod that no running policy counts in a gang, if the group requests to be preempted together."""
        if pod.group is None or pod.group.disruption != "all" or self._is_leaving(pod.uid):
            return None
        named = (observed.pod.uid for observed in self._core.cache.pod_groups.members(pod.group.key))
        placed = (self._core.cache.ledger.placement(uid) for uid in named)
        members = {placement.pod.uid: placement.pod for placement in placed if placement is not None}
        members = {uid: member for uid, member in members.items() if not self._is_leaving(uid)}
        return self._running(members, len(members))

    def _running(self, members: Mapping[PodUid, Pod], minimum: int) -> RunningGang | None:
        """None for one pod: whole or by itself is the same. A gang of which others evict all, or too much, counts as if nobody did:
        if they are refused, what is left has to be enough."""
        doubtful = frozenset(filter(self._may_leave, members))
        if len(members) - len(doubtful) < minimum:
            doubtful = frozenset()
        return RunningGang(members, minimum, doubtful) if len(members) > 1 else None


def keeps_minimum(gang: QueuedGang) -> bool:
    """Whether a gang is evicted whole or keeps its minimum; otherwise its members are single pods as victims."""
    if gang.disruption is not DisruptionMode.MINIMUM:
        return gang.disruption is DisruptionMode.ALL
    is_partial = gang.best_effort or (
        gang.on_timeout is OnTimeout.BEST_EFFORT and len(gang.placed_members) < gang.minimum
    )
    return gang.mode is GangMode.WHOLE and not is_partial


def keeps_too_few(
    core: SchedulerCore, victims: Collection[Pod], is_leaving: Callable[[PodUid], bool]
) -> bool:
    """Whether a gang of the victims, which are leaving, would keep members, and fewer than it needs."""
    gangs = [(victim, core.gangs.gang_of(victim.uid)) for victim in victims]
    counted = {gang.id: gang for _, gang in gangs if gang is not None and keeps_minimum(gang)}
    for gang in counted.values():
        left = sum(not is_leaving(uid) for uid in gang.placed_members)
        if left and (left < gang.minimum or gang.disruption is DisruptionMode.ALL):
            return True
    groups = [victim.group for victim, gang in gangs if gang is None and victim.group is not None]
    return any(
        core.cache.ledger.placement(observed.pod.uid) is not None and not is_leaving(observed.pod.uid)
        for key in {group.key for group in groups if group.disruption == "all"}
        for observed in core.cache.pod_groups.members(key)
    )


@dataclass(frozen=True, slots=True)
class VictimUnit:
    """Pods of a node that are reprieved or evicted together. `gang` is then evicted whole; `spare_of`: the pod is
    reprieved only if the members are that its gang needs."""

    pods: tuple[Pod, ...]
    gang: RunningGang | None = None
    spare_of: RunningGang | None = None


@dataclass(frozen=True, slots=True)
class ReprieveOrder:
    """The units of a node, in the order in which they are reprieved. `violating`: the pods of the node whose eviction
    violates a budget; `violations_elsewhere`: how many members on other nodes do, of a gang that is a unit."""

    units: tuple[VictimUnit, ...]
    violating: frozenset[PodUid]
    violations_elsewhere: Mapping[RunningGang, int]


def reprieve_order(
    pods: Iterable[Pod],
    gang_of: GangOf,
    budgets: Collection[DisruptionBudget],
    order: VictimOrder | None = None,
) -> ReprieveOrder:
    """Units that violate a budget come first, then the last ones by `order`, then the most important ones. Of two units
    with equal priority, a gang precedes a pod, and a large gang a small one. `pods`: the evictable ones of a node, most
    important first.
    """
    in_order = list(pods)
    units = victim_units(in_order, gang_of)
    left: dict[int, int] = {}
    first, _ = split_by_budget(in_order, budgets, left)
    violating = frozenset(pod.uid for pod in first)
    uids_on_node = {pod.uid for pod in in_order}
    elsewhere: dict[RunningGang, int] = {}
    for gang in [unit.gang for unit in units if unit.gang is not None]:
        counter = gang.once("budgets", lambda members: ViolationCounter(members, budgets))
        elsewhere[gang] = counter.evict(uids_on_node, left)

    def violates(unit: VictimUnit) -> bool:
        if unit.gang is None:
            return unit.pods[0].uid in violating
        return elsewhere[unit.gang] > 0 or any(uid in unit.gang.members for uid in violating)

    def importance(unit: VictimUnit) -> tuple[int, int]:
        if unit.gang is None:
            return -unit.pods[0].priority, -1
        return -unit.gang.highest_priority, -len(unit.gang.members)

    units.sort(key=importance)
    if order is not None:
        units.sort(key=lambda unit: _last_in_order(unit, order), reverse=True)
    units.sort(key=violates, reverse=True)
    return ReprieveOrder(tuple(units), violating, elsewhere)


def _last_in_order(unit: VictimUnit, order: VictimOrder) -> tuple[Any, ...]:
    if unit.gang is None:
        return order(unit.pods[0])
    return unit.gang.once("order", lambda members: max(map(order, members)))


def victim_units(in_order: Sequence[Pod], gang_of: GangOf) -> list[VictimUnit]:
    """The units of a node, in order of their first pods."""
    units: list[VictimUnit] = []
    members_by_gang: dict[RunningGang, list[Pod]] = {}
    for pod in in_order:
        gang = gang_of(pod)
        if gang is None:
            units.append(VictimUnit((pod,)))
        else:
            members_by_gang.setdefault(gang, []).append(pod)
    for gang, members in members_by_gang.items():
        staying = [pod for pod in members if pod.uid not in gang.doubtful]
        needed = staying[: max(0, len(staying) - gang.spare_count)]
        needed_uids = {pod.uid for pod in needed}
        spare = [pod for pod in members if pod.uid not in needed_uids]
        if needed:
            units.append(VictimUnit(tuple(needed), gang=gang))
        units += [VictimUnit((pod,), spare_of=gang if needed else None) for pod in spare]
    position = {pod.uid: index for index, pod in enumerate(in_order)}
    return sorted(units, key=lambda unit: position[unit.pods[0].uid])


class EvictablePods:
    """Which pods of a node may be victims. Of a gang with a member that may not be evicted, wherever it runs, only as
    many members may be as the gang can spare. `by_node`: what is known of nodes that have not changed since. `in_order`: those of
    the `ordered_nodes` with such pods, each after the least disruption of an eviction there (and 0), sorted. `ask`: learns in pieces
    what is asked next, if that `is_slow`."""

    def __init__(
        self,
        may_evict: Callable[[Pod], bool],
        ask: Callable[[Iterable[Pod]], Steps[None]] | None = None,
    ) -> None:
        self._may_evict = may_evict
        self._ask, self.is_slow = ask, ask is not None
        self._known: dict[PodUid, bool] = {}
        self.by_node: dict[NodeName, list[Pod]] = {}
        self.ordered_nodes: set[NodeName] = set()
        self.in_order: list[tuple[Any, NodeName, int]] = []
        self._evictable_whole: dict[RunningGang, bool] = {}

    def may_evict(self, pod: Pod) -> bool:
        """By itself. Members of gangs are asked about on their nodes, and for their gangs."""
        known = self._known.get(pod.uid)
        if known is None:
            known = self._known[pod.uid] = self._may_evict(pod)
        return known

    def ask(self, pods: Iterable[Pod]) -> Steps[None]:
        """Learn in pieces what is asked about these pods next."""
        if self._ask is not None:
            yield from self._ask([pod for pod in pods if pod.uid not in self._known])

    def forget(self, nodes: Collection[NodeName]) -> None:
        """These changed: pods were added or removed, or others of their gangs were. About those that stay nothing is asked again."""
        for node in nodes:
            self.by_node.pop(node, None)
        self.ordered_nodes.difference_update(nodes)
        self.in_order = [entry for entry in self.in_order if entry[1] not in nodes]

    def forget_answers(self) -> None:
        """Of a search that paused: the pods may have other labels by now."""
        self._known.clear()

    def without_needed_members(self, pods: list[Pod], gang_of: GangOf) -> Steps[list[Pod]]:
        """Leave out what a gang has to keep. `pods`: of a node, evictable by themselves, most important first."""
        gangs = list(map(gang_of, pods))
        if not any(gangs):
            return pods
        spare_left: dict[RunningGang, int] = {}
        kept: list[Pod] = []
        for pod, gang in zip(reversed(pods), reversed(gangs), strict=True):
            # The least important members are the spare ones.
            is_kept = gang is not None and pod.uid not in gang.doubtful
            if gang is not None and is_kept and not (yield from self._may_go_whole(gang)):
                left = spare_left[gang] = spare_left.get(gang, gang.spare_count) - 1
                if left < 0:
                    continue
            kept.append(pod)
        return kept[::-1]

    def _may_go_whole(self, gang: RunningGang) -> Steps[bool]:
        if gang not in self._evictable_whole:
            self._evictable_whole[gang] = True
            for some in gang.in_parts():
                yield from self.ask(some)
                if not all(map(self.may_evict, some)):
                    self._evictable_whole[gang] = False
                    break
                yield 1 + len(some) // 4  # asking is cheaper than removing
        return self._evictable_whole[gang]


def no_gang(pod: Pod) -> RunningGang | None:
    """`GangOf` for a cluster without gangs."""
    del pod
    return None
