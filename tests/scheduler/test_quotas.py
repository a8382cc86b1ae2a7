"""Quotas: who is admitted, what waiting pods say, and what lets them run."""

from dataclasses import replace

import pytest

from policysched.daemon.quota_documents import quota_families, quotas_document
from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.lang.types.kinds import Type
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.quotas import quota_messages
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.schemas import findings
from tests.builders import finished, namespace, node, placed, pod
from tests.scheduler.rig import Rig

HEAD = """\
policy test version 1
filter node_resources_fit
preemption never
queue by pod.priority desc, pod.name
"""
BY_NAMESPACE = HEAD + 'quota team by pod.namespace { "a" { cpu = 2 } others unlimited }\n'
NESTED = (
    HEAD
    + """\
quota org by namespace.labels["org"] else "none" {
  "research" { cpu = 10 }
  "web" { cpu = 10 borrow 5 }
  others { cpu = 0 }
}
quota team by pod.namespace within org {
  "vision" in "research" { cpu = 6 borrow 2 }
  "speech" in "research" { cpu = 4 borrow any }
  others unlimited
}
"""
)
GANG = (
    BY_NAMESPACE
    + """\
gang by pod.labels["group"] { min = 3  timeout = 5m }
"""
)
MIXED_GANG = (
    HEAD
    + """\
quota team by pod.labels["team"] else "none" { "a" { cpu = 0 } "b" { cpu = 4 } others unlimited }
gang by pod.labels["group"] { min = 2  timeout = 5m }
"""
)
BIG = node("n", cpu="100", resources={"nvidia.com/gpu": "16"})


def pods(space: str, count: int, cpu: str = "1", **more: object) -> list[Pod]:
    return [pod(f"{space}{index}", namespace=space, cpu=cpu, **more) for index in range(count)]


def bound_count(rig: Rig, space: str) -> int:
    return sum(bind.namespace == space for bind in rig.of(c.Bind))


def research(rig_text: str = NESTED) -> Rig:
    return Rig(
        rig_text,
        BIG,
        namespace("vision", org="research"),
        namespace("speech", org="research"),
        namespace("shop", org="web"),
    )


def test_no_more_pods_run_than_the_quota_admits() -> None:
    rig = Rig(BY_NAMESPACE, BIG)

    rig.observe(*pods("a", 3), *pods("b", 3))
    rig.settle()

    assert (bound_count(rig, "a"), bound_count(rig, "b")) == (2, 3)


def test_a_waiting_pod_says_which_quota_how_much_by_whom_and_what_frees_it() -> None:
    rig = Rig(BY_NAMESPACE, BIG)

    rig.observe(*pods("a", 3))
    rig.settle()

    assert rig.pending_message("a2") == (
        'waits for quota team "a": 2 of 2 cpu used (no borrowing), 1 cpu requested; '
        "used by a/a1 (1), a/a0 (1); 1 cpu must become free"
    )
    report = [command for command in rig.of(c.ReportPending) if command.name == "a2"][-1]
    assert report.reason == "PolicyPending"
    status = rig.scheduler.pending_pods.status("a/a2")
    assert status is not None
    assert (status.state, status.requeue_events) == ("unschedulable", ("QuotaReleased",))


@pytest.mark.parametrize("how", ["finished", "deleted", "refused"])
def test_a_waiting_pod_runs_when_the_amount_is_released(how: str) -> None:
    rig = Rig(BY_NAMESPACE, BIG)
    first, *rest = pods("a", 3)
    rig.observe(first, *rest)
    rig.settle()

    match how:
        case "finished":
            rig.observe(finished(first, "n"))
        case "deleted":
            rig.handle(e.PodDeleted(first.uid))
        case "refused":
            rig.handle(e.BindRefused(first.uid, "no"))
    rig.settle()
    rig.pass_time(2)

    assert "a2" in rig.placements()


def test_a_release_that_is_too_small_attempts_nothing() -> None:
    rig = Rig(
        BY_NAMESPACE,
        BIG,
        placed(pod("x", namespace="a", cpu="500m"), "n"),
        placed(pod("y", namespace="a", cpu="1500m"), "n"),
    )
    rig.observe(pod("big", namespace="a", cpu="2"))
    rig.settle()

    rig.handle(e.PodDeleted(pod("x", namespace="a").uid))
    rig.settle()

    status = rig.scheduler.pending_pods.status("a/big")
    assert status is not None and status.attempts == 1
    rig.handle(e.PodDeleted(pod("y", namespace="a").uid))
    rig.pass_time(2)
    assert "big" in rig.placements()


