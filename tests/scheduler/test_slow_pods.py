"""New and changed pods of a policy that takes long for each of them: no event waits for their evaluation, and their namespace
pays for it."""

from dataclasses import replace

import pytest

from policysched.model.pod_status import ObservedPod
from policysched.scheduler import events as e
from policysched.scheduler import policy_membership
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.namespace_events import NamespaceEvents
from policysched.scheduler.queue.decision_time import FAILED_ATTEMPT_CREDIT_NS
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import FIT, Rig
from tests.scheduler.test_pauses import attempts_pause, decide_until_pause
from tests.scheduler.test_slice_time import MS, ORDER, PODS, SLOW_MS, SliceRig, settled, tenants
from tests.scheduler.test_slices_by_cost import HEAD, QUEUE, SLOW

SLOW_GANG = f"""\
gang by pod.labels["group"] {{ min = (if {SLOW} then 1 else 0) + 1 }}
"""
NEEDS_LABEL = 'input team: string = pod.labels["team"] required "no team"\n'


def changed(observed: ObservedPod, **labels: str) -> ObservedPod:
    return replace(observed, pod=replace(observed.pod, labels={**observed.pod.labels, **labels}))


def settled_rig(monkeypatch: pytest.MonkeyPatch, text: str, *pods: ObservedPod) -> SliceRig:
    rig = SliceRig(monkeypatch, text, on="a")
    rig.handle(*map(e.PodUpdated, pods))
    settled(rig)
    if pods:
        rig._watch(monkeypatch, "gang")
    return rig


def check_others(rig: SliceRig) -> None:
    """No event took long, and a pod of others waits for no more than the credit of the tenant's attempts, and a slice."""
    assert not rig.slow_ends_ns
    rig.run(1.5)
    assert len(rig.slow_ends_ns) >= 20
    assert rig.most == 1
    assert max(rig.waits_ns) <= FAILED_ATTEMPT_CREDIT_NS + 2 * (SLOW_MS + 2) * MS


def test_new_pods_are_evaluated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = settled_rig(monkeypatch, ORDER)
    for each in tenants(PODS):
        rig.take(e.PodUpdated(pending(each)))
    check_others(rig)


def test_changed_pods_are_evaluated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = SliceRig(monkeypatch, ORDER, *tenants(PODS))
    settled(rig)
    for each in tenants(PODS, team="a"):
        rig.take(e.PodUpdated(pending(each)))
    check_others(rig)


def running_members() -> list[ObservedPod]:
    return [placed(each, "a") for each in tenants(PODS, group="g")]


def test_changed_members_of_gangs_are_counted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = settled_rig(monkeypatch, HEAD + SLOW_GANG, *running_members())
    for each in running_members():
        rig.take(e.PodUpdated(changed(each, team="a")))
    check_others(rig)


def test_the_gang_clause_is_not_evaluated_when_readiness_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = settled_rig(monkeypatch, HEAD + SLOW_GANG, *running_members())

    for is_ready in (True, False):
        for each in running_members():
            rig.take(e.PodUpdated(replace(each, pod=replace(each.pod, ready=is_ready))))
        rig.run(0.5)

    assert not rig.slow_ends_ns


@pytest.mark.parametrize(
    ("text", "state"), [(ORDER, "awaiting its policy"), (FIT + "queue by pod.priority\n", "active")]
)
def test_a_new_pod_says_that_it_awaits_a_slow_policy(text: str, state: str) -> None:
    rig = Rig(text, node("a"))

    rig.handle(e.PodUpdated(pending(pod("p"))))

    status = rig.scheduler.pending_status(pod("p").uid)
    assert status is not None
    assert status.state == state
    assert ("takes long" in status.message) == (text == ORDER)
    rig.settle()
    assert rig.placements() == {"p": "a"}


def check_label_removed() -> None:
    """A parked pod loses the label that its policy needs, and then a node fits it."""
    rig = Rig(HEAD + NEEDS_LABEL + QUEUE.format(lists=SLOW, number=1), node("a", cpu="1"))
    rig.observe(pod("p", cpu="2", labels={"team": "a"}))
    rig.settle()

    rig.handle(e.PodUpdated(pending(pod("p", cpu="2"))), e.NodeUpdated(node("b", cpu="2")))
    core = rig.scheduler.core
    core.queue.remove(core.pods[pod("p").uid], rig.now_ns)
    core.queue.enqueue(core.pods[pod("p").uid], rig.now_ns, "NodeAdd")
    rig.scheduler.slices.step = lambda *_, **_more: False  # type: ignore[method-assign]
    rig.settle()
    assert rig.placements() == {}


def test_no_pod_is_attempted_as_it_was_before_a_change() -> None:
    check_label_removed()


def test_a_planted_bug_that_attempts_pods_as_they_were_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NamespaceEvents, "has_reached", lambda *_: True)
    with pytest.raises(AssertionError):
        check_label_removed()


def check_gang_counts(label: str) -> int:
    """How many members the gang `label` counts once a running member has moved from gang g to h."""
    rig = Rig(HEAD + SLOW_GANG, node("a"))
    member = placed(pod("m", labels={"group": "g"}), "a")
    rig.handle(e.PodUpdated(member))
    rig.settle()
    rig.handle(e.PodUpdated(changed(member, group="h")))
    rig.settle()
    gang = rig.scheduler.core.gangs.get(("test", member.pod.namespace, label))
    return 0 if gang is None else gang.member_count


def test_a_changed_member_counts_in_its_new_gang() -> None:
    assert (check_gang_counts("g"), check_gang_counts("h")) == (0, 1)


def test_a_planted_bug_that_counts_changed_members_as_before_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_membership, "_is_counted_alike", lambda before, _: before is not None)
    assert check_gang_counts("h") == 0


def test_a_change_of_the_namespace_forgets_no_pod_that_awaits_its_policy() -> None:
    """A placed pod that is in no gang yet, and a pending one."""
    rig = Rig(HEAD + SLOW_GANG, node("a"))
    member = placed(pod("m"), "a")
    rig.handle(e.PodUpdated(member))
    rig.settle()
    rig.handle(e.PodUpdated(changed(member, group="g")), e.PodUpdated(pending(pod("p"))))

    rig.scheduler._namespace_events.changed("default", rig.now_ns, synced=True)
    rig.settle()

    gang = rig.scheduler.core.gangs.get(("test", "default", "g"))
    assert gang is not None and list(gang.placed_members) == [member.pod.uid]
    assert rig.placements() == {"p": "a"}


def test_a_member_that_changes_in_a_pause_is_not_bound_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change has not reached it, since the slices of its namespace rest."""
    text = (
        HEAD + NEEDS_LABEL + 'gang by pod.labels["group"] { min = 3 }\n' + QUEUE.format(lists=SLOW, number=1)
    )
    limits = SchedulerLimits(attempt_step_cost_max=1, gang_piece_cost_max=1, gang_piece_cost_by_member=0)
    rig = Rig(text, node("a", cpu="10"), limits=limits)
    rig.observe(*[pod(f"m{at}", labels={"group": "g", "team": "t"}) for at in range(3)])
    while len(attempts_pause(rig).search.fits if rig.scheduler.attempt_paused else ()) < 2:
        decide_until_pause(rig)
    monkeypatch.setattr(rig.scheduler.slices, "step", lambda *_, **__: False)

    rig.handle(e.PodUpdated(pending(pod("m0", labels={"group": "g"}))))
    for _ in range(50):
        if rig.scheduler.ready(rig.now_ns):
            rig.commands += rig.scheduler.decide(rig.now_ns)

    assert rig.placements() == {}
