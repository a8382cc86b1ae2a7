"""Scores: value and direction, weight, `normalize` and `missing`."""

from typing import Literal

from policysched.lang.check.bare_numbers import lint_number_beside
from policysched.lang.check.constants import evaluate_constant
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expression_checker import conform
from policysched.lang.check.expressions import check_condition, check_expression, check_expression_as
from policysched.lang.check.presence import (
    PresentReads,
    check_always_present,
)
from policysched.lang.check.rule_clauses import RuleClauses
from policysched.lang.check.scope import (
    CONSTANT,
    SCORE_VALUE,
    Scope,
)
from policysched.lang.check.shared_clauses import (
    check_when,
    find_missing_metrics,
    present_after_when,
    report_missing_clause,
    report_missing_clause_needed,
    report_parameters,
    report_unknown_choice,
    report_unused_missing_clause,
)
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.expr_analysis import stage_of, type_of, walk
from policysched.lang.ir.rules import (
    Direction,
    MaxNormalize,
    MinMaxNormalize,
    Normalize,
    RangeNormalize,
    ScoreRule,
)
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import INT, TypeKind

WEIGHT_MAX = 1_000_000
SCORE_MAX = 100


def check_score(
    scope: Scope, node: s.ScoreDecl, clauses: RuleClauses, present: PresentReads
) -> ScoreRule | None:
    report_parameters(scope, node)
    when = check_when(scope, clauses.when, present)
    present = present_after_when(scope, clauses.when, present)
    missing = check_score_missing(scope, clauses.missing)
    weight = 0
    if clauses.weight is None:
        scope.report(
            "PS214", f"the score `{node.name.text}` has no weight", node.name.span, help="add `weight 1`"
        )
    else:
        weight = check_weight(scope, clauses.weight.weight)
    if clauses.value is None:
        report_missing_clause(scope, node, "lower VALUE` or `higher VALUE` or `prefer CONDITION")
        return None
    direction = Direction(clauses.value.direction)
    expr = _score_value(scope, clauses.value, direction)
    if expr is None:
        return None
    _lint_same_for_all_nodes(scope, node, clauses.value, expr)
    normalize = _check_normalize(scope, node, clauses, direction, expr)
    open_metrics = find_missing_metrics(scope, expr, present, rejects=False)
    if open_metrics and clauses.missing is None:
        report_missing_clause_needed(
            scope, open_metrics[0], "`missing worst`, `neutral`, `best` or a number from 0 to 100"
        )
    if (
        not open_metrics
        and clauses.missing is not None
        and not any(isinstance(part, e.MetricRef | e.GangTraffic) for part in walk(expr))
    ):
        report_unused_missing_clause(scope, clauses.missing)
    _lint_relative_normalize(scope, clauses.normalize, normalize, expr)
    return ScoreRule(
        name=node.name.text,
        weight=weight,
        when=when,
        direction=direction,
        value=fold_constants(expr),
        normalize=normalize,
        missing=missing if open_metrics else None,
        locked=node.locked,
        span=node.name.span,
    )


def _lint_same_for_all_nodes(
    scope: Scope, node: s.ScoreDecl, clause: s.ScoreValueClause, expr: e.Expr
) -> None:
    of_node = e.Stage.NODE | e.Stage.CANDIDATES
    is_cluster_wide = any(isinstance(part, e.StateRef) for part in walk(expr))
    if stage_of(expr) & of_node or is_cluster_wide or scope.names_parameter(clause.value.span):
        return
    scope.report(
        "PS316",
        f"the score `{node.name.text}` is the same for every node",
        clause.value.span,
        label="does not read the node",
        help="read the node, for example `node.free.cpu`; `queue by` orders pods",
    )


def _score_value(scope: Scope, clause: s.ScoreValueClause, direction: Direction) -> e.Expr | None:
    if direction is Direction.PREFER:
        return check_condition(scope, clause.value, SCORE_VALUE)
    expr = check_expression(scope, clause.value, SCORE_VALUE)
    if expr is None:
        return None
    have = type_of(expr)
    if have.is_numeric:
        return expr
    hint = (
        f"use `prefer` to score a condition: `prefer {clause.value.span.text}`"
        if have.kind is TypeKind.BOOL
        else ""
    )
    if have.kind is TypeKind.STRING:
        hint = 'use `rank(x, ["best", "worse"])` to convert a string to a number'
    scope.report(
        "PS202",
        f"`{clause.direction}` expects a number, found {describe_type(have)}",
        expr.span,
        label=describe_type(have),
        help=hint,
    )
    return None


def check_weight(scope: Scope, node: s.NumberLit | s.NameExpr) -> int:
    """The weight; 1 after a diagnostic."""
    if isinstance(node, s.NameExpr):
        return _check_named_weight(scope, node)
    if node.suffix or not node.digits.isdecimal():
        return 1  # the parser has reported it
    value = int(node.digits) if len(node.digits) <= 9 else WEIGHT_MAX + 1
    if value > WEIGHT_MAX:
        scope.report("PS208", f"the weight exceeds {WEIGHT_MAX:,}", node.span, label="too large")
        return 1
    if value == 0:
        scope.report("PS307", "a weight of 0 has no effect", node.span, help="remove the score or `drop` it")
    return value


