"""Victims of a gang that are not needed any more once its search has ended, as room came free after they were chosen."""

from policysched.scheduler import events as e
from tests.builders import node, placed, pod
from tests.scheduler.test_evicting_pauses import decide_until_pause, finish, low, members, rig
from tests.scheduler.test_gang_placement import victims


def half_full_nodes(count: int, **more: object) -> list[object]:
    """Of each, a pod that may be evicted takes one half, and one that may not the other."""
    nodes: list[object] = [node(f"n{index}", cpu="4") for index in range(count)]
    evictable = [low(f"low{index}", f"n{index}", cpu="2", **more) for index in range(count)]
    kept = [low(f"kept{index}", f"n{index}", cpu="2", labels={"kept": "yes"}) for index in range(count)]
    return [*nodes, *evictable, *kept]


def test_a_victim_is_spared_if_other_pods_of_its_node_end_in_a_pause() -> None:
    """Of two nodes: the last member takes the room on one of them."""
    scheduler = rig(*half_full_nodes(6), *members(4, cpu_milli=1900))
    decide_until_pause(scheduler, 3)

    scheduler.handle(e.PodDeleted(pod("kept0").uid), e.PodDeleted(pod("kept1").uid))

    assert len(finish(scheduler)) == 4
    assert set(victims(scheduler)) == {"low0", "low2"}


def test_a_victim_is_spared_if_its_node_grows_in_a_pause() -> None:
    scheduler = rig(*half_full_nodes(6), *members(4, cpu_milli=1900))
    decide_until_pause(scheduler, 3)

    scheduler.observe(node("n0", cpu="6"), node("n1", cpu="6"))

    assert len(finish(scheduler)) == 4
    assert set(victims(scheduler)) == {"low0", "low2"}


def test_of_two_victims_that_of_the_lower_priority_is_still_evicted() -> None:
    pods = [
        low(f"{name}{index}", f"n{index}", cpu="1", priority=priority)
        for index in range(6)
        for name, priority in (("a", 1), ("b", 2))
    ]
    nodes = [node(f"n{index}", cpu="4") for index in range(6)]
    kept = [low(f"kept{index}", f"n{index}", cpu="2", labels={"kept": "yes"}) for index in range(6)]
    scheduler = rig(*nodes, *pods, *kept, *members(2, cpu_milli=1900))
    decide_until_pause(scheduler, 2)

    scheduler.observe(node("n0", cpu="5"))

    assert len(finish(scheduler)) == 2
    assert set(victims(scheduler)) == {"a0", "a1", "b1"}


def test_victims_are_evicted_where_what_ends_is_too_small() -> None:
    small = [low(f"s{index}", f"n{index}", cpu="0", labels={"kept": "yes"}) for index in range(6)]
    scheduler = rig(*half_full_nodes(6), *small, *members(4, cpu_milli=1900))
    decide_until_pause(scheduler, 3)

    scheduler.handle(*[e.PodDeleted(each.pod.uid) for each in small])

    assert len(finish(scheduler)) == 4
    assert len(victims(scheduler)) == 4


def test_a_victim_is_spared_if_a_gang_that_goes_whole_for_a_later_member_leaves_enough() -> None:
    labels = {"group": "running", "least": "2"}
    running = [
        placed(pod(f"r{index}", cpu=cpu, labels=labels, scheduler="running", priority=5), f"n{index}")
        for index, cpu in enumerate(("2", "4"))
    ]
    small, large = (
        pod(name, cpu=cpu, labels={"group": "g", "least": "2"}, priority=100)
        for name, cpu in (("g0", "1900m"), ("g1", "3900m"))
    )
    nodes = [node(f"n{index}", cpu="4") for index in range(2)]
    scheduler = rig(*nodes, *running, low("low", "n0", cpu="2"), small, large)

    assert finish(scheduler) == {"g0": "n0", "g1": "n1"}
    assert set(victims(scheduler)) == {"r0", "r1"}
