"""Active policy versions: activated as a whole or not at all, with fallback to the last known good text."""

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.policy_status import PolicyStatus
from policysched.scheduler.policies.registry import PolicyRegistry
from tests.builders import node, pod
from tests.scheduler.rig import Rig

GOOD = """\
policy test version 1
filter node_resources_fit
"""
OTHER = """\
policy test version 1
filter node_resources_fit
filter nowhere reject pod.name != "first" says "closed"
preemption never
"""
BROKEN = """\
policy test version 1
filter cpu_cool require cpu_utl < 85% missing pass
"""
SECOND = """\
policy second version 1
filter node_resources_fit
"""
LIBRARY = """\
library base version 1
filter node_resources_fit
"""
INCLUDING = """\
policy test version 1
include "base.policy"
"""


def status(rig: Rig, name: str = "test") -> PolicyStatus:
    (policy_status,) = [policy for policy in rig.scheduler.policies() if policy.name == name]
    return policy_status


def events(rig: Rig) -> list[tuple[str, str]]:
    return [(report.type, report.reason) for report in rig.of(c.ReportPolicyEvent)]


def active_texts(rig: Rig) -> dict[str, str]:
    """What runs, by name: the first digits of each hash."""
    return {
        policy.name: policy.sha256 for policy in rig.scheduler.policies() if policy.name and policy.sha256
    }


def test_a_policy_that_checks_becomes_active_and_is_kept_without_an_event() -> None:
    rig = Rig(GOOD)

    current = status(rig)
    (saved,) = rig.of(c.SavePolicyTexts)

    assert (current.phase, current.key, current.version) == ("active", "main.policy", 1)
    assert current.last_success_ns == rig.now_ns
    assert saved.texts.keys() == {"test"}
    assert events(rig) == []


def test_a_text_that_becomes_active_is_logged_once_with_its_hash() -> None:
    rig = Rig(GOOD)

    rig.apply_policies(OTHER)
    rig.apply_policies(f"{OTHER}# a comment changes nothing\n")
    rig.settle()

    reports = [log.message for log in rig.of(c.Log)]
    other = status(rig).sha256
    assert [words.partition(", sha ")[0] for words in reports] == ["main.policy: policy `test` version 1"] * 2
    assert other is not None and reports[-1].endswith(f", sha {other[:6]}, is active")


def test_editing_the_policy_changes_the_next_decision() -> None:
    rig = Rig(OTHER, node("a"), pod("web"))
    rig.settle()
    assert rig.pending_message("web") == "0/1 nodes are available: 1 closed."

    rig.apply_policies(GOOD)
    rig.settle()

    (bind,) = rig.of(c.Bind)
    assert bind.policy_sha256 == status(rig).sha256


def test_a_new_text_takes_over_between_two_decisions_after_its_columns_are_ready() -> None:
    rig = Rig(GOOD, node("a"), pod("first"))
    rig.settle()
    before = status(rig).sha256

    rig.apply_policies(OTHER)
    offered = status(rig).sha256
    rig.observe(pod("second"))
    rig.settle()
    rig.observe(pod("third"))
    rig.settle()

    assert offered == before, "until it is ready the old text decides"
    assert status(rig).sha256 != before
    assert "third" not in rig.placements()


def test_a_pod_edited_while_a_new_text_is_prepared_is_evaluated_as_edited() -> None:
    by_rank = (
        GOOD
        + 'input rank_label: int = pod.labels["rank"] default 0 invalid reject "rank must be a number"\n'
        + "queue by rank_label desc\n"
    )
    rig = Rig(GOOD, node("a"), pod("first"), limits=SchedulerLimits(rekey_pods_max=1))
    rig.settle()
    rig.observe(*[pod(name, cpu="9", labels={"rank": "5"}) for name in ("x", "y", "z")])
    rig.settle()

    rig.apply_policies(by_rank)
    while rig.scheduler._reload._in_preparation["test"].precomputed == {}:
        rig.handle()
        rig.commands += rig.scheduler.decide(rig.now_ns)
    rig.observe(pod("x", cpu="9", labels={"rank": "no number"}), pod("y", cpu="9", labels={"rank": "7"}))
    rig.observe(pod("late", cpu="9", labels={"rank": "9"}))
    rig.settle()
    rig.observe(node("b", cpu="30"))
    rig.pass_time(20)

    assert rig.pending_message("x") == "rank must be a number"
    assert rig.bind_order() == ["first", "late", "y", "z"]


