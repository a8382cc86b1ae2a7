"""Bare names in expressions: what was declared (`let`, `input`, `metric`; of a `let` that depends on something what it stands
for), QoS classes, and `now`."""

from policysched.lang.check.attributes import suggest_attribute
from policysched.lang.check.expression_checker import ExpressionChecker, conform
from policysched.lang.check.scope import DeclaredName, LetExpression, declared_here, did_you_mean
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import CONTAINER_RECORD, Input, Metric, PairJoinSpec, Parameter, StateSpec
from policysched.lang.ir.transform import with_span
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
    if node.name in checker.scope.broken_names:
        return None
    near = did_you_mean(node.name, [*checker.scope.names, *(t.QOS_CLASSES if expected == t.QOS else ())])
    related: tuple[Label, ...] = ()
    for name, one in checker.scope.names.items():
        if near == f"did you mean `{name}`?":
            related = (declared_here(one.span),)
    checker.scope.report(
        "PS210",
        f"unknown name `{node.name}`",
        node.span,
        label="not declared",
        help=near
        or suggest_attribute(node.name)
        or f'declare it with `let` or `input`, or write `"{node.name}"` if a string is meant',
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
            return checker.report_not_readable(
                node.span, f"`{node.name}`, which is of what feeds a state,", declared
            )
        case LetExpression() as named:
            return _expand_let(checker, declared.name, named)
        case Input() as one:
            if one.owner == "node" and not checker.context.node:
                return checker.report_not_readable(
                    node.span, f"`{node.name}`, an input of the node,", declared
                )
            if one.owner != "node" and not checker.context.pod:
                return checker.report_not_readable(
                    node.span, f"`{node.name}`, an input of the {one.owner},", declared
                )
            type_ = one.type if one.default is None else one.type.as_required()
            return e.InputRef(one.name, type_, one.stage, node.span)
        case RecordType():
            checker.scope.report(
                "PS202",
                f"`{node.name}` is a record, and has no value of its own",
                node.span,
                help=f"its fields have, where a list of it is looked through: `any(LIST where {node.name}.FIELD ...)`",
            )
            return None
        case Metric() as one:
            if not checker.context.metrics:
                return checker.report_not_readable(node.span, f"the metric `{node.name}`", declared)
            if isinstance(one.join, PairJoinSpec):
                return report_pod_pair_metric(checker, node, declared)
            return e.MetricRef(one.name, one.type, node.span)
        case StateSpec() as one:
            if not (checker.context.metrics and checker.context.pod):
                return checker.report_not_readable(node.span, f"the state `{node.name}`", declared)
            return e.StateRef(
                one.name,
                with_span(one.key, node.span),
                one.start,
                one.scope == "cluster",
                one.type,
                node.span,
            )


def _expand_let(checker: ExpressionChecker, name: str, named: LetExpression) -> e.Expr | None:
    """What the name stands for, read once for each place in which it stands: an expression of names that are made of names would be
    read a thousand times over, and be as many objects."""
    known = checker.scope.let_cache
    if (name, checker.context) not in known:
        found = checker.check(named.node, named.type)
        known[name, checker.context] = None if found is None else conform(checker.scope, found, named.type)
    return known[name, checker.context]


def report_pod_pair_metric(
    checker: ExpressionChecker, node: s.NameExpr, declared: DeclaredName
) -> e.Expr | None:
    """Report it; there is no value."""
    checker.scope.report(
        "PS247",
        f"`{node.name}` is of two pods, and has no value of its own",
        node.span,
        label="between which?",
        help=f"write `traffic_to(gang, {node.name})`: what it has between the pod and the members of its gang on the node",
        related=(declared_here(declared.span),),
    )
    return None


def _now(checker: ExpressionChecker, node: s.NameExpr) -> e.Expr | None:
    if not checker.context.time:
        return checker.report_not_readable(node.span, "the clock")
    return e.Now(node.span)
