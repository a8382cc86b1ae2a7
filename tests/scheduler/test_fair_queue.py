"""A queue ordered by usage of namespaces: each placement moves a namespace and its pending pods."""

from random import Random

import pytest

from policysched.evaluate.plan.plan import Plan
from policysched.scheduler import commands as c
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.ordered_queue import FairShareQueue
from tests.builders import node, placed, pod
from tests.reference import order_key
from tests.scheduler.rig import Rig

FAIR = """\
policy test version 1
queue by namespace.share.cpu, pod.priority desc, pod.name
filter node_resources_fit
preemption never
"""
GANG = """\
policy test version 1
queue by namespace.share.cpu, pod.name
gang by pod.labels["group"] { min = 2  timeout = 5m }
filter node_resources_fit
preemption never
"""
QUOTA = """\
policy test version 1
filter node_resources_fit
filter quota reject namespace.share.cpu >= 25% says "the namespace holds {namespace.share.cpu}"
preemption never
"""
LAYERED = """\
policy test version 1
filter node_resources_fit
layer full when namespace.share.cpu >= 25% {
  filter only_gold require pod.labels["tier"] else "" == "gold"
}
preemption never
"""


def test_namespaces_take_turns() -> None:
    rig = Rig(FAIR, node("a", cpu="100"))

    rig.observe(*[pod(f"a{index}", namespace="a", cpu="1") for index in range(3)])
    rig.observe(*[pod(f"b{index}", namespace="b", cpu="1") for index in range(3)])
    rig.settle()

    assert rig.bind_order() == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_namespace_with_more_usage_waits_until_the_others_catch_up() -> None:
    rig = Rig(FAIR, node("a", cpu="100"), placed(pod("old", namespace="a", cpu="2"), "a"))

    rig.observe(pod("a0", namespace="a", cpu="1", priority=9))
    rig.observe(*[pod(f"b{index}", namespace="b", cpu="1") for index in range(4)])
    rig.settle()

    assert rig.bind_order() == ["b0", "b1", "a0", "b2", "b3"]


def test_within_a_namespace_the_other_keys_decide() -> None:
    rig = Rig(FAIR, node("a", cpu="100"))

    rig.observe(pod("low", namespace="a", cpu="1"), pod("high", namespace="a", cpu="1", priority=5))
    rig.settle()

    assert rig.bind_order() == ["high", "low"]


def test_a_deleted_pod_moves_its_namespace_forward() -> None:
    old = placed(pod("old", namespace="a", cpu="50"), "a")
    rig = Rig(FAIR, node("a", cpu="100"), old, placed(pod("other", namespace="b", cpu="1"), "a"))
    rig.observe(pod("a0", namespace="a", cpu="1"), pod("b0", namespace="b", cpu="1"))

    rig.scheduler._core.cache.drop_pod(old.pod.uid)
    rig.settle()

    assert rig.bind_order() == ["a0", "b0"]


def test_a_gang_is_ordered_with_its_namespace() -> None:
    rig = Rig(GANG, node("a", cpu="100"), placed(pod("old", namespace="a", cpu="1"), "a"))

    rig.observe(*[pod(f"a{index}", namespace="a", cpu="1", labels={"group": "g"}) for index in range(2)])
    rig.observe(pod("b0", namespace="b", cpu="2"), pod("b1", namespace="b", cpu="1"))
    rig.settle()

    assert rig.bind_order() == ["b0", "a0", "a1", "b1"]


def test_a_quota_holds_pods_and_releases_them() -> None:
    old = placed(pod("old", namespace="a", cpu="1"), "a")
    rig = Rig(QUOTA, node("a", cpu="4"), old)
    rig.observe(pod("more", namespace="a", cpu="1"))
    rig.settle()
    assert rig.pending_message("more") == "0/1 nodes are available: 1 the namespace holds 25%."

    rig.observe(node("b", cpu="4"))
    rig.pass_time(30)

    assert rig.placements().keys() == {"more"}


def test_parked_pods_do_not_represent_pods_in_another_temporary_layer() -> None:
    rig = Rig(LAYERED, node("a", cpu="4"), placed(pod("old", namespace="a", cpu="1"), "a"))

    rig.observe(pod("plain", namespace="a", cpu="1"))
    rig.now_ns += 10**9
    rig.observe(pod("gold", namespace="a", cpu="1", labels={"tier": "gold"}))
    rig.settle()

    assert rig.placements() == {"gold": "a"}
    assert rig.pending_message("plain") == "0/1 nodes are available: 1 node(s) didn't satisfy rule only_gold."


def test_the_end_of_a_layer_requeues_the_pods_that_it_held() -> None:
    rig = Rig(LAYERED, node("a", cpu="4"), placed(pod("old", namespace="a", cpu="1"), "a"))
    rig.observe(pod("plain", namespace="a", cpu="1"))
    rig.settle()

    rig.observe(node("b", cpu="4", taints=["closed=yes:NoSchedule"]))
    rig.pass_time(30)

    assert rig.placements().keys() == {"plain"}


def always_the_first(seed: int) -> list[str]:
    """Pods come, are placed and go in many namespaces; each that is taken is the first of all that wait, by the
    definition. One sentence for each that is not."""
    rng, rig, mistakes = Random(seed), Rig(FAIR, node("a", cpu="1000")), []
    core = rig.scheduler._core
    for step in range(120):
        space = rng.choice("abcde")
        match rng.randrange(4):
            case 0 | 1:
                rig.observe(
                    pod(f"p{step}", namespace=space, cpu=str(rng.randint(1, 9)), priority=rng.randint(0, 2))
                )
            case 2 if core.cache.pods:
                uid = rng.choice(sorted(core.cache.pods))
                if core.cache.pods[uid].node is not None:
                    core.cache.drop_pod(uid)
            case _:
                rig.observe(placed(pod(f"q{step}", namespace=space, cpu=str(rng.randint(1, 9))), "a"))
        program = core.policies.running["test"].program
        waiting = [entry for entry in core.queue._active.of_policy("test") if isinstance(entry, PendingPod)]
        if waiting and rng.random() < 0.6:
            first = min(
                waiting,
                key=lambda entry: order_key(program, entry.pod, None, entry.facts, rig.now_ns, core.cache),
            )
            binds = [command for command in rig.scheduler.decide(rig.now_ns) if isinstance(command, c.Bind)]
            if [bind.uid for bind in binds] != [first.uid]:
                mistakes.append(f"step {step}: {binds}, first was {first}")
    return mistakes


@pytest.mark.parametrize("seed", range(5))
def test_the_popped_pod_is_the_first_of_all_pending_ones(seed: int) -> None:
    assert always_the_first(seed) == []


def test_a_queue_that_ignores_placements_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairShareQueue, "_reposition_changed", lambda _: None)

    assert any(always_the_first(seed) for seed in range(5))


def test_equivalence_keys_that_ignore_temporary_layers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "_equivalence_read_set", Plan.read_set)

    with pytest.raises(AssertionError):
        test_parked_pods_do_not_represent_pods_in_another_temporary_layer()


def test_the_only_member_of_a_gang_moves_to_another_one() -> None:
    """The gang that it leaves is still in the queue, and the first one of its namespace, when the other one comes."""
    rig = Rig(GANG.replace("min = 2", "min = 1"), node("a", cpu="100"))

    rig.observe(pod("web", cpu="1", labels={"group": "one"}))
    rig.observe(pod("web", cpu="1", labels={"group": "two"}))
    rig.settle()

    assert rig.placements() == {"web": "a"}
    assert [gang.name for gang in rig.scheduler.core.gangs] == ["default/two"]
