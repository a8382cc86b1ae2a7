"""The totals over pods that a plan reads."""

from collections.abc import Iterable, Iterator

from policysched.evaluate.columns.pod_counter import ScopedSpec
from policysched.evaluate.columns.pod_query import PodTotalSpec
from policysched.lang.ir import expr as e
from policysched.lang.ir.cost import layer_rules
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.layers import AmendRule
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.rules import FilterRule, MessageTemplate, Rule, ScoreRule, with_shadows


def totals_needed(program: Program) -> tuple[ScopedSpec, ...]:
    """Those of all rules, with every layer, of their messages, and of the shadow rules; each once."""
    rules = with_shadows(program.rules, program.shadows)
    exprs = [expr for rule in (*rules.filters, *rules.scores) for expr in _of_rule(rule)]
    for layer in program.layers:
        exprs += [layer.condition, *(expr for rule in layer_rules(layer) for expr in _of_rule(rule))]
        for change in layer.changes:
            for _, value in change.changes if isinstance(change, AmendRule) else ():
                exprs += _of_field(value)
    return _totals_of(program, exprs)


def totals_of_conditions(program: Program) -> tuple[ScopedSpec, ...]:
    """Those that say which layers apply to a pod."""
    return _totals_of(program, [layer.condition for layer in program.layers])


def totals_of_variant(program: Program, active: tuple[int, ...]) -> tuple[ScopedSpec, ...]:
    """Those of the rules with these layers, and of the shadow rules."""
    rules = with_shadows(rules_for(program, active), program.shadows)
    return _totals_of(program, [expr for rule in (*rules.filters, *rules.scores) for expr in _of_rule(rule)])


def _totals_of(program: Program, exprs: Iterable[e.Expr]) -> tuple[ScopedSpec, ...]:
    totals = (part for expr in exprs for part in walk(expr) if isinstance(part, e.PodTotal))
    return tuple(dict.fromkeys((PodTotalSpec.of(total, program), total.scope) for total in totals))


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
