"""Policy state for a key and a node: updated once per container run, bounded, saved over restarts."""

import json
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from policysched.cluster.metric_samples import ALL_NODES
from policysched.evaluate.rules.specialized_rules import Activation
from policysched.lang.ir.decay import Decay
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ContainerEvent, ObservedPod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.policies import policy_states, state_table
from policysched.scheduler.policies.state_namespaces import StateNamespaces
from policysched.scheduler.policy_permissions import COUNTS_ALWAYS
from tests.builders import namespace, node, placed, pod
from tests.evaluate.test_hostile import calls_of
from tests.scheduler.rig import START_NS, Rig, bundle

KEPT = """\
policy test version 1
filter node_resources_fit
state reward: float {{
  key = pod.labels["app"] else pod.name
  on = {on}
  value = if container.terminated and container.exit_code != 0 then 0.0 else 1.0
  keep = 50%
  start = {start}
  most = {most}
}}
filter trusted require reward > 0.3
score learnt weight 1 higher reward normalize range(0, 1)
preemption never
"""
SECOND_NS = 10**9


def policy(on: str = "terminated", start: float = 1.0, most: int = 100) -> str:
    return KEPT.format(on=on, start=start, most=most)


def ended(run: str, code: int = 1, at_s: int = 0, **more: object) -> ContainerEvent:
    moment = ContainerEvent("c", run, True, START_NS + at_s * SECOND_NS, code, "Error", 5 * SECOND_NS)
    return replace(moment, **more)  # type: ignore[arg-type]


def shown(
    name: str, on: str, *moments: ContainerEvent, app: str = "web", namespace: str = "default"
) -> ObservedPod:
    return replace(placed(pod(name, namespace=namespace, labels={"app": app}), on), container_events=moments)


def values(rig: Rig, state: str = "reward") -> dict[tuple[str, str], float]:
    table = rig.scheduler.samples("test")[state].state_rows
    return {
        (key, name): value for key, row in table.items() for name, value in row.at(rig.now_ns).values.items()
    }


def attempt_count(rig: Rig) -> int:
    return sum(rig.scheduler.counters.attempts.values())


def test_each_run_of_a_container_updates_the_value_once() -> None:
    rig = Rig(policy(), node("a"))

    rig.observe(shown("p", "a", ended("run-1")))
    once = values(rig)
    rig.observe(shown("p", "a", ended("run-1")))
    again = values(rig)
    rig.observe(shown("p", "a", ended("run-1"), ended("run-2", at_s=9)))

    assert once == again == {("web", "a"): 0.5}
    assert values(rig) == {("web", "a"): 0.25}


def test_a_relist_updates_nothing_and_a_deleted_pod_is_forgotten() -> None:
    rig = Rig(policy(), node("a"))
    whole = shown("p", "a", ended("run-1"), ended("run-2", code=0, at_s=3))

    rig.observe(whole, replace(whole, phase="Failed"), replace(whole, phase="Failed"))
    rig.handle(e.PodDeleted(whole.pod.uid))

    assert values(rig) == {("web", "a"): 0.75}
    assert rig.scheduler._core.samples.policy_states._policies["test"].events_by_pod == {}


def test_only_placed_pods_of_the_policy_update_its_state() -> None:
    rig = Rig(policy(on="started", start=0.5), node("a"))
    began = ContainerEvent("c", "run-2", False, START_NS)
    foreign = replace(placed(pod("q", scheduler="other"), "a"), container_events=(began,))

    rig.observe(foreign, shown("p", "a", ended("run-1")))
    before = values(rig)
    rig.observe(shown("p", "a", ended("run-1"), began))

    assert before == {}
    assert values(rig) == {("web", "a"): 0.75}


