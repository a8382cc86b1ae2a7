"""Queue keys that change over time: an entry stands before another only by keys that were right
within the last second.

Pods come and go at odd times, and the clock is read in every way that `queue by` can. The queue is
compared with keys computed anew at several times within the last second: if one pod precedes
another at all of them, it does so in the queue.
"""

from datetime import UTC, datetime

import pytest

from policysched.evaluate.scalar import next_change
from policysched.model.identifiers import PodUid
from policysched.scheduler import events as e
from tests.builders import node, pod
from tests.evaluate.clusters import ClusterRandom
from tests.scheduler.rig import Rig

POLICY = """\
policy test version 1
input late: duration = pod.labels["late"] default 4s invalid default
input end: timestamp = pod.annotations["end"] optional invalid default
queue by {keys}
filter node_resources_fit
preemption never
"""
ORDERS = (
    "pod.waited desc",
    "pod.waited > 8s desc, pod.waited > 3s desc, pod.priority desc",
    "pod.waited > 4s and pod.waited < 9s desc, pod.name",
    "not (pod.waited > 4s) asc, pod.name",
    "pod.waited - 5s > late desc, pod.priority desc",
    "(late - pod.waited) asc, pod.priority desc",
    "end < now + 10s desc, pod.priority desc",
    "(end - now) asc, pod.priority desc",
    "(end - now) else 20s asc",
    "(if pod.priority > 5 then pod.waited else 10s) desc",
    "(if pod.waited > 8s then pod.waited else 0s) desc, pod.priority desc",
    "(if pod.waited > 8s then 100 else pod.priority) desc",
    "pod.priority + (if pod.waited > 6s then 5 else 0) desc",
    "floor(pod.waited / 3s) desc, pod.priority desc",
    "clamp(pod.waited, 5s, 12s) desc, pod.priority desc",
    "abs(pod.waited - 10s) asc",
)
MOMENTS_AGO_NS = range(0, 1_100_000_001, 100_000_000)


def out_of_order(rig: Rig) -> list[tuple[PodUid, PodUid]]:
    """Pairs of which the first has come before the second for a second, and does not in the queue."""
    core = rig.scheduler._core
    lately = {
        uid: [
            core.plan(state.policy).order_key(
                state.pod, core.namespace_of(state.pod), state.facts, rig.now_ns - ago_ns
            )[0]
            for ago_ns in MOMENTS_AGO_NS
        ]
        for uid, state in core.pods.items()
    }
    return [
        (first, second)
        for first in lately
        for second in lately
        if first != second
        and max(lately[first]) < min(lately[second])
        and not core.pods[first].order_key < core.pods[second].order_key
    ]


def attack(keys: str, number: int) -> list[tuple[PodUid, PodUid]]:
    """Pods come, go and wait, none of which fits; every pair that was out of order at any time."""
    rng = ClusterRandom(f"order {keys} {number}")
    rig = Rig(POLICY.format(keys=keys), node("a", cpu="1"))
    mistakes = []
    for step in range(25):
        waiting = sorted(rig.scheduler._core.pods)
        if len(waiting) < 8 and not rng.one_in(3):
            ends = datetime.fromtimestamp(rig.now_ns // 10**9 + rng.randrange(30) - 5, UTC).isoformat()
            rig.observe(
                pod(
                    f"p{step}",
                    cpu="2",
                    priority=rng.randrange(11),
                    labels={"late": f"{rng.randrange(10)}s"},
                    annotations={"end": ends} if rng.one_in(2) else {},
                )
            )
        elif waiting and rng.one_in(3):
            rig.handle(e.PodDeleted(rng.choice(waiting)))
        rig.pass_time(rng.choice((0.001, 0.3, 1, 2.7, 5)))
        mistakes += out_of_order(rig)
    assert rig.scheduler.programs(), f"the policy is not accepted: queue by {keys}"
    return mistakes


@pytest.mark.parametrize("keys", ORDERS)
def test_a_pod_that_is_first_for_a_second_is_first_in_the_queue(keys: str) -> None:
    assert [attack(keys, number) for number in range(2)] == [[], []]


def test_a_clock_applied_to_all_pods_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: nothing ever seems to gain time by itself, so a choice that holds a clock is never looked at again."""
    monkeypatch.setattr(next_change, "_SECOND_NS", 10**15)

    mistakes = [attack("(if pod.priority > 5 then pod.waited else 10s) desc", number) for number in range(4)]

    assert any(mistakes)


def test_a_missed_flip_of_a_condition_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(next_change, "crossing_ns", lambda *_: None)

    mistakes = [
        attack("pod.waited > 8s desc, pod.waited > 3s desc, pod.priority desc", number) for number in range(4)
    ]

    assert any(mistakes)
