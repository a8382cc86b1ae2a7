"""Host ports and disks of a node: what a pod changes costs as much as the pod has of them, not as the node has."""

from collections.abc import Callable
from random import Random

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.cluster.counted_set import CountedSet
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, pod, world
from tests.evaluate.test_hostile import calls_of
from tests.evaluate.test_pod_affinity import Harness


def test_the_set_is_that_of_the_counts_whatever_was_added_and_taken_away() -> None:
    random = Random("counted set")
    counted, reference = CountedSet[int](), list[int]()
    copies = []
    for _ in range(2_000):
        item = random.randrange(20)
        if random.random() < 0.5:
            counted.add([item, item], 1)
            reference += [item, item]
        elif item in reference:
            counted.add([item], -1)
            reference.remove(item)
        if random.random() < 0.3:
            assert counted.items == frozenset(reference)
        if random.random() < 0.02:
            copies.append((counted.copy(), frozenset(reference)))

    assert all(copy.items == items for copy, items in copies)


def test_copies_change_apart() -> None:
    counted = CountedSet[int]()
    counted.add([1], 1)
    copy = counted.copy()
    copy.add([2], 1)
    counted.add([1], -1)

    assert (counted.items, copy.items) == (frozenset(), {1, 2})
    assert CountedSet[int]().items == frozenset() and CountedSet[int]() == counted


def test_the_set_stays_the_same_object_while_its_items_do() -> None:
    counted = CountedSet[int]()
    counted.add([1, 2], 1)
    before = counted.items
    counted.add([1], 1)
    counted.add([3], 1)
    counted.add([3], -1)

    assert counted.items is before


def with_ports(name: str, first: int, count: int) -> Pod:
    ports = [{"containerPort": 1, "hostPort": first + number} for number in range(count)]
    return pod(name, spec={"containers": [{"name": "c", "image": "i", "ports": ports}]})


def with_disks(name: str, first: int, count: int) -> Pod:
    disks = [{"name": f"v{n}", "gcePersistentDisk": {"pdName": f"disk-{first + n}"}} for n in range(count)]
    return pod(name, spec={"volumes": disks})


@pytest.mark.parametrize("made", [with_ports, with_disks], ids=["ports", "disks"])
def test_a_pod_on_a_node_with_thousands_costs_as_much_as_on_one_with_few(
    made: Callable[[str, int, int], Pod],
) -> None:
    """To hash 70,000 ports of a node again took 50 ms for each pod that came or went."""

    def calls(placed_each: int) -> int:
        cache: ClusterCache = world([node("a", pods="200")])
        for number in range(10):
            cache.assume(made(f"p{number}", 1_000 * number + 1, placed_each), NodeName("a"))
        harness = Harness(cache)
        wants, more = made("wants", 20_000, 2), made("more", 20_000, 2)
        assert not rejected(harness, wants)

        def one_more() -> None:
            cache.assume(more, NodeName("a"))
            assert rejected(harness, wants)

        return calls_of(one_more)

    assert calls(500) < 1.5 * calls(2)


def rejected(harness: Harness, made: Pod) -> bool:
    verdict = harness.evaluator.evaluate(harness.plan, made, now_ns=0, facts=QueuedPodInfo(0, 0), samples={})
    return verdict.selected is None
