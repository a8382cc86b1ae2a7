"""Queue order: within a policy, between policies, and for keys that change with time."""

from datetime import UTC, datetime

import pytest

from tests.builders import node, pod
from tests.scheduler.rig import Rig

BY_LABEL = """\
policy test version 1
input rank_label: int = pod.labels["rank"] default 0 invalid default
queue by rank_label desc, pod.name asc
filter node_resources_fit
"""
PLAIN = """\
policy {name} version 1
filter node_resources_fit
"""
CHOICE = """\
policy test version 1
input begun: timestamp = pod.annotations["begun"] optional invalid default
queue by ({key}) desc
filter node_resources_fit
"""
WAITED = """\
policy test version 1
queue by pod.waited > 30m desc, pod.priority desc
filter node_resources_fit
"""


def test_without_a_queue_clause_pods_are_ordered_by_priority_and_arrival() -> None:
    rig = Rig(PLAIN.format(name="test"), node("a", cpu="100"))

    rig.observe(pod("later"))
    rig.now_ns += 10**9
    rig.observe(pod("latest"), pod("urgent", priority=5))
    rig.settle()

    assert rig.bind_order() == ["urgent", "later", "latest"]


def test_the_policy_defines_the_order() -> None:
    rig = Rig(BY_LABEL, node("a", cpu="100"))

    rig.observe(
        pod("b", labels={"rank": "1"}), pod("c", labels={"rank": "7"}), pod("a", labels={"rank": "1"})
    )
    rig.settle()

    assert rig.bind_order() == ["c", "a", "b"]


def test_a_changed_order_applies_to_pending_pods() -> None:
    rig = Rig(
        BY_LABEL, node("a", cpu="100"), pod("low", labels={"rank": "1"}), pod("high", labels={"rank": "7"})
    )

    rig.apply_policies(BY_LABEL.replace("rank_label desc", "rank_label asc"))
    rig.settle()

    assert rig.bind_order() == ["low", "high"]


def test_between_policies_the_heads_compare_by_priority_then_by_waiting_time() -> None:
    rig = Rig(
        {"a.policy": PLAIN.format(name="one"), "b.policy": PLAIN.format(name="two")}, node("a", cpu="100")
    )

    rig.observe(pod("one-low", scheduler="one", priority=1))
    rig.now_ns += 10**9
    rig.observe(
        pod("two-low", scheduler="two", priority=1),
        pod("two-high", scheduler="two", priority=9),
        pod("one-mid", scheduler="one", priority=5),
    )
    rig.settle()

    assert rig.bind_order() == ["two-high", "one-mid", "one-low", "two-low"]


def test_a_key_that_flips_with_time_moves_the_pod_without_any_event() -> None:
    rig = Rig(WAITED, node("a", cpu="1"))
    rig.observe(pod("old", cpu="2"))
    rig.settle()
    rig.pass_time(31 * 60)
    rig.observe(pod("urgent", cpu="2", priority=100))

    rig.settle()
    rig.observe(node("b", cpu="2"))
    rig.pass_time(30)

    assert rig.bind_order() == ["old"]


def test_a_key_evaluated_exactly_at_its_flip_time_flips_right_after_it() -> None:
    rig = Rig(WAITED, node("a", cpu="1"))
    rig.observe(pod("old", cpu="2"))
    rig.settle()
    rig.now_ns += 30 * 60 * 10**9
    rig.settle()

    rig.now_ns += 1
    rig.observe(pod("urgent", cpu="2", priority=100))
    rig.observe(node("b", cpu="2"))
    rig.settle()

    assert rig.bind_order() == ["old"]


@pytest.mark.parametrize(
    "key",
    [
        "if pod.priority > 5 then pod.waited else 10s",
        "if pod.waited > 1s and pod.priority > 5 then pod.waited else 10s",
        "if pod.priority < 5 then 10s else if pod.priority < 2 then 0s else pod.waited",
        "(now - begun) else 10s",
    ],
)
def test_a_key_that_grows_with_time_overtakes_constant_keys(key: str) -> None:
    rig = Rig(CHOICE.format(key=key), node("a", cpu="1"))
    begun = {"begun": datetime.fromtimestamp(rig.now_ns // 10**9, UTC).isoformat()}
    rig.observe(pod("still", cpu="2"), pod("aging", cpu="2", priority=9, annotations=begun))
    rig.settle()

    rig.pass_time(15)
    rig.observe(node("b", cpu="2"))
    rig.pass_time(30)

    assert rig.bind_order() == ["aging"]


def test_a_pod_in_backoff_is_attempted_early_if_no_other_pod_is_pending() -> None:
    rig = Rig(PLAIN.format(name="test"), node("a", cpu="1"))
    rig.observe(pod("web", cpu="2"))
    rig.settle()

    rig.observe(node("b", cpu="2"))
    rig.settle()

    assert rig.placements() == {"web": "b"}, (
        "its backoff of one second is not over, and there is nothing else to do"
    )


def test_waiting_time_orders_pods_whose_keys_were_computed_at_different_times() -> None:
    rig = Rig(
        "policy test version 1\nqueue by pod.waited desc\nfilter node_resources_fit\n", node("a", cpu="1")
    )
    rig.observe(pod("oldest", cpu="2"))
    rig.now_ns += 5 * 10**9
    rig.observe(pod("older", cpu="3"))
    rig.settle()
    rig.now_ns += 100 * 10**9
    rig.observe(pod("older", cpu="2"))
    rig.observe(pod("young", cpu="2"))
    rig.settle()

    rig.observe(node("b", cpu="6"))
    rig.pass_time(20)

    assert rig.bind_order() == ["oldest", "older", "young"]
