"""One filter or score: its clauses become a rule of the program."""

from typing import Literal, cast

from policysched.builtins.registry import BUILTINS
from policysched.lang.check.builtins import parameters
from policysched.lang.check.clauses import Clauses, sorted_out
from policysched.lang.check.dimensions import describe
from policysched.lang.check.expressions import read, read_as, read_condition
from policysched.lang.check.flow import Known, asked_again, holes, implied, no_holes, report_hole
from policysched.lang.check.reading import conform
from policysched.lang.check.recovering import recovering
from policysched.lang.check.scope import CONDITION, CONSTANT, VALUE, WHEN, Scope, did_you_mean, one_of
from policysched.lang.check.templates import template
from policysched.lang.ir import expr as e
from policysched.lang.ir import program as p
from policysched.lang.ir.constant_folding import fold, is_constant
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import INT, Kind
from policysched.text import Span

WEIGHT_MAX = 1_000_000
SCORE_MAX = 100


def rule(scope: Scope, node: s.Filter | s.Score, known: Known) -> p.Rule | None:
    """The rule, or None after a finding. `known` is what the layer around it makes sure of."""
    errors = scope.error_count()
    clauses = sorted_out(node.clauses)
    declaration = BUILTINS.get(node.name.text)
    found: p.Rule | None
    if declaration is not None:
        found = _builtin(scope, node, clauses, known)
    elif isinstance(node, s.Filter):
        found = _filter(scope, node, clauses, known)
    else:
        found = _score(scope, node, clauses, known)
    return None if scope.error_count() > errors else found


# ── built-ins ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _builtin(scope: Scope, node: s.Filter | s.Score, clauses: Clauses, known: Known) -> p.Rule | None:
    name = node.name.text
    declaration = BUILTINS[name]
    kind = "filter" if isinstance(node, s.Filter) else "score"
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
    when = _when(scope, clauses.when, known)
    params = parameters(scope, declaration, node.params, node.name.span, scoring=kind == "score")
    if params is None:
        return None
    if kind == "filter":
        return p.BuiltinFilter(name, name, params, when, node.locked, node.name.span)
    weight = declaration.default_weight or 1
    if clauses.weight is not None:
        weight = weight_of(scope, clauses.weight.weight)
    return p.BuiltinScore(name, name, weight, params, when, node.locked, node.name.span)


# ── shared clauses ─────────────────────────────────────────────────────────────────────────────────────────────────


def _when(scope: Scope, clause: s.WhenClause | None, known: Known) -> e.Expr | None:
    """The folded condition; None where there is none or it is always true."""
    if clause is None:
        return None
    found = read_condition(scope, clause.condition, WHEN)
    if found is None or not no_holes(scope, found, known):
        return None
    folded = fold(found)
    set_elsewhere = scope.set_elsewhere(clause.condition.span)
    if is_constant(folded, True):
        if not set_elsewhere:
            scope.report("PS301", "this `when` is always true", clause.condition.span, help="leave it out")
        return None
    if is_constant(folded, False) and not set_elsewhere:
        scope.report("PS302", "this `when` is never true: the rule never applies", clause.condition.span)
    return folded


def _guards(scope: Scope, clause: s.WhenClause | None, known: Known) -> Known:
    """What the rule's `when` makes sure of. Read again quietly: the findings were reported by `_when`."""
    if clause is None:
        return known
    found = read_condition(Scope(declared=scope.declared, broken=scope.broken), clause.condition, WHEN)
    return known if found is None else known | implied(found, True)


def _no_parameters(scope: Scope, node: s.Filter | s.Score) -> None:
    if node.params:
        near = did_you_mean(node.name.text, BUILTINS)
        scope.report(
            "PS222",
            f"`{node.name.text}` is a rule of your own and has no parameters",
            node.params[0].span,
            help=near or "only built-ins have parameters",
        )


def _unknown_builtin(scope: Scope, node: s.Filter | s.Score, missing: str, example: str) -> None:
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


