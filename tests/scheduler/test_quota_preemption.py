"""Borrowed quota is given back: victims are pods of borrowers, gangs go whole, and the owner runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.preemption import eviction_rights, quota_reclaim
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from tests.builders import node, placed, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import decide_until_pause
from tests.scheduler.test_pauses import rig as rig_with_pauses

CREATED = "2027-01-15T08:00:00Z"
"""The time at which a `Rig` begins."""
TEAMS = """\
policy test version 1
filter node_resources_fit
queue by pod.priority desc, pod.name
gang by pod.labels["group"] { min = 2  timeout = 5m }
quota team by pod.namespace {
  "a" { cpu = 4 borrow any }
  "b" { cpu = 4 borrow any }
  "c" { cpu = 4 borrow any }
  others { cpu = 0 }
}
"""


def pods(space: str, count: int, cpu: str = "1", **more: object) -> list[Pod]:
    return [pod(f"{space}{index}", namespace=space, cpu=cpu, **more) for index in range(count)]


def running(rig: Rig, *more: Sequence[Pod]) -> None:
    for group in more:
        rig.observe(*group)
        rig.settle()
    rig.confirm_binds()


def victims(rig: Rig) -> list[str]:
    return [victim.name for evict in rig.of(c.Evict) for victim in evict.victims]


def carry_out_evictions(rig: Rig) -> None:
    """The server deletes the victims, and the watch shows it."""
    for evict in rig.of(c.Evict):
        rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    for evict in rig.of(c.Evict):
        for victim in evict.victims:
            rig.handle(e.PodDeleted(victim.uid))
    rig.pass_time(5)


def test_the_owner_gets_back_what_others_borrow() -> None:
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))

    rig.observe(pod("own", namespace="c", cpu="3"))
    rig.settle()

    assert len(victims(rig)) == 3
    assert all(name.startswith("a") for name in victims(rig)), "b borrows nothing"
    assert "own" not in rig.placements()
    carry_out_evictions(rig)
    assert rig.placements()["own"] == "n"


def test_the_least_important_borrowers_go_first_and_no_more_than_needed() -> None:
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(
        rig,
        [
            pod("big", namespace="a", cpu="4", priority=9),
            pod("low", namespace="a", cpu="1", priority=1),
            pod("mid", namespace="a", cpu="3", priority=5),
        ],
        pods("b", 4),
    )

    rig.observe(pod("own", namespace="c", cpu="3", priority=-5))
    rig.settle()

    assert victims(rig) == ["mid"]  # low is spared: mid alone is enough


@pytest.mark.parametrize(("elsewhere", "evicted"), [("3", []), ("4", ["large", "small"])])
def test_small_pods_within_an_amount_are_not_evicted_beside_a_large_one_that_borrows(
    elsewhere: str, evicted: list[str]
) -> None:
    """The large one is all that `a` borrows if it uses 3 cpu elsewhere. The small one would be entitled to come back."""
    text = TEAMS.replace("filter node_resources_fit", "filter node_resources_fit\nfilter node_affinity")
    rig = Rig(text, node("n", cpu="3", labels={"here": "yes"}), node("m", cpu="100", labels={"here": "no"}))
    here, there = {"here": "yes"}, {"here": "no"}
    running(
        rig,
        [
            pod("large", namespace="a", cpu="2", node_selector=here),
            pod("small", namespace="a", cpu="1", node_selector=here),
            pod("elsewhere", namespace="a", cpu=elsewhere, node_selector=there, priority=9),
        ],
        pods("b", 4, node_selector=there),
    )

    rig.observe(pod("own", namespace="c", cpu="3", node_selector=here))
    rig.settle()

    assert sorted(victims(rig)) == evicted


def test_no_pod_is_evicted_for_a_pod_that_would_borrow() -> None:
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))

    rig.observe(pod("more", namespace="b", cpu="1", priority=9))
    rig.settle()

    assert victims(rig) == []
    assert "all rows together" in (rig.pending_message("more") or "")


def test_no_pod_is_evicted_if_the_pod_would_find_no_node() -> None:
    text = TEAMS.replace("filter node_resources_fit", "filter node_resources_fit\nfilter node_affinity")
    rig = Rig(text, node("n", cpu="8"), node("m", cpu="4"))
    running(rig, pods("a", 8), pods("b", 4))

    rig.observe(pod("own", namespace="c", cpu="4", node_selector={"disk": "fast"}))
    rig.settle()

    assert victims(rig) == []
    assert "no quota is reclaimed, because the pod would fit no node anyway" in (
        rig.pending_message("own") or ""
    )


def test_victims_are_taken_where_the_pod_fits() -> None:
    layout = {"n": "aaa", "m": "aab", "o": "aab", "p": "abb"}
    on_nodes = [
        placed(pod(f"{space}-{name}{index}", namespace=space, cpu="1"), name)
        for name, spaces in layout.items()
        for index, space in enumerate(spaces)
    ]
    rig = Rig(TEAMS, *[node(name, cpu="3") for name in layout], *on_nodes)

    rig.observe(pod("own", namespace="c", cpu="3"))
    rig.settle()

    assert sorted(victims(rig)) == ["a-n0", "a-n1", "a-n2"]
    carry_out_evictions(rig)
    assert rig.placements() == {"own": "n"}


def test_victims_are_taken_where_the_pod_fits_if_another_quota_than_the_first_lends_there() -> None:
    """Both quotas are used up: team d borrows on a node that takes no pods, and organisation y on the other."""
    text = """\
