"""What is computed for many pods at once depends on the static cost of the text: a long list of a pod takes milliseconds."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from policysched.evaluate.plan import plan as plans
from policysched.model.pod_status import ObservedPod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler import pod_enqueuer
from policysched.scheduler.canaries import ActiveCanary
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from tests.builders import namespace, node, pending, placed, pod
from tests.scheduler.rig import FIT, Rig

PODS = 40
LISTS = " and ".join(f"count(cards where card.memory > {number}) >= 0" for number in range(5))
HEAD = """\
policy test version 1
record card { memory: int }
input cards: list<card> = pod.annotations["cards"] default [] invalid default
filter node_resources_fit
preemption never
"""
QUEUE = "queue by (if {lists} then {number} else 0)\n"
QUOTA = 'quota teams by (if {lists} then "a" else "b") {{ others {{ pods = 10{number} }} }}\n'
CANARY = """\
canary strict 50% by pod.name when {lists} guard pending < 99% for 6{number}s else rollback {{
  filter none reject node.pods < 0 says "no"
}}
"""
OTHER = FIT.replace("policy test", "policy other")
SLOW, FAST = LISTS, "pod.priority >= 0"


class Calls:
    """How often a function of the policy is called in one call of the scheduler, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.count = self.most = self.total = 0
        called = getattr(owner, name)

        def counting(*arguments: object, **more: object) -> object:
            self.count += 1
            return called(*arguments, **more)

        monkeypatch.setattr(owner, name, counting)

    def during(self, call: Callable[[], object]) -> None:
        self.count = 0
        call()
        self.most = max(self.most, self.count)
        self.total += self.count


def drive(rig: Rig, calls: Calls, event: e.Event) -> None:
    calls.during(lambda: rig.scheduler.handle(event, rig.now_ns))
    settle(rig, calls)


def settle(rig: Rig, calls: Calls) -> None:
    while rig.scheduler.ready(rig.now_ns):
        calls.during(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))


def edited(calls: Calls, clause: str, lists: str, *, on: str | None) -> Rig:
    """A policy with many pods gets another text, in which only a number differs."""
    large = node("a", cpu="1000", pods="1000")
    rig = Rig(HEAD + clause.format(lists=lists, number=1), large if on else node("a", cpu="1"))
    pods = [pod(f"p{number}", cpu="2") for number in range(PODS)]
    rig.observe(pod("first", cpu="1"), *([placed(each, on) for each in pods] if on else pods))
    rig.settle()
    calls.most = calls.total = 0
    calls.during(lambda: rig.apply_policies(HEAD + clause.format(lists=lists, number=2)))
    settle(rig, calls)
    return rig


@pytest.mark.parametrize(
    ("clause", "on", "owner", "name"),
    [
        (QUEUE, None, plans.Plan, "order_key"),
        (QUOTA, "a", plans.Plan, "quota_charge"),
        (CANARY, "a", ActiveCanary, "has"),
    ],
)
def test_another_text_is_slow_for_one_pod_at_a_time(
    monkeypatch: pytest.MonkeyPatch, clause: str, on: str | None, owner: type, name: str
) -> None:
    calls = Calls(monkeypatch, owner, name)

    edited(calls, clause, SLOW, on=on)

    assert calls.total >= PODS
    assert calls.most <= 2, "one of the slice, and one of an attempt"


@pytest.mark.parametrize(
    ("clause", "on", "owner", "name"),
    [(QUOTA, "a", plans.Plan, "quota_charge"), (CANARY, "a", ActiveCanary, "has")],
)
def test_another_text_is_fast_for_many_pods_at_once(
    monkeypatch: pytest.MonkeyPatch, clause: str, on: str | None, owner: type, name: str
) -> None:
    calls = Calls(monkeypatch, owner, name)

    edited(calls, clause, FAST, on=on)

    assert calls.most > PODS / 2


