"""What is done for the members of a large gang is done in pieces, and is not repeated each second."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from policysched.evaluate import Evaluator
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs import gang_attempt, gang_domains, member_order
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from tests.builders import node, placed, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import GANG, START_NS, Rig

MEMBERS = 400
STEP_COST = 50


class Visits:
    """Visits of members: in all, and the most in one call of the scheduler."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.total = self.most = self._present = 0

    def count(self) -> None:
        self.total += 1
        self._present += 1

    def end_call(self) -> None:
        self.most, self._present = max(self.most, self._present), 0


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Visits]]:
    """By what is done for a member."""
    owners: dict[str, object] = {
        "rekey": PodEnqueuer,
        "report_pending": SchedulerCore,
        "cluster_read_key": SchedulerCore,
        "decision_cost": Evaluator,
        "charge_of": QuotaAccount,
        "_demand": member_order,
    }
    by_work = {name: Visits() for name in owners}
    for name, owner in owners.items():
        original = getattr(owner, name)

        def counting(*arguments: object, _original: object = original, _name: str = name) -> object:
            by_work[_name].count()
            return _original(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, counting)
    yield by_work


QUOTA = """\
quota team by pod.namespace { "default" { cpu = 10 } others unlimited }
"""


def rig_of(*pods: Pod, timeout: str | None = None, more: str = "") -> Rig:
    policy = GANG.format(more="" if timeout is None else f"timeout = {timeout}")
    rig = Rig(policy + more, node("a", cpu="1"), limits=SchedulerLimits(attempt_step_cost_max=STEP_COST))
    rig.observe(*pods)
    return rig


def members(count: int, *, least: int, group: str = "train") -> list[Pod]:
    labels = {"group": group, "least": str(least)}
    return [pod(f"{group}-{number}", labels=labels, cpu="8") for number in range(count)]


def decide_all(rig: Rig, visits: dict[str, Visits]) -> None:
    while rig.scheduler.ready(rig.now_ns):
        rig.commands += rig.scheduler.decide(rig.now_ns)
        for of_work in visits.values():
            of_work.end_call()


def test_a_large_gang_that_fits_nowhere_is_parked_in_pieces(visits: dict[str, Visits]) -> None:
    rig = rig_of(*members(MEMBERS, least=MEMBERS))
    for of_work in visits.values():
        of_work.clear()

    decide_all(rig, visits)

    few = 5
    assert visits.pop("charge_of").total == visits.pop("_demand").total == 0
    assert all(MEMBERS <= of_work.total <= MEMBERS + few for of_work in visits.values()), visits
    assert all(of_work.most <= 2 * STEP_COST for of_work in visits.values()), visits
    rig.check_invariants()


@pytest.mark.parametrize("count", [3, 5])
def test_a_gang_that_times_out_at_once_is_restarted_twice_a_minute(count: int) -> None:
    rig = rig_of(*members(count, least=4), timeout="1s")

    for _ in range(120):
        rig.pass_time(0.5)

    timed_out = [command for command in rig.of(c.ReportPodEvent) if command.reason == "GangTimedOut"]
    assert len(timed_out) == 2


def test_gangs_that_time_out_together_restart_in_pieces(visits: dict[str, Visits]) -> None:
    rig = rig_of(
        *[each for group in range(400) for each in members(2, least=3, group=f"g{group}")], timeout="5m"
    )
    decide_all(rig, visits)
    visits["rekey"].clear()

    rig.now_ns = START_NS + 301 * 10**9
    decide_all(rig, visits)

    assert visits["rekey"].total == 800
    assert visits["rekey"].most <= 501
    rig.check_invariants()


