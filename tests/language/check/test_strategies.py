"""The policies that the properties are run on: that they are policies, and that they are not all alike."""

from hypothesis import HealthCheck, Phase, find, given, settings

from policysched.lang.check import check_text
from policysched.lang.ir.expr import Else, Has, MetricRef
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.rules import FilterRule
from policysched.text import Severity
from tests.strategies import policies, program

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
FIRST = settings(QUICK, max_examples=5000, phases=[Phase.generate], database=None)  # it ends at the first


@QUICK
@given(policies())
def test_every_drawn_policy_checks(text: str) -> None:
    checked = check_text(text)

    errors = [diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR]

    assert errors == [], text


@QUICK
@given(policies())
def test_a_program_can_be_made_again_from_its_own_text(text: str) -> None:
    first = program(text)

    again = check_text(first.text).program

    assert again == first


def test_metrics_guards_and_fallbacks_are_all_drawn() -> None:
    def has(text: str, kind: type) -> bool:
        rules = [rule for rule in program(text).rules.filters if isinstance(rule, FilterRule)]
        return any(isinstance(node, kind) for rule in rules for node in walk(rule.condition))

    for kind in (MetricRef, Has, Else):
        example = find(policies(), lambda text, kind=kind: has(text, kind), settings=FIRST)

        assert has(example, kind)
