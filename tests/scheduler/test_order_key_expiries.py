"""An order that reads the clock: keys are computed again in slices, and in the share of the time that a namespace has."""

from collections import Counter

import pytest

from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.order_key_expiries import OrderKeyExpiries
from tests.builders import namespace, node, pending, pod
from tests.scheduler.rig import Rig

LISTS = " and ".join(f"count(cards where card.memory > {number}) >= 0" for number in range(5))
SLOW = f"""\
policy test version 1
record card {{ memory: int }}
input cards: list<card> = pod.annotations["cards"] default [] invalid default
queue by (if {LISTS} then abs(pod.waited - 1h) else 0s) asc
filter node_resources_fit
preemption never
"""
FAST = (
    "policy test version 1\nqueue by abs(pod.waited - 1h) asc\nfilter node_resources_fit\npreemption never\n"
)
TENANTS = [f"tenant-{number}" for number in range(12)]


class Keyed:
    """How often the keys of a namespace were computed again, and of how many pods in one call of `decide`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: str, share: float = 0.05) -> None:
        self.rig = Rig(
            policy,
            *[namespace(name) for name in ("friend", *TENANTS)],
            node("a", cpu="1"),
            limits=SchedulerLimits(failed_attempts_share=share),
        )
        self.counts = Counter[str]()
        self.most_at_once = 0
        rekey = PodEnqueuer._rekey_expired

        def counting(enqueuer: PodEnqueuer, pending: PendingPod, now_ns: int) -> None:
            self.counts[pending.pod.namespace] += 1
            rekey(enqueuer, pending, now_ns)

        monkeypatch.setattr(PodEnqueuer, "_rekey_expired", counting)

    def observe(self, namespace_name: str, count: int) -> None:
        self.rig.observe(
            *[pod(f"{namespace_name}-{n}", cpu="2", namespace=namespace_name) for n in range(count)]
        )
        self.rig.settle()

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(20 * seconds):
            self.rig.now_ns += 50_000_000
            while self.rig.scheduler.ready(self.rig.now_ns):
                before = self.counts.total()
                self.rig.scheduler.decide(self.rig.now_ns)
                self.most_at_once = max(self.most_at_once, self.counts.total() - before)


def test_slow_keys_of_many_pods_are_computed_one_at_a_time_and_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200 in one piece, 3 s of each second."""
    keyed = Keyed(monkeypatch, SLOW)
    keyed.observe("tenant-0", 200)
    keyed.observe("friend", 1)

    keyed.pass_seconds(20)

    assert keyed.most_at_once == 1
    assert 20 * 2 <= keyed.counts["tenant-0"] <= 20 * 5, (
        "16 ms each: at most a twentieth of 20 s, and the credit"
    )
    assert keyed.counts["friend"] >= 15, "others have keys of a second ago"


def test_many_namespaces_have_a_share_together(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = Keyed(monkeypatch, SLOW)
    for tenant in TENANTS:
        keyed.observe(tenant, 10)

    keyed.pass_seconds(20)

    assert 20 * 10 <= keyed.counts.total() <= 20 * 20, "16 ms each: at most a quarter of 20 s, and the credit"
    assert max(keyed.counts.values()) - min(keyed.counts.values()) <= 5, "they take turns"


def test_fast_keys_of_many_pods_are_computed_each_second_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = Keyed(monkeypatch, FAST)
    keyed.observe("tenant-0", 300)

    keyed.pass_seconds(5)

    assert 1 < keyed.most_at_once < 100
    assert keyed.counts["tenant-0"] >= 4 * 300


def test_without_a_limit_on_the_share_they_are_computed_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = Keyed(monkeypatch, SLOW, share=1)
    keyed.observe("tenant-0", 50)

    keyed.pass_seconds(5)

    assert keyed.most_at_once == 1
    assert keyed.counts["tenant-0"] >= 4 * 50


def test_keys_that_expire_again_before_their_turn_keep_it() -> None:
    """Those of a gang, after each failed attempt: the keys of its first members only were computed again."""
    expiries, rekeyed = OrderKeyExpiries(0.05), set[str]()
    members = [PendingPod(pending(pod(f"p{number}")), queued_ns=0) for number in range(100)]

    for now_ns in range(0, 60 * SECOND_NS, SECOND_NS):
        for member in members:
            expiries.expire(member, now_ns)
        while (due := expiries.pop(now_ns)) is not None:
            expiries.charge(due, 800, now_ns)
            rekeyed.add(due.uid)

    assert len(rekeyed) == len(members)
