"""Single pods: from the first watch event to the bind, and what can happen between."""

from dataclasses import replace

import pytest

from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from tests.builders import finished, node, pending, placed, pod, service
from tests.scheduler.rig import FIT, Rig


def test_a_pod_that_fits_is_assumed_and_bound_under_the_policy_it_names() -> None:
    rig = Rig(FIT, node("a", cpu="1"))

    rig.observe(web := pod("web", cpu="500m"))
    bind, timer = rig.settle()

    (status,) = rig.scheduler.policies()
    assert isinstance(timer, c.SetTimer)
    assert [bind] == [c.Bind(web.uid, "default", "web", NodeName("a"), "test", status.sha256)]
    assert rig.scheduler.binds_in_flight == 1


def test_scheduled_is_reported_only_after_the_bind_is_confirmed() -> None:
    rig = Rig(FIT, node("a"), web := pod("web"))
    assert not [command for command in rig.settle() if isinstance(command, c.ReportScheduled)]

    commands = rig.handle(e.BindConfirmed(web.uid, NodeName("a")), e.BindConfirmed(web.uid, NodeName("a")))

    assert commands == [c.ReportScheduled(web.uid, "default", "web", NodeName("a"), "test")]
    assert rig.scheduler.binds_in_flight == 0


def test_scheduled_is_reported_for_a_pod_that_ended_before_its_bind_was_answered() -> None:
    rig = Rig(FIT, node("a"), short := pod("short"))
    rig.settle()

    rig.observe(finished(short, "a"))
    rig.handle(e.BindConfirmed(short.uid, NodeName("a")))

    assert [command.name for command in rig.of(c.ReportScheduled)] == ["short"]
    assert rig.scheduler.counters.attempts["scheduled", "test"] == 1
    assert rig.scheduler.check() == []


def test_nothing_is_decided_before_the_initial_lists_are_complete() -> None:
    rig = Rig(FIT, node("a"), pod("web"), synced=False)

    before = rig.settle()
    rig.handle(e.Synced())
    rig.settle()

    assert before == []
    assert rig.placements() == {"web": "a"}


def test_two_pods_that_fit_only_one_by_one_are_not_put_on_one_node() -> None:
    rig = Rig(FIT, node("a", cpu="1"))

    rig.observe(pod("first", cpu="600m"), pod("second", cpu="600m"))
    rig.settle()

    assert len(rig.placements()) == 1
    (left,) = {"first", "second"} - rig.placements().keys()
    assert rig.pending_message(left) == "0/1 nodes are available: 1 Insufficient cpu."


def test_a_pod_that_does_not_fit_is_reported_once_and_requeued_when_capacity_is_freed() -> None:
    big = pod("big", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), placed(big, "a"))
    rig.observe(pod("web", cpu="500m"))
    first = rig.settle()
    assert rig.settle() == []

    rig.handle(e.PodDeleted(big.uid))
    rig.settle()

    assert [
        (command.reason, command.message) for command in first if isinstance(command, c.ReportPending)
    ] == [("Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.")]
    assert rig.placements() == {"web": "a"}


def test_a_finished_pod_frees_its_capacity() -> None:
    job = pod("job", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), placed(job, "a"), pod("web", cpu="1"))
    rig.settle()

    rig.observe(finished(job, "a"))
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_a_new_node_requeues_an_unschedulable_pod() -> None:
    rig = Rig(FIT, pod("web", cpu="1"))
    rig.settle()
    assert rig.pending_message("web") == "no nodes available to schedule pods"

    rig.observe(node("a", cpu="1"))
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_a_pod_of_another_scheduler_is_ignored_but_its_requests_count() -> None:
    rig = Rig(FIT, node("a", cpu="1"), placed(pod("other", cpu="1", scheduler="default-scheduler"), "a"))

    rig.observe(pod("stranger", scheduler="default-scheduler"), pod("web", cpu="500m"))
    rig.settle()

    assert rig.placements() == {}
    assert rig.pending_message("web") == "0/1 nodes are available: 1 Insufficient cpu."
    assert rig.pending_message("stranger") is None


