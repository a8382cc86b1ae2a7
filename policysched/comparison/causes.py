"""Which changes of a policy a pod's change follows from.

A *cause* is a smallest set of changes such that the old policy with these changes alone does to the pod what the new
policy does to it. It is found by simulation: first with each change alone, then with each two, and so on, until
every changed pod has a cause. A mixture that has errors (a rule without the `let` that it reads) is no policy and
is passed over. Several sets of the same size may each be a cause. All changes together are the new policy, so a cause
always exists; where it is not found within `runs_max` simulations, it is unknown.

The definition covers what follows from an edit as well as its direct effect: a pod that moves because another pod took its
node has the same cause as that pod.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from policysched.comparison.outcomes import Outcomes, PodChange, is_same_change, pod_changes

ChangeSet = frozenset[int]
"""Numbers of changes of the policy."""

RunMixtures = Callable[[Sequence[ChangeSet]], Iterator[Outcomes | None]]
"""Simulates the old policy with each of the sets, in their order; None: such a policy has errors."""


def find_causes(
    change_numbers: Sequence[int],
    before: Outcomes,
    changed: Mapping[str, PodChange],
    run_mixtures: RunMixtures,
    *,
    runs_max: int,
) -> dict[str, tuple[ChangeSet, ...]]:
    """The causes of each changed pod; empty where they are unknown. A pod changed by the order alone (equal to no set)
    has all changes as its cause."""
    everything = frozenset(change_numbers)
    causes: dict[str, tuple[ChangeSet, ...]] = {}
    unexplained, runs_left = set(changed), runs_max
    for size in range(1, len(everything)):
        sets = [frozenset(chosen) for chosen in combinations(change_numbers, size)]
        if not unexplained:
            break
        if len(sets) > runs_left:
            return causes | dict.fromkeys(unexplained, ())
        runs_left -= len(sets)
        causes_of_size: dict[str, list[ChangeSet]] = {}
        for chosen, result in zip(sets, run_mixtures(sets), strict=True):
            if result is None:
                continue
            alone = pod_changes(before, result)
            for pod in unexplained:
                if is_same_change(alone.get(pod), changed[pod]):
                    causes_of_size.setdefault(pod, []).append(chosen)
        causes |= {pod: tuple(chosen) for pod, chosen in causes_of_size.items()}
        unexplained -= causes_of_size.keys()
    return causes | dict.fromkeys(unexplained, (everything,))
