"""New totals over pods are built in steps, between which other pods are decided, and are kept while a policy reads them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from policysched.cluster.change_log import ChangeLog
from policysched.evaluate import Evaluator, Plan
from policysched.evaluate.columns.placed_pod_totals import PODS_PER_STEP
from policysched.evaluate.columns.pod_counter import ClusterPodCounter
from policysched.evaluate.columns.pod_totals import PodTotals
from policysched.scheduler import commands as c
from policysched.scheduler.events import PodDeleted
from policysched.scheduler.policy_reload import PolicyReload
from policysched.scheduler.queue.held_policies import HeldForReason
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig

NODES, PODS, TOTALS = 20, 500, 45
MS = 10**6
PLAIN = "policy {name} version 1\nfilter node_resources_fit\npreemption never\n"


def with_totals(name: str, scope: str, first: int = 0, count: int = TOTALS) -> str:
    return PLAIN.format(name=name) + "".join(
        f'filter total{number} require count({scope} where other.labels["app"] == "a{number}"'
        f" and other.priority >= {number}) < 100000\n"
        for number in range(first, first + count)
    )


def cluster(policies: str | Mapping[str, str]) -> Rig:
    nodes = [node(f"n{number}", cpu="100", pods="1000") for number in range(NODES)]
    pods = [
        placed(pod(f"old{number}", labels={"app": f"a{number % 7}"}, cpu="1m"), f"n{number % NODES}")
        for number in range(PODS)
    ]
    return Rig(policies, *nodes, *pods)


class Visits:
    """How many pods the totals visited in each call of `decide`, and what was bound in it."""

    def __init__(self) -> None:
        self.now = 0
        self.of_calls: list[tuple[int, list[str]]] = []

    @property
    def pods(self) -> list[int]:
        return [visited for visited, _ in self.of_calls]

    def bound(self) -> list[tuple[int, str]]:
        """Each pod with the number of the call that bound it."""
        return [(number, name) for number, (_, names) in enumerate(self.of_calls) for name in names]

    def settle(self, rig: Rig) -> None:
        while rig.scheduler.ready(rig.now_ns):
            self.now = 0
            commands = rig.scheduler.decide(rig.now_ns)
            rig.commands += commands
            self.of_calls.append(
                (self.now, [command.name for command in commands if isinstance(command, c.Bind)])
            )


@contextmanager
def counted(method: str = "keys") -> Iterator[Visits]:
    """Counts calls of a method of the totals that handles one pod, or one kind of pods."""
    visits, right = Visits(), getattr(PodTotals, method)

    def counting(totals: PodTotals, *of: object) -> object:
        visits.now += 1
        return right(totals, *of)

    with patch.object(PodTotals, method, counting):
        yield visits


SCOPES = pytest.mark.parametrize("scope", ["placed pods", "pods"])
OWN_PODS = 5 * TOTALS
"""What the totals may visit for the few pods that a test adds itself."""


@SCOPES
def test_a_new_text_with_totals_is_prepared_in_steps_while_the_old_one_decides(scope: str) -> None:
    check_new_text(scope)


def check_new_text(scope: str) -> None:
    rig = cluster(PLAIN.format(name="test"))
    rig.observe(pod("first"))
    rig.settle()

    with counted() as visits:
        rig.apply_policies(with_totals("test", scope))
        rig.observe(pod("second"))
        visits.settle(rig)
        prepared = len(visits.of_calls)
        rig.observe(pod("third"))
        visits.settle(rig)

    assert visits.bound()[0] == (1, "second"), "a slice and an attempt take turns"
    assert sum(visits.pods[:prepared]) >= TOTALS * PODS
    assert max(visits.pods[:prepared]) <= PODS_PER_STEP
    assert sum(visits.pods[prepared:]) <= OWN_PODS
    assert "third" in rig.placements()


@SCOPES
def test_at_the_start_only_pods_of_the_policy_wait_for_its_totals(scope: str) -> None:
    check_start(scope)


def check_start(scope: str) -> None:
    with counted() as visits:
        rig = cluster({"a.policy": with_totals("test", scope), "b.policy": PLAIN.format(name="other")})
        rig.observe(pod("waits"), pod("beside", scheduler="other"))
        visits.settle(rig)

    (beside, _), (last, _) = visits.bound()
    assert [name for _, name in visits.bound()] == ["beside", "waits"]
    assert beside < 3 < TOTALS * PODS // PODS_PER_STEP <= last
    assert sum(visits.pods) >= TOTALS * PODS
    assert max(visits.pods) <= PODS_PER_STEP


def test_a_pod_says_that_its_policy_is_counting() -> None:
    rig = cluster(with_totals("test", "placed pods"))
    rig.observe(pod("waits"))
    rig.scheduler.decide(rig.now_ns)

    status = rig.scheduler.pending_pods.status("default/waits")

    assert status is not None
    assert status.message == "policy test is counting the pods for its totals"


@SCOPES
def test_policies_with_many_totals_keep_all_of_them(scope: str) -> None:
    check_kept(scope)


def check_kept(scope: str) -> None:
    names = ("test", "other")
    texts = {
        f"{name}.policy": with_totals(name, scope, first=100 * number) for number, name in enumerate(names)
    }
    rig = cluster(texts)
    rig.settle()
    rig.observe(*(pod(f"first-{name}", scheduler=name) for name in names))
    rig.settle()

    with counted() as visits:
        for number in range(3):
            for name in names:
                rig.observe(pod(f"{name}{number}", scheduler=name))
                visits.settle(rig)

    assert len(visits.bound()) == 6
    assert sum(visits.pods) <= 6 * 2 * 2 * TOTALS  # each of the six pods, bound and not, for each total


@SCOPES
def test_edits_that_follow_one_another_leave_no_totals_behind(scope: str) -> None:
    check_edits(scope)


def check_edits(scope: str) -> None:
    rig = cluster(PLAIN.format(name="test"))
    rig.observe(pod("first"))
    rig.settle()
    counter = rig.scheduler._core.evaluator._snapshots.pod_counter
    columns = counter._columns.placed_totals

    for edit in range(4):
        rig.apply_policies(with_totals("test", scope, first=100 * edit))
        for _ in range(100):
            rig.scheduler.decide(rig.now_ns)
    held = len(counter._of_plans) + len(columns._of_plans)
    rig.apply_policies(PLAIN.format(name="test"))
    rig.settle()

    assert 0 < held <= TOTALS
    assert (counter._of_plans, columns._of_plans, columns._in_preparation) == ({}, {}, [])


@SCOPES
def test_many_changes_between_two_decisions_are_visited_in_steps(scope: str) -> None:
    check_burst(scope)


def check_burst(scope: str) -> None:
    rig = cluster(with_totals("test", scope))
    rig.observe(pod("first"))
    rig.settle()

    with counted() as visits:
        rig.observe(
            *(
                placed(pod(f"new{number}", labels={"app": "a1"}, cpu="1m"), f"n{number % NODES}")
                for number in range(PODS)
            )
        )
        rig.observe(pod("second"))
        visits.settle(rig)

    of_a_node = TOTALS * PODS // NODES
    assert [name for _, name in visits.bound()] == ["second"]
    assert sum(visits.pods) >= TOTALS * PODS
    assert max(visits.pods) <= PODS_PER_STEP + of_a_node + OWN_PODS


def check_beside(text: str, totals: int) -> None:
    """A pod of another policy arrives while the changes of a burst are counted."""
    rig = cluster({"a.policy": text, "b.policy": PLAIN.format(name="other")})
    rig.observe(pod("first"), pod("beside0", scheduler="other"))
    rig.settle()

    with counted() as visits:
        burst = [pod(f"new{number}", labels={"app": "a1"}, scheduler="unknown") for number in range(PODS)]
        rig.observe(*burst, pod("second"))
        decide(rig, visits)
        rig.observe(pod("beside", scheduler="other"))
        applied = len(visits.of_calls)
        while rig.scheduler.ready(rig.now_ns):
            decide(rig, visits)

    assert [name for _, name in visits.bound()] == ["beside", "second"]
    assert visits.bound()[0][0] <= applied + 1
    assert sum(visits.pods) >= totals * PODS
    assert sum(visits.pods[: visits.bound()[0][0]]) <= 2 * PODS_PER_STEP


def decide(rig: Rig, visits: Visits) -> None:
    """A call that takes as long as what it visits: the policy with totals is then behind the other."""
    visits.now = 0
    commands = rig.scheduler.decide(rig.now_ns)
    rig.commands += commands
    rig.scheduler.account_time(visits.now * MS)
    visits.of_calls.append(
        (visits.now, [command.name for command in commands if isinstance(command, c.Bind)])
    )


@pytest.mark.parametrize("scope", ["pods"])
def test_pods_that_come_and_go_are_never_a_reason_to_count_all_pods(scope: str) -> None:
    check_churn(scope)


def check_churn(scope: str) -> None:
    rig = cluster(with_totals("test", scope))
    rig.observe(pod("first"))
    rig.settle()

    most = 0
    for number in range(150):
        burst = [pod(f"{number}-{copy}", labels={"app": "a1"}, scheduler="unknown") for copy in range(20)]
        rig.observe(*burst)
        rig.handle(*(PodDeleted(gone.uid) for gone in burst))
        with counted() as visits:
            rig.observe(pod(f"decided{number}"))
            visits.settle(rig)
        most = max(most, sum(visits.pods))

    assert most <= 20 * TOTALS + OWN_PODS


FEW = 'require count(pods where other.labels["app"] == "a1") < 100000\n'
TEXTS = {
    "rules": (with_totals("test", "pods"), TOTALS),
    "a layer": (PLAIN.format(name="test") + f"layer all when true {{\n  filter few {FEW}}}\n", 1),
    "a shadow": (PLAIN.format(name="test") + f"shadow filter few {FEW}", 1),
}


@pytest.mark.parametrize("of", TEXTS)
def test_a_pod_of_another_policy_goes_first_while_changes_are_counted(of: str) -> None:
    check_beside(*TEXTS[of])


@SCOPES
def test_totals_of_many_kinds_of_pods_are_added_up_in_steps(scope: str) -> None:
    check_kinds(scope)


def check_kinds(scope: str) -> None:
    kinds = PODS
    text = PLAIN.format(name="test") + "".join(
        f'filter total{number} require count({scope} where other.labels["kind"] != pod.labels["kind"]'
        f" and other.priority >= {number}) < 100000\n"
        for number in range(10)
    )
    pods = [
        placed(pod(f"kind{number}", labels={"kind": f"k{number}"}, cpu="1m"), f"n{number % NODES}")
        for number in range(kinds)
    ]
    rig = Rig(text, *(node(f"n{number}", cpu="100", pods="1000") for number in range(NODES)), *pods)
    rig.observe(pod("first", labels={"kind": "x"}))
    rig.settle()

    with counted("_counted_amount") as visits:
        rig.observe(pod("second", labels={"kind": "y"}))
        visits.settle(rig)

    assert [name for _, name in visits.bound()] == ["second"]
    assert sum(visits.pods) >= 10 * kinds
    assert max(visits.pods) <= 2 * PODS_PER_STEP


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────

Right = Callable[..., object]


def _at_once(right: Right) -> Right:
    def build(evaluator: Evaluator, plan: Plan) -> Iterator[None]:
        list(right(evaluator, plan))  # type: ignore[call-overload]
        yield

    return build


def _not_at_all(_: Right) -> Right:
    return lambda *_: iter(())


def placed_burst(_: str) -> None:
    check_burst("placed pods")


def beside(_: str) -> None:
    check_beside(*TEXTS["rules"])


def churn(_: str) -> None:
    check_churn("pods")


def burst(_: str) -> None:
    check_burst("pods")


BUGS = {
    "totals are built in one piece": (Evaluator, "build_totals_in_steps", _at_once, check_new_text),
    "totals are built by the first decision": (
        Evaluator,
        "build_totals_in_steps",
        _not_at_all,
        check_new_text,
    ),
    "at the start they are built in one piece": (Evaluator, "build_totals_in_steps", _at_once, check_start),
    "pods do not wait for the totals": (
        HeldForReason,
        "add",
        lambda _: lambda *_: None,
        check_start,
    ),
    "no more than 64 totals are kept, the latest ones read": (
        ClusterPodCounter,
        "build_in_steps",
        _not_at_all,
        check_kept,
    ),
    "many changes are visited in one piece": (
        Evaluator,
        "refresh_slice",
        lambda _: lambda _: False,
        placed_burst,
    ),
    "many changes of pending pods are visited in one piece": (
        ClusterPodCounter,
        "catch_up_slice",
        lambda _: lambda *_: False,
        burst,
    ),
    "no event is applied before all changes are counted": (
        Evaluator,
        "catch_up_slice",
        lambda _: lambda *_: False,
        beside,
    ),
    "the log of changed pods forgets all of them": (
        ChangeLog,
        "_forget_older",
        lambda _: lambda log, _: log.record_all(),
        churn,
    ),
    "kinds of pods are added up in one piece": (
        ClusterPodCounter,
        "prepare_in_steps",
        _not_at_all,
        check_kinds,
    ),
    "a text that is replaced leaves its totals": (
        PolicyReload,
        "_retain_prepared",
        lambda _: lambda _: None,
        check_edits,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, planted, check = BUGS[bug]
    monkeypatch.setattr(holder, name, planted(getattr(holder, name)))

    for scope in ("placed pods", "pods"):
        with pytest.raises(AssertionError):
            check(scope)