def test_a_change_of_the_namespace_leaves_gated_pods_alone() -> None:
    """Thousands of them were enqueued again in one piece."""
    gated = pod("web", gates=["example.com/ready"])
    needs_gold = FIT + 'filter gold require (namespace.labels["tier"] else "") == "gold"\n'
    rig = Rig(needs_gold, node("a"), Namespace("default", {}, {}), gated)
    before = rig.scheduler.queue_incoming()

    rig.observe(Namespace("default", {"tier": "gold"}, {}))

    assert rig.scheduler.queue_incoming() == before
    rig.observe(replace(gated, gates=()))
    rig.settle()
    assert rig.placements() == {"web": "a"}


def test_a_pod_with_scheduling_gates_waits_until_they_are_gone() -> None:
    gated = pod("web", gates=["example.com/ready"])
    rig = Rig(FIT, node("a"), gated)
    rig.settle()
    assert rig.counts() == {"gated": 1}

    rig.observe(pod("web"))
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_a_pod_deleted_while_its_bind_is_in_flight_frees_the_node() -> None:
    first, second = pod("first", cpu="1"), pod("second", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), first)
    rig.settle()

    rig.handle(e.PodDeleted(first.uid))
    rig.handle(e.BindConfirmed(first.uid, NodeName("a")))
    rig.observe(second)
    rig.settle()

    assert rig.placements() == {"first": "a", "second": "a"}
    assert rig.of(c.ReportScheduled) == []


def test_a_refused_bind_frees_the_node_and_is_retried_after_backoff() -> None:
    web = pod("web", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), web)
    rig.settle()

    rig.handle(e.BindRefused(web.uid, "Operation cannot be fulfilled"))
    at_once = rig.settle()
    rig.pass_time(0.9)
    early = len(rig.of(c.Bind))
    rig.pass_time(0.2)

    assert at_once == [] and early == 1
    assert len(rig.of(c.Bind)) == 2
    assert rig.pending_message("web") == "binding to a was refused: Operation cannot be fulfilled"


def test_a_delayed_bind_is_reported_and_keeps_its_room() -> None:
    web = pod("web", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), web)
    rig.settle()
    rig.observe(pod("other", cpu="1"))
    rig.settle()

    rig.handle(e.BindDelayed(web.uid, None))
    unreported = list(rig.of(c.ReportPending))
    rig.handle(e.BindDelayed(web.uid, "failed calling webhook"))
    rig.pass_time(30)

    assert [report.name for report in unreported] == ["other"]
    assert rig.pending_message("web") == "binding to a has no response yet; retrying: failed calling webhook"
    assert [bind.uid for bind in rig.of(c.Bind)] == [web.uid], "its node is not given to another pod"
    rig.confirm_binds()
    assert [report.uid for report in rig.of(c.ReportScheduled)] == [web.uid]


def test_delayed_binds_do_not_stop_decisions() -> None:
    rig = Rig(FIT, node("a", cpu="100"), limits=SchedulerLimits(binds_in_flight_max=3))
    rig.observe(*[pod(f"p{number}") for number in range(10)])
    rig.settle()

    for bind in rig.of(c.Bind):
        rig.handle(e.BindDelayed(bind.uid, None))
    rig.settle()

    assert rig.scheduler.binds_in_flight == 8


def test_backoff_doubles_up_to_ten_seconds() -> None:
    web = pod("web")
    rig = Rig(FIT, node("a"), web)
    waits = []

    for _ in range(6):
        rig.settle()
        refused_ns = rig.now_ns
        rig.handle(e.BindRefused(web.uid, "no"))
        while not rig.scheduler.binds_in_flight:
            rig.pass_time(0.5)
        waits.append((rig.now_ns - refused_ns) / 10**9)

    assert waits == [1, 2, 4, 8, 10, 10]


def test_a_lost_bind_is_left_to_the_watch() -> None:
    web = pod("web")
    rig = Rig(FIT, node("a", cpu="1"), web)
    rig.settle()

    rig.handle(e.BindLost(web.uid, "bound elsewhere"))
    rig.pass_time(60)
    rig.observe(placed(web, "b"))

    assert len(rig.of(c.Bind)) == 1
    assert rig.scheduler.pending_status(web.uid) is None


def test_a_lost_bind_is_tried_again_when_the_watch_shows_the_pod_unbound() -> None:
    web = pod("web")
    rig = Rig(FIT, node("a", cpu="1"), web)
    rig.settle()

    rig.handle(e.BindLost(web.uid, "409"))
    rig.observe(web)
    rig.pass_time(10)

    assert len(rig.of(c.Bind)) == 2