policy test version 1
filter node_resources_fit
filter node_unschedulable
quota org by pod.namespace {
  "x" { cpu = 3 }
  "y" { cpu = 2 borrow any }
  others { cpu = 0 }
}
quota team by pod.labels["team"] else "none" {
  "a" { cpu = 2 }
  "c" { cpu = 2 }
  "d" { cpu = 1 borrow any }
  others { cpu = 0 }
}
"""
    nodes = node("open", cpu="3"), node("cordoned", cpu="2", unschedulable=True)
    of_a, of_c, of_d = ({"team": team} for team in "acd")
    rig = Rig(
        text,
        *nodes,
        placed(pod("a0", namespace="x", cpu="1", labels=of_a), "open"),
        *[placed(pod(f"c{at}", namespace="y", cpu="1", labels=of_c), "open") for at in range(2)],
        placed(pod("d0", namespace="y", cpu="2", labels=of_d), "cordoned"),
    )

    rig.observe(pod("own", namespace="x", cpu="1", labels=of_a))
    rig.settle()

    assert len(victims(rig)) == 1
    assert victims(rig)[0] in {"c0", "c1"}
    carry_out_evictions(rig)
    assert rig.placements() == {"own": "open"}


def test_an_owner_does_not_wait_for_the_evictions_of_another_namespace() -> None:
    """A webhook there that answers none of them would keep it from its quota. It evicts the same pod, and no others."""
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, [pod("other", namespace="a", cpu="1"), pod("big", namespace="a", cpu="11")])

    for space in "bc":
        rig.observe(pod(f"{space}0", namespace=space, cpu="2"))
        rig.settle()

    assert [(evict.name, [victim.name for victim in evict.victims]) for evict in rig.of(c.Evict)] == [
        ("b0", ["big"]),
        ("c0", ["big"]),
    ]


def test_two_owners_leave_a_gang_its_minimum_or_nothing() -> None:
    """Each takes two members, of which the gang can spare as many: the second one takes all that is left, too."""
    policy = TEAMS.replace("min = 2", "min = 8")
    rig = Rig(policy, node("n", cpu="100"))
    running(rig, pods("a", 12, labels={"group": "g"}))

    for space in "bc":
        rig.observe(pod(f"{space}0", namespace=space, cpu="3"))
        rig.settle()

    first, second = rig.of(c.Evict)
    assert (len(first.victims), len(second.victims)) == (3, 12)


def test_a_borrowing_gang_goes_whole() -> None:
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, pods("a", 2, cpu="4", labels={"group": "g"}), pods("b", 4))

    rig.observe(pod("own", namespace="c", cpu="1"))
    rig.settle()

    assert sorted(victims(rig)) == ["a0", "a1"]
    carry_out_evictions(rig)
    assert "own" in rig.placements()


def test_a_gang_takes_back_quota_for_all_its_members() -> None:
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))

    rig.observe(*pods("c", 2, cpu="2", labels={"group": "g"}))
    rig.settle()

    assert len(victims(rig)) == 4
    assert "c0" not in rig.placements()
    carry_out_evictions(rig)
    assert {"c0", "c1"} <= rig.placements().keys()


def test_no_pod_is_evicted_for_a_member_that_no_quota_admits() -> None:
    """Of two members that the quota admits, one fits, and the other is too large for any node."""
    policy = TEAMS.replace("by pod.namespace", 'by (pod.labels["team"] else "none")')
    own, none = {"group": "g", "team": "a"}, {"group": "g"}
    low = placed(pod("low", priority=-1, cpu="1", labels={"team": "b"}), "n")
    rig = Rig(policy, node("n", cpu="2"), low)

    rig.observe(
        pod("m0", cpu="1", labels=own), pod("m1", cpu="3", labels=own), pod("m2", cpu="1", labels=none)
    )
    rig.settle()

    assert victims(rig) == []
    assert not rig.scheduler._core.cache.nominated


def test_what_is_freed_is_kept_for_its_owner() -> None:
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))
    rig.observe(pod("own", namespace="c", cpu="3"))
    rig.settle()

    rig.observe(*[pod(f"again{index}", namespace="a", cpu="1", priority=99) for index in range(3)])
    carry_out_evictions(rig)

    assert "own" in rig.placements()
    assert not any(name.startswith("again") for name in rig.placements())
    assert len(victims(rig)) == 3


def test_preemption_never_evicts_no_borrower() -> None:
    rig = Rig(TEAMS + "preemption never\n", node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))

    rig.observe(pod("own", namespace="c", cpu="3"))
    rig.settle()
    assert victims(rig) == []

    for index in range(3):
        rig.handle(e.PodDeleted(pod(f"a{index}", namespace="a").uid))
    rig.pass_time(15)
    assert "own" in rig.placements()


def test_a_condition_on_victims_also_holds_for_borrowers() -> None:
    condition = 'preemption { victims = victim.labels["keep"] else "" != "yes" }\n'
    rig = Rig(TEAMS + condition, node("n", cpu="100"))
    running(rig, pods("a", 6, labels={"keep": "yes"}), pods("b", 6))

    rig.observe(pod("own", namespace="c", cpu="2"))
    rig.settle()

    assert sorted(name[0] for name in victims(rig)) == ["b", "b"]


def test_a_borrower_that_became_ready_is_judged_by_its_readiness() -> None:
    rig = Rig(TEAMS + "preemption { victims = not victim.ready }\n", node("n", cpu="100"))
    first, second = pods("a", 6), pods("b", 6)
    running(rig, first, second)

    rig.observe(*[placed(replace(value, ready=True), "n") for value in first])
    rig.observe(pod("own", namespace="c", cpu="2"))
    rig.settle()

    assert sorted(name[0] for name in victims(rig)) == ["b", "b"]


@pytest.mark.parametrize("owner", ["a pod", "a gang"])
@pytest.mark.parametrize("condition", ["not victim.ready", "victim.age >= 10m"])
def test_an_owner_is_tried_again_when_a_borrower_becomes_a_victim(owner: str, condition: str) -> None:
    text = TEAMS.replace("  timeout = 5m", "") + f"preemption {{ victims = {condition} }}\n"
    rig = Rig(text, node("n", cpu="100"))
    borrowers = [*pods("a", 6, created=CREATED), *pods("b", 6, created=CREATED)]
    running(rig, borrowers)
    rig.observe(*[placed(replace(value, ready=True), "n") for value in borrowers])
    size = 1 if owner == "a pod" else 2
    labels = {} if owner == "a pod" else {"group": "g"}
    rig.observe(*[pod(f"own{at}", namespace="c", cpu=str(2 // size), labels=labels) for at in range(size)])
    rig.pass_time(30)
    assert victims(rig) == []

    if condition == "not victim.ready":
        rig.observe(*[placed(replace(value, ready=False), "n") for value in borrowers])
    rig.pass_time(600)

    assert len(victims(rig)) == 2


def test_a_gang_that_reclaims_is_tried_again_when_a_node_appears() -> None:
    text = TEAMS.replace("  timeout = 5m", "").replace("filter node_resources_fit", "include kube_default")
    rig = Rig(text, node("n", cpu="12"))
    running(rig, pods("a", 6), pods("b", 6))
    members = [pod(f"own{at}", namespace="c", cpu="1", labels={"group": "g"}, node_selector={"new": "yes"}) for at in range(2)]  # fmt: skip
    rig.observe(*members)
    rig.pass_time(30)
    assert victims(rig) == []

    rig.observe(node("new", cpu="12", labels={"new": "yes"}))
    rig.pass_time(30)

    assert len(victims(rig)) == 2


def test_nested_owners_take_back_from_their_own_organisation_first() -> None:
    rig = Rig(
        """\
