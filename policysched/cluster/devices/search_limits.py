"""How many steps a search for devices may take: on a node, in a slice, and in an attempt."""

from dataclasses import dataclass

DEVICES_MAX = 128
"""Devices that one pod may request, in all its claims."""
STEPS_MAX = 10_000
"""Devices considered for one pod on one node. A device with much to compare counts several times; a step takes about 4 µs."""

STEPS_EXCEEDED = f"the device search exceeded its limit of {STEPS_MAX} steps"
ATTEMPT_STEPS_MAX = 100_000
"""Steps on all nodes in one attempt of a pod, about 0.4 s."""
PIECE_STEPS = 100
"""After so many, a search on the nodes in their order can stop, about half a millisecond."""
SLICE_STEPS_MAX = 1_000
"""Those of a slice, about 5 ms. Others may be decided between two slices."""
GANG_SLICE_STEPS_MAX = 10_000
"""The same while members of a gang are placed: in each slice all of them are placed again."""
KEY_STEPS = 10
"""Those of a slice for a gang before that, beyond those for a pod, for each member: it takes about as long to begin a slice."""
RESTARTS_MAX = 2
"""Where devices that were read change before all nodes are searched, the search begins anew, so many times. Then it goes on with
what was found before the changes, so that it ends beside pods that get and release such devices all the time."""
CHARGED_STEPS = 10_000
"""The namespace pays for a slice of a new search. For one that is repeated, as devices of several nodes changed, from here on:
each pod that gets such a device changes them."""
NODE_STEPS = 5
"""A search on a node takes as long as so many steps more. They count for the slice, and not for the attempt."""
SLICES_PER_STEP, DEVICES_PER_STEP = 4, 64
"""The same for the slices that a node may be able to use, and for devices that are visited for it alone, when slices changed."""
SELECTORS_PER_STEP = 8
"""And for the results of selectors that tell which devices claims can get."""
MEMBER_STEPS_MAX = 100
"""Those of a slice for a gang beyond them, for each member: enough to search the nodes again that members changed."""
SEARCH_CONTINUES = (
    f"the device search continues in the next attempt (limit of one attempt: {ATTEMPT_STEPS_MAX} steps)"
)


@dataclass(slots=True)
class SearchAllowance:
    """Of one slice, and the attempt's share of later slices. `is_cut_off`: nodes were left out for lack of steps.
    `searches_again`: on nodes where the same was searched before, as devices changed that several nodes can use.
    `accepts_outdated`: results may be older than the last change, except of the node that is chosen; `accepted`: those with
    these numbers may, one for each text of claims that was searched so. A gang has several, and keeps them for its next slice.
    `steps_of_members`: those that the slice of a gang has beside, once its members are placed. `number`: of the slice. `refused`:
    why no later slice can end the search either."""

    steps_left: int = ATTEMPT_STEPS_MAX
    attempt_steps_left: int = 0
    is_cut_off: bool = False
    searches_again: bool = False
    accepts_outdated: bool = False
    accepted: frozenset[int] = frozenset()
    steps_of_members: int = 0
    number: int = 0
    refused: str | None = None

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        self.attempt_steps_left -= steps

    def refuse(self, why: str) -> None:
        self.refused, self.is_cut_off = self.refused or why, True
        self.steps_left = self.attempt_steps_left = 0
