"""The limit on the static cost of a policy."""

import pytest

from policysched.lang.check import check_sources, check_text
from policysched.lang.check.bundle import CheckedSource
from policysched.lang.check.limits import POLICY_COST_MAX
from policysched.lang.ir.cost import policy_cost
from policysched.policy_files.checking import check_source_set
from policysched.policy_files.sources import load_policy_sources
from policysched.text import Diagnostic, Severity, Source

HEADER = "policy test version 1\ninclude kube_default\n"


def nested_aggregates(rules: int, depth: int) -> str:
    inner = "node.pods"
    for _ in range(depth):
        inner = f"mean of (node.pods + {inner}) over nodes"
    return HEADER + "".join(
        f"score s{index} weight 1 lower {inner} after placing normalize minmax\n" for index in range(rules)
    )


def errors(source: CheckedSource) -> list[Diagnostic]:
    return [diagnostic for diagnostic in source.diagnostics if diagnostic.severity is Severity.ERROR]


def test_a_text_of_nested_aggregates_after_placing_is_rejected_with_its_cost() -> None:
    checked = check_text(nested_aggregates(rules=120, depth=24))

    [error] = errors(checked)
    assert checked.program is None
    assert error.code == "PS501"
    assert error.message == ("the policy costs 733,120 operations per pod and node, the limit is 10,000")
    assert error.span is not None
    assert error.span.text.startswith("mean of (node.pods + mean of")


def test_an_expensive_policy_does_not_reject_the_others() -> None:
    checked = check_sources(
        {
            "a.policy": Source("a.policy", nested_aggregates(rules=10, depth=10)),
            "b.policy": Source("b.policy", HEADER.replace("test", "b")),
        }
    )

    assert checked.sources["a.policy"].program is None
    assert checked.sources["b.policy"].program is not None


def test_the_rules_of_layers_count() -> None:
    rules = "".join(
        f"  score s{index} weight 1 higher node.pods + 1 normalize minmax\n" for index in range(5)
    )
    text = f"{HEADER}layer some when pod.priority > 1 {{\n{rules}}}\n"
    plain, layered = check_text(HEADER).program, check_text(text).program
    assert plain is not None and layered is not None

    cost_max = policy_cost(plain.rules, plain.layers).total

    assert not errors(check_text(HEADER, cost_max=cost_max))
    assert [error.code for error in errors(check_text(text, cost_max=cost_max))] == ["PS501"]


def test_a_policy_may_cost_exactly_the_limit() -> None:
    program = check_text(HEADER).program
    assert program is not None
    cost = policy_cost(program.rules, program.layers).total

    assert not errors(check_text(HEADER, cost_max=cost))
    assert [error.code for error in errors(check_text(HEADER, cost_max=cost - 1))] == ["PS501"]


def test_shipped_policies_cost_less_than_a_tenth_of_the_limit() -> None:
    programs = [
        source.program
        for sources in load_policy_sources(["policies", "deploy"])
        for source in check_source_set(sources).sources.values()
        if source.program is not None
    ]

    assert len(programs) > 10
    for program in programs:
        assert policy_cost(program.rules, program.layers).total < POLICY_COST_MAX / 10, program.name


LISTS = """record card { memory: int }
input cards: list<card> = pod.annotations["cards"] default [] invalid default
input room: int = node.labels["room"] default 0 invalid default
"""


@pytest.mark.parametrize(
    ("rule", "at_least"),
    [
        ("require count(cards where card.memory > room) >= 0", 500),
        ("require count(cards where card.memory > 1) >= 0", 100),
        ('require node.name not in split(pod.annotations["parts"] else "", ",")', 100),
        ('require count(pods on node where other.labels["app"] == pod.labels["app"]) < 1', 100),
    ],
)
def test_what_grows_with_lists_and_pods_that_tenants_write_counts_as_the_longest(
    rule: str, at_least: int
) -> None:
    """A team's hundred of them were within its limit: 0.5 s for a decision, 4.5 s with 30,000 pods, and minutes for lists
    that were compared with nodes."""
    program = check_text(f"policy test version 1\n{LISTS}filter f {rule}\n").program

    assert program is not None
    assert policy_cost(program.rules, program.layers).total >= at_least


@pytest.mark.parametrize(
    ("rule", "at_least"),
    [
        ("require node.pods not in many", 40),
        (f"require rank(node.name, {[f'n{number}' for number in range(400)]}) > 3".replace("'", '"'), 40),
        ("require bucket(node.name, 100) < 10", 40),
        ('require "a" in split(node.annotations["parts"] else "", ",")', 40),
    ],
)
def test_long_lists_of_constants_and_texts_of_nodes_count(rule: str, at_least: int) -> None:
    """300 uses of a list of 490 constants took 0.4 s for a decision, and 300 hashes half a second."""
    many = f"let many: list<int> = {list(range(400))}\n"
    program = check_text(f"policy test version 1\n{many}filter f {rule}\n").program

    assert program is not None
    assert policy_cost(program.rules, program.layers).total >= at_least