@pytest.mark.parametrize("preemption", ["preemption never\n", ""], ids=["evicts nobody", "may take back"])
def test_slow_members_of_a_gang_are_charged_once_and_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, preemption: str
) -> None:
    """Each attempt asks for their charges several times: for its quotas, its classes, and when the gang is parked."""
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    gangs = f'gang by pod.labels["group"] {{ min = {PODS} }}\n'
    quota = QUOTA.format(lists=SLOW, number=1)
    rig = Rig(HEAD.replace("preemption never\n", preemption) + quota + gangs, node("a", cpu="1"))
    members = [pod(f"p{number}", cpu="2", labels={"group": "g"}) for number in range(PODS)]
    rig.observe(*members)

    settle(rig, calls)
    rig.observe(node("b", cpu="1"))
    rig.pass_time(20)

    assert "0 of 40 members fit now: 0/2 nodes" in (rig.pending_message("p0") or "")
    assert (calls.most, calls.total) == (1, PODS)
    rig.handle(*[e.PodDeleted(each.uid) for each in members])
    assert not rig.scheduler.core.quotas.accounts["test"]._kept


def started(calls: Calls, text: str) -> Rig:
    """The process starts, or leads: the pods and the texts are there before the first lists are complete."""
    rig = Rig({"main.policy": text, "other.policy": OTHER}, node("a", cpu="1"), synced=False)
    rig.observe(*[pod(f"p{number}", cpu="2") for number in range(PODS)], pod("friend", scheduler="other"))
    calls.during(lambda: rig.handle(e.Synced()))
    return rig


def test_after_a_start_slow_pods_are_queued_one_at_a_time_and_others_decided_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, plans.Plan, "order_key")

    rig = started(calls, HEAD + QUEUE.format(lists=SLOW, number=1))
    at_start = calls.total
    while "friend" not in rig.placements():
        calls.during(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))
    before_friend = calls.total
    settle(rig, calls)
    rig.observe(node("b", cpu="1000", pods="1000"))
    rig.settle()

    assert at_start <= 2, "the first slice, and the friend"
    assert before_friend <= 4
    assert calls.most <= 2
    assert len(rig.placements()) == PODS + 1


def running_gangs() -> Rig:
    """As it starts: of two members each, which run, and a pod that lacks the room of one of them."""
    gangs = HEAD + GANG.replace("min = least", f"min = (if {SLOW} then least else 1)")
    texts = {
        "main.policy": gangs,
        "other.policy": OTHER.replace("preemption never", "preemption { victims = true }"),
    }
    rig = Rig(texts, node("a", cpu=str(PODS)), synced=False)
    for number in range(PODS):
        labels = {"group": f"g{number // 2}", "least": "2"}
        rig.observe(placed(pod(f"p{number}", cpu="1", labels=labels), "a"))
    rig.observe(pod("preemptor", cpu="1", scheduler="other", priority=100))
    return rig


def test_after_a_start_running_members_of_slow_gangs_are_counted_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, plans.Plan, "gang")
    rig = running_gangs()
    rig.observe(pod("friend", scheduler="other", priority=200, cpu="0"))

    calls.during(lambda: rig.handle(e.Synced()))
    calls.during(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))
    between = calls.total
    settle(rig, calls)

    assert "friend" in rig.placements()
    assert between <= 4
    assert calls.most <= 3, "at the start one of the slice, and the two others"
    assert {len(gang.placed_members) for gang in rig.scheduler.core.gangs} == {2}


def test_no_member_is_evicted_before_its_gang_is_counted() -> None:
    rig = running_gangs()

    rig.handle(e.Synced())
    rig.pass_time(5)

    [evict] = rig.of(c.Evict)
    assert len(evict.victims) == 2, "a gang goes whole"


