"""Each bind of another scheduler is compared on the cluster as it was just before it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from policysched.cluster.ledger import Ledger
from policysched.evaluate.evaluator import Evaluator
from policysched.kube.decode.pod_groups import decode_pod_group
from policysched.kube.decode.pods import decode_pod
from policysched.lang.check import check_text
from policysched.model.namespaces import Namespace
from policysched.model.pod_groups import PodGroup
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.commands import Log
from policysched.scheduler.scheduler import Scheduler
from policysched.shadow import program as shadow_program
from policysched.shadow.observer import BindComparison, Observer
from policysched.shadow.program import LATE_NS, ShadowSettings, _Shadow
from policysched.shadow.summary import ShadowSummary
from tests.builders import node, pending, placed, pod, pod_manifest, rejected, too_little

SECOND_NS = 10**9
NOW_NS = 1_767_225_600 * SECOND_NS
OTHER = "default-scheduler"
PACK = """\
policy mine version 1
include kube_default
score pack weight 9 higher node.pods normalize range(0, 10)
filter quiet when has pod.labels["quiet"] reject node.name == "loud" says "{node.name} is loud"
"""


def waiting(name: str, **more: object) -> Pod:
    return pod(name, **{"cpu": "1", "scheduler": OTHER, **more})


class Watched:
    """An observer of nodes `a`, `b` and `loud` (4 cpu each), at times in seconds."""

    def __init__(self, text: str = PACK, nodes: Sequence[str] = ("a", "b", "loud")) -> None:
        program = check_text(text, "mine.policy").program
        assert program is not None
        self.observer = Observer(program, OTHER, now_ns=NOW_NS)
        self.at_ns = NOW_NS
        self.send(e.NamespaceUpdated(Namespace("default", {}, {})))
        for name in nodes:
            self.send(e.NodeUpdated(node(name, cpu="4")))

    def send(self, event: e.Event, *following: e.Event) -> BindComparison | None:
        return self.observer.handle(event, self.at_ns, following)[0]

    def synced(self) -> "Watched":
        self.send(e.Synced())
        return self

    def pending(self, *pods: Pod) -> "Watched":
        for each in pods:
            self.send(e.PodUpdated(pending(each)))
        return self

    def bound(self, to: Pod, name: str, *following: ObservedPod) -> BindComparison:
        records = self.send(e.PodUpdated(placed(to, name)), *(e.PodUpdated(later) for later in following))
        assert records is not None
        return records


def test_what_a_rejection_of_a_kubelet_holds_back_of_a_node_expires() -> None:
    """It holds back all of `a`. The comparison of the bind of a pod that comes an hour later knows nothing of it."""
    watched = Watched(nodes=["a"]).synced().pending(waiting("first"))
    watched.bound(waiting("first"), "a")
    message = too_little("cpu", 1000, 4000, 4000)
    watched.send(e.PodUpdated(rejected(waiting("first"), "a", "OutOfcpu", message)))
    held = watched.pending(waiting("soon")).bound(waiting("soon"), "a").result

    watched.at_ns += 3600 * SECOND_NS
    later = watched.pending(waiting("later")).bound(waiting("later"), "a").result

    assert (held, later) == ("differs", "agrees")


def test_the_same_node_agrees_and_another_with_an_equal_total_agrees_among_equals() -> None:
    watched = Watched().synced().pending(waiting("p"))
    chosen = Watched().synced().pending(waiting("p")).bound(waiting("p"), "a").choice

    results = {
        name: Watched().synced().pending(waiting("p")).bound(waiting("p"), name).result
        for name in ("a", "b", "loud")
    }

    assert chosen in results
    assert results.pop(chosen) == "agrees"
    assert set(results.values()) == {"agrees among equals"}
    assert watched.bound(waiting("p"), chosen).text == ""


def test_a_node_with_a_lower_total_differs_by_its_rule_and_points() -> None:
    watched = Watched()
    watched.send(e.PodUpdated(placed(waiting("first"), "b")))
    watched.synced().pending(waiting("p"))

    records = watched.bound(waiting("p"), "a")

    assert (records.result, records.choice, records.rule, records.location) == (
        "differs",
        "b",
        "pack",
        "mine.policy:3",
    )
    assert records.points > 0
    assert "pack +90" in records.text


def test_a_node_that_the_policy_rejects_would_be_refused() -> None:
    watched = Watched().synced()
    quiet = waiting("p", labels={"quiet": "yes"})

    records = watched.pending(quiet).bound(quiet, "loud")

    assert (records.result, records.rule, records.location) == ("rejects", "quiet", "mine.policy:4")
    assert records.text == "rejects loud: loud is loud"


def test_a_bind_is_judged_without_itself() -> None:
    """With its own request counted, the node would be full."""
    big = waiting("big", cpu="4")

    records = Watched(nodes=("a",)).synced().pending(big).bound(big, "a")

    assert records.result == "agrees"


def test_a_bind_that_is_judged_after_it_is_applied_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: the pod counts on its node before the comparison."""
    original = Observer._judge

    def judge(self: Observer, pending_pod, node_name, following, now_ns):  # type: ignore[no-untyped-def]
        self.scheduler.cache.assume(pending_pod.pod, node_name)
        try:
            return original(self, pending_pod, node_name, following, now_ns)
        finally:
            self.scheduler.cache.withdraw(pending_pod.uid)

    monkeypatch.setattr(Observer, "_judge", judge)

    with pytest.raises(AssertionError):
        test_a_bind_is_judged_without_itself()


