"""The policies that the properties are run on: that they are policies, and that they are not all alike."""

from hypothesis import HealthCheck, Phase, find, given, settings

from policysched.lang.check import check_text
from policysched.lang.ir.expr import Else, Has, MetricRef
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.rules import FilterRule
from policysched.text import Severity
from tests.strategies import policies, program

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
FIRST = settings(QUICK, max_examples=5000, phases=[Phase.generate], database=None)


@QUICK
@given(policies())
def test_every_drawn_policy_checks_and_can_be_made_again_from_its_own_text(text: str) -> None:
    checked = check_text(text)

    errors = [diagnostic for diagnostic in checked.diagnostics if diagnostic.severity is Severity.ERROR]

    assert errors == [], text
    assert checked.program is not None
    assert check_text(checked.program.text).program == checked.program


def test_metrics_guards_and_fallbacks_are_all_drawn() -> None:
    drawn = set[type]()

    def are_all_drawn(text: str) -> bool:
        rules = [rule for rule in program(text).rules.filters if isinstance(rule, FilterRule)]
        drawn.update(type(node) for rule in rules for node in walk(rule.condition))
        return drawn >= {MetricRef, Has, Else}

    assert find(policies(), are_all_drawn, settings=FIRST)
