"""Pauses in the second search for a gang of unequal members, the most demanding first: what happens meanwhile, and what must
hold afterwards. The first search pauses likewise (`test_pauses`)."""

from collections.abc import Callable

import pytest

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs.member_trial import MemberTrial
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.steps import Steps
from tests.builders import node, placed, pod
from tests.evaluate.clusters import ClusterRandom
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import (
    ALONE,
    NEVER,
    POLICIES,
    always_fit,
    attempts_pause,
    check_rest,
    decide_until_pause,
    history,
    never_ends,
    plain,
    rig,
)

MOST_FREE = ALONE + "score node_resources_fit weight 1\n"
IN_A_RACK = MOST_FREE.replace("min = least", 'min = least topology = "rack"')

LABELS = {"group": "g", "least": "4"}


def gang(*cpu: int, least: int | None = None) -> list[Pod]:
    labels = {"group": "g", "least": str(len(cpu) if least is None else least)}
    return [
        pod(f"g{index}", cpu=str(size), labels=labels, created="2026-01-01T00:00:00Z")
        for index, size in enumerate(cpu)
    ]


def pause_of_second_search(
    members: list[Pod], *more: object, policy: str = MOST_FREE, fits: int = 3, small: int = 4
) -> Rig:
    """In queue order the small members take the nodes of the large ones. The pause is the first one in which this many of the
    most demanding members have a node."""
    large = [node(f"large{index}", cpu="4", labels={"rack": "r"}) for index in range(2)]
    others = [node(f"small{index}", cpu="2", labels={"rack": "r"}) for index in range(small)]
    scheduler = rig(*large, *others, *members, *more, policies={**POLICIES, "gangs.policy": policy})
    while True:
        decide_until_pause(scheduler)
        search = attempts_pause(scheduler).search
        if len(search.fits) >= fits and search.fits[0][0].pod.requests["cpu"] == 4000:
            return scheduler


def bound_beside(scheduler: Rig, members: int) -> int:
    """A pod that only the last node has room for is created in each pause. Returns how many were bound before a member."""
    scheduler.observe(node("beside", cpu="900m"))
    for number in range(100):
        if scheduler.scheduler.attempt_paused:
            scheduler.observe(plain(f"p{number}", cpu="1m"))
        if not scheduler.scheduler.ready(scheduler.now_ns):
            break
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
    order = scheduler.bind_order()
    assert len(scheduler.placements()) == len(order)
    assert sum(name.startswith("g") for name in order) == members
    return next((index for index, name in enumerate(order) if name.startswith("g")), len(order))


# ── what happens in a pause ────────────────────────────────────────────────────────────────────────────────────────


def test_pods_are_bound_while_the_most_demanding_members_are_tried_first() -> None:
    """Before, none was until the attempt ended."""
    assert bound_beside(pause_of_second_search(gang(1, 1, 1, 1, 1, 4, 4), fits=2), 7) >= 4


def test_pods_are_bound_while_the_last_of_them_fits_nowhere() -> None:
    """The five small members fill the small nodes, and the last one is left."""
    assert bound_beside(pause_of_second_search(gang(1, 1, 1, 1, 1, 4, 4), fits=2, small=2), 0) >= 4


def test_pods_are_bound_while_members_of_a_domain_are_tried_in_that_order() -> None:
    scheduler = pause_of_second_search(gang(1, 1, 1, 1, 1, 4, 4), policy=IN_A_RACK, fits=2)

    assert bound_beside(scheduler, 7) >= 4


# ── what must hold afterwards ──────────────────────────────────────────────────────────────────────────────────────


def check_node_stops_fitting() -> None:
    scheduler = pause_of_second_search(gang(1, 1, 1, 4, 4), policy=MOST_FREE + "filter node_unschedulable\n")
    _, success = attempts_pause(scheduler).search.fits[-1]

    scheduler.handle(e.NodeUpdated(node(success.node, cpu="2", unschedulable=True)))
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) == 5
    assert success.node not in scheduler.placements().values()


