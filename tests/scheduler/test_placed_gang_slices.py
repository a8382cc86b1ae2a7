"""A new text of a policy with thousands of running members of gangs: they are counted in slices, and until the end nobody takes what is
not counted yet for what is not there."""

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.policy_text_events import COUNTED_AT_ONCE_MAX
from policysched.scheduler.queue.gang_registry import GangRegistry
from policysched.scheduler.sliced_changes import PODS_PER_SLICE
from tests.builders import node, placed, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import FIT, GANG, Rig

MEMBERS = 50
RUNNING = MEMBERS * (COUNTED_AT_ONCE_MAX // MEMBERS + 5)
EVICT = GANG.format(more="on_bind_failure = evict")
OTHER = FIT.replace("policy test", "policy other").replace(
    "preemption never", "preemption { victims = true }"
)


def running() -> Rig:
    """Gangs that need all of their members, which run and fill the node. A pod was attempted before."""
    rig = Rig({"main.policy": EVICT, "other.policy": OTHER})
    rig.observe(node("full", cpu=str(RUNNING), pods="9000"))
    for number in range(RUNNING):
        rig.observe(
            placed(pod(f"p{number}", cpu="1", labels=labels(f"g{number // MEMBERS}")), "full"),
        )
    rig.observe(pod("first", scheduler="other", cpu="0"))
    rig.settle()
    return rig


def labels(group: str) -> dict[str, str]:
    return {"group": group, "least": str(MEMBERS)}


def counted(rig: Rig) -> int:
    return sum(len(gang.placed_members) for gang in rig.scheduler.core.gangs)


def edit(rig: Rig, number: int = 1) -> None:
    """Until the new text has taken over and the first members are counted."""
    text = EVICT + f"filter small{number} require node.pods < 9000\n"
    rig.apply_policies({"main.policy": text, "other.policy": OTHER})
    before = rig.scheduler.core.policies.running["test"].program
    while rig.scheduler.core.policies.running["test"].program is before:
        rig.commands += rig.scheduler.decide(rig.now_ns)


def test_a_new_text_counts_running_members_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 were counted in one piece of 90 ms."""
    rig, calls = running(), list[int]()

    calls.append(count_calls(monkeypatch, GangRegistry, "add_placed", lambda: edit(rig)))
    while rig.scheduler.ready(rig.now_ns):
        with monkeypatch.context() as patched:
            calls.append(
                count_calls(patched, GangRegistry, "add_placed", lambda: rig.scheduler.decide(rig.now_ns))
            )

    assert calls[0] <= COUNTED_AT_ONCE_MAX + PODS_PER_SLICE
    assert max(calls[1:]) <= PODS_PER_SLICE
    assert counted(rig) == RUNNING
    assert not rig.scheduler.core.uncounted


def evicted_meanwhile() -> int:
    """How many are evicted for a pod with a higher priority that comes before all are counted."""
    rig = running()
    edit(rig)
    is_part = counted(rig) < RUNNING
    rig.observe(pod("urgent", cpu="1", scheduler="other", priority=100))
    rig.settle()
    rig.pass_time(5)
    [evict] = rig.of(c.Evict)
    assert is_part
    return len(evict.victims)


def test_no_member_is_evicted_before_all_are_counted() -> None:
    assert evicted_meanwhile() == MEMBERS, "a gang goes whole"


def test_a_planted_bug_that_evicts_what_is_not_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulerCore, "is_uncounted", lambda *_: False)

    assert evicted_meanwhile() < MEMBERS


def refused_meanwhile(group: str) -> Rig:
    """As many members of the gang run as it needs. The bind of a further one is refused before all are counted."""
    rig = running()
    rig.observe(node("free", cpu="1", pods="9000"), pod("late", cpu="1", labels=labels(group)))
    rig.settle()
    [late] = [bind for bind in rig.of(c.Bind) if bind.name == "late"]
    edit(rig)
    assert counted(rig) < RUNNING
    rig.handle(e.BindRefused(late.uid, "no"))
    rig.settle()
    return rig


@pytest.mark.parametrize("group", [COUNTED_AT_ONCE_MAX // MEMBERS, RUNNING // MEMBERS - 1])
def test_a_bind_that_is_refused_meanwhile_evicts_nobody_of_a_gang_that_is_whole(group: int) -> None:
    """Some of its members are counted, or none is."""
    rig = refused_meanwhile(f"g{group}")

    assert rig.of(c.Evict) == []
    assert [event.message for event in rig.of(c.ReportPodEvent) if event.reason == "GangBindFailed"] == []
    assert not rig.scheduler.core.binds.gang_failures


def test_a_gang_that_lacks_a_member_is_evicted_once_all_are_counted() -> None:
    rig = running()
    short = f"g{RUNNING // MEMBERS}"
    rig.observe(node("free", cpu=str(MEMBERS), pods="9000"))
    rig.observe(*[pod(f"s{number}", cpu="1", labels=labels(short)) for number in range(MEMBERS)])
    rig.settle()
    first, *others = [bind for bind in rig.of(c.Bind) if bind.name.startswith("s")]
    rig.handle(*[e.BindConfirmed(bind.uid, bind.node) for bind in others])
    edit(rig)
    rig.handle(e.BindRefused(first.uid, "no"))
    rig.settle()

    [evict] = rig.of(c.Evict)
    assert len(evict.victims) == MEMBERS - 1


def test_a_second_text_counts_those_that_the_first_did_not_reach() -> None:
    rig = running()

    edit(rig)
    rig.handle(*[e.PodDeleted(pod(f"p{number}").uid) for number in range(RUNNING - MEMBERS, RUNNING)])
    edit(rig, 2)
    rig.settle()

    assert counted(rig) == RUNNING - MEMBERS
    assert not rig.scheduler.core.uncounted
