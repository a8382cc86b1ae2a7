"""The documents of the page agree with the scheduler's state."""

import hashlib
import itertools
import json
from dataclasses import replace

import pytest

from policysched.lang.ir.program import Program
from policysched.runtime import rule_times
from policysched.runtime.policy_history import PolicyHistory
from policysched.scheduler import events as e
from policysched.serve.page_feed import visible_in
from tests.builders import node, pod
from tests.devices import asking, claim, device_class, device_slice, gpu, user
from tests.evaluate.test_hostile import calls_of
from tests.page.served_page import document
from tests.scheduler.rig import FIT, Rig


def settled() -> Rig:
    rig = Rig(FIT + "filter node_name\n", node("a", cpu="4"), node("b", cpu="500m", unschedulable=True), pod("fine", cpu="1"), pod("huge", cpu="64"), pod("huge-2", cpu="64"))  # fmt: skip
    rig.settle()
    rig.confirm_binds()
    return rig


def test_the_overview_counts_what_waits_and_what_runs() -> None:
    page = document(settled(), "/page/overview")

    assert page["queue"]["unschedulable"] == 2
    assert (page["nodes"], page["pods"]) == (2, 3)
    assert page["attempts"]["scheduled"] == 1
    assert page["policies"][0]["phase"] == "active"


def test_the_causes_have_their_pods_requests_and_namespaces() -> None:
    page = document(settled(), "/page/pending")

    assert page["pods"] == 2
    (cause,) = page["causes"]
    assert cause["pods"] == 2 and cause["namespaces"] == ["default"]
    assert {"resource": "cpu", "amount": "128"} in cause["requests"]
    assert [row["pod"] for row in cause["examples"]] == ["default/huge", "default/huge-2"]


def test_a_viewer_of_some_namespaces_sees_no_entities_of_quotas() -> None:
    quota = 'quota team by pod.annotations["customer"] else "none" { others unlimited }\n'
    rig = Rig(FIT + quota, node("a"), pod("p", cpu="1", annotations={"customer": "secret"}))
    rig.settle()

    page = document(rig, "/page/queue")

    assert [row["entity"] for row in page["quotas"]] == [["secret"]]
    assert visible_in(page, frozenset({"other"}))["quotas"] == []


def test_of_thousands_of_requested_resources_a_cause_has_a_few() -> None:
    """Pods can request 1,800 each, all of them different: a million rows for some hundreds of pods."""
    pods = [
        pod(f"p{number}", cpu="99", resources={f"example.com/r{number}-{i}": "1" for i in range(30)})
        for number in range(3)
    ]
    rig = Rig('policy test version 1\nfilter closed require node.pods < 0 says "closed"\n', node("a"), *pods)
    rig.settle()

    (cause,) = document(rig, "/page/pending")["causes"]
    assert cause["pods"] == 3
    assert {"resource": "cpu", "amount": "297"} in cause["requests"]
    assert 10 < len(cause["requests"]) <= 16


def test_nodes_are_columns_of_the_chosen_value() -> None:
    page = document(settled(), "/page/nodes", {"by": "cpu"})

    assert page["names"] == ["a", "b"]
    assert page["values"] == [1000, 0] and page["of"] == [4000, 500]
    assert page["flags"] == [0, 1]


def test_a_rule_that_kept_pods_pending_is_counted_and_others_are_not() -> None:
    (policy,) = document(settled(), "/page/policies")["policies"]

    fit = next(rule for rule in policy["rules"] if rule["name"] == "node_resources_fit")
    assert fit["blocked"] >= 1
    others = [rule["blocked"] for rule in policy["rules"] if rule is not fit]
    assert others and set(others) == {0}


def test_each_rule_has_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = itertools.count(step=1000)
    monkeypatch.setattr(rule_times, "perf_counter_ns", lambda: next(clock_ns))

    (policy,) = document(settled(), "/page/policies")["policies"]

    assert {rule["name"]: rule["us"] for rule in policy["rules"]} == {
        "node_name": None,  # cannot reject a node for a pod without `nodeName`
        "node_resources_fit": 1.0,
    }


def test_times_are_of_the_rules_of_the_text_that_runs_and_of_its_pods() -> None:
    rig = settled()
    core, times = rig.scheduler.core, rule_times.RuleTimes()

    for _ in range(3):
        times.measure(core, "test", rig.now_ns)

    assert times.of("test").keys() == {"node_resources_fit"}
    assert all(us > 0 for us in times.of("test").values())
    assert rig.scheduler.check() == []