def test_a_pod_is_placed_by_the_policy_state_and_waits_if_it_is_bad_everywhere() -> None:
    rig = Rig(policy(), node("a"), node("b"))
    rig.observe(shown("p", "a", ended("run-1")))
    rig.observe(pod("next", labels={"app": "web"}))
    rig.settle()
    rig.observe(*(shown(f"p-{name}", name, ended("run-1"), ended("run-2", at_s=3)) for name in "ab"))
    rig.observe(pod("refused", labels={"app": "web"}), pod("stranger", labels={"app": "db"}))
    rig.settle()

    refused = rig.pending_message("refused")
    rig.observe(shown("p-a", "a", ended("run-2", at_s=3), ended("run-3", code=0, at_s=4)))
    rig.pass_time(20)

    assert rig.placements()["next"] == "b"
    assert "stranger" in rig.placements()
    assert refused == "0/2 nodes are available: 2 node(s) didn't satisfy rule trusted."
    assert rig.placements()["refused"] == "a", "what was fed has woken it"


FAILING = """\
policy test version 1
filter node_resources_fit
let reward_value: float =
  if container.pod_failed then 0.0 else if not has container.down or container.down > 10m then 1.0 else 0.5
state reward: float {
  key = pod.labels["app"] else pod.name
  on = any
  when = container.terminated and (container.name == "" or not container.pod_failed)
  value = reward_value
  keep = 50%
  start = 0.0
}
state anywhere: float {
  key = pod.labels["app"] else pod.name
  per = cluster
  on = failed
  value = reward_value
  keep = 50%
  start = 1.0
}
state all_here: ratio { on = either  value = 50%  keep = 0%  start = 0% }
score learnt weight 1 higher reward + anywhere + all_here normalize range(0, 1)
preemption never
"""


def test_a_failed_pod_updates_the_state_once() -> None:
    rig = Rig(FAILING, node("a"))
    failure = ContainerEvent("", "", True, START_NS, pod_failed=True, is_pod_event=True)
    evicted = shown("evicted", "a", failure)
    crashed = shown(
        "crashed",
        "a",
        *(ended(f"run-{number}", pod_failed=True, name=f"c{number}") for number in range(3)),
        failure,
    )

    rig.observe(evicted, evicted)
    after_one = values(rig, "anywhere")
    rig.observe(crashed)

    assert values(rig, "reward") == {("web", "a"): 0.0}
    assert after_one == {("web", ALL_NODES): 0.5}
    assert values(rig, "anywhere") == {("web", ALL_NODES): 0.25}
    assert values(rig, "all_here") == {("", "a"): 0.5}


def test_the_downtime_of_a_container_is_remembered_until_its_run_ends() -> None:
    rig = Rig(FAILING, node("a"))
    second = ContainerEvent("c", "run-2", False, START_NS + SECOND_NS, downtime_ns=30 * SECOND_NS)

    rig.observe(shown("p", "a", ended("run-1")))
    rig.observe(shown("p", "a", ended("run-1"), second))
    before = values(rig)
    rig.observe(shown("p", "a", ended("run-2", at_s=9)))

    assert before == {("web", "a"): 0.5}, "nothing was down before the first run, and a start gives no reward"
    assert values(rig) == {("web", "a"): 0.5}, "half of it stays, and half of the half that is fed is added"


def test_the_cluster_wide_value_applies_to_nodes_without_a_value() -> None:
    text = FAILING.replace("score learnt", "filter trusted require anywhere > 0.7\nscore learnt")
    rig = Rig(text, node("a"), node("b"))

    rig.observe(shown("p", "a", ContainerEvent("", "", True, START_NS, pod_failed=True, is_pod_event=True)))
    rig.observe(pod("next", labels={"app": "web"}), pod("other", labels={"app": "db"}))
    rig.settle()

    assert rig.pending_message("next") == "0/2 nodes are available: 2 node(s) didn't satisfy rule trusted."
    assert "other" in rig.placements()


def test_beyond_the_limit_the_least_recently_updated_value_is_dropped() -> None:
    rig = Rig(policy(most=2), node("a"))

    for number, app in enumerate(("one", "two", "one", "three")):
        rig.observe(shown(f"p{number}", "a", ended("run-1"), app=app))

    assert values(rig) == {("one", "a"): 0.25, ("three", "a"): 0.5}
    assert rig.scheduler.state_counts() == {
        ("test", "reward"): policy_states.StateCounts(value_count=2, value_count_max=2, dropped_count=1)
    }