def test_pods_of_other_schedulers_do_not_count_and_own_ones_always_do() -> None:
    rig = Rig(
        BY_NAMESPACE,
        BIG,
        placed(pod("foreign", namespace="a", cpu="2", scheduler="other"), "n"),
        placed(pod("bound-by-hand", namespace="a", cpu="1"), "n"),
    )

    rig.observe(*pods("a", 3))
    rig.settle()

    assert bound_count(rig, "a") == 1


def test_a_team_borrows_up_to_its_limit_what_its_organisation_leaves_idle() -> None:
    rig = research()

    rig.observe(*pods("vision", 12))
    rig.settle()
    assert bound_count(rig, "vision") == 8
    assert "8 of 8 cpu used (6 of its own, at most 2 borrowed)" in (rig.pending_message("vision8") or "")

    rig.observe(*pods("speech", 12))
    rig.settle()
    assert bound_count(rig, "speech") == 2
    assert (rig.pending_message("speech2") or "").startswith(
        'waits for quota org "research": 10 of 10 cpu used (no borrowing), 1 cpu requested; '
        'used by "vision" (8, 2 borrowed), "speech" (2); 1 cpu must become free'
    )


def test_an_organisation_borrows_only_what_the_others_leave_idle() -> None:
    rig = research()
    rig.observe(*pods("vision", 8))
    rig.settle()

    rig.observe(*pods("shop", 20))
    rig.settle()

    assert bound_count(rig, "shop") == 12  # 10 + what research leaves of 20
    assert (rig.pending_message("shop9") or "").startswith(
        'waits for quota org: 20 of 20 cpu used (all rows together), 1 cpu requested; used by "web" (12, 2 borrowed), "research" (8)'
    )


def test_an_entity_without_a_row_has_the_limits_of_others() -> None:
    rig = research()

    rig.observe(pod("stray", namespace="stray", cpu="1"), pod("none", namespace="stray"))
    rig.settle()

    assert list(rig.placements()) == ["none"]  # it asks no cpu
    assert 'quota org "none": 0 of 0 cpu used' in (rig.pending_message("stray") or "")


def test_a_changed_namespace_label_moves_its_pods() -> None:
    rig = research()
    rig.observe(*pods("vision", 6))
    rig.settle()
    rig.observe(*pods("speech", 10))
    rig.settle()
    assert bound_count(rig, "speech") == 4

    rig.observe(namespace("vision", org="web"))
    rig.pass_time(12)

    assert bound_count(rig, "speech") == 10


def test_extended_resources_own_resources_and_the_number_of_pods_count() -> None:
    rig = Rig(
        HEAD
        + """\
resource licences { capacity = 9, request = 2 }
quota team by pod.namespace {
  "gpu" { "nvidia.com/gpu" = 3 }
  "lic" { licences = 5 }
  "few" { pods = 3, memory = 1Gi }
  others { cpu = 1 }
}
""",
        BIG,
    )

    rig.observe(
        *pods("gpu", 5, resources={"nvidia.com/gpu": "1"}), *pods("lic", 5), *pods("few", 5), *pods("new", 2)
    )
    rig.settle()

    assert {space: bound_count(rig, space) for space in ("gpu", "lic", "few", "new")} == {
        "gpu": 3,
        "lic": 2,
        "few": 3,
        "new": 1,
    }


def test_a_gang_is_admitted_whole() -> None:
    rig = Rig(GANG.replace("cpu = 2", "cpu = 4"), BIG)

    rig.observe(pod("z", namespace="a", cpu="2"))
    rig.settle()
    rig.observe(*pods("a", 3, labels={"group": "g"}))
    rig.settle()

    assert bound_count(rig, "a") == 1
    assert (rig.pending_message("a0") or "").startswith(
        'gang a/g: quotas admit 2 of 3 members: waits for quota team "a": 4 of 4 cpu used'
    )
    rig.handle(e.PodDeleted(pod("z", namespace="a").uid))
    rig.pass_time(2)
    assert bound_count(rig, "a") == 4


