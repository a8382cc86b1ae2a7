"""Pauses in the search of nodes for a gang that takes back quota: what happens meanwhile, and what must hold afterwards."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.gangs import gang_reclaim
from policysched.scheduler.preemption.gang_placement import GangPlacement
from policysched.scheduler.preemption.quota_preemption import QuotaPreemption
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps
from tests.builders import node, placed, pod
from tests.scheduler.rig import FIT, Rig
from tests.scheduler.test_claims_of_owners import member as team_member
from tests.scheduler.test_claims_of_owners import nested
from tests.scheduler.test_pauses import rig as rig_with_pauses
from tests.scheduler.test_quota_preemption import carry_out_evictions, victims
from tests.volumes import claim, storage_class, using, volume

AMOUNT = 8000
TEAMS = """\
policy test version 1
filter node_resources_fit
filter volume_binding
queue by pod.priority desc, pod.name
preemption { victims = not has victim.labels["kept"] }
gang by pod.labels["group"] { min = 4  timeout = 30m }
quota team by pod.namespace {
  "a" { cpu = 8 borrow any }
  "b" { cpu = 8 borrow any }
  "c" { cpu = 8 borrow any }
  others { cpu = 0 }
}
"""
POLICIES = {"test.policy": TEAMS, "plain.policy": FIT.replace("policy test", "policy plain")}


def members(cpu_milli: int = 1400, *, with_volumes: bool = False) -> list[Pod]:
    """No two are equal."""
    return [
        pod(
            f"own{at}",
            namespace="c",
            cpu=f"{cpu_milli + at}m",
            labels={"group": "g"},
            spec=using(f"data{at}") if with_volumes else None,
        )
        for at in range(4)
    ]


def add_volumes(scheduler: Rig) -> None:
    """One for each member, and another. Any fits, on any node."""
    claims = [replace(claim(f"data{at}"), key=VolumeClaimKey("c", f"data{at}")) for at in range(4)]
    storage = (storage_class(), *claims, *[volume(f"v{at}") for at in range(5)])
    scheduler.handle(*[e.StorageObjectUpdated(each) for each in storage])  # type: ignore[arg-type]


def borrower(at: int, on: int, cpu: str = "2", **more: object) -> object:
    return placed(pod(f"a{at}", namespace="a", cpu=cpu, **more), f"n{on}")


def cluster(*, head_start: int = 1) -> Rig:
    """Of 24 cpu a uses 16 and b 8; on each of six nodes 1 cpu is free."""
    nodes = [node(f"n{at}", cpu="5") for at in range(6)]
    of_a = [borrower(at, at % 6) for at in range(8)]
    of_b = [placed(pod(f"b{at}", namespace="b", cpu="2"), f"n{2 + at}") for at in range(4)]
    scheduler = rig_with_pauses(*nodes, *of_a, *of_b, policies=POLICIES, head_start=head_start)
    return checked(scheduler)


def decide_until_reclaim_pauses(scheduler: Rig, fits: int = 1) -> bool:
    """Until the next pause beside victims, with so many members that have a node. False: there is none."""
    before = scheduler.scheduler._attempts._pause
    while scheduler.scheduler.ready(scheduler.now_ns):
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
        pause = scheduler.scheduler._attempts._pause
        if pause is None or pause is before:
            continue
        if pause.search.reclaims and len(pause.search.fits) >= fits:
            return True
    return False


def checked(scheduler: Rig) -> Rig:
    preemption = scheduler.scheduler._attempts._gang_attempts._preemption
    evict = preemption.evict_for_gang

    def check(gang: QueuedGang, placement: GangPlacement, now_ns: int) -> Steps[None]:
        check_evictions(scheduler, gang, placement)
        return evict(gang, placement, now_ns)

    preemption.evict_for_gang = check  # type: ignore[method-assign]
    return scheduler


def check_evictions(scheduler: Rig, gang: QueuedGang, placement: GangPlacement) -> None:
    """The victims may be evicted and borrow, without them the quotas admit the members and these fit, and each is needed for that."""
    core = scheduler.scheduler._core
    cpu = {name: core.cache.ledger.usage(name).requested.get("cpu", 0) for name in core.cache.nodes}
    used = {"a": 0, "b": 0, "c": 0}
    for observed in core.cache.pods.values():
        if core.cache.ledger.placement(observed.pod.uid) is not None and observed.pod.namespace in used:
            used[observed.pod.namespace] += observed.pod.requests["cpu"]
    for member in placement.members:
        assert gang.pending_members.get(member.pod.uid) is member.pod, f"{member.pod} is not pending"
        cpu[member.node] += member.pod.pod.requests["cpu"]
        used["c"] += member.pod.pod.requests["cpu"]
    on = {victim.uid: core.cache.ledger.placement(victim.uid) for victim in placement.victims}
    for uid, place in on.items():
        assert place is not None, f"{uid} is a victim and not placed"
        assert "kept" not in place.pod.labels, f"{uid} may not be evicted"
        assert place.pod.namespace != "c"
        assert used[place.pod.namespace] > AMOUNT, f"{uid} does not borrow"
        if place.node in cpu:
            cpu[place.node] -= place.pod.requests["cpu"]
        used[place.pod.namespace] -= place.pod.requests["cpu"]
    assert used["c"] <= AMOUNT
    assert sum(used.values()) <= 3 * AMOUNT, "the quotas do not admit the members"
    for member in placement.members:
        allocatable = core.cache.nodes[member.node].allocatable["cpu"]
        assert cpu[member.node] <= allocatable, f"{member.node} lacks room"
    nodes = {member.node for member in placement.members}
    for uid, place in on.items():
        assert place is not None
        size = place.pod.requests["cpu"]
        lacks_room = (
            place.node in nodes and cpu[place.node] + size > core.cache.nodes[place.node].allocatable["cpu"]
        )
        assert lacks_room or sum(used.values()) + size > 3 * AMOUNT, f"{uid} is evicted in vain"


def finish(scheduler: Rig) -> set[str]:
    for _ in range(4):
        scheduler.settle()
        carry_out_evictions(scheduler)
        scheduler.pass_time(15)
        if not scheduler.of(c.Prebind):
            scheduler.confirm_binds()
    return {name for name in scheduler.placements() if name.startswith("own")}


def test_a_pod_is_bound_while_a_gang_that_takes_back_quota_looks_for_nodes() -> None:
    scheduler = cluster()
    scheduler.observe(*members())
    assert decide_until_reclaim_pauses(scheduler)

    scheduler.observe(pod("p", cpu="100m", scheduler="plain"))
    scheduler.settle()

    kinds = [type(command) for command in scheduler.commands if isinstance(command, c.Bind | c.Evict)]
    assert kinds[0] is c.Bind
    assert c.Evict in kinds
    assert len(finish(scheduler)) == 4


def test_a_pod_is_bound_while_members_with_volumes_take_back_quota() -> None:
    scheduler = cluster()
    add_volumes(scheduler)
    scheduler.observe(*members(with_volumes=True))
    assert decide_until_reclaim_pauses(scheduler, 2)

    scheduler.observe(pod("p", cpu="100m", scheduler="plain"))
    scheduler.settle()

    kinds = [type(command) for command in scheduler.commands if isinstance(command, c.Bind | c.Evict)]
    assert kinds[0] is c.Bind
    finish(scheduler)
    assert len({each.name for each in scheduler.of(c.Prebind)}) == 4


def test_the_second_search_pauses_too() -> None:
    """The last members fit nowhere without the victims that count least, and come first then."""
    scheduler = cluster()
    large = [
        pod(f"own-{at}", namespace="c", cpu=f"450{at}m", labels={"group": "g"}, priority=-1)
        for at in range(2)
    ]
    scheduler.observe(*members(500)[:3], *large)
    placed_counts = list[int]()
    while decide_until_reclaim_pauses(scheduler, fits=0):
        pause = scheduler.scheduler._attempts._pause
        assert pause is not None
        if not pause.search.evicts:
            placed_counts.append(len(pause.search.fits))

    assert placed_counts[3] == 3
    assert placed_counts[-1] == 0
    assert len(finish(scheduler)) == 4, "it takes back where its members fit"


def test_a_victim_that_is_gone_is_not_evicted() -> None:
    scheduler = cluster()
    scheduler.observe(*members())
    assert decide_until_reclaim_pauses(scheduler, 2)
    gone = next(iter(scheduler.scheduler._attempts._pause.search.victims))  # type: ignore[union-attr]

    scheduler.handle(e.PodDeleted(gone))

    assert len(finish(scheduler)) == 4
    assert gone.removeprefix("uid-a-") not in victims(scheduler)


def test_a_victim_that_the_quotas_do_not_need_any_more_is_spared() -> None:
    scheduler = cluster()
    scheduler.observe(*members(600))
    assert decide_until_reclaim_pauses(scheduler, 3)
    pause = scheduler.scheduler._attempts._pause
    assert pause is not None
    before = len(pause.search.victims)

    scheduler.handle(e.PodDeleted(PodUid("uid-b-b0")))

    assert len(finish(scheduler)) == 4
    assert len(victims(scheduler)) < before


def test_a_victim_that_may_not_be_evicted_any_more_is_replaced() -> None:
    scheduler = cluster()
    scheduler.observe(*members())
    assert decide_until_reclaim_pauses(scheduler, 3)
    pause = scheduler.scheduler._attempts._pause
    assert pause is not None
    for uid in list(pause.search.victims):
        observed = scheduler.scheduler._core.cache.pods[uid]
        scheduler.observe(replace(observed, pod=replace(observed.pod, labels={"kept": ""})))
        break

    assert len(finish(scheduler)) == 4


# ── victims where the members fit ──────────────────────────────────────────────────────────────────────────────────


def split_cluster(*, head_start: int = 1) -> Rig:
    """The borrowers that count least are on nodes where no member fits."""
    nodes = [node(f"n{at}", cpu="4") for at in range(6)]
    small = [node(f"s{at}", cpu="1") for at in range(6)]
    low = [placed(pod(f"low{at}", namespace="a", cpu="1"), f"s{at}") for at in range(6)]
    of_a = [borrower(at, at % 6, priority=5) for at in range(5)]
    of_b = [placed(pod(f"b{at}", namespace="b", cpu="2"), f"n{(5 + at) % 6}") for at in range(4)]
    others = [placed(pod(f"other{at}", cpu="2", scheduler="plain"), f"n{at}") for at in range(3, 6)]
    more = (*nodes, *small, *low, *of_a, *of_b, *others)
    return checked(rig_with_pauses(*more, policies=POLICIES, head_start=head_start))


def decide_until_it_evicts(scheduler: Rig, fits: int = 1) -> bool:
    while decide_until_reclaim_pauses(scheduler, fits):
        if scheduler.scheduler._attempts._pause.search.evicts:  # type: ignore[union-attr]
            return True
    return False


def test_a_pod_is_bound_while_a_gang_looks_for_victims_where_it_fits() -> None:
    scheduler = split_cluster()
    scheduler.observe(*members(1900))
    assert decide_until_it_evicts(scheduler)

    scheduler.observe(node("free", cpu="1"), pod("p", cpu="100m", scheduler="plain"))
    scheduler.settle()

    kinds = [type(command) for command in scheduler.commands if isinstance(command, c.Bind | c.Evict)]
    assert kinds[0] is c.Bind
    assert c.Evict in kinds
    assert len(finish(scheduler)) == 4


def test_a_victim_where_a_member_fits_that_may_not_be_evicted_any_more_stays() -> None:
    scheduler = split_cluster()
    scheduler.observe(*members(1900))
    assert decide_until_it_evicts(scheduler, 2)
    pause = scheduler.scheduler._attempts._pause
    assert pause is not None
    uid = next(iter(pause.search.victims))
    observed = scheduler.scheduler._core.cache.pods[uid]

    scheduler.observe(replace(observed, pod=replace(observed.pod, labels={"kept": ""})))

    assert len(finish(scheduler)) == 4
    assert observed.pod.name not in victims(scheduler)


def test_a_victim_where_a_member_fits_that_borrows_no_more_stays() -> None:
    """Others of its entity have ended."""
    scheduler = split_cluster()
    scheduler.observe(*members(1900))
    assert decide_until_it_evicts(scheduler, 2)

    scheduler.handle(*[e.PodDeleted(PodUid(f"uid-a-low{at}")) for at in range(6)])

    finish(scheduler)
    assert len([name for name in victims(scheduler) if name.startswith("a")]) <= 1, (
        "a borrows the cpu of one pod"
    )


def test_others_that_always_wait_do_not_keep_a_gang_from_what_is_borrowed_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is borrowed inside of the other organisation is on a node where no member fits."""
    text = nested(6, 6, '"b" in "x" { cpu = 6 borrow any }', '"c" in "y" { cpu = 6 }')
    scheduler = rig_with_pauses(
        *[node(f"n{at}", cpu="1500m", labels={"node": "n"}) for at in range(4)],
        node("m", cpu="6"),
        *[team_member(f"inside{at}", "y", "d", cpu="1500m", on="m") for at in range(4)],
        *[team_member(f"outside{at}", "y", "c", cpu="1500m", on=f"n{at}", priority=9) for at in range(4)],
        policies={"test.policy": text.replace("min = 2", "min = 4")},
        head_start=1,
    )
    monkeypatch.setattr(type(scheduler.scheduler.core.queue), "has_active", property(lambda _: True))

    more: dict[str, Any] = {"node_selector": {"node": "n"}, "labels": {"group": "g"}}
    scheduler.observe(*[team_member(f"own{at}", "x", "b", cpu=f"{1496 + at}m", **more) for at in range(4)])
    for _ in range(10):
        scheduler.settle()
        scheduler.pass_time(10)

    assert victims(scheduler) == [f"outside{at}" for at in range(4)]