def _check_named_weight(scope: Scope, node: s.NameExpr) -> int:
    """The value of a constant. 0 is allowed: an operator disables a score with it."""
    expr = check_expression_as(scope, node, CONSTANT, INT)
    if expr is None:
        return 1
    if not isinstance(expr, e.Const) or not isinstance(expr.value, int):
        scope.report("PS221", "a weight must be a constant", node.span, label="not a constant")
        return 1
    if 0 <= expr.value <= WEIGHT_MAX:
        return expr.value
    scope.report(
        "PS208",
        f"a weight must be between 0 and {WEIGHT_MAX:,}, but `{node.name}` is {expr.value}",
        node.span,
        help=f"declare a range for the parameter: `range 0..{WEIGHT_MAX}`",
    )
    return 1


def check_score_missing(scope: Scope, clause: s.MissingClause | None) -> int | Literal["neutral"] | None:
    """The score of a node without a sample; None without a clause and after a diagnostic."""
    if clause is None:
        return None
    if isinstance(clause.choice, s.NumberLit):
        digits = clause.choice.digits
        if not clause.choice.suffix and digits.isdecimal() and len(digits) <= 3 and int(digits) <= SCORE_MAX:
            return int(digits)
        scope.report(
            "PS208", "`missing` must be a score from 0 to 100", clause.choice.span, label="out of range"
        )
        return None
    match clause.choice.text:
        case "worst":
            return 0
        case "best":
            return SCORE_MAX
        case "neutral":
            return "neutral"
        case word:
            report_unknown_choice(
                scope, word, clause.choice.span, "`missing` in a score", ("worst", "neutral", "best")
            )
            return None


def _check_normalize(
    scope: Scope, node: s.ScoreDecl, clauses: RuleClauses, direction: Direction, value: e.Expr
) -> Normalize | None:
    clause = clauses.normalize
    if direction is Direction.PREFER:
        if clause is not None:
            scope.report(
                "PS217",
                "`prefer` cannot have a `normalize` clause",
                clause.span,
                help="remove it; a condition scores 100 or 0",
            )
        return None
    if clause is None:
        scope.report(
            "PS309",
            f"the score `{node.name.text}` has no `normalize` clause",
            value.span,
            label="not scaled to 0 to 100",
            help="add `normalize range(LOW, HIGH)`, or `normalize max` or `normalize minmax`",
        )
        return None
    match clause.method.text, len(clause.args):
        case "range", 2:
            return _check_range(scope, clause, value)
        case "range", _:
            scope.report(
                "PS209", "`range` takes 2 bounds", clause.span, help="for example `range(0Mbps, 1Gbps)`"
            )
        case "max", 0:
            return MaxNormalize()
        case "minmax", 0:
            return MinMaxNormalize()
        case ("max" | "minmax") as name, _:
            scope.report("PS209", f"`{name}` takes no arguments", clause.span)
        case word, _:
            report_unknown_choice(scope, word, clause.method.span, "`normalize`", ("range", "max", "minmax"))
    return None


def _check_range(scope: Scope, clause: s.NormalizeClause, value: e.Expr) -> RangeNormalize | None:
    bounds = [_check_bound(scope, arg, value) for arg in clause.args]
    low, high = bounds
    if low is None or high is None:
        return None
    if low >= high:
        scope.report(
            "PS208", "the lower bound must be below the upper bound", clause.span, label="empty range"
        )
        return None
    return RangeNormalize(low, high)


def _check_bound(scope: Scope, node: s.Expression, value: e.Expr) -> int | float | None:
    wanted = type_of(value).as_required()
    expr = check_expression(scope, node, CONSTANT, wanted)
    if expr is None or not check_always_present(scope, expr):
        return None
    plain = type_of(expr).kind in (TypeKind.INT, TypeKind.FLOAT, TypeKind.RATIO)
    if (
        not (plain and wanted.kind in (TypeKind.INT, TypeKind.FLOAT, TypeKind.RATIO))
        and conform(scope, expr, wanted) is None
    ):
        return None
    lint_number_beside(scope, node, value)
    return evaluate_constant(fold_constants(expr))


def _lint_relative_normalize(
    scope: Scope, clause: s.NormalizeClause | None, normalize: Normalize | None, value: e.Expr
) -> None:
    if clause is None or not isinstance(normalize, MaxNormalize | MinMaxNormalize):
        return
    if any(isinstance(part, e.MetricRef | e.GangTraffic) for part in walk(value)):
        scope.report(
            "PS413",
            f"`{clause.method.text}` amplifies the noise of idle nodes",
            clause.span,
            label="relative to the other candidates",
            help="use `range(LOW, HIGH)`, which is stable from one decision to the next",
        )
