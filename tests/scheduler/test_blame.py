"""Who is left out for an exception in a timer, a new text, samples or after a pod was assumed: the one that it is about."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import NotCounted, Plan
from policysched.model.identifiers import NodeName
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.blame import ObjectId, RaisedFor, raises_for
from policysched.scheduler.canaries import ActiveCanary
from policysched.scheduler.gangs.bind_failures import GangBindFailures
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.kubelet_rejections import KubeletRejections
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.pending_summary import PendingSummary
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.pod_group_reports import PodGroupReports
from policysched.scheduler.policies.policy_samples import PolicySamples
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.policy_reload import PolicyReload
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.quotas.quota_account import QuotaAccount
from policysched.scheduler.timers import ReportTimer
from tests.builders import namespace, node, placed, pod
from tests.scheduler.rig import FIT, GANG, Rig
from tests.scheduler.test_canaries import ALL, owned
from tests.scheduler.test_fair_queue import FAIR
from tests.scheduler.test_kubelet_rejections import bounce, job
from tests.scheduler.test_quota_reload import ORG
from tests.scheduler.test_samples import STRICT, samples
from tests.scheduler.test_team_policies import TEAM, offer, team_rig

Script = Callable[[Rig], object]


@contextmanager
def planted(kind: type, method: str, about: str = "") -> Iterator[None]:
    """The method raises where this is in one of its arguments."""
    original = getattr(kind, method)

    def fail(*arguments: Any, **more: Any) -> Any:
        if re.search(about, f"{arguments[1:]} {more}"):
            raise OverflowError("planted")
        return original(*arguments, **more)

    with patch.object(kind, method, fail):
        yield


def blamed(rig: Rig, script: Script, kind: type, method: str, about: str = "") -> tuple[str, str]:
    """The kind and the namespace of whom the exception names."""
    with planted(kind, method, about), pytest.raises(RaisedFor) as raised:
        script(rig)
    assert isinstance(raised.value.__cause__, OverflowError)
    return raised.value.object_id[:2]


def tenants(name: str, **more: Any) -> Any:
    return pod(name, namespace="tenant", **more)


def gang_rig(more: str = "") -> Rig:
    members = [tenants(f"g{n}", cpu="2", labels={"group": "g", "least": "2"}) for n in range(2)]
    return Rig(GANG.format(more=more), node("a", cpu="3"), *members)


def backing_off() -> Rig:
    rig = Rig(FIT, node("a"), tenants("bad"))
    rig.settle()
    rig.handle(e.BindRefused(tenants("bad").uid, "no"))
    return rig


def test_the_timeout_of_a_gang_names_a_member() -> None:
    rig = gang_rig("\n timeout = 5m\n on_timeout = fail")

    assert blamed(rig, lambda rig: rig.pass_time(400), PodEnqueuer, "gang_timed_out") == ("Pod", "tenant")


def test_the_end_of_a_backoff_names_its_pod() -> None:
    rig = backing_off()

    assert blamed(rig, lambda rig: rig.pass_time(60), SchedulingQueue, "_activate") == ("Pod", "tenant")


def test_an_order_that_changes_with_time_names_its_pod() -> None:
    rig = Rig(f"{FIT}queue by pod.waited > 5s desc, pod.priority\n", tenants("bad"))

    assert blamed(rig, lambda rig: rig.pass_time(60), PodEnqueuer, "_rekey_expired") == ("Pod", "tenant")


def test_a_gang_whose_bind_was_refused_names_a_member() -> None:
    rig = gang_rig("")
    rig.observe(node("b", cpu="3"))
    rig.settle()
    bind = rig.in_flight_binds()[0]
    rig.handle(e.BindRefused(bind.uid, "no"))

    assert blamed(rig, Rig.settle, GangBindFailures, "_withdraw_unbound") == ("Pod", "tenant")


def test_capacity_that_is_held_back_no_longer_counts_for_the_namespace_of_its_cause() -> None:
    rig = Rig(FIT, node("a"), job(1, namespace="tenant"))
    bounce(rig, job(1, namespace="tenant"))
    script: Script = lambda rig: rig.pass_time(3600)  # noqa: E731

    assert blamed(rig, script, KubeletRejections, "_apply") == ("change", "tenant")


class Report:
    """Is always due. `tried_ns`: when it was tried."""

    def __init__(self) -> None:
        self.tried_ns: list[int] = []
        self.raises = True

    def next_time_ns(self) -> int | None:
        return 0

    def advance(self, now_ns: int) -> None:
        self.tried_ns.append(now_ns)
        if self.raises:
            raise OverflowError("planted")


def test_a_report_that_raises_again_and_again_is_tried_less_often() -> None:
    report = Report()
    timer = ReportTimer(report, InternalErrors(Rig(FIT).scheduler.core))
    for now_ns in range(0, 600 * SECOND_NS, SECOND_NS):
        timer.advance(now_ns)
    seconds = [at_ns // SECOND_NS for at_ns in report.tried_ns]
    assert seconds == [0, 1, 3, 7, 15, 31, 63, *range(127, 600, 64)]

    report.raises, now_ns = False, timer.next_time_ns() or 0
    timer.advance(now_ns)
    report.raises = True
    timer.advance(now_ns)
    assert timer.next_time_ns() == now_ns + SECOND_NS, "after it has succeeded, soon again"


@pytest.mark.parametrize("part", [PendingSummary, PodGroupReports])
def test_what_only_reports_keeps_nobody(part: type) -> None:
    rig = Rig(FIT, node("a", cpu="1"), tenants("large", cpu="2"))
    rig.settle()
    if part is PodGroupReports:
        rig.scheduler.core.groups_due_ns[object()] = 0  # type: ignore[index]
    with planted(part, "advance"), patch.object(Rig, "check_invariants"):
        rig.pass_time(400)
        rig.observe(pod("good"))
        rig.settle()

    assert rig.bind_order() == ["good"]
    assert "report" in str([line.message for line in rig.of(c.Log) if line.level == "error"])
    assert rig.scheduler.check() != [], "a simulation would not pass over it"


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (ClusterCache, "assume"),
        (PolicySamples, "update_assumed_load"),
        (SchedulingQueue, "mark_placed"),
    ],
)
def test_after_a_pod_was_assumed_it_is_named_and_not_bound(kind: type, method: str) -> None:
    rig = Rig(FIT, node("a"), tenants("bad"))
    about = "bad|tenant" if kind is not PolicySamples else "None"

    assert blamed(rig, Rig.settle, kind, method, about) == ("Pod", "tenant")
    assert rig.of(c.Bind) == []


def test_whoever_looks_at_the_queue_names_the_pod_whose_place_cannot_be_computed() -> None:
    rig = Rig(FAIR, node("a"))
    script: Script = lambda rig: (rig.observe(tenants("bad"), pod("good")), rig.settle())  # noqa: E731

    assert blamed(rig, script, Plan, "order_with_shares", "name='bad'") == ("Pod", "tenant")


def test_an_event_of_another_object_that_opens_a_parked_pod_names_the_pod() -> None:
    rig = Rig(FIT, tenants("bad"))
    rig.settle()
    script: Script = lambda rig: rig.observe(node("a"))  # noqa: E731

    assert blamed(rig, script, SchedulingQueue, "enqueue") == ("Pod", "tenant")


def test_a_change_of_a_namespace_names_the_pod_that_it_reaches() -> None:
    rig = Rig(FIT, namespace("tenant"), tenants("bad"))
    script: Script = lambda rig: rig.observe(namespace("tenant", labels={"a": "b"}))  # noqa: E731

    assert blamed(rig, script, PolicyMembership, "apply_change") == ("Pod", "tenant")


def test_a_deletion_counts_for_the_namespace_of_the_pod() -> None:
    """After three of them the namespace is left out: the cluster was read again for each, without a limit."""
    rig = Rig(FIT, node("a"), tenants("bad"))
    script: Script = lambda rig: rig.handle(e.PodDeleted(tenants("bad").uid))  # noqa: E731

    assert blamed(rig, script, PolicyMembership, "remove") == ("Pod", "tenant")


def test_samples_name_their_metric() -> None:
    rig = Rig(STRICT, node("a"))
    script: Script = lambda rig: rig.handle(samples(rig, a=0.5))  # noqa: E731

    assert blamed(rig, script, PolicySamples, "put") == ("metric", "")


@pytest.mark.parametrize("has_decided", [False, True])
def test_a_text_that_takes_effect_is_named_with_its_team(has_decided: bool) -> None:
    rig = team_rig(node("a"), pod("good"))
    if has_decided:
        rig.settle()

    def script(rig: Rig) -> None:
        offer(rig, f"{TEAM}filter node_unschedulable\n")
        rig.settle()

    assert blamed(rig, script, PolicyReload, "_activate", "ml-a") == ("policy text", "ml")


@pytest.mark.parametrize(
    ("policy", "kind", "method", "bad"),
    [
        (ALL, ActiveCanary, "has", owned("bad")),
        (FIT + ORG, QuotaAccount, "add", placed(pod("bad", labels={"org": "x"}), "a")),
        (GANG.format(more=""), PolicyMembership, "count_in_gang", placed(pod("bad"), "a")),
    ],
)
def test_a_text_of_which_a_pod_cannot_be_computed_names_the_pod(
    policy: str, kind: type, method: str, bad: Any
) -> None:
    rig = Rig(FIT, node("a", cpu="64"), bad, pod("good"))
    rig.settle()

    def script(rig: Rig) -> None:
        rig.apply_policies(policy)
        rig.settle()

    assert blamed(rig, script, kind, method, "name='bad'") == ("Pod", "default")


def test_the_innermost_name_counts() -> None:
    inner, outer = ObjectId("Pod", "tenant", "u"), ObjectId("Pod", "other", "v")

    with pytest.raises(RaisedFor) as raised, raises_for(outer), raises_for(inner):
        raise OverflowError
    assert raised.value.object_id == inner
    with pytest.raises(NotCounted), raises_for(outer):
        raise NotCounted(NodeName("a"), None)