def test_a_late_event_that_shows_a_confirmed_pod_as_unbound_changes_nothing() -> None:
    web = pod("web", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), web)
    rig.settle()
    rig.handle(e.BindConfirmed(web.uid, NodeName("a")))

    rig.observe(pod("web", cpu="1", labels={"late": "yes"}))
    rig.settle()

    assert len(rig.of(c.Bind)) == 1


def test_a_pod_that_another_scheduler_bound_first_is_on_the_node_of_the_api_server() -> None:
    web, second = pod("web", cpu="1"), pod("second", cpu="1")
    rig = Rig(FIT, node("a", cpu="1"), web)
    rig.settle()

    rig.observe(placed(web, "b"))
    rig.handle(e.BindLost(web.uid, "bound to b"))
    rig.observe(second)
    rig.settle()

    assert rig.placements()["second"] == "a"
    assert rig.of(c.ReportScheduled) == []


def test_a_terminating_pod_is_not_scheduled() -> None:
    rig = Rig(FIT, node("a"))

    rig.observe(replace(pending(pod("web")), deleting=True))
    rig.settle()

    assert rig.placements() == {}
    assert rig.counts() == {}


def test_an_edited_pod_is_retried_with_its_new_requests() -> None:
    rig = Rig(FIT, node("a", cpu="1"), pod("web", cpu="2"))
    rig.settle()

    rig.observe(pod("web", cpu="1"))
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_a_pod_with_an_unsupported_feature_stays_pending_with_a_message_that_names_it() -> None:
    claims = [{"name": "gpu"}]
    rig = Rig(FIT, node("a"))

    rig.observe(pod("web", spec={"resourceClaims": claims}))
    rig.settle()

    (report,) = rig.of(c.ReportPending)
    assert "spec.resourceClaims" in report.message
    assert report.reason == "PolicyPending", "no autoscaler is to buy nodes for it"
    assert rig.placements() == {}


def test_a_placed_pods_required_anti_affinity_keeps_a_pod_that_it_selects_waiting() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    holder = pod("db-0", scheduler="default-scheduler", spec={"affinity": affinity})
    rig = Rig(
        "policy test version 1\ninclude kube_default\npreemption never\n", node("a"), placed(holder, "a")
    )

    rig.observe(pod("db-1", labels={"app": "db"}), pod("web"))
    rig.settle()
    waiting = rig.pending_message("db-1")
    rig.handle(e.PodDeleted(holder.uid))
    rig.settle()

    assert waiting == "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."
    assert rig.placements().keys() == {"web", "db-1"}


def test_a_pod_with_affinity_is_retried_when_a_matching_pod_is_placed() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    rig = Rig("policy test version 1\ninclude kube_default\n", node("a"), node("b"))
    rig.observe(pod("web", spec=spec))
    rig.settle()
    alone = rig.placements()

    rig.observe(placed(pod("db", labels={"app": "db"}, scheduler="default-scheduler"), "b"))
    rig.settle()

    assert alone == {}
    assert rig.placements() == {"web": "b"}


