"""Gangs: placed as a whole on one state of the cluster, or not at all; waiting gangs reserve nothing."""

from dataclasses import replace

import pytest

from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import finished, node, pending, placed, pod
from tests.scheduler.rig import GANG, START_NS, Rig

WHOLE = GANG.format(more="")
GATE = GANG.format(more="mode = gate")


def member(name: str, *, least: int = 3, group: str = "train", **more: object) -> Pod:
    return pod(name, labels={"group": group, "least": str(least)}, **{"cpu": "1", **more})


def timed(on_timeout: str) -> str:
    return GANG.format(more=f"\n timeout = 5m\n on_timeout = {on_timeout}")


def new(pods: list[Pod]) -> list[Pod]:
    """Created just now."""
    return [replace(pod, created_ns=START_NS) for pod in pods]


def members(count: int, *, least: int = 3, **more: object) -> list[Pod]:
    return [member(f"w{number}", least=least, **more) for number in range(count)]


def test_a_gang_that_fits_is_bound_in_one_step() -> None:
    rig = Rig(WHOLE, node("a", cpu="2"), node("b", cpu="1"))

    rig.observe(*members(3))
    reports = rig.scheduler.decide(rig.now_ns)

    assert sorted(command.name for command in reports if isinstance(command, c.Bind)) == ["w0", "w1", "w2"]


def test_a_gang_that_does_not_fit_whole_holds_nothing() -> None:
    rig = Rig(WHOLE, node("a", cpu="2"))

    rig.observe(*members(3), pod("web", cpu="2"))
    rig.settle()

    assert rig.placements() == {"web": "a"}
    assert rig.pending_message("w0") == (
        "gang default/train: 2 of 3 members fit now: 0/1 nodes are available: 1 Insufficient cpu. "
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )
    assert rig.pending_message("w2") == rig.pending_message("w0")


def test_a_gang_that_did_not_fit_is_placed_when_capacity_is_added() -> None:
    rig = Rig(WHOLE, node("a", cpu="2"), *members(3))
    rig.settle()

    rig.observe(node("b", cpu="1"))
    rig.settle()

    assert rig.placements().keys() == {"w0", "w1", "w2"}


def test_a_gathering_gang_reports_its_size_and_does_not_trigger_scale_up() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"), *members(2))

    at_once = rig.settle()
    rig.pass_time(1)

    reports = rig.of(c.ReportPending)
    assert at_once == [], "a gang usually completes within moments"
    assert {report.message for report in reports} == {
        "gang default/train: only 2 of the 3 needed members exist"
    }
    assert {report.reason for report in reports} == {"PolicyPending"}
    assert rig.counts() == {"gated": 2}


def test_each_new_member_of_a_large_gang_is_not_a_report_of_every_other_one() -> None:
    rig = Rig(WHOLE)
    count = 200

    for number in range(count):
        rig.observe(member(f"w{number}", least=5000))
        rig.pass_time(1)
    reports = rig.of(c.ReportPending)
    rig.pass_time(300)

    assert {report.name for report in reports} >= {f"w{number}" for number in range(count - 1)}
    assert len(reports) <= 5 * count
    assert {rig.pending_message(f"w{number}") for number in range(count)} == {
        "gang default/train: only 200 of the 5000 needed members exist"
    }


def test_what_a_user_is_shown_of_a_gang_is_current_before_it_is_reported() -> None:
    rig = Rig(WHOLE, *members(2, least=5))
    rig.pass_time(2)

    rig.observe(member("w2", least=5))
    rig.pass_time(2)

    assert rig.pending_message("w0") == "gang default/train: only 2 of the 5 needed members exist"
    shown = rig.scheduler.pending_status(member("w0").uid)
    assert shown is not None
    assert shown.message == "gang default/train: only 3 of the 5 needed members exist"


def test_the_last_member_to_arrive_requeues_the_gang() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"), *members(2))
    rig.pass_time(30)

    rig.observe(member("w2"))
    rig.settle()

    assert rig.placements().keys() == {"w0", "w1", "w2"}


def test_a_replaced_worker_joins_its_running_gang_alone() -> None:
    running = [placed(gang_pod, "a") for gang_pod in members(3)]
    rig = Rig(WHOLE, node("a", cpu="9"), *running)

    rig.observe(finished(running[0].pod, "a"))
    rig.observe(member("w3"))
    rig.settle()

    assert rig.placements() == {"w3": "a"}


def test_finished_and_terminating_members_do_not_count() -> None:
    running = [placed(gang_pod, "a") for gang_pod in members(3)]
    rig = Rig(WHOLE, node("a", cpu="9"), *running)

    rig.observe(finished(running[0].pod, "a"), replace(running[1], deleting=True))
    rig.observe(member("w3"))
    rig.settle()

    assert rig.placements() == {}, "one runs, one is pending: two of three"


