"""Changes that reach many slow pods of a namespace: their slices are at the expense of that namespace, and of no attempt."""

from collections.abc import Callable

import pytest

from policysched.evaluate.plan import plan as plans
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policy_text_events import PolicyTextEvents
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.gang_registry import POLICY_CHANGE, QueuedGang
from tests.builders import namespace, node, pending, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_slices_by_cost import GANG, HEAD, OTHER, QUEUE, QUOTA, SLOW

MS = 10**6
PODS = 100
SLOW_MS = 15
ORDER = HEAD + QUEUE.format(lists=SLOW, number=1)
BY_TIER = HEAD + QUOTA.format(
    lists='(namespace.labels["tier"] else "") == "b" and ' + SLOW, number=1
).replace("10", "1000")


class SliceRig(Rig):
    """Each key and each charge of a pod of `tenant` takes 15 ms, other calls 1 ms; a pod of `friendly` arrives every 50 ms.
    `slow_ends_ns`: of each key and charge; `waits_ns`: of the friendly pods; `most`: keys and charges in one call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str, *pods: Pod, on: str | None = None) -> None:
        self.slow_ends_ns, self.waits_ns, self.most, self._slow = list[int](), list[int](), 0, 0
        self._arrived: dict[str, int] = {}
        for name in ("order_key", "quota_charge"):
            self._watch(monkeypatch, name)
        texts = {"main.policy": text, "other.policy": OTHER}
        large = node("a", cpu="1000", pods="5000")
        labels = namespace("tenant"), namespace("friendly")
        super().__init__(texts, *labels, large if on else node("a", cpu="1", pods="5000"), synced=False)
        self.observe(*([placed(each, on) for each in pods] if on else pods))

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        called: Callable[..., object] = getattr(plans.Plan, name)

        def watched(plan: plans.Plan, of: Pod, *more: object) -> object:
            self._slow += of.namespace == "tenant"
            return called(plan, of, *more)

        monkeypatch.setattr(plans.Plan, name, watched)

    def take(self, event: e.Event) -> None:
        self._slow = 0
        self.handle(event)
        self._note_slow()

    def _note_slow(self) -> int:
        slow, self._slow = self._slow, 0
        self.most = max(self.most, slow)
        self.now_ns += slow * SLOW_MS * MS
        self.slow_ends_ns += [self.now_ns] * slow
        return slow * SLOW_MS * MS

    def run(self, seconds: float, *, policy: str | None = "other") -> None:
        ends_ns, next_ns = self.now_ns + round(seconds * SECOND_NS), self.now_ns
        while self.now_ns < ends_ns:
            while policy is not None and self.now_ns >= next_ns:
                name = f"friend-{next_ns}"
                self._arrived[name] = next_ns
                next_ns += 47 * MS
                self.take(e.PodUpdated(pending(pod(name, cpu="0", scheduler=policy, namespace="friendly"))))
            if not self.scheduler.ready(self.now_ns):
                self.now_ns += MS
                continue
            commands = self.scheduler.decide(self.now_ns)
            self.now_ns += MS
            self.scheduler.account_time(MS + self._note_slow())
            for command in commands:
                self.commands.append(command)
                if isinstance(command, c.Bind) and command.name in self._arrived:
                    self.waits_ns.append(self.now_ns - self._arrived.pop(command.name))
                    self.handle(e.BindConfirmed(command.uid, command.node))


def tenants(count: int, **more: str) -> list[Pod]:
    return [pod(f"p{number}", cpu="2", namespace="tenant", labels=more) for number in range(count)]


def started(monkeypatch: pytest.MonkeyPatch) -> SliceRig:
    """The pods are queued by an order that reads their lists."""
    rig = SliceRig(monkeypatch, ORDER, *tenants(PODS))
    rig.take(e.Synced())
    return rig


def settled(rig: SliceRig, *, seconds: float = 30) -> SliceRig:
    """Its pods are queued and tried, its namespace owes nothing, and others have attempts."""
    rig.handle(e.Synced())
    rig.pass_time(seconds)
    rig.run(0.1)
    rig.most, rig.waits_ns, rig.slow_ends_ns = 0, [], []
    return rig


def gangs_timed_out(monkeypatch: pytest.MonkeyPatch) -> SliceRig:
    """Ten gangs are restarted."""
    members = [
        pod(f"p{n}", cpu="2", namespace="tenant", labels={"group": f"g{n % 10}", "least": "10"})
        for n in range(PODS)
    ]
    rig = SliceRig(monkeypatch, ORDER + GANG, *members)
    settled(rig, seconds=120)
    rig.now_ns += 200 * SECOND_NS
    return rig


def namespace_changed(monkeypatch: pytest.MonkeyPatch) -> SliceRig:
    """What the pods are charged in quotas, which others wait for."""
    rig = settled(SliceRig(monkeypatch, BY_TIER, *tenants(PODS), on="a"))
    rig.take(e.NamespaceUpdated(namespace("tenant", tier="b")))
    return rig


Change = Callable[[pytest.MonkeyPatch], SliceRig]


@pytest.mark.parametrize("change", [started, gangs_timed_out, namespace_changed])
def test_slices_are_at_the_expense_of_their_namespace_and_of_no_attempt(
    monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    charged = list[tuple[str, int]]()
    charge = DecisionTime.charge_failed_attempt

    def note(time: DecisionTime, name: str, elapsed_ns: int) -> None:
        charged.append((name, elapsed_ns))
        charge(time, name, elapsed_ns)

    rig = change(monkeypatch)
    monkeypatch.setattr(DecisionTime, "charge_failed_attempt", note)

    rig.run(1.5)

    slow = [name for name, elapsed_ns in charged if elapsed_ns > 2 * MS]
    assert len(slow) >= 30
    assert set(slow) == {"tenant"}


@pytest.mark.parametrize("change", [started, gangs_timed_out, namespace_changed])
def test_others_wait_for_one_slice_of_one_slow_pod(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    rig = change(monkeypatch)

    rig.run(1.5)

    assert len(rig.slow_ends_ns) >= 30
    assert rig.most == 1
    assert max(rig.waits_ns) <= (SLOW_MS + 2) * MS


def test_slices_of_restarted_gangs_take_the_share_of_their_namespace_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = gangs_timed_out(monkeypatch)
    began_ns = rig.now_ns

    rig.run(4)

    taken_ns, share_ns = len(rig.slow_ends_ns) * SLOW_MS * MS, 0.05 * (rig.now_ns - began_ns)
    assert taken_ns < 0.65 * SECOND_NS + 2 * share_ns, "credit and share, also of keys that change with time"
    assert any(gang.held for gang in rig.scheduler.core.gangs)
    rig.pass_time(60)
    assert not any(gang.held for gang in rig.scheduler.core.gangs)


def test_what_others_are_judged_by_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = namespace_changed(monkeypatch)

    rig.run(PODS * (SLOW_MS + 3) / 1_000)

    assert len(rig.slow_ends_ns) == PODS


def test_pods_of_others_under_the_same_text_do_not_wait_for_a_namespace_that_is_overdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = started(monkeypatch)

    rig.run(0.3, policy="test")

    assert len(rig.waits_ns) >= 3
    assert len(rig.slow_ends_ns) < PODS / 2
    rig.run(40, policy="test")
    assert not rig.scheduler._policy_text_events._parts
    assert rig.counts()["unschedulable"] == PODS


def two_of(group: str) -> list[Pod]:
    """A gang of others."""
    labels = {"group": group, "least": "2"}
    return [pod(f"{group}{number}", namespace="friendly", labels=labels) for number in range(2)]


def gang_at_a_start(monkeypatch: pytest.MonkeyPatch, *beside: Pod) -> SliceRig:
    """Sixty members of one gang, which needs a third of them."""
    members = tenants(60, group="g", least="20")
    rig = SliceRig(monkeypatch, ORDER + GANG, *members, *beside)
    rig.handle(e.NodeUpdated(node("b", cpu="1000", pods="1000")))
    rig.take(e.Synced())
    return rig


def left(rig: SliceRig) -> int:
    return len(rig.scheduler._policy_text_events.slices.left(("test", "tenant")))


def test_gangs_of_others_do_not_wait_for_a_namespace_that_is_overdrawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = gang_at_a_start(monkeypatch, *two_of("f"))

    rig.run(1)
    first = rig.placements().keys() & {"f0", "f1"}
    rig.observe(*two_of("l"))
    rig.run(0.1)

    assert left(rig)
    assert first == {"f0", "f1"}
    assert rig.placements().keys() >= {"l0", "l1"}, "a gang that forms meanwhile"


def check_gang_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing rests, as there are no others."""
    rig = gang_at_a_start(monkeypatch)

    while left(rig):
        rig.run(0.02, policy=None)
        assert not (left(rig) and rig.placements())

    assert "test" not in rig.scheduler.core.changing_policies
    rig.pass_time(60)
    assert len(rig.placements()) == 60