def test_a_changed_namespace_label_requeues_pods_of_other_namespaces() -> None:
    term = {
        "labelSelector": {},
        "namespaceSelector": {"matchLabels": {"team": "red"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    red = placed(pod("red", namespace="red", scheduler="default-scheduler"), "a")
    rig = Rig("policy test version 1\ninclude kube_default\n", node("a"), red)
    rig.handle(e.NamespaceUpdated(Namespace("red", {"team": "red"}, {})))
    rig.observe(pod("web", spec=spec))
    rig.settle()
    before = rig.placements()

    rig.handle(e.NamespaceUpdated(Namespace("red", {"team": "blue"}, {})))
    rig.settle()

    assert (before, rig.placements()) == ({}, {"web": "a"})


def test_a_domain_deleted_with_its_node_requeues_spread_pods() -> None:
    constraint = {
        "labelSelector": {"matchLabels": {"app": "web"}},
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    spec = {"topologySpreadConstraints": [constraint]}
    full = node("full", cpu="1")
    filler = pod("filler", cpu="1", scheduler="default-scheduler")
    web = [pod(f"web-{index}", cpu="100m", labels={"app": "web"}, spec=spec) for index in range(2)]
    rig = Rig("policy test version 1\ninclude kube_default\n", node("a"), full, placed(filler, "full"))
    rig.observe(*web)
    rig.settle()
    before = rig.placements()

    rig.handle(e.NodeDeleted(full.name))
    rig.settle()

    assert len(before) == 1
    assert rig.placements() == {"web-0": "a", "web-1": "a"}


def test_capacity_for_a_nominated_pod_is_not_given_to_one_of_lower_priority() -> None:
    favoured = pod("favoured", cpu="1", priority=10, scheduler="default-scheduler")
    nominated = replace(pending(favoured), nominated_node=NodeName("a"))
    rig = Rig(FIT, node("a", cpu="1"), nominated)

    rig.observe(pod("low", cpu="1"))
    rig.settle()
    before = rig.placements()
    rig.observe(replace(nominated, nominated_node=None))
    rig.settle()

    assert before == {}
    assert rig.placements() == {"low": "a"}


def test_a_pod_of_higher_priority_may_use_the_capacity_of_a_nominated_one() -> None:
    favoured = pod("favoured", cpu="1", priority=10, scheduler="default-scheduler")
    rig = Rig(FIT, node("a", cpu="1"), replace(pending(favoured), nominated_node=NodeName("a")))

    rig.observe(pod("high", cpu="1", priority=11))
    rig.settle()

    assert rig.placements() == {"high": "a"}


LEANS = {
    "affinity": {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}
            ]
        }
    }
}


def test_no_affinity_is_satisfied_by_a_pod_that_is_only_nominated() -> None:
    """It may never come: a node must do without the pods nominated to it as well."""
    favoured = pod("favoured", labels={"app": "db"}, priority=10, scheduler="nobody")
    policy = "policy test version 1\ninclude kube_default\n"
    rig = Rig(policy, node("a"), replace(pending(favoured), nominated_node=NodeName("a")))

    rig.observe(pod("web", spec=LEANS))
    rig.settle()
    before = rig.placements(), rig.pending_message("web")
    rig.observe(placed(favoured, "a"))
    rig.pass_time(30)

    assert before[0] == {}
    assert "1 node(s) didn't match pod affinity rules" in str(before[1])
    assert rig.placements() == {"web": "a"}


def test_a_nominated_pod_on_another_node_blocks_no_pod() -> None:
    """As in kube-scheduler: only a node's own nominations count for it."""
    apart = {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
                ]
            }
        }
    }
    favoured = pod("favoured", labels={"app": "db"}, priority=10, scheduler="nobody")
    policy = "policy test version 1\ninclude kube_default\n"
    nodes = [node(name, labels={"zone": "z1"}) for name in ("a", "b")]
    rig = Rig(policy, *nodes, replace(pending(favoured), nominated_node=NodeName("a")))

    rig.observe(pod("web", spec=apart))
    rig.settle()

    assert rig.placements() == {"web": "b"}


def test_the_number_of_binds_in_flight_is_limited() -> None:
    rig = Rig(FIT, node("a", cpu="100"), limits=SchedulerLimits(binds_in_flight_max=3))
    rig.observe(*[pod(f"p{number}") for number in range(10)])

    rig.settle()
    at_first = rig.scheduler.binds_in_flight
    while rig.in_flight_binds():
        rig.confirm_binds()
        rig.settle()

    assert at_first == 4, "a decision is taken while no more than three wait"
    assert len(rig.of(c.ReportScheduled)) == 10


def test_a_changing_count_is_not_reported_at_every_attempt_but_the_last_report_is_current() -> None:
    rig = Rig(FIT, node("n0", cpu="1"), pod("web", cpu="8"))
    rig.settle()

    for number in range(1, 30):
        rig.observe(node(f"n{number}", cpu="1"))
        rig.pass_time(0.1)
    reports = [report for report in rig.of(c.ReportPending) if report.name == "web"]
    rig.pass_time(20)

    assert len(reports) <= 3
    assert rig.pending_message("web") == "0/30 nodes are available: 30 Insufficient cpu."


def test_hundreds_of_equivalent_pods_cost_one_attempt_per_event() -> None:
    rig = Rig(FIT, node("a", cpu="1"))
    rig.observe(*[pod(f"p{number}", cpu="2") for number in range(300)])
    rig.settle()
    tried = rig.scheduler.counters.attempts["unschedulable", "test"]

    rig.observe(node("b", cpu="1"))
    rig.pass_time(1)

    assert tried == 1
    assert rig.scheduler.counters.attempts["unschedulable", "test"] == 2
    assert rig.counts() == {"unschedulable": 300}
    assert len({report.name for report in rig.of(c.ReportPending)}) == 300


