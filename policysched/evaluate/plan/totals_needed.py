"""The totals over pods that a plan reads."""

from collections.abc import Iterator

from policysched.evaluate.columns.pod_counter import ScopedSpec
from policysched.evaluate.columns.pod_query import PodTotalSpec
from policysched.lang.ir import expr as e
from policysched.lang.ir.cost import layer_rules
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.layers import AmendRule
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule, MessageTemplate, Rule, ScoreRule, with_shadows


def totals_needed(program: Program) -> tuple[ScopedSpec, ...]:
    """Those of all rules, with every layer, of their messages, and of the shadow rules; each once."""
    totals = (part for expr in _expressions(program) for part in walk(expr) if isinstance(part, e.PodTotal))
    return tuple(dict.fromkeys((PodTotalSpec.of(total, program), total.scope) for total in totals))


def _expressions(program: Program) -> Iterator[e.Expr]:
    rules = with_shadows(program.rules, program.shadows)
    for rule in (*rules.filters, *rules.scores):
        yield from _of_rule(rule)
    for layer in program.layers:
        yield layer.condition
        for rule in layer_rules(layer):
            yield from _of_rule(rule)
        for change in layer.changes:
            for _, value in change.changes if isinstance(change, AmendRule) else ():
                yield from _of_field(value)


def _of_rule(rule: Rule) -> Iterator[e.Expr]:
    yield from _of_field(rule.when)
    match rule:
        case FilterRule(condition=condition, template=template):
            yield condition
            yield from _of_field(template)
        case ScoreRule(value=value):
            yield value
        case _:
            pass


def _of_field(value: object) -> Iterator[e.Expr]:
    if isinstance(value, MessageTemplate):
        yield from (part for part in value.parts if not isinstance(part, str))
    elif isinstance(value, e.Expr):
        yield value
