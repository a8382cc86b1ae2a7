"""Small stories, each with a bug planted: who watches over it must say so in the very words, and without the bug nothing."""

import re
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation import (
    stories_decisions,
    stories_devices,
    stories_leaders,
    stories_liveness,
    stories_volumes,
)
from tests.simulation.stories import Told
from tests.simulation.story import Story, told

TOLD: tuple[Told, ...] = (
    *stories_liveness.TOLD,
    *stories_decisions.TOLD,
    *stories_devices.TOLD,
    *stories_leaders.TOLD,
    *stories_volumes.TOLD,
)
STORIES = list(dict.fromkeys(one.story for one in TOLD))


@pytest.mark.parametrize("one", TOLD, ids=lambda one: f"{one.bug.__name__}-{one.story.__name__}")
def test_the_story_says_in_the_words_of_its_invariant_that(one: Told) -> None:
    with one.bug():
        world = told(one.story)

    assert any(re.search(one.says, words) for words in world.wrong), _short(world)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: str(story.__name__))
def test_without_a_bug_nothing_is_wrong_in(story: Callable[[Story], Awaitable[None]]) -> None:
    world = told(story)

    assert world.wrong == []


def _short(world: Story) -> str:
    return "\n".join([f"said: {world.wrong}", *world.trace[-20:]])
