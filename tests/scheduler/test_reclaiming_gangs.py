"""A gang takes back quota where its members fit: if they fit nowhere without the borrowers that count least, others go."""

import pytest

from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs import gang_reclaim
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_quota_preemption import TEAMS, carry_out_evictions, victims

SMALL = [node(f"s{index}", cpu="1") for index in range(4)]


def borrowers(large: int = 4, priority: int = 5, **more: object) -> list[Pod]:
    """Of a: unimportant ones on nodes where no member fits, and more important ones on n, and others on z with all of b."""
    return [
        *(placed(pod(f"low{at}", namespace="a", cpu="1"), f"s{at}") for at in range(4)),
        *(
            placed(pod(f"on-n{at}", namespace="a", cpu="1", priority=priority, **more), "n")
            for at in range(large)
        ),
        *(placed(pod(f"on-z{at}", namespace="a", cpu="1", priority=9), "z") for at in range(4 - large)),
        *(placed(pod(f"b{at}", namespace="b", cpu="1"), "z") for at in range(4)),
    ]


def gang(count: int = 2, cpu: str = "2", **more: object) -> list[Pod]:
    return [pod(f"own{at}", namespace="c", cpu=cpu, labels={"group": "g"}, **more) for at in range(count)]


def test_a_gang_takes_back_where_its_members_fit() -> None:
    rig = Rig(TEAMS, node("n", cpu="4"), node("z", cpu="4"), *SMALL, *borrowers())

    rig.observe(*gang())
    rig.settle()

    assert sorted(victims(rig)) == ["on-n0", "on-n1", "on-n2", "on-n3"]
    carry_out_evictions(rig)
    assert {rig.placements()[name] for name in ("own0", "own1")} == {"n"}


def test_a_gang_takes_as_few_pods_as_its_quota_and_its_nodes_need() -> None:
    rig = Rig(TEAMS, node("n", cpu="4"), node("z", cpu="4"), *SMALL, *borrowers())

    rig.observe(*gang(cpu="1500m"))
    rig.settle()

    assert len(victims(rig)) == 3
    assert all(name.startswith("on-n") for name in victims(rig))
    carry_out_evictions(rig)
    assert {rig.placements()[name] for name in ("own0", "own1")} == {"n"}


def test_a_gang_takes_more_elsewhere_if_its_nodes_free_too_little_of_its_quota() -> None:
    free = node("free", cpu="2")
    rig = Rig(TEAMS, node("n", cpu="2"), node("z", cpu="6"), free, *SMALL, *borrowers(large=2))

    rig.observe(*gang())
    rig.settle()

    assert sorted(victims(rig)) == ["low0", "low1", "on-n0", "on-n1"], "one member fits on a free node"
    carry_out_evictions(rig)
    assert {rig.placements()[name] for name in ("own0", "own1")} == {"n", "free"}


def test_nobody_is_evicted_for_a_gang_that_would_fit_on_no_nodes() -> None:
    rig = Rig(TEAMS, node("n", cpu="3"), node("z", cpu="5"), *SMALL, *borrowers(large=3))

    rig.observe(*gang())
    rig.settle()

    assert victims(rig) == []


def test_a_gang_does_not_take_more_than_an_entity_borrows() -> None:
    """On n run four pods of a, which borrows two cpu."""
    borrowed = [
        *(placed(pod(f"on-n{at}", namespace="a", cpu="1"), "n") for at in range(4)),
        *(placed(pod(f"low{at}", namespace="a", cpu="1", priority=-1), f"s{at}") for at in range(2)),
        *(placed(pod(f"b{at}", namespace="b", cpu="1"), "z") for at in range(6)),
    ]
    rig = Rig(TEAMS, node("n", cpu="4"), node("z", cpu="6"), *SMALL[:2], *borrowed)

    rig.observe(*gang())
    rig.settle()

    assert len([name for name in victims(rig) if name.startswith("on-n")]) <= 2


def test_others_go_if_the_borrowers_where_a_gang_fits_best_are_more_than_is_borrowed() -> None:
    """Of the four pods on n only two are borrowed, so one member goes to z."""
    rig = Rig(
        TEAMS,
        *[node("n", cpu="4"), node("z", cpu="2"), *SMALL, node("s4", cpu="1"), node("s5", cpu="1")],
        *(placed(pod(f"on-n{at}", namespace="a", cpu="1"), "n") for at in range(4)),
        *(placed(pod(f"on-z{at}", namespace="b", cpu="1", priority=5), "z") for at in range(2)),
        *(placed(pod(f"low{at}", namespace="a", cpu="1", priority=-1), f"s{at}") for at in range(2)),
        *(placed(pod(f"b{at}", namespace="b", cpu="1", priority=9), f"s{at}") for at in range(2, 6)),
    )

    rig.observe(*gang())
    rig.settle()

    assert len(victims(rig)) == 4
    assert len([name for name in victims(rig) if name.startswith("on-n")]) == 2
    carry_out_evictions(rig)
    assert {rig.placements()[name] for name in ("own0", "own1")} == {"n", "z"}


