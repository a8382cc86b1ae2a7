"""Who goes first when decisions take long: neither a namespace nor a policy takes the time of others."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.model.cluster_events import ClusterEvent
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.queue import late_wake_ups
from policysched.scheduler.queue.active_queues import ActiveQueues
from policysched.scheduler.queue.decision_time import FAILED_ATTEMPT_CREDIT_NS, DecisionTime
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.ordered_queue import SortKeyQueue
from tests.builders import node, pending, placed, pod, rejected, too_little
from tests.scheduler.rig import FIT, GANG, Rig
from tests.scheduler.test_quota_preemption import TEAMS
from tests.volumes import claim, storage_class, using

MS = 10**6
PLAIN = FIT.replace("policy test", "policy plain")
FAST = SchedulerLimits(backoff_initial_s=0.001, backoff_max_s=0.001)


class TimedRig(Rig):
    """Each attempt takes so many milliseconds of the loop's time, by its policy. `attempts`: how many were made."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.attempts: Counter[str] = Counter()

    def attempts_until_bound(self, name: str, attempt_ms: dict[str, int]) -> int:
        """How many attempts were made until the pod was bound."""
        for made in range(1, 1_000):
            if name in self.decide_once(attempt_ms):
                return made
        raise AssertionError(f"{name} is not bound")

    def decide_once(self, attempt_ms: dict[str, int]) -> list[str]:
        """The names of the pods that are bound. Where all that is left rests, the time passes."""
        ends_ns = self.scheduler.core.queue._active.rest_ends_ns()
        if ends_ns is not None and not self.scheduler.core.queue.can_pop:
            self.now_ns = max(self.now_ns, ends_ns)
        commands = self.scheduler.decide(self.now_ns)
        self.commands += commands
        self.check_invariants()
        run = self.scheduler._attempts._last_run
        if run is not None:
            self.attempts[run.entry.policy] += 1
            self.scheduler.account_time(attempt_ms[run.entry.policy] * MS)
            self.now_ns += attempt_ms[run.entry.policy] * MS
        return [command.name for command in commands if isinstance(command, c.Bind)]

    def requeue_all(self) -> None:
        """What every parked pod waits for, of its own namespace."""
        self.now_ns += 5 * MS
        queue = self.scheduler.core.queue
        for name in dict.fromkeys(group.namespace for group in queue.parked_groups()):
            queue.requeue([ClusterEvent.NODE_ALLOCATABLE], self.now_ns, cause=name)


def too_large(count: int, namespace: str = "tenant", **more: object) -> list[Pod]:
    """Pods that fit nowhere, no two equal, each queued before `friend`."""
    return [
        pod(f"{namespace}-{index}", namespace=namespace, cpu=str(100 + index), **more)  # type: ignore[arg-type]
        for index in range(count)
    ]


def friend(name: str = "friend", *, scheduler: str = "test", priority: int = 0) -> Pod:
    return pod(
        name,
        namespace="friendly",
        cpu="1",
        scheduler=scheduler,
        priority=priority,
        created="2027-01-01T00:00:00Z",
    )


def forty_that_were_tried(attempt_ms: int, **more: object) -> TimedRig:
    rig = TimedRig(FIT, node("a", cpu="50"), *too_large(40, **more), limits=FAST)
    rig.observe(friend("first", priority=-1))
    rig.attempts_until_bound("first", {"test": attempt_ms})
    rig.requeue_all()
    return rig


# ── namespaces ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_waits_for_one_attempt_of_an_overdrawn_namespace() -> None:
    rig = forty_that_were_tried(attempt_ms=20)

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 20}) == 1


def test_the_shares_of_many_namespaces_of_one_tenant_do_not_add_up_to_all_of_the_time() -> None:
    tenants = [pod for index in range(12) for pod in too_large(10, f"tenant-{index}")]
    rig = TimedRig(FIT, node("a", cpu="50"), *tenants, limits=FAST)
    rig.observe(friend("first", priority=-1))
    rig.attempts_until_bound("first", {"test": 20})
    waited = []
    for index in range(5):
        rig.requeue_all()
        rig.observe(friend(f"friend-{index}"))
        waited.append(rig.attempts_until_bound(f"friend-{index}", {"test": 20}))

    assert sorted(waited)[2] <= 2, "at the median, beside 120 failed attempts of 20 ms"
    assert max(waited) <= 16, "the credit of all"


def test_the_failed_attempts_of_thousands_of_namespaces_do_not_keep_others_waiting() -> None:
    """Where a cluster is full, or whoever asks gets a namespace. Beyond 1,000, it was forgotten which of them had failed."""
    names = [f"tenant-{index}" for index in range(1_200)]
    rig = TimedRig(FIT, node("a", cpu="50"), limits=FAST)
    with patch.object(rig, "check_invariants"):  # each visits all pods
        rig.observe(*(pod for name in names for pod in too_large(1, name)))
        while rig.counts() != {"unschedulable": len(names)}:
            rig.decide_once({"test": 5})
        waited = []
        for index in range(5):
            rig.now_ns += 70 * SECOND_NS
            rig.requeue_all()
            rig.observe(friend(f"friend-{index}"))
            rig.attempts.clear()
            rig.attempts_until_bound(f"friend-{index}", {"test": 5})
            waited.append(rig.attempts["test"])

    assert max(waited) <= 60, "the credit of all, of which a quarter is paid meanwhile"