def test_a_large_gang_that_its_quota_refuses_is_weighed_in_pieces(
    visits: dict[str, Visits], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(*members(MEMBERS, least=MEMBERS), more=QUOTA)
    visits["charge_of"].clear()

    looks = count_calls(monkeypatch, QuotaUsage, "blocked", lambda: decide_all(rig, visits))

    assert MEMBERS <= visits["charge_of"].total <= MEMBERS + 5
    assert visits["charge_of"].most <= 2 * STEP_COST
    assert looks <= 5, "members that request the same as the one before are refused as it was"
    assert "quotas admit 1 of 400 members" in str(rig.pending_message("train-0"))


def test_unequal_members_are_compared_in_pieces(visits: dict[str, Visits]) -> None:
    unequal = [
        replace(member, node_selector={"number": member.name}) for member in members(MEMBERS, least=MEMBERS)
    ]
    rig = rig_of(placed(pod("low", priority=-1), "a"), *unequal, more="filter node_affinity\n")

    decide_all(rig, visits)

    assert visits["_demand"].total == 2 * MEMBERS  # and for the search with evictions
    assert visits["_demand"].most <= 2 * STEP_COST


class CountingKeys(dict[object, object]):
    looks = 0

    def __getitem__(self, key: object) -> object:
        CountingKeys.looks += 1
        return super().__getitem__(key)


def test_the_domains_of_unequal_members_are_looked_for_in_pieces_beside_other_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unequal = [replace(member, node_selector={"no": member.name}) for member in members(MEMBERS, least=2)]
    policy = GANG.format(more='topology = "rack"') + "filter node_affinity\n"
    limits = SchedulerLimits(
        attempt_step_cost_max=STEP_COST, gang_piece_cost_max=STEP_COST, gang_head_start_cost=0
    )
    rig = Rig(policy, node("a", cpu="10", labels={"rack": "r"}), limits=limits)
    visits, find, domains = Visits(), gang_domains._feasible_domains, gang_attempt.candidate_domains

    def counting(*arguments: object) -> object:
        visits.count()
        return find(*arguments)  # type: ignore[arg-type]

    def with_counting_keys(
        core: object, gang: object, keys: object, classes: object, *more: object, **named: object
    ) -> object:
        return domains(core, gang, keys, CountingKeys(classes), *more, **named)  # type: ignore

    monkeypatch.setattr(gang_domains, "_feasible_domains", counting)
    monkeypatch.setattr(gang_attempt, "candidate_domains", with_counting_keys)
    CountingKeys.looks = 0
    rig.observe(*unequal)

    while not visits.total or rig.scheduler.attempt_in_progress:
        rig.scheduler.decide(rig.now_ns)
        visits.end_call()
    rig.observe(pod("other", cpu="1"))
    while visits.total < MEMBERS - 1:
        assert rig.scheduler.ready(rig.now_ns)
        rig.commands += rig.scheduler.decide(rig.now_ns)
        visits.end_call()
    placed_beside = rig.placements()
    decide_all(rig, {"domains": visits})

    assert placed_beside == {"other": "a"}
    assert visits.total == MEMBERS, "one member alone is not enough, and the closest domain is looked for"
    assert visits.most <= STEP_COST
    assert CountingKeys.looks <= 3 * MEMBERS
    rig.check_invariants()


def test_members_that_keep_their_places_are_not_sorted_again() -> None:
    rig = rig_of(*members(30, least=30))
    rig.settle()
    [gang] = rig.scheduler.core.gangs
    before = gang.members_in_order()

    rig.observe(placed(pod("other", cpu="1"), "a"))
    rig.handle(e.PodDeleted(pod("other").uid))
    rig.pass_time(20)
    again = gang.members_in_order()
    rig.handle(e.PodDeleted(before[7].uid))
    rig.observe(*members(31, least=30)[30:])

    assert gang.attempts == 2
    assert again is before
    left = [member for number, member in enumerate(before) if number != 7]
    joined = rig.scheduler.core.pods[pod("train-30").uid]
    assert sorted([*left, joined], key=lambda member: member.order_key) == gang.members_in_order()


FAIL = "5m  on_timeout = fail"


def test_a_large_gang_fails_in_pieces(visits: dict[str, Visits]) -> None:
    rig = rig_of(*members(MEMBERS, least=MEMBERS), timeout=FAIL)
    decide_all(rig, visits)
    visits["report_pending"].clear()

    rig.now_ns = START_NS + 301 * 10**9
    decide_all(rig, visits)

    assert visits["report_pending"].total == MEMBERS
    assert visits["report_pending"].most <= 2 * STEP_COST
    assert all("has failed" in str(rig.pending_message(f"train-{number}")) for number in range(MEMBERS))
    assert not [*rig.scheduler.core.gangs]
    rig.check_invariants()


def test_no_member_of_a_gang_that_fails_is_bound() -> None:
    """Those that are left would be enough, and there is room."""
    rig = rig_of(*members(MEMBERS, least=MEMBERS // 2), timeout=FAIL)
    rig.settle()

    rig.now_ns = START_NS + 301 * 10**9
    rig.scheduler.decide(rig.now_ns)
    failing = len([*rig.scheduler.core.gangs])
    rig.observe(node("b", cpu="10000", pods="1000"))
    late = pod("late", labels={"group": "train", "least": "1"}, cpu="8")
    rig.observe(late)
    rig.pass_time(10)

    assert failing == 1
    assert rig.placements() == {"late": "b"}
