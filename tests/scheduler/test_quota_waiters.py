"""Parked groups that wait for a quota: a release opens those that it can help, and looks at few others."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.scheduler import events as e
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.quotas.quota_limits import QuotaNode
from policysched.scheduler.quotas.quota_usage import QuotaBlock, QuotaUsage
from policysched.scheduler.quotas.quota_waiters import Need, QuotaWaiters
from tests.builders import node, placed, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import FIT, Rig

QUOTA = FIT + 'quota team by pod.namespace { "a" { cpu = 10 } others unlimited }\n'
QUOTA_GANGS = QUOTA + 'gang by pod.labels["group"] { min = 2 }\n'
GANG_OF_ALL = 'gang by pod.labels["group"] { min = %d }\n'
LARGE = node("n", cpu="1000", pods="1000")


def full_quota(policy: str) -> Rig:
    """Ten pods use all of it."""
    return Rig(
        policy, LARGE, *[placed(pod(f"old{number}", namespace="a", cpu="1"), "n") for number in range(10)]
    )


def release(rig: Rig, *numbers: int) -> None:
    rig.handle(*[e.PodDeleted(pod(f"old{number}", namespace="a").uid) for number in numbers])


def waits_for_release(monkeypatch: pytest.MonkeyPatch, pod_count: int) -> int:
    rig = full_quota(QUOTA)
    rig.observe(*[pod(f"p{number}", namespace="a", cpu=f"{2000 + number}m") for number in range(pod_count)])
    rig.settle()
    count = count_calls(monkeypatch, QuotaUsage, "blocked", lambda: release(rig, 0))
    assert rig.counts() == {"unschedulable": pod_count}
    release(rig, 1)
    rig.pass_time(20)
    assert rig.placements().keys() == {"p0"}
    return count


def test_a_release_does_not_look_at_each_group_that_waits_for_the_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert waits_for_release(monkeypatch, 60) == waits_for_release(monkeypatch, 3) <= 2


def looks_beside_entities(monkeypatch: pytest.MonkeyPatch, entities: int) -> int:
    """Of a release, while a tenant has a waiting pod in each of so many entities of its own."""
    text = (
        FIT
        + 'quota team by pod.labels["team"] else "none" { "none" { cpu = 10 } others { cpu = 0 borrow any } }\n'
    )
    rig = full_quota(text)
    rig.observe(
        *[pod(f"p{at}", namespace="hog", cpu="5", labels={"team": f"t{at}"}) for at in range(entities)]
    )
    rig.settle()
    count = count_calls(monkeypatch, QuotaUsage, "blocked", lambda: release(rig, 0))
    assert rig.counts() == {"unschedulable": entities}
    return count


def test_a_release_does_not_look_at_each_entity_of_which_pods_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_beside_entities(monkeypatch, 60) == looks_beside_entities(monkeypatch, 3)


@pytest.mark.parametrize("members", [3, 150])
def test_a_release_that_is_too_small_opens_no_gang_however_large_it_is(members: int) -> None:
    rig = full_quota(QUOTA + GANG_OF_ALL % members)
    cpu = f"{3000 // members}m"
    rig.observe(
        *[pod(f"p{number}", namespace="a", cpu=cpu, labels={"group": "g"}) for number in range(members)]
    )
    rig.settle()
    decisions = len(rig.scheduler.decisions)

    release(rig, 0, 1)
    rig.pass_time(60)
    too_small = rig.placements(), len(rig.scheduler.decisions) - decisions
    release(rig, 2)
    rig.pass_time(60)

    assert too_small == ({}, 0)
    assert len(rig.placements()) == members


def test_a_release_that_is_too_small_for_a_gang_opens_none() -> None:
    rig = full_quota(QUOTA_GANGS)
    rig.observe(
        *[
            pod(f"p{number}", namespace="a", cpu="2", labels={"group": f"g{number // 2}"})
            for number in range(60)
        ]
    )
    rig.settle()
    decisions = len(rig.scheduler.decisions)

    release(rig, 0, 1, 2)
    rig.pass_time(60)
    too_small = rig.placements(), len(rig.scheduler.decisions) - decisions
    release(rig, 3)
    rig.pass_time(60)

    assert too_small == ({}, 0)
    assert rig.placements().keys() == {"p0", "p1"}


def test_a_gang_of_which_smaller_members_pass_is_attempted() -> None:
    """Two of the three are enough: the small ones."""
    rig = full_quota(QUOTA_GANGS)
    cpus = ("6", "1", "1")
    rig.observe(
        *[pod(f"p{number}", namespace="a", cpu=cpu, labels={"group": "g"}) for number, cpu in enumerate(cpus)]
    )
    rig.settle()

    release(rig, 0, 1)
    rig.pass_time(60)

    assert rig.placements().keys() == {"p1", "p2"}


def test_a_group_that_is_gone_does_not_wait() -> None:
    rig = full_quota(QUOTA)
    rig.observe(*[pod(f"p{number}", namespace="a", cpu=f"{2000 + number}m") for number in range(20)])
    rig.settle()
    [waiters] = rig.scheduler.core.quotas._waiters.values()
    before = len(waiters._waiting)

    rig.handle(*[e.PodDeleted(pod(f"p{number}", namespace="a").uid) for number in range(20)])

    assert before == 20
    assert (waiters._waiting, waiters._lines, waiters._at_any_release) == ({}, {}, {})
    assert (waiters._ranks, waiters._of) == ({}, {})


NESTED = (
    FIT
    + """\
