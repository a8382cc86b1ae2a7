"""Canaries: rules for a share of the owners, with a guard that rolls them back and survives a restart."""

import json
from collections.abc import Mapping

import pytest

from policysched.lang.ir.text_functions import bucket_of
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.canary_guards import guard_state
from tests.builders import node, pod
from tests.scheduler.rig import Rig

BASE = """\
policy test version 1
filter node_resources_fit
score wide weight 1 higher node.allocatable.cpu normalize range(0, 64)
"""
CANARY = """\
canary strict {share} by pod.owner.name guard pending < 20% for 30s else rollback {{
  filter none reject node.pods >= 0 says "the canary takes no node"
}}
"""
NODES = (node("a", cpu="64"), node("b", cpu="32"))


def owned(name: str, owner: str = "") -> Pod:
    return pod(name, cpu="10m", owner=("apps/v1", "ReplicaSet", owner or name))


def in_share(owner: str, share: float, canary: str = "strict") -> bool:
    """As the documentation says it."""
    return bucket_of(f"canary {canary}: {owner}", 10_000) < share * 10_000


def saved_states(rig: Rig) -> Mapping[str, str]:
    return rig.of(c.SavePolicyStates)[-1].texts


def restarted(rig: Rig, policy: str, *pods: Pod) -> Rig:
    """Another process, with what the first one has saved."""
    again = Rig(None, *NODES, synced=False)
    again.now_ns = rig.now_ns + 10**9
    again.handle(e.SavedPolicyStatesLoaded(saved_states(rig)))
    again.apply_policies(policy)
    again.observe(*pods)
    again.handle(e.Synced())
    again.settle()
    return again


def events(rig: Rig) -> list[c.ReportPolicyEvent]:
    return [event for event in rig.of(c.ReportPolicyEvent) if event.reason == "CanaryRolledBack"]


ALL = BASE + CANARY.format(share="100%")


def test_a_share_of_the_owners_gets_the_rules_and_always_the_same() -> None:
    pods = [owned(f"p{number}-{copy}", f"web-{number}") for number in range(60) for copy in "ab"]
    rig = Rig(BASE + CANARY.format(share="30%"), *NODES)

    rig.observe(*pods)
    rig.settle()

    placed = {each.name for each in pods if in_share(each.owner_name, 0.3)} ^ {each.name for each in pods}
    assert rig.placements().keys() == placed
    assert 10 <= len({each.owner_name for each in pods if each.name not in placed}) <= 26


def test_a_pod_without_an_owner_is_in_no_canary() -> None:
    rig = Rig(ALL, *NODES, pod("alone", cpu="1"), owned("owned"))

    rig.settle()

    assert rig.placements().keys() == {"alone"}
    assert "the canary takes no node" in (rig.pending_message("owned") or "")


def test_a_guard_that_stays_broken_rolls_back_and_places_the_pods() -> None:
    rig = Rig(ALL, *NODES, owned("a"), owned("b"))
    rig.settle()

    rig.pass_time(28)
    before = rig.placements()
    rig.pass_time(4)

    assert before == {} and rig.placements().keys() == {"a", "b"}
    assert [event.type for event in events(rig)] == ["Warning"]
    assert (
        "2 of its 2 pods are pending, and its guard `pending < 20%` was broken for 30s"
        in events(rig)[0].message
    )
    record = json.loads(saved_states(rig)["test"])["canary"]
    assert record["rolled_back_ns"] is not None and (record["pending"], record["pods"]) == (2, 2)


def test_a_guard_that_holds_again_does_not_roll_back() -> None:
    few = ALL.replace("reject node.pods >= 0", "reject node.unschedulable")
    rig = Rig(few, node("a", cpu="64", unschedulable=True), owned("a"))
    rig.settle()
    rig.pass_time(20)

    rig.observe(node("a", cpu="64"))
    rig.pass_time(60)

    assert rig.placements().keys() == {"a"} and not events(rig)
    assert json.loads(saved_states(rig)["test"])["canary"]["broken_since_ns"] is None


def test_a_guard_that_changes_all_the_time_is_not_saved_each_time() -> None:
    rig = Rig(ALL, *NODES)
    for number in range(10):
        rig.observe(owned(f"p{number}"))
        rig.pass_time(2)
        rig.handle(e.PodDeleted(owned(f"p{number}").uid))
        rig.pass_time(2)

    assert len(rig.of(c.SavePolicyStates)) <= 4


def test_a_canary_that_is_edited_all_the_time_is_not_saved_each_time() -> None:
    rig = Rig(ALL, *NODES)
    rig.settle()
    for number in range(10):
        rig.apply_policies(ALL.replace("30s", f"{31 + number}s"))
        rig.pass_time(3)

    assert 1 <= len(rig.of(c.SavePolicyStates)) <= 4
    rig.pass_time(60)
    latest = rig.scheduler.core.canaries.records["test"].sha256
    assert json.loads(saved_states(rig)["test"])["canary"]["sha256"] == latest