def test_the_pods_of_a_namespace_make_a_state_forget_their_own_values_first() -> None:
    rig = Rig(policy(most=10), node("a"))
    rig.observe(shown("learnt", "a", ended("run-1"), app="miner", namespace="victim"))
    rig.observe(shown("again", "a", ended("run-1"), app="miner", namespace="evil"))

    for number in range(30):
        rig.observe(shown(f"p{number}", "a", ended("run-1"), app=f"app-{number}", namespace="evil"))

    kept = values(rig)
    assert kept["miner", "a"] == 0.25, "also after another namespace updated it"
    assert len(kept) == 10 and ("app-29", "a") in kept and ("app-20", "a") not in kept


def test_of_saved_values_a_namespace_makes_a_state_forget_no_more_than_half() -> None:
    rig = Rig(None, synced=False)
    saved: list[state_table.StateEntry] = [(f"saved-{number}", NodeName("a"), 0.5) for number in range(10)]
    rig.handle(e.SavedPolicyStatesLoaded({"test": policy_states.state_text(0, {"reward": saved})}))
    rig.apply_policies(policy(most=10))

    for number in range(30):
        rig.observe(shown(f"p{number}", "a", ended("run-1"), app=f"app-{number}", namespace="evil"))

    assert sum(key.startswith("saved") for key, _ in values(rig)) == 5


def test_the_namespace_with_the_most_values_loses_the_next_one_in_random_histories() -> None:
    random = Random("namespaces of states")
    for _ in range(50):
        saved = [(f"saved-{number}", NodeName("a")) for number in range(random.randrange(4))]
        namespaces, naive = StateNamespaces(saved), dict.fromkeys(saved, "")
        for _ in range(100):
            value = (f"k{random.randrange(12)}", NodeName("a"))
            if naive and random.random() < 0.3:
                value = random.choice(list(naive))
            if value in naive and random.random() < 0.4:
                namespaces.dropped(value)
                del naive[value]
            else:
                name = random.choice("xyz")
                namespaces.updated(value, name)
                naive[value] = naive.pop(value, name)
            if naive:
                counts, dropped = Counter(naive.values()), namespaces.next_to_drop()
                owner = naive[dropped]
                assert counts[owner] == max(counts.values())
                assert dropped == next(value for value in naive if naive[value] == owner)


def test_values_are_saved_at_most_every_half_minute_and_restored_after_a_restart() -> None:
    before = Rig(policy(), node("a"))
    for run in range(3):
        before.observe(shown("p", "a", ended(f"run-{run}", at_s=run)))
        before.pass_time(20)
    before.pass_time(60)
    saved = before.of(c.SavePolicyStates)

    after = Rig(None, synced=False)
    after.handle(e.SavedPolicyStatesLoaded(saved[-1].texts))
    after.observe(
        node("a"), shown("p", "a", ended("run-2", at_s=2)), shown("new", "a", ended("run-9", 0, at_s=7))
    )
    after.apply_policies(policy())
    after.handle(e.Synced())

    assert len(saved) == 2
    assert values(before) == {("web", "a"): 0.125}
    assert values(after) == {("web", "a"): 0.5625}, "fed by what happened meanwhile, and by nothing twice"


def test_a_node_with_a_clock_a_year_ahead_does_not_stop_updates_after_a_restart() -> None:
    year_s = 365 * 86_400
    before = Rig(policy(), node("a"))
    before.observe(shown("p", "a", ended("run-1", at_s=year_s)), shown("q", "a", ended("run-1", at_s=1)))
    before.pass_time(60)
    kept = before.of(c.SavePolicyStates)[-1].texts

    after = Rig(None, synced=False)
    after.handle(e.SavedPolicyStatesLoaded(kept))
    after.observe(
        node("a"), shown("q", "a", ended("run-1", at_s=1)), shown("r", "a", ended("run-9", 0, at_s=9))
    )
    after.apply_policies(policy())
    after.handle(e.Synced())

    assert values(before) == {("web", "a"): 0.25}
    assert values(after) == {("web", "a"): 0.625}, "only what happened meanwhile"