def test_no_member_is_bound_to_a_node_that_stops_fitting_in_a_pause() -> None:
    check_node_stops_fitting()


def test_the_next_members_are_placed_on_the_cluster_after_the_pause() -> None:
    """Another scheduler fills two nodes that no member is on yet."""
    scheduler = pause_of_second_search(gang(1, 1, 1, 1, 4, 4))
    used = {success.node for _, success in attempts_pause(scheduler).search.fits}
    full = sorted({f"small{index}" for index in range(4)} - used)[:2]

    scheduler.observe(*[placed(pod(f"x-{name}", cpu="2", scheduler="other"), name) for name in full])
    scheduler.settle()

    assert len(scheduler.placements()) == 6
    assert not {*full} & {*scheduler.placements().values()}


def check_next_member_leaves() -> None:
    scheduler = pause_of_second_search(gang(1, 1, 1, 4, 4, least=4), fits=4)
    with_nodes = {member.uid for member, _ in attempts_pause(scheduler).search.fits}
    (last,) = {member.uid for member in gang(1, 1, 1, 4, 4)} - with_nodes

    scheduler.handle(e.PodDeleted(last))
    scheduler.settle()

    assert {bind.uid for bind in scheduler.of(c.Bind)} == with_nodes


def test_the_next_member_that_is_deleted_in_a_pause_is_not_bound() -> None:
    check_next_member_leaves()


def test_a_member_that_leaves_is_no_failure_of_its_class() -> None:
    scheduler = pause_of_second_search(gang(1, 1, 1, 4, 4, least=4))
    with_nodes = {member.uid for member, _ in attempts_pause(scheduler).search.fits}
    gone, left = sorted({member.uid for member in gang(1, 1, 1, 4, 4)} - with_nodes)

    scheduler.handle(e.PodDeleted(gone))
    scheduler.settle()

    assert {bind.uid for bind in scheduler.of(c.Bind)} == {*with_nodes, left}


@pytest.mark.parametrize("gone", ["a member", "a node", "the policy"])
def test_a_search_that_lost_a_member_or_its_node_starts_again(gone: str) -> None:
    scheduler = pause_of_second_search(gang(1, 1, 1, 1, 4, 4, least=5))
    member, success = attempts_pause(scheduler).search.fits[-1]

    match gone:
        case "a member":
            scheduler.handle(e.PodDeleted(member.uid))
        case "a node":
            scheduler.handle(e.NodeDeleted(success.node))
        case _:
            scheduler.apply_policies({**POLICIES, "gangs.policy": MOST_FREE + "# edited\n"})
    scheduler.settle()
    scheduler.pass_time(5)

    assert len(scheduler.placements()) == (5 if gone == "a member" else 6)
    assert all(bind.node != success.node for bind in scheduler.of(c.Bind)) or gone != "a node"


def check_quota_is_used() -> None:
    quota = 'quota team by pod.namespace { "default" { cpu = 12 } others unlimited }\n'
    scheduler = pause_of_second_search(gang(1, 1, 1, 1, 4, 4), policy=MOST_FREE + quota)

    scheduler.observe(placed(pod("outside", cpu="1"), "small3"))
    scheduler.settle()

    assert not scheduler.placements()


def test_a_quota_that_is_used_in_a_pause_admits_no_further_member() -> None:
    check_quota_is_used()


def check_room_appears() -> None:
    """The first member for a full node has failed, and then there is room for one. A member for another full node comes between
    it and the next one, as a placement would have that one evaluated again, too."""
    members = gang(1, 1, 4, 4, least=4)
    for index in range(4):
        rack = {"rack": ("late", "full")[index % 2]}
        created = f"2026-01-02T00:00:0{index}Z"
        members.append(pod(f"h{index}", cpu="1", labels=LABELS, node_selector=rack, created=created))
    nodes = [node(name, cpu="1", labels={"rack": name}) for name in ("late", "full")]
    others = [placed(pod(f"on-{each.name}", cpu="1", scheduler="other"), each.name) for each in nodes]
    policy = MOST_FREE + "filter node_affinity\n"
    scheduler = pause_of_second_search(members, *nodes, *others, policy=policy, fits=2)
    decide_until_pause(scheduler)
    assert len(attempts_pause(scheduler).search.fits) == 2

    scheduler.handle(e.PodDeleted(PodUid("uid-default-on-late")))
    while not scheduler.placements():
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert sorted(scheduler.placements()) == ["g0", "g1", "g2", "g3", "h2"]


