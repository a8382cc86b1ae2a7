"""One filter or score: its clauses become a rule of the program."""

from typing import Literal, cast

from policysched.builtins.registry import BUILTINS
from policysched.lang.check.builtin_parameters import check_builtin_parameters
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expression_checker import conform
from policysched.lang.check.expressions import check_condition, check_expression, check_expression_as
from policysched.lang.check.presence import (
    PresentReads,
    check_always_present,
    else_operand_text,
    implied_present,
    possibly_missing,
    report_possibly_missing,
)
from policysched.lang.check.recovery import check_recovery
from policysched.lang.check.rule_clauses import RuleClauses, clauses_by_slot
from policysched.lang.check.scope import (
    CONSTANT,
    FILTER_CONDITION,
    SCORE_VALUE,
    WHEN_CONDITION,
    Scope,
    did_you_mean,
    join_alternatives,
)
from policysched.lang.check.templates import check_template
from policysched.lang.ir import expr as e
from policysched.lang.ir.constant_folding import fold_constants, is_constant
from policysched.lang.ir.rules import (
    BuiltinFilter,
    BuiltinScore,
    Direction,
    FilterRule,
    MaxNormalize,
    MinMaxNormalize,
    Normalize,
    RangeNormalize,
    Rule,
    ScoreRule,
)
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import INT, TypeKind
from policysched.text import Span

WEIGHT_MAX = 1_000_000
SCORE_MAX = 100


def check_rule(scope: Scope, node: s.FilterDecl | s.ScoreDecl, known: PresentReads) -> Rule | None:
    """The rule, or None after a finding. `known` is what the layer around it makes sure of."""
    errors = scope.error_count()
    clauses = clauses_by_slot(node.clauses)
    declaration = BUILTINS.get(node.name.text)
    found: Rule | None
    if declaration is not None:
        found = _check_builtin(scope, node, clauses, known)
    elif isinstance(node, s.FilterDecl):
        found = _check_filter(scope, node, clauses, known)
    else:
        found = _check_score(scope, node, clauses, known)
    return None if scope.error_count() > errors else found


# ── built-ins ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_builtin(
    scope: Scope, node: s.FilterDecl | s.ScoreDecl, clauses: RuleClauses, known: PresentReads
) -> Rule | None:
    name = node.name.text
    declaration = BUILTINS[name]
    kind = "filter" if isinstance(node, s.FilterDecl) else "score"
    own = clauses.require or clauses.value
    if own is not None:
        scope.report(
            "PS219",
            f"`{name}` is a built-in, and a rule of your own cannot have its name",
            node.name.span,
            help=f"call it something else, or leave out `{own.span.text.split()[0] if own.span.text else 'require'}`",
        )
        return None
    if not (declaration.filters if kind == "filter" else declaration.scores):
        other = "score" if kind == "filter" else "filter"
        scope.report(
            "PS219",
            f"the built-in `{name}` is no {kind}",
            node.name.span,
            help=f"it is a {other}: `{other} {name}`",
        )
        return None
    for clause in (clauses.missing, clauses.scaleup, clauses.text, clauses.normalize):
        if clause is not None:
            scope.report(
                "PS217", f"the built-in `{name}` knows this itself", clause.span, help="leave the clause out"
            )
    when = _check_when(scope, clauses.when, known)
    params = check_builtin_parameters(
        scope, declaration, node.params, node.name.span, scoring=kind == "score"
    )
    if params is None:
        return None
    if kind == "filter":
        return BuiltinFilter(name, name, params, when, node.locked, node.name.span)
    weight = declaration.default_weight or 1
    if clauses.weight is not None:
        weight = check_weight(scope, clauses.weight.weight)
    return BuiltinScore(name, name, weight, params, when, node.locked, node.name.span)


# ── shared clauses ─────────────────────────────────────────────────────────────────────────────────────────────────


def _check_when(scope: Scope, clause: s.WhenClause | None, known: PresentReads) -> e.Expr | None:
    """The folded condition; None where there is none or it is always true."""
    if clause is None:
        return None
    found = check_condition(scope, clause.condition, WHEN_CONDITION)
    if found is None or not check_always_present(scope, found, known):
        return None
    folded = fold_constants(found)
    set_elsewhere = scope.names_parameter(clause.condition.span)
    if is_constant(folded, True):
        if not set_elsewhere:
            scope.report("PS301", "this `when` is always true", clause.condition.span, help="leave it out")
        return None
    if is_constant(folded, False) and not set_elsewhere:
        scope.report("PS302", "this `when` is never true: the rule never applies", clause.condition.span)
    return folded


