"""Policies that teams own, in the scheduler: whom they serve, whom they evict, and who is told."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.program import Program, TeamSource, suspended_program
from policysched.model.pod_status import ContainerEvent
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.policies.saved_texts import with_saved_team
from policysched.scheduler.policy_permissions import AllowedPolicy, NamespaceSelection, PolicyPermissions
from tests.builders import namespace, node, placed, pod
from tests.scheduler.rig import FIT, START_NS, Rig, bundle

OWNED = PolicyPermissions((AllowedPolicy("*"), AllowedPolicy("ml-*", owner="ml")))
TEAM = "policy ml-a version 1\nfilter node_resources_fit\npreemption { victims = any }\n"
BROKEN = "policy ml-a version 1\nfilter x require y\n"


def team_rig(*objects: object, last_good: str | None = None) -> Rig:
    rig = Rig(None, namespace("default"), namespace("ml"), *objects, permissions=OWNED, synced=False)
    offer(rig, TEAM if last_good is None else None, last_good=last_good)
    rig.handle(e.Synced())
    return rig


def offer(
    rig: Rig, text: str | None, *, last_good: str | None = None, unread: bool = False
) -> list[c.Command]:
    """What the feed delivers: the operator's policy and the team's text."""
    texts = {"main.policy": FIT} if text is None else {"main.policy": FIT, "ml/a.policy": text}
    rig._version += 1
    return rig.handle(
        e.PoliciesUpdated(
            PolicyBundle(bundle(texts).sources),
            str(rig._version),
            None if last_good is None else bundle({"ml-a.policy": last_good}),
            unread_teams=frozenset({"ml"} if unread else ()),
        )
    )


def events_to(commands: list[c.Command]) -> list[tuple[str, str | None]]:
    return [(event.reason, event.owner) for event in commands if isinstance(event, c.ReportPolicyEvent)]


@pytest.mark.parametrize("last_good", [None, TEAM])
def test_a_team_s_policy_serves_its_namespace_alone_also_from_the_last_known_good_text(
    last_good: str | None,
) -> None:
    rig = team_rig(
        node("a"),
        pod("own", scheduler="ml-a", namespace="ml"),
        pod("foreign", scheduler="ml-a", namespace="default"),
        last_good=last_good,
    )

    rig.settle()

    assert rig.placements() == {"own": "a"}
    (message,) = {report.message for report in rig.of(c.ReportPending) if report.name == "foreign"}
    assert message == (
        "policy ml-a does not serve namespace default: the settings (policy_permissions.policies_allowed) say that "
        "namespace ml owns it"
    )


QUOTA = """\
policy ml-a version 1
filter node_resources_fit
preemption never
quota kind by pod.labels["kind"] else "none" { "train" { cpu = 2 } others unlimited }
"""
STATE = """\
policy ml-a version 1
filter node_resources_fit
preemption never
state trust: float {
  key = pod.labels["kind"] else pod.name
  on = terminated
  value = if container.terminated and container.exit_code != 0 then 0.0 else 1.0
  keep = 50%
  start = 1.0
  most = 100
}
filter trusted require trust > 0.6
"""
CANARY = """\
policy ml-a version 1
filter node_resources_fit
preemption never
canary strict 100% by pod.owner.name guard pending < 20% for 30s else rollback {
  filter none reject node.pods >= 0 says "the canary takes no node"
}
"""


def with_foreign_pods(text: str) -> Rig:
    """Pods that another tenant has put on the node itself; they name the team's policy. The text is edited once more."""
    ended = ContainerEvent("c", "run-1", True, START_NS, 1, "Error", 10**9)
    foreign = [
        pod(
            f"foreign-{number}",
            cpu="1",
            scheduler="ml-a",
            namespace="default",
            labels={"kind": "train"},
            owner=("apps/v1", "ReplicaSet", "web"),
        )
        for number in range(9)
    ]
    rig = team_rig(node("a", cpu="64"))
    offer(rig, text)
    rig.observe(*[replace(placed(each, "a"), container_events=(ended,)) for each in foreign])
    offer(rig, text.replace("preemption", "filter node_unschedulable\npreemption"))
    rig.settle()
    rig.observe(
        pod(
            "own",
            cpu="2",
            scheduler="ml-a",
            namespace="ml",
            labels={"kind": "train"},
            owner=("apps/v1", "ReplicaSet", "own"),
        )
    )
    rig.settle()
    return rig


