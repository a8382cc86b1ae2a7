"""`policysched test` as its users run it: test files in, results, coverage and exit codes out."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from policysched.cli.test import watch_changes
from policysched.policytest import coverage, expectations, runner
from policysched.scheduler.events import ExtendersAnswered
from policysched.schemas import schema
from tests.cli.builders import Run, run

POLICY = """\
policy test version 1
metric net_rx: bandwidth {
  query = "rate(node_network_receive_bytes_total[2m])"
  unit = "B/s"
  join = instance
  every = 15s
  stale = 90s
}
input pool: string = node.labels["pool"] required "the node has no pool"
queue by pod.priority desc, pod.queued
filter fits require node.free.cpu >= pod.requests.cpu
filter link_cool when pod.namespace == "web" require net_rx < 800Mbps missing reject says "receiving {net_rx}"
score quiet weight 5 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral
layer urgent when pod.priority > 100 { amend link_cool require net_rx < 400Mbps }
preemption never
"""

WORLD = """\
policy: test.policy
nodes:
  - {name: busy, labels: {pool: x}}
  - {name: calm, labels: {pool: x}}
metrics:
  net_rx: {busy: 900Mbps, calm: 300Mbps}
tests:
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test.policy").write_text(POLICY)
    return tmp_path


def play_tests(folder: Path, tests: str, *options: str, world: str = WORLD) -> Run:
    (folder / "some_test.yaml").write_text(world + tests)
    return run("test", str(folder), *options)


def one_test(pod: str, expect: str, rest: str = "") -> str:
    return f"- {{name: it, pods: [{pod}], expect: {{{expect}}}{rest}}}\n"


WEB = "{name: p, namespace: web, cpu: 100m}"


@pytest.mark.parametrize(
    "expect",
    [
        "node: {p: calm}",
        "node: {web/p: [busy, calm]}",
        "rejected: {p: {busy: link_cool, calm: null}}",
        "rejected: {p: {busy: [link_cool]}}",
        "rejected: {p: {busy: {link_cool: receiving 900}}}",
        "feasible: {p: [calm]}",
        "score: {p: {calm: {quiet: 70, total: '>= 350'}}}",
        "score: {p: {calm: {quiet: {raw: 300000000, weighted: '== 350', score: '< 71'}}}}",
        "evicted: []",
        "order: [p]",
    ],
)
def test_an_expectation_that_is_met_passes(folder: Path, expect: str) -> None:
    result = play_tests(folder, one_test(WEB, expect))

    assert (result.code, "1 passed, 0 failed" in result.out) == (0, True), result.out


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("node: {p: busy}", "web/p: expected busy, it went to calm"),
        ("node: {p: null}", "web/p: expected no node, it went to calm"),
        ("pending: {p: ''}", "web/p: expected to stay pending, it went to calm"),
        ("rejected: {p: {calm: link_cool}}", "web/p on calm: expected link_cool to reject it, found nothing"),
        (
            "rejected: {p: {busy: null}}",
            "web/p on busy: expected no rejection, found link_cool (receiving 900Mbps)",
        ),
        ("rejected: {p: {busy: fits}}", "expected fits to reject it, found link_cool (receiving 900Mbps)"),
        ("rejected: {p: {busy: {link_cool: '700'}}}", "expected link_cool (700) to reject it"),
        ("feasible: {p: [busy, calm]}", "expected busy, calm, found calm (busy by link_cool)"),
        ("score: {p: {calm: {quiet: '>= 71'}}}", "web/p on calm: expected quiet >= 71, found 70"),
        ("score: {p: {busy: {quiet: 10}}}", "expected quiet 10, found none (busy by link_cool)"),
        ("evicted: [p]", "expected web/p, found none"),
    ],
)
def test_an_unmet_expectation_fails_with_the_actual_value(folder: Path, expect: str, message: str) -> None:
    result = play_tests(folder, one_test(WEB, expect))

    assert result.code == 1
    assert message in result.out
    assert "some_test.yaml:8:" in result.out, "the place of the expectation"