def test_a_bind_that_was_in_flight_counts_before_it_is_seen() -> None:
    """`first` was decided first and took b; its bind is seen second."""
    watched = Watched(nodes=("a", "b"))
    watched.send(e.PodUpdated(placed(waiting("old"), "a")))
    first, second = waiting("first", node_selector={"kubernetes.io/hostname": "b"}), waiting("second")
    third = waiting("third", node_selector={"kubernetes.io/hostname": "b"})
    watched.synced().pending(first, second, third)

    alone = watched.observer._judge(
        watched.observer.scheduler.core.pods[second.uid], placed(second, "b").node, (), NOW_NS
    )
    in_order = watched.bound(second, "b", placed(first, "b"), placed(third, "b"))

    assert alone.result == "differs"
    assert (in_order.result, in_order.in_flight) == ("agrees among equals", 1)


def test_a_pod_with_a_node_for_long_would_have_been_earlier() -> None:
    watched = Watched().synced().pending(waiting("p"))
    watched.observer.check_pending(watched.at_ns)
    watched.at_ns += 30 * SECOND_NS

    records = watched.bound(waiting("p"), "a")

    assert records.earlier_ns == 30 * SECOND_NS


def test_a_pod_without_a_node_until_now_would_not_have_been_earlier() -> None:
    watched = Watched(nodes=("a",))
    holder, late = waiting("holder", cpu="4"), waiting("late", cpu="4")
    watched.send(e.PodUpdated(placed(holder, "a")))
    watched.synced().pending(late)
    watched.observer.check_pending(watched.at_ns)
    watched.at_ns += 30 * SECOND_NS
    watched.send(e.PodDeleted(holder.uid))

    assert watched.bound(late, "a").earlier_ns == 0


def test_two_pending_pods_do_not_both_count_on_room_for_one() -> None:
    watched = Watched(nodes=("a",)).synced()
    one, two = waiting("one", cpu="4", priority=5), waiting("two", cpu="4")
    watched.pending(one, two)
    watched.observer.check_pending(watched.at_ns)
    watched.at_ns += 30 * SECOND_NS

    assert watched.bound(one, "a").earlier_ns == 30 * SECOND_NS
    watched.send(e.PodDeleted(one.uid))
    assert watched.bound(two, "a").earlier_ns == 0


def test_a_gang_that_is_incomplete_would_be_refused() -> None:
    text = PACK + 'input team: string = pod.labels["team"] optional\ngang by team { min = 2 }\n'
    member = waiting("m", labels={"team": "x"})

    records = Watched(text).synced().pending(member).bound(member, "a")

    assert records.result == "rejects"
    assert "gang" in records.text