def test_new_capacity_goes_to_the_pods_of_an_equivalence_class_in_order() -> None:
    rig = Rig(FIT, node("a", cpu="1"))
    rig.observe(*[pod(f"p{number}", cpu="2", priority=number) for number in range(10)])
    rig.settle()

    rig.observe(node("b", cpu="7"))
    rig.pass_time(1)

    assert rig.bind_order() == ["p9", "p8", "p7"]
    assert rig.counts() == {"unschedulable": 7}


def test_an_equivalence_class_survives_the_deletion_of_its_representative() -> None:
    rig = Rig(FIT, node("a", cpu="1"), limits=SchedulerLimits(backoff_initial_s=5))
    rig.observe(pod("top", cpu="2", priority=9), pod("next", cpu="2"))
    busy = pod("busy", cpu="1")
    rig.settle()
    rig.observe(busy)
    rig.settle()

    rig.observe(node("b", cpu="2"))
    rig.handle(e.PodDeleted(pod("top", cpu="2", priority=9).uid))
    rig.settle()

    assert rig.placements() == {"busy": "a", "next": "b"}


def test_decisions_and_why_report_decisions_and_awaited_events() -> None:
    rig = Rig(FIT, node("a", cpu="1"), pod("small", cpu="1"), big := pod("web", cpu="2"))
    rig.settle()

    reason = rig.scheduler.pending_status(big.uid)
    by_pod = {decision.pod: decision for decision in rig.scheduler.decisions}

    assert reason is not None and reason.state == "unschedulable" and "NodeAdd" in reason.requeue_events
    assert by_pod["default/small"].node == "a" and by_pod["default/small"].feasible_count == 1
    assert by_pod["default/web"].counts == {"Insufficient cpu": 1}
    assert (
        by_pod["default/web"].sha256 == by_pod["default/small"].sha256 == rig.scheduler.policies()[0].sha256
    )


def test_an_assumed_pod_without_a_bind_is_found_by_the_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(FIT, node("a"), web := pod("web"))
    rig.settle()

    del rig.scheduler._core.binds.in_flight[web.uid]

    assert any("no bind is in flight" in problem for problem in rig.scheduler.check())


def test_pods_share_no_verdict_if_a_rule_reads_their_queue_state() -> None:
    patient = FIT + 'filter patient require pod.waited > 10s says "too early"\n'
    rig = Rig(patient, node("a"), pod("first"))
    rig.settle()
    rig.now_ns += 8 * 10**9

    rig.observe(pod("second"))
    rig.settle()
    rig.pass_time(3)

    assert rig.placements() == {"first": "a"}


def test_a_delayed_report_about_a_pod_is_dropped_after_its_bind() -> None:
    rig = Rig(FIT, node("n0", cpu="1"), pod("web", cpu="8"))
    rig.settle()
    rig.observe(node("n1", cpu="1"))
    rig.settle()

    rig.observe(node("big", cpu="8"))
    rig.settle()
    commands = rig.pass_time(60)

    assert rig.placements() == {"web": "big"}
    assert [command for command in commands if isinstance(command, c.ReportPending)] == []


def test_an_equivalence_class_gets_the_message_of_its_representative_in_time() -> None:
    rig = Rig(FIT, node("a", cpu="1"), pod("first", cpu="2"), pod("second", cpu="2"))
    rig.settle()

    rig.observe(node("b", cpu="9", pods="0"))
    rig.pass_time(9)
    early = {rig.pending_message("first"), rig.pending_message("second")}
    rig.pass_time(12)

    two_nodes = "0/2 nodes are available: 1 Insufficient cpu, 1 Too many pods."
    assert early == {"0/1 nodes are available: 1 Insufficient cpu.", two_nodes}
    assert {rig.pending_message("first"), rig.pending_message("second")} == {two_nodes}


def test_an_edit_of_one_pod_does_not_requeue_others() -> None:
    odd = FIT + 'input odd: string = pod.labels["odd"] default "no"\nfilter even reject odd == "yes"\n'
    rig = Rig(odd, node("a"), pod("odd", labels={"odd": "yes"}))
    rig.observe(pod("gated", gates=["x"]))
    rig.settle()

    rig.observe(pod("gated", gates=["x"], labels={"new": "label"}))
    rig.settle()

    assert rig.scheduler.counters.attempts == {("unschedulable", "test"): 1}