def test_order_is_that_of_the_decisions(folder: Path) -> None:
    pods = "{name: one}, {name: two}, {name: first, priority: 5}"

    right = play_tests(folder, one_test(pods, "order: [first, one, two]"))
    wrong = play_tests(folder, one_test(pods, "order: [one, first]"))

    assert right.code == 0, right.out
    assert "expected the order default/one, default/first, found default/first, default/one" in wrong.out


def test_an_unschedulable_pod_is_pending_with_the_message_of_its_event(folder: Path) -> None:
    result = play_tests(folder, one_test("{name: p, cpu: 64}", "pending: {p: 2 node(s)}, node: {p: null}"))

    assert result.code == 0, result.out


def test_each_pod_is_placed_after_the_earlier_ones(folder: Path) -> None:
    pods = "{name: p, cpu: 5}, {name: q, cpu: 5}, {name: r, cpu: 5}"

    result = play_tests(
        folder, one_test(pods, "node: {p: calm, q: busy, r: null}, rejected: {r: {calm: fits}}")
    )

    assert result.code == 0, result.out


@pytest.mark.parametrize(
    ("series", "at", "refused"),
    [
        ("100Mbps 900Mbps", "0s", False),
        ("100Mbps 900Mbps", "15s", True),
        ("100Mbps _x20", "60s", False),
        ("100Mbps _x20", "105s", True),
        ("100Mbps stale", "15s", True),
        ("_", "0s", True),
        ("100+400Mbpsx2", "30s", True),
    ],
)
def test_samples_change_and_expire_as_their_series_says(
    folder: Path, series: str, at: str, refused: bool
) -> None:
    expected = "link_cool" if refused else "null"

    result = play_tests(
        folder,
        one_test(
            WEB,
            f"rejected: {{p: {{calm: {expected}}}}}",
            f", at: {at}, metrics: {{net_rx: {{calm: {series}}}}}",
        ),
    )

    assert result.code == 0, result.out


def test_values_of_a_test_override_those_of_the_file(folder: Path) -> None:
    node = "nodes: [{name: calm, labels: {pool: x}, cpu: 100m}]"

    result = play_tests(
        folder,
        one_test("{name: p, cpu: 200m}", "node: {p: busy}, rejected: {p: {calm: fits}}", f", {node}"),
    )

    assert result.code == 0, result.out


def test_pods_and_nodes_can_be_complete_objects_and_come_from_files(folder: Path) -> None:
    (folder / "cluster.yaml").write_text(
        "kind: List\nitems:\n"
        "- {kind: Node, metadata: {name: other, labels: {pool: x}}, status: {allocatable: {cpu: '1', pods: '9'}}}\n"
        "- {kind: Pod, metadata: {name: held, namespace: web}, spec: {nodeName: other, containers: "
        "[{name: c, image: i, resources: {requests: {cpu: 900m}}}]}, status: {phase: Running}}\n"
    )
    pod = (
        "{metadata: {name: p}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 200m}}}]}}"
    )

    result = play_tests(folder, one_test(pod, "rejected: {p: {other: fits}}", ", cluster: cluster.yaml"))

    assert result.code == 0, result.out


def test_a_test_can_contain_all_kinds_of_cluster_objects(folder: Path) -> None:
    (folder / "test.policy").write_text(
        "policy test version 1\n"
        'input cards: int = node.objects["scv"] at "count" default 0 invalid default\n'
        "filter fits require node.free.cpu >= pod.requests.cpu\n"
        "filter cards require cards > 1\n"
        "preemption { victims = any }\n"
    )
    world = "policy: test.policy\nnodes: [{name: a, cpu: 1}, {name: b, cpu: 1}]\nobjects:\n"
    world += "- {apiVersion: core.example.com/v1, kind: Scv, metadata: {name: a}, count: 2}\n"
    world += "- {apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: x, namespace: default},"
    world += " spec: {selector: {matchLabels: {keep: me}}}, status: {disruptionsAllowed: 0}}\ntests:\n"
    pods = "{name: kept, cpu: 500m, node: a, labels: {keep: me}}, {name: low, cpu: 500m, node: a}"

    result = play_tests(
        folder,
        one_test(f"{pods}, {{name: high, cpu: 500m, priority: 10}}", "node: {high: a}, evicted: [low]"),
        world=world,
    )

    assert result.code == 0, result.out