def test_the_event_about_a_misspelt_name_suggests_the_right_one() -> None:
    rig = Rig(GOOD, node("a"))

    rig.apply_policies(GOOD + 'filter repair rejects node.name == "a"\n')

    (event,) = rig.of(c.ReportPolicyEvent)
    assert "unexpected `rejects` (did you mean `reject`?); still running" in event.message


def test_a_broken_edit_leaves_the_last_known_good_text_active_and_reports_the_position() -> None:
    rig = Rig(GOOD, node("a"))
    good = status(rig).sha256
    rig.now_ns += 2 * 3600 * 10**9

    rig.apply_policies(BROKEN)
    rig.observe(pod("web"))
    rig.settle()

    current = status(rig)
    (event,) = rig.of(c.ReportPolicyEvent)
    assert (current.phase, current.sha256) == ("last_known_good", good)
    assert (event.type, event.reason) == ("Warning", "PolicyRejected")
    assert event.message.startswith("main.policy:2:")
    assert "`cpu_utl`" in event.message and event.message.endswith(f"still running sha {good[:6]} (2h)")
    assert rig.placements() == {"web": "a"}


def test_a_header_with_a_very_long_name_names_no_policy() -> None:
    """The name is a label of metrics."""
    rig = Rig(GOOD, node("a"))

    rig.apply_policies({"a.policy": GOOD, "b.policy": f"policy {'n' * 100_000} version 1\n"})

    rejected = [policy for policy in rig.scheduler.policies() if policy.phase == "rejected"]
    assert [(policy.name, policy.key) for policy in rejected] == [(None, "b.policy")]
    assert max(len(event.message) for event in rig.of(c.ReportPolicyEvent)) < 3_000


def test_the_same_rejection_is_reported_once() -> None:
    rig = Rig(GOOD)

    for _ in range(3):
        rig.apply_policies(BROKEN)

    assert events(rig) == [("Warning", "PolicyRejected")]


def test_reverting_to_the_active_text_clears_the_rejected_status() -> None:
    rig = Rig(GOOD)
    first = status(rig)
    rig.now_ns += 10**9
    rig.apply_policies(BROKEN)
    rig.now_ns += 10**9

    rig.apply_policies(GOOD)

    current = status(rig)
    assert (current.phase, current.sha256) == ("active", first.sha256)
    assert current.last_success_ns == first.last_success_ns, "it moves only on a real change"
    assert events(rig) == [("Warning", "PolicyRejected"), ("Normal", "PolicyRecovered")]


def test_the_status_of_an_active_policy_keeps_its_warnings() -> None:
    unused = GOOD + "let never_read: cpu = 100m\n"

    rig = Rig(unused)

    assert status(rig).phase == "active"
    assert any("never_read" in diagnostic.message for diagnostic in status(rig).diagnostics)


def test_a_comment_changes_nothing() -> None:
    rig = Rig(GOOD)
    first = status(rig)
    rig.now_ns += 10**9

    rig.apply_policies("# a word about it\n" + GOOD)

    assert status(rig).last_success_ns == first.last_success_ns
    assert rig.scheduler.reloads() == {"ok": 1, "unchanged": 1}
    assert len(rig.of(c.SavePolicyTexts)) == 1


def test_a_broken_key_keeps_its_last_known_good_text_and_other_keys_stay_active() -> None:
    rig = Rig({"a.policy": GOOD, "b.policy": SECOND})
    before = active_texts(rig)

    rig.apply_policies({"a.policy": BROKEN, "b.policy": SECOND + "filter node_unschedulable\n"})
    rig.settle()

    assert status(rig).phase == "last_known_good"
    assert status(rig, "second").phase == "active"
    assert active_texts(rig)["test"] == before["test"] and active_texts(rig)["second"] != before["second"]