def test_pods_of_others_and_pods_that_were_bound_at_the_start_are_not_compared() -> None:
    watched = Watched()
    before, foreign = waiting("before"), pod("foreign", cpu="1", scheduler="else")
    watched.pending(before)
    assert watched.send(e.PodUpdated(placed(before, "a"))) is None
    watched.synced().pending(foreign)

    assert watched.send(e.PodUpdated(placed(foreign, "a"))) is None
    assert watched.send(e.PodUpdated(placed(before, "a"))) is None
    assert watched.observer.unseen == 0


def test_a_pod_that_was_never_seen_pending_is_counted_and_not_compared() -> None:
    watched = Watched().synced()

    assert watched.send(e.PodUpdated(placed(waiting("sudden"), "a"))) is None
    assert watched.observer.unseen == 1


def test_the_state_never_decides_and_stays_consistent() -> None:
    watched = Watched().synced().pending(*(waiting(f"p{number}") for number in range(5)))
    for number in range(4):
        watched.bound(waiting(f"p{number}"), "ab"[number % 2])
        watched.observer.check_pending(watched.at_ns)

    assert watched.observer.pending_count == 1
    ledger: Ledger = watched.observer.scheduler.cache.ledger
    assert ledger.check() == []
    assert not watched.observer.scheduler.decisions


def test_the_summary_counts_results_and_rules() -> None:
    agrees = BindComparison(NOW_NS, "default/p", "a", "a", "agrees", in_flight=2, earlier_ns=3 * SECOND_NS)
    differs = replace(
        agrees, result="differs", rule="pack", location="mine.policy:3", in_flight=0, earlier_ns=0
    )
    summary = ShadowSummary()
    for comparison in (agrees, differs, differs):
        summary.add(comparison)

    record = summary.record(unseen=1, late=0, failed=0, pending=4, duration_s=9.0)

    assert record["results"] == {"agrees": 1, "agrees among equals": 0, "differs": 2, "rejects": 0}
    assert record["rules"] == [{"result": "differs", "rule": "pack", "location": "mine.policy:3", "binds": 2}]
    assert (record["agree_with_binds_in_flight"], record["would_have_been_earlier"]) == (1, 1)
    assert record["earlier_mean_s"] == 3.0


def test_many_binds_at_once_are_judged_in_the_order_of_the_queue() -> None:
    """`urgent` was decided before ten others, whose binds are all seen before its own."""
    watched = Watched(nodes=("a", "b"))
    watched.send(e.PodUpdated(placed(waiting("old", cpu="100m"), "a")))
    urgent = waiting("urgent", cpu="100m", priority=9)
    others = [
        waiting(f"other-{number}", cpu="100m", node_selector={"kubernetes.io/hostname": "b"})
        for number in range(10)
    ]
    watched.synced().pending(urgent, *others)
    for other in others:
        watched.bound(other, "b")

    records = watched.bound(urgent, "a")

    assert (records.result, records.in_flight) == ("agrees", 10)


def test_a_pod_over_the_budget_of_a_decision_is_not_evaluated() -> None:
    """A tenant cannot hold up a shadow either: it evaluates each bind, and with other orders if they differ."""
    terms = [{"key": f"k{index}", "operator": "Exists"} for index in range(200_000)]
    hostile = waiting("hostile", spec={"tolerations": terms})
    watched = Watched(nodes=[f"n{index}" for index in range(300)]).synced().pending(hostile)

    comparison = watched.bound(hostile, "n7")

    assert comparison.result == "rejects"
    assert "exceeds the budget of" in comparison.text


QUOTA = """\
policy mine version 1
include kube_default
quota tiers by (namespace.labels["tier"] else "none") { "gold" { pods = 60 } others unlimited }
"""


def test_a_changed_namespace_counts_all_its_pods_in_its_new_quota() -> None:
    """They are charged in slices, which go on where a scheduler decides."""
    watched = Watched(QUOTA).synced()
    for number in range(100):
        running = waiting(f"p{number}", cpu="10m")
        watched.pending(running).bound(running, "a")

    watched.send(e.NamespaceUpdated(Namespace("default", {"tier": "gold"}, {})))
    records = watched.pending(waiting("last", cpu="10m")).bound(waiting("last", cpu="10m"), "b")

    assert records.result == "rejects"
    assert "100 of 60 pods used" in records.text