def test_no_gang_is_bound_that_a_start_has_reached_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    check_gang_in_part(monkeypatch)


def test_a_planted_gang_that_is_not_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuedGang, "held", property(lambda _: False))
    with pytest.raises(AssertionError, match="placements"):
        check_gang_in_part(monkeypatch)


def test_at_a_start_the_first_pods_of_a_namespace_are_reached_before_its_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It becomes overdrawn meanwhile, and those that are reached are attempted before the others are."""
    first = pod("first", cpu="2", namespace="tenant", priority=1)
    order = f"queue by pod.priority desc, (if {SLOW} then 1 else 0)\n"
    rig = SliceRig(monkeypatch, HEAD + order, *tenants(60), first)
    rig.handle(e.NodeUpdated(node("b", cpu="2")))
    rig.take(e.Synced())

    rig.run(1)

    assert left(rig)
    assert rig.placements().keys() & {"first", *(f"p{number}" for number in range(60))} == {"first"}


def reach_all(texts: PolicyTextEvents, namespace: str, now_ns: int) -> None:
    part = "test", namespace
    while texts.slices.left(part):
        texts.slices.reach(part, texts.slices.left(part), now_ns)


def test_a_namespace_does_not_pay_for_gangs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait to be released, when the slow pods of the tenant are all reached."""
    rig = gang_at_a_start(monkeypatch, *two_of("f"))
    texts = rig.scheduler._policy_text_events
    texts._unreached["test"].discard("")
    reach_all(texts, "friendly", rig.now_ns)
    [friendly] = rig.scheduler.core.gangs
    friendly.holds.add(POLICY_CHANGE)
    begin, paid = texts.slices.begin, set[str]()

    def noting(part: tuple[str, str], items: list[tuple[str, str, str]], now_ns: int) -> None:
        paid.update(namespace for _, namespace, _ in items)
        begin(part, items, now_ns)  # type: ignore[arg-type]

    monkeypatch.setattr(texts.slices, "begin", noting)

    reach_all(texts, "tenant", rig.now_ns)

    assert paid == {"tenant"}


def test_nothing_is_left_of_a_policy_that_is_forgotten_before_all_its_pods_are_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = started(monkeypatch)
    texts = rig.scheduler._policy_text_events
    assert texts._unreached

    texts.forget("test")

    assert not (texts._parts or texts._unreached or texts._precomputed.keys() & {"test"} or texts._starting)


def test_attempts_of_a_namespace_take_turns_with_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where attempts of others come in each of its rests."""
    rig, attempts = started(monkeypatch), list[str]()
    record = DecisionTime.record_attempt

    def noting(time: DecisionTime, namespace: str) -> None:
        attempts.append(namespace)
        record(time, namespace)

    rig.run(2)
    slices = left(rig)
    monkeypatch.setattr(DecisionTime, "record_attempt", noting)

    rig.run(2)

    assert 3 <= slices - left(rig) <= attempts.count("tenant") + 1