def test_a_gang_whose_members_count_towards_several_entities_waits_for_each_of_them() -> None:
    """Seed 2000332: it was woken by the entity of the first member that was refused, and by no other."""
    rig = Rig(MIXED_GANG, BIG, placed(pod("b-runs", labels={"team": "b"}, cpu="4"), "n"))
    rig.observe(
        *[pod(f"a{index}", cpu="1", labels={"team": "a", "group": "g"}) for index in range(2)],
        *[pod(f"b{index}", cpu="1", labels={"team": "b", "group": "g"}) for index in range(2)],
    )
    rig.pass_time(30)
    before = rig.placements()

    rig.handle(e.PodDeleted(pod("b-runs").uid))
    rig.pass_time(30)

    assert (before, set(rig.placements())) == ({}, {"b0", "b1"})


def test_a_smaller_quota_evicts_no_pod_and_admits_none() -> None:
    rig = Rig(BY_NAMESPACE, BIG)
    rig.observe(*pods("a", 2))
    rig.settle()
    rig.confirm_binds()

    rig.apply_policies(BY_NAMESPACE.replace("cpu = 2", "cpu = 1"))
    rig.settle()
    rig.observe(pod("late", namespace="a", cpu="100m"))
    rig.settle()

    assert not rig.of(c.Evict)
    assert "late" not in rig.placements()
    assert 'quota team "a": 2 of 1 cpu used' in (rig.pending_message("late") or "")
    rig.apply_policies(BY_NAMESPACE.replace("cpu = 2", "cpu = 3"))
    rig.pass_time(5)
    assert "late" in rig.placements()


def test_a_policy_that_drops_its_quota_stops_counting() -> None:
    rig = Rig(BY_NAMESPACE, BIG)
    rig.observe(*pods("a", 3))
    rig.settle()

    rig.apply_policies(HEAD)
    rig.pass_time(5)

    assert bound_count(rig, "a") == 3


def test_waiting_pods_of_one_kind_share_one_attempt() -> None:
    rig = Rig(BY_NAMESPACE, BIG)

    rig.observe(*pods("a", 50))
    rig.settle()

    attempts = sum(decision.message != "" for decision in rig.scheduler.decisions)
    assert attempts == 1


def test_a_resized_pod_counts_with_its_new_request() -> None:
    rig = Rig(BY_NAMESPACE, BIG)
    first = pod("x", namespace="a", cpu="1")
    rig.observe(placed(first, "n"))

    rig.observe(placed(replace(first, requests={"cpu": 2000}), "n"), pod("y", namespace="a", cpu="1"))
    rig.settle()

    assert "y" not in rig.placements()


FAIR = """\
policy test version 1
filter node_resources_fit
preemption never
quota org by namespace.labels["org"] else "none" { others { cpu = 100 } }
quota team by pod.labels["team"] else "none" within org {
  "small" in "x" { cpu = 2 borrow any }
  "large" in "x" { cpu = 8, memory = 1Gi borrow any }
  others unlimited
}
queue by pod.quota_share.team, pod.name
"""


def test_teams_take_turns_by_the_dominant_share_of_their_amounts() -> None:
    rig = Rig(FAIR, BIG, namespace("n", org="x"))

    rig.observe(
        *[pod(f"large{index}", namespace="n", cpu="1", labels={"team": "large"}) for index in range(5)],
        *[pod(f"small{index}", namespace="n", cpu="1", labels={"team": "small"}) for index in range(2)],
    )
    rig.settle()

    # Shares after each placement: large 1/8, small 1/2, large 2/8 ... 4/8, large 5/8, small 2/2.
    assert rig.bind_order() == ["large0", "small0", "large1", "large2", "large3", "large4", "small1"]


def test_the_resource_of_which_a_team_uses_most_decides() -> None:
    rig = Rig(FAIR, BIG, namespace("n", org="x"))

    rig.observe(pod("large0", namespace="n", memory="900Mi", labels={"team": "large"}))
    rig.settle()
    rig.observe(
        pod("large1", namespace="n", cpu="1", labels={"team": "large"}),
        pod("small0", namespace="n", cpu="1", labels={"team": "small"}),
    )
    rig.settle()

    assert rig.bind_order() == ["large0", "small0", "large1"]


def reported(rig: Rig) -> dict[str, str]:
    return {event.reason: event.message for event in rig.of(c.ReportPolicyEvent)}


