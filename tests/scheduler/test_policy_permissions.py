"""What the settings allow policies to do: their names, the namespaces that they serve, and whom they may evict."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from policysched import evaluate
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler import policy_permissions as permissions_module
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import (
    ANY_POLICY_NAME,
    AllowedPolicy,
    NamespaceSelection,
    PolicyPermissions,
    ProtectedClass,
    VictimCeiling,
)
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from tests.builders import namespace, node, placed, pod
from tests.evaluate.clusters import Scene, scenes
from tests.reference import protected_by_settings, selected_by_policy
from tests.reference.checked import program
from tests.scheduler.rig import FIT, GANG, Rig

DEFAULT = FIT.replace("policy test", "policy default-scheduler")
ANY = "policy test version 1\nfilter node_resources_fit\npreemption { victims = any }\n"
SERVES_ML = PolicyPermissions(
    (
        AllowedPolicy("test", NamespaceSelection(("ml-*",))),
        AllowedPolicy("te*", NamespaceSelection((), {"team": "ml"})),
    )
)


def events(rig: Rig) -> list[tuple[str, str]]:
    return [(event.reason, event.message) for event in rig.of(c.ReportPolicyEvent)]


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("allowed", "name", "expected"),
    [
        (None, "batch", True),
        (None, "default-scheduler", False),
        (("*",), "default-scheduler", False),
        (("default-*",), "default-scheduler", False),
        (("*", "default-scheduler"), "default-scheduler", True),
        (("ml-*",), "ml-batch", True),
        (("ml-*",), "batch-ml-", False),
        (("ml-*", "web"), "web", True),
        ((), "web", False),
    ],
)
def test_a_name_is_allowed_by_an_entry_and_the_default_scheduler_by_its_name_alone(
    allowed: tuple[str, ...] | None, name: str, expected: bool
) -> None:
    entries = None if allowed is None else tuple(map(AllowedPolicy, allowed))

    assert PolicyPermissions(entries).allows_name(name) == expected


def test_a_policy_called_like_the_default_scheduler_is_rejected_unless_it_is_listed() -> None:
    rig = Rig({"main.policy": DEFAULT, "b.policy": FIT}, node("a"), pod("web", scheduler="default-scheduler"))
    listed = Rig(DEFAULT, node("a"), pod("web", scheduler="default-scheduler"), permissions=ANY_POLICY_NAME)

    rig.settle()
    listed.settle()

    assert rig.placements() == {} and listed.placements() == {"web": "a"}
    assert ("PolicyRejected", True) in [
        (reason, message.startswith("main.policy:1:8 PS908 the settings do not allow a policy called"))
        for reason, message in events(rig)
    ]


def test_a_key_whose_policy_gets_a_disallowed_name_keeps_the_policy_that_it_had() -> None:
    rig = Rig(FIT, node("a"))

    rig.apply_policies(DEFAULT)
    rig.observe(pod("web"), pod("plain", scheduler="default-scheduler"))
    rig.settle()

    assert rig.placements() == {"web": "a"}
    phases = {status.name: status.phase for status in rig.scheduler.policies()}
    assert phases == {"test": "missing", "default-scheduler": "rejected"}


def test_a_last_known_good_policy_that_is_no_longer_allowed_does_not_run_and_stays_saved() -> None:
    rig = Rig(None, node("a"), permissions=PolicyPermissions((AllowedPolicy("b"),)))

    rig.apply_policies({"b.policy": FIT.replace("test", "b")}, last_good={"test.policy": FIT})
    rig.observe(pod("web"), pod("other", scheduler="b"))
    rig.settle()

    assert rig.placements() == {"other": "a"}
    assert list(rig.of(c.SavePolicyTexts)[-1].texts) == ["b", "test"]


def removal_of_a_disallowed_name() -> Rig:
    """Pods named after it, beside an allowed policy; its last known good text is saved from earlier settings."""
    rig = Rig(None, node("a"), permissions=PolicyPermissions((AllowedPolicy("b"),)))
    kept = {"test.policy": FIT, "b.policy": FIT.replace("test", "b")}
    rig.apply_policies({"b.policy": kept["b.policy"], "test.removed": "", "gone.removed": ""}, last_good=kept)
    rig.observe(pod("foreign"), pod("other", scheduler="b"))
    rig.settle()
    return rig


def test_a_removal_of_a_name_that_is_not_allowed_deletes_its_saved_text_and_tells_its_pods_nothing() -> None:
    rig = removal_of_a_disallowed_name()

    assert rig.placements() == {"other": "a"}
    assert [list(save.texts) for save in rig.of(c.SavePolicyTexts)] == [["b"]]
    assert rig.pending_message("foreign") is None and events(rig) == []
    assert [status.name for status in rig.scheduler.policies()] == ["b"]


def test_a_removal_that_takes_the_pods_of_another_scheduler_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "policysched.scheduler.policies.registry.without_disallowed_removals",
        lambda bundle, _permissions: (bundle.sources, frozenset()),
    )

    with pytest.raises(AssertionError):
        test_a_removal_of_a_name_that_is_not_allowed_deletes_its_saved_text_and_tells_its_pods_nothing()


# ── namespaces ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_of_a_namespace_that_the_policy_does_not_serve_gets_a_message_and_no_node() -> None:
    rig = Rig(FIT, namespace("web"), namespace("ml-1"), node("a"), permissions=SERVES_ML)

    rig.observe(pod("refused", namespace="web"), pod("served", namespace="ml-1"))
    rig.pass_time(3600)

    assert rig.placements() == {"served": "a"}
    assert rig.pending_message("refused") == (
        "policy test does not serve namespace web: the settings (policy_permissions.policies_allowed) "
        "let it serve ml-*; all namespaces with the label team=ml"
    )
    assert {report.reason for report in rig.of(c.ReportPending)} == {"PolicyPending"}


def test_a_pod_is_admitted_once_its_namespace_has_the_label_and_refused_once_it_has_lost_it() -> None:
    rig = Rig(FIT, namespace("web"), node("a", cpu="1"), permissions=SERVES_ML)
    rig.observe(pod("first", namespace="web", cpu="1"), pod("second", namespace="web", cpu="1"))
    rig.settle()

    before = rig.placements()
    rig.observe(namespace("web", team="ml"))
    rig.settle()
    served = rig.placements()
    rig.observe(namespace("web", team="other"))
    rig.handle(e.PodDeleted(pod("first", namespace="web").uid))
    rig.pass_time(600)

    assert (before, served) == ({}, {"first": "a"})
    assert rig.placements() == {"first": "a"}
    assert (rig.pending_message("second") or "").startswith("policy test does not serve namespace web")


def test_a_namespace_that_is_not_known_yet_has_no_labels() -> None:
    rig = Rig(FIT, node("a"), pod("web", namespace="web"), permissions=SERVES_ML)

    rig.settle()
    before = rig.placements()
    rig.observe(namespace("web", team="ml"))
    rig.settle()

    assert (before, rig.placements()) == ({}, {"web": "a"})


def test_an_edited_text_does_not_admit_the_pods_of_other_namespaces() -> None:
    rig = Rig(FIT, namespace("web"), node("a"), pod("web", namespace="web"), permissions=SERVES_ML)
    rig.settle()

    rig.apply_policies(FIT.replace("version 1", "version 2"))
    rig.pass_time(60)

    assert rig.placements() == {}


def test_members_of_a_gang_in_a_namespace_that_is_not_served_are_refused_one_by_one() -> None:
    gang = GANG.format(more="")
    rig = Rig(gang, namespace("web"), node("a"), permissions=SERVES_ML)
    labels = {"group": "g", "least": "2"}

    rig.observe(*[pod(name, namespace="web", labels=labels) for name in ("one", "two")])
    rig.pass_time(60)

    assert rig.placements() == {}
    assert {report.name for report in rig.of(c.ReportPending)} == {"one", "two"}


def test_a_gate_that_is_open_for_every_namespace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NamespaceSelection, "selects", lambda *_: True)

    with pytest.raises(AssertionError):
        test_a_pod_of_a_namespace_that_the_policy_does_not_serve_gets_a_message_and_no_node()


# ── victims ────────────────────────────────────────────────────────────────────────────────────────────────────────

MIRROR = {"kubernetes.io/config.mirror": "1"}
PROTECTED: dict[str, dict[str, Any]] = {
    "kube-system": {"namespace": "kube-system"},
    "static-pods": {"annotations": MIRROR},
    "daemonset-pods": {"owner": ("apps/v1", "DaemonSet", "agent")},
}


@pytest.mark.parametrize("name", PROTECTED)
def test_pods_of_the_protected_classes_are_evicted_only_if_the_settings_allow_it(
    name: ProtectedClass,
) -> None:
    victim = placed(pod("low", cpu="1", scheduler="other", **PROTECTED[name]), "a")
    urgent = pod("urgent", cpu="1", priority=9)
    rig = Rig(ANY, node("a", cpu="1"), victim, urgent)
    allowing = Rig(
        ANY,
        node("a", cpu="1"),
        victim,
        urgent,
        permissions=PolicyPermissions(None, VictimCeiling(protected=frozenset())),
    )

    rig.settle()
    allowing.settle()

    assert rig.of(c.Evict) == []
    assert rig.pending_message("urgent") == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims "
        "found for incoming pod. 1 pod is protected from eviction by the settings."
    )
    assert [evict.name for evict in allowing.of(c.Evict)] == ["urgent"]


def test_the_ceiling_names_namespaces_labels_and_a_priority() -> None:
    ceiling = VictimCeiling(NamespaceSelection(("batch-*",), {"evictable": "yes"}), priority_max=5)
    spaces = [namespace("batch-1", evictable="yes"), namespace("batch-2"), namespace("web", evictable="yes")]
    victims = [
        placed(pod(f"low-{space.name}", namespace=space.name, cpu="1", scheduler="other"), space.name)
        for space in spaces
    ]
    nodes = [node(space.name, cpu="1") for space in spaces]
    rig = Rig(ANY, *spaces, *nodes, *victims, permissions=PolicyPermissions(None, ceiling))

    rig.observe(*[pod(f"urgent-{number}", cpu="1", priority=9) for number in range(3)])
    rig.settle()

    assert [[victim.name for victim in evict.victims] for evict in rig.of(c.Evict)] == [["low-batch-1"]]
    assert "2 pods are protected from eviction by the settings." in (rig.pending_message("urgent-1") or "")


def test_a_pod_above_the_priority_of_the_ceiling_is_not_evicted() -> None:
    victim = placed(pod("low", cpu="1", priority=6, scheduler="other"), "a")
    ceiling = PolicyPermissions(None, VictimCeiling(priority_max=5))
    rig = Rig(ANY, node("a", cpu="1"), victim, pod("urgent", cpu="1", priority=9), permissions=ceiling)

    rig.settle()

    assert rig.of(c.Evict) == []


@pytest.mark.parametrize("protected", [True, False])
def test_preemption_for_a_gang_keeps_to_the_ceiling(protected: bool) -> None:
    owner = PROTECTED["daemonset-pods"] if protected else {}
    victims = [placed(pod(f"on-{name}", cpu="1", scheduler="other", **owner), name) for name in ("a", "b")]
    policy = GANG.format(more="") + "preemption { victims = any }\n"
    rig = Rig(policy, node("a", cpu="1"), node("b", cpu="1"), *victims)
    labels = {"group": "g", "least": "2"}

    rig.observe(*[pod(name, cpu="1", priority=9, labels=labels) for name in ("one", "two")])
    rig.settle()

    assert len(rig.of(c.Evict)) == (0 if protected else 2)
    assert ("protected from eviction" in (rig.pending_message("one") or "")) == protected


CLAUSE = "preemption { victims = victim.priority + 3 < pod.priority }"
CEILINGS = st.builds(
    VictimCeiling,
    st.builds(
        NamespaceSelection,
        st.sampled_from([(), ("default",), ("d*", "team-*"), ("*",)]),
        st.sampled_from([{}, {"tier": "gold"}, {"tier": "gold", "team": "a"}]),
    ),
    st.sampled_from([None, -1, 0, 4]),
    st.frozensets(st.sampled_from(sorted(permissions_module.ALL_PROTECTED))),
)
SPACES = st.sampled_from([None, {}, {"tier": "gold"}, {"tier": "gold", "team": "a"}, {"tier": "lead"}])


@st.composite
def owned(draw: st.DrawFn, value: Pod) -> Pod:
    return replace(
        value,
        namespace=draw(st.sampled_from(["default", "kube-system", "team-b"])),
        owner_kind=draw(st.sampled_from(["", "ReplicaSet", "DaemonSet", "DaemonSet"])),
        owner_api=draw(st.sampled_from(["", "apps/v1", "example.com/v1", "apps.example.com/v1"])),
        annotations=draw(st.sampled_from([{}, MIRROR])),
        priority=draw(st.integers(-5, 5)),
    )


@given(scene=scenes(pods=4), ceiling=CEILINGS, data=st.data())
@settings(max_examples=80, deadline=None, phases=[Phase.generate])
def test_the_rights_of_a_pod_are_those_of_the_reference(
    scene: Scene, ceiling: VictimCeiling, data: st.DataObject
) -> None:
    core = SchedulerCore(SchedulerLimits(), permissions=PolicyPermissions(None, ceiling))
    for name in ("default", "kube-system", "team-b"):
        labels = data.draw(SPACES)
        if labels is not None:
            core.cache.put_namespace(Namespace(name, labels, {}))
    preemptor, *victims = [data.draw(owned(value)) for value in scene.pods]
    policy = program("include kube_default", CLAUSE)
    space = core.namespace_of(preemptor)
    selects = evaluate.compile(policy).may_evict(preemptor, space, scene.facts, scene.now_ns)

    rights = EvictionRights(core, policy.name, selects)
    allowed = [rights(victim) for victim in victims]

    selected = [
        selected_by_policy(policy, preemptor, space, victim, facts=scene.facts, now_ns=scene.now_ns)
        for victim in victims
    ]
    protected = [protected_by_settings(ceiling, victim, core.namespace_of(victim)) for victim in victims]
    assert allowed == [yes and not no for yes, no in zip(selected, protected, strict=True)]
    count = sum(yes and no for yes, no in zip(selected, protected, strict=True))
    assert (rights.explain("x") == "x") == (count == 0) and (
        count < 2 or f"{count} pods are" in rights.explain("x")
    )


def test_a_pod_that_names_a_daemon_set_of_an_invented_api_group_is_not_protected() -> None:
    """Its owner reference is written by whoever creates the pod, and no garbage collector looks it up."""
    invented = replace(pod("low"), owner_kind="DaemonSet", owner_name="x", owner_api="example.com/v1")
    real = replace(invented, owner_api="apps/v1")

    assert [VictimCeiling().protects(victim, None) for victim in (invented, real)] == [False, True]


def test_a_ceiling_that_forgets_a_class_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VictimCeiling, "protects", lambda *_: False)

    with pytest.raises(AssertionError):
        test_the_rights_of_a_pod_are_those_of_the_reference()