def test_pods_that_changed_while_a_slow_text_got_ready_are_queued_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was computed for them before is not current."""
    calls = Calls(monkeypatch, plans.Plan, "order_key")
    rig = Rig(HEAD + QUEUE.format(lists=SLOW, number=1), node("a", cpu="1"))
    rig.observe(pod("first", cpu="1"), *[pod(f"p{number}", cpu="2") for number in range(PODS)])
    rig.settle()
    rig.apply_policies(HEAD + QUEUE.format(lists=SLOW, number=2))
    while len(rig.scheduler._reload._in_preparation["test"].precomputed) < PODS:
        rig.commands += rig.scheduler.decide(rig.now_ns)
    rig.observe(*[pod(f"p{number}", cpu="2", labels={"changed": "yes"}) for number in range(PODS)])
    calls.most = calls.total = 0

    settle(rig, calls)

    assert calls.total >= PODS
    assert calls.most <= 2


def test_a_changed_namespace_is_slow_for_one_pod_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, plans.Plan, "order_key")
    rig = edited(calls, QUEUE, SLOW, on=None)
    calls.most = calls.total = 0

    drive(rig, calls, e.NamespaceUpdated(namespace("default", tier="b")))

    assert calls.total >= PODS
    assert calls.most <= 2


def test_a_changed_namespace_charges_slow_pods_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    by_tier = QUOTA.replace("{lists}", '(namespace.labels["tier"] else "") == "b" and {lists}')
    rig = edited(calls, by_tier, SLOW, on="a")
    calls.most = calls.total = 0

    drive(rig, calls, e.NamespaceUpdated(namespace("default", tier="b")))

    assert calls.total == PODS + 1
    assert calls.most == 1
    [counted] = rig.scheduler.quotas()
    assert (counted.path, counted.pods) == (("a",), PODS + 1)


def test_a_changed_namespace_moves_pods_into_a_canary_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    by_tier = CANARY.replace("50%", "100%").replace(
        "{lists}", '(namespace.labels["tier"] else "") == "b" and {lists}'
    )
    calls = Calls(monkeypatch, ActiveCanary, "has")
    rig = edited(calls, by_tier, SLOW, on="a")
    canary = rig.scheduler.core.canaries.active["test"]
    assert not canary.members
    calls.most = calls.total = 0

    drive(rig, calls, e.NamespaceUpdated(namespace("default", tier="b")))

    assert len(canary.members) == PODS + 1
    assert calls.most == 1


GANG = """\
input least: int = pod.labels["least"] default 1 invalid default
gang by pod.labels["group"] { min = least timeout = 5m }
"""


def waiting_gangs(lists: str, groups: int) -> Rig:
    """So many, with PODS members in all."""
    rig = Rig(HEAD + QUEUE.format(lists=lists, number=1) + GANG, node("a", cpu="1"))
    labels = [{"group": f"g{number % groups}", "least": str(PODS // groups)} for number in range(PODS)]
    rig.observe(*[pod(f"p{number}", labels=each, cpu="2") for number, each in enumerate(labels)])
    return rig


def test_slow_members_of_a_gang_are_ordered_again_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """When they arrive, and after a failed attempt."""
    rig = waiting_gangs(SLOW, 1)
    calls = Calls(monkeypatch, plans.Plan, "order_key")

    settle(rig, calls)
    most = calls.most
    calls.during(lambda: rig.pass_time(20))

    assert most <= 2
    assert calls.total == 2 * PODS
    rig.check_invariants()


def time_out(calls: Calls, lists: str, *, groups: int) -> Rig:
    """The timeouts pass. Half of the members have new places in the queue."""
    rig = waiting_gangs(lists, groups)
    rig.pass_time(20)
    calls.most = calls.total = 0
    rig.now_ns += 300 * 10**9
    while calls.total < PODS // 2:
        assert rig.scheduler.ready(rig.now_ns)
        calls.during(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))
    return rig


@pytest.mark.parametrize("groups", [1, PODS // 2])
def test_a_gang_is_restarted_a_few_slow_members_at_a_time(
    monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    calls = Calls(monkeypatch, plans.Plan, "order_key")

    rig = time_out(calls, SLOW, groups=groups)
    were_held = any(gang.held for gang in rig.scheduler.core.gangs)
    settle(rig, calls)

    assert were_held
    assert calls.most <= 2
    assert calls.total >= PODS
    gangs = [*rig.scheduler.core.gangs]
    assert len(gangs) == groups
    assert not any(gang.held for gang in gangs)
    assert {pod.queued_ns for gang in gangs for pod in gang.pending_members.values()} == {rig.now_ns}
    rig.check_invariants()


def test_a_gang_that_is_restarted_waits_for_one_slice_of_all_gangs_of_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_enqueuer, "_TIMED_OUT_MEMBERS_MAX", 10**9)  # all gangs time out in one call
    calls = Calls(monkeypatch, PodEnqueuer, "_apply_timeout_to")  # to one member
    rig = Rig(HEAD + QUEUE.format(lists=SLOW, number=1) + GANG, node("a", cpu="1"))
    for gang in range(20):
        namespace_name = "friend" if gang == 0 else "tenant"
        labels = {"group": f"g{gang}", "least": "8"}
        rig.observe(
            *[pod(f"g{gang}-{n}", namespace=namespace_name, labels=labels, cpu="2") for n in range(8)]
        )
    rig.pass_time(20)
    rig.now_ns += 300 * 10**9
    rig.commands += rig.scheduler.decide(rig.now_ns)
    friendly = next(gang for gang in rig.scheduler.core.gangs if "g0" in gang.name)
    assert friendly.held

    while friendly.held:
        calls.during(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))

    assert calls.total <= 16, "the members of both namespaces take turns"
    settle(rig, calls)
    assert not any(gang.held for gang in rig.scheduler.core.gangs)


def test_a_gang_is_restarted_with_many_fast_members_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, plans.Plan, "order_key")

    time_out(calls, FAST, groups=1)

    assert calls.most > PODS / 2


def test_changed_pods_move_into_a_canary_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event tells it, and readiness cannot change it."""
    calls = Calls(monkeypatch, ActiveCanary, "has")
    by_tier = CANARY.replace("50%", "100%").replace(
        "{lists}", '(pod.labels["tier"] else "") == "b" and {lists}'
    )
    rig = edited(calls, by_tier, SLOW, on="a")
    pods = [placed(pod(f"p{number}", cpu="2", labels={"tier": "b"}), "a") for number in range(PODS)]
    calls.most = calls.total = 0

    for each in pods:
        calls.during(lambda each=each: rig.scheduler.handle(e.PodUpdated(each), rig.now_ns))  # type: ignore[misc]
    assert calls.total == 0
    settle(rig, calls)
    for each in pods:
        ready = replace(each, pod=replace(each.pod, ready=True))
        drive(rig, calls, e.PodUpdated(ready))

    assert (calls.most, calls.total) == (1, PODS)
    assert len(rig.scheduler.core.canaries.active["test"].members) == PODS


