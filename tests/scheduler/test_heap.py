"""The queue's heap: items that move and leave, against sorting a dict."""

from weakref import ref

from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.scheduler.queue.movable_heap import MovableHeap

ITEMS = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), ITEMS, st.integers(0, 5)),
        st.tuples(st.just("discard"), ITEMS, st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.just(0)),
        st.tuples(st.just("fill"), ITEMS, st.integers(0, 5)),
    ),
    max_size=200,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(STEPS)
def test_pop_returns_the_smallest_item_and_among_equals_the_oldest(steps: list[tuple[str, str, int]]) -> None:
    heap: MovableHeap[str] = MovableHeap()
    model: dict[str, tuple[int, int]] = {}

    for serial, (action, item, key) in enumerate(steps):
        match action:
            case "put":
                heap.put(item, key)
                model[item] = (key, serial)
            case "fill":
                heap.fill([(item, key)])
                model[item] = (key, serial)
            case "discard":
                heap.discard(item)
                model.pop(item, None)
            case _:
                expected = min(model, key=lambda item: model[item], default=None)
                assert heap.first() == expected
                assert heap.pop() == expected
                model.pop(expected or "", None)

        assert len(heap) == len(model)
        assert heap.first_key() == (min(model.values())[0] if model else None)


def test_a_removed_item_is_not_kept_alive_by_the_heap() -> None:
    heap: MovableHeap[int] = MovableHeap()
    for item in range(1_000):
        heap.put(item, 0)

    for item in range(999):
        heap.discard(item)

    assert len(heap._heap) < 100
    assert heap.pop() == 999


def test_removed_entries_do_not_accumulate() -> None:
    heap: MovableHeap[str] = MovableHeap()

    for turn in range(10_000):
        heap.put("a", turn)

    assert len(heap._heap) < 100


def test_a_removed_item_behind_others_is_released_at_once() -> None:
    """It may be a pod of megabytes, and what is before it may stay for hours."""
    heap: MovableHeap[object] = MovableHeap()
    heap.put("first", 0)
    large = frozenset(range(1_000))
    gone = ref(large)
    heap.put(large, 1)

    heap.discard(large)
    del large

    assert gone() is None
    assert heap.pop() == "first"