@pytest.mark.parametrize("text", [QUOTA, STATE])
def test_pods_of_other_namespaces_count_in_no_quota_and_no_state_of_a_team(text: str) -> None:
    rig = with_foreign_pods(text)

    assert rig.placements() == {"own": "a"}
    rig.check_invariants()


def test_pods_of_other_namespaces_do_not_keep_a_canary_of_a_team_from_its_rollback() -> None:
    rig = with_foreign_pods(CANARY)
    before = rig.placements()

    rig.pass_time(40)

    assert before == {}
    assert rig.placements() == {"own": "a"}


def test_a_policy_of_the_operator_counts_pods_of_the_namespaces_that_it_serves() -> None:
    served = NamespaceSelection(("ml-*",), {"tier": "gold"})
    permissions = PolicyPermissions((AllowedPolicy("batch", served), AllowedPolicy("batch", owner=None)))
    limited = PolicyPermissions((AllowedPolicy("batch", served),))

    def counts(permissions: PolicyPermissions, name: str) -> bool:
        return permissions.counts("batch", name)

    assert [counts(limited, name) for name in ("ml-a", "web")] == [True, False]
    assert counts(permissions, "web")
    assert counts(PolicyPermissions(), "web")


def evicted(scheduler: str, victim_namespace: str) -> bool:
    """Whether a pod of the policy in namespace ml evicts a pod of that namespace."""
    low = placed(pod("low", cpu=900, priority=0, namespace=victim_namespace), "a")
    rig = team_rig(node("a", cpu=1000), low)
    rig.observe(pod("high", cpu=900, priority=9, scheduler=scheduler, namespace="ml"))
    rig.settle()
    return bool(rig.of(c.Evict))


def test_a_team_s_policy_evicts_pods_of_its_own_namespace_alone() -> None:
    assert evicted("ml-a", "ml")
    assert not evicted("ml-a", "default")


@pytest.mark.parametrize("value", ["a", "b"])
def test_the_clause_about_victims_reads_no_pod_of_another_namespace(value: str) -> None:
    """The message counts the pods that the clause selects and the settings protect."""
    foreign = placed(pod("low", cpu=900, namespace="default", annotations={"secret": value}), "a")
    rig = team_rig(node("a", cpu=1000), foreign)
    offer(rig, TEAM.replace("any", '(victim.annotations["secret"] else "") == "a"'))
    rig.observe(pod("high", cpu=900, priority=9, scheduler="ml-a", namespace="ml"))

    rig.settle()

    assert rig.pending_message("high") == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims "
        "found for incoming pod."
    )


def test_an_owner_whose_victims_are_not_limited_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyPermissions, "owner", lambda *_: None)

    with pytest.raises(AssertionError):
        test_a_team_s_policy_evicts_pods_of_its_own_namespace_alone()


def test_an_owner_who_serves_every_namespace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PolicyPermissions, "namespace_rejection", lambda *_: None)

    with pytest.raises((AssertionError, ValueError)):
        test_a_team_s_policy_serves_its_namespace_alone_also_from_the_last_known_good_text(None)


def test_events_about_a_team_s_text_go_to_the_team_and_others_to_the_operator() -> None:
    rig = team_rig()

    rejected = offer(rig, BROKEN)
    recovered = offer(rig, TEAM)
    missing = offer(rig, None)

    assert events_to(rejected) == [("PolicyRejected", "ml")]
    assert events_to(recovered) == [("PolicyRecovered", "ml")]
    assert events_to(missing) == [("PolicyMissing", "ml")]
    assert "test" in rig.scheduler.programs() and "ml-a" in rig.scheduler.programs()


def fall_back(rig: Rig, text: str | None, program: Program) -> list[c.Command]:
    """What the feed delivers where the policy has no valid text."""
    texts = {"main.policy": FIT} if text is None else {"main.policy": FIT, "ml/a.policy": text}
    rig._version += 1
    fallbacks = {program.name: program}
    return rig.handle(e.PoliciesUpdated(bundle(texts), str(rig._version), fallbacks=fallbacks))