policy test version 1
filter node_resources_fit
queue by pod.priority desc, pod.name
quota org by pod.labels["org"] else "none" {
  "x" { cpu = 6 }
  "y" { cpu = 6 borrow any }
  others { cpu = 0 }
}
quota team by pod.namespace within org {
  "a" in "x" { cpu = 3 borrow any }
  "b" in "x" { cpu = 3 borrow any }
  others unlimited
}
""",
        node("n", cpu="100"),
        *[placed(one, "n") for one in pods("a", 6, labels={"org": "x"})],
        *[placed(one, "n") for one in pods("z", 6, labels={"org": "y"})],
    )

    rig.observe(pod("own", namespace="b", cpu="2", labels={"org": "x"}))
    rig.settle()

    assert len(victims(rig)) == 2
    assert all(name.startswith("a") for name in victims(rig))
    carry_out_evictions(rig)
    assert "own" in rig.placements()


def test_a_pod_whose_evictions_no_longer_help_is_not_nominated_any_more() -> None:
    """`late` evicts, and `first` of its team runs before the victims are gone: now it waits as `z`, which borrows."""
    policy = TEAMS.replace("cpu = 4 borrow any }\n  others", "cpu = 4 borrow 1 }\n  others")
    rig = Rig(policy, node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))
    rig.observe(pod("late", namespace="c", cpu="2"))
    rig.settle()
    rig.observe(placed(pod("first", namespace="c", cpu="4"), "n"), pod("z", namespace="c", cpu="2"))
    rig.settle()

    carry_out_evictions(rig)

    assert "late" not in rig.placements()
    assert list(rig.scheduler._core.cache.nominated) == []


def test_what_a_nominated_pod_cannot_keep_any_more_is_free_for_others() -> None:
    """`z` keeps 3 cpu until `first` of its team uses them: then `z` would borrow, and 1 cpu is free."""
    rig = Rig(TEAMS, node("n", cpu="100"))
    running(rig, pods("a", 8), pods("b", 4))
    rig.observe(pod("z", namespace="c", cpu="3"))
    rig.settle()
    for evict in rig.of(c.Evict):
        rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    for victim in rig.of(c.Evict)[0].victims:
        rig.handle(e.PodDeleted(victim.uid))
    rig.observe(pod("waiting", namespace="b", cpu="1"))
    rig.scheduler.decide(rig.now_ns)  # `waiting` alone: `z` backs off
    assert not {"z", "waiting"} & rig.placements().keys()

    rig.observe(placed(pod("first", namespace="c", cpu="2"), "n"))
    rig.observe(pod("waiting-behind", namespace="b", cpu="1"))
    rig.settle()

    assert "waiting" in rig.placements()
    assert "waiting-behind" not in rig.placements()


TWO_QUOTAS = """\
policy test version 1
filter node_resources_fit
queue by pod.priority desc, pod.name
preemption { victims = not has victim.labels["keep"] }
quota org by (pod.labels["org"] else "none") {
  "x" { cpu = 3 borrow any }
  "y" { cpu = 3 borrow any }
  others { cpu = 0 }
}
quota team by pod.namespace {
  "a" { cpu = 3 borrow any }
  "b" { cpu = 2 borrow any }
  "c" { cpu = 1 borrow any }
  others { cpu = 0 }
}
"""


def test_a_victim_for_one_quota_may_free_another_whose_borrowers_are_protected() -> None:
    """`c` borrows in `team`, and keeps its pod. `b` is within its amount there, and `y`, its organisation, is not."""
    rig = Rig(TWO_QUOTAS, node("n", cpu="100"))
    y, x = {"org": "y"}, {"org": "x"}
    running(rig, pods("c", 4, labels={**y, "keep": "me"}), pods("b", 2, labels=y))

    rig.observe(pod("own", namespace="a", cpu="1", labels=x))
    rig.settle()

    assert len(victims(rig)) == 1
    carry_out_evictions(rig)
    assert rig.placements()["own"] == "n"


def reclaim_calls(monkeypatch: pytest.MonkeyPatch, borrowers: Sequence[Pod], owner: type, name: str) -> int:
    """How often this is called while a gang of 60 takes its quota back."""
    text = TEAMS.replace("cpu = 4", "cpu = 100").replace("min = 2", "min = 60")
    running_pods = [placed(each, "n") for each in (*borrowers, *pods("b", 100))]
    rig = Rig(text, node("n", cpu="1000", pods="1000"), *running_pods)
    rig.observe(*pods("c", 60, labels={"group": "own"}))
    calls = count_calls(monkeypatch, owner, name, rig.settle)
    assert len(victims(rig)) == 60
    assert all(victim.startswith("a") for victim in victims(rig))
    return calls


SINGLES = pods("a", 200)
A_GANG = [
    *pods("a", 60, cpu="3", labels={"group": "a"}),
    *(pod(f"a-{index}", namespace="a", cpu="1") for index in range(20)),
]


@pytest.mark.parametrize("borrowers", [SINGLES, A_GANG], ids=["single pods", "a gang"])
@pytest.mark.parametrize(("owner", "name"), [(QuotaUsage, "blocked"), (EvictionRights, "__call__")])
def test_a_gang_that_takes_back_quota_looks_at_each_borrower_a_few_times(
    monkeypatch: pytest.MonkeyPatch, borrowers: Sequence[Pod], owner: type, name: str
) -> None:
    calls = reclaim_calls(monkeypatch, borrowers, owner, name)

    assert calls < 5 * (len(borrowers) + 60)


def owners(size: int) -> list[Pod]:
    """A pod, or a gang."""
    labels = {"group": "own"} if size > 1 else {}
    return [pod(f"own{at}", namespace="c", cpu=f"{3000 // size}m", labels=labels) for at in range(size)]


def an_entitled_owner_without_a_node(size: int, *, evicts: bool = True) -> Rig:
    """Of 12 cpu, `a` uses 8 and `b` 1; a pod or gang of `c` may use the others, and its node has one left."""
    rig = Rig(TEAMS, node("n", cpu="10"))
    running(rig, pods("a", 2, "4"), [pod("b0", namespace="b", cpu="1")])
    policy = "PreemptLowerPriority" if evicts else "Never"
    rig.observe(*[replace(each, preemption_policy=policy) for each in owners(size)])
    rig.settle()
    assert "Insufficient cpu" in (rig.pending_message("own0") or "")
    assert victims(rig) == [], "its quotas admit it"
    return rig


SIZES = pytest.mark.parametrize("size", [1, 2], ids=["a pod", "a gang"])


@SIZES
def test_an_entitled_owner_takes_back_once_a_placement_has_used_up_what_was_idle(size: int) -> None:
    rig = an_entitled_owner_without_a_node(size)

    running(rig, [pod("b1", namespace="b", cpu="1")])
    rig.pass_time(2)

    assert rig.placements()["b1"] == "n"
    assert victims(rig) == ["a0"]
    carry_out_evictions(rig)
    assert rig.placements()["own0"] == "n"


@SIZES
@pytest.mark.parametrize(
    ("evicts", "cpu"), [(False, "1"), (True, "0")], ids=["evicts nobody", "enough is left"]
)
def test_a_placement_leaves_owners_parked_that_cannot_take_back(evicts: bool, cpu: str, size: int) -> None:
    rig = an_entitled_owner_without_a_node(size, evicts=evicts)
    waiting = [entry for entry in rig.scheduler.core.pods.values() if entry.pod.name.startswith("own")]
    before = [each.attempts for each in waiting]

    running(rig, [pod("b1", namespace="b", cpu=cpu)])
    rig.pass_time(2)

    assert rig.placements()["b1"] == "n"
    assert [each.attempts for each in waiting] == before


def test_a_gang_takes_back_what_was_used_up_in_a_pause_of_its_attempt() -> None:
    """Each member is admitted alone after the pause, and no node fits it."""
    rig = rig_with_pauses(node("n", cpu="10"), policies={"test.policy": TEAMS})
    running(rig, pods("a", 2, "4"), [pod("b0", namespace="b", cpu="1")])
    rig.observe(*owners(2))
    decide_until_pause(rig)

    rig.observe(placed(pod("b1", namespace="b", cpu="1"), "n"))
    rig.settle()
    rig.pass_time(2)

    assert victims(rig) == ["a0"]


def test_a_pod_of_another_entity_and_the_same_spec_does_not_keep_an_entitled_one_parked() -> None:
    text = TEAMS.replace("by pod.namespace", "by team")
    rig = Rig(f'{text}input team: string = pod.labels["team"] default "none"\n', node("n", cpu="10"))
    users = [("a", "2"), ("a", "2"), ("a", "2"), ("a", "2"), ("b", "1")]
    running(rig, [pod(f"u{i}", cpu=cpu, labels={"team": team}) for i, (team, cpu) in enumerate(users)])
    rig.observe(pod("also", cpu="3", labels={"team": "a"}))
    rig.settle()
    rig.observe(pod("own", cpu="3", labels={"team": "c"}))
    rig.settle()

    running(rig, [pod("more", cpu="1", labels={"team": "b"})])

    assert rig.placements()["more"] == "n"
    assert victims(rig) == ["u0", "u1"]
    carry_out_evictions(rig)
    assert rig.placements()["own"] == "n"


ORGS_AND_TEAMS = """\
policy test version 1
filter node_resources_fit
quota org by pod.labels["org"] else "none" {
  "x" { cpu = 2 borrow any }
  "y" { cpu = 2 borrow any }
  others { cpu = 0 }
}
quota team by pod.labels["team"] else "none" {
  "a" { cpu = 8 borrow any }
  "b" { cpu = 0 borrow any }
  "c" { cpu = 0 borrow any }
  others { cpu = 0 }
}
"""


def beside_pods_of_y(team: str) -> Rig:
    """A pod is entitled in its organisation, whose amount pods of the team in `y` use, and borrows in its own team."""
    rig = Rig(ORGS_AND_TEAMS, node("n", cpu="100"))
    running(
        rig, [pod(f"y{index}", cpu="2", labels={"org": "y", "team": team}, priority=10) for index in range(2)]
    )
    rig.observe(pod("own", cpu="2", labels={"org": "x", "team": "b"}))
    rig.settle()
    return rig


def test_who_borrows_in_one_quota_takes_nothing_back_in_another_from_its_owners() -> None:
    """They would take back in their quota what it borrows there, in turns."""
    rig = beside_pods_of_y("a")

    assert victims(rig) == []
    assert "; 2 pods are kept by quotas, because this pod would borrow" in (rig.pending_message("own") or "")


SLOW_VICTIMS = (
    "preemption { victims = " + " and ".join(f"victim.priority < {50 + k}" for k in range(40)) + " }\n"
)
"""79 operations for each pod that may be evicted: the policy takes long to say it."""


def test_borrowers_are_asked_about_in_pieces_and_others_in_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 1,200 borrowers each was asked about in each attempt, at 2 ms."""
    monkeypatch.setattr(eviction_rights, "QUESTIONS_COST_MAX", 400)
    monkeypatch.setattr(quota_reclaim, "PODS_PER_ATTEMPT", 3)
    rig = Rig(TEAMS + SLOW_VICTIMS, node("n", cpu="100"))
    protected = [pod(f"a{at}", namespace="a", cpu="1", priority=60) for at in range(7)]
    running(rig, protected, [pod("spare", namespace="a", cpu="1")], pods("b", 4))

    rig.observe(pod("own", namespace="c", cpu="1"))
    asked = count_calls(monkeypatch, EvictionRights, "_answer", rig.settle)
    rig.pass_time(120)

    assert asked <= 3 < len(protected)
    assert victims(rig) == ["spare"]


