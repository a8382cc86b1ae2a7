"""Open parked groups where the order changes by itself: their members are not overtaken, and a decision looks at few of them."""

import pytest

from policysched.evaluate.plan.plan import Plan
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.parked_groups import ParkedGroups
from tests.builders import node, placed, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import Rig

FIT = "policy test version 1\nfilter node_resources_fit\nfilter node_unschedulable\npreemption never\n"
BY_SHARE = FIT + "queue by namespace.share.cpu, pod.name\n"
BY_QUOTA_SHARE = (
    FIT
    + """\
queue by pod.quota_share.team, pod.name
quota team by pod.labels["team"] else "none" {
  "a" { cpu = 100 borrow any }
  "b" { cpu = 100 borrow any }
  "c" { cpu = 100 borrow any }
  others { cpu = 0 }
}
"""
)
BACKOFF = SchedulerLimits(backoff_initial_s=8.0)


def open_groups(count: int) -> Rig:
    """Parked groups of one namespace with two members each, whose representatives back off; a pod of another namespace,
    which is first, is about to be decided."""
    rig = Rig(BY_SHARE, node("a", cpu="4"), placed(pod("old", namespace="hog", cpu="1"), "a"), limits=BACKOFF)
    for number in range(count):
        rig.observe(*[pod(f"p{number}-{own}", namespace="hog", cpu=str(10 + number)) for own in range(2)])
    rig.settle()
    rig.observe(node("b", cpu="4"))
    rig.observe(pod("friend", namespace="friendly", cpu="1"))
    return rig


def keys_for_a_decision(monkeypatch: pytest.MonkeyPatch, group_count: int) -> int:
    rig = open_groups(group_count)
    count = count_calls(
        monkeypatch,
        Plan,
        "order_with_shares",
        lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns)),
    )
    assert rig.placements().keys() == {"friend"}
    open_count = sum(not group.blocked for group in rig.scheduler.core.queue.parked_groups())
    assert open_count == group_count
    return count


def test_a_decision_does_not_compare_itself_with_each_open_group(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = keys_for_a_decision(monkeypatch, 5), keys_for_a_decision(monkeypatch, 40)

    assert many <= few + 5


def team_pod(name: str, team: str, cpu: str = "1") -> Pod:
    return pod(name, cpu=cpu, labels={"team": team})


def first_of_three_teams() -> list[str]:
    """The pods of a and b are one class, that of a represents it. Then the share of b falls below that of c, of which a pod
    comes that is ahead of the representative."""
    full = node("full", cpu="60", unschedulable=True)
    of_a, of_b = team_pod("old-a", "a", "20"), team_pod("old-b", "b", "30")
    rig = Rig(BY_QUOTA_SHARE, full, placed(of_a, "full"), placed(of_b, "full"), limits=BACKOFF)
    rig.observe(placed(team_pod("old-c", "c", "10"), "full"))
    rig.observe(team_pod("from-a", "a"), team_pod("from-b", "b"))
    rig.settle()
    rig.observe(node("free", cpu="1"))
    rig.handle(e.PodDeleted(of_b.uid))
    rig.observe(team_pod("from-c", "c"))
    rig.settle()
    return rig.bind_order()


def test_a_member_that_got_ahead_of_its_representative_is_placed_first() -> None:
    assert first_of_three_teams() == ["from-b"]


def test_a_planted_bug_that_looks_at_representatives_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParkedGroups, "first_before", lambda *_: None)
    assert first_of_three_teams() == ["from-c"]