def phase(rig: Rig) -> tuple[str, str | None]:
    (status,) = [status for status in rig.scheduler.policies() if status.name == "ml-a"]
    return status.phase, status.sha256


@pytest.mark.parametrize(("text", "later"), [(BROKEN, "last_known_good"), (None, "missing")])
def test_a_suspended_policy_places_no_pods_stays_saved_and_comes_back(text: str | None, later: str) -> None:
    rig = team_rig(node("a"))
    good = bundle({"a.policy": TEAM}).sources["a.policy"].program
    assert good is not None
    rig.settle()

    messages = fall_back(rig, text, suspended_program(good, "policy ml-a is suspended: why")) + rig.settle()
    rig.observe(pod("own", scheduler="ml-a", namespace="ml"))
    rig.settle()
    suspended = rig.placements(), rig.pending_message("own"), phase(rig), list(rig.scheduler.programs())
    fall_back(rig, text, good)
    rig.settle()

    assert suspended == ({}, "policy ml-a is suspended: why", ("suspended", None), ["test"])
    assert ("PolicySuspended", "ml") in events_to(messages) and ("PolicyMissing", "ml") not in events_to(
        messages
    )
    assert rig.placements() == {"own": "a"} and phase(rig) == (later, good.sha256)
    assert list(rig.of(c.SavePolicyTexts)[-1].texts) == ["ml-a", "test"], "it stays saved"


def test_a_text_in_preparation_does_not_survive_a_base_that_rejects_it() -> None:
    rig = team_rig(node("a"), pod("own", scheduler="ml-a", namespace="ml"))
    rig.settle()
    edited = TEAM + "filter node_unschedulable\n"
    good = bundle({"a.policy": TEAM}).sources["a.policy"].program
    assert good is not None

    offer(rig, edited)
    fall_back(rig, BROKEN, suspended_program(good, "policy ml-a is suspended: why"))
    rig.settle()

    assert phase(rig) == ("suspended", None)


def test_a_changed_base_that_does_not_change_the_program_is_saved() -> None:
    rig = team_rig(node("a"))
    program = bundle({"a.policy": TEAM}).sources["a.policy"].program
    assert program is not None
    saved = []

    for base in ("old", "new"):
        fall_back(rig, BROKEN, replace(program, team=TeamSource(TEAM, "", base)))
        rig.settle()
        saved.append(rig.of(c.SavePolicyTexts)[-1].texts["ml-a"])

    restored = with_saved_team(bundle({"a.policy": saved[1]}).sources["a.policy"], saved[1]).program
    assert saved[0] != saved[1] and restored is not None and restored.team == TeamSource(TEAM, "", "new")
    assert rig.of(c.Evict) == [] and restored.sha256 == program.sha256


@pytest.mark.parametrize("namespace_saved", ["ml", ""], ids=["", "an earlier version"])
@pytest.mark.parametrize(
    "permissions",
    [PolicyPermissions(), PolicyPermissions((AllowedPolicy("*"),))],
    ids=["no settings", "no entry of the team"],
)
def test_a_saved_text_of_a_team_whose_name_the_operator_took_away_does_not_run(
    permissions: PolicyPermissions, namespace_saved: str
) -> None:
    source = bundle({"ml-a.policy": TEAM}).sources["ml-a.policy"]
    assert source.program is not None
    team = TeamSource(TEAM, "", "of the base", namespace_saved)
    saved = PolicyBundle({source.key: replace(source, program=replace(source.program, team=team))})
    rig = Rig(None, node("a", cpu="2"), permissions=permissions, synced=False)

    main = FIT.replace("policy test", "policy main")
    rig.handle(e.PoliciesUpdated(bundle({"main.policy": main}), "1", saved))
    rig.handle(e.Synced())
    rig.observe(placed(pod("victim", cpu="2", scheduler="main", priority=0), "a"))
    rig.observe(pod("foreign", cpu="2", scheduler="ml-a", namespace="other", priority=10))
    rig.settle()

    assert list(rig.scheduler.programs()) == ["main"] and rig.of(c.Evict) == []
    (log,) = [log for log in rig.of(c.Log) if log.level == "warning"]
    assert log.message == "ignoring a last known good text that this version or these settings reject"
    assert "PS912" in log.fields["reason"]


