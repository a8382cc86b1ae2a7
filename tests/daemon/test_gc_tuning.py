"""A full collection of garbage visits what is new, not the whole cluster."""

import gc
from collections.abc import Callable, Iterator, Mapping
from threading import Thread

import pytest

from policysched import gc_tuning

COUNT = 5_000


class Cyclic:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(gc_tuning._freeze_survivors)


def visited() -> int:
    """How many objects a full collection would visit."""
    return len(gc.get_objects())


def cyclic_count() -> int:
    return sum(type(value) is Cyclic for value in gc.get_objects())


def test_objects_of_the_start_are_not_visited() -> None:
    kept = [[index] for index in range(COUNT)]

    gc_tuning.keep_collections_short()

    assert visited() < COUNT < len(kept) + 1


def test_objects_that_survived_a_full_collection_are_not_visited_again() -> None:
    gc_tuning.keep_collections_short()
    kept = [[index] for index in range(COUNT)]
    before = visited()

    gc.collect()

    assert before > COUNT > visited()
    assert len(kept) == COUNT


def test_garbage_is_freed_by_the_next_full_collection() -> None:
    gc_tuning.keep_collections_short()
    for _ in range(COUNT):
        Cyclic()
    before = cyclic_count()

    gc.collect()

    assert before > 0
    assert cyclic_count() == 0


def test_cycles_that_end_after_a_full_collection_are_freed_by_collect_all() -> None:
    gc_tuning.keep_collections_short()
    value = Cyclic()
    gc.collect()
    del value
    gc.collect()
    gc.unfreeze()
    left = cyclic_count()

    gc_tuning.collect_all()
    gc.unfreeze()

    assert (left, cyclic_count()) == (1, 0)


def test_twice_is_as_once() -> None:
    gc_tuning.keep_collections_short()
    gc_tuning.keep_collections_short()

    assert gc.callbacks.count(gc_tuning._freeze_survivors) == 1


def test_a_large_object_that_is_kept_is_not_visited() -> None:
    gc_tuning.keep_collections_short()
    with gc_tuning.allocated_for_long():
        kept = [[index] for index in range(COUNT)]

    assert visited() < COUNT == len(kept)
    assert gc.isenabled()


def test_nothing_is_collected_for_a_large_object_and_cycles_are_freed_later() -> None:
    gc_tuning.keep_collections_short()
    for _ in range(COUNT // 100):
        Cyclic()
    generations: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    with gc_tuning.allocated_for_long():
        kept = [[index] for index in range(COUNT)]
    gc.callbacks.remove(note)
    gc_tuning.collect_all()

    assert generations == [] and len(kept) == COUNT
    assert cyclic_count() == 0


def test_what_another_thread_decodes_is_not_visited() -> None:
    gc_tuning.keep_collections_short()
    collections: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        collections.append(info["generation"])

    with gc_tuning.allocated_for_long():
        kept = [[index] for index in range(COUNT)]
        gc.callbacks.append(note)
        thread = Thread(target=decode_another)
        thread.start()
        thread.join()
        kept += [[index] for index in range(COUNT)]
    gc.callbacks.remove(note)

    assert collections == [] and len(kept) == 2 * COUNT
    assert gc.isenabled()


def decode_another() -> None:
    with gc_tuning.allocated_for_long():
        pass


def test_before_the_first_lists_are_read_nothing_is_frozen() -> None:
    gc_tuning.keep_collections_short()
    gc.callbacks.remove(gc_tuning._freeze_survivors)
    before = gc.get_freeze_count()
    with gc_tuning.allocated_for_long():
        kept = [[index] for index in range(COUNT)]
    gc.callbacks.append(gc_tuning._freeze_survivors)

    assert gc.get_freeze_count() <= before < len(kept) + before


FULL_VISITS_MAX = 30_000
"""Objects of a full collection: at 150 ns each, a slice of the main loop."""


def most_visited(begin: Callable[[], None]) -> int:
    """The most objects that one full collection visits while a cluster grows that was large already. The next one counts, too:
    where it is put off for long, as in a test process with many objects, there may be no other."""
    visits: list[int] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            visits.append(visited())

    before = [[number] for number in range(40 * COUNT)]
    gc.collect()
    begin()
    gc.callbacks.append(note)
    kept = [{"labels": {"app": [number]}} for number in range(20 * COUNT)]
    gc.callbacks.remove(note)

    assert len(before) + len(kept) == 60 * COUNT
    return max(*visits, visited(), 0)


def begin_again() -> None:
    gc_tuning.keep_collections_short()
    gc_tuning.collect_all()


@pytest.mark.parametrize("begin", [gc_tuning.keep_collections_short, begin_again])
def test_a_full_collection_visits_no_more_than_a_slice_allows(begin: Callable[[], None]) -> None:
    assert most_visited(begin) <= FULL_VISITS_MAX


BUGS = {
    "the thresholds are high": ("SHORT_THRESHOLDS", (10_000, 3, 1)),
    "the survivors of the start count": ("_forget_survivor_count", lambda: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_tuning, *BUGS[bug])

    assert most_visited(begin_again) > FULL_VISITS_MAX