@pytest.mark.parametrize(
    ("value", "at_least"),
    [
        ("normal_cdf(node.pods + pod.priority, 3, 2)", 20),
        ("exp(node.pods + pod.priority)", 5),
        ("log(node.pods + pod.priority) else 0", 5),
        ('if starts_with(node.labels["a"] else "", "rack-") then 1 else 0', 10),
    ],
)
def test_functions_that_are_evaluated_for_each_node_by_itself_count_as_they_take(
    value: str, at_least: int
) -> None:
    """`tests.bench.bench_costs` measures them: an operation takes at most 40 µs for 1,000 nodes."""
    checked = check_text(f"{HEADER}score s weight 1 higher {value} normalize range(0, 1)\n")
    plain = check_text(f"{HEADER}score s weight 1 higher node.pods + pod.priority normalize range(0, 1)\n")

    assert checked.program is not None and plain.program is not None
    costs = [policy_cost(program.rules, ()).per_node for program in (checked.program, plain.program)]
    assert costs[0] - costs[1] >= at_least - 1


def test_a_list_of_the_pod_that_is_compared_once_for_each_placement_counts_as_often() -> None:
    """6 s for 1,000 elements and 1,000 nodes, in a policy that was within the limit."""
    rule = (
        "score s weight 1 higher sum of count(cards where card.memory > sum of node.pods * room over nodes) over nodes "
        "after placing normalize minmax"
    )
    program = check_text(f"policy test version 1\n{LISTS}{rule}\n", cost_max=10**9).program

    assert program is not None
    assert policy_cost(program.rules, program.layers).total > 10 * POLICY_COST_MAX


DOUBLED = "let d0: int = pod.priority\n" + "".join(
    f"let d{number}: int = d{number - 1} + d{number - 1}\n" for number in range(1, 12)
)
"""2,000 additions in functions of the pod, which evaluate a `let` for each use."""
STATE = "state s{number}: float {{ key = pod.name value = {value} keep = 90% start = 1.0 most = {most} }}\n"


@pytest.mark.parametrize(
    ("statements", "cost"),
    [
        ("filter f require d11 > 0", 2_000),
        ("filter f require count(pods on node where other.priority > d11) < 1", 100_000),
        ("filter f require count(placed pods where other.priority + d11 > 3) < 1", 2_000),
        ("queue by d11", 2_000),
        ('gang by pod.labels["a"] { min = max(d11, 1) timeout = 5m }', 2_000),
        ("preemption { victims = victim.priority < d11 }", 2_000),
        ("preemption { victims = any order = victim.priority + d11 }", 2_000),
        ('quota team by if d11 > 3 then "a" else "b" { others { pods = 3 } }', 2_000),
        (STATE.format(number=0, value="if d11 > 3 then 1.0 else 0.0", most=10), 2_000),
    ],
)
def test_everything_that_a_text_computes_for_a_pod_counts(statements: str, cost: int) -> None:
    """300 queue keys of this kind took 0.5 s for each new pod, as many states for each container that ended, and one count
    2 ms for each pod of the cluster. All were within any limit."""
    text = f"policy test version 1\n{DOUBLED}filter node_resources_fit\n{statements}\n"

    assert not errors(check_text(text, cost_max=10**6))
    assert [error.code for error in errors(check_text(text, cost_max=cost))] == ["PS501"]


JSON = 'input {name}: int = pod.annotations["a"] at "n" default 0 invalid default\n'


@pytest.mark.parametrize(
    ("statements", "cost"),
    [
        ('filter f require node.pods < 9 says "{d11}"', 2_000),
        ('layer a when pod.priority > 3 { amend f says "{d11}" }', 2_000),
        ("".join(JSON.format(name=f"j{number}") for number in range(10)), 1_000),
        (
            JSON.format(name="j") + "".join(f"filter f{n} require node.pods < j + {n}\n" for n in range(10)),
            1_000,
        ),
        (
            "".join(f'input n{n}: int = node.labels["n{n}"] default 0 invalid default\n' for n in range(20)),
            19,
        ),
    ],
)
def test_messages_and_inputs_count(statements: str, cost: int) -> None:
    """One message took minutes to prepare, and 500 inputs that no rule uses 5 s for each pod, at no cost at all."""
    text = f"policy test version 1\n{DOUBLED}filter f require node.pods < 8\n{statements}\n"
    if "filter f require node.pods < 9" in statements:
        text = f"policy test version 1\n{DOUBLED}{statements}\n"

    assert not errors(check_text(text, cost_max=10**6))
    assert [error.code for error in errors(check_text(text, cost_max=cost))] == ["PS501"]


def test_the_message_about_expensive_statements_names_the_most_expensive_one() -> None:
    text = f"policy test version 1\n{DOUBLED}filter node_resources_fit\nqueue by pod.priority, d11 + 1\n"

    [error] = errors(check_text(text, cost_max=1_000))

    assert error.span is not None and error.span.text == "d11 + 1"
    assert error.label == "2,048 operations, the most of 2 expressions beside the rules"


def test_the_states_of_a_policy_keep_no_more_values_together_than_one_may() -> None:
    """300 states kept 125 KB for each pod that ended."""
    states = [STATE.format(number=number, value="1.0", most=25_000) for number in range(5)]
    text = "policy test version 1\nfilter node_resources_fit\n"

    assert not errors(check_text(text + "".join(states[:4])))
    [error] = errors(check_text(text + "".join(states)))
    assert error.code == "PS208"
    assert error.message == "the 5 states of the policy keep up to 125,000 values, the limit is 100,000"