def test_a_restart_does_not_report_a_team_whose_texts_are_not_read_yet() -> None:
    rig = Rig(None, permissions=OWNED)

    before = offer(rig, None, last_good=TEAM, unread=True)
    after = offer(rig, None)

    assert events_to(before) == [] and events_to(after) == [("PolicyMissing", "ml")]


def late_rig() -> Rig:
    """The operator's policy runs, and the saved texts of the team are not checked yet."""
    rig = Rig(None, namespace("ml"), node("a"), permissions=OWNED)
    rig.handle(e.PoliciesUpdated(bundle({"main.policy": FIT}), "0", unchecked_texts={"ml-a": TEAM}))
    rig.settle()
    assert set(rig.of(c.SavePolicyTexts)[-1].texts) == {"test", "ml-a"}, "a save keeps what is not checked"
    assert rig.scheduler.programs().keys() == {"test"} and rig.scheduler.startup_error is None
    return rig


def deliver_late(rig: Rig, texts: Mapping[str, str] | None = None) -> None:
    """The saved text of the team passed the check. The version is the same."""
    present = bundle({"main.policy": FIT, **(texts or {})})
    rig.handle(
        e.PoliciesUpdated(
            present, rig.scheduler.core.policies.resource_version or "", bundle({"ml-a.policy": TEAM})
        )
    )
    rig.settle()


def test_a_saved_text_of_a_team_that_is_checked_later_runs() -> None:
    rig = late_rig()
    rig.observe(pod("own", scheduler="ml-a", namespace="ml"))
    rig.settle()
    assert rig.placements() == {}

    deliver_late(rig)

    assert rig.placements() == {"own": "a"}
    assert set(rig.of(c.SavePolicyTexts)[-1].texts) == {"test", "ml-a"}


@pytest.mark.parametrize("checked", [TEAM, BROKEN])
def test_a_scheduler_with_nothing_to_run_ends_only_after_the_last_saved_text_is_checked(checked: str) -> None:
    """The operator's texts can be valid and rejected by the settings, so they cannot be waited for before."""
    rig = Rig(None, permissions=OWNED)
    broken = bundle({"main.policy": BROKEN.replace("ml-a", "test")})
    rig.handle(e.PoliciesUpdated(broken, "1", unchecked_texts={"ml-a": checked}))
    rig.settle()
    assert rig.scheduler.startup_error is None

    rig.handle(e.PoliciesUpdated(broken, "1", bundle({"ml-a.policy": checked})))
    rig.settle()

    assert rig.scheduler.programs().keys() == ({"ml-a"} if checked == TEAM else set())
    assert (rig.scheduler.startup_error is None) == (checked == TEAM)


def test_a_saved_text_that_is_checked_later_does_not_replace_a_newer_one() -> None:
    rig = late_rig()
    newer = TEAM.replace("version 1", "version 1\nfilter node_name")
    offer(rig, newer)
    rig.settle()
    offer(rig, BROKEN)

    deliver_late(rig, {"ml/a.policy": BROKEN})

    assert "filter node_name" in rig.scheduler.programs()["ml-a"].text
    assert "filter node_name" in rig.of(c.SavePolicyTexts)[-1].texts["ml-a"]


def test_a_saved_text_that_is_checked_after_its_policy_was_removed_does_not_run() -> None:
    rig = late_rig()
    rig.apply_policies({"main.policy": FIT, "ml-a.removed": ""})
    rig.settle()
    rig.apply_policies({"main.policy": FIT})
    rig.settle()

    deliver_late(rig)

    assert rig.scheduler.programs().keys() == {"test"}
    assert set(rig.of(c.SavePolicyTexts)[-1].texts) == {"test"}


def test_a_name_has_one_owner_and_a_pattern_without_an_owner_takes_none() -> None:
    overlapping = PolicyPermissions(
        (AllowedPolicy("*"), AllowedPolicy("ml-*", owner="ml"), AllowedPolicy("ml-web-*", owner="ml-web"))
    )

    assert [overlapping.owner(name) for name in ("ml-a", "ml-web-a", "web", "default-scheduler")] == [
        "ml",
        "ml",
        None,
        None,
    ]
    assert PolicyPermissions().owner("ml-a") is None
