"""The columns that the rules of a plan read."""

from collections.abc import Iterator

from policysched.builtins import kernels
from policysched.evaluate.columns.column_kinds import ColumnKind, InputStateColumn
from policysched.evaluate.plan.lowering import AnyRule, rule_expressions
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.vector.node_values import columns_read_by
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.layers import AmendRule, SetRule
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore


def columns_needed(plan: Plan) -> Iterator[ColumnKind]:
    """Those of inputs, of all rules with and without layers, and of the shadow rules. May repeat a column."""
    if plan.shadow is not None:
        yield from columns_needed(plan.shadow)
    variant = plan.variant(())
    yield from map(InputStateColumn, variant.node_inputs)
    filters: list[AnyRule] = [step.rule for step in variant.filters]
    rules = [*filters, *(step.rule for step in variant.scores)]
    exprs: list[object] = []
    for layer in plan.program.layers:
        for change in layer.changes:
            if isinstance(change, SetRule):
                rules.append(change.rule)
            elif isinstance(change, AmendRule):
                exprs += [value for _, value in change.changes]
    for rule in rules:
        exprs += rule_expressions(rule)
        if isinstance(rule, BuiltinFilter | BuiltinScore):
            yield from kernels.KERNEL_COLUMNS.get(rule.builtin, ())
    for expr in exprs:
        if isinstance(expr, Expr):
            yield from columns_read_by(expr, plan.program)