def test_a_gated_member_does_not_count_until_its_gates_are_gone() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"), member("w0"), member("w1"), member("w2", gates=["x"]))
    rig.settle()
    before = rig.placements()

    rig.observe(member("w2"))
    rig.settle()

    assert before == {}
    assert len(rig.placements()) == 3


def test_the_largest_minimum_counts_and_one_event_reports_the_disagreement() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"))

    rig.observe(member("w0", least=2), member("w1", least=4), member("w2", least=2))
    rig.settle()
    before = rig.placements()
    rig.observe(member("w3", least=2))
    rig.settle()

    assert before == {} and len(rig.placements()) == 4
    (event,) = [command for command in rig.of(c.ReportPodEvent) if command.reason == "GangDisagrees"]
    assert event.message == "members of gang default/train disagree on the minimum: 2, 4; the largest is used"


def test_members_beyond_the_minimum_are_placed_too_where_they_fit() -> None:
    rig = Rig(WHOLE, node("a", cpu="4"))

    rig.observe(*members(6))
    rig.settle()

    assert len(rig.placements()) == 4
    assert rig.counts() == {"unschedulable": 2}


def test_a_gang_never_has_more_members_placed_than_its_maximum() -> None:
    rig = Rig(GANG.format(more="\n max = 4"), node("a", cpu="9"))

    rig.observe(*members(6))
    rig.settle()
    first = dict(rig.placements())
    rig.confirm_binds()
    rig.handle(e.PodDeleted(rig.of(c.Bind)[0].uid))
    rig.pass_time(5)

    assert len(first) == 4
    assert len(rig.placements()) == 5
    waiting = {report.message for report in rig.of(c.ReportPending)}
    assert "gang default/train is at its maximum of 4 members" in waiting


def test_a_gang_is_ordered_like_its_first_member() -> None:
    rig = Rig(WHOLE, node("a", cpu="3"))

    rig.observe(pod("mid", cpu="1", priority=5), *members(2), member("w2", priority=9))
    rig.settle()

    assert sorted(rig.bind_order()) == ["w0", "w1", "w2"]
    assert str(rig.pending_message("mid")).startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_two_gangs_that_fit_only_one_by_one_do_not_block_each_other() -> None:
    rig = Rig(WHOLE, node("a", cpu="4"))

    for x, other in zip(members(3, group="x"), [member(f"y{n}", group="y") for n in range(3)], strict=True):
        rig.observe(x, other)
    rig.settle()

    groups = {name[0] for name in rig.placements()}
    assert len(rig.placements()) == 3 and len(groups) == 1


def test_gangs_of_one_key_in_two_namespaces_are_two_gangs() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"))

    rig.observe(*members(2), member("other", namespace="elsewhere"))
    rig.settle()

    assert rig.placements() == {}


def test_in_mode_gate_only_the_count_is_required() -> None:
    rig = Rig(GATE, node("a", cpu="2"))

    rig.observe(*members(2))
    rig.settle()
    before = rig.placements()
    rig.observe(member("w2"))
    rig.settle()

    assert before == {}
    assert len(rig.placements()) == 2, "two fit, and the gate is open"
    assert rig.counts() == {"unschedulable": 1}


def test_in_mode_gate_the_gate_closes_again_when_members_vanish() -> None:
    rig = Rig(GATE, node("a", cpu="500m"), *members(3))
    rig.settle()

    rig.handle(e.PodDeleted(member("w0").uid))
    rig.observe(node("b", cpu="9"))
    rig.settle()

    assert rig.placements() == {}
    assert rig.counts() == {"gated": 2}


def test_a_member_with_a_refused_bind_is_retried_and_its_gang_stays_placed() -> None:
    rig = Rig(WHOLE, node("a", cpu="3"), *members(3))
    rig.settle()
    lost = rig.of(c.Bind)[0]

    rig.handle(e.BindRefused(lost.uid, "conflict"))
    rig.pass_time(2)

    assert [bind.name for bind in rig.of(c.Bind)].count(lost.name) == 2
    assert len(rig.of(c.Bind)) == 4


def test_a_gang_that_timed_out_is_requeued_behind_others() -> None:
    rig = Rig(timed("requeue"), node("a", cpu="2"))
    rig.observe(*new(members(3, priority=9)))
    rig.settle()

    rig.pass_time(301)
    (event,) = [command for command in rig.of(c.ReportPodEvent) if command.reason == "GangTimedOut"]
    rig.observe(node("b", cpu="1"))
    rig.settle()

    assert event.message == "gang default/train was not placed within 5m; it moves to the end of the queue"
    assert len(rig.placements()) == 3


def test_a_restarted_gang_is_ordered_last_once() -> None:
    rig = Rig(timed("requeue"), node("a", cpu="2"))
    rig.observe(*new(members(3, priority=9)))
    rig.settle()
    rig.now_ns += 301 * 10**9

    rig.observe(pod("web", cpu="3"))
    rig.settle()
    once = [decision.pod for decision in rig.scheduler.decisions if decision.at_ns == rig.now_ns]
    rig.observe(node("b", cpu="3"))
    rig.settle()

    assert once[0] == "default/web" and "default/w0" in once, "though the gang has the higher priority"
    assert rig.placements().keys() == {"w0", "w1", "w2"}, "it stands at its own place again"