def test_saved_values_from_the_future_do_not_stop_updates() -> None:
    year_ns = 365 * 86_400 * SECOND_NS
    rig = Rig(None, synced=False)
    rig.handle(
        e.SavedPolicyStatesLoaded(
            {"test": f'{{"fed_ns":{START_NS + year_ns},"values":{{"reward":[["web","a",0.5]]}}}}'}
        )
    )
    rig.apply_policies(policy())
    rig.handle(e.Synced())

    rig.observe(node("a"), shown("p", "a", ended("run-1", at_s=400)))

    assert values(rig) == {("web", "a"): 0.25}


def test_of_too_many_saved_values_the_latest_are_restored() -> None:
    kept = json.dumps(
        {"fed_ns": 1, "values": {"reward": [[f"app-{number}", "a", 0.5] for number in range(5)]}}
    )
    rig = Rig(None, synced=False)

    rig.handle(e.SavedPolicyStatesLoaded({"test": kept}))
    rig.apply_policies(policy(most=2))

    assert values(rig) == {("app-3", "a"): 0.5, ("app-4", "a"): 0.5}
    assert rig.scheduler.state_counts() == {
        ("test", "reward"): policy_states.StateCounts(value_count=2, value_count_max=2, dropped_count=3)
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"fed_ns":1,"values":{"reward":[["web","a",true]]}}',
        '{"fed_ns":1,"values":[]}',
        '{"fed_ns":1,"values":{"reward":[["web","a",1' + "0" * 400 + "]]}}",
        '{"fed_ns":1' + "0" * 400 + ',"values":{}}',
        '{"fed_ns":1,"values":{"reward":[["\\ud800","a",1.0]]}}',
    ],
)
def test_unreadable_saved_values_are_reported_and_reset(text: str) -> None:
    rig = Rig(None, node("a"))

    commands = rig.handle(e.SavedPolicyStatesLoaded({"test": text}))
    rig.apply_policies(policy())

    assert [command.level for command in commands if isinstance(command, c.Log)] == ["warning"]
    assert values(rig) == {}


def test_an_unchanged_state_declaration_keeps_its_values_and_a_changed_one_resets_them() -> None:
    rig = Rig(policy(), node("a"))
    rig.observe(shown("p", "a", ended("run-1")))

    rig.apply_policies(policy() + "filter node_ports\n")
    alike = values(rig)
    rig.apply_policies(policy(start=0.5))
    rig.observe(shown("p", "a", ended("run-1")))

    assert alike == {("web", "a"): 0.5}
    assert values(rig) == {}


def test_an_edit_does_not_load_the_values_of_an_unchanged_state_again() -> None:
    """100,000 values took a second of the main loop, at each edit."""
    program = bundle({"main.policy": policy(most=2_000)}).sources["main.policy"].program
    assert program is not None
    states = policy_states.PolicyStates(lambda _: namespace(), COUNTS_ALWAYS)
    saved: list[state_table.StateEntry] = [(f"k{n}", NodeName("a"), 0.5) for n in range(2_000)]
    states.restore({"test": policy_states.state_text(0, {"reward": saved})})
    states.activate(program, START_NS)

    assert calls_of(lambda: states.activate(program, START_NS)) < 2_000
    assert states.counts()["test", "reward"].value_count == 2_000


def test_saved_values_are_cut_to_the_size_of_a_config_map() -> None:
    rig = Rig(policy(most=50_000), node("a"))
    for number in range(800):
        rig.observe(shown(f"p{number}", "a", ended("run-1"), app=f"{number:03}{'x' * 1000}"))

    (text,) = rig.scheduler._core.samples.policy_states.texts().values()

    keys = [key[:3] for key, _, _ in json.loads(text)["values"]["reward"]]
    assert len(text.encode()) <= policy_states.TEXTS_BYTES_MAX
    assert 100 < len(keys) < 800
    assert keys[-1] == "799"