def test_changed_pods_are_charged_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    by_tier = QUOTA.replace("{lists}", '(pod.labels["tier"] else "") == "b" and {lists}')
    rig = edited(calls, by_tier, SLOW, on="a")
    pods = [placed(pod(f"p{number}", cpu="2", labels={"tier": "b"}), "a") for number in range(PODS)]
    calls.most = calls.total = 0

    for each in pods:
        calls.during(lambda each=each: rig.scheduler.handle(e.PodUpdated(each), rig.now_ns))  # type: ignore[misc]
    assert calls.total == 0
    rig.check_invariants()
    settle(rig, calls)

    assert (calls.most, calls.total) == (1, PODS)
    assert {status.path: status.pods for status in rig.scheduler.quotas()} == {("a",): PODS, ("b",): 1}


CPU_QUOTA = """\
quota teams by (if {lists} then "a" else "b") {{
  "a" {{ cpu = {limit} pods = 1{number}000 }}
  others {{ cpu = 0 }}
}}
"""


def events_of(rig: Rig, calls: Calls, pods: Iterable[ObservedPod]) -> None:
    """None of them evaluates the quotas."""
    calls.most = calls.total = 0
    for each in pods:
        calls.during(lambda each=each: rig.scheduler.handle(e.PodUpdated(each), rig.now_ns))  # type: ignore[misc]
    assert calls.total == 0
    rig.check_invariants()


def counted(rig: Rig) -> tuple[int, int]:
    """The pods of the entity, and their cpu."""
    [status] = [each for each in rig.scheduler.quotas() if each.path == ("a",)]
    return status.pods, next(each.used for each in status.resources if each.resource == "cpu")


