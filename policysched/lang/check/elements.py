"""Lists of records in expressions: `count(cards where card.health == "Healthy")`, `sum(card.memory over cards)`.

Inside, the name of the record refers to the current element. Lists cannot be nested.
"""

from dataclasses import replace
from typing import cast

from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expression_checker import ExpressionChecker
from policysched.lang.check.names import check_name
from policysched.lang.check.scope import did_you_mean
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import CONTAINER_RECORD
from policysched.lang.ir.expr_analysis import is_floating, type_of, walk
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import RecordType, TypeKind

ELEMENT_FOLDS = ("count", "any")
VALUE_FOLDS = ("sum", "min", "max")


def check_fold(checker: ExpressionChecker, node: s.ListFoldExpr) -> e.Expr | None:
    name = node.function.text
    allowed = ELEMENT_FOLDS if node.value is None else VALUE_FOLDS
    if name not in allowed:
        _report_unknown_fold(checker, node)
        return None
    if checker.context.element_record is not None:
        checker.scope.report(
            "PS220",
            f"nested list expression `{name}`",
            node.span,
            label="only one list at a time",
            help="declare another input with the required values, or write two conditions",
        )
        return None
    items = check_name(checker, s.NameExpr(node.items.text, node.items.span), None)
    if items is None:
        return None
    record = _record_of(items)
    if record is None or not isinstance(items, e.InputRef):
        checker.scope.report(
            "PS202",
            f"`{name}` expects a list of records, found {describe_type(type_of(items))}",
            node.items.span,
            label=describe_type(type_of(items)),
            help="declare it as `input NAME: list<RECORD> = ...`",
        )
        return None
    inside = checker.in_context(replace(checker.context, element_record=record))
    where = None if node.where is None else inside.check_condition(node.where, "where")
    if node.where is not None and where is None:
        return None
    if node.value is None:
        type_ = t.INT if name == "count" else t.BOOL
        return e.ListFold(cast(e.ListFoldFunction, name), items, None, where, type_, False, node.span)
    value = inside.require_numeric(inside.check(node.value, None), f"`{name}`")
    if value is None:
        return None
    if e.Stage.NODE not in items.stage and any(isinstance(part, e.Aggregate) for part in walk(value)):
        return checker.report_not_readable(node.span, "an aggregate over the candidates")
    if name == "sum" and type_of(value).kind is TypeKind.TIMESTAMP:
        checker.scope.report("PS204", "points in time cannot be added", value.span)
        return None
    type_ = type_of(value).as_required()
    return e.ListFold(
        cast(e.ListFoldFunction, name), items, value, where, type_, is_floating(value), node.span
    )


def is_record_field(checker: ExpressionChecker, node: s.AttributeExpr) -> bool:
    """Whether the attribute is a field of a record."""
    if checker.context.element_record is not None and checker.context.element_record.name == node.owner:
        return True
    declared = checker.scope.names.get(node.owner)
    return node.owner == CONTAINER_RECORD.name if declared is None else declared.kind == "record"


def check_record_field(checker: ExpressionChecker, node: s.AttributeExpr) -> e.Expr | None:
    record = checker.context.element_record
    if node.owner == CONTAINER_RECORD.name and (record is None or record.name != node.owner):
        checker.scope.report(
            "PS220",
            f"`{node.span.text}` is only available in a `state`",
            node.span,
            label="not available here",
            help="use it in the `value` or `when` of a `state`, or in a `let` that these use",
        )
        return None
    if record is None or record.name != node.owner:
        if checker.scope.names[node.owner].definition is None:
            return None  # the record has a reported error
        checker.scope.report(
            "PS220",
            f"the record `{node.owner}` is only available inside a list expression",
            node.span,
            label="not available here",
            help=f"for example `any(LIST where {node.span.text} ...)`",
        )
        return None
    names = [field.name for field in record.fields]
    name = node.path[0].text
    if len(node.path) > 1 or node.path[0].is_quoted_key or node.path[0].is_constant_key or name not in names:
        checker.scope.report(
            "PS211",
            f"unknown field `{node.span.text}`",
            node.span,
            label=f"`{record.name}` has no such field",
            help=did_you_mean(name, names) or f"the fields are {', '.join(names)}",
        )
        return None
    index = names.index(name)
    field = record.fields[index]
    type_ = field.type if field.default is None else field.type.as_required()
    return e.ElementField(index, name, type_, node.span)


def _record_of(items: e.Expr) -> RecordType | None:
    element_type = type_of(items).element
    return None if element_type is None else element_type.record


def _report_unknown_fold(checker: ExpressionChecker, node: s.ListFoldExpr) -> None:
    name = node.function.text
    if name in VALUE_FOLDS:
        hint = f"`{name}` takes a value: `{name}(RECORD.FIELD over {node.items.text} where ...)`"
    elif name in ELEMENT_FOLDS:
        hint = f"`{name}` takes no value: `{name}({node.items.text} where ...)`"
    else:
        hint = (
            did_you_mean(name, ELEMENT_FOLDS + VALUE_FOLDS)
            or f"the list functions are {', '.join(ELEMENT_FOLDS + VALUE_FOLDS)}"
        )
    checker.scope.report("PS210", f"invalid list expression with `{name}`", node.function.span, help=hint)
