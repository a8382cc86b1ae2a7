"""Totals over placed pods and over topology domains: licences, the power of a rack, a ratio of spot nodes."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from policysched.lang.ir.expr import Expr
from policysched.lang.ir.expr_analysis import children
from policysched.model.cluster_events import ClusterEvent
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

LICENCES = """\
policy test version 1
let used: int = count(placed pods where other.labels["licence"] == pod.labels["licence"])
filter licences when has pod.labels["licence"] require used < 2 says "{used} of 2 licences are in use"
filter node_resources_fit
preemption never
"""
RACK_POWER = """\
policy test version 1
filter power require (sum(other.requests["example.com/watts"] over pods in "example.com/rack") else 0)
  + pod.requests["example.com/watts"] <= 1000 says "the rack has no power left"
"""
SPOT = """\
policy test version 1
let of_app: int = count(pods where other.labels["app"] == pod.labels["app"] and other.namespace == pod.namespace)
let on_spot: int = count(placed pods where other.labels["app"] == pod.labels["app"] and other.namespace == pod.namespace
  and other.node.labels["lifecycle"] == "spot")
filter spot_ratio when has pod.labels["app"] and (node.labels["lifecycle"] else "") == "spot"
  require on_spot + 1 <= of_app * 0.5 says "half of the app may be on spot nodes"
score spot_first weight 1 prefer (node.labels["lifecycle"] else "") == "spot"
preemption never
"""
ZONES = """\
policy test version 1
filter zone_max require (count(pods in "zone" where other.namespace == pod.namespace) else 0) < 2
preemption never
"""
ZONES_AND_NODES = """\
policy test version 1
filter zone_max when has node.labels["zone"]
  require count(pods in "zone" where other.namespace == pod.namespace) + node.pods < 2
preemption never
"""
FOLLOW = """\
policy test version 1
filter leader when has pod.labels["follows"]
  require count(placed pods where other.labels["leads"] == pod.labels["follows"]) >= 1 says "no leader"