def test_resized_pods_are_charged_one_at_a_time_and_count_with_their_new_size_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    rig = edited(calls, CPU_QUOTA.replace("{limit}", "1000"), SLOW, on="a")

    events_of(rig, calls, [placed(pod(f"p{number}", cpu="3"), "a") for number in range(PODS)])
    at_once = counted(rig)
    settle(rig, calls)

    assert at_once == counted(rig) == (PODS + 1, 3_000 * PODS + 1_000)
    assert (calls.most, calls.total) == (1, PODS)


def test_pods_that_others_place_are_charged_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    rig = edited(calls, CPU_QUOTA.replace("{limit}", "1000"), SLOW, on="a")

    events_of(rig, calls, [placed(pod(f"new{number}", cpu="1"), "a") for number in range(PODS)])
    settle(rig, calls)

    assert counted(rig) == (2 * PODS + 1, 3_000 * PODS + 1_000)
    assert (calls.most, calls.total) == (1, PODS)


def test_nothing_of_the_policy_is_placed_before_all_pods_that_others_placed_are_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They use up what is left. A pod of another policy waits for two of them at most."""
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    texts = {
        "main.policy": HEAD + CPU_QUOTA.format(lists=SLOW, number=1, limit=PODS),
        "other.policy": OTHER,
    }
    rig = Rig(texts, node("a", cpu="1000", pods="1000"))
    rig.settle()

    events_of(rig, calls, [placed(pod(f"new{number}", cpu="1"), "a") for number in range(PODS)])
    rig.scheduler.handle(e.PodUpdated(pending(pod("late", cpu="1", namespace="elsewhere"))), rig.now_ns)
    rig.scheduler.handle(e.PodUpdated(pending(pod("plain", scheduler="other"))), rig.now_ns)
    for _ in range(4):
        calls.during(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)))
    early = rig.placements()
    settle(rig, calls)

    assert early == rig.placements() == {"plain": "a"}
    assert counted(rig) == (PODS, 1_000 * PODS)
    assert calls.most == 1


def test_pods_that_others_place_count_after_another_text_and_a_changed_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    rig = edited(calls, CPU_QUOTA.replace("{limit}", "1000"), SLOW, on="a")

    events_of(rig, calls, [placed(pod(f"new{number}", cpu="1"), "a") for number in range(PODS)])
    rig.scheduler.handle(e.PodUpdated(placed(pod("new0", cpu="2"), "a")), rig.now_ns)
    rig.scheduler.handle(e.PodDeleted(pod("new1").uid), rig.now_ns)
    rig.scheduler.handle(e.NamespaceUpdated(namespace("default", tier="b")), rig.now_ns)
    rig.apply_policies(HEAD + CPU_QUOTA.format(lists=SLOW, number=3, limit=1000))
    settle(rig, calls)

    assert counted(rig) == (2 * PODS, 3_000 * PODS + 1_000)
    rig.check_invariants()


def test_a_resource_that_takes_long_to_compute_is_charged_one_pod_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pod that waits is judged by the new sizes."""
    calls = Calls(monkeypatch, plans.Plan, "quota_charge")
    request = f"if {SLOW} then pod.priority else 0"
    amount = f"resource gold {{ capacity = 100000, request = {request} }}\n"
    quota = f'quota teams by "a" {{ "a" {{ gold = {PODS} }} others {{ gold = 0 }} }}\n'
    rig = Rig(HEAD + amount + quota, node("a", cpu="1000", pods="1000"))
    rig.observe(*[placed(pod(f"p{number}", cpu="1"), "a") for number in range(PODS)])
    rig.settle()

    events_of(rig, calls, [placed(pod(f"p{number}", cpu="2", priority=1), "a") for number in range(PODS)])
    rig.scheduler.handle(e.PodUpdated(pending(pod("late", priority=1, namespace="elsewhere"))), rig.now_ns)
    settle(rig, calls)

    assert rig.placements() == {}
    assert calls.most == 1
