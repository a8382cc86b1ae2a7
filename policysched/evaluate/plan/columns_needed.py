"""The columns that the rules of a plan read."""

from collections.abc import Iterator

from policysched.builtins import kernels
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.plan.lowering import AnyRule, rule_expressions
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.vector.node_values import columns_read_by
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore


def columns_needed(plan: Plan) -> Iterator[ColumnKind]:
    """Those of the rules without layers, and of the shadow rules. May repeat a column."""
    if plan.shadow is not None:
        yield from columns_needed(plan.shadow)
    variant = plan.variant(())
    filters: list[AnyRule] = [step.rule for step in variant.filters]
    for rule in [*filters, *(step.rule for step in variant.scores)]:
        for expr in rule_expressions(rule):
            if expr:
                yield from columns_read_by(expr, plan.program)
        if isinstance(rule, BuiltinFilter | BuiltinScore):
            yield from kernels.KERNEL_COLUMNS.get(rule.builtin, ())
