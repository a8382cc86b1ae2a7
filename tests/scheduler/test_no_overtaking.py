"""Within a policy nothing is placed while something ahead of it, by `queue by`, waits and would fit."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue import parked_entries, sliced_wake_ups
from policysched.scheduler.queue.ordered_queue import SortKeyQueue
from policysched.scheduler.queue.parked_entries import ParkedEntries
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.builders import node, pod
from tests.scheduler.rig import Rig
from tests.simulation.order_checker import OrderChecker

RANKED = """\
policy test version 1
input rank: int = pod.labels["rank"] default 0 invalid default
queue by rank desc, pod.created asc
filter node_unschedulable
filter node_resources_fit
preemption never
"""
TIMED = RANKED.replace("queue by rank desc", "queue by pod.waited > 20s desc, rank desc")
SHARES = RANKED.replace("queue by rank desc", "queue by namespace.share.cpu")
GANGS = RANKED.replace(
    "filter node_unschedulable",
    'gang by pod.labels["group"] { min = 2  timeout = 5m }\nfilter node_unschedulable',
)
QUOTA = """\
quota team by pod.namespace {
  "a" { cpu = 4 borrow 2 }
  "b" { cpu = 5 borrow any }
  others { cpu = 6, pods = 5 }
}
"""
KEYS = (
    "rank desc",
    "pod.priority desc",
    "pod.requests.cpu desc",
    "bucket(pod.name, 3)",
    "pod.waited > 7s desc",
    "(if rank > 2 then pod.waited else 5s) desc",
    "pod.created + 30s * rank",
    "namespace.share.cpu",
    "namespace.share.pods desc",
    "namespace.share.cpu * 3 + namespace.share.memory",
    "pod.quota_share.team",
)
ORDERS = {"ranks": RANKED, "waiting time": TIMED, "shares": SHARES, "gangs": GANGS}


def test_the_first_by_rank_takes_the_node_although_it_is_in_backoff() -> None:
    cordoned = node("a", cpu="4", unschedulable=True)
    rig = Rig(RANKED, cordoned, limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(pod("low", cpu="2900m", labels={"rank": "100"}))
    rig.settle()
    rig.pass_time(0.5)
    rig.observe(pod("high", cpu="3", labels={"rank": "500"}))
    rig.settle()

    rig.pass_time(1.0)
    rig.observe(node("a", cpu="4"))
    rig.settle()

    assert rig.bind_order() == ["high"]


def test_the_first_takes_the_node_although_only_the_other_is_active() -> None:
    rig = Rig(RANKED, node("a", cpu="4", unschedulable=True), limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(pod("high", cpu="3", labels={"rank": "500"}))
    rig.settle()

    rig.observe(node("a", cpu="4"), pod("low", cpu="2", labels={"rank": "1"}))
    rig.settle()

    assert rig.bind_order() == ["high"]


def test_after_a_failed_attempt_of_the_first_pod_the_second_may_pass() -> None:
    rig = Rig(RANKED, node("a", cpu="4", unschedulable=True), limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(pod("high", cpu="30", labels={"rank": "500"}))
    rig.settle()

    rig.observe(node("a", cpu="4"), pod("low", cpu="2", labels={"rank": "1"}))
    rig.settle()

    assert rig.bind_order() == ["low"]


def test_a_pod_with_a_refused_bind_is_overtaken() -> None:
    rig = Rig(RANKED, node("a", cpu="4"), limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(pod("high", cpu="3", labels={"rank": "500"}))
    rig.settle()
    [bind] = rig.of(c.Bind)
    rig.handle(e.BindRefused(bind.uid, "a webhook denies it"))

    rig.observe(pod("low", cpu="2", labels={"rank": "1"}))
    rig.settle()

    assert rig.bind_order() == ["high", "low"]


def test_an_event_during_the_attempts_of_earlier_pods_waits_for_them() -> None:
    rig = Rig(RANKED, node("a", cpu="4", unschedulable=True), limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(pod("high", cpu="30", labels={"rank": "500"}))
    rig.settle()
    rig.observe(node("a", cpu="4"), pod("low", cpu="2", labels={"rank": "1"}))

    rig.commands += rig.scheduler.decide(rig.now_ns)
    assert rig.scheduler.attempt_in_progress
    rig.observe(pod("later", cpu="1", labels={"rank": "900"}))

    assert not rig.scheduler.attempt_in_progress
    assert rig.bind_order() == ["low"]


def test_an_attempt_among_earlier_pods_is_given_up_on_request() -> None:
    rig = Rig(RANKED, node("a", cpu="4", unschedulable=True), limits=SchedulerLimits(backoff_initial_s=8.0))
    rig.observe(pod("high", cpu="30", labels={"rank": "500"}))
    rig.settle()
    rig.observe(node("a", cpu="4"), pod("low", cpu="2", labels={"rank": "1"}))
    rig.commands += rig.scheduler.decide(rig.now_ns)

    rig.commands += rig.scheduler.requeue_current_attempt(rig.now_ns)

    assert not rig.scheduler.attempt_in_progress
    rig.settle()
    assert rig.bind_order() == ["low"]


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_overtaken_in_random_traffic(order: str) -> None:
    comparisons = 0
    for seed in range(8):
        problems, compared = _play(ORDERS[order], Random(seed))
        assert problems == [], f"seed {seed}"
        comparisons += compared
    assert comparisons > 25


def arbitrary(random: Random) -> str:
    """Up to four keys; half of the policies have gangs, and half quotas."""
    keys = ", ".join(random.sample(KEYS, random.randint(1, 4)))
    quota = "" if random.random() < 0.5 and "quota" not in keys else QUOTA
    return random.choice((RANKED, GANGS)).replace("rank desc, pod.created asc", keys) + quota


@pytest.mark.parametrize("block", range(3))
def test_nothing_is_overtaken_in_an_arbitrary_order(block: int) -> None:
    comparisons = 0
    for seed in range(block * 8, block * 8 + 8):
        policy = arbitrary(Random(seed))
        problems, compared = _play(policy, Random(seed))
        assert problems == [], f"seed {seed}: {policy}"
        comparisons += compared
    assert comparisons > 25


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (SchedulingQueue, "yield_to_earlier", lambda *_, **__: False),
        (SortKeyQueue, "precedes", lambda *_: False),
    ],
    ids=["nobody yields", "order of arrival"],
)
def test_an_arbitrary_order_that_does_not_hold_is_reported(owner: type, name: str, planted: object) -> None:
    with patch.object(owner, name, planted):
        assert _is_reported(_play(arbitrary(Random(seed)), Random(seed))[0] for seed in range(6))


@pytest.fixture
def slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_entries, "WAKE_UPS_PER_SLICE", 1)
    monkeypatch.setattr(sliced_wake_ups, "SORTED_PER_SLICE", 1)


@pytest.mark.usefixtures("slices_of_one")
@pytest.mark.parametrize("block", range(2))
def test_nothing_is_overtaken_while_parked_pods_are_woken_in_slices(block: int) -> None:
    for seed in range(block * 8, block * 8 + 8):
        policy = arbitrary(Random(seed))
        assert _play(policy, Random(seed))[0] == [], f"seed {seed}: {policy}"


@pytest.mark.usefixtures("slices_of_one")
def test_a_pod_that_does_not_wait_for_pods_to_be_woken_is_reported() -> None:
    nobody = lambda *_: False  # noqa: E731
    with patch.multiple(ParkedEntries, is_held_by_due=nobody, open_before=nobody):
        assert _is_reported(_play(arbitrary(Random(seed)), Random(seed))[0] for seed in range(16))


@pytest.mark.parametrize("order", ["ranks", "gangs"])
def test_the_checker_reports_an_entry_that_does_not_yield(order: str) -> None:
    with patch.object(SchedulingQueue, "yield_to_earlier", lambda *_, **__: False):
        assert _is_reported(_play(ORDERS[order], Random(seed))[0] for seed in range(4))


def test_the_checker_reports_a_queue_in_order_of_arrival() -> None:
    with patch.object(SortKeyQueue, "precedes", lambda *_: False):
        assert _is_reported(_play(RANKED, Random(seed))[0] for seed in range(4))


def _is_reported(plays: Iterator[list[str]]) -> bool:
    """Whether one of the plays has a pod or gang that is overtaken. No play after it is made."""
    return any("stands ahead of it and fits too" in problem for problems in plays for problem in problems)


def _play(policy: str, random: Random) -> tuple[list[str], int]:
    """Pods, cordons, deletions and refused binds. Returns what the checker reports and how much it compared."""
    problems: list[str] = []
    rig = Rig(policy, limits=SchedulerLimits(backoff_initial_s=4.0, backoff_max_s=16.0))
    assert rig.scheduler.programs(), "the policy is invalid"
    checker = OrderChecker(rig.scheduler, problems.append)
    nodes = [f"n{index}" for index in range(3)]
    rig.observe(*[node(name, cpu="4") for name in nodes])
    for number in range(120):
        match random.randrange(7):
            case 0 | 1 | 6:
                labels = {"rank": str(random.randrange(5))}
                if random.random() < 0.5:
                    labels["group"] = f"g{number // 25}"
                cpu = random.choice(["500m", "1", "2", "2900m", "3"])
                rig.observe(pod(f"p{number}", namespace=random.choice("abc"), cpu=cpu, labels=labels))
            case 2:
                rig.observe(node(random.choice(nodes), cpu="4", unschedulable=random.random() < 0.4))
            case 3:
                placed = [uid for uid, observed in rig.scheduler._core.cache.pods.items() if observed.node]
                if placed:
                    rig.handle(e.PodDeleted(random.choice(sorted(placed))))
            case 4:
                for bind in rig.in_flight_binds():
                    if random.random() < 0.2:
                        rig.handle(e.BindRefused(bind.uid, "a webhook denies it"))
                    else:
                        rig.handle(e.BindConfirmed(bind.uid, bind.node))
                        rig.handle(e.PodUpdated(replace(rig.observed_pod(bind.uid), node=bind.node)))
            case _:
                rig.pass_time(random.choice([0.1, 1.0, 3.0]))
        if random.random() < 0.7:
            rig.settle()
    return problems, checker.comparisons