def test_a_deleted_configmap_leaves_all_policies_active_with_a_warning() -> None:
    rig = Rig({"a.policy": GOOD, "b.policy": SECOND})
    before = active_texts(rig)

    rig.apply_policies(None)
    rig.apply_policies(None)

    assert active_texts(rig) == before
    assert {policy.phase for policy in rig.scheduler.policies()} == {"missing"}
    assert events(rig) == [("Warning", "PolicyMissing")] * 2


def test_a_deleted_key_leaves_its_policy_active_with_a_warning_until_it_is_back() -> None:
    rig = Rig({"a.policy": GOOD, "b.policy": SECOND})

    rig.apply_policies({"b.policy": SECOND})
    gone = status(rig).phase
    rig.apply_policies({"a.policy": GOOD, "b.policy": SECOND})

    assert gone == "missing" and status(rig).phase == "active"
    assert events(rig) == [("Warning", "PolicyMissing"), ("Normal", "PolicyRecovered")]


def test_a_broken_library_leaves_the_policies_that_include_it_on_their_last_known_good() -> None:
    rig = Rig({"base.policy": LIBRARY, "main.policy": INCLUDING, "b.policy": SECOND})
    before = active_texts(rig)

    rig.apply_policies(
        {
            "base.policy": LIBRARY + "filter f require cpu_utl < 1\n",
            "main.policy": INCLUDING,
            "b.policy": SECOND,
        }
    )

    assert active_texts(rig) == before
    assert status(rig).phase == "last_known_good"
    assert status(rig, "second").phase == "active"


def test_a_policy_renamed_under_its_key_is_active_beside_its_old_name() -> None:
    rig = Rig(GOOD, node("a"))

    rig.apply_policies(GOOD.replace("policy test", "policy tset"))
    rig.observe(pod("old", scheduler="test"), pod("new", scheduler="tset"))
    rig.settle()

    assert status(rig, "tset").phase == "active" and status(rig, "test").phase == "missing"
    assert rig.placements().keys() == {"old", "new"}
    (event,) = rig.of(c.ReportPolicyEvent)
    assert (
        event.reason == "PolicyMissing"
        and "ConfigMap ns/policies no longer contains this policy" in event.message
        and "add the key test.removed (`policysched policies remove test`)" in event.message
    )


def test_a_second_policy_of_the_same_name_is_rejected() -> None:
    rig = Rig({"a.policy": GOOD})
    before = active_texts(rig)

    rig.apply_policies({"a.policy": GOOD, "b.policy": OTHER})
    rig.settle()

    assert active_texts(rig) == before
    states = {policy.key: policy.phase for policy in rig.scheduler.policies()}
    assert states == {"a.policy": "active", "b.policy": "rejected"}


def test_a_key_that_sorts_first_does_not_take_over_an_active_policy() -> None:
    rig = Rig({"m.policy": GOOD})
    before = active_texts(rig)

    rig.apply_policies({"a.policy": OTHER, "m.policy": GOOD})
    rig.settle()

    assert active_texts(rig) == before
    assert status(rig).phase == "last_known_good"
    messages = [report.message for report in rig.of(c.ReportPolicyEvent)]
    assert len(messages) == 2
    assert all(
        "duplicate policy name `test`" in message and "still running sha" in message for message in messages
    )

    rig.apply_policies({"m.policy": GOOD})

    assert status(rig).phase == "active"


def test_two_keys_of_one_name_at_a_restart_keep_the_previously_active_text() -> None:
    before = Rig(GOOD)
    (saved,) = before.of(c.SavePolicyTexts)

    rig = Rig(None)
    last_good = {f"{name}.policy": text for name, text in saved.texts.items()}
    rig.apply_policies({"a.policy": OTHER, "m.policy": GOOD}, last_good=last_good)
    rig.settle()

    assert active_texts(rig) == active_texts(before)