def test_a_quota_that_cannot_hold_what_it_says_is_reported_once() -> None:
    text = (
        HEAD
        + 'quota team by pod.namespace { "a" { "example.com/card" = 2, cpu = 1 } "b" { cpu = 1 } others unlimited }\n'
    )
    rig = Rig(text, BIG, placed(pod("x", namespace="a", cpu="3"), "n"))

    rig.pass_time(59)
    assert reported(rig) == {}
    rig.pass_time(3000)

    assert reported(rig) == {
        "QuotaUnusable": "policy `test`: no node has a resource that a quota limits; pods that request it stay pending: "
        "example.com/card",
        "QuotaUnused": 'policy `test`: no pod counts towards these rows; their amounts can be borrowed: quota team "b"',
        "QuotaExceeded": "policy `test`: use is above the limit; no pod is evicted, and no further pod is admitted until use is below the limit: "
        'quota team "a" uses 3 cpu of 1 cpu',
    }
    assert len(rig.of(c.ReportPolicyEvent)) == 3


def test_pending_pods_are_charged_in_slices_for_rows_without_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 pending pods took 37 ms in one piece."""
    charged = 0
    original = QuotaAccounts.charge_of

    def charge_of(self: QuotaAccounts, of: Pod) -> QuotaCharge:
        nonlocal charged
        charged += 1
        return original(self, of)

    rows = 'quota team by pod.namespace { "a" { cpu = 1 } "b" { cpu = 1 } others unlimited }\n'
    rig = Rig(HEAD + rows, node("n", cpu="1"), *pods("c", 500, cpu="2"), *pods("b", 1, cpu="1"))
    rig.settle()
    monkeypatch.setattr(QuotaAccounts, "charge_of", charge_of)
    rig.now_ns += 61 * SECOND_NS
    slices = []
    while rig.scheduler.ready(rig.now_ns):
        charged = 0
        rig.commands += rig.scheduler.decide(rig.now_ns)
        slices.append(charged)

    assert sum(slices) >= 500
    assert max(slices) <= 200
    assert reported(rig)["QuotaUnused"].endswith('quota team "a"')


def test_the_page_of_quotas_has_use_amount_and_borrowing_of_each_entity() -> None:
    rig = research()
    rig.observe(*pods("vision", 8), *pods("stray", 1, cpu="0"))
    rig.settle()

    page = quotas_document(rig.scheduler.quotas(), None)

    assert findings("quotas", page) == []
    rows = {(entity["quota"], *entity["entity"]): entity for entity in page["quotas"]}
    assert rows["team", "research", "vision"]["resources"] == {
        "cpu": {"used": "8", "amount": "6", "borrowed": "2", "ceiling": "8"}
    }
    assert rows["team", "research", "vision"]["dominant_share"] == pytest.approx(8 / 6, abs=1e-5)
    assert rows["team", "research", "speech"]["pods"] == 0
    assert rows["team", "none", "stray"]["listed"] is False
    used = next(family for family in quota_families(rig.scheduler.quotas()) if family.name.endswith("_used"))
    assert len(used.samples) == 4


def test_a_waiting_pod_names_no_pods_of_other_namespaces() -> None:
    rig = Rig(
        HEAD + 'quota team by pod.labels["team"] else "none" { "x" { cpu = 3 } others unlimited }\n', BIG
    )
    rig.observe(*pods("a", 1, labels={"team": "x"}), *pods("b", 2, labels={"team": "x"}))
    rig.settle()
    assert bound_count(rig, "a") + bound_count(rig, "b") == 3

    rig.observe(*[pod(f"p-{space}", namespace=space, cpu="1", labels={"team": "x"}) for space in "abc"])
    rig.settle()

    used = [str(rig.pending_message(f"p-{space}")).split("used by ")[1].split(";")[0] for space in "abc"]
    assert used == ["a/a0 (1) and 2 more", "b/b1 (1), b/b0 (1) and 1 more", "3 pods of other namespaces"]


def test_the_message_of_a_blocked_pod_costs_no_text_for_each_pod_of_its_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []
    format_amount = quota_messages.format_amount
    rig = Rig(HEAD + 'quota team by pod.namespace { "a" { cpu = 100 } others unlimited }\n', BIG)
    rig.observe(*pods("a", 100))
    rig.settle()
    assert bound_count(rig, "a") == 100

    def counted(amount: int, type_: Type) -> str:
        texts.append(text := format_amount(amount, type_))
        return text

    monkeypatch.setattr(quota_messages, "format_amount", counted)
    rig.observe(pod("more", namespace="a", cpu="1"))
    rig.settle()

    message = rig.pending_message("more")
    assert message is not None and "a/a99 (1), a/a98 (1), a/a97 (1) and 97 more" in message
    assert len(texts) < 20
