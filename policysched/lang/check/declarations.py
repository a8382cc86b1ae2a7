"""Declarations: `let`, `record`, `input` and `metric`, and the types that they name."""

import re
from typing import Literal, cast

from policysched.lang.check.attributes import check_attribute
from policysched.lang.check.constants import check_constant
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.expressions import check_expression_as
from policysched.lang.check.limits import is_runtime_dependent, measure_expanded, reads_container
from policysched.lang.check.literals import check_unit
from policysched.lang.check.metrics import check_metric
from policysched.lang.check.scope import (
    FILTER_CONDITION,
    LET_OF_STATE_UPDATE,
    LET_VALUE,
    DeclaredName,
    LetExpression,
    Scope,
    declared_here,
    did_you_mean,
)
from policysched.lang.check.team_reads import is_settable
from policysched.lang.check.templates import check_message_length
from policysched.lang.ir.attributes import ATTRIBUTES
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import Const
from policysched.lang.parse.foreign_words import TYPE_WORDS
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import STRING, RecordType, RecordTypeField, Type, TypeKind
from policysched.text import Span

_TYPES_BY_NAME = {
    kind.value: Type(kind) for kind in TypeKind if kind not in (TypeKind.LIST, TypeKind.MAP, TypeKind.RECORD)
}
_INPUT_TYPES = tuple(_TYPES_BY_NAME)


def resolve_type(
    scope: Scope, node: s.TypeRef, known: tuple[str, ...] = (*_TYPES_BY_NAME, "list")
) -> Type | None:
    name = node.name.text
    if name == "list" and "list" in known:
        element = None if node.argument is None else resolve_type(scope, node.argument, tuple(_TYPES_BY_NAME))
        if node.argument is None:
            scope.report("PS237", "`list` has no element type", node.span, help="for example `list<string>`")
        return None if element is None else Type(TypeKind.LIST, element=element)
    if name in known and name in _TYPES_BY_NAME and node.argument is None:
        return _TYPES_BY_NAME[name]
    scope.report(
        "PS237",
        f"invalid type `{node.span.text}`",
        node.span,
        label="not a type that is allowed here",
        help=did_you_mean(TYPE_WORDS.get(name.lower(), name), known)
        or f"the types are {', '.join(known).replace('list', 'list<...>')}",
    )
    return None


def declare_name(
    scope: Scope, kind: Literal["param", "let", "record", "input", "metric", "state"], name: s.Identifier
) -> DeclaredName | None:
    """Declare the name; None after reporting that it is already declared."""
    previous = scope.names.get(name.text)
    if previous is not None:
        scope.report(
            "PS213",
            f"`{name.text}` is already declared",
            name.span,
            label="declared again",
            related=(declared_here(previous.span),),
        )
        return None
    declared = DeclaredName(kind, name.text, name.span, None)
    scope.names[name.text] = declared
    return declared


def declare_let(scope: Scope, node: s.LetDecl) -> None:
    """A constant, or a named expression. An expression is checked here once, even if nothing uses it."""
    type_ = resolve_type(scope, node.type)
    value: Const | LetExpression | None = None
    if type_ is not None and is_runtime_dependent(scope, node.value):
        is_container_expr = reads_container(scope, node.value)
        if (
            check_expression_as(
                scope, node.value, LET_OF_STATE_UPDATE if is_container_expr else LET_VALUE, type_
            )
            is not None
        ):
            value = LetExpression(
                node.value, type_, *measure_expanded(scope, node.value), reads_container=is_container_expr
            )
    elif type_ is not None:
        value = check_constant(scope, node.value, type_)
        if is_settable(scope, node.value):
            scope.settable_names.add(node.name.text)
    declared = declare_name(scope, "let", node.name)
    if declared is not None:
        declared.definition = value


def declare_metric(scope: Scope, node: s.MetricDecl) -> None:
    type_ = resolve_type(scope, node.type, ("int", "float", "cpu", "bytes", "bandwidth", "ratio", "duration"))
    value = check_metric(scope, node, type_)
    declared = declare_name(scope, "metric", node.name)
    if declared is not None:
        declared.definition = value


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def declare_record(scope: Scope, node: s.RecordDecl) -> None:
    errors = scope.error_count()
    fields: dict[str, RecordTypeField] = {}
    spans: dict[str, Span] = {}
    for field in node.fields:
        if field.name.text in fields:
            scope.report(
                "PS213",
                f"duplicate field `{field.name.text}`",
                field.name.span,
                label="declared again",
                related=(declared_here(spans[field.name.text]),),
            )
            continue
        field_type = _record_field(scope, field)
        if field_type is not None:
            fields[field_type.name], spans[field_type.name] = field_type, field.name.span
    declared = declare_name(scope, "record", node.name)
    if declared is not None and scope.error_count() == errors:
        declared.definition = RecordType(node.name.text, tuple(fields.values()))


def _record_field(scope: Scope, node: s.RecordFieldDecl) -> RecordTypeField | None:
    type_ = resolve_type(scope, node.type, _INPUT_TYPES)
    for clause in node.misplaced:
        scope.report(
            "PS217",
            "this clause is not allowed in a record field",
            clause.span,
            help="add `invalid ...` to the input that reads the record",
        )
    absent = node.absent
    if absent is not None and absent.kind == "required":
        scope.report(
            "PS217",
            "`required` is not allowed in a record field",
            absent.span,
            help="remove it; fields without `optional` or `default` are required",
        )
    if type_ is None:
        return None
    default = None
    if absent is not None and absent.kind == "default" and absent.value is not None:
        const = check_constant(
            scope, absent.value, type_, unit=None if node.unit is None else node.unit.value
        )
        default = None if const is None or isinstance(const.value, tuple) else const.value
    if absent is not None and absent.kind == "optional":
        type_ = type_.as_optional()
    key = node.name.text if node.key is None else node.key.value
    return RecordTypeField(node.name.text, type_, key, _unit(scope, node.unit, type_.as_required()), default)