def test_a_failed_gang_is_not_retried_until_its_pods_are_recreated() -> None:
    rig = Rig(timed("fail"), node("a", cpu="2"))
    rig.observe(*new(members(3)))
    rig.settle()

    rig.pass_time(301)
    rig.observe(node("b", cpu="9"))
    rig.pass_time(60)
    before = rig.placements()
    for gang_pod in members(3):
        rig.handle(e.PodDeleted(gang_pod.uid))
    rig.observe(*new([replace(gang_pod, uid=PodUid(f"{gang_pod.uid}-again")) for gang_pod in members(3)]))
    rig.settle()

    assert before == {}
    assert "recreate its pods" in (rig.pending_message("w0") or "")
    assert len(rig.placements()) == 3


def test_with_best_effort_members_that_fit_are_placed_at_the_timeout() -> None:
    rig = Rig(timed("best_effort"), node("a", cpu="2"))
    rig.observe(*new(members(3)))
    rig.settle()
    before = rig.placements()

    rig.pass_time(301)

    assert before == {}
    assert len(rig.placements()) == 2


@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_a_gang_that_gathers_too_long_times_out_as_well(ahead_s: int) -> None:
    """`ahead_s`: the clock of the process, of the API server's, which writes when pods are created."""
    rig = Rig(timed("best_effort"), node("a", cpu="9"))
    rig.pass_time(ahead_s)
    rig.observe(*new([member("w0")]))

    rig.pass_time(299)
    before = rig.placements()
    rig.pass_time(2)

    assert before == {}
    assert rig.placements() == {"w0": "a"}


def test_after_a_restart_an_overdue_gang_gets_one_attempt_before_it_fails() -> None:
    old = [replace(gang_pod, created_ns=0) for gang_pod in members(3)]

    rig = Rig(timed("fail"), node("a", cpu="9"), *old)
    rig.settle()

    assert len(rig.placements()) == 3


def test_a_gang_of_a_thousand_arriving_one_by_one_is_placed_with_few_reports() -> None:
    rig = Rig(WHOLE, node("a", cpu="1", pods="10"))
    everybody = members(1000, least=1000)

    for gang_pod in everybody:
        rig.scheduler.handle(e.PodUpdated(pending(gang_pod)), rig.now_ns)
    commands = rig.settle()

    assert rig.scheduler.check() == []
    assert rig.scheduler.counters.attempts["unschedulable", "test"] == 1000
    assert len([command for command in commands if isinstance(command, c.ReportPending)]) == 1000
    assert rig.placements() == {}


def test_the_new_text_of_a_policy_counts_the_members_that_are_bound_already() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"), *[placed(gang_pod, "a") for gang_pod in members(2)])
    rig.observe(member("w2", cpu="10"))
    rig.settle()

    rig.apply_policies(WHOLE.replace("filter node_resources_fit", "filter node_unschedulable"))
    rig.settle()

    assert rig.placements() == {"w2": "a"}


def test_a_confirmed_member_counts_before_the_watch_shows_it() -> None:
    rig = Rig(WHOLE, node("a", cpu="9"), *members(3))
    rig.settle()
    for bind in rig.in_flight_binds():
        rig.handle(e.BindConfirmed(bind.uid, NodeName("a")))

    rig.observe(member("w3"))
    rig.settle()

    assert len(rig.placements()) == 4


def test_a_gang_whose_key_is_a_whole_annotation_has_a_short_name() -> None:
    rig = Rig(WHOLE, node("a", cpu="1"))

    rig.observe(*members(3, group="x" * 60_000))
    rig.settle()

    words = rig.pending_message("w0") or ""
    assert words.startswith("gang default/xxx")
    assert len(words) < 600
    assert rig.scheduler.decisions
    assert max(len(decision.gang or "") for decision in rig.scheduler.decisions) in range(1, 300)


def test_members_that_disagree_on_their_topology_are_reported_and_the_majority_counts() -> None:
    text = GANG.format(more='topology = pod.labels["level"]')
    nodes = [node(name, cpu="2", labels={"rack": name, "zone": "z"}) for name in "abc"]
    levels = ("zone", "zone", "rack")
    pods = [
        pod(f"w{index}", cpu="2", labels={"group": "train", "least": "3", "level": level})
        for index, level in enumerate(levels)
    ]

    rig = Rig(text, *nodes, *pods)
    rig.settle()

    (event,) = [command for command in rig.of(c.ReportPodEvent) if command.reason == "GangDisagrees"]
    assert event.message == (
        "members of gang default/train disagree on the topology: rack, zone; that of most members is used"
    )
    assert len(rig.placements()) == 3