def beside_new_namespaces(count: int, *before: ObservedPod) -> TimedRig:
    """Each with a pod that fits nowhere. Their first attempts took the credit of all."""
    rig = TimedRig(FIT, node("a", cpu="99", pods="500"), *before, limits=FAST)
    rig.observe(*(pod for index in range(count) for pod in too_large(1, f"new-{index}")))
    while not rig.scheduler.core.queue.decision_time.is_anybody_overdrawn:
        rig.decide_once({"test": 5})
    assert rig.attempts["test"] <= 60, "with what is paid meanwhile, 0.3 s"
    return rig


def test_a_namespace_with_a_placed_pod_does_not_wait_for_the_first_attempts_of_others() -> None:
    rig = beside_new_namespaces(400, placed(friend("before"), "a"))
    rig.observe(*(friend(f"friend-{index}") for index in range(3)))

    waited = [rig.attempts_until_bound(f"friend-{index}", {"test": 5}) for index in range(3)]

    assert sum(waited) <= 4, "the first attempts of new namespaces take a quarter of the time"


def beside_old_namespaces(count: int) -> TimedRig:
    """Each has had a pod on a node, and has one that fits nowhere."""
    names = [f"old-{index}" for index in range(count)]
    before = [placed(pod(f"{name}-before", namespace=name, cpu="1m"), "a") for name in names]
    rig = TimedRig(FIT, node("a", cpu="99", pods="900"), *before, placed(friend("before"), "a"), limits=FAST)
    with patch.object(rig, "check_invariants"):
        rig.observe(*(pod for name in names for pod in too_large(1, name)))
    return rig


def test_nobody_waits_for_the_first_attempts_of_namespaces_that_have_had_a_pod_on_a_node() -> None:
    rig = beside_old_namespaces(400)
    rig.decide_once({"test": 5})
    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 5}) <= 70, "0.35 s, and 2 s for all"

    rig.observe(placed(friend(), "a"), *(friend(f"friend-{index}") for index in range(90)))
    bound = [name for _ in range(100) for name in rig.decide_once({"test": 5})]
    assert 74 <= len(bound) <= 90, "three quarters of the time, and more until the debt is paid"


def test_a_namespace_whose_pod_was_placed_last_does_not_wait_in_the_midst_of_first_attempts() -> None:
    rig = beside_old_namespaces(200)
    rig.observe(friend("earlier"), placed(friend("earlier"), "a"))
    rig.decide_once({"test": 5})
    rig.observe(friend())
    rig.decide_once({"test": 5})
    with patch.object(rig, "check_invariants"):
        rig.observe(*(pod for n in range(200) for pod in too_large(1, f"later-{n}")))

    assert rig.attempts_until_bound("friend", {"test": 5}) <= 70


def test_a_pod_that_is_created_on_a_node_earns_no_trust() -> None:
    """Whoever writes one again and again would have one attempt after the other ahead of others."""
    rig = beside_new_namespaces(400)
    rig.observe(*(placed(pod(f"on-{n}", namespace=f"new-{n}", cpu="1m"), "a") for n in range(400)))
    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 5}) <= 2


def test_a_new_namespace_takes_turns_with_the_first_attempts_of_thousands_of_others() -> None:
    rig = beside_new_namespaces(400)

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 5}) <= 2


def test_a_new_namespace_gets_its_share_while_others_have_a_backlog() -> None:
    rig = beside_new_namespaces(400, placed(friend("before"), "a"))
    rig.observe(*(friend(f"friend-{index}") for index in range(90)))
    before = rig.counts()["unschedulable"]

    for _ in range(100):
        rig.decide_once({"test": 5})

    assert 20 <= rig.counts()["unschedulable"] - before <= 26, "a quarter of the time"


def test_thousands_of_new_namespaces_share_a_queue() -> None:
    """Each had one of its own while it was overdrawn: to move them took 22 ms for 2,000."""
    time, made = DecisionTime(SchedulerLimits()), Counter[str]()

    def new_queue(policy: str) -> SortKeyQueue:
        made[policy] += 1
        return SortKeyQueue()

    queues = ActiveQueues(new_queue, frozenset(), time)
    time.charge_failed_attempt("tenant", SECOND_NS)
    for number in range(2_000):
        entry = PendingPod(pending(too_large(1, f"t{number}")[0]), queued_ns=number)
        entry.order_key = (number,)
        queues.put(entry)

    popped = [queues.pop() for _ in range(6)]

    turns = [entry.queued_ns for entry in popped if entry is not None]
    assert turns == [0, 1_999, 1, 1_998, 2, 1_997]
    assert made["test"] <= 2


