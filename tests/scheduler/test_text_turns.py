"""Whose new text gets ready next: namespaces take turns, also at a start and in the pauses of an attempt."""

from collections.abc import Callable

import pytest

from policysched.lang.check.bundle import PolicyBundle
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from policysched.scheduler.policy_reload import STARTED_AT_ONCE_MAX
from policysched.scheduler.queue.sliced_wake_ups import WAKE_UPS_PER_SLICE
from policysched.scheduler.slice_turns import PayerTurns
from tests.builders import node, placed, pod
from tests.scheduler.rig import FIT, GANG, Rig, bundle

OWNED = PolicyPermissions((AllowedPolicy("*"), *(AllowedPolicy(f"{t}-*", owner=t) for t in ("loud", "calm"))))
CHANGE = "filter node_unschedulable\n"
PODS = 300
LOUD = [f"loud-{number}" for number in range(8)]


def text(name: str, more: str = "") -> str:
    return FIT.replace("policy test", f"policy {name}") + more


def offer(rig: Rig, *texts: str) -> None:
    rig._version += 1
    keyed = {f"{number}.policy": each for number, each in enumerate(texts)}
    rig.handle(e.PoliciesUpdated(PolicyBundle(bundle(keyed).sources), str(rig._version)))


def runs(rig: Rig, policy: str, more: str) -> bool:
    program = rig.scheduler.programs().get(policy)
    return program is not None and program.text.endswith(more)


def decide(rig: Rig) -> None:
    assert rig.scheduler.ready(rig.now_ns), "nothing is left to decide"
    rig.commands += rig.scheduler.decide(rig.now_ns)
    rig.check_invariants()


def decide_until(rig: Rig, is_reached: Callable[[], bool]) -> int:
    for number in range(10_000):
        if is_reached():
            return number
        decide(rig)
    raise AssertionError("it is never reached")


# ── edits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_turns() -> None:
    """A team edits its eight policies with many pods, and goes on: before each decision another one."""
    rig = Rig(None, node("a", cpu="1"), permissions=OWNED)
    offer(rig, *map(text, LOUD), text("calm-a"))
    rig.observe(
        *[
            pod(f"{name}-{number}", scheduler=name, namespace="loud", cpu="9")
            for name in LOUD
            for number in range(PODS // 8)
        ]
    )
    rig.observe(*[pod(f"c{number}", scheduler="calm-a", namespace="calm", cpu="9") for number in range(PODS)])
    rig.settle()

    edits = dict.fromkeys(LOUD, CHANGE)
    offer(rig, *(text(name, more) for name, more in edits.items()), text("calm-a", CHANGE))
    for number in range(200):
        decide(rig)
        if runs(rig, "calm-a", CHANGE):
            return
        edits[LOUD[number % 8]] = CHANGE + f'filter f{number} reject node.pods < 0 says "no"\n'
        offer(rig, *(text(name, more) for name, more in edits.items()), text("calm-a", CHANGE))
    raise AssertionError("the text of the other team never takes over")


def test_a_team_that_edits_all_its_texts_all_the_time_delays_no_other_text() -> None:
    check_turns()


def test_a_planted_bug_that_goes_by_policies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PayerTurns, "take", lambda *_: None)
    with pytest.raises(AssertionError):
        check_turns()


def test_texts_that_nobody_pays_for_take_turns_themselves() -> None:
    turns = PayerTurns[str]()
    for payer, key in (("", "a"), ("", "b"), ("t", "c"), ("t", "d")):
        turns.add(payer, key)

    order = []
    for _ in range(6):
        payer, keys = next(iter(turns))
        key = next(iter(keys))
        turns.take(payer, key)
        order.append(key)

    assert order == ["a", "c", "b", "c", "a", "c"]


# ── pauses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def paused() -> Rig:
    limits = SchedulerLimits(
        attempt_step_cost_max=1,
        gang_piece_cost_max=1,
        gang_piece_cost_by_member=0,
        gang_head_start_cost=10**9,
    )
    gangs, plain = GANG.format(more="") + "preemption never\n", text("plain")
    rig = Rig(None, *[node(f"n{number}", cpu="10") for number in range(30)], limits=limits)
    offer(rig, gangs, plain)
    labels = {"group": "g", "least": "40"}
    rig.observe(*[pod(f"p{number}", scheduler="plain", cpu="99") for number in range(PODS)])
    rig.settle()
    rig.observe(*[pod(f"g{number}", cpu="1", labels=labels) for number in range(40)])
    decide_until(rig, lambda: rig.scheduler.attempt_paused)
    return rig