def _present_after_when(scope: Scope, clause: s.WhenClause | None, known: PresentReads) -> PresentReads:
    """What the rule's `when` makes sure of. Read again quietly: the findings were reported by `_check_when`."""
    if clause is None:
        return known
    found = check_condition(
        Scope(names=scope.names, broken_names=scope.broken_names), clause.condition, WHEN_CONDITION
    )
    return known if found is None else known | implied_present(found, True)


def _report_parameters(scope: Scope, node: s.FilterDecl | s.ScoreDecl) -> None:
    if node.params:
        near = did_you_mean(node.name.text, BUILTINS)
        scope.report(
            "PS222",
            f"`{node.name.text}` is a rule of your own and has no parameters",
            node.params[0].span,
            help=near or "only built-ins have parameters",
        )


def _report_unknown_builtin(
    scope: Scope, node: s.FilterDecl | s.ScoreDecl, missing: str, example: str
) -> None:
    name = node.name.text
    near = did_you_mean(name, BUILTINS)
    scope.report(
        "PS214",
        f"`{name}` is no built-in, and says nothing of what it {missing}",
        node.name.span,
        label=f"no `{example.split()[0]}`",
        help=near or f"add `{example}`",
    )


# ── filters ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_filter(
    scope: Scope, node: s.FilterDecl, clauses: RuleClauses, known: PresentReads
) -> FilterRule | None:
    _report_parameters(scope, node)
    when = _check_when(scope, clauses.when, known)
    known = _present_after_when(scope, clauses.when, known)
    text = None if clauses.text is None else check_template(scope, clauses.text.text)
    missing = _filter_missing(scope, clauses.missing)
    scaleup = _scaleup(scope, clauses.scaleup)
    if clauses.require is None:
        _report_unknown_builtin(scope, node, "requires", "require CONDITION")
        return None
    rejects = clauses.require.rejects
    found = check_condition(scope, clauses.require.condition, FILTER_CONDITION)
    if found is None:
        return None
    open_metrics = _check_possibly_missing(scope, found, known, rejects=rejects)
    if open_metrics and clauses.missing is None:
        _report_missing_clause_needed(scope, open_metrics[0], "`missing reject` or `missing pass`")
    if (
        not open_metrics
        and clauses.missing is not None
        and not any(isinstance(x, e.MetricRef | e.GangTraffic) for x in e.walk(found))
    ):
        _report_unused_missing_clause(scope, clauses.missing)
    whole = check_recovery(scope, clauses.require, found)
    if whole is None:
        return None
    condition = fold_constants(whole)
    _lint_constant_condition(scope, clauses.require, condition)
    return FilterRule(
        name=node.name.text,
        when=when,
        rejects=rejects,
        condition=condition,
        missing=missing if open_metrics else None,
        scaleup=scaleup,
        template=text,
        locked=node.locked,
        span=node.name.span,
    )


def _check_possibly_missing(
    scope: Scope, found: e.Expr, known: PresentReads, *, rejects: bool
) -> list[e.MetricRef | e.GangTraffic]:
    """Report what may be missing unasked; the metrics that may be. In `reject` an absent text of the node does not
    reject."""
    metrics: list[e.MetricRef | e.GangTraffic] = []
    for hole in possibly_missing(found, known):
        if isinstance(hole, e.MetricRef | e.GangTraffic):
            metrics.append(hole)
        elif not (rejects and _reads_node(hole)):
            report_possibly_missing(scope, hole)
    return metrics


def _reads_node(hole: e.Expr) -> bool:
    match hole:
        case e.Attr(owner="node"):
            return True
        case e.InputRef(stage=stage):
            return bool(stage & e.Stage.NODE)
        case _:
            return False


def _report_missing_clause_needed(scope: Scope, hole: e.MetricRef | e.GangTraffic, words: str) -> None:
    scope.report(
        "PS214",
        f"nothing says what to do while `{hole.name}` has no sample",
        hole.span,
        label="can be missing",
        help=f"add {words} to the rule, or write `{else_operand_text(hole)} else VALUE`",
    )


def _report_unused_missing_clause(scope: Scope, clause: s.MissingClause) -> None:
    scope.report("PS310", "this clause has no effect: no metric is read", clause.span, help="leave it out")