def test_a_start_without_any_policy_is_fatal() -> None:
    absent, empty, broken = Rig(None), Rig(None), Rig(None)

    absent.apply_policies(None)
    empty.apply_policies({})
    broken.apply_policies(BROKEN)

    saved = "ConfigMap ns/kept has no last known good policy"
    assert (
        absent.scheduler.startup_error
        == f"no policy to run: ConfigMap ns/policies does not exist, and {saved}"
    )
    assert (
        empty.scheduler.startup_error
        == f"no policy to run: ConfigMap ns/policies has no key named NAME.policy, and {saved}"
    )
    assert (
        f"no policy to run: no policy in ConfigMap ns/policies is valid, and {saved}. main.policy:2:"
        in str(broken.scheduler.startup_error)
    )


def test_a_start_with_one_valid_policy_is_not_fatal_and_the_broken_one_is_rejected() -> None:
    rig = Rig({"a.policy": BROKEN, "b.policy": SECOND})

    assert rig.scheduler.startup_error is None
    (rejected,) = [policy for policy in rig.scheduler.policies() if policy.key == "a.policy"]
    assert (rejected.name, rejected.phase, rejected.sha256) == ("test", "rejected", None)
    (event,) = rig.of(c.ReportPolicyEvent)
    assert event.message.endswith("no version of this policy is active")


def test_a_restart_with_a_broken_key_activates_the_saved_text() -> None:
    before = Rig(GOOD)
    (saved,) = before.of(c.SavePolicyTexts)

    rig = Rig(None, node("a"))
    rig.apply_policies(BROKEN, last_good={f"{name}.policy": text for name, text in saved.texts.items()})
    rig.observe(pod("web"))
    rig.settle()

    assert rig.scheduler.startup_error is None
    assert (status(rig).phase, status(rig).sha256) == ("last_known_good", status(before).sha256)
    assert rig.placements() == {"web": "a"}
    assert rig.of(c.SavePolicyTexts) == [], "what is kept is still right"


WITH_PARAMETER = """\
policy test version 1
param most: int = 100 range 1..110
filter node_resources_fit
filter crowded require node.pods < most
preemption never
"""


def with_values(values: str) -> dict[str, str]:
    return {"main.policy": WITH_PARAMETER, "test.params.yaml": values}


def test_a_change_of_a_parameter_is_a_reload() -> None:
    rig = Rig(WITH_PARAMETER, node("a"))
    before = status(rig).sha256
    rig.apply_policies(with_values("most: 1\n"))
    rig.observe(pod("one"), pod("two"))
    rig.settle()

    assert status(rig).sha256 != before and status(rig).phase == "active"
    assert list(rig.placements().values()) == ["a"], "the second is one too many"


def test_a_parameter_outside_its_range_is_rejected_and_the_active_version_stays() -> None:
    rig = Rig(WITH_PARAMETER, node("a"))
    before = status(rig)

    rig.apply_policies(with_values("# fewer\nmost: 1000\n"))

    (event,) = rig.of(c.ReportPolicyEvent)
    assert (status(rig).phase, status(rig).sha256) == ("last_known_good", before.sha256)
    assert event.message.startswith(
        "ConfigMap ns/policies key test.params.yaml:2:7 PS260 `most` must be between 1 and 110"
    )
    rig.apply_policies(with_values("most: 20\n"))
    assert status(rig).phase == "active"


def test_a_restart_with_a_bad_parameter_activates_the_saved_text_with_its_old_value() -> None:
    before = Rig(None)
    before.apply_policies(with_values("most: 1\n"))
    (saved,) = before.of(c.SavePolicyTexts)
    rig = Rig(None, node("a"))

    rig.apply_policies(
        with_values("most: many\n"), last_good={f"{name}.policy": text for name, text in saved.texts.items()}
    )
    rig.observe(pod("one"), pod("two"))
    rig.settle()

    assert rig.scheduler.startup_error is None
    assert (status(rig).phase, status(rig).sha256) == ("last_known_good", status(before).sha256)
    assert len(rig.placements()) == 1