def test_a_text_gets_ready_in_the_pauses_of_an_attempt_and_takes_over_after_it() -> None:
    rig = paused()
    offer(rig, GANG.format(more="") + "preemption never\n", text("plain", CHANGE))
    preparation = rig.scheduler._reload._in_preparation["plain"]

    decide_until(rig, lambda: preparation.is_ready)
    assert rig.scheduler.attempt_paused, "it was ready before the attempt ended"
    decide_until(rig, lambda: not rig.scheduler.attempt_paused and not rig.scheduler.attempt_in_progress)
    assert not runs(rig, "plain", CHANGE), "nothing takes over beside an attempt"

    assert decide_until(rig, lambda: runs(rig, "plain", CHANGE)) <= 2 + PODS // WAKE_UPS_PER_SLICE
    rig.settle()
    assert len(rig.placements()) == 40


def test_a_newer_text_replaces_one_that_is_ready_in_a_pause() -> None:
    rig, gangs = paused(), GANG.format(more="") + "preemption never\n"
    offer(rig, gangs, text("plain", CHANGE))
    first = rig.scheduler._reload._in_preparation["plain"]
    decide_until(rig, lambda: first.is_ready)

    offer(rig, gangs, text("plain", "filter node_name\n"))
    rig.settle()

    assert runs(rig, "plain", "filter node_name\n")
    assert len(rig.placements()) == 40


# ── a start ────────────────────────────────────────────────────────────────────────────────────────────────────────

TOTAL = 'filter total{0} require count(placed pods where other.labels["a"] == "a{0}") < 1000\n'


def test_at_a_start_the_totals_of_one_policy_do_not_wait_for_all_of_another() -> None:
    many = "".join(TOTAL.format(number) for number in range(30))
    rig = Rig(None, permissions=OWNED, synced=False)
    rig.observe(*[node(f"n{number}", cpu="100", pods="1000") for number in range(4)])
    rig.observe(*[placed(pod(f"old{number}", cpu="1m"), f"n{number % 4}") for number in range(500)])
    offer(rig, *(text(name, many) for name in LOUD), text("calm-a", TOTAL.format(99)))
    rig.observe(pod("waits", scheduler="calm-a", namespace="calm"))
    rig.handle(e.Synced())

    decide_until(rig, lambda: "waits" in rig.placements())

    assert len(rig.scheduler.core.counting_policies) == len(LOUD), "the others are still counting"


def test_at_a_start_beside_thousands_of_policies_few_become_active_in_one_piece() -> None:
    permissions = PolicyPermissions((AllowedPolicy("*"), AllowedPolicy("t*", owner="teams")))
    rig = Rig(None, node("a", cpu="1000", pods="1000"), permissions=permissions, synced=False)
    names = [f"t{number}" for number in range(3 * STARTED_AT_ONCE_MAX)]
    offer(rig, *map(text, names), text("operator"))
    rig.observe(*[pod(f"p-{name}", scheduler=name, namespace="teams", cpu="1m") for name in names])
    rig.observe(pod("system", scheduler="operator", cpu="1m"))
    rig.handle(e.Synced())

    assert len(rig.scheduler.programs()) == STARTED_AT_ONCE_MAX
    decide_until(rig, lambda: "system" in rig.placements())
    assert len(rig.scheduler.programs()) < STARTED_AT_ONCE_MAX + 3
    rig.settle()
    assert rig.scheduler.programs().keys() == {*names, "operator"}
    assert len(rig.of(c.Bind)) == len(names) + 1


def test_gangs_of_policies_that_start_late_are_evicted_whole() -> None:
    """Until its policy runs nobody knows the gang."""
    permissions = PolicyPermissions((AllowedPolicy("*"), AllowedPolicy("t*", owner="teams")))
    rig = Rig(None, node("a", cpu="4"), node("b", cpu="4"), permissions=permissions, synced=False)
    names = [f"t{number}" for number in range(3 * STARTED_AT_ONCE_MAX)]
    gangs = GANG.format(more="").replace("policy test", "policy tgangs") + "preemption never\n"
    evicts = text("operator").replace("never", "{ victims = victim.priority < pod.priority }")
    offer(rig, *map(text, names), gangs, evicts)
    labels = {"group": "g", "least": "2"}
    members = [pod(f"m-{on}", cpu="3", scheduler="tgangs", namespace="teams", labels=labels) for on in "ab"]
    rig.observe(*[placed(member, on) for member, on in zip(members, "ab", strict=True)])
    rig.observe(pod("system", scheduler="operator", cpu="3", priority=100))
    rig.handle(e.Synced())
    assert "tgangs" not in rig.scheduler.programs()

    rig.settle()
    rig.pass_time(2)

    assert {victim.name for evict in rig.of(c.Evict) for victim in evict.victims} == {"m-a", "m-b"}
    assert not rig.scheduler.core.unstarted_policies