def test_members_that_failed_before_a_pause_are_tried_again() -> None:
    check_room_appears()


def test_a_gang_yields_to_a_pod_that_comes_ahead_of_it_in_a_pause() -> None:
    """It needs the room of the gang, and has a quota, so that no pause decides about it."""
    policy = MOST_FREE + "queue by pod.priority desc\nquota q by pod.namespace { others { pods = 99 } }\n"
    scheduler = pause_of_second_search(gang(1, 1, 1, 4, 4), policy=policy)

    scheduler.observe(pod("urgent", cpu="4", priority=10))
    scheduler.settle()

    assert list(scheduler.placements()) == ["urgent"]


# ── random histories ───────────────────────────────────────────────────────────────────────────────────────────────


def unequal(rng: ClusterRandom, count: int, name: str) -> list[Pod]:
    least = count - rng.randint(0, 1)
    labels = {"group": name, "least": str(least)}
    sizes = [rng.choice(("500m", "1", "2", "3")) for _ in range(count)]
    return [
        pod(f"{name}{index}", cpu=cpu, labels=labels, created="2026-01-01T00:00:00Z")
        for index, cpu in enumerate(sizes)
    ]


def check_history(number: int) -> None:
    check_rest(history(number, gang_of=unequal))


@pytest.mark.parametrize("block", range(4))
def test_random_histories_with_unequal_members(block: int) -> None:
    for number in range(block * 25, block * 25 + 25):
        check_history(number)


def test_pauses_in_which_nothing_happens_change_nothing() -> None:
    for number in range(40):
        rng = ClusterRandom(f"unequal alone {number}")
        nodes = [
            node(f"n{index}", cpu=rng.choice(("2", "4")), labels={"rack": f"r{index % 2}"})
            for index in range(rng.randint(3, 6))
        ]
        members = [each for index in range(2) for each in unequal(rng, rng.randint(2, 7), f"g{index}-")]
        policies = {"gangs.policy": rng.choice((MOST_FREE, IN_A_RACK))}
        placements = []
        for piece in (1, NEVER):
            scheduler = rig(*nodes, *members, policies=policies, piece=piece)
            scheduler.settle()
            placements.append(scheduler.placements())
        assert placements[0] == placements[1]


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def stale(self: MemberTrial, _: Pod) -> Steps[bool]:
    """The step alone, with the quotas of before, and members that failed before it."""
    self._pauses.search = self._search
    yield 0
    self._pauses.search = None
    return False


@pytest.mark.parametrize(
    ("holder", "part", "planted", "check"),
    [
        (Pause, "ends_attempt", never_ends, check_history),
        (Pause, "_still_fit", always_fit, lambda _: check_node_stops_fitting()),
        (Pause, "note_changes", lambda _: None, check_history),
        (MemberTrial, "pause", stale, lambda _: check_quota_is_used()),
        (MemberTrial, "pause", stale, lambda _: check_room_appears()),
        (MemberTrial, "is_pending", lambda *_: True, lambda _: check_next_member_leaves()),
    ],
    ids=[
        "a search outlives its members",
        "a search outlives what its nodes were",
        "changes are not noticed",
        "the quotas are those of before",
        "members that failed before a pause fail after it",
        "a member that left is placed",
    ],
)
def test_a_planted_mistake_is_found(
    holder: object, part: str, planted: object, check: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, part, planted)

    with pytest.raises((AssertionError, KeyError)):
        for number in range(150):
            check(number)