def test_a_canary_that_is_edited_after_each_rollback_is_not_saved_each_time() -> None:
    short = ALL.replace("30s", "1s").replace("20%", "5%")
    rig = Rig(short, *NODES)
    for number in range(10):
        rig.apply_policies(short.replace("no node", f"no node {number}"))
        rig.settle()
        rig.observe(owned(f"p{number}"))
        rig.pass_time(3)
        rig.handle(e.PodDeleted(owned(f"p{number}").uid))

    assert len(events(rig)) == 10
    assert 1 <= len(rig.of(c.SavePolicyStates)) <= 6
    rig.pass_time(60)
    assert json.loads(saved_states(rig)["test"])["canary"]["rolled_back_ns"] is not None


def test_a_rolled_back_canary_stays_so_after_a_restart_until_its_text_changes() -> None:
    rig = Rig(ALL, *NODES, owned("a"))
    rig.pass_time(60)
    rig.confirm_binds()

    again = restarted(rig, ALL, owned("b"))
    assert again.placements().keys() == {"b"}, "the rules of the canary apply to no pod"

    again.apply_policies(ALL + "# a comment\n")
    again.observe(owned("c"))
    again.settle()
    assert "c" in again.placements(), "a comment is no other text"

    again.apply_policies(ALL.replace("20%", "21%"))
    again.settle()
    again.observe(owned("d"))
    again.settle()
    assert "d" not in again.placements(), "another guard is another canary"


def test_a_restart_does_not_give_a_broken_guard_more_time() -> None:
    rig = Rig(ALL, *NODES, owned("a"))
    rig.pass_time(20)

    again = restarted(rig, ALL, owned("a"))
    again.pass_time(8)
    early = again.placements()
    again.pass_time(4)

    assert early == {} and again.placements().keys() == {"a"}


def test_a_text_without_the_canary_forgets_it() -> None:
    rig = Rig(ALL, *NODES, owned("a"))
    rig.pass_time(60)

    rig.apply_policies(BASE)
    rig.settle()

    assert "canary" not in saved_states(rig).get("test", "")


def test_the_record_of_a_policy_that_is_removed_is_forgotten() -> None:
    """A team that renames its policy at each edit left one for each name, saved for ever."""
    other = BASE.replace("policy test", "policy other")
    rig = Rig({"main.policy": ALL, "other.policy": other}, *NODES)
    assert "canary" in saved_states(rig)["test"]

    rig.apply_policies({"test.removed": "", "other.policy": other})
    rig.settle()

    assert "test" not in saved_states(rig)


def test_the_states_of_a_policy_are_kept_beside_its_canary() -> None:
    state = "state reward: float { key = pod.name  value = 0.5  keep = 90%  start = 1.0 }\n"
    rig = Rig(BASE + state + CANARY.format(share="100%"), *NODES, owned("a"))
    rig.pass_time(60)

    saved = json.loads(saved_states(rig)["test"])

    assert saved["values"] == {"reward": []} and saved["canary"]["name"] == "strict"


@pytest.mark.parametrize(
    "text", ['{"fed_ns":0,"values":{},"canary":3}', '{"fed_ns":0,"values":{},"canary":{"name":"x"}}']
)
def test_an_unreadable_record_is_reported_and_leaves_the_canary_active(text: str) -> None:
    rig = Rig(None, *NODES, synced=False)
    rig.handle(e.SavedPolicyStatesLoaded({"test": text}))
    rig.apply_policies(ALL)
    rig.handle(e.Synced())
    rig.observe(owned("a"))
    rig.settle()

    assert any(
        "cannot read the saved record of the canary of policy test" in log.message for log in rig.of(c.Log)
    )
    assert rig.placements() == {}


def test_a_pod_that_leaves_the_share_is_no_longer_measured() -> None:
    gold = ALL.replace("guard", 'when (namespace.labels["tier"] else "") == "gold" guard')
    rig = Rig(gold, *NODES, owned("a"))
    rig.settle()
    assert rig.placements().keys() == {"a"}
    assert not rig.scheduler.core.canaries.active["test"].members


@pytest.mark.parametrize(
    ("tried", "untried", "total", "state"),
    [
        (0, 0, 0, "holds"),
        (1, 0, 100, "holds"),
        (2, 0, 100, "broken"),
        (0, 2, 100, "unknown"),
        (1, 1, 100, "unknown"),
        (0, 1, 100, "holds"),
        (2, 98, 100, "broken"),
    ],
)
def test_what_is_not_known_yet_neither_breaks_a_guard_nor_lets_it_hold(
    tried: int, untried: int, total: int, state: str
) -> None:
    assert guard_state(tried, untried, total, 0.02) == state