def test_a_policy_with_many_states_leaves_the_others_their_share_of_the_saved_values() -> None:
    """A policy of a team with a thousand states left each state of others 500 bytes."""
    states = "".join(
        f"state s{number}: float {{ key = pod.name value = 1.0 keep = 50% start = 1.0 most = 10 }}\n"
        for number in range(1_000)
    )
    rig = Rig(policy(most=50_000), node("a"))
    many = f"policy many version 1\n{states}filter node_resources_fit\npreemption never\n"
    rig.apply_policies({"main.policy": policy(most=50_000), "many.policy": many})
    for number in range(200):
        rig.observe(shown(f"p{number}", "a", ended("run-1"), app=f"{number:03}{'x' * 100}"))

    texts = rig.scheduler._core.samples.policy_states.texts()

    assert len(json.loads(texts["many"])["values"]) == 1_000
    assert len(json.loads(texts["test"])["values"]["reward"]) == 200


def test_forgetting_the_events_of_a_pod_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right = policy_states.PolicyStates.pod_updated

    def forgetful(self: policy_states.PolicyStates, observed: ObservedPod, now_ns: int) -> str | None:
        self.pod_deleted(observed.pod.uid)
        return right(self, observed, now_ns)

    monkeypatch.setattr(policy_states.PolicyStates, "pod_updated", forgetful)

    with pytest.raises(AssertionError):
        test_a_relist_updates_nothing_and_a_deleted_pod_is_forgotten()


def test_a_key_that_is_too_long_is_ignored_and_counted() -> None:
    rig = Rig(policy(), node("a"))

    rig.observe(
        shown("p", "a", ended("run-1"), app="x" * 1024), shown("q", "a", ended("run-1"), app="x" * 1025)
    )

    assert values(rig) == {("x" * 1024, "a"): 0.5}
    assert rig.scheduler.state_counts()["test", "reward"].long_key_count == 1


def test_a_saved_key_that_is_too_long_is_dropped() -> None:
    entries = [("x" * 1025, "a", 0.1), ("web", "a", 0.2)]
    rig = Rig(None, node("a"))

    rig.handle(e.SavedPolicyStatesLoaded({"test": policy_states.state_text(0, {"reward": entries})}))  # type: ignore[dict-item]
    rig.apply_policies(policy())

    assert values(rig) == {("web", "a"): 0.2}


DECAYING = """\
policy test version 1
filter node_resources_fit
state reward: float {
  key = pod.labels["app"] else pod.name
  value = if container.exit_code == 0 then 1.0 else 0.0
  keep = 0%
  start = 1.0
  half_life = 30m
  most = 3
}
filter trusted require reward >= 0.5
preemption never
"""
MINUTE_NS = 60 * SECOND_NS


def test_a_node_that_was_avoided_is_tried_again_after_its_half_life() -> None:
    rig = Rig(DECAYING, node("a"))
    rig.observe(shown("p", "a", ended("run-1")))
    rig.observe(pod("next", labels={"app": "web"}))
    rig.settle()
    refused = rig.pending_message("next")

    rig.pass_time(29 * 60)
    before = dict(rig.placements())
    rig.pass_time(2 * 60)

    assert refused == "0/1 nodes are available: 1 node(s) didn't satisfy rule trusted."
    assert "next" not in before
    assert rig.placements().get("next") == "a"


def test_a_waiting_pod_is_evaluated_at_most_64_times_per_half_life_and_not_for_ever() -> None:
    rig = Rig(DECAYING.replace("reward >= 0.5", "reward >= 1.5"), node("a"))
    rig.observe(shown("p", "a", ended("run-1")))
    rig.observe(pod("next", labels={"app": "web"}))
    rig.settle()
    attempts = [attempt_count(rig)]

    for seconds in (30 * 60, 20 * 30 * 60, 30 * 60):
        rig.pass_time(seconds)
        attempts.append(attempt_count(rig))

    assert 0 < attempts[1] - attempts[0] <= 65
    assert attempts[3] == attempts[2], "after 20 half-lives nothing changes any more"