def test_others_that_always_wait_do_not_keep_a_gang_from_what_is_borrowed_outside_in_its_rack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search inside takes several attempts, and finds room for half of the members in each rack."""
    text = nested(6, 6, '"b" in "x" { cpu = 6 borrow any }', '"c" in "y" { cpu = 6 }')
    racks = [(rack, at) for rack in "ab" for at in range(4)]
    scheduler = rig_with_pauses(
        *[node(f"{rack}{at}", cpu="1500m", labels={"node": "n", "rack": rack}) for rack, at in racks],
        node("m", cpu="6"),
        *[team_member(f"inside{at}", "y", "d", cpu="1500m", on="m") for at in range(2)],
        *[
            team_member(f"d-{rack}{at}", "y", "d", cpu="1500m", on=f"{rack}{at}")
            for rack, at in racks
            if at < 2
        ],
        *[team_member(f"own-a{at}", "x", "b", cpu="10m", on=f"a{at}") for at in (2, 3)],
        *[team_member(f"outside-b{at}", "y", "c", cpu="1500m", on=f"b{at}", priority=9) for at in (2, 3)],
        policies={"test.policy": text.replace("min = 2", 'min = 4 topology = "rack"')},
        head_start=1,
    )
    monkeypatch.setattr(type(scheduler.scheduler.core.queue), "has_active", property(lambda _: True))

    more: dict[str, Any] = {"node_selector": {"node": "n"}, "labels": {"group": "g"}}
    scheduler.observe(*[team_member(f"own{at}", "x", "b", cpu=f"{1490 + at}m", **more) for at in range(4)])
    for _ in range(30):
        scheduler.settle()
        scheduler.pass_time(10)

    assert victims(scheduler) == ["d-b0", "d-b1", "outside-b2", "outside-b3"]


# ── whatever happens in the pauses ─────────────────────────────────────────────────────────────────────────────────


def change(scheduler: Rig, random: Random, number: int) -> None:
    core = scheduler.scheduler._core
    running = [
        observed
        for observed in core.cache.pods.values()
        if observed.pod.namespace in ("a", "b") and core.cache.ledger.placement(observed.pod.uid) is not None
    ]
    match random.randrange(9):
        case 0 if running:
            scheduler.handle(e.PodDeleted(random.choice(running).pod.uid))
        case 1 if running:
            observed = random.choice(running)
            labels = {} if "kept" in observed.pod.labels else {"kept": ""}
            scheduler.observe(replace(observed, pod=replace(observed.pod, labels=labels)))
        case 2:
            on, cpu = f"n{random.randrange(6)}", random.choice(["500m", "1", "2"])
            used = core.cache.ledger.usage(NodeName(on)).requested.get("cpu", 0)
            if used <= 3000:
                scheduler.observe(placed(pod(f"x{number}", namespace=random.choice("ab"), cpu=cpu), on))
        case 3:
            scheduler.observe(node(f"n{random.randrange(6)}", cpu=random.choice(["5", "6"])))
        case 4:
            space = random.choice("ab")
            scheduler.observe(pod(f"y{number}", namespace=space, cpu="500m", priority=random.randrange(2)))
        case 5:
            scheduler.observe(pod(f"p{number}", cpu="300m", scheduler="plain"))
        case 6:
            scheduler.pass_time(0.1)
        case 7:
            scheduler.handle(e.NodeDeleted(NodeName("n0"))) if random.random() < 0.1 else None
        case 8:
            scheduler.handle(
                e.StorageObjectUpdated(volume(f"v{random.randrange(5)}", size="20Gi", version=2))
            )


def history(seed: int, make: Callable[..., Rig] = cluster) -> int:
    """Returns how many pauses there were. Afterwards the gang runs if it could on that cluster without changes."""
    random = Random(seed)
    scheduler = make(head_start=random.choice([1, 10**9]))
    with_volumes = random.random() < 0.3
    if with_volumes:
        add_volumes(scheduler)
    scheduler.observe(
        *members(
            random.choice([700, 1000, 1400] if make is cluster else [1400, 1900]), with_volumes=with_volumes
        )
    )
    pauses = 0
    for number in range(30):
        if not decide_until_reclaim_pauses(scheduler, fits=0):
            break
        pauses += 1
        if random.random() < 0.4:
            change(scheduler, random, number)
    if finish(scheduler) or scheduler.of(c.Prebind):
        return pauses
    core = scheduler.scheduler._core
    pods = core.cache.pods.values()
    again = rig_with_pauses(*core.cache.nodes.values(), *pods, policies=POLICIES)
    if with_volumes:
        add_volumes(again)
    again.now_ns = scheduler.now_ns
    again.settle()
    assert not victims(again) and not again.of(c.Bind), f"seed {seed}: the gang does not start again"
    return pauses


def test_whatever_happens_in_pauses_no_eviction_is_wrong_or_in_vain() -> None:
    assert sum(map(history, range(100))) > 200


def test_whatever_happens_in_pauses_no_victim_where_members_fit_is_wrong_or_in_vain() -> None:
    assert sum(history(seed, split_cluster) for seed in range(40)) > 80


def _same_victims(*arguments: object, **more: object) -> Steps[object]:
    del more
    yield from ()
    return tuple(arguments[4])  # type: ignore[arg-type]


def _no_nodes(*arguments: object) -> Steps[set[NodeName]]:
    del arguments
    yield from ()
    return set()


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        pytest.param(QuotaPreemption, "_victims_after_pauses", _same_victims, id="victims of before a pause"),
        pytest.param(gang_reclaim, "_nodes_lacking_room", _no_nodes, id="room of spared victims"),
    ],
)
def test_planted_bugs_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, planted: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, planted)

    with pytest.raises((AssertionError, RuntimeError, KeyError)):
        for seed in range(100):
            history(seed)