def pod_group(name: str, minimum: int) -> PodGroup:
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}},
    }
    return decode_pod_group(document, "scheduling.k8s.io", "v1beta1")


def test_changes_of_a_large_pod_group_reach_all_members_and_do_not_accumulate() -> None:
    watched = Watched("policy mine version 1\ninclude kube_default\ninclude pod_groups\n").synced()
    watched.send(e.PodGroupApiServed("scheduling.k8s.io", "v1beta1"))
    watched.send(e.PodGroupUpdated(pod_group("large", 2)))
    for number in range(60):
        spec = {"schedulingGroup": {"podGroupName": "large"}}
        member = decode_pod(pod_manifest(f"m{number}", scheduler=OTHER, cpu="10m", spec=spec))
        watched.send(e.PodUpdated(member))

    watched.send(e.PodGroupUpdated(pod_group("large", 3)))
    watched.at_ns += 10 * SECOND_NS
    watched.send(e.PodGroupUpdated(pod_group("large", 4)))
    watched.observer.check_pending(watched.at_ns)

    [gang] = watched.observer.scheduler.core.gangs
    assert not gang.held
    assert gang.needed_count == 4
    assert watched.bound(member.pod, "a").result != "rejects"


def test_a_bind_in_flight_to_a_node_that_is_not_known_counts_nowhere() -> None:
    """Pods and nodes are watched apart: the node is new, or gone."""
    watched = Watched().synced().pending(waiting("p", labels={"quiet": "yes"}), waiting("next"))

    records = watched.bound(waiting("p", labels={"quiet": "yes"}), "loud", placed(waiting("next"), "new"))

    assert records.result == "rejects"


def test_pod_groups_leave_nothing_to_report() -> None:
    watched = Watched("policy mine version 1\ninclude kube_default\ninclude pod_groups\n").synced()
    watched.send(e.PodGroupApiServed("scheduling.k8s.io", "v1beta1"))

    for number in range(100):
        watched.send(e.PodGroupUpdated(pod_group(f"g{number}", 2)))

    assert len(watched.observer.scheduler.core.groups_due_ns) <= 1


