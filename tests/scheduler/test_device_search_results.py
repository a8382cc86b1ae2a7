"""Gangs whose search for devices has many results: they start or are told why not, also beside others, and do not search for ever."""

from typing import Any

import pytest

from policysched.cluster.devices import search_outcomes
from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.cluster.devices.search_outcomes import CachedOutcome, OutcomeCache
from policysched.model.identifiers import NodeName
from policysched.scheduler import attempt_runner
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import node, placed, pod
from tests.devices import asking, claim, device_slice, gpu
from tests.scheduler.rig import Rig
from tests.scheduler.test_device_gangs import OF_KIND, shared
from tests.scheduler.test_device_selectors import GANG, NODES, decide, member, rig_with, searches, user

assert searches  # a fixture
MEMBERS = 10


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 4 * NODES)
    monkeypatch.setattr(attempt_runner, "KEY_STEPS", 1)
    monkeypatch.setattr(attempt_runner, "GANG_SLICE_STEPS_MAX", 8 * NODES)
    monkeypatch.setattr(attempt_runner, "MEMBER_STEPS_MAX", 4)
    monkeypatch.setattr(search_outcomes, "_SPECS_CACHED_MIN", 2)


def limit_results(monkeypatch: pytest.MonkeyPatch, results: int, specs: int = 256) -> None:
    monkeypatch.setattr(search_outcomes, "_OUTCOMES_CACHED_MAX", results)
    monkeypatch.setattr(search_outcomes, "_SPECS_CACHED_MAX", specs)


def unequal_claims(name: str = "c") -> list[Any]:
    return [claim(f"{name}{number}", asking(f"{name}-{number}")) for number in range(MEMBERS)]


def gang_rig(*claims: Any) -> Rig:
    rig = rig_with(*claims)
    rig.apply_policies(GANG % MEMBERS)
    return rig


def observe_gang(rig: Rig) -> None:
    rig.observe(*[member(number, f"c{number}") for number in range(MEMBERS)])