def test_namespaces_with_pods_of_several_priorities_share_queues_too() -> None:
    """Each had one of its own: each decision of others looked at all of them, 8 ms for 2,000."""
    time = DecisionTime(SchedulerLimits())
    queues = ActiveQueues(lambda _: SortKeyQueue(), frozenset(), time)
    time.charge_failed_attempt("tenant", SECOND_NS)
    priorities = [0, 5, 0, 9]
    entries = [
        PendingPod(pending(replace(large, priority=priorities[number % 4])), queued_ns=number)
        for number, large in enumerate(pod for index in range(500) for pod in too_large(4, f"t{index}"))
    ]
    first = PendingPod(pending(friend()), queued_ns=3_000)
    time.note_placed(first.namespace)
    for number, entry in enumerate([*entries, first]):
        entry.order_key = (number,)
        queues.put(entry)
    assert queues.heads() == {"test": first}

    with patch.object(SortKeyQueue, "precedes", autospec=True, side_effect=SortKeyQueue.precedes) as asked:
        assert queues.first_before(first) is None
        assert queues.pop() is first
        assert asked.call_count < 10

    popped = [entry for entry in iter(queues.pop, None) if isinstance(entry, PendingPod)]
    assert [*map(popped.index, entries[:4])] == sorted(map(popped.index, entries[:4])), "as in its namespace"
    assert [entry.priority for entry in popped[:1_000]].count(0) == 500, (
        "a 5 comes before the next 0 of others"
    )
    assert not queues.check()
    assert len(popped) == len(entries)


def test_thousands_of_overdrawn_namespaces_are_looked_at_once() -> None:
    """Each decision of others looked at each of them several times."""
    time = DecisionTime(SchedulerLimits())
    queues = ActiveQueues(lambda _: SortKeyQueue(), frozenset(), time)
    entries = [
        PendingPod(pending(too_large(1, f"t{number}")[0]), queued_ns=number) for number in range(2_000)
    ]
    for number, entry in enumerate(entries):
        entry.order_key = (number,)
        time.charge_failed_attempt(entry.namespace, 10 * MS)
        queues.put(entry)
    first = PendingPod(pending(friend()), queued_ns=3_000)
    first.order_key = (3_000,)
    time.note_placed(first.namespace)
    queues.put(first)
    assert queues.heads() == {"test": first}

    asked: list[str] = []
    is_overdrawn = time.overdrawn_until_ns
    with patch.object(time, "overdrawn_until_ns", lambda name: (asked.append(name), is_overdrawn(name))[1]):
        assert queues.first_before(first) is None
        assert queues.pop() is first
        others = queues.pop()

        assert others in entries
        assert len(asked) < 20

        time.now_ns += 20_000 * MS
        heads = [queues.pop() for _ in range(100)]

    assert [entry.queued_ns for entry in heads if isinstance(entry, PendingPod)] == [*range(1, 101)]
    assert len(asked) < 20 + 2 * len(entries), "once for all"


def test_attempts_that_take_next_to_no_time_keep_the_order_of_the_queue() -> None:
    rig = forty_that_were_tried(attempt_ms=0)

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 0}) > 40


def test_with_a_share_of_one_the_order_holds_whatever_it_takes() -> None:
    rig = TimedRig(
        FIT,
        node("a", cpu="50"),
        *too_large(40),
        friend(priority=-1),
        limits=SchedulerLimits(failed_attempts_share=1.0),
    )

    assert rig.attempts_until_bound("friend", {"test": 20}) > 40


def test_on_the_first_attempts_too_a_namespace_gets_no_more_than_its_credit() -> None:
    rig = TimedRig(FIT, node("a", cpu="50"), *too_large(40), friend())

    made = rig.attempts_until_bound("friend", {"test": 20})

    assert made <= 2 + FAILED_ATTEMPT_CREDIT_NS // (20 * MS)


def test_pods_of_higher_priority_do_not_stand_behind_those_of_lower_priority() -> None:
    rig = forty_that_were_tried(attempt_ms=20, priority=5)

    rig.observe(friend(priority=4))

    assert rig.attempts_until_bound("friend", {"test": 20}) > 40


def test_pods_of_an_overdrawn_namespace_are_tried_while_nothing_else_is_to_be_done() -> None:
    rig = forty_that_were_tried(attempt_ms=20)

    rig.observe(pod("own", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z"))

    rig.attempts_until_bound("own", {"test": 20})


def test_a_namespace_is_in_its_place_again_when_the_time_is_paid() -> None:
    rig = forty_that_were_tried(attempt_ms=20)
    rig.pass_time(100)
    rig.requeue_all()

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 0}) > 40


def test_a_namespace_whose_pods_are_all_placed_owes_nothing() -> None:
    pods = [pod(f"p{index}", namespace="busy", cpu="1") for index in range(40)]
    rig = TimedRig(FIT, node("a", cpu="50"), *pods)
    rig.scheduler._policy_text_events.take_first(rig.now_ns)

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 50}) == 41


def refuse_binds(rig: TimedRig) -> None:
    for bind in rig.in_flight_binds():
        rig.handle(e.BindRefused(bind.uid, "denied by a webhook"))


def test_decisions_whose_binds_are_refused_are_at_the_expense_of_their_namespace() -> None:
    rig = TimedRig(FIT, node("a", cpu="50", pods="500"), limits=FAST)
    rig.observe(*[pod(f"tenant-{index}", namespace="tenant", cpu="10m") for index in range(60)])
    for _ in range(30):
        rig.decide_once({"test": 20})
        refuse_binds(rig)

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 20}) == 1