def test_a_decayed_value_is_what_an_update_adds_to() -> None:
    rig = Rig(DECAYING.replace("keep = 0%", "keep = 50%"), node("a"))
    rig.observe(shown("p", "a", ended("run-1")))
    at_once = values(rig)
    rig.pass_time(30 * 60)
    after_one = values(rig)
    rig.observe(shown("q", "a", ended("run-1", at_s=30 * 60)))
    updated = values(rig)
    rig.pass_time(30 * 60)

    assert at_once == {("web", "a"): 0.5}
    assert after_one == {("web", "a"): 0.75}
    assert updated == {("web", "a"): 0.375}
    assert values(rig) == {("web", "a"): 1 - 0.625 / 2}


def test_a_late_event_does_not_make_a_value_older() -> None:
    rig = Rig(DECAYING, node("a"))
    rig.pass_time(3600)

    rig.observe(shown("p", "a", ended("run-1", at_s=3600)), shown("q", "a", ended("run-1", at_s=1)))

    assert values(rig) == {("web", "a"): 0.0}


def test_a_saved_value_decays_from_its_update_and_is_forgotten_at_its_start() -> None:
    before = Rig(DECAYING, node("a"))
    before.observe(shown("p", "a", ended("run-1")))
    before.pass_time(60)
    (saved,) = before.of(c.SavePolicyStates)
    after = Rig(None, synced=False)
    after.now_ns = START_NS + 30 * MINUTE_NS
    after.handle(e.SavedPolicyStatesLoaded(saved.texts))
    after.apply_policies(DECAYING)
    after.handle(e.Synced())
    restored = values(after)

    after.pass_time(20 * 30 * 60)
    after.observe(node("b"), shown("q", "b", ended("run-1", at_s=20 * 30 * 60)))
    after.pass_time(60)

    assert restored == {("web", "a"): 0.5}
    assert values(after).keys() == {("web", "b")}


def test_values_that_decayed_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 took 60 ms of the main loop in one piece, every 30 seconds."""
    entries = [[f"k{number}", "a", 0.0, START_NS] for number in range(1_000)]
    rig = Rig(None, synced=False)
    text = json.dumps({"fed_ns": START_NS, "values": {"reward": entries}})
    rig.handle(e.SavedPolicyStatesLoaded({"test": text}))
    rig.apply_policies(DECAYING.replace("most = 3", "most = 2000"))
    rig.observe(node("a"))
    rig.handle(e.Synced())
    rig.pass_time(20 * 30 * 60)
    monkeypatch.setattr(state_table, "_VALUES_PER_STEP", 100)
    visited, value_at = [0], Decay.value_at

    def counted(decay: Decay, value: float, updated_ns: int, now_ns: int) -> float:
        visited[-1] += 1
        return value_at(decay, value, updated_ns, now_ns)

    monkeypatch.setattr(Decay, "value_at", counted)
    rig.observe(shown("q", "a", ended("run-1", at_s=20 * 30 * 60)))
    rig.now_ns += policy_states.WRITE_INTERVAL_NS
    while not rig.of(c.SavePolicyStates):
        visited.append(0)
        assert rig.scheduler.ready(rig.now_ns)
        rig.commands += rig.scheduler.decide(rig.now_ns)

    assert max(visited) <= 101
    assert values(rig).keys() == {("web", "a")} == {(key, name) for key, name, *_ in saved_values(rig)}


def saved_values(rig: Rig) -> list[list[object]]:
    (saved,) = rig.of(c.SavePolicyStates)
    return list(json.loads(saved.texts["test"])["values"]["reward"])


def test_restoring_a_value_as_if_it_were_new_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_states, "state_entry", lambda values: (values[0], values[1], values[2]))

    with pytest.raises(AssertionError):
        test_a_saved_value_decays_from_its_update_and_is_forgotten_at_its_start()


def test_rows_that_do_not_say_when_they_change_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Activation, "state_changes_ns", lambda _: [])

    with pytest.raises(AssertionError):
        test_a_node_that_was_avoided_is_tried_again_after_its_half_life()
