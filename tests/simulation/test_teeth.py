"""Planted bugs, one at a time, each of which some seed must catch: a simulation that finds nothing proves nothing.

Each has to be caught by the invariant that it is planted for, in the words of that one: that something else stumbles
over it as well is no proof that the invariant bites.
"""

import pytest

from tests.simulation import world
from tests.simulation.bugs import PLANTED, SHOWN_BY, Plant, says

SEEDS_MOST = 240
"""Where a planted bug is not found by then, the simulation has lost a tooth."""


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_some_seed_says_in_the_words_of_its_invariant_that(bug: Plant) -> None:
    world.good_programs()  # what checks is settled before anything is planted
    seeds = dict.fromkeys([*SHOWN_BY.get(bug, ()), *range(SEEDS_MOST)])

    with bug():
        caught = next((seed for seed in seeds if says(bug, seed)), None)

    assert caught is not None, f"none of {SEEDS_MOST} seeds says `{PLANTED[bug]}` of {bug.__name__}"
