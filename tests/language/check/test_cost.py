"""The limit on the static cost of a policy."""

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