def test_a_restart_without_the_configmap_activates_the_saved_text_with_a_warning() -> None:
    rig = Rig(None)

    rig.apply_policies(None, last_good={"test.policy": GOOD})

    assert rig.scheduler.startup_error is None
    assert status(rig).phase == "missing"
    assert events(rig) == [("Warning", "PolicyMissing")]


def test_a_newer_text_replaces_one_in_preparation() -> None:
    rig = Rig(GOOD, node("a"), pod("web"))
    rig.settle()
    before = active_texts(rig)

    rig.apply_policies(OTHER)
    rig.apply_policies(GOOD)
    rig.settle()

    assert active_texts(rig) == before


def test_a_broken_text_does_not_stop_a_valid_one_in_preparation() -> None:
    rig = Rig(GOOD, node("a"), pod("web"))
    rig.settle()
    before = active_texts(rig)

    rig.apply_policies(OTHER)
    rig.apply_policies(BROKEN)
    rig.settle()

    assert status(rig).phase == "last_known_good"
    assert active_texts(rig) != before


def test_a_policy_that_appears_later_finds_its_pods() -> None:
    rig = Rig(GOOD, node("a"), pod("web", scheduler="second"))
    rig.settle()
    assert rig.placements() == {}

    rig.apply_policies({"main.policy": GOOD, "b.policy": SECOND})
    rig.settle()

    assert rig.placements() == {"web": "a"}


def test_every_reload_is_counted_by_its_result() -> None:
    rig = Rig(GOOD)

    rig.apply_policies(BROKEN)
    rig.apply_policies("policy test version 1\nfilter {\n")
    rig.apply_policies(None)

    assert rig.scheduler.reloads() == {"ok": 1, "type": 1, "parse": 1, "missing": 1}


def broken_texts_never_become_active() -> None:
    """The property for which the planted bugs below are."""
    rig = Rig({"a.policy": GOOD, "b.policy": SECOND})
    before = active_texts(rig)
    rig.apply_policies({"a.policy": BROKEN, "b.policy": SECOND})
    rig.apply_policies({"b.policy": SECOND})
    rig.apply_policies(None)
    rig.settle()
    assert active_texts(rig) == before
    assert rig.of(c.SavePolicyTexts)[-1].texts.keys() == before.keys()


def test_broken_texts_never_become_active() -> None:
    broken_texts_never_become_active()


def test_a_planted_bug_that_forgets_a_deleted_policy_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    fall_back = PolicyRegistry._fall_back

    def forgetting(self: PolicyRegistry, name: str, *more: object) -> None:
        fall_back(self, name, *more)  # type: ignore[arg-type]
        del self._status[name]

    monkeypatch.setattr(PolicyRegistry, "_fall_back", forgetting)

    with pytest.raises(AssertionError, match="test is neither active nor starting"):
        broken_texts_never_become_active()


def test_a_planted_bug_that_keeps_only_the_last_text_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: PolicyRegistry) -> list[c.Command]:
        name, running = list(self.running.items())[-1]
        return [c.SavePolicyTexts({name: running.program.text})]

    monkeypatch.setattr(PolicyRegistry, "save", forgetful)

    with pytest.raises(AssertionError):
        broken_texts_never_become_active()


def test_updates_with_a_known_resource_version_are_ignored() -> None:
    rig = Rig(GOOD)
    (offer,) = [
        e.PoliciesUpdated(None, resource_version="1"),
    ]

    commands = rig.handle(offer)

    assert commands == [] and status(rig).phase == "active"


# ── removal ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BOTH = {"a.policy": GOOD, "b.policy": SECOND}
EDITED = SECOND + "filter node_unschedulable\n"


def saved_names(rig: Rig) -> set[str]:
    return set(rig.of(c.SavePolicyTexts)[-1].texts)