def test_claims_that_a_provisioner_gives_up_all_the_time_are_at_the_expense_of_their_namespace() -> None:
    rig = TimedRig(f"{FIT}filter volume_binding\n", node("a", cpu="50", pods="500"), limits=FAST)
    names = [f"c{index}" for index in range(60)]
    rig.handle(
        e.StorageObjectUpdated(storage_class("made", "csi.example.com")),
        *(e.StorageObjectUpdated(claim(name, of_class="made")) for name in names),
    )
    rig.observe(*(pod(f"p{index}", spec=using(name)) for index, name in enumerate(names)))
    for version in range(2, 62, 2):
        rig.decide_once({"test": 20})
        for made in [rig.commands[-1]] if isinstance(rig.commands[-1], c.Prebind) else []:
            (wanted,) = made.volumes_to_provision
            selected = claim(wanted.claim.name, of_class="made", selected="a", version=version)
            given_up = claim(wanted.claim.name, of_class="made", version=version + 1)
            rig.handle(
                e.StorageObjectUpdated(selected),
                e.PrebindWritten(made.uid, {wanted.claim: version}, made.attempt),
                e.StorageObjectUpdated(given_up),
            )

    rig.observe(friend())

    assert rig.scheduler.prebinding_count == 0 and len(rig.of(c.Prebind)) >= 10
    assert rig.attempts_until_bound("friend", {"test": 20}) == 1