def test_an_owner_that_fits_where_other_borrowers_are_asks_about_them_in_a_later_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that the quotas choose are on four nodes."""
    monkeypatch.setattr(eviction_rights, "QUESTIONS_COST_MAX", 400)
    names = [f"n{at}" for at in range(8)]
    text = TEAMS.replace('"a" { cpu = 4', '"a" { cpu = 28').replace('"b" { cpu = 4', '"b" { cpu = 0')
    rig = Rig(text + SLOW_VICTIMS, *[node(name, cpu="4") for name in names])
    for name in names:
        priorities = [40] * 4 if name == "n6" else [1 if name < "n4" else 99, 99, 99, 99]
        rig.observe(
            *[
                placed(pod(f"{name}-{at}", namespace="a", cpu="1", priority=priority), name)
                for at, priority in enumerate(priorities)
            ]
        )

    rig.observe(pod("own", namespace="c", cpu="4"))
    rig.pass_time(600)

    assert sorted(victims(rig)) == [f"n6-{at}" for at in range(4)]


@pytest.mark.parametrize("size", [1, 2], ids=["a pod", "a gang"])
def test_who_borrows_in_one_quota_leaves_owners_of_it_their_amount(size: int) -> None:
    """Without the first victim the entity is an owner. Each victim by itself is borrowed."""
    text = f'{ORGS_AND_TEAMS}gang by pod.labels["group"] {{ min = 2 }}\n'
    text = (
        text.replace("cpu = 2 borrow", "cpu = 4 borrow")
        .replace("cpu = 8", "cpu = 4")
        .replace("cpu = 0 borrow", "cpu = 4 borrow")
    )
    rig = Rig(text, node("n", cpu="20"))
    y, group = {"org": "y"}, {"group": "g"} if size > 1 else {}
    running(
        rig,
        [
            pod("b", cpu="3", labels={**y, "team": "b"}, priority=9),
            pod("a", cpu="1", labels={**y, "team": "a"}, priority=9),
            *(pod(f"victim{at}", cpu="2", labels={**y, "team": "a"}) for at in range(2)),
        ],
    )

    rig.observe(
        *[
            pod(f"own{at}", cpu=str(4 // size), labels={"org": "x", "team": "b", **group})
            for at in range(size)
        ]
    )
    rig.settle()

    assert sorted(victims(rig)) == ["b", "victim0"], "the pod of its own team, which `y` borrows"


def test_who_takes_back_one_quota_and_borrows_in_another_keeps_what_it_took_from_borrowers() -> None:
    """The controller of the victim creates it again, and the queue has it first."""
    rig = beside_pods_of_y("c")
    (evicted,) = victims(rig)
    rig.handle(e.Evicted(pod("own").uid, (pod(evicted).uid,)))

    rig.observe(pod("again", cpu="2", labels={"org": "y", "team": "c"}, priority=10))
    rig.handle(e.PodDeleted(pod(evicted).uid))
    rig.pass_time(60)

    assert "again" not in rig.placements()
    assert rig.placements()["own"] == "n"
    assert victims(rig) == [evicted]