def test_the_search_for_devices_has_the_steps_of_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, the combinations of a claim at 1,000 nodes took up to 40 s in one piece."""
    watched, limits = Watched().synced().pending(waiting("p")), list[bool]()
    cache = watched.observer.scheduler.core.cache.devices.allocation_cache
    for name in ("evaluate", "explain"):
        called = getattr(Evaluator, name)

        def noting(*arguments: object, called: Callable[..., object] = called, **more: object) -> object:
            limits.append(cache._allowance is not None)
            return called(*arguments, **more)

        monkeypatch.setattr(Evaluator, name, noting)

    watched.bound(waiting("p"), "loud")

    assert limits
    assert all(limits)


def shadow_of(*events: e.Event, now_ns: int = NOW_NS) -> _Shadow:
    """Of which these wait, one for each second."""
    program = check_text(PACK, "mine.policy").program
    assert program is not None
    shadow = _Shadow(ShadowSettings(program, OTHER), lambda _: None, lambda _: None)
    shadow._clock = SimpleNamespace(now_ns=lambda: now_ns)  # type: ignore[assignment]
    shadow._state.synced = True
    shadow._inbox.extend((NOW_NS + SECOND_NS * number, each) for number, each in enumerate(events))
    return shadow


def test_only_the_events_of_the_second_after_a_bind_follow_it() -> None:
    events = [e.NodeUpdated(node(name)) for name in ("a", "b", "c")]
    shadow = shadow_of(*events, now_ns=NOW_NS + 5 * SECOND_NS)

    assert shadow._following(e.PodUpdated(placed(waiting("p"), "a")), NOW_NS) == events[:2]
    assert shadow._following(e.PodUpdated(pending(waiting("p"))), NOW_NS) == []


def test_a_bind_that_waits_for_too_long_is_counted_and_not_compared() -> None:
    shadow = shadow_of(now_ns=NOW_NS + LATE_NS + 1)
    watched = Watched().synced().pending(waiting("p"))
    bind = e.PodUpdated(placed(waiting("p"), "a"))
    following = shadow._following(bind, NOW_NS)

    comparison, _ = watched.observer.handle(bind, NOW_NS, following)

    assert following is None
    assert comparison is None
    assert watched.observer.late == 1
    assert watched.observer.scheduler.cache.ledger.placement(waiting("p").uid) is not None


def test_shadow_can_be_stopped_while_ever_more_events_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = shadow_of(*[e.NodeUpdated(node("a"))] * 100, now_ns=NOW_NS + 1000 * SECOND_NS)
    handle, at_s = shadow._observer.handle, [0.0]

    def slow(*arguments: Any) -> Any:
        at_s[0] += 0.1
        return handle(*arguments)

    monkeypatch.setattr(shadow._observer, "handle", slow)
    monkeypatch.setattr(shadow_program, "time", SimpleNamespace(monotonic=lambda: at_s[0]))

    asyncio.run(shadow._apply(all_events=False))

    assert 0 < len(shadow._inbox) < 100


def test_a_comparison_that_raises_is_counted_and_the_bind_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the command, and what it had compared for hours was not shown."""
    watched = Watched().synced().pending(waiting("odd"), waiting("plain"))
    evaluate = Evaluator.evaluate

    def fails(self: Evaluator, plan: Any, subject: Pod, **inputs: Any) -> Any:
        if subject.name == "odd":
            raise AssertionError("a value that nobody expected")
        return evaluate(self, plan, subject, **inputs)

    monkeypatch.setattr(Evaluator, "evaluate", fails)
    watched.observer.check_pending(watched.at_ns)
    comparison, commands = watched.observer.handle(
        e.PodUpdated(placed(waiting("odd"), "a")), watched.at_ns, ()
    )

    assert comparison is None
    assert watched.observer.failed == 1
    assert watched.observer.scheduler.cache.ledger.placement(waiting("odd").uid) is not None
    assert [command.message for command in commands if isinstance(command, Log)] == [
        "a report failed, please report this bug"
    ]
    assert watched.bound(waiting("plain"), "a").result == "agrees"


def test_an_object_whose_event_raises_is_left_out_and_the_cluster_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the command, and what it had compared for hours was not shown."""
    events = [
        e.NamespaceUpdated(Namespace("default", {}, {})),
        e.NodeUpdated(node("a", cpu="4")),
        e.PodUpdated(pending(waiting("odd"))),
        e.PodUpdated(pending(waiting("plain"))),
        e.Synced(),
    ]
    shadow, handle, runs = shadow_of(now_ns=NOW_NS + 1000 * SECOND_NS), Scheduler.handle, list[int]()
    shadow._state.synced = False
    shadow._state.summary.add(Watched().synced().pending(waiting("p")).bound(waiting("p"), "a"))

    def fails(self: Scheduler, event: e.Event, now_ns: int) -> Any:
        if isinstance(event, e.PodUpdated) and event.pod.pod.name == "odd":
            raise AssertionError("a value that nobody expected")
        return handle(self, event, now_ns)

    async def watch(*_: object) -> None:
        runs.append(len(shadow._inbox))
        shadow._inbox.extend((NOW_NS, event) for event in events)
        await shadow._apply(all_events=True)

    @asynccontextmanager
    async def connected() -> AsyncIterator[None]:
        yield None

    async def connect(_: object) -> Any:
        return connected()

    monkeypatch.setattr(Scheduler, "handle", fails)
    monkeypatch.setattr(shadow, "_watch", watch)
    monkeypatch.setattr(shadow_program, "connect", connect)
    monkeypatch.setattr(shadow_program, "shutdown_signals", tuple)
    state = asyncio.run(shadow.run())

    assert runs == [0, 0], "the second time from the beginning"
    assert (state.failed, state.pending, state.synced) == (1, 1, True)
    assert state.record()["binds"] == 1