def removed_policies_stay_removed() -> None:
    """The property for which the planted bugs below are: after a restart, and after an edit of another policy."""
    rig = Rig(BOTH, node("a"))
    rig.apply_policies({**BOTH, "test.removed": ""})
    rig.settle()
    assert saved_names(rig) == {"second"}
    rig.apply_policies({"b.policy": SECOND})
    rig.apply_policies({"b.policy": EDITED})
    rig.settle()
    assert saved_names(rig) == {"second"}, "an edit of another policy brought it back"

    kept = {f"{name}.policy": text for name, text in rig.of(c.SavePolicyTexts)[-1].texts.items()}
    after = Rig(None, node("a"))
    after.apply_policies({"b.policy": EDITED}, last_good=kept)
    after.observe(pod("web"))
    after.settle()
    assert after.placements() == {}, "a restart brought it back"


def test_a_removed_policy_stays_removed_after_edits_and_restarts() -> None:
    removed_policies_stay_removed()


def test_a_planted_bug_that_keeps_the_texts_of_removed_policies_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = PolicyRegistry.save

    def hoarding(self: PolicyRegistry) -> list[c.Command]:
        before = dict(self._saved_texts)
        return [c.SavePolicyTexts({**before, **command.texts}) for command in save(self)]  # type: ignore[union-attr]

    monkeypatch.setattr(PolicyRegistry, "save", hoarding)

    with pytest.raises(AssertionError):
        removed_policies_stay_removed()


def test_pods_of_a_removed_policy_stay_pending_with_the_reason() -> None:
    rig = Rig(BOTH, node("a", cpu="1"), pod("early", cpu="2"))
    rig.settle()

    rig.apply_policies({**BOTH, "test.removed": "moved to second,\nsee the wiki"})
    rig.settle()
    rig.observe(pod("late"), pod("other", scheduler="second"))
    rig.pass_time(60)

    message = (
        "policy test is removed (moved to second, see the wiki); "
        "give the pod another schedulerName, or delete the key test.removed of ConfigMap ns/policies"
    )
    assert rig.pending_message("early") == rig.pending_message("late") == message
    assert {report.reason for report in rig.of(c.ReportPending) if report.name == "late"} == {"PolicyPending"}
    assert rig.placements() == {"other": "a"}
    assert (status(rig).phase, status(rig).sha256, status(rig).key) == ("removed", None, "test.removed")
    assert events(rig) == [("Normal", "PolicyRemoved")]
    assert rig.scheduler.programs().keys() == {"second"}


def test_binds_in_flight_of_a_removed_policy_finish() -> None:
    rig = Rig(GOOD, node("a"), pod("web"), pod("refused"))
    rig.settle()

    rig.apply_policies({"test.removed": ""})
    rig.settle()
    refused, web = sorted(rig.in_flight_binds(), key=lambda bind: bind.name)
    rig.handle(e.BindRefused(refused.uid, "no"))
    rig.confirm_binds()
    rig.pass_time(30)

    assert rig.observed_pod(web.uid).node == "a"
    assert sorted(rig.bind_order()) == ["refused", "web"], "the refused pod is not decided again"
    assert "policy test is removed" in (rig.pending_message("refused") or "")


def test_a_policy_is_back_when_its_removal_is_deleted_and_a_text_is_there() -> None:
    rig = Rig({**BOTH, "test.removed": ""}, node("a"), pod("web"))
    rig.settle()

    rig.apply_policies({**BOTH, "a.policy": BROKEN})
    rig.settle()
    broken = rig.placements(), [(policy.key, policy.phase) for policy in rig.scheduler.policies()]
    rig.apply_policies(BOTH)
    rig.settle()

    assert broken == ({}, [("b.policy", "active"), (None, "removed"), ("a.policy", "rejected")])
    assert rig.placements() == {"web": "a"} and status(rig).phase == "active"
    assert saved_names(rig) == {"test", "second"}


