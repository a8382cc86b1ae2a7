"""What happened to each pod in a simulation, and the pods for which two simulations differ."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from policysched.from_files.simulate import SimulationResult

OutcomeKind = Literal["placed", "pending", "evicted"]
ChangeKind = Literal[
    "moved", "newly_pending", "newly_placed", "newly_evicted", "no_longer_evicted", "reordered"
]

CHANGE_KINDS: tuple[ChangeKind, ...] = (
    "newly_pending",
    "newly_evicted",
    "moved",
    "newly_placed",
    "no_longer_evicted",
    "reordered",
)
"""In the order in which an operator wants to read them."""


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """`order`: the position among the placed pods, from 1; None: not placed. `message`: why the pod is pending."""

    kind: OutcomeKind
    node: str | None = None
    order: int | None = None
    score: int | None = None
    message: str = ""

    def record(self) -> dict[str, Any]:
        return {
            "outcome": self.kind,
            "node": self.node,
            "order": self.order,
            "score": self.score,
            "message": self.message or None,
        }


Outcomes = Mapping[str, PodOutcome]
"""By `namespace/name`, for the pods that were decided or evicted. A pod that is not in it keeps its node."""

KEPT = PodOutcome("placed")
"""A placed pod that was not evicted."""


@dataclass(frozen=True, slots=True)
class PodChange:
    """A pod whose outcome differs. A pod that is only decided earlier or later than the others is `reordered`."""

    pod: str
    kind: ChangeKind
    before: PodOutcome
    after: PodOutcome


def outcomes(result: SimulationResult) -> Outcomes:
    """The last thing that happened to each pod: a pod that was placed can be evicted for a later one."""
    outcome_by_pod = {
        placement.pod: PodOutcome("placed", placement.node, placement.order, placement.score)
        for placement in result.placements
    }
    outcome_by_pod |= {pod: PodOutcome("pending", message=message) for pod, message in result.pending}
    outcome_by_pod |= {pod: PodOutcome("evicted") for pod in result.preempted}
    return outcome_by_pod


def pod_changes(before: Outcomes, after: Outcomes) -> dict[str, PodChange]:
    """By pod, sorted. The reordered pods are the fewest whose removal leaves the others in the same order."""
    changed: dict[str, PodChange] = {}
    reordered = _out_of_order(before, after)
    for pod in sorted(before.keys() | after.keys()):
        old, new = before.get(pod, KEPT), after.get(pod, KEPT)
        kind = _kind_of(old, new)
        if kind is None and pod in reordered:
            kind = "reordered"
        if kind is not None:
            changed[pod] = PodChange(pod, kind, old, new)
    return changed


def is_same_change(first: PodChange | None, second: PodChange | None) -> bool:
    """Whether the same thing happens to the pod: the same node, pending in both, or out of order in both."""
    if first is None or second is None:
        return first is second
    return (first.kind, first.after.kind, first.after.node) == (
        second.kind,
        second.after.kind,
        second.after.node,
    )


def _kind_of(old: PodOutcome, new: PodOutcome) -> ChangeKind | None:
    if old.kind == new.kind:
        return "moved" if old.node != new.node else None
    if new.kind == "evicted":
        return "newly_evicted"
    if old.kind == "evicted":
        return "no_longer_evicted"
    return "newly_pending" if new.kind == "pending" else "newly_placed"


def _out_of_order(before: Outcomes, after: Outcomes) -> set[str]:
    """The pods placed in both that are outside a longest common subsequence of the two orders."""
    old_order, new_order = _placed_in_order(before), _placed_in_order(after)
    common = set(old_order) & set(new_order)
    position = {pod: number for number, pod in enumerate(pod for pod in old_order if pod in common)}
    return common - _longest_increasing([pod for pod in new_order if pod in common], position)


def _placed_in_order(outcomes: Outcomes) -> list[str]:
    placed = [(outcome.order, pod) for pod, outcome in outcomes.items() if outcome.order is not None]
    return [pod for _, pod in sorted(placed)]


def _longest_increasing(pods: Iterable[str], position: Mapping[str, int]) -> set[str]:
    """Patience sorting: a longest subsequence of the pods whose positions increase."""
    ends: list[int] = []  # the last position of the best subsequence of each length
    last: list[str] = []
    previous: dict[str, str | None] = {}
    for pod in pods:
        length = bisect_left(ends, position[pod])
        ends[length : length + 1] = [position[pod]]
        last[length : length + 1] = [pod]
        previous[pod] = last[length - 1] if length else None
    kept: set[str] = set()
    pod_at = last[-1] if last else None
    while pod_at is not None:
        kept.add(pod_at)
        pod_at = previous[pod_at]
    return kept
