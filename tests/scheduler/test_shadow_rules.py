"""Shadow rules in the scheduler: counted, never used, and never a reason for a decision to fail."""

import pytest

from policysched.evaluate.rules.specialized_rules import ExpressionFilter
from policysched.scheduler import commands as c
from tests.builders import node, pod
from tests.scheduler.rig import Rig

USED = """\
policy test version 1
filter node_resources_fit
score wide weight 1 higher node.allocatable.cpu normalize range(0, 8)
preemption { victims = own }
"""
SHADOWS = """\
shadow filter small require node.allocatable.cpu < 4 says "too large"
shadow filter nothing reject node.ready or not node.ready
shadow score narrow weight 9 lower node.allocatable.cpu normalize range(0, 8)
"""
CLUSTER = (node("small", cpu="2"), node("large", cpu="8"))


def run(policy: str) -> Rig:
    """Eleven pods of which the last do not fit, one that evicts, and one that fits once there is room."""
    rig = Rig(policy, *CLUSTER)
    rig.observe(*(pod(f"p{number:02}", cpu="1") for number in range(12)))
    rig.settle()
    rig.confirm_binds()
    rig.observe(pod("urgent", cpu="2", priority=10))
    rig.pass_time(120)
    rig.observe(node("new", cpu="4"))
    rig.pass_time(120)
    return rig


def test_the_commands_are_those_without_the_shadow_rules() -> None:
    used, with_shadows = run(USED), run(USED + SHADOWS)

    def told(rig: Rig) -> list[c.Command]:
        texts = (c.Log, c.SavePolicyTexts)  # the text itself differs
        return [command for command in rig.commands if not isinstance(command, texts)]

    assert len(used.of(c.Evict)) == 1
    sha, other = (rig.scheduler.core.policies.status()[0].sha256 for rig in (with_shadows, used))
    assert repr(told(with_shadows)).replace(str(sha), str(other)) == repr(told(used))


def test_what_they_would_have_changed_is_counted_for_placed_pods() -> None:
    rig = Rig(USED + SHADOWS, *CLUSTER)
    rig.observe(pod("one", cpu="1"), pod("huge", cpu="64"))

    rig.settle()

    shadows = rig.scheduler.counters.shadows
    assert rig.placements() == {"one": "large"}
    assert shadows.decisions == {
        ("test", "small", "filter", "moved"): 1,
        ("test", "nothing", "filter", "pending"): 1,
        ("test", "narrow", "score", "moved"): 1,
    }
    assert shadows.rejected_nodes == {("test", "small"): 1, ("test", "nothing"): 2}
    assert shadows.rejected_pods == {("test", "small"): 1, ("test", "nothing"): 1}


def test_a_gang_counts_each_member_once() -> None:
    gang = 'input group: string = pod.labels["group"] optional\ngang by group { min = 3 }\n'
    rig = Rig(USED + gang + SHADOWS, *CLUSTER)
    rig.observe(*(pod(name, cpu="1", labels={"group": "g"}) for name in "abc"))

    rig.settle()

    assert len(rig.placements()) == 3
    decisions = rig.scheduler.counters.shadows.decisions
    assert sum(count for (_, rule, _, _), count in decisions.items() if rule == "narrow") == 3


def test_a_failing_shadow_rule_fails_no_decision_and_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = ExpressionFilter.rejected

    def failing(self: ExpressionFilter, view: object) -> object:
        if self._messages.group == "too large":
            raise ZeroDivisionError("planted")
        return rejected(self, view)  # type: ignore[arg-type]

    rig = Rig(USED + SHADOWS, *CLUSTER)
    monkeypatch.setattr(ExpressionFilter, "rejected", failing)
    rig.observe(*(pod(f"p{number}", cpu="1") for number in range(3)))

    rig.settle()

    assert len(rig.placements()) == 3
    logged = [log.message for log in rig.of(c.Log) if "planted" in log.message]
    assert len(logged) == 3 and "shadow filter small of policy `test` failed" in logged[0]
    assert rig.scheduler.counters.shadows.decisions["test", "small", "filter", "error"] == 3


def test_pods_that_wait_have_no_shadow_rule_as_their_cause() -> None:
    rig = Rig("policy test version 1\nfilter few require node.pods < 0\n" + SHADOWS, *CLUSTER)
    rig.observe(pod("one", cpu="1"))

    rig.settle()

    message = rig.pending_message("one")
    assert message is not None and "few" in message and "small" not in message and "too large" not in message


def test_rules_that_a_text_does_not_have_any_more_are_forgotten() -> None:
    """A team that renames its rules with each edit would fill the memory and the metrics, 500 rules at a time."""
    rig = Rig(USED + SHADOWS, *CLUSTER)
    for number in range(3):
        renamed = SHADOWS.replace("small", f"small_{number}").replace("narrow", f"narrow_{number}")
        rig.apply_policies(USED + renamed)
        rig.settle()
        rig.observe(pod(f"placed-{number}", cpu="1"))
        rig.settle()
    shadows = rig.scheduler.counters.shadows
    assert {rule for _, rule, *_ in shadows.decisions} == {"small_2", "nothing", "narrow_2"}
    assert shadows.decisions["test", "nothing", "filter", "pending"] == 3
    assert set(shadows.rejected_pods) == {("test", "small_2"), ("test", "nothing")}

    for number in range(3):
        rig.apply_policies(USED + f"filter full_{number} reject node.ready or not node.ready\n")
        rig.settle()
        rig.observe(pod(f"pending-{number}", cpu="1"))
        rig.settle()
    assert set(rig.scheduler.core.queue.rule_counts) == {("test", "full_2")}
    assert not shadows.decisions
