"""`preemption { order = ... }`: which victims go first, beside budgets and gangs."""

from policysched.scheduler import commands as c
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

RESOURCES = "policy test version 1\nfilter node_resources_fit\n"
SPOT_FIRST = RESOURCES + 'preemption { victims = own  order = [victim.labels["spot"], victim.priority] }\n'
GANG = 'gang by pod.labels["gang"] { min = 2  timeout = 2h }\n'


def victims(rig: Rig) -> list[str]:
    return sorted(victim.name for eviction in rig.of(c.Evict) for victim in eviction.victims)


def test_the_order_decides_on_a_node_and_pods_without_the_value_go_last() -> None:
    rig = Rig(
        SPOT_FIRST,
        node("a", cpu="4"),
        placed(pod("plain", cpu="2", priority=1), "a"),
        placed(pod("spot", cpu="2", priority=5, labels={"spot": "yes"}), "a"),
        pod("urgent", cpu="2", priority=100),
    )

    rig.settle()

    assert victims(rig) == ["spot"]


def test_the_order_decides_between_nodes_before_priorities() -> None:
    rig = Rig(
        SPOT_FIRST,
        node("a", cpu="4"),
        node("b", cpu="4"),
        placed(pod("plain", cpu="3", priority=1), "a"),
        placed(pod("spot", cpu="3", priority=5, labels={"spot": "yes"}), "b"),
        pod("urgent", cpu="3", priority=100),
    )

    rig.settle()

    assert victims(rig) == ["spot"]


def test_equal_victims_go_in_kube_schedulers_order() -> None:
    rig = Rig(
        SPOT_FIRST.replace(", victim.priority", ""),
        node("a", cpu="4"),
        placed(pod("higher", cpu="2", priority=5), "a"),
        placed(pod("lower", cpu="2", priority=1), "a"),
        pod("urgent", cpu="2", priority=100),
    )

    rig.settle()

    assert victims(rig) == ["lower"]


def test_a_gang_also_evicts_in_the_order() -> None:
    workers = [pod(f"w{n}", cpu="2", priority=100, labels={"gang": "g"}) for n in range(2)]
    rig = Rig(
        SPOT_FIRST + GANG,
        node("a", cpu="8"),
        placed(pod("plain", cpu="4", priority=1), "a"),
        placed(pod("spot", cpu="4", priority=5, labels={"spot": "yes"}), "a"),
        *workers,
    )

    rig.settle()

    assert victims(rig) == ["spot"]
