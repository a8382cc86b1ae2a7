"""The second search for a gang with unequal members that did not fit in queue order: the most demanding first, with
backtracking.

    next member ──► a node? ── yes ──► placed on the overlay ──► next member
        ▲              └── no ──► may it be left out? ── yes ──► next member
        │                               └── no ──► the latest placed member gives its node back, and
        └───────────────────────────────────────── tries its next best node

Depth-first: of each member the nodes are tried from the best to the worst. A placement that equals an
earlier one, but for members of one equivalence class in exchange, is not tried again. The setting
`gang_backtracks_max` limits how many nodes one attempt takes back, and with them the cost of evaluating
members in vain or again. Before each evaluation the attempt may pause, if the trial can follow the cluster.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Protocol, TypeVar

from policysched.evaluate import NodeSelection, RemainingNodes, TopologyDomain
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.attempt_result import AttemptFailure, AttemptSuccess
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps

_BACKTRACK_COST, _BACKTRACKS_MIN = 300, 100
"""About ten evaluations for each node that may be taken back, as many as for a hundred at least: 0.3 s."""
_PLACING_COST = 800
"""For each node that may be taken back, in a domain, if the search must not pause: 0.8 s for a hundred. It counts members that get
a node, too, which count for nothing else and take about 1 ms each where they evict pods, on 1,000 nodes."""
_PLACE_AGAIN_COST = 5
_SKIP_COST = 1
_HAS_LEFT = AttemptFailure("Unschedulable", "", 0, {}, frozenset(), None)
_OTHERS_FIRST = replace(_HAS_LEFT)
"""Members before it have lost their nodes."""

Value = TypeVar("Value")
Fits = list[tuple[PendingPod, AttemptSuccess]]


class PlacementTrial(Protocol):
    """A hypothetical cluster on which members are placed and taken back."""

    def reset(self) -> None:
        """Take back all members."""

    def pause(self, pod: PendingPod) -> Steps[bool]:
        """The attempt may pause before the member is evaluated. Returns whether the cluster has changed: members that failed may
        fit now. Those that are placed still have their nodes, but for those of `take_lost`, or the attempt is given up."""

    def take_lost(self) -> Collection[PodUid]:
        """The members that have lost their nodes since the last call: they are not on the trial any more."""

    def is_pending(self, pod: PendingPod) -> bool:
        """False: the member left in a pause."""

    def evaluate_in_steps(
        self, pod: PendingPod, nodes: NodeSelection | None
    ) -> Steps[AttemptSuccess | AttemptFailure]:
        """A node for the member, beside those that are placed; None of `nodes`: all."""

    def place(self, pod: PendingPod, success: AttemptSuccess) -> Steps[AttemptSuccess]:
        """Place the member on its node. Returns the result, completed."""

    def take_back(self, pod: PendingPod, success: AttemptSuccess) -> bool:
        """Take back the latest member. False: only `reset` can, and the others are placed again."""


@dataclass(slots=True)
class BacktrackLimit:
    """How many nodes the searches of one attempt may still take back, and what evaluating members in vain, or again, may
    cost. `exceeded`: one ended early for that. `depth`: of so many members the first placement was free. `placing_cost_max`:
    of one search that does not pause, with the members that it places."""

    left: int
    exceeded: bool = False
    cost_left: int = field(init=False)
    placing_cost_max: int = field(init=False)
    depth: int = 0

    def __post_init__(self) -> None:
        backtracks = max(self.left, _BACKTRACKS_MIN)
        self.cost_left = _BACKTRACK_COST * backtracks
        self.placing_cost_max = _PLACING_COST * backtracks

    def take(self) -> bool:
        if not self.left:
            self.exceeded = True
            return False
        self.left -= 1
        return True

    def spend(self, cost: int = 0) -> bool:
        """Whether there is something left for it."""
        if self.is_spent:
            self.exceeded = True
            return False
        self.cost_left -= cost
        return True

    @property
    def is_spent(self) -> bool:
        return self.cost_left <= 0

    def at_most(self, cost_max: int, steps: Steps[Value]) -> Steps[Value | None]:
        """The same steps, or None once they have cost more: others wait for them. The limit is exceeded then."""
        while True:
            try:
                cost = next(steps)
            except StopIteration as end:
                value: Value = end.value
                return value
            cost_max -= cost
            if cost_max < 0:
                steps.close()
                self.exceeded = True
                return None
            yield cost

    def count(self, steps: Steps[Value]) -> Steps[Value]:
        """The same steps; what they cost is spent."""
        while True:
            try:
                cost = next(steps)
            except StopIteration as end:
                value: Value = end.value
                return value
            self.cost_left -= cost
            yield cost


@dataclass(slots=True)
class _Choice:
    """The decision about one member: its node, or None if it is left out, and the nodes that were tried before."""

    result: AttemptSuccess | None = None
    tried: set[NodeName] = field(default_factory=set)


@dataclass(slots=True)
class BacktrackingSearch:
    """One search. The `trial` has no member on it. `place_max`: no more members are placed (None: any number)."""

    members: Sequence[PendingPod]
    equivalence_keys: Mapping[PodUid, Hashable]
    needed_count: int
    place_max: int | None
    domain: TopologyDomain | None
    limit: BacktrackLimit
    trial: PlacementTrial
    _choices: list[_Choice] = field(default_factory=list)
    _placed_count: int = 0
    _state: int = 0  # the sum of `_hash` over the placed members
    _class_numbers: dict[Hashable, int] = field(default_factory=dict)
    _seen: set[tuple[int, int]] = field(default_factory=set)
    _failures: dict[Hashable, AttemptFailure] = field(default_factory=dict)
    """By class, beside the members that are placed now."""

    def run(self) -> Steps[Fits | None]:
        """The members with their nodes, at least as many as needed; None: no such placement was found."""
        trial, choice = self.trial, _Choice()
        while not self._is_complete():
            pod = self.members[len(self._choices)]
            result = yield from self._evaluate(pod, choice)
            if result is None:
                return None
            if result is _OTHERS_FIRST:
                choice = _Choice()
            elif isinstance(result, AttemptSuccess):
                if self._is_new(pod, result.node):
                    choice.result = yield from trial.place(pod, result)
                    self._choices.append(choice)
                    self._failures.clear()
                    self._placed_count += 1
                    self._state += self._hash(pod, result.node)
                    choice = _Choice()
                elif self.limit.take():
                    choice.tried.add(result.node)
                else:
                    return None
            elif self._may_leave_out():
                self._choices.append(_Choice())
                choice = _Choice()
            else:
                taken_back = self._take_back()
                if taken_back is None or not self.limit.take():
                    return None
                choice, member, success = taken_back
                self._failures.clear()
                if not trial.take_back(member, success):
                    yield from self._rebuild_trial()
                    self.limit.cost_left -= _PLACE_AGAIN_COST * len(self._choices)
                    yield len(self._choices)
        return self._fits()

    def _evaluate(self, pod: PendingPod, choice: _Choice) -> Steps[AttemptSuccess | AttemptFailure | None]:
        """The next member, on the nodes that were not tried. None: the limit does not allow it."""
        key, depth, limit = self.equivalence_keys[pod.uid], len(self._choices), self.limit
        if not choice.tried and (failure := self._failures.get(key)) is not None:
            yield _SKIP_COST
            return failure
        if (yield from self.trial.pause(pod)):
            self._failures.clear()
        if lost := self.trial.take_lost():
            self._place_again(lost)
            return _OTHERS_FIRST
        if not self.trial.is_pending(pod):
            return _HAS_LEFT
        cost_left = limit.cost_left
        if not limit.spend():
            return None
        result = yield from limit.count(self.trial.evaluate_in_steps(pod, self._untried(choice)))
        if depth >= limit.depth and isinstance(result, AttemptSuccess):
            limit.depth, limit.cost_left = depth + 1, cost_left
        if isinstance(result, AttemptFailure) and not choice.tried:
            self._failures[key] = result
        return result

    def _is_complete(self) -> bool:
        return len(self._choices) == len(self.members) or self._placed_count == self.place_max

    def _untried(self, choice: _Choice) -> NodeSelection | None:
        return RemainingNodes(self.domain, frozenset(choice.tried)) if choice.tried else self.domain

    def _is_new(self, pod: PendingPod, node: NodeName) -> bool:
        """Whether no earlier placement of the members so far is the same but for equal members in exchange."""
        state = len(self._choices), self._state + self._hash(pod, node)
        if state in self._seen:
            return False
        self._seen.add(state)
        return True

    def _hash(self, pod: PendingPod, node: NodeName) -> int:
        """128 well mixed bits, whose sum over members identifies a placement. Sums of `hash(tuple)` collide."""
        class_number = self._class_numbers.setdefault(
            self.equivalence_keys[pod.uid], len(self._class_numbers)
        )
        return int.from_bytes(blake2b(f"{class_number} {node}".encode(), digest_size=16).digest())

    def _may_leave_out(self) -> bool:
        left_out = len(self._choices) - self._placed_count
        return left_out < len(self.members) - self.needed_count

    def _take_back(self) -> tuple[_Choice, PendingPod, AttemptSuccess] | None:
        """The latest choice of a node, now among those tried, with its member and result. None: there is none."""
        while self._choices:
            choice = self._choices.pop()
            if choice.result is not None:
                result, member = choice.result, self.members[len(self._choices)]
                self._placed_count -= 1
                self._state -= self._hash(member, result.node)
                choice.tried.add(result.node)
                choice.result = None
                return choice, member, result
        return None

    def _place_again(self, lost: Collection[PodUid]) -> None:
        """These members are next. They cost nothing of the limit, as when they were placed first."""
        choices = list(zip(self.members, self._choices, strict=False))
        again = [(member, choice) for member, choice in choices if member.uid in lost]
        kept = [(member, choice) for member, choice in choices if member.uid not in lost]
        for member, choice in again:
            assert choice.result is not None, f"{member} has no node"
            self._placed_count -= 1
            self._state -= self._hash(member, choice.result.node)
        others = self.members[len(choices) :]
        self.members = [*(member for member, _ in kept), *(member for member, _ in again), *others]
        self._choices = [choice for _, choice in kept]
        self.limit.depth = min(self.limit.depth, len(kept))

    def _rebuild_trial(self) -> Steps[None]:
        self.trial.reset()
        for pod, result in self._fits():
            yield from self.trial.place(pod, result)

    def _fits(self) -> Fits:
        return [
            (pod, choice.result)
            for pod, choice in zip(self.members, self._choices, strict=False)
            if choice.result is not None
        ]