def _lint_constant_condition(scope: Scope, clause: s.RequireClause, condition: e.Expr) -> None:
    if scope.names_parameter(clause.condition.span):
        return
    refuses = "every" if is_constant(condition, clause.rejects) else "no"
    if is_constant(condition, True):
        scope.report("PS301", f"always true: the filter refuses {refuses} node", clause.condition.span)
    elif is_constant(condition, False):
        scope.report("PS302", f"never true: the filter refuses {refuses} node", clause.condition.span)


def _filter_missing(scope: Scope, clause: s.MissingClause | None) -> Literal["reject", "pass"] | None:
    if clause is None:
        return None
    word = clause.choice.text if isinstance(clause.choice, s.Identifier) else clause.choice.span.text
    if word in ("reject", "pass"):
        return cast(Literal["reject", "pass"], word)
    _report_unknown_keyword(scope, word, clause.choice.span, "`missing` in a filter", ("reject", "pass"))
    return None


def _scaleup(scope: Scope, clause: s.ScaleupClause | None) -> bool:
    if clause is None:
        return True
    if clause.choice.text not in ("yes", "no"):
        _report_unknown_keyword(scope, clause.choice.text, clause.choice.span, "`scaleup`", ("yes", "no"))
    return clause.choice.text != "no"


def _report_unknown_keyword(
    scope: Scope, word: str, span: Span, where: str, choices: tuple[str, ...]
) -> None:
    scope.report(
        "PS212",
        f"`{word}` is no value of {where}",
        span,
        label="unknown word",
        help=did_you_mean(word, choices) or f"it is {join_alternatives(choices)}",
    )


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_score(
    scope: Scope, node: s.ScoreDecl, clauses: RuleClauses, known: PresentReads
) -> ScoreRule | None:
    _report_parameters(scope, node)
    when = _check_when(scope, clauses.when, known)
    known = _present_after_when(scope, clauses.when, known)
    missing = check_score_missing(scope, clauses.missing)
    weight = 0
    if clauses.weight is None:
        scope.report(
            "PS214", f"the score `{node.name.text}` has no weight", node.name.span, help="add `weight 1`"
        )
    else:
        weight = check_weight(scope, clauses.weight.weight)
    if clauses.value is None:
        _report_unknown_builtin(scope, node, "prefers", "lower VALUE` or `higher VALUE` or `prefer CONDITION")
        return None
    direction = Direction(clauses.value.direction)
    found = _score_value(scope, clauses.value, direction)
    if found is None:
        return None
    normalize = _check_normalize(scope, node, clauses, direction, found)
    open_metrics = _check_possibly_missing(scope, found, known, rejects=False)
    if open_metrics and clauses.missing is None:
        _report_missing_clause_needed(
            scope, open_metrics[0], "`missing worst`, `neutral`, `best` or a number from 0 to 100"
        )
    if (
        not open_metrics
        and clauses.missing is not None
        and not any(isinstance(x, e.MetricRef | e.GangTraffic) for x in e.walk(found))
    ):
        _report_unused_missing_clause(scope, clauses.missing)
    _lint_relative_normalize(scope, clauses.normalize, normalize, found)
    return ScoreRule(
        name=node.name.text,
        weight=weight,
        when=when,
        direction=direction,
        value=fold_constants(found),
        normalize=normalize,
        missing=missing if open_metrics else None,
        locked=node.locked,
        span=node.name.span,
    )


def _score_value(scope: Scope, clause: s.ScoreValueClause, direction: Direction) -> e.Expr | None:
    if direction is Direction.PREFER:
        return check_condition(scope, clause.value, SCORE_VALUE)
    found = check_expression(scope, clause.value, SCORE_VALUE)
    if found is None:
        return None
    have = e.type_of(found)
    if have.is_numeric:
        return found
    hint = (
        f"`prefer` scores conditions: `prefer {clause.value.span.text}`" if have.kind is TypeKind.BOOL else ""
    )
    if have.kind is TypeKind.STRING:
        hint = '`rank(x, ["best", "worse"])` makes a number of a string'
    scope.report(
        "PS202",
        f"`{clause.direction}` needs a number, and this is {describe_type(have)}",
        found.span,
        label=describe_type(have),
        help=hint,
    )
    return None


def check_weight(scope: Scope, node: s.NumberLit | s.NameExpr) -> int:
    """The weight; 1 after a finding."""
    if isinstance(node, s.NameExpr):
        return _check_named_weight(scope, node)
    if node.suffix or not node.digits.isdecimal():
        return 1  # the parser said so
    value = int(node.digits) if len(node.digits) <= 9 else WEIGHT_MAX + 1
    if value > WEIGHT_MAX:
        scope.report("PS208", f"a weight is at most {WEIGHT_MAX:,}", node.span, label="too large")
        return 1
    if value == 0:
        scope.report(
            "PS307", "a weight of 0 changes nothing", node.span, help="leave the score out or `drop` it"
        )
    return value