LEARNT = """\
policy test version 1
state reward: float {
  key = pod.labels["app"] else pod.name
  value = if container.exit_code == 0 then 1.0 else 0.0
  keep = 50%
  start = 1.0
}
state steady: ratio { on = failed  value = 0%  keep = 50%  start = 100% }
state calm: float { per = cluster  on = failed  value = 0.0  keep = 50%  start = 1.0 }
filter trusted require reward > 0.3 says "{reward} there"
score learnt weight 1 higher reward * steady * calm normalize range(0, 1)
preemption never
"""


def test_values_of_states_are_given_for_all_tests_and_for_one(folder: Path) -> None:
    (folder / "test.policy").write_text(LEARNT)
    world = """\
policy: test.policy
nodes: [{name: a}, {name: b}]
state: {reward: {web: {a: 0.5, b: 0.2}}, steady: {a: 50%}}
tests:
"""
    web = "{name: p, labels: {app: web}}"
    tests = one_test(web, "rejected: {p: {b: {trusted: 0.2 there}}}, score: {p: {a: {learnt: {raw: 0.25}}}}")
    tests += one_test(web, "node: {p: b}, feasible: {p: [b]}", ", state: {reward: {web: {a: 0.1}}}")
    tests += one_test("{name: q}", "score: {q: {a: {learnt: 20}, b: {learnt: 40}}}", ", state: {calm: 0.4}")

    result = play_tests(folder, tests, world=world)

    assert result.code == 0, result.out + result.err


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("rewards: {web: {a: 1}}", "PS702"),
        ("reward: {web: {nowhere: 1}}", "PS702"),
        ("steady: {nowhere: 1}", "PS702"),
        ("reward: {web: {a: high}}", "`high` is not a value of type float"),
        ("reward: 0.5", "expected a map of keys"),
    ],
)
def test_a_value_of_a_state_that_cannot_be_is_an_error_at_its_place(
    folder: Path, state: str, words: str
) -> None:
    (folder / "test.policy").write_text(LEARNT)
    world = "policy: test.policy\nnodes: [{name: a}]\ntests:\n"

    result = play_tests(folder, one_test(WEB, "node: {p: a}", f", state: {{{state}}}"), world=world)

    assert result.code == 2
    assert words in result.err + result.out


ASKING = """\
policy test version 1
filter fits require node.free.cpu >= pod.requests.cpu
score packed weight 1 higher node.pods normalize max
extender gpu weight 5 missing neutral
extender licence
preemption never
"""
BESIDE = """\
policy: test.policy
nodes: [{name: a}, {name: b}, {name: c}, {name: small, cpu: 100m}]
pods: [{name: old, node: c}]
extenders:
  gpu: {filter: {a: no whole card}, prioritize: {b: 9}}
tests:
"""


def test_extenders_give_the_answers_of_the_test(folder: Path) -> None:
    (folder / "test.policy").write_text(ASKING)
    pod = "{name: p, cpu: 1}"
    rejected = "rejected: {p: {a: {gpu: no whole card}, small: fits, b: null}}"
    scores = "score: {p: {b: {gpu: 90, total: 450}, c: {gpu: {score: 90, weighted: 450}, packed: 100, total: 550}}}"
    worst = ", extenders: {gpu: {prioritize: {a: 10, b: 3, c: 0}}, licence: {filter: {a: none left}}}"
    tests = (
        one_test(pod, f"node: {{p: c}}, feasible: {{p: [b, c]}}, {rejected}, {scores}")
        + one_test(
            pod, "node: {p: b}, score: {p: {b: {gpu: 30}, c: {gpu: 0}}}, rejected: {p: {a: licence}}", worst
        )
        + one_test(
            pod, "pending: {p: 2 gone}", ", extenders: {licence: {filter: {a: gone, b: gone, c: gone}}}"
        )
    )

    result = play_tests(folder, tests, world=BESIDE)

    assert result.code == 0, result.out + result.err