def test_a_removal_holds_at_a_restart_whose_last_good_texts_still_have_the_policy() -> None:
    """The write that removes it was refused."""
    rig = Rig(None, node("a"), pod("web"))

    rig.apply_policies({"b.policy": SECOND, "test.removed": ""}, last_good={"test.policy": GOOD})
    rig.settle()

    assert rig.placements() == {} and saved_names(rig) == {"second"}
    assert "policy test is removed" in (rig.pending_message("web") or "")


def test_a_start_where_every_policy_is_removed_is_not_fatal() -> None:
    rig = Rig(None, node("a"), pod("web"))

    rig.apply_policies({"a.policy": GOOD, "test.removed": ""}, last_good={"test.policy": GOOD})

    assert rig.scheduler.startup_error is None and rig.scheduler.programs() == {}
    assert "policy test is removed" in (rig.pending_message("web") or "")


@pytest.mark.parametrize("later", [None, {}, {"b.policy": SECOND}])
def test_a_removal_and_a_readmission_in_preparation_survive_the_next_edit(
    later: dict[str, str] | None,
) -> None:
    rig = Rig(BOTH, node("a"), pod("web"))
    rig.settle()

    rig.apply_policies({**BOTH, "test.removed": ""})
    rig.apply_policies(later)
    rig.settle()
    removed = status(rig).phase
    rig.apply_policies(BOTH)
    rig.apply_policies(later)
    rig.settle()

    assert removed == "removed"
    assert status(rig).phase == "missing" and status(rig).sha256 is not None


@pytest.mark.parametrize(
    "returns",
    [{"a.policy": GOOD}, {"z.policy": GOOD}, {"a.policy": GOOD, "z.policy": GOOD}],
    ids=["same key", "other key", "two keys"],
)
def test_a_removed_policy_whose_key_is_deleted_is_back_when_a_text_appears(returns: dict[str, str]) -> None:
    rig = Rig(BOTH, node("a"))
    rig.settle()
    rig.apply_policies({"b.policy": SECOND, "test.removed": "old"})
    rig.settle()

    rig.apply_policies({"b.policy": SECOND})
    rig.observe(pod("web"))
    rig.settle()
    between = rig.placements(), rig.pending_message("web"), (status(rig).phase, status(rig).key)
    rig.apply_policies({"b.policy": SECOND, "a.policy": BROKEN})
    rig.settle()
    broken = rig.placements()
    rig.apply_policies({"b.policy": SECOND, **returns})
    rig.settle()

    message = (
        "policy test is removed, and ConfigMap ns/policies has no text of it; add one, or give the pod another "
        "schedulerName"
    )
    assert between == ({}, message, ("removed", None)) and broken == {}
    assert rig.placements() == {"web": "a"} and saved_names(rig) == {"test", "second"}
    (active,) = [
        policy.key
        for policy in rig.scheduler.policies()
        if policy.phase == "active" and policy.name == "test"
    ]
    assert active == min(returns), "the first of two keys has the name"


def test_a_removal_is_reported_once_and_not_again_when_its_key_is_deleted() -> None:
    rig = Rig(BOTH, node("a"))

    for texts in ({"b.policy": SECOND, "test.removed": ""}, {"b.policy": SECOND}, {"b.policy": EDITED}):
        rig.apply_policies(texts)
        rig.settle()

    assert events(rig) == [("Normal", "PolicyRemoved")]


def test_a_new_policy_in_preparation_is_dropped_when_the_configmap_is_deleted() -> None:
    rig = Rig(GOOD, node("a"), pod("web"))
    rig.settle()

    rig.apply_policies(BOTH)
    rig.apply_policies(None)
    rig.settle()

    assert [(policy.name, policy.phase) for policy in rig.scheduler.policies()] == [("test", "missing")]


def test_a_last_good_text_that_is_rejected_now_is_still_kept() -> None:
    """By another version, or by a check that ran out of time."""
    rig = Rig(None)

    rig.apply_policies({"b.policy": SECOND}, last_good={"test.policy": BROKEN})

    assert rig.of(c.SavePolicyTexts)[-1].texts["test"] == BROKEN