def test_no_devices_are_searched_to_take_times() -> None:
    """The search is limited and sliced in attempts alone."""
    rig = Rig(FIT, node("a"))
    objects = device_class(), device_slice("a", gpu("g")), claim("c", asking())
    rig.handle(*[e.DeviceObjectUpdated(thing) for thing in objects])
    rig.observe(user("u", "c"))
    times = rule_times.RuleTimes()

    times.measure(rig.scheduler.core, "test", rig.now_ns)
    assert times.of("test") == {}

    rig.observe(pod("plain"))
    times.measure(rig.scheduler.core, "test", rig.now_ns)
    assert times.of("test")


def test_a_policy_without_a_pod_has_no_times() -> None:
    (policy,) = document(Rig(FIT, node("a")), "/page/policies")["policies"]

    assert {rule["us"] for rule in policy["rules"]} == {None}


def test_every_row_about_a_pod_names_its_namespace() -> None:
    """`serve.page_feed` hides rows by it."""
    checked = set[str]()
    for path, query in (
        ("pending", {}),
        ("queue", {}),
        ("pod", {"pod": "default/huge"}),
        ("pod", {"pod": "huge"}),
    ):
        page = document(settled(), f"/page/{path}", query)
        for key, rows in page.items():
            for row in rows if isinstance(rows, list) else ():
                if "default/huge" in json.dumps(row):
                    assert "namespace" in row or "namespaces" in row, (path, key, row)
                    checked.add(path)
    assert checked >= {"pending", "queue"}


def test_the_history_has_the_diff_of_each_edit() -> None:
    history, rig = PolicyHistory(), settled()
    (name, program), *_ = rig.scheduler.programs().items()
    other = Rig(FIT + 'filter spare require node.free.pods > 2 says "full"\n', node("a"))
    history.observe(name, program, 1_000_000)
    history.observe(name, program, 2_000_000)
    history.observe(name, other.scheduler.programs()[name], 3_000_000)

    newest, first = history.of(name)
    assert first["diff"] == [] and first["seen_ms"] == 1
    assert newest["seen_ms"] == 3
    assert any(line.startswith("+") and "filter spare" in line for line in newest["diff"])


def edited(lines: list[str]) -> Program:
    """A program of this text; the history reads nothing else."""
    (program,) = settled().scheduler.programs().values()
    text = "\n".join(lines)
    return replace(program, text=text, sha256=hashlib.sha256(text.encode()).hexdigest())


def test_the_diff_of_texts_that_differ_everywhere_is_not_quadratic() -> None:
    """A team's text of 8,000 lines of which each second one changed took seconds of the main loop, for each of 20 versions and
    each time that somebody looked."""

    def calls(count: int) -> int:
        history = PolicyHistory()
        programs = [
            edited([f"same {n // 2}" if n % 2 else f"{edit} {n}" for n in range(count)]) for edit in "ab"
        ]

        def look() -> None:
            for program in programs:
                history.observe("p", program, 0)
            assert "lines changed" in history.of("p")[0]["diff"][0]

        return calls_of(look)

    assert calls(4_000) < 6 * calls(1_000)


@pytest.mark.parametrize("place", [0, 500, 999])
def test_a_changed_line_of_a_long_text_is_shown_with_its_context(place: int) -> None:
    lines, history = [f"line {n}" for n in range(1_000)], PolicyHistory()
    history.observe("p", edited(lines), 0)
    history.observe("p", edited([*lines[:place], "other", *lines[place + 1 :]]), 1)

    diff = history.of("p")[0]["diff"]
    assert [line for line in diff if line[0] in "+-"] == [f"-line {place}", "+other"]
    assert len(diff) == 3 + min(2, place) + min(2, 999 - place)
    assert diff[0].startswith(f"@@ -{max(0, place - 2) + 1},")


def test_the_history_of_a_policy_that_is_gone_is_forgotten() -> None:
    history = PolicyHistory()
    history.observe("old", edited(["a"]), 0)
    history.observe("kept", edited(["a"]), 0)

    history.keep_only({"kept"})

    assert history.of("old") == [] and len(history.of("kept")) == 1


def test_no_text_of_a_pod_is_shown_to_a_user_of_another_namespace() -> None:
    policy = (
        'policy test version 1\ninput k: string = pod.labels["k"] default ""\n'
        'filter closed reject k != "open" says "closed for {k}"\n'
    )
    pods = [
        pod(f"{space}-pod", namespace=space, labels={"k": f"key-of-{space}"}) for space in ("bank", "shop")
    ]
    rig = Rig(policy, node("a"), *pods)
    rig.settle()

    for path in ("/page/pending", "/page/queue", "/page/overview"):
        whole = document(rig, path)
        shown = json.dumps(visible_in(whole, frozenset({"shop"})))
        assert "bank" not in shown, path
    assert "closed for key-of-bank" in json.dumps(document(rig, "/page/pending"))
    assert "closed for key-of-shop" in json.dumps(
        visible_in(document(rig, "/page/pending"), frozenset({"shop"}))
    )
