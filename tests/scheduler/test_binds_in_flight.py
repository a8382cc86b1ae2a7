"""The limit of binds in flight, and whom it makes wait."""

from collections import Counter
from collections.abc import Callable
from random import Random
from unittest.mock import patch

import pytest

from policysched.cluster.devices.reservations import DeviceChoice
from policysched.evaluate import PrebindRequirements
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.in_flight_binds import InFlightBind, InFlightBinds, PrebindState
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.active_queues import ActiveQueues
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.ordered_queue import SortKeyQueue
from policysched.scheduler.queue.prompt_binds import PromptBinds
from tests.builders import node, pending, pod
from tests.scheduler.rig import FIT, Rig

LIMITS = SchedulerLimits(binds_in_flight_max=20)


def slow_rig(*, priority: int = 0) -> Rig:
    """Fifty pods of a namespace whose binds have no answer yet."""
    pods = [pod(f"slow-{number}", namespace="slow", priority=priority) for number in range(50)]
    rig = Rig(FIT, node("a", cpu="100", pods=200), *pods, limits=LIMITS)
    rig.settle()
    assert rig.scheduler.binds_in_flight == 21
    return rig


def friends(count: int) -> list[str]:
    return [f"friend-{number}" for number in range(count)]


def test_pods_of_others_are_decided_while_a_namespace_has_too_many_binds_in_flight() -> None:
    rig = slow_rig()

    rig.observe(*[pod(name, namespace="friendly") for name in friends(5)])
    rig.settle()

    assert rig.bind_order()[21:] == ["friend-0", "friend-1"], "a tenth of the limit each"
    for bind in rig.of(c.Bind)[21:]:
        rig.handle(e.BindConfirmed(bind.uid, bind.node))
        rig.settle()
    assert rig.bind_order()[21:] == ["friend-0", "friend-1", "friend-2", "friend-3"]
    while rig.in_flight_binds():
        rig.confirm_binds()
        rig.settle()
    assert len(rig.of(c.ReportScheduled)) == 55


def test_the_room_of_binds_in_flight_is_not_given_to_others() -> None:
    pods = [pod(f"slow-{number}", namespace="slow", cpu="1") for number in range(30)]
    rig = Rig(FIT, node("a", cpu="22"), *pods, limits=LIMITS)
    rig.settle()

    rig.observe(*[pod(name, namespace="friendly", cpu="1") for name in friends(5)])
    rig.settle()

    assert rig.bind_order()[21:] == ["friend-0"]


def test_pods_of_lower_priority_wait_with_those_of_a_namespace_that_waits() -> None:
    rig = slow_rig(priority=1)

    rig.observe(pod("friend", namespace="friendly"), pod("urgent", namespace="friendly", priority=1))
    rig.settle()

    assert rig.bind_order()[21:] == ["urgent"]


def test_a_pod_of_others_that_backs_off_is_tried_while_a_namespace_has_too_many_binds_in_flight() -> None:
    rig = slow_rig()
    rig.observe(pod("large", namespace="friendly", cpu="1000"))
    rig.settle()
    assert rig.counts() == {"active": 29, "unschedulable": 1}

    rig.observe(node("b", cpu="1"))
    rig.pass_time(2)

    assert rig.scheduler.decisions[-1].pod == "friendly/large"


def test_a_namespace_comes_after_others_exactly_while_there_are_too_many_binds() -> None:
    time = DecisionTime(LIMITS)
    assert not time.is_overdrawn("slow")
    for number in range(21):
        time.prompt_binds.add(PodUid(str(number)), "slow")

    assert time.is_overdrawn("slow") and not time.is_overdrawn("friendly")
    time.prompt_binds.discard(PodUid("0"))
    assert not time.is_overdrawn("slow")


@pytest.mark.parametrize("is_removed_first", [False, True])
def test_a_bind_counts_while_it_is_sent(*, is_removed_first: bool) -> None:
    binds, web = InFlightBinds(PromptBinds(10)), pod("web")
    bind = InFlightBind(PendingPod(pending(web), queued_ns=0), NodeName("a"), "", 0)

    binds.add(bind)
    assert list(binds.prompt) == [web.uid]
    binds.begin_prebind(web.uid, PrebindState(bind, PrebindRequirements(None, DeviceChoice()), 0, 1))
    assert not list(binds.prompt)
    if is_removed_first:
        binds.remove(web.uid, 0)
    binds.end_prebind(web.uid)
    assert list(binds.prompt) == ([] if is_removed_first else [web.uid])
    binds.remove(web.uid, 0)
    assert not list(binds.prompt) and not binds.prebinding


def violations(seed: int) -> list[str]:
    """A random history of the active queues and of binds, with lists as their model."""
    rng, problems = Random(seed), list[str]()
    time = DecisionTime(SchedulerLimits(binds_in_flight_max=10))
    queues = ActiveQueues(lambda _: SortKeyQueue(), frozenset(), time)
    waiting, binds = list[PendingPod](), dict[PodUid, str]()
    for number in range(300):
        match rng.randrange(5):
            case 0 | 1:
                made = pod(f"p{number}", namespace=rng.choice("xyz"), scheduler=rng.choice(("test", "plain")))
                entry = PendingPod(pending(made), queued_ns=number)
                entry.priority = rng.choice((0, 0, 0, 1))
                entry.order_key = (-entry.priority, number)
                queues.put(entry)
                waiting.append(entry)
            case 2 if binds:
                answered = rng.choice(list(binds))
                time.prompt_binds.discard(answered)
                del binds[answered]
            case _:
                counts = Counter(binds.values())
                full = {name for name, count in counts.items() if len(binds) > 10 and count}
                may_go = [
                    entry
                    for entry in waiting
                    if entry.namespace not in full
                    and all(other.priority <= entry.priority for other in waiting if other.namespace in full)
                ]
                can_pop, popped = queues.can_pop, queues.pop()
                if can_pop != bool(may_go) or (popped not in may_go if may_go else popped is not None):
                    return [f"{popped} of {may_go}, {can_pop}"]
                if not isinstance(popped, PendingPod):
                    continue
                problems += [
                    f"{popped} before {other}"
                    for other in may_go
                    if other.policy == popped.policy and other.sort_key < popped.sort_key
                ]
                waiting.remove(popped)
                binds[popped.uid] = popped.namespace
                time.prompt_binds.add(popped.uid, popped.namespace)
    return [*problems, *queues.check(), *([] if set(queues) == set(waiting) else ["entries differ"])]


def test_in_random_histories_exactly_those_that_do_not_wait_are_popped_in_order() -> None:
    assert [violations(seed) for seed in range(20)] == [[]] * 20


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("discard", lambda self, uid: self._namespaces.pop(uid, None)),
        ("are_too_many_of", lambda self, _: self.are_too_many),
        ("are_too_many_of", lambda self, namespace: self._counts[namespace] >= self._namespace_max),
    ],
)
def test_the_histories_catch_planted_bugs(name: str, bug: Callable[..., object]) -> None:
    with patch.object(PromptBinds, name, bug):
        assert any(violations(seed) for seed in range(20))