def _input_type(scope: Scope, node: s.TypeRef) -> Type | None:
    """The type of an input: a single value, or `list<NAME>` of a record that is declared above."""
    if node.name.text == "list" and node.argument is not None and node.argument.argument is None:
        name = node.argument.name.text
        declared = scope.names.get(name)
        if name in scope.broken_names or (declared is not None and declared.kind == "record"):
            record = None if declared is None else declared.definition
            if declared is None or not isinstance(record, RecordType):
                return None  # it has a reported error
            declared.used = True
            return Type(TypeKind.LIST, element=Type(TypeKind.RECORD, record=record))
    return resolve_type(scope, node, _INPUT_TYPES)


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def declare_input(scope: Scope, node: s.InputDecl) -> None:
    errors = scope.error_count()
    type_ = _input_type(scope, node.type)
    source = _input_source(scope, node.source)
    value = None
    if type_ is not None and source is not None:
        value = _input(scope, node, type_, source)
    if is_settable(scope, node.source):
        scope.settable_names.add(node.name.text)
    declared = declare_name(scope, "input", node.name)
    if declared is not None and scope.error_count() == errors:
        declared.definition = value


_InputSource = tuple[Literal["pod", "node", "namespace"], str, str | None]
"""Owner, map or attribute, key."""


def _input_source(scope: Scope, node: s.Expression) -> _InputSource | None:
    if not isinstance(node, s.AttributeExpr):
        scope.report(
            "PS202",
            "an input must read a label, an annotation or another string attribute",
            node.span,
            help='for example `pod.labels["app"]`',
        )
        return None
    attribute = check_attribute(scope, node, FILTER_CONDITION)
    if attribute is None:
        return None
    if attribute.owner in ("victim", "other") or attribute.type.kind is not TypeKind.STRING:
        scope.report(
            "PS202",
            f"an input must read a string, found {describe_type(attribute.type)}",
            node.span,
            label=describe_type(attribute.type),
            help="use the attribute directly, without an input",
        )
        return None
    owner = cast(Literal["pod", "node", "namespace"], attribute.owner)
    if (owner, attribute.path) in ATTRIBUTES:
        return owner, ".".join(attribute.path), None
    return owner, attribute.path[0], attribute.path[-1]


def _input(scope: Scope, node: s.InputDecl, type_: Type, source: _InputSource) -> Input:
    owner, source_map, key = source
    _check_absent(scope, node, can_be_absent=key is not None or node.json_path is not None)
    _check_invalid(scope, node, type_)
    default = None
    if node.absent is not None and node.absent.kind == "default" and node.absent.value is not None:
        default = check_constant(
            scope, node.absent.value, type_, unit=None if node.unit is None else node.unit.value
        )
    required = None
    if (
        node.absent is not None
        and node.absent.kind == "required"
        and isinstance(node.absent.value, s.StringLit)
    ):
        required = node.absent.value.value
        check_message_length(scope, node.absent.value)
    optional = node.absent is not None and node.absent.kind == "optional"
    return Input(
        name=node.name.text,
        type=type_.as_optional() if optional else type_,
        owner=owner,
        source_map=source_map,
        source_key=key,
        json_path=_field_path(scope, node.json_path),
        unit=_unit(scope, node.unit, type_),
        default=default,
        required_text=required,
        invalid_text=node.invalid.text.value
        if node.invalid is not None and node.invalid.text is not None
        else None,
        invalid_default=node.invalid is not None and node.invalid.kind == "default",
        span=node.name.span,
    )


_FIELD_PATH = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")


def _field_path(scope: Scope, node: s.StringLit | None) -> str | None:
    if node is None:
        return None
    if _FIELD_PATH.fullmatch(node.value):
        return node.value
    scope.report(
        "PS208",
        "malformed path",
        node.span,
        help='separate names with points, for example `at "status.cardList"`',
    )
    return None


def _check_absent(scope: Scope, node: s.InputDecl, *, can_be_absent: bool) -> None:
    if node.absent is None and can_be_absent:
        scope.report(
            "PS214",
            f"`{node.name.text}` has no value if `{node.source.span.text}` is absent",
            node.span,
            label="can be absent",
            help='add `default VALUE`, `optional` or `required "MESSAGE"`',
        )
    if node.absent is not None and not can_be_absent:
        _report_no_effect(scope, node.absent.span, f"`{node.source.span.text}` is always present")


def _check_invalid(scope: Scope, node: s.InputDecl, type_: Type) -> None:
    if node.invalid is not None and node.invalid.text is not None:
        check_message_length(scope, node.invalid.text)
    if type_ == STRING and node.json_path is None:
        if node.invalid is not None:
            _report_no_effect(scope, node.invalid.span, "every value is a valid string")
        return
    if node.invalid is None:
        scope.report(
            "PS214",
            f"`{node.name.text}` has no `invalid` clause",
            node.span,
            label=f"the string may not be {describe_type(type_)}",
            help='add `invalid reject "MESSAGE"`, or `invalid default` to treat it as absent',
        )
    elif node.invalid.kind == "default" and node.absent is None:
        scope.report(
            "PS214",
            "`invalid default` needs a default",
            node.invalid.span,
            help="add `default VALUE` or `optional`",
        )


def _report_no_effect(scope: Scope, span: Span, reason: str) -> None:
    scope.report("PS310", f"this clause has no effect: {reason}", span, help="remove it")


def _unit(scope: Scope, node: s.StringLit | None, type_: Type) -> str | None:
    if node is None:
        return None
    if check_unit(scope, node.value, node.span, type_):
        return node.value
    return None