quota org by pod.labels["org"] else "none" {
  "x" { cpu = 12, memory = 12Gi }
  "y" { cpu = 8 borrow any, memory = 8Gi borrow 2Gi }
  others { cpu = 2, memory = 1Gi }
}
quota team by pod.labels["team"] else "none" within org {
  "a" in "x" { cpu = 6 borrow 2, memory = 5Gi }
  "b" in "x" { cpu = 4 borrow any, memory = 4Gi borrow any }
  others { cpu = 1 borrow any, memory = 1Gi borrow any }
}
"""
)


def is_final(need: Need, block: QuotaBlock, usage: QuotaUsage) -> bool:
    """Whether no pod may take back what others borrow there."""
    return not block.claims and not usage.claims(need.least, block)


class RandomWaiters:
    """Groups that wait in a random account, beside the definition: each is looked at after each release."""

    def __init__(self, seed: int) -> None:
        self.random, self.number = Random(seed), 0
        self.quotas = Rig(NESTED).scheduler.core.quotas
        self.account = self.quotas.accounts["test"]
        self.waiters = QuotaWaiters()
        self.waiting: dict[int, Need | None] = {}
        self.added: list[QuotaCharge] = []
        self.opened = self.kept = 0

    def charge(self, labels: dict[str, str]) -> QuotaCharge:
        cpu, memory = self.random.choice([0, 1, 2, 3, 5]), self.random.choice([0, 1, 2, 4])
        self.number += 1
        return self.quotas.charge_of(
            pod(f"p{self.number}", cpu=str(cpu), memory=f"{memory}Gi", labels=labels)
        )

    def step(self) -> None:
        labels = {"org": self.random.choice("xyz"), "team": self.random.choice("abc")}
        usage = self.account.usage
        match self.random.randrange(4):
            case 0 | 1:
                charge = self.charge(labels)
                if usage.blocked(charge) is None:
                    usage.add(charge)
                    self.added.append(charge)
            case 2:
                count = self.random.choice([1, 1, 2, 3])
                charges = [self.charge(labels) for _ in range(count + self.random.randrange(2))]
                need, trial, refused_at = Need.of(charges, count), usage.trial(), set[QuotaNode]()
                for charge in charges:
                    block = trial.blocked(charge)
                    if block is None:
                        trial.add(charge)
                    else:
                        refused_at.add(block.node)
                if refused_at:
                    self.waiters.add(self.number, refused_at, need, usage)
                    self.waiting[self.number] = need
            case _:
                if self.added:
                    self.release(self.added.pop(self.random.randrange(len(self.added))))

    def release(self, charge: QuotaCharge) -> None:
        usage = self.account.usage
        self.account.release(charge)
        usage.add(charge, -1)
        fallen, self.account.fallen = self.account.fallen, set()
        opened = self.waiters.take_released(fallen, usage)
        assert opened == sorted(opened), "not in the order in which they began to wait"
        for key in opened:
            del self.waiting[key]
        self.opened += len(opened)
        self.kept += len(self.waiting)
        for key, need in self.waiting.items():
            waiting = self.waiters._waiting[key]
            may_run = not fallen.isdisjoint(waiting.nodes)
            if need is not None and waiting.need is not None:
                may_run = not any(is_final(need, block, usage) for block in usage.blocks(need.together))
            assert not may_run, f"{key} may run and was not opened"


def play_random_waiters(seeds: range) -> tuple[int, int]:
    opened = kept = 0
    for seed in seeds:
        world = RandomWaiters(seed)
        for _ in range(150):
            world.step()
        opened, kept = opened + world.opened, kept + world.kept
    return opened, kept


def test_every_group_that_may_run_after_a_release_is_opened() -> None:
    opened, kept = play_random_waiters(range(20))

    assert min(opened, kept) > 200


@pytest.mark.parametrize("bug", ["the least request is not looked at", "the line ends too early"])
def test_a_planted_bug_in_the_lines_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "the line ends too early":
        monkeypatch.setattr(QuotaWaiters, "_shorten", lambda *_: None)
    else:
        enter = QuotaWaiters._enter

        def enters(waiters: QuotaWaiters, *of: Any) -> None:
            enter(waiters, *of)
            for lines in waiters._lines.values():
                for line in lines.values():
                    line.least.clear()

        monkeypatch.setattr(QuotaWaiters, "_enter", enters)
    with pytest.raises(AssertionError, match="may run and was not opened"):
        play_random_waiters(range(40))


BORROWED = (
    FIT
    + """\
queue by pod.priority desc, pod.name
quota team by pod.namespace { "a" { cpu = 10 borrow any } "b" { cpu = 10 borrow any } others { cpu = 0 } }
"""
)


def test_many_that_could_take_back_are_opened_in_slices_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody may evict the pods that borrow, so each release opens all that wait."""
    borrowers = [pod(f"b{number}", namespace="b", cpu="2") for number in range(10)]
    rig = Rig(BORROWED, LARGE, *[placed(borrower, "n") for borrower in borrowers])
    owners = [pod(f"a{number}", namespace="a", cpu=f"{2000 - number}m") for number in range(250)]
    rig.observe(*owners)
    rig.settle()
    rig.observe(pod("last", namespace="a", cpu="2", priority=1))
    rig.settle()
    waiting = rig.counts()
    counts = []

    def count(call: Callable[[], object]) -> None:
        counts.append(count_calls(monkeypatch, SchedulingQueue, "open_group", call))

    count(lambda: rig.handle(e.PodDeleted(borrowers[0].uid)))
    rig.now_ns += 60 * 10**9
    while rig.scheduler.ready(rig.now_ns):
        count(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))

    assert waiting == {"unschedulable": 251}
    assert sum(counts) >= 251
    assert max(counts) <= 100
    assert rig.placements() == {"last": "n"}