def _check_named_weight(scope: Scope, node: s.NameExpr) -> int:
    """By the name of a constant, which may be 0 without a word: that is how an operator switches a score off."""
    found = check_expression_as(scope, node, CONSTANT, INT)
    if found is None:
        return 1
    if not isinstance(found, e.Const) or not isinstance(found.value, int):
        scope.report("PS221", "a weight is a constant", node.span, label="depends on something")
        return 1
    if 0 <= found.value <= WEIGHT_MAX:
        return found.value
    scope.report(
        "PS208",
        f"a weight is from 0 to {WEIGHT_MAX:,}, and `{node.name}` is {found.value}",
        node.span,
        help=f"give the parameter a range: `range 0..{WEIGHT_MAX}`",
    )
    return 1


def check_score_missing(scope: Scope, clause: s.MissingClause | None) -> int | Literal["neutral"] | None:
    """What the clause says; None without one, and after a finding."""
    if clause is None:
        return None
    if isinstance(clause.choice, s.NumberLit):
        digits = clause.choice.digits
        if not clause.choice.suffix and digits.isdecimal() and len(digits) <= 3 and int(digits) <= SCORE_MAX:
            return int(digits)
        scope.report("PS208", "`missing` is a score from 0 to 100", clause.choice.span, label="no score")
        return None
    match clause.choice.text:
        case "worst":
            return 0
        case "best":
            return SCORE_MAX
        case "neutral":
            return "neutral"
        case word:
            _report_unknown_keyword(
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
                "PS217", "`prefer` is 100 or 0 and needs no `normalize`", clause.span, help="leave it out"
            )
        return None
    if clause is None:
        scope.report(
            "PS309",
            f"nothing says how the value of `{node.name.text}` becomes a score from 0 to 100",
            value.span,
            label="any number",
            help="add `normalize range(LOW, HIGH)`, or `normalize max` or `normalize minmax`",
        )
        return None
    match clause.method.text, len(clause.args):
        case "range", 2:
            return _check_range(scope, clause, value)
        case "range", _:
            scope.report(
                "PS209", "`range` takes two bounds", clause.span, help="such as `range(0Mbps, 1Gbps)`"
            )
        case "max", 0:
            return MaxNormalize()
        case "minmax", 0:
            return MinMaxNormalize()
        case ("max" | "minmax") as name, _:
            scope.report("PS209", f"`{name}` takes no arguments", clause.span)
        case word, _:
            _report_unknown_keyword(
                scope, word, clause.method.span, "`normalize`", ("range", "max", "minmax")
            )
    return None


def _check_range(scope: Scope, clause: s.NormalizeClause, value: e.Expr) -> RangeNormalize | None:
    bounds = [_check_bound(scope, arg, value) for arg in clause.args]
    low, high = bounds
    if low is None or high is None:
        return None
    if low >= high:
        scope.report("PS208", "the first bound must be below the second", clause.span, label="an empty range")
        return None
    return RangeNormalize(low, high)


def _check_bound(scope: Scope, node: s.Expression, value: e.Expr) -> int | float | None:
    from policysched.lang.check.constant_evaluation import evaluate_constant

    wanted = e.type_of(value).as_required()
    found = check_expression(scope, node, CONSTANT, wanted)
    if found is None or not check_always_present(scope, found):
        return None
    plain = e.type_of(found).kind in (TypeKind.INT, TypeKind.FLOAT, TypeKind.RATIO)
    if (
        not (plain and wanted.kind in (TypeKind.INT, TypeKind.FLOAT, TypeKind.RATIO))
        and conform(scope, found, wanted) is None
    ):
        return None
    return evaluate_constant(fold_constants(found))


def _lint_relative_normalize(
    scope: Scope, clause: s.NormalizeClause | None, normalize: Normalize | None, value: e.Expr
) -> None:
    if clause is None or not isinstance(normalize, MaxNormalize | MinMaxNormalize):
        return
    if any(isinstance(one, e.MetricRef | e.GangTraffic) for one in e.walk(value)):
        scope.report(
            "PS413",
            f"`{clause.method.text}` blows the noise of idle nodes up to full scale",
            clause.span,
            label="relative to the other candidates",
            help="`range(LOW, HIGH)` is stable from one decision to the next",
        )
