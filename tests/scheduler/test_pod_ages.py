"""`other.age` in totals over pods: a pod is tried again when the pods that held it back come of age, and not before."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from policysched.model.pod_status import ObservedPod
from policysched.scheduler import events as e
from tests.builders import node, placed, pod
from tests.scheduler.rig import START_NS, Rig

SECOND_NS = 10**9
YOUNG = """\
policy test version 1
filter warm_up require {total} < 2 says "2 pods are younger than 10 minutes"
preemption never
"""
LAYERED = """\
policy test version 1
filter closed require false says "closed"
layer quiet when count(placed pods where other.age < 10m) < 2 { drop filter closed }
preemption never
"""
TOTALS = {
    "placed": "count(placed pods where other.age < 10m)",
    "in a domain": '(count(pods in "zone" where other.age < 10m) else 0)',
    "in a domain, beside the node's": '((count(pods in "zone" where other.age < 10m) else 0) + node.pods * 0)',
    "of the cluster": "count(pods where now - other.created < 10m and other.name != pod.name)",
    "all": 'count(all pods where 10m > other.age and other.labels["app"] == pod.labels["app"] and other.name != pod.name)',
    "a sum": "(sum(other.requests.cpu over placed pods where other.age < 10m) / 1)",
}


def young(name: str, age_s: int, **more: object) -> ObservedPod:
    value = pod(name, cpu="1", labels={"app": "web"}, **more)  # type: ignore[arg-type]
    return placed(replace(value, created_ns=START_NS - age_s * SECOND_NS), "a")


def waits_until_one_comes_of_age(rules: str) -> Rig:
    old = [young("old-0", 60), young("old-1", 9 * 60 + 30)]
    rig = Rig(rules, node("a", cpu="100", labels={"zone": "z"}), *old)
    rig.observe(pod("new", labels={"app": "web"}))

    rig.pass_time(29)
    assert rig.placements() == {}
    rig.pass_time(2)
    assert rig.placements() == {"new": "a"}
    return rig


@pytest.mark.parametrize("total", TOTALS)
def test_a_pod_waits_until_another_comes_of_age(total: str) -> None:
    rig = waits_until_one_comes_of_age(YOUNG.format(total=TOTALS[total]))

    assert sum(rig.scheduler.counters.attempts.values()) == 1  # in vain


def test_a_layer_applies_from_the_time_when_a_pod_comes_of_age() -> None:
    waits_until_one_comes_of_age(LAYERED)


def test_a_pod_that_goes_before_it_comes_of_age_counts_no_more() -> None:
    rig = Rig(
        YOUNG.format(total=TOTALS["placed"]), node("a", cpu="100"), young("old-0", 60), young("old-1", 60)
    )
    rig.observe(pod("new"))
    rig.pass_time(5)
    rig.handle(e.PodDeleted(young("old-0", 60).pod.uid))
    rig.pass_time(5)
    rig.observe(young("old-2", 0), pod("newer"))
    rig.pass_time(60)

    assert rig.placements() == {"new": "a"}  # old-1 and old-2 are young


BUGS: dict[str, tuple[str, object, Callable[[], object]]] = {
    "pods never come of age": (
        "policysched.evaluate.columns.pod_totals.PodTotals._pass_time",
        lambda *_: (),
        lambda: waits_until_one_comes_of_age(YOUNG.format(total=TOTALS["in a domain"])),
    ),
    "nobody is woken when a pod comes of age": (
        "policysched.evaluate.columns.pod_totals.PodTotals.next_change_ns",
        lambda *_: None,
        lambda: waits_until_one_comes_of_age(YOUNG.format(total=TOTALS["placed"])),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, planted, test = BUGS[bug]
    monkeypatch.setattr(target, planted)

    with pytest.raises(AssertionError):
        test()