preemption never
"""


DOUBLED = "".join(f"let doubled{i + 1}: int = doubled{i} + doubled{i}\n" for i in range(8))
SHARED_PARTS = f"""\
policy test version 1
let doubled0: int = (count(pods in "zone" where other.namespace == pod.namespace) else 0) + node.pods
{DOUBLED}filter zone_max require doubled8 < 10000
preemption never
"""


def licensed(name: str) -> Pod:
    return pod(name, labels={"licence": "x"})


def consumer(name: str, watts: int, **more: Any) -> Pod:
    return pod(name, resources={"example.com/watts": str(watts)}, **more)


def test_pending_pods_take_no_licence_and_a_deleted_pod_frees_one() -> None:
    rig = Rig(LICENCES, node("a", cpu="100"))

    rig.observe(licensed("a1"), licensed("a2"), licensed("a3"))
    rig.settle()
    rig.confirm_binds()
    waiting = rig.pending_message("a3")
    rig.handle(e.PodDeleted(licensed("a1").uid))
    rig.pass_time(30)

    assert waiting == "0/1 nodes are available: 1 2 of 2 licences are in use."
    assert rig.placements() == {"a1": "a", "a2": "a", "a3": "a"}


def test_a_refused_bind_frees_a_licence() -> None:
    rig = Rig(LICENCES, node("a", cpu="100"), placed(licensed("old"), "a"))
    rig.observe(licensed("one"))
    rig.settle()
    rig.observe(licensed("two"))
    rig.settle()

    rig.handle(e.PodDeleted(licensed("one").uid), e.BindRefused(licensed("one").uid, "gone"))
    rig.pass_time(30)

    assert rig.placements()["two"] == "a"


def test_pods_on_a_node_that_is_deleted_free_their_licences() -> None:
    gone = [placed(licensed(name), "b") for name in ("old-0", "old-1")]
    rig = Rig(LICENCES, node("a", cpu="100"), node("b", cpu="100"), *gone)
    rig.observe(licensed("one"))
    rig.settle()
    before = rig.placements()

    rig.handle(e.NodeDeleted("b"))
    rig.pass_time(30)

    assert (before, rig.placements()) == ({}, {"one": "a"})


def test_half_of_an_app_may_be_on_spot_nodes() -> None:
    rig = Rig(SPOT, node("spot", cpu="100", labels={"lifecycle": "spot"}), node("stable", cpu="100"))

    rig.observe(*(pod(f"web-{n}", labels={"app": "web"}) for n in range(6)))
    rig.settle()

    assert sorted(rig.placements().values()) == ["spot"] * 3 + ["stable"] * 3


def test_the_power_of_a_rack_is_a_sum_over_its_nodes() -> None:
    watts = {"example.com/watts": "10000"}
    racks = [node(f"n{n}", labels={"example.com/rack": f"r{n // 2}"}, resources=watts) for n in range(4)]
    rig = Rig(RACK_POWER, *racks)

    rig.observe(*(consumer(f"job-{n}", 600) for n in range(3)), consumer("small", 300))
    rig.settle()

    racks_used = sorted(int(name[1]) // 2 for job, name in rig.placements().items() if job != "small")
    assert racks_used == [0, 1]
    assert "small" in rig.placements()
    assert (rig.pending_message("job-2") or "").startswith(
        "0/4 nodes are available: 4 the rack has no power left."
    )


def test_a_node_that_moves_to_another_rack_takes_its_pods_along() -> None:
    old = placed(consumer("old", 900), "n0")
    rig = Rig(RACK_POWER, *(node(f"n{n}", labels={"example.com/rack": "r0"}) for n in range(20)), old)
    rig.observe(consumer("job", 600))
    rig.settle()
    before = rig.placements()

    rig.observe(node("n0", labels={"example.com/rack": "r1"}))
    rig.pass_time(30)

    assert before == {}
    assert rig.placements()["job"] != "n0"


def test_a_higher_pod_evicts_in_its_rack_only() -> None:
    old = [placed(consumer(f"old-{n}", 900, priority=0), f"n{n}") for n in range(2)]
    rig = Rig(RACK_POWER, *(node(f"n{n}", labels={"example.com/rack": f"r{n}"}) for n in range(2)), *old)

    rig.observe(consumer("urgent", 600, priority=1000))
    rig.settle()

    assert len(rig.of(c.Evict)) == 1


def placed_pods_count_on_every_node_of_their_zone(text: str) -> None:
    nodes = [node(f"n{n:02}", cpu="100", labels={"zone": f"z{n % 2}"}) for n in range(40)]
    rig = Rig(text, *nodes)

    for index in range(6):
        rig.observe(pod(f"web-{index}"))
        rig.settle()

    zones = [int(name[1:]) % 2 for name in rig.placements().values()]
    assert sorted(zones) == [0, 0, 1, 1]


def test_a_placed_pod_counts_on_every_node_of_its_zone() -> None:
    placed_pods_count_on_every_node_of_their_zone(ZONES)


def test_a_placed_pod_counts_on_every_node_of_its_zone_beside_values_of_the_node() -> None:
    placed_pods_count_on_every_node_of_their_zone(ZONES_AND_NODES)


def test_a_node_without_the_label_is_in_no_domain() -> None:
    nodes = [node("n0", labels={"zone": "z0"}), node("n1"), node("n2", labels={"zone": "z2"})]
    rig = Rig(ZONES.replace("else 0", "else 9"), *nodes)

    for index in range(6):
        rig.observe(pod(f"web-{index}", cpu="100m"))
        rig.settle()

    assert sorted(rig.placements().values()) == ["n0", "n0", "n2", "n2"]


def test_a_pod_that_waits_for_a_leader_is_requeued_when_one_is_placed() -> None:
    rig = Rig(FOLLOW, node("a", cpu="100"))
    rig.observe(pod("follower", labels={"follows": "x"}))
    rig.settle()
    before = rig.placements()

    rig.observe(placed(pod("leader", labels={"leads": "x"}), "a"))
    rig.pass_time(30)

    assert (before, rig.placements()) == ({}, {"follower": "a"})


def test_a_gang_counts_its_own_members() -> None:
    text = ZONES + 'gang by pod.labels["gang"] { min = 3  timeout = 5m }\n'
    rig = Rig(text, *(node(f"n{n}", cpu="100", labels={"zone": "z"}) for n in range(20)))

    rig.observe(*(pod(f"worker-{n}", labels={"gang": "g"}) for n in range(3)))
    rig.settle()

    assert rig.placements() == {}


BUGS = {
    "no event requeues": (
        "policysched.lang.ir.reads._pod_total_events",
        lambda _total: frozenset(),
        test_pending_pods_take_no_licence_and_a_deleted_pod_frees_one,
    ),
    "pods that are placed requeue nobody": (
        "policysched.lang.ir.reads._pod_total_events",
        lambda _total: frozenset({ClusterEvent.ASSIGNED_POD_DELETE}),
        test_a_pod_that_waits_for_a_leader_is_requeued_when_one_is_placed,
    ),
    "a deleted node requeues nobody": (
        "policysched.lang.ir.reads._pod_total_events",
        lambda _total: frozenset({ClusterEvent.ASSIGNED_POD_DELETE}),
        test_pods_on_a_node_that_is_deleted_free_their_licences,
    ),
    "what follows from a domain's total is evaluated once": (
        "policysched.evaluate.vector.pod_totals._DomainValues.fingerprint",
        lambda *_: 0,
        test_a_placed_pod_counts_on_every_node_of_its_zone,
    ),
    "a domain that changed is thought to decide the same": (
        "policysched.evaluate.vector.pod_totals._KnownValues.follow",
        lambda *_: True,
        test_a_placed_pod_counts_on_every_node_of_its_zone,
    ),
    "a domain's total is evaluated once": (
        "policysched.evaluate.vector.pod_totals._totals_fingerprint",
        lambda _spec: lambda _frame: 0,
        test_a_placed_pod_counts_on_every_node_of_its_zone_beside_values_of_the_node,
    ),
    "nodes without the label are in the first domain": (
        "policysched.evaluate.vector.pod_totals._by_row",
        lambda values, codes: (
            np.asarray(values) if np.ndim(values) == 0 else values.take(np.maximum(codes, 1))
        ),
        test_a_node_without_the_label_is_in_no_domain,
    ),
    "pods keep the rack in which they were placed": (
        "policysched.evaluate.columns.placed_pod_totals.PlacedPodTotals.relabel",
        lambda *_: None,
        test_a_node_that_moves_to_another_rack_takes_its_pods_along,
    ),
    "evicting is thought to free nothing": (
        "policysched.evaluate.plan.lowering.evicting_could_help",
        lambda _condition: False,
        test_a_higher_pod_evicts_in_its_rack_only,
    ),
    "members of a gang do not see each other": (
        "policysched.evaluate.columns.pod_totals.HypotheticalPodTotals.catch_up",
        lambda *_: None,
        test_a_gang_counts_its_own_members,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, planted, test = BUGS[bug]
    monkeypatch.setattr(target, planted)

    with pytest.raises(AssertionError):
        test()


def test_what_a_rule_reads_of_domains_is_searched_once_in_each_shared_part() -> None:
    visited = list[Expr]()

    def operands(expr: Expr) -> tuple[Expr, ...]:
        visited.append(expr)
        return children(expr)

    with patch("policysched.evaluate.vector.pod_totals.children", operands):
        rig = Rig(SHARED_PARTS, node("a", cpu="100", labels={"zone": "z"}))
        rig.observe(pod("web"))
        rig.settle()

    assert rig.placements() == {"web": "a"}
    assert 8 < len(visited) == len({id(expr) for expr in visited})
