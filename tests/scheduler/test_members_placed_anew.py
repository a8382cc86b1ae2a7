"""Late in the attempt of a gang others may take the nodes of members, which are placed anew: nobody waits for the end of a long search."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from policysched.evaluate import OneNode
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.limits import SECOND_NS
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_gangs_beside_gangs import bound_namespaces, gang_of, keeping_nodes
from tests.scheduler.test_pauses import (
    ALONE,
    NEVER,
    POLICIES,
    SPREAD,
    attempts_pause,
    decide_until_pause,
    gang,
    rig,
)
from tests.scheduler.test_pods_beside_gangs import LAYERED
from tests.scheduler.test_second_search_pauses import gang as unequal
from tests.scheduler.test_second_search_pauses import pause_of_second_search

PINNED = POLICIES["plain.policy"] + "filter node_affinity\n"
ZONE = "topology.kubernetes.io/zone"


def beside_members(
    *,
    fits: int,
    members: int = 8,
    cpu: str = "2",
    nodes: int = 5,
    head_start: int = 1,
    plain: str = PINNED,
) -> Rig:
    """In the pause of a gang's attempt in which so many members have a node. There is room for all, and for two more."""
    scheduler = rig(
        *[node(f"n{at}", cpu=cpu, labels={"name": f"n{at}"}) for at in range(nodes)],
        *gang(members),
        policies=POLICIES | {"gangs.policy": ALONE + "filter node_affinity\n", "plain.policy": plain},
        head_start=head_start,
    )
    decide_until_fits(scheduler, fits)
    return scheduler


def decide_until_fits(scheduler: Rig, fits: int) -> None:
    while not scheduler.scheduler.attempt_paused or len(attempts_pause(scheduler).search.fits) < fits:
        decide_until_pause(scheduler)


def pinned(name: str, to: str, *, cpu: str = "2") -> Pod:
    return pod(name, cpu=cpu, scheduler="plain", node_selector={"name": to}, namespace="other")


def decide_until(scheduler: Rig, bound: Sequence[str]) -> None:
    """Those of them that are bound before the gang."""
    while not {*bound} <= scheduler.placements().keys():
        assert scheduler.scheduler.ready(scheduler.now_ns), f"only {scheduler.bind_order()} are bound"
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()


def check_pod_takes_a_node() -> None:
    scheduler = beside_members(fits=4)
    taken = attempts_pause(scheduler).search.fits[0][1].node

    scheduler.observe(pinned("p", taken))
    decide_until(scheduler, ["p"])

    assert scheduler.bind_order() == ["p"]
    scheduler.settle()
    assert len(scheduler.placements()) == 9
    assert [name for name, on in scheduler.placements().items() if on == taken] == ["p"]


def test_a_pod_takes_the_node_of_a_member_late_in_the_attempt() -> None:
    """Before, it waited for the end of the attempt, with those behind it."""
    check_pod_takes_a_node()


