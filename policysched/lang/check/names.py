"""Bare names in expressions: declared names, QoS classes and `now`.

The name of a `let` that is not constant is replaced by its expression.
"""

from dataclasses import replace

from policysched.lang.check.attributes import check_attribute, suggest_attribute
from policysched.lang.check.expression_checker import ExpressionChecker, conform
from policysched.lang.check.scope import DeclaredName, LetExpression, declared_here, did_you_mean
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import (
    CONTAINER_RECORD,
    Input,
    Metric,
    PairJoinSpec,
    Parameter,
    StateSpec,
)
from policysched.lang.ir.transform import with_span
from policysched.lang.parse.foreign_words import NAME_WORDS
from policysched.lang.parse.keywords import RESERVED_NAMES
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import RecordType, Type
from policysched.text import Label


def check_name(checker: ExpressionChecker, node: s.NameExpr, expected: Type | None) -> e.Expr | None:
    declared = checker.scope.names.get(node.name)
    if declared is not None:
        declared.used = True
        return _declared_value(checker, node, declared)
    if node.name in t.QOS_CLASSES:
        return e.Const(t.QOS_CLASSES.index(node.name), t.QOS, node.span)
    if node.name == "now":
        return _now(checker, node)
    if node.name in checker.scope.broken_names or node.name in RESERVED_NAMES:
        return None  # reported by the parser
    near = did_you_mean(node.name, [*checker.scope.names, *(t.QOS_CLASSES if expected == t.QOS else ())])
    related: tuple[Label, ...] = ()
    for name, candidate in checker.scope.names.items():
        if near == f"did you mean `{name}`?":
            related = (declared_here(candidate.span),)
    checker.scope.report(
        "PS210",
        f"unknown name `{node.name}`",
        node.span,
        label="not declared",
        help=near
        or NAME_WORDS.get(node.name)
        or suggest_attribute(node.name)
        or f'declare it with `let` or `input`, or write `"{node.name}"` for a string',
        related=related,
    )
    return None


def _declared_value(checker: ExpressionChecker, node: s.NameExpr, declared: DeclaredName) -> e.Expr | None:
    match declared.definition:
        case None:
            return None
        case e.Const(value=value, type=type_) | Parameter(value=e.Const(value=value, type=type_)):
            return e.Const(value, type_, node.span)
        case LetExpression(reads_container=True) if checker.context.element_record is not CONTAINER_RECORD:
            return checker.report_not_readable(node.span, f"`{node.name}`, which reads `container`", declared)
        case LetExpression() as let:
            return _expand_let(checker, declared.name, let)
        case Input() as definition:
            if definition.owner == "node" and not checker.context.node:
                return checker.report_not_readable(
                    node.span, f"`{node.name}`, an input of the node", declared
                )
            if definition.owner != "node" and not checker.context.pod:
                return checker.report_not_readable(
                    node.span, f"`{node.name}`, an input of the {definition.owner}", declared
                )
            type_ = definition.type if definition.default is None else definition.type.as_required()
            stage, is_long_json = definition.stage, definition.is_long_json
            return e.InputRef(definition.name, type_, stage, node.span, is_long_json=is_long_json)
        case RecordType():
            checker.scope.report(
                "PS202",
                f"`{node.name}` is a record, not a value",
                node.span,
                help=f"read its fields in a list expression, for example `any(LIST where {node.name}.FIELD ...)`",
            )
            return None
        case Metric() as definition:
            if not checker.context.metrics:
                return checker.report_not_readable(node.span, f"the metric `{node.name}`", declared)
            if isinstance(definition.join, PairJoinSpec):
                return report_pod_pair_metric(checker, node, declared)
            return e.MetricRef(definition.name, definition.type, node.span)
        case StateSpec() as definition:
            if not (checker.context.metrics and checker.context.pod):
                return checker.report_not_readable(node.span, f"the state `{node.name}`", declared)
            return e.StateRef(
                definition.name,
                with_span(definition.key, node.span),
                definition.start,
                definition.scope == "cluster",
                definition.decay is not None,
                definition.type,
                node.span,
            )


def _expand_let(checker: ExpressionChecker, name: str, let: LetExpression) -> e.Expr | None:
    """The expression of the `let`, cached per context: nested names would otherwise be expanded exponentially."""
    cache = checker.scope.let_cache
    if (name, checker.context) not in cache:
        expr = checker.check(let.node, let.type)
        cache[name, checker.context] = None if expr is None else conform(checker.scope, expr, let.type)
    return cache[name, checker.context]


def report_pod_pair_metric(
    checker: ExpressionChecker, node: s.NameExpr, declared: DeclaredName
) -> e.Expr | None:
    """Report a metric between pods that is read like a node metric."""
    checker.scope.report(
        "PS247",
        f"`{node.name}` is a metric between pods and has no value per node",
        node.span,
        label="which pods?",
        help=f"write `traffic_to(gang, {node.name})` for the sum over the members of the gang on the node",
        related=(declared_here(declared.span),),
    )
    return None


def check_age(checker: ExpressionChecker, node: s.AttributeExpr) -> e.Expr | None:
    """`other.age` and `victim.age`: the time since the pod was created."""
    written = replace(node, path=(replace(node.path[0], text="created"),))
    created = check_attribute(checker.scope, written, checker.context)
    now = None if created is None else _now(checker, node)
    return (
        None if created is None or now is None else e.Arith("-", now, created, t.DURATION, False, node.span)
    )


def _now(checker: ExpressionChecker, node: s.NameExpr | s.AttributeExpr) -> e.Expr | None:
    if not checker.context.time:
        return checker.report_not_readable(node.span, "the current time")
    return e.Now(node.span)