def rejected_by_default_constraints() -> Rig:
    constraints = '{ default_constraints = {"kubernetes.io/hostname" = 1} }'
    policy = f"policy test version 1\nfilter node_resources_fit\nfilter pod_topology_spread {constraints}\n"
    labels = {"app": "web"}
    rig = Rig(policy, node("a"), node("b", cpu="0"), placed(pod("w0", labels=labels), "a"))
    rig.handle(e.SelectorOwnerUpdated(service("web", app="web")))
    rig.observe(pod("w1", labels=labels, cpu="1"))
    rig.settle()
    assert rig.placements() == {}
    return rig


def test_a_pod_rejected_by_default_constraints_is_retried_when_its_service_is_deleted() -> None:
    rig = rejected_by_default_constraints()

    rig.handle(e.SelectorOwnerDeleted("Service", "default", "web"))
    rig.pass_time(30)

    assert rig.placements() == {"w1": "a"}


def test_services_of_another_namespace_retry_no_pod() -> None:
    rig = rejected_by_default_constraints()

    for number in range(50):
        rig.handle(e.SelectorOwnerUpdated(service("s", namespace="tenant", app=f"a{number}")))
        rig.pass_time(30)
    rig.handle(e.SelectorOwnerDeleted("Service", "tenant", "s"))
    rig.pass_time(30)

    assert rig.scheduler.counters.attempts == {("unschedulable", "test"): 1}


@pytest.mark.parametrize("digits", ["9" * 5_000, "0" * 5_000 + "4"])
def test_an_affinity_to_a_number_of_thousands_of_digits_is_decided(digits: str) -> None:
    """The API server does not check the values of preferred terms."""
    more = {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": [digits]}]}
    preferred = [{"weight": 1, "preference": more}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    nodes = node("a", labels={"cores": "4"}), node("b", labels={"cores": "5"})
    prefers = "policy test version 1\nfilter node_affinity\nscore node_affinity weight 1\n"
    rig = Rig(prefers, *nodes, pod("web", spec={"affinity": affinity}))

    rig.settle()

    assert rig.placements().keys() == {"web"}
    assert digits.startswith("9") or rig.placements() == {"web": "b"}


@pytest.mark.parametrize("strategy", ["least_allocated", "most_allocated"])
def test_a_pod_whose_containers_together_request_more_than_int64_stays_pending(strategy: str) -> None:
    """The API server takes the largest amount for each container."""
    amounts = {"requests": dict.fromkeys(("cpu", "memory", "example.com/gpu"), str(2**63 - 1))}
    containers = [{"name": name, "image": "x", "resources": amounts} for name in ("one", "two")]
    fit, balance = "score node_resources_fit", "score node_resources_balanced_allocation weight 1"
    policy = f"{FIT}{fit} weight 1 {{ strategy = {strategy} }}\n{balance}\n"
    huge = {"spec": {"containers": containers}}

    rig = Rig(policy, node("a"), node("b"), placed(pod("there", scheduler="x", **huge), "a"))
    rig.observe(pod("huge", **huge), pod("web"))
    rig.settle()

    assert rig.placements().keys() == {"web"}
    assert "Insufficient cpu" in rig.pending_message("huge")


@pytest.mark.parametrize("strategy", ["least_allocated", "most_allocated", "requested_to_capacity_ratio"])
def test_the_largest_request_is_scored_beside_pods_of_a_node(strategy: str) -> None:
    """The pod named an overcommitted node itself: what the node and the largest request need exceeds int64."""
    gpus = 'resources = {"example.com/gpu" = 1, "memory" = 1}'
    policy = f"{FIT}score node_resources_fit weight 1 {{ strategy = {strategy} {gpus} }}\n"
    rig = Rig(policy, *[node(name, resources={"example.com/gpu": "8"}) for name in ("a", "b")])
    rig.observe(placed(pod("there", scheduler="x", resources={"example.com/gpu": "100"}), "a"))

    rig.observe(pod("huge", memory="1Gi", resources={"example.com/gpu": str(2**63 - 1)}), pod("web"))
    rig.settle()

    assert rig.placements().keys() == {"web"}
    assert "Insufficient example.com/gpu" in rig.pending_message("huge")