def test_a_pod_that_waits_for_the_end_of_the_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake."""
    monkeypatch.setattr(Pause, "_may_take_node", lambda *_: False)

    with pytest.raises(AssertionError):
        check_pod_takes_a_node()


def test_a_pod_takes_no_node_of_a_member_early_in_the_attempt() -> None:
    scheduler = beside_members(fits=4, head_start=NEVER)
    taken = attempts_pause(scheduler).search.fits[0][1].node

    scheduler.observe(pinned("p", taken, cpu="2"))
    scheduler.settle()

    assert len(scheduler.placements()) == 8 and "p" not in scheduler.placements()


def test_a_pod_of_lower_priority_takes_no_node_of_a_member() -> None:
    scheduler = beside_members(fits=4)
    pause = attempts_pause(scheduler)

    scheduler.observe(replace(pinned("p", pause.search.fits[0][1].node), priority=-1))
    scheduler.settle()

    assert len(scheduler.placements()) == 8 and "p" not in scheduler.placements()


def test_a_pod_behind_the_gang_in_its_policy_takes_no_node_of_a_member() -> None:
    """It took one, and the gang ahead of it, for which there was room, did not start."""
    scheduler = beside_members(fits=4, nodes=4)
    taken = attempts_pause(scheduler).search.fits[0][1].node

    scheduler.observe(replace(pinned("p", taken, cpu="1"), scheduler="test"))
    scheduler.settle()

    assert len(scheduler.placements()) == 8 and "p" not in scheduler.placements()


def test_a_member_that_others_depend_on_is_not_placed_anew_alone() -> None:
    """It got a node of another zone, and those that require it in theirs were left without it."""
    nodes = [node(f"n{at}", cpu="3", zone=f"z{at // 3}", labels={"name": f"n{at}"}) for at in range(6)]
    scheduler = rig(
        *nodes, policies=POLICIES | {"gangs.policy": SPREAD, "plain.policy": PINNED}, head_start=1
    )
    term = {"labelSelector": {"matchLabels": {"app": "lead"}}, "topologyKey": ZONE}
    beside_lead = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    labels = {"group": "g", "least": "4"}
    scheduler.observe(
        pod("first", cpu="3", labels=labels | {"app": "lead"}),
        *[pod(f"g{at}", cpu="1", labels=labels, spec=beside_lead) for at in range(2)],
        pod("g2", cpu="1", labels=labels),
    )
    decide_until_fits(scheduler, 3)
    lead, success = attempts_pause(scheduler).search.fits[0]
    assert lead.pod.name == "first"

    scheduler.observe(pinned("p", success.node, cpu="3"))
    scheduler.settle()

    zone_of = {name: int(on.removeprefix("n")) // 3 for name, on in scheduler.placements().items()}
    assert zone_of["g0"] == zone_of["g1"] == zone_of["first"]


@pytest.mark.parametrize("plain", [PINNED, LAYERED + "filter node_affinity\n"], ids=["plain", "interrupting"])
def test_a_gang_that_failed_as_it_lost_nodes_keeps_them_in_the_next_attempt(plain: str) -> None:
    """It failed as often as a pod took a node late in an attempt, also if that had gone before the next one."""
    scheduler = beside_members(fits=4, nodes=4, plain=plain)

    for number in range(2):
        taken = attempts_pause(scheduler).search.fits[0][1].node
        scheduler.observe(pinned(f"p{number}", taken, cpu="1"))
        scheduler.settle()
        if number:
            break
        assert list(scheduler.placements()) == ["p0"]
        scheduler.handle(e.PodDeleted(PodUid("uid-other-p0")))
        scheduler.now_ns += 20 * SECOND_NS
        decide_until_fits(scheduler, 4)

    assert {name for name in scheduler.placements() if name.startswith("g")} == {f"g{at}" for at in range(8)}


def test_a_pod_takes_the_node_of_a_member_in_the_second_search() -> None:
    with patch.object(Pause, "gives_way_to", lambda *_: True):
        scheduler = pause_of_second_search(unequal(1, 1, 1, 4, 4), node("large2", cpu="4"))
        taken = attempts_pause(scheduler).search.fits[0][1].node

        scheduler.observe(pod("p", cpu="4", scheduler="plain", namespace="other"))
        scheduler.observe(pod("q", cpu="4", scheduler="plain", namespace="other"))
        decide_until(scheduler, ["p", "q"])

        assert not any(name.startswith("g") for name in scheduler.bind_order())
        assert taken in scheduler.placements().values()
        scheduler.observe(node("large3", cpu="4"))
        scheduler.settle()
        scheduler.pass_time(5)
    assert len(scheduler.placements()) == 7


def test_only_members_on_the_node_that_was_taken_are_evaluated_again() -> None:
    scheduler = beside_members(fits=6, members=9, nodes=6)
    search, again = attempts_pause(scheduler).search, list[str]()
    evaluate, of_gang = PodAttempts.evaluate, {member.uid for member, _ in search.fits}

    def counted(self: PodAttempts, of: object, overlay: object, now_ns: int, nodes: object = None) -> object:
        if isinstance(nodes, OneNode) and of.uid in of_gang:  # type: ignore[attr-defined]
            again.append(of.pod.name)  # type: ignore[attr-defined]
        return evaluate(self, of, overlay, now_ns, nodes)  # type: ignore[arg-type]

    taken = search.fits[0][1].node
    on_node = [member.pod.name for member, success in search.fits if success.node == taken]
    with patch.object(PodAttempts, "evaluate", counted):
        scheduler.observe(pinned("p", taken))
        scheduler.settle()

    assert again == on_node
    assert len(scheduler.placements()) == 10


def test_once_as_many_members_lost_their_nodes_as_the_gang_has_they_keep_them() -> None:
    scheduler = beside_members(fits=4, members=6, nodes=4)
    pause = attempts_pause(scheduler)
    pause.lost_count = 5
    first, other = {success.node for _, success in pause.search.fits}

    scheduler.observe(pinned("p", first, cpu="2"))
    decide_until(scheduler, ["p"])
    scheduler.observe(pinned("q", other, cpu="2"))
    scheduler.settle()

    assert len(scheduler.placements()) == 7 and "q" not in scheduler.placements()


def test_a_gang_that_would_take_nodes_of_members_waits_no_longer_after_a_lost_attempt() -> None:
    """Before, it waited for the end of the attempt."""
    scheduler = keeping_nodes(nodes=4, cpu="6", head_start=1)

    scheduler.observe(*gang_of("a", cpu="4"))
    scheduler.settle()

    assert bound_namespaces(scheduler)[0] == "a"


def test_a_pod_that_may_preempt_is_attempted_late_in_the_attempt_after_a_lost_one() -> None:
    """Before, at its end."""
    low = [placed(pod(f"low{at}", cpu="5", priority=-1), f"n{at}") for at in range(4)]
    nodes = [node(f"n{at}", cpu="9") for at in range(4)]
    preempting = POLICIES["plain.policy"].replace("never", "{ victims = any }")
    policies = POLICIES | {"gangs.policy": ALONE, "plain.policy": preempting}
    scheduler = rig(*nodes, *low, *gang(12), policies=policies, head_start=64)
    decide_until_pause(scheduler)
    attempts_pause(scheduler).gang.keeps_nodes = True

    scheduler.observe(pod("p", cpu="5", scheduler="plain", namespace="other"))
    while not scheduler.of(c.Evict):
        assert scheduler.scheduler.ready(scheduler.now_ns) and not scheduler.placements()
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
