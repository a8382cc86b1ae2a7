"""`let` as a name for an expression that depends on something."""

import pickle

import pytest

from policysched.evaluate import compile as compile_program
from policysched.lang.check.limits import EXPANDED_NODES_MAX
from policysched.lang.ir.cost import expr_cost
from policysched.lang.ir.expr import Else
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule, ScoreRule
from tests.language.check.checking import codes, program

USED = 'input used: ratio = node.annotations["used"] optional invalid default'
METRIC = 'metric rx: bandwidth { query = "q" unit = "B/s" join = instance every = 15s stale = 90s }'


def condition(program: Program, name: str) -> object:
    (rule,) = [rule for rule in program.rules.filters if rule.name == name]
    assert isinstance(rule, FilterRule)
    return rule.condition


def test_a_let_has_the_meaning_of_its_expression_at_each_use() -> None:
    named = program(
        "let share: ratio = pod.requests.cpu / node.allocatable.cpu else 1",
        "let twice: ratio = share + share",
        "filter a require twice < 50%",
    )
    written = program(
        "filter a require (pod.requests.cpu / node.allocatable.cpu else 1)"
        " + (pod.requests.cpu / node.allocatable.cpu else 1) < 50%"
    )

    assert condition(named, "a") == condition(written, "a")


def test_a_possibly_missing_let_is_handled_at_its_use() -> None:
    twice = "let twice: ratio = used * 2"

    asked = codes(USED, twice, "filter a when has used require twice < 1")
    unasked = codes(USED, twice, "filter a require twice < 1")
    given = codes(USED, twice, "filter a require twice else 0 < 1")

    assert (asked, unasked, given) == ([], ["PS201"], [])


def test_a_name_that_reads_a_metric_has_the_rule_say_what_happens_without_samples() -> None:
    double = "let double: bandwidth = rx * 2"
    lacking = codes(METRIC, double, "filter a require double < 1Gbps")
    (rule,) = [
        score
        for score in program(
            METRIC, double, "score s weight 1 lower double normalize range(0bps, 1Gbps) missing worst"
        ).rules.scores
        if score.name == "s"
    ]

    assert lacking == ["PS214"]
    assert isinstance(rule, ScoreRule) and rule.missing == 0


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("let share: int = node.pods", "queue by share"), "PS220"),
        (
            (METRIC, "let double: bandwidth = rx * 2", "filter a when double > 1Gbps require node.ready"),
            "PS220",
        ),
        (("let share: cpu = node.pods", "filter a require share < 3"), "PS204"),
        (("let share: int = nope + 1", "filter a require share < 3"), "PS210"),
        (("let share: int = node.pods",), "PS306"),
        (("let share: int = node.pods", "let share: int = 3", "filter a require share < 3"), "PS213"),
        (("let limit: int = node.pods", "filter a require pod.priority in [1, limit]"), "PS221"),
    ],
)
def test_a_let_is_checked_at_its_declaration_and_at_its_uses(lines: tuple[str, ...], code: str) -> None:
    assert codes(*lines) == [code]


def test_names_of_names_do_not_grow_without_bounds() -> None:
    doubling = ["let n0: int = node.pods + node.pods"]
    doubling += [f"let n{index}: int = n{index - 1} + n{index - 1}" for index in range(1, 30)]

    reported = codes(*doubling, "filter a require n29 < 3")

    assert reported.count("PS126") == 1, f"the first that would have more than {EXPANDED_NODES_MAX} parts"
    assert set(reported) == {"PS126"}


def test_names_of_names_do_not_nest_without_bounds() -> None:
    deeper = ["let n0: int = node.pods"]
    deeper += [f"let n{index}: int = -n{index - 1}" for index in range(1, 90)]

    assert codes(*deeper, "filter a require n89 < 3") == ["PS125"]


def test_lints_do_not_treat_a_name_that_depends_on_a_parameter_as_constant() -> None:
    lines = ("param most: int = 3", "let fits: bool = node.pods < most or most == 3", "filter a require fits")

    assert codes(*lines) == []


def test_the_expression_of_a_let_is_one_object_at_all_its_uses() -> None:
    checked = program(
        "let use: float = node.requested.cpu / node.allocatable.cpu else 1",
        "let spread: float = abs(use - mean of use over nodes)",
        "score even weight 1 lower spread * spread + use normalize range(0, 2)",
    )

    (rule,) = [score for score in checked.rules.scores if isinstance(score, ScoreRule)]
    parts = [part for part in walk(rule.value) if isinstance(part, Else)]
    assert len(parts) == 2, (
        "named five times: read once for the score, once for what is said of each candidate"
    )
    assert expr_cost(rule.value).per_node < 20


def test_a_long_expression_of_names_is_checked_and_lowered_without_going_over_it_again_and_again() -> None:
    """As many parts as may be, in a few objects."""
    doubling = ["let n0: int = node.pods + 1"]
    doubling += [f"let n{index}: int = n{index - 1} + n{index - 1}" for index in range(1, 9)]

    checked = program(*doubling, "filter a require n8 < 3")

    (rule,) = [rule for rule in checked.rules.filters if isinstance(rule, FilterRule)]
    assert len(list(walk(rule.condition))) < 20
    assert len(compile_program(checked).variant(()).machine.exprs) < 20


def test_equal_expressions_have_equal_hashes_in_any_order_of_hashing() -> None:
    rule, same_rule = (
        program("filter a require node.pods * 2 < pod.priority").rules.filters[-1] for _ in range(2)
    )
    assert isinstance(rule, FilterRule) and isinstance(same_rule, FilterRule)
    first = hash(rule.condition)

    assert rule.condition is not same_rule.condition
    assert (first, hash(rule.condition)) == (hash(same_rule.condition), first)
    assert pickle.loads(pickle.dumps(rule.condition)) == same_rule.condition