def test_an_extender_without_a_response_blocks_pods_unless_it_is_ignorable(folder: Path) -> None:
    (folder / "test.policy").write_text(ASKING)
    broken = ", extenders: {gpu: {error: connection refused%s}}"
    other = ", extenders: {gpu: {error: connection refused, managedResources: [example.com/gpu]}}"
    tests = (
        one_test(
            "{name: p}",
            'pending: {p: "extender gpu: connection refused"}, feasible: {p: [a, b, c, small]}',
            broken % "",
        )
        + one_test(
            "{name: p}",
            "node: {p: c}, score: {p: {c: {gpu: 50}, a: {gpu: 50}}}",
            broken % ", ignorable: true",
        )
        + one_test("{name: p}", "node: {p: c}", other)
        + one_test("{name: p, requests: {example.com/gpu: 1}}", "node: {p: null}", other)
    )

    result = play_tests(folder, tests, world=BESIDE)

    assert result.code == 0, result.out + result.err


def test_an_ignored_extender_answer_fails_the_test(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a node that an extender rejects stays feasible."""
    (folder / "test.policy").write_text(ASKING)
    monkeypatch.setattr(
        "policysched.policytest.scenario_runner.call_stub_extenders",
        lambda command, _: ExtendersAnswered(command.call_id, {}),
    )

    result = play_tests(
        folder, one_test("{name: p}", "rejected: {p: {a: gpu}}, feasible: {p: [b, c]}"), world=BESIDE
    )

    assert result.code == 1


@pytest.mark.parametrize(
    ("extenders", "words"),
    [
        ("gpus: {}", "PS702"),
        ("gpu: {filter: {nowhere: full}}", "PS702"),
        ("gpu: {prioritize: {a: 11}}", "PS703"),
        ("gpu: {refuse: {a: full}}", "PS703"),
    ],
)
def test_an_answer_that_cannot_be_is_an_error_at_its_place(folder: Path, extenders: str, words: str) -> None:
    (folder / "test.policy").write_text(ASKING)

    result = play_tests(
        folder, one_test("{name: p}", "node: {p: a}", f", extenders: {{{extenders}}}"), world=BESIDE
    )

    assert result.code == 2
    assert words in result.err + result.out


def test_extenders_without_answers_in_the_test_are_not_called(folder: Path) -> None:
    (folder / "test.policy").write_text(
        "policy test version 1\nfilter fits require node.free.cpu >= pod.requests.cpu\nextender beside weight 5 missing neutral\n"
    )

    result = play_tests(
        folder,
        one_test("{name: p}", "node: {p: a}"),
        world="policy: test.policy\nnodes: [{name: a}]\ntests:\n",
    )

    assert result.code == 0, result.out


def test_a_test_sets_parameters(folder: Path) -> None:
    (folder / "test.policy").write_text(
        "policy test version 1\n"
        "param most: cpu = 4\n"
        'param names: list<string> = ["a"]\n'
        "filter small require pod.requests.cpu <= most\n"
        "filter named require node.name in names\n"
    )
    world = "policy: test.policy\nparams: {most: 2}\nnodes: [{name: a}, {name: b}]\ntests:\n"

    given = play_tests(
        folder,
        one_test("{name: p, cpu: 2}", "feasible: {p: [a]}")
        + one_test("{name: p, cpu: 3}", "node: {p: null}")
        + one_test("{name: p, cpu: 3}", "feasible: {p: [a, b]}", ", params: {most: 3000m, names: [a, b]}"),
        world=world,
    )
    refused = play_tests(
        folder, one_test("{name: p}", "feasible: {p: [a]}", ", params: {moost: 3}"), world=world
    )

    assert given.code == 0, given.out
    assert (refused.code, "has a parameter `moost`" in refused.out) == (2, True), refused.out


def test_time_advances_for_waiting_gangs(folder: Path) -> None:
    (folder / "test.policy").write_text(
        "policy test version 1\n"
        'input group: string = pod.labels["group"] optional\n'
        "gang by group { min = 2, timeout = 5m, on_timeout = best_effort }\n"
        "filter fits require node.free.cpu >= pod.requests.cpu\n"
    )
    world = "policy: test.policy\nnodes: [{name: a}]\ntests:\n"
    member = "{name: p, cpu: 1, labels: {group: g}}"

    waits = play_tests(folder, one_test(member, "node: {p: null}", ", for: 4m"), world=world)
    placed = play_tests(folder, one_test(member, "node: {p: a}", ", for: 6m"), world=world)
    joined = play_tests(
        folder,
        one_test(f"{member}, {{name: q, labels: {{group: g}}, arrives: 2m}}", "node: {p: a, q: a}"),
        world=world,
    )

    assert (waits.code, placed.code, joined.code) == (0, 0, 0), (waits.out, placed.out, joined.out)


def test_the_message_of_a_pending_pod_is_current_although_it_changes_often(folder: Path) -> None:
    (folder / "test.policy").write_text(
        'policy test version 1\ninput group: string = pod.labels["group"] optional\ngang by group { min = 9 }\n'
    )
    world = "policy: test.policy\nnodes: [{name: a}]\ntests:\n"
    pods = ", ".join(f"{{name: p{i}, labels: {{group: g}}, arrives: {i * 12}s}}" for i in range(6))

    result = play_tests(folder, one_test(pods, 'pending: {p0: "only 6 of the 9"}', ", for: 65s"), world=world)

    assert result.code == 0, result.out


def test_a_pod_that_is_evicted_for_another_is_named(folder: Path) -> None:
    (folder / "test.policy").write_text(
        "policy test version 1\nfilter fits require node.free.cpu >= pod.requests.cpu\npreemption { victims = any }\n"
    )
    world = "policy: test.policy\nnodes: [{name: a, cpu: 1}]\ntests:\n"
    pods = "{name: low, cpu: 1, node: a}, {name: high, cpu: 1, priority: 10}"

    result = play_tests(folder, one_test(pods, "evicted: [low], node: {high: a}"), world=world)

    assert result.code == 0, result.out


# ── what cannot be used ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("rejected: {p: {busy: link_col}}", "unknown filter `link_col`"),
        ("rejected: {p: {busy: {quiet: x}}}", "unknown filter `quiet`"),
        ("rejected: {p: {bussy: link_cool}}", "unknown node `bussy`"),
        ("score: {p: {calm: {quite: 3}}}", "unknown score `quite`"),
        ("node: {p: clam}", "unknown node `clam`"),
        ("node: {q: calm}", "unknown pod `q`"),
        ("feasible: {p: [calm, kalm]}", "unknown node `kalm`"),
        ("order: [p, r]", "unknown pod `r`"),
    ],
)
def test_an_unknown_name_is_an_error_at_its_place_and_nothing_runs(
    folder: Path, expect: str, message: str
) -> None:
    result = play_tests(folder, one_test("{name: p}", "node: {p: calm}") + one_test("{name: p}", expect))

    assert result.code == 2
    assert f"error[PS702] {message}" in result.out
    assert "some_test.yaml:9:" in result.out
    assert "passed" in result.out and "ok " not in result.out


def test_rule_names_that_are_not_looked_up_are_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: names that are not looked up."""
    monkeypatch.setattr(expectations.Expectations, "problems", lambda _self: [])

    result = play_tests(folder, one_test("{name: p}", "score: {p: {calm: {quite: 3}}}"))

    assert result.code == 1, "the error above would not be seen"


@pytest.mark.parametrize(
    ("tests", "message", "line"),
    [
        (
            "- {name: a, pods: [{name: p, cpus: 3}], expect: {order: [p, p]}}\n",
            "pods.0.cpus: is unknown here; did you mean `cpu`?",
            8,
        ),
        (
            "- {name: a, pods: [{name: p, resources: {nvidia.com/gpu: 1}}], expect: {order: [p, p]}}\n",
            "pods.0.resources: is unknown here; did you mean `requests`?",
            8,
        ),
        ("- {name: a}\n", "'expect' is a required property", 8),
        ("- {name: a, expect: {}}\n", "expect: ", 8),
        ("- {name: a, expect: {nodes: {p: a}}}\n", "expect.nodes: is unknown here; did you mean `node`?", 8),
        ("- name: a\n  at: soon\n  expect: {order: [p, q]}\n", "a duration such as 90s or 5m", 9),
        ("- name: a\n  name: b\n", "duplicate key `name`", 9),
        ("- name: a\n  pods: [\n", "not YAML", 10),
        ("- {name: a, pods: [{name: p, cpu: much}], expect: {node: {p: calm}}}\n", "much", 8),
        ("- {name: a, metrics: {net_tx: {calm: 1}}, expect: {evicted: []}}\n", "unknown metric `net_tx`", 8),
        (
            "- {name: a, metrics: {net_rx: {calm: fast}}, expect: {evicted: []}}\n",
            "`fast` is not a value of type bandwidth",
            8,
        ),
        ("- {name: a, metrics: {net_rx: {clam: 1}}, expect: {evicted: []}}\n", "unknown node `clam`", 8),
        ("- {name: a, cluster: none.yaml, expect: {evicted: []}}\n", "none.yaml: no such file", 8),
        (
            "- {name: a, pods: [{name: p, labels: {1: x}}], expect: {evicted: []}}\n",
            "the key `1` is not a string",
            8,
        ),
    ],
)
def test_an_unusable_test_file_is_reported_with_line_and_column(
    folder: Path, tests: str, message: str, line: int
) -> None:
    result = play_tests(folder, tests)

    assert result.code == 2
    assert message in result.out
    assert f"some_test.yaml:{line}:" in result.out


@pytest.mark.parametrize("text", ["", "- a\n", "a: &a [*a]\n", "[" * 5000, "\x00", "policy: [1]\ntests: 3\n"])
def test_any_text_as_a_test_file_is_refused_and_raises_nothing(folder: Path, text: str) -> None:
    result = play_tests(folder, "", world=text)

    assert result.code == 2


def test_errors_of_a_policy_are_reported(folder: Path) -> None:
    (folder / "test.policy").write_text("policy test version 1\nfilter a require nope\n")

    result = play_tests(folder, one_test("{name: p}", "node: {p: calm}"))

    assert result.code == 2
    assert "error[PS210]" in result.out


def test_no_test_is_a_failure(folder: Path) -> None:
    nowhere = run("test", str(folder))
    none_wanted = play_tests(folder, one_test(WEB, "node: {p: calm}"), "--run", "something else")

    assert (nowhere.code, "no tests found" in nowhere.out) == (1, True)
    assert none_wanted.code == 1
    assert run("test", str(folder / "missing")).code == 2


def test_run_chooses_by_name(folder: Path) -> None:
    tests = (
        one_test(WEB, "node: {p: calm}") + "- {name: other, pods: [{name: q}], expect: {node: {q: busy}}}\n"
    )

    assert play_tests(folder, tests, "--run", "^it$").code == 0
    assert play_tests(folder, tests).code == 1


# ── coverage ───────────────────────────────────────────────────────────────────────────────────────────────────────

ALL = (
    (
        "- {name: 1, pods: [{name: p, namespace: web, cpu: 5}, {name: q, cpu: 5}], expect: {node: {p: calm}}}\n"
        "- {name: 2, pods: [{name: p, namespace: web, priority: 200}], expect: {node: {p: calm}}}\n"
        "- {name: 3, pods: [{name: p, priority: 200}], expect: {node: {p: calm}}}\n"
        "- {name: 4, pods: [{name: p, cpu: 50}], expect: {node: {p: null}}}\n"
    )
    .replace("name: 1,", "name: one,")
    .replace("name: 2,", "name: two,")
    .replace("name: 3,", "name: three,")
    .replace("name: 4,", "name: four,")
)


def test_coverage_counts_both_outcomes_of_every_filter_when_and_layer(folder: Path) -> None:
    result = play_tests(folder, one_test(WEB, "node: {p: calm}"), "--coverage")

    assert result.code == 0
    left = [line.partition("untested outcome of ")[2] for line in result.out.splitlines() if "PS701" in line]
    assert left == [
        "`filter fits`: refuses",
        "`filter link_cool`: `when` does not hold",
        "`layer urgent`: applies",
        "`filter link_cool (layer urgent)`: passes",
        "`filter link_cool (layer urgent)`: refuses",
        "`filter link_cool (layer urgent)`: `when` holds",
        "`filter link_cool (layer urgent)`: `when` does not hold",
    ]
    assert "test: 6 of 13 rule outcomes covered (46%)" in result.out


def test_a_threshold_that_is_not_reached_fails(folder: Path) -> None:
    whole = play_tests(folder, ALL, "--threshold", "100", "--coverage")
    part = play_tests(folder, one_test(WEB, "node: {p: calm}"), "--threshold", "47")

    assert whole.code == 0, whole.out + whole.err
    assert (part.code, part.err) == (1, "coverage of 46% is below 47%\n")


def test_coverage_that_counts_every_outcome_as_reached_is_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: coverage that counts outcomes without looking."""
    monkeypatch.setattr(
        coverage, "_outcomes_reached", lambda program, *_: iter(coverage.new_coverage(program).outcomes)
    )

    result = play_tests(folder, one_test(WEB, "node: {p: calm}"), "--threshold", "100")

    assert result.code == 0, "so the tests above would fail"


# ── for machines ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_answer_in_json_fits_its_schema(folder: Path) -> None:
    tests = one_test(WEB, "node: {p: calm}") + one_test("{name: q}", "node: {q: busy}")
    (folder / "bad_test.yaml").write_text("policy: test.policy\n")

    result = play_tests(folder, tests, "--output-format", "json")

    record = json.loads(result.out)
    jsonschema.validate(record, schema("test"))
    assert (record["passed"], record["failed"]) == (1, 1)
    assert [len(file["problems"]) for file in record["files"]] == [1, 0]
    assert record["files"][1]["tests"][1]["failures"][0]["line"] == 9


def test_junit_has_a_case_a_test_and_an_error_a_file_that_cannot_be_used(folder: Path) -> None:
    tests = one_test(WEB, "node: {p: calm}") + one_test("{name: q}", "node: {q: busy}")
    (folder / "bad_test.yaml").write_text("policy: test.policy\n")
    (folder / "some_test.yaml").write_text(WORLD + tests)
    path = folder / "tests.xml"

    code = run("test", str(folder), "--output-format", "junit", "--output-file", str(path)).code

    suites = ElementTree.fromstring(path.read_text())
    assert code == 2
    assert [(suite.get("tests"), suite.get("failures"), suite.get("errors")) for suite in suites] == [
        ("1", "0", "1"),
        ("2", "1", "0"),
    ]
    assert "expected busy, it went to calm" in str(suites[1][1][0].get("message"))


# ── watching ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_watching_plays_again_when_a_file_changes_and_only_then(folder: Path) -> None:
    path = folder / "test.policy"
    waits: list[float] = []
    writes: Iterator[str] = iter([POLICY + "# one\n", POLICY + "# two more\n"])

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) % 3 == 0:
            path.write_text(next(writes))

    turns = watch_changes(lambda: [str(path)], wait=wait, now_ns=lambda: 0)

    assert [next(turns) for _ in range(3)] == [None, None, None]
    assert len(waits) == 6


@pytest.mark.parametrize(("written_s", "again"), [(3, True), (1, False)])
def test_a_file_first_watched_during_a_run_is_rerun_if_it_changed_meanwhile(
    tmp_path: Path, written_s: int, *, again: bool
) -> None:
    """Only once they were played is it known which policies the tests rest on."""
    test, policy = tmp_path / "a_test.yaml", tmp_path / "a.policy"
    test.write_text("")
    policy.write_text("")
    os.utime(policy, ns=(written_s * 10**9, written_s * 10**9))
    watched = [str(test)]

    def wait(_seconds: float) -> None:
        raise KeyboardInterrupt

    turns = watch_changes(lambda: watched, wait=wait, now_ns=lambda: 2 * 10**9)
    next(turns)
    watched.append(str(policy))

    if again:
        next(turns)
    with pytest.raises(KeyboardInterrupt):
        next(turns)


def test_the_files_that_a_test_rests_on_are_watched(folder: Path) -> None:
    (folder / "base.policy").write_text("library base version 1\nfilter ready require node.ready\n")
    (folder / "cluster.yaml").write_text("kind: Node\nmetadata: {name: n, labels: {pool: x}}\n")
    (folder / "some_test.yaml").write_text(
        WORLD + one_test("{name: p}", "node: {p: calm}", ", cluster: cluster.yaml")
    )

    (file,) = runner.run_test_files([str(folder / "some_test.yaml")]).files

    assert {Path(path).name for path in file.dependencies} == {
        "some_test.yaml",
        "test.policy",
        "base.policy",
        "cluster.yaml",
    }


def test_with_the_settings_a_test_runs_as_the_scheduler_would(tmp_path: Path) -> None:
    """The namespaces that the policy serves, the victim ceiling, the settings' parameter values and the rules for teams."""
    (tmp_path / "settings.yaml").write_text(
        "policies: a/b\n"
        "policy_permissions: {policies_allowed: [{name: ml-*, owner: ml}]}\n"
        "team_policies: {required_base: base.policy}\n"
        "params: {ml-a: {most: 1}}\n"
    )
    (tmp_path / "base.policy").write_text(
        "library base version 1\ninclude kube_default\nlocked param most: int = 9 range 1..9\n"
    )
    (tmp_path / "a.policy").write_text(
        'policy ml-a version 1\ninclude "base.policy"\nfilter few require node.pods < most\n'
        "preemption { victims = any }\n"
    )
    (tmp_path / "a_test.yaml").write_text(
        "policy: a.policy\nnodes: [{name: one}]\ntests:\n"
        "- name: it\n"
        "  pods: [{name: own, namespace: ml}, {name: more, namespace: ml}, {name: foreign, namespace: web}]\n"
        "  expect:\n"
        "    node: {ml/own: one}\n"
        "    pending: {ml/more: few, web/foreign: does not serve namespace web}\n"
    )
    config = ("--config", str(tmp_path / "settings.yaml"))

    without, given = run("test", str(tmp_path)), run("test", str(tmp_path), *config)
    (tmp_path / "a.policy").write_text("policy ml-a version 1\ninclude kube_default\n")
    baseless = run("test", str(tmp_path), *config)
    (tmp_path / "a.policy").write_text("policy web-a version 1\ninclude kube_default\n")
    disallowed = run("test", str(tmp_path), *config)

    assert without.code == 1 and given.code == 0, given.out
    assert (baseless.code, "PS910" in baseless.out) == (2, True)
    assert (disallowed.code, "PS908" in disallowed.out) == (2, True)


def test_quiet_prints_failures_and_nothing_else(folder: Path) -> None:
    passes = play_tests(folder, one_test(WEB, "node: {p: calm}"), "--quiet")
    both = one_test(WEB, "node: {p: calm}") + one_test(WEB, "node: {p: busy}").replace(
        "name: it", "name: wrong"
    )

    fails = play_tests(folder, both, "--quiet")

    assert (passes.code, passes.out, passes.err) == (0, "", "")
    assert fails.code == 1
    assert "FAIL" in fails.out and "wrong" in fails.out
    assert "ok " not in fails.out and "passed" not in fails.out