@pytest.mark.parametrize("member_count", [1, 4])
def test_a_decision_whose_binds_are_refused_is_charged_once(
    member_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TimedRig(GANG.format(more=""), node("a", cpu="50"))
    charged: list[tuple[str, int]] = []
    time = rig.scheduler.core.queue.decision_time
    monkeypatch.setattr(time, "charge_failed_attempt", lambda *charge: charged.append(charge))
    labels = {"group": "g", "least": str(member_count)} if member_count > 1 else {}
    rig.observe(*[pod(f"p{index}", cpu="1", labels=labels) for index in range(member_count)])
    rig.decide_once({"test": 20})
    assert len(rig.placements()) == member_count and not charged

    refuse_binds(rig)

    assert charged == [("default", 20 * MS // member_count)] * member_count
    assert not rig.scheduler.core.binds.decision_ns


def test_an_overdrawn_namespace_keeps_the_order_of_its_own_pods() -> None:
    rig = forty_that_were_tried(attempt_ms=20)
    rig.observe(pod("own", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z"))
    before = Counter(rig.attempts)

    rig.attempts_until_bound("own", {"test": 20})

    assert rig.attempts["test"] - before["test"] > 40


def test_others_do_not_wait_while_an_overdrawn_namespace_tries_its_own_pods_first() -> None:
    rig = forty_that_were_tried(attempt_ms=20)
    rig.observe(pod("own", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z"))
    for _ in range(10):
        rig.decide_once({"test": 20})

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 20}) == 1


def test_a_namespace_does_not_wait_for_an_equal_pod_of_an_overdrawn_one() -> None:
    """Both pods have one verdict. That of the tenant is first, and its attempt is due when nothing else is."""
    rig = TimedRig(
        FIT,
        node("a", cpu="1500m"),
        *too_large(40),
        pod("tenant-equal", namespace="tenant", cpu="2"),
        limits=FAST,
    )
    rig.pass_time(0.001)
    rig.observe(pod("waiting", namespace="friendly", cpu="2", created="2027-01-01T00:00:00Z"))
    for _ in range(60):
        rig.decide_once({"test": 20})

    rig.observe(node("a", cpu="50"))

    assert rig.attempts_until_bound("waiting", {"test": 20}) <= 2 + FAILED_ATTEMPT_CREDIT_NS // (20 * MS)


# ── wake-ups by pods of other namespaces ────────────────────────────────────────────────────────────────────────────


def an_overdrawn_namespace(policy: str = FIT, **more: object) -> TimedRig:
    """Of `tenant`, whose forty pods were tried and are parked."""
    low = [placed(pod(f"low-{index}", namespace="other", cpu="1"), "a") for index in range(2)]
    rig = TimedRig(policy, node("a", cpu="50"), *low, *too_large(40, **more), limits=FAST)
    rig.observe(friend("first", priority=-1))
    rig.attempts_until_bound("first", {"test": 20})
    return rig


def own_new_pod() -> Pod:
    return pod("new", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z")


def leaves(rig: TimedRig, name: str) -> None:
    rig.handle(e.PodDeleted(pod(name, namespace="other").uid))


def test_new_pods_of_an_overdrawn_namespace_do_not_wait_for_those_that_others_wake() -> None:
    rig = an_overdrawn_namespace()

    leaves(rig, "low-0")
    rig.observe(own_new_pod())

    assert rig.attempts_until_bound("new", {"test": 20}) == 1


def test_new_pods_do_not_wait_for_those_that_wake_when_a_kubelet_rejects_pods_of_others() -> None:
    """Whoever deletes a pod without a grace period has the next one on its node rejected: the first one still runs there."""
    rig = an_overdrawn_namespace()
    too_much = pod("too-much", namespace="other", cpu="10")

    rig.observe(
        placed(too_much, "a"), rejected(too_much, "a", "OutOfcpu", too_little("cpu", 10_000, 45_000, 50_000))
    )
    held = rig.scheduler.kubelet_rejections.nodes_with_holds
    rig.observe(own_new_pod())
    while_held = rig.attempts_until_bound("new", {"test": 20})
    rig.now_ns += 10 * SECOND_NS
    rig.requeue_all()
    for _ in range(45):
        rig.decide_once({"test": 20})
    rig.handle(e.PodDeleted(too_much.uid))
    rig.scheduler.kubelet_rejections.advance(rig.now_ns + 600 * SECOND_NS)
    rig.observe(pod("newer", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z"))

    assert held == ["a"] and not rig.scheduler.kubelet_rejections.nodes_with_holds
    assert [while_held, rig.attempts_until_bound("newer", {"test": 20})] == [1, 1]


def test_what_others_wake_late_is_attempted_when_the_debt_is_paid() -> None:
    rig = an_overdrawn_namespace()
    leaves(rig, "low-0")
    queue, before = rig.scheduler.core.queue, rig.attempts["test"]

    rig.decide_once({"test": 20})
    meanwhile = rig.attempts["test"] - before
    paid_ns = queue.decision_time.paid_ns("tenant")
    assert paid_ns is not None and queue.next_time_ns() == paid_ns
    rig.now_ns = paid_ns
    for _ in range(45):
        rig.decide_once({"test": 0})

    assert meanwhile <= 1 and rig.attempts["test"] - before >= 40


@pytest.mark.parametrize("wakes_again", [False, True])
def test_new_pods_wait_for_one_of_those_that_others_wake_late_when_the_debt_is_paid(
    wakes_again: bool,
) -> None:
    rig = an_overdrawn_namespace()
    leaves(rig, "low-0")
    paid_ns = rig.scheduler.core.queue.decision_time.paid_ns("tenant")
    assert paid_ns is not None
    rig.now_ns, before = paid_ns, rig.attempts["test"]
    rig.decide_once({"test": 1})
    rig.decide_once({"test": 1})
    if wakes_again:
        leaves(rig, "low-1")

    rig.observe(own_new_pod())

    assert rig.attempts_until_bound("new", {"test": 1}) <= 2
    assert rig.attempts["test"] > before + 1, "they are attempted meanwhile"


def test_of_those_that_others_wake_late_the_most_important_and_the_oldest_take_turns() -> None:
    rig = an_overdrawn_namespace()
    urgent = [
        pod(f"urgent-{index}", namespace="tenant", cpu=str(300 + index), priority=5) for index in (0, 1)
    ]
    rig.observe(*urgent)
    for _ in range(10):
        rig.decide_once({"test": 20})
    leaves(rig, "low-0")
    queue, woken = rig.scheduler.core.queue, []
    paid_ns = queue.decision_time.paid_ns("tenant")
    assert paid_ns is not None
    queue.decision_time.now_ns = paid_ns

    for _ in range(4):
        [(_, group)] = queue._groups.late.due()
        woken.append([member.representative_pod.name for member in group.members])
        queue._groups.late.discard(group)

    assert woken == [["urgent-0"], ["tenant-0"], ["urgent-1"], ["tenant-1"]]


def test_a_namespace_wakes_its_own_pods_at_once() -> None:
    rig = an_overdrawn_namespace()
    rig.observe(placed(pod("own", namespace="tenant", cpu="1"), "a"))

    rig.handle(e.PodDeleted(pod("own", namespace="tenant").uid))
    rig.observe(own_new_pod())

    assert rig.attempts_until_bound("new", {"test": 20}) > 40


def test_use_of_quotas_by_others_wakes_pods_of_an_overdrawn_namespace_late() -> None:
    """A placement lets them take back what others borrow, and its end lets them run, but no node has what they request."""
    rig = TimedRig(TEAMS, node("n", cpu="12"), limits=FAST)
    rig.observe(*[placed(pod(f"a{index}", namespace="a", cpu="2"), "n") for index in range(4)])
    rig.observe(
        *[pod(f"c{index}", namespace="c", cpu="1", memory=str(10**13 + index)) for index in range(30)]
    )
    for _ in range(70):
        rig.decide_once({"test": 20})
    before = rig.attempts["test"]
    for index in range(3):
        rig.observe(placed(pod(f"b{index}", namespace="b", cpu="4"), "n"))
        rig.decide_once({"test": 20})
        rig.handle(e.PodDeleted(pod(f"b{index}", namespace="b").uid))
        rig.decide_once({"test": 20})

    rig.observe(pod("new", namespace="c", cpu="1", created="2027-01-01T00:00:00Z"))

    assert rig.attempts_until_bound("new", {"test": 20}) <= 2
    assert rig.attempts["test"] <= before + 3


def test_the_end_of_a_victim_wakes_who_waits_for_its_quota_at_once_in_an_overdrawn_namespace() -> None:
    """The first pod has it evicted, and what it releases is enough for the second as well."""
    rig = Rig(TEAMS, node("n", cpu="100"))
    rig.observe(
        *[placed(pod(f"{space}0", namespace=space, cpu=cpu), "n") for space, cpu in (("a", "8"), ("b", "4"))]
    )
    rig.observe(*[pod(f"c{index}", namespace="c", cpu=str(1 + index)) for index in range(2)])
    rig.settle()
    assert "terminating" in (rig.pending_message("c1") or "")
    [evict] = rig.of(c.Evict)
    rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    rig.scheduler.core.queue.decision_time.charge_failed_attempt("c", 10**9)

    rig.handle(e.PodDeleted(pod("a0", namespace="a").uid))

    assert "unschedulable" not in rig.counts()


def test_pods_of_higher_priority_that_others_wake_late_are_tried_first() -> None:
    rig = an_overdrawn_namespace(priority=5)

    leaves(rig, "low-0")
    rig.observe(own_new_pod())

    assert rig.attempts_until_bound("new", {"test": 20}) > 40


def test_a_member_of_higher_priority_that_joins_what_others_wake_late_counts() -> None:
    rig = an_overdrawn_namespace()
    leaves(rig, "low-0")
    groups = rig.scheduler.core.queue._groups
    first, *_, last = [(group, member) for group in groups for member in group.members]
    before = groups.late.before(last[1])

    first[1].priority = 5
    groups.put(*first)

    assert not before
    assert groups.late.before(last[1]) == (ClusterEvent.ASSIGNED_POD_DELETE, first[0])


def test_thousands_that_others_wake_late_are_put_in_order_in_slices_and_once() -> None:
    """All were visited for each pod that is placed: 10 ms for 10,000."""
    rig, visits = an_overdrawn_namespace(priority=5), Counter[str]()
    late, precedes = rig.scheduler.core.queue._groups.late, SortKeyQueue.precedes
    leaves(rig, "low-0")
    members = [member for group in rig.scheduler.core.queue.parked_groups() for member in group.members]
    new = PendingPod(pending(friend()), queued_ns=1)
    new.order_key = (members[0].order_key[0],)

    def visit(queue: SortKeyQueue, entry: PendingPod) -> bool:
        visits["all"] += 1
        return precedes(queue, entry)

    with patch.object(late_wake_ups, "SORTED_PER_SLICE", 10), patch.object(SortKeyQueue, "precedes", visit):
        slices = sum(1 for _ in iter(lambda: late.list_some(new), False))
        for _ in range(5):
            assert late.before(new) is None

    assert len(members) == len(late._events) >= 40 and slices == len(members) // 10
    assert visits["all"] == 5


def test_what_others_wake_late_is_not_visited_for_each_pod_that_is_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2 ms for 2,000 groups, for each pod."""
    rig = an_overdrawn_namespace()
    leaves(rig, "low-0")
    visited = 0
    original = SortKeyQueue.first

    def visit(queue: SortKeyQueue) -> Any:
        nonlocal visited
        visited += 1
        return original(queue)

    monkeypatch.setattr(SortKeyQueue, "first", visit)
    for index in range(10):
        rig.observe(friend(f"friend-{index}"))
        assert rig.attempts_until_bound(f"friend-{index}", {"test": 1}) == 1

    assert rig.scheduler.core.queue.decision_time.is_overdrawn("tenant")
    assert visited < 10 * 40


def test_a_preemptor_of_an_overdrawn_namespace_does_not_wait_when_its_victims_are_gone() -> None:
    rig = an_overdrawn_namespace(FIT.replace("preemption never", "preemption { victims = any }"))
    rig.observe(pod("high", namespace="tenant", cpu="49", priority=10))
    while not rig.of(c.Evict):
        rig.decide_once({"test": 20})
    (evict,) = rig.of(c.Evict)
    victims = [victim.uid for victim in evict.victims]
    rig.handle(e.Evicted(evict.uid, tuple(victims)))
    rig.decide_once({"test": 20})

    rig.handle(*[e.PodDeleted(uid) for uid in victims])

    assert rig.scheduler.core.queue.decision_time.is_overdrawn("tenant")
    assert rig.attempts_until_bound("high", {"test": 20}) == 1


def test_the_end_of_a_victim_wakes_who_does_not_wait_for_it_late() -> None:
    """A tenant can have its own pods evicted all the time, if it has two priorities."""
    policy = FIT.replace("preemption never", "filter node_affinity\npreemption { victims = any }")
    rig = an_overdrawn_namespace(policy)
    rig.observe(
        node("own", cpu="1", labels={"own": "x"}), placed(pod("low", namespace="other", cpu="1"), "own")
    )
    rig.observe(pod("high", namespace="other", cpu="1", priority=10, node_selector={"own": "x"}))
    for _ in range(150):
        rig.decide_once({"test": 20})
    (evict,) = rig.of(c.Evict)
    rig.handle(e.Evicted(evict.uid, tuple(victim.uid for victim in evict.victims)))
    assert rig.counts() == {"unschedulable": 41}

    rig.handle(e.PodDeleted(pod("low", namespace="other").uid))
    rig.observe(own_new_pod())

    assert rig.attempts_until_bound("new", {"test": 20}) <= 2  # one of them is `high`
    assert rig.placements()["high"] == "own"


@pytest.mark.parametrize("deleting", [False, True])
def test_a_victim_that_changes_and_does_not_leave_wakes_others_late(deleting: bool) -> None:
    """Its deletion was denied, or it has a finalizer, and its namespace resizes it all the time."""
    rig = an_overdrawn_namespace()
    victim = replace(rig.observed_pod(pod("low-0", namespace="other").uid), preempted=True, deleting=deleting)
    rig.handle(e.PodUpdated(victim))
    for _ in range(50):
        rig.decide_once({"test": 20})
    assert rig.counts() == {"unschedulable": 40}

    rig.handle(e.PodUpdated(replace(victim, pod=pod("low-0", namespace="other", cpu="500m"))))
    rig.observe(own_new_pod())

    assert rig.attempts_until_bound("new", {"test": 20}) == 1


def test_the_debt_of_a_namespace_is_paid_soon_after_its_last_failed_attempt() -> None:
    time = DecisionTime(SchedulerLimits())
    for _ in range(1_000):
        time.charge_failed_attempt("tenant", 1_000 * MS)

    time.now_ns += 10_000 * MS

    assert not time.is_overdrawn("tenant")


def share_of_failed_attempts(rig: TimedRig, seconds: int, friends_every_s: float = 5) -> float:
    """Of the time, while every pod is requeued whenever none is left to try, and a friend comes so often."""
    began_ns, attempts = rig.now_ns, rig.attempts["test"]
    next_ns = began_ns + round(friends_every_s * 1_000 * MS)
    while rig.now_ns - began_ns < seconds * 1_000 * MS:
        if rig.now_ns >= next_ns:
            next_ns += round(friends_every_s * 1_000 * MS)
            rig.observe(friend(f"friend-{rig.now_ns}", priority=1))
        if rig.scheduler.ready(rig.now_ns):
            rig.decide_once({"test": 20})
        elif rig.scheduler.core.queue._active.has_unheld_entries:
            rig.now_ns += 5 * MS
        else:
            rig.requeue_all()
    return (rig.attempts["test"] - attempts) * 20 * MS / (rig.now_ns - began_ns)


def test_the_failed_attempts_of_a_namespace_take_no_more_than_its_share_of_an_idle_scheduler_either() -> None:
    rig = forty_that_were_tried(attempt_ms=20)
    share_of_failed_attempts(rig, 10)

    assert 0.04 < share_of_failed_attempts(rig, 100) < 0.06


def test_the_only_namespace_does_not_rest() -> None:
    rig = forty_that_were_tried(attempt_ms=20)
    share_of_failed_attempts(rig, 10)

    share_of_failed_attempts(rig, 11, friends_every_s=60)

    assert share_of_failed_attempts(rig, 20, friends_every_s=60) > 0.9


def test_planted_attempts_without_a_rest_are_detected() -> None:
    with patch.object(DecisionTime, "rest_ends_ns", lambda *_: None):
        rig = forty_that_were_tried(attempt_ms=20)

        assert share_of_failed_attempts(rig, 20) > 0.5


def test_half_a_second_of_attempts_in_vain_goes_on_without_a_rest() -> None:
    rig = TimedRig(FIT, node("a", cpu="50"), friend(priority=1), *too_large(25), limits=FAST)
    assert rig.decide_once({"test": 20}) == ["friend"]
    began_ns = rig.now_ns

    while rig.attempts["test"] < 26:
        rig.decide_once({"test": 20})

    assert rig.now_ns - began_ns == 25 * 20 * MS


def test_pods_of_others_are_attempted_while_a_namespace_rests() -> None:
    rig = forty_that_were_tried(attempt_ms=20)
    share_of_failed_attempts(rig, 10)
    rig.requeue_all()
    while rig.scheduler.core.queue._active.rest_ends_ns() is None:
        rig.decide_once({"test": 20})

    rig.observe(friend())

    assert rig.attempts_until_bound("friend", {"test": 20}) == 1


def test_the_caller_learns_when_the_rest_of_a_namespace_ends() -> None:
    rig = TimedRig(FIT, node("a", cpu="50"), friend(priority=1), *too_large(60), limits=FAST)
    timers: list[int] = []

    while rig.scheduler.ready(rig.now_ns):
        timers = [
            command.at_ns for command in rig.scheduler.decide(rig.now_ns) if isinstance(command, c.SetTimer)
        ]
        if rig.scheduler._attempts._last_run is not None:
            rig.scheduler.account_time(50 * MS)
            rig.now_ns += 50 * MS

    assert len(timers) == 1
    assert rig.now_ns < timers[0] <= rig.now_ns + 1_000 * MS
    assert rig.scheduler.ready(timers[0])


# ── policies ────────────────────────────────────────────────────────────────────────────────────────────────────────


def two_policies(expensive: int) -> TimedRig:
    policies = {"test.policy": FIT, "plain.policy": PLAIN}
    pods = [pod(f"e{index:03}", namespace="a", cpu="1m") for index in range(expensive)]
    return TimedRig(policies, node("a", cpu="500", pods=1_000), *pods)


COSTS = {"test": 40, "plain": 1}


def test_a_policy_with_expensive_decisions_does_not_delay_another_by_its_backlog() -> None:
    rig = two_policies(expensive=100)
    rig.attempts_until_bound("e009", COSTS)

    rig.observe(friend(scheduler="plain"))

    assert rig.attempts_until_bound("friend", COSTS) <= 2


def test_two_policies_with_a_backlog_get_equal_time() -> None:
    rig = two_policies(expensive=100)
    rig.observe(*(friend(f"f{index:03}", scheduler="plain") for index in range(120)))

    rig.attempts_until_bound("f119", COSTS)

    assert 120 / 40 - 3 <= rig.attempts["test"] <= 120 / 40 + 3


def test_a_policy_that_had_nothing_to_decide_saves_no_time_up() -> None:
    rig = two_policies(expensive=100)
    rig.attempts_until_bound("e019", COSTS)
    rig.observe(*(friend(f"f{index:03}", scheduler="plain") for index in range(120)))

    rig.attempts_until_bound("f119", COSTS)

    assert rig.attempts["test"] >= 20 + (120 - 50) // 40


def test_pods_of_higher_priority_come_first_whatever_their_policy_took() -> None:
    rig = two_policies(expensive=0)
    rig.observe(*(pod(f"e{index}", namespace="a", cpu="1m", priority=1) for index in range(20)))

    rig.observe(friend(scheduler="plain"))

    assert rig.attempts_until_bound("friend", COSTS) == 21


# ── nothing is lost, and nobody overtakes without a reason ────────────────────────────────────────────────────────────


def violations(seed: int) -> list[str]:
    """A random history of the active queues, with a list of the entries as its model. In every other one the order does
    not begin with the priority. Pods of a namespace are placed now and then, until when it is in doubt."""
    rng, problems, by_priority = Random(seed), [], seed % 2 == 0
    time = DecisionTime(SchedulerLimits())
    queues = ActiveQueues(lambda _: SortKeyQueue(), frozenset(), time)
    waiting: list[PendingPod] = []
    for number in range(200):
        time.now_ns += rng.choice((0, MS, 100 * MS, 5_000 * MS))
        match rng.randrange(5):
            case 4:
                if rng.random() < 0.1:
                    time.note_placed(rng.choice("xyz"))
            case 0 | 1:
                made = pod(f"p{number}", namespace=rng.choice("xyz"), scheduler=rng.choice(("test", "plain")))
                entry = PendingPod(pending(made), queued_ns=number)
                entry.priority = rng.randrange(2)
                entry.order_key = (-entry.priority if by_priority else rng.randrange(5), number)
                queues.put(entry)
                waiting.append(entry)
            case 2:
                time.charge_failed_attempt(rng.choice("xyz"), rng.randrange(400) * MS)
            case _:
                rests = queues.rest_ends_ns() is not None
                if rests and not all(time.is_overdrawn(entry.namespace) for entry in waiting):
                    problems.append("others wait while a namespace rests")
                popped = queues.pop()
                if (popped is None) != (rests or not waiting) or (
                    popped is not None and popped not in waiting
                ):
                    problems.append(f"{popped} of {len(waiting)}")
                    return problems
                if popped is None:
                    continue
                assert isinstance(popped, PendingPod)
                waiting.remove(popped)
                problems += [
                    f"{popped} before {other} of its namespace"
                    for other in waiting
                    if other.policy == popped.policy
                    and other.namespace == popped.namespace
                    and other.sort_key < popped.sort_key
                ]
                if time.is_overdrawn(popped.namespace):
                    problems += [
                        f"{popped} before {other}"
                        for other in waiting
                        if by_priority
                        and not time.is_overdrawn(other.namespace)
                        and other.priority >= popped.priority
                    ]
                problems += [
                    f"{popped} before {other}"
                    for other in waiting
                    if other.policy == popped.policy
                    and not time.is_overdrawn(other.namespace)
                    and other.sort_key < popped.sort_key
                ]
    return [*problems, *queues.check(), *([] if set(queues) == set(waiting) else ["entries differ"])]


def test_in_random_histories_nothing_is_lost_and_only_the_overdrawn_are_overtaken() -> None:
    assert [violations(seed) for seed in range(60)] == [[]] * 60


def deferred_entries_are_forgotten(self: ActiveQueues, policy: str) -> None:
    self._queues[policy].pop()


def deferred_entries_come_last_for_ever(self: ActiveQueues, policy: str) -> object:
    while (head := self._queues[policy].first()) is not None and self._time.is_overdrawn(head.namespace):
        self._defer(policy)
    return head


def priority_is_above_the_order(self: ActiveQueues, policy: str, *_: object) -> list[object]:
    deferred = self._deferred.get(policy)
    return [] if deferred is None else [entries.first() for entries in deferred.queues.values()]


def new_entries_pass_the_deferred_ones(self: ActiveQueues, entry: PendingPod) -> None:
    self._filled.setdefault(entry.policy)
    self._queue_of(entry.policy).put(entry, entry.sort_key)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_defer", deferred_entries_are_forgotten),
        ("head_of", deferred_entries_come_last_for_ever),
        ("put", new_entries_pass_the_deferred_ones),
        ("overdrawn_heads", priority_is_above_the_order),
    ],
)
def test_the_histories_catch_planted_bugs(name: str, bug: Callable[..., object]) -> None:
    with patch.object(ActiveQueues, name, bug):
        assert any(violations(seed) for seed in range(60))


def test_accounts_that_are_paid_are_dropped() -> None:
    time = DecisionTime(SchedulerLimits())
    for number in range(5_000):
        time.now_ns += 1_000 * MS
        time.charge_failed_attempt(f"tenant-{number}", MS)

    assert len(time._paid_ns) <= 1_000


def test_the_time_of_a_gang_that_is_placed_is_charged_to_its_policy() -> None:
    labels = {"group": "g", "least": "2"}
    members = [pod(name, cpu="1", labels=labels) for name in ("one", "two")]
    rig = TimedRig(GANG.format(more=""), node("a", cpu="4"), *members)

    made = rig.attempts_until_bound("two", {"test": 30})

    assert made == 1
    assert rig.placements() == {"one": "a", "two": "a"}


def test_somebody_is_overdrawn_exactly_while_a_namespace_is() -> None:
    random, time = Random(5), DecisionTime(SchedulerLimits())
    names = ("a", "b", "c")
    seen = Counter[bool]()

    for step in range(4_000):
        if step % 1_000 < 200 and random.random() < 0.3:  # then the debts are paid
            time.charge_failed_attempt(random.choice(names), random.randrange(90 * MS))
        time.now_ns += random.randrange(60 * MS)
        assert time.is_anybody_overdrawn == any(map(time.is_overdrawn, names))
        seen[time.is_anybody_overdrawn] += 1

    assert min(seen[True], seen[False]) > 50, seen