def _filter(scope: Scope, node: s.Filter, clauses: Clauses, known: Known) -> p.FilterRule | None:
    _no_parameters(scope, node)
    when = _when(scope, clauses.when, known)
    known = _guards(scope, clauses.when, known)
    text = None if clauses.text is None else template(scope, clauses.text.text)
    missing = _filter_missing(scope, clauses.missing)
    scaleup = _scaleup(scope, clauses.scaleup)
    if clauses.require is None:
        _unknown_builtin(scope, node, "requires", "require CONDITION")
        return None
    rejects = clauses.require.rejects
    found = read_condition(scope, clauses.require.condition, CONDITION)
    if found is None:
        return None
    open_metrics = _condition_holes(scope, found, known, rejects=rejects)
    if open_metrics and clauses.missing is None:
        _missing_needed(scope, open_metrics[0], "`missing reject` or `missing pass`")
    if (
        not open_metrics
        and clauses.missing is not None
        and not any(isinstance(x, e.MetricRef | e.TrafficTo) for x in e.walk(found))
    ):
        _pointless_missing(scope, clauses.missing)
    whole = recovering(scope, clauses.require, found)
    if whole is None:
        return None
    condition = fold(whole)
    _constant_condition(scope, clauses.require, condition)
    return p.FilterRule(
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


def _condition_holes(
    scope: Scope, found: e.Expr, known: Known, *, rejects: bool
) -> list[e.MetricRef | e.TrafficTo]:
    """Report what may be missing unasked; the metrics that may be. In `reject` an absent text of the node does not
    reject."""
    metrics: list[e.MetricRef | e.TrafficTo] = []
    for hole in holes(found, known):
        if isinstance(hole, e.MetricRef | e.TrafficTo):
            metrics.append(hole)
        elif not (rejects and _of_node(hole)):
            report_hole(scope, hole)
    return metrics


def _of_node(hole: e.Expr) -> bool:
    match hole:
        case e.Attr(owner="node"):
            return True
        case e.InputRef(stage=stage):
            return bool(stage & e.Stage.NODE)
        case _:
            return False


def _missing_needed(scope: Scope, hole: e.MetricRef | e.TrafficTo, words: str) -> None:
    scope.report(
        "PS214",
        f"nothing says what to do while `{hole.name}` has no sample",
        hole.span,
        label="can be missing",
        help=f"add {words} to the rule, or write `{asked_again(hole)} else VALUE`",
    )


def _pointless_missing(scope: Scope, clause: s.MissingClause) -> None:
    scope.report("PS310", "this clause has no effect: no metric is read", clause.span, help="leave it out")


def _constant_condition(scope: Scope, clause: s.RequireClause, condition: e.Expr) -> None:
    if scope.set_elsewhere(clause.condition.span):
        return
    refuses = "every" if is_constant(condition, clause.rejects) else "no"
    if is_constant(condition, True):
        scope.report("PS301", f"always true: the filter refuses {refuses} node", clause.condition.span)
    elif is_constant(condition, False):
        scope.report("PS302", f"never true: the filter refuses {refuses} node", clause.condition.span)


def _filter_missing(scope: Scope, clause: s.MissingClause | None) -> Literal["reject", "pass"] | None:
    if clause is None:
        return None
    word = clause.choice.text if isinstance(clause.choice, s.Name) else clause.choice.span.text
    if word in ("reject", "pass"):
        return cast(Literal["reject", "pass"], word)
    _unknown_word(scope, word, clause.choice.span, "`missing` in a filter", ("reject", "pass"))
    return None


def _scaleup(scope: Scope, clause: s.ScaleupClause | None) -> bool:
    if clause is None:
        return True
    if clause.choice.text not in ("yes", "no"):
        _unknown_word(scope, clause.choice.text, clause.choice.span, "`scaleup`", ("yes", "no"))
    return clause.choice.text != "no"


def _unknown_word(scope: Scope, word: str, span: Span, where: str, choices: tuple[str, ...]) -> None:
    scope.report(
        "PS212",
        f"`{word}` is no value of {where}",
        span,
        label="unknown word",
        help=did_you_mean(word, choices) or f"it is {one_of(choices)}",
    )


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _score(scope: Scope, node: s.Score, clauses: Clauses, known: Known) -> p.ScoreRule | None:
    _no_parameters(scope, node)
    when = _when(scope, clauses.when, known)
    known = _guards(scope, clauses.when, known)
    missing = score_missing(scope, clauses.missing)
    weight = 0
    if clauses.weight is None:
        scope.report(
            "PS214", f"the score `{node.name.text}` has no weight", node.name.span, help="add `weight 1`"
        )
    else:
        weight = weight_of(scope, clauses.weight.weight)
    if clauses.value is None:
        _unknown_builtin(scope, node, "prefers", "lower VALUE` or `higher VALUE` or `prefer CONDITION")
        return None
    direction = p.Direction(clauses.value.direction)
    found = _score_value(scope, clauses.value, direction)
    if found is None:
        return None
    normalize = _normalize(scope, node, clauses, direction, found)
    open_metrics = _condition_holes(scope, found, known, rejects=False)
    if open_metrics and clauses.missing is None:
        _missing_needed(
            scope, open_metrics[0], "`missing worst`, `neutral`, `best` or a number from 0 to 100"
        )
    if (
        not open_metrics
        and clauses.missing is not None
        and not any(isinstance(x, e.MetricRef | e.TrafficTo) for x in e.walk(found))
    ):
        _pointless_missing(scope, clauses.missing)
    _relative_lint(scope, clauses.normalize, normalize, found)
    return p.ScoreRule(
        name=node.name.text,
        weight=weight,
        when=when,
        direction=direction,
        value=fold(found),
        normalize=normalize,
        missing=missing if open_metrics else None,
        locked=node.locked,
        span=node.name.span,
    )


def _score_value(scope: Scope, clause: s.ValueClause, direction: p.Direction) -> e.Expr | None:
    if direction is p.Direction.PREFER:
        return read_condition(scope, clause.value, VALUE)
    found = read(scope, clause.value, VALUE)
    if found is None:
        return None
    have = e.type_of(found)
    if have.numeric:
        return found
    hint = f"`prefer` scores conditions: `prefer {clause.value.span.text}`" if have.kind is Kind.BOOL else ""
    if have.kind is Kind.STRING:
        hint = '`rank(x, ["best", "worse"])` makes a number of a string'
    scope.report(
        "PS202",
        f"`{clause.direction}` needs a number, and this is {describe(have)}",
        found.span,
        label=describe(have),
        help=hint,
    )
    return None


def weight_of(scope: Scope, node: s.NumberLit | s.Bare) -> int:
    """The weight; 1 after a finding."""
    if isinstance(node, s.Bare):
        return _weight_named(scope, node)
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


def _weight_named(scope: Scope, node: s.Bare) -> int:
    """By the name of a constant, which may be 0 without a word: that is how an operator switches a score off."""
    found = read_as(scope, node, CONSTANT, INT)
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


def score_missing(scope: Scope, clause: s.MissingClause | None) -> int | Literal["neutral"] | None:
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
            _unknown_word(
                scope, word, clause.choice.span, "`missing` in a score", ("worst", "neutral", "best")
            )
            return None


def _normalize(
    scope: Scope, node: s.Score, clauses: Clauses, direction: p.Direction, value: e.Expr
) -> p.Normalize | None:
    clause = clauses.normalize
    if direction is p.Direction.PREFER:
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
            return _range(scope, clause, value)
        case "range", _:
            scope.report(
                "PS209", "`range` takes two bounds", clause.span, help="such as `range(0Mbps, 1Gbps)`"
            )
        case "max", 0:
            return p.MaxNorm()
        case "minmax", 0:
            return p.MinMaxNorm()
        case ("max" | "minmax") as name, _:
            scope.report("PS209", f"`{name}` takes no arguments", clause.span)
        case word, _:
            _unknown_word(scope, word, clause.method.span, "`normalize`", ("range", "max", "minmax"))
    return None


def _range(scope: Scope, clause: s.NormalizeClause, value: e.Expr) -> p.RangeNorm | None:
    bounds = [_bound(scope, arg, value) for arg in clause.args]
    low, high = bounds
    if low is None or high is None:
        return None
    if low >= high:
        scope.report("PS208", "the first bound must be below the second", clause.span, label="an empty range")
        return None
    return p.RangeNorm(low, high)


def _bound(scope: Scope, node: s.Expression, value: e.Expr) -> int | float | None:
    from policysched.lang.check.constants import evaluated

    wanted = e.type_of(value).present()
    found = read(scope, node, CONSTANT, wanted)
    if found is None or not no_holes(scope, found):
        return None
    plain = e.type_of(found).kind in (Kind.INT, Kind.FLOAT, Kind.RATIO)
    if (
        not (plain and wanted.kind in (Kind.INT, Kind.FLOAT, Kind.RATIO))
        and conform(scope, found, wanted) is None
    ):
        return None
    return evaluated(fold(found))


def _relative_lint(
    scope: Scope, clause: s.NormalizeClause | None, normalize: p.Normalize | None, value: e.Expr
) -> None:
    if clause is None or not isinstance(normalize, p.MaxNorm | p.MinMaxNorm):
        return
    if any(isinstance(one, e.MetricRef | e.TrafficTo) for one in e.walk(value)):
        scope.report(
            "PS413",
            f"`{clause.method.text}` blows the noise of idle nodes up to full scale",
            clause.span,
            label="relative to the other candidates",
            help="`range(LOW, HIGH)` is stable from one decision to the next",
        )