def test_others_go_if_the_borrowers_where_a_pod_fits_best_are_more_than_is_borrowed() -> None:
    rig = Rig(
        TEAMS,
        *[node("n", cpu="4"), node("z", cpu="4"), *SMALL],
        *(placed(pod(f"on-n{at}", namespace="a", cpu="1"), "n") for at in range(4)),
        *(placed(pod(f"on-z{at}", namespace="ab"[at % 2], cpu="1", priority=5), "z") for at in range(4)),
        *(placed(pod(f"b{at}", namespace="b", cpu="1", priority=-1), f"s{at}") for at in range(4)),
    )

    rig.observe(pod("own", namespace="c", cpu="4"))
    rig.settle()

    assert sorted(victims(rig)) == ["on-z0", "on-z1", "on-z2", "on-z3"]
    carry_out_evictions(rig)
    assert rig.placements()["own"] == "z"


def test_the_borrowers_of_one_domain_go_for_a_gang_in_one_domain() -> None:
    text = TEAMS.replace("timeout = 5m", 'topology = "zone"  timeout = 5m')
    nodes = [node(f"n{at}", cpu="2", labels={"zone": zone}) for at, zone in enumerate("xxyy")]
    nodes.append(node("z", cpu="4", labels={"zone": "z"}))
    on = [
        placed(pod(f"{zone}{at}", namespace="a", cpu="2", priority=priority), f"n{at}")
        for at, (zone, priority) in enumerate((("x", 0), ("x", 9), ("y", 5), ("y", 5)))
    ]
    on += [placed(pod(f"b{at}", namespace="b", cpu="1"), "z") for at in range(4)]
    rig = Rig(text, *nodes, *on)

    rig.observe(*gang())
    rig.settle()

    assert sorted(victims(rig)) == ["y2", "y3"], "the least important ones, x0 and y2, are in two domains"
    carry_out_evictions(rig)
    assert {rig.placements()[name] for name in ("own0", "own1")} == {"n2", "n3"}


def test_a_running_gang_that_borrows_goes_whole_where_another_fits() -> None:
    rig = Rig(TEAMS, node("n", cpu="4"), node("z", cpu="4"), *SMALL, *borrowers(labels={"group": "theirs"}))

    rig.observe(*gang(cpu="1500m"))
    rig.settle()

    assert sorted(victims(rig)) == ["on-n0", "on-n1", "on-n2", "on-n3"], "one would be less than its minimum"


def test_the_search_where_a_gang_fits_has_a_limit_while_it_does_not_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_reclaim, "_COST_WITHOUT_PAUSE_MAX", 5)
    rig = Rig(TEAMS, node("n", cpu="4"), node("z", cpu="4"), *SMALL, *borrowers())

    rig.observe(*gang())
    rig.settle()

    assert victims(rig) == []
    assert not rig.of(c.Bind)
    rig.check_invariants()


@pytest.mark.parametrize("labels", [{}, {"group": "g"}])
def test_a_disruption_that_a_node_has_used_up_is_not_used_again_elsewhere(labels: dict[str, str]) -> None:
    """One disruption is left: it goes to the pod on n, where the claimants fit."""
    text = TEAMS.replace("min = 2", "min = 1")
    covered = {"app": "web"}
    rig = Rig(
        text,
        node("n", cpu="2"),
        node("z", cpu="10"),
        *SMALL[:3],
        placed(pod("on-n", namespace="a", cpu="1", priority=5, labels=covered), "n"),
        placed(pod("covered", namespace="a", cpu="1", priority=-2, labels=covered), "s0"),
        placed(pod("other", namespace="a", cpu="1", priority=-1), "s1"),
        placed(pod("a0", namespace="a", cpu="5", priority=9), "z"),
        placed(pod("b0", namespace="b", cpu="4", priority=9), "z"),
    )
    selector = LabelSelector((SelectorRequirement("app", "In", ("web",)),))
    rig.handle(e.DisruptionBudgetUpdated(DisruptionBudget("a", "web", selector, 1, frozenset())))

    rig.observe(pod("own", namespace="c", cpu="2", labels=labels))
    rig.settle()

    assert sorted(victims(rig)) == ["on-n", "other"]