def run(rig: Rig, *names: str) -> None:
    """Until these are decided about."""
    for _ in range(600):
        started = {command.name for command in rig.of(c.Prebind)}
        left = [rig.pending_message(name) for name in names or ["member-0"] if name not in started]
        if all(message and "continues in the next attempt" not in message for message in left):
            return
        decide(rig, elapsed_ms=1) if rig.scheduler.ready(rig.now_ns) else rig.pass_time(1)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(
    "results, specs, message",
    [
        (5 * NODES, 256, "the search for devices has more than 200 results: one for each node"),
        (80_000, 5, "the claims of all members have more than 5 different specs"),
    ],
)
def test_a_gang_with_more_specs_of_claims_than_are_kept_is_told_so(
    results: int, specs: int, message: str, monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    """Each slice dropped what earlier ones had found."""
    limit_results(monkeypatch, results, specs)
    rig = gang_rig(*unequal_claims())
    observe_gang(rig)

    run(rig)

    assert message in (rig.pending_message("member-0") or "")
    rig.pass_time(60)
    assert len(searches) <= 7 * NODES, "nothing is searched again until something changes"
    assert not rig.of(c.Prebind)


def test_a_gang_that_has_too_many_results_is_tried_again_when_it_has_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_results(monkeypatch, 5 * NODES)
    rig = gang_rig(*unequal_claims())
    observe_gang(rig)
    run(rig)

    rig.handle(
        *[e.DeviceObjectUpdated(claim(f"c{number}", asking(), version=2)) for number in range(MEMBERS)]
    )
    rig.pass_time(60)

    assert len(rig.of(c.Prebind)) == MEMBERS


def test_a_gang_starts_where_there_is_room_for_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of others are dropped."""
    limit_results(monkeypatch, (MEMBERS + 3) * NODES)
    others = [claim(f"d{number}", asking(f"d-{number}", "false")) for number in range(5)]
    rig = gang_rig(*unequal_claims(), *others)
    rig.observe(*[user(f"other-{number}", f"d{number}") for number in range(5)])
    run(rig, *[f"other-{number}" for number in range(5)])
    observe_gang(rig)

    run(rig)

    assert len(rig.of(c.Prebind)) == MEMBERS


def test_two_gangs_that_have_too_many_results_together_both_start(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_results(monkeypatch, (MEMBERS + 2) * NODES)
    rig = gang_rig(*unequal_claims(), *unequal_claims("d"))
    gang_of_other = (GANG % MEMBERS).replace("policy test", "policy other")
    rig.apply_policies({"main.policy": GANG % MEMBERS, "other.policy": gang_of_other})
    observe_gang(rig)
    rig.observe(
        *[user(f"their-{at}", f"d{at}", labels={"group": "h"}, scheduler="other") for at in range(MEMBERS)]
    )

    run(rig, "member-0", "their-0")

    assert len(rig.of(c.Prebind)) == 2 * MEMBERS


# ── gangs that take devices which several nodes share ──────────────────────────────────────────────────────────────


def rig_of_shared(what: str, members: int = MEMBERS) -> Rig:
    """Each member takes a device that all nodes can use, and changes the results of all nodes."""
    requests = [asking("r", OF_KIND.format("shared"))]
    gpus = [gpu(f"s{at:02}", attributes={"kind": "shared"}, allNodes=True) for at in range(members)]
    pool = device_slice(None, *gpus, name="shared", perDeviceNodeSelection=True)
    if what == "and own devices":
        requests.append(asking("o", OF_KIND.format("own")))
        pool = shared(members)
    own = [gpu(f"g{at}", attributes={"kind": "own"}) for at in range(2)]
    slices = [device_slice(f"n{number}", *own, version=3, generation=3) for number in range(NODES)]
    rig = gang_rig(*[claim(f"c{number}", *requests) for number in range(members)])
    rig.handle(*[e.DeviceObjectUpdated(each) for each in (*slices, pool)])
    return rig


def fill_nodes(rig: Rig, **more: Any) -> None:
    """With a pod of lower priority on each node."""
    rig.observe(*[placed(pod(f"low-{number}", cpu="8", **more), f"n{number}") for number in range(NODES)])


OF_SHARED = pytest.mark.parametrize("what", ["by device", "and own devices"])


@OF_SHARED
def test_a_gang_starts_where_there_is_room_for_the_results_beside_its_members(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 were kept of each spec, of 80,000."""
    limit_results(monkeypatch, (MEMBERS + 1) * NODES)
    monkeypatch.setattr(
        "policysched.cluster.devices.allocation_cache._OVERLAY_OUTCOMES_MAX", NODES, raising=False
    )
    rig = rig_of_shared(what)
    observe_gang(rig)

    run(rig)

    assert len(rig.of(c.Prebind)) == MEMBERS


@OF_SHARED
def test_a_gang_that_has_too_many_results_beside_its_members_is_told_so(
    what: str, monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    limit_results(monkeypatch, 5 * NODES)
    monkeypatch.setattr(
        "policysched.cluster.devices.allocation_cache._OVERLAY_OUTCOMES_MAX", NODES, raising=False
    )
    rig = rig_of_shared(what)
    observe_gang(rig)

    run(rig)

    assert "the search for devices has more than 200 results" in (rig.pending_message("member-0") or "")
    rig.pass_time(60)
    assert len(searches) <= 8 * NODES, "nothing is searched again until something changes"


def nothing_is_searched_again(rig: Any, searches: list[Any]) -> None:
    """Until something changes."""
    before = len(searches)
    rig.pass_time(120)
    assert len(searches) == before


@OF_SHARED
def test_a_gang_that_has_too_many_results_only_with_evictions_is_told_so(
    what: str, monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    limit_results(monkeypatch, 5 * NODES)
    rig = rig_of_shared(what)
    fill_nodes(rig)
    rig.observe(*[member(number, f"c{number}", priority=10, cpu="1") for number in range(MEMBERS)])

    run(rig)

    message = rig.pending_message("member-0") or ""
    assert "40 Insufficient cpu. " in message
    assert "preemption: the search for devices has more than 200 results" in message
    nothing_is_searched_again(rig, searches)
    assert not rig.of(c.Evict)


def test_a_gang_that_has_too_many_results_in_its_second_search_with_evictions_is_told_so(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    """In the order of the queue the small member takes the node of the large one. With the large one first, devices are searched."""
    limit_results(monkeypatch, 5 * NODES)
    rig = rig_of_shared("by device")
    rig.observe(node("n0", cpu="16"), node("n1", cpu="9"))
    fill_nodes(rig)
    rig.observe(placed(pod("low-0", cpu="16", priority=-10), "n0"), placed(pod("low-1", cpu="9"), "n1"))
    rig.observe(*[unclaimed(number, cpu) for number, cpu in enumerate(("9", "16"))])
    rig.observe(*[member(number, f"c{number}", priority=10, cpu="1") for number in range(2, MEMBERS)])

    run(rig)

    message = rig.pending_message("member-0") or ""
    assert "40 Insufficient cpu. " in message
    assert "preemption: the search for devices has more than 200 results" in message
    nothing_is_searched_again(rig, searches)


def test_a_gang_that_has_too_many_results_without_borrowers_is_told_so(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    limit_results(monkeypatch, 5 * NODES)
    rig = rig_of_shared("by device")
    quota = 'quota team by pod.labels["team"] else "a" { "a" { cpu = 10 } "b" { cpu = 30 borrow any } others { cpu = 0 } }\n'
    rig.apply_policies(GANG % MEMBERS + quota)
    rig.observe(*[placed(pod(f"low-{at}", cpu="1", labels={"team": "b"}), f"n{at}") for at in range(NODES)])
    rig.observe(*[member(number, f"c{number}", cpu="1") for number in range(MEMBERS)])

    run(rig)

    message = rig.pending_message("member-0") or ""
    assert "quotas admit 0 of 10 members" in message
    assert "; preemption: the search for devices has more than 200 results" in message
    nothing_is_searched_again(rig, searches)
    assert not rig.of(c.Evict)


def unclaimed(number: int, cpu: str) -> Any:
    created = f"2026-01-01T00:00:{number:02}Z"
    return pod(f"member-{number}", labels={"group": "g"}, created=created, priority=10, cpu=cpu)


# ── nodes that leave ───────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_kept_of_a_node_that_left() -> None:
    rig = rig_of_shared("by device", members=1)
    rig.observe(user("u", "c0"))
    run(rig, "u")
    cache = rig.scheduler._core.cache.devices.allocation_cache._outcomes

    for number in range(1, NODES):
        rig.handle(e.NodeDeleted(NodeName(f"n{number}")))

    kept = [each for each in cache._by_specs.values() if each.by_node]
    assert [list(each.by_node) for each in kept] == [["n0"]]
    assert all(each.groups._by_node.keys() <= {"n0"} for each in kept)


# ── slices of two attempts that take turns ─────────────────────────────────────────────────────────────────────────


def slices_of_two_attempts() -> int:
    """How many slices there are until one attempt has all of its results. Each slice adds one specs' results to those that it finds,
    and begins anew where they were dropped."""
    cache = OutcomeCache()
    for number in range(200):
        owner = ("a", "b")[number % 2]
        cache.continue_slice(SearchAllowance())
        for at in range(MEMBERS):
            outcomes = cache.of_specs((f"{owner}{at}",))
            if not outcomes.by_node:
                for on in range(NODES):
                    cache.keep(outcomes, NodeName(f"n{on}"), CachedOutcome((0, 0, 0), {}, None))
                break
        else:
            return number
    raise AssertionError("they drop each other's results for ever")


def test_attempts_that_take_turns_do_not_drop_each_others_results_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_results(monkeypatch, (MEMBERS + 2) * NODES)

    assert slices_of_two_attempts() <= 4 * MEMBERS
