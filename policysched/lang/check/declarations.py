"""`let`, `input` and `metric`: the names that the rest of a policy may use, in the order of the file."""

import re
from typing import Literal, cast

from policysched.lang.check.attributes import attribute
from policysched.lang.check.dimensions import describe
from policysched.lang.check.expressions import read, read_as
from policysched.lang.check.flow import no_holes
from policysched.lang.check.limits import depends, measure_expanded, reads_container
from policysched.lang.check.metrics import metric
from policysched.lang.check.reading import conform
from policysched.lang.check.scope import (
    CONDITION,
    CONSTANT,
    NAMED,
    NAMED_FED,
    Declared,
    Named,
    Scope,
    declared_at,
    did_you_mean,
    one_of,
)
from policysched.lang.ir import program as p
from policysched.lang.ir.attributes import ATTRIBUTES
from policysched.lang.ir.constant_folding import fold
from policysched.lang.ir.expr import Const, type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import BOOL, STRING, Kind, Record, RecordField, Type
from policysched.lang.types.units import UNITS
from policysched.text import Span

_TYPES = {kind.value: Type(kind) for kind in Kind if kind not in (Kind.LIST, Kind.MAP, Kind.RECORD)}
_INPUT_TYPES = tuple(_TYPES)


def type_named(scope: Scope, node: s.TypeRef, known: tuple[str, ...] = (*_TYPES, "list")) -> Type | None:
    name = node.name.text
    if name == "list" and "list" in known:
        element = None if node.argument is None else type_named(scope, node.argument, tuple(_TYPES))
        if node.argument is None:
            scope.report("PS237", "a list of what?", node.span, help="such as `list<string>`")
        return None if element is None else Type(Kind.LIST, element=element)
    if name in known and name in _TYPES and node.argument is None:
        return _TYPES[name]
    scope.report(
        "PS237",
        f"`{node.span.text}` is no type that can stand here",
        node.span,
        label="unknown type",
        help=did_you_mean(name, known) or f"types are {', '.join(known).replace('list', 'list<...>')}",
    )
    return None


def declare(
    scope: Scope, kind: Literal["param", "let", "record", "input", "metric", "state"], name: s.Name
) -> Declared | None:
    """Take the name, or report that something else has it."""
    taken = scope.declared.get(name.text)
    if taken is not None:
        scope.report(
            "PS213",
            f"`{name.text}` is declared already",
            name.span,
            label="declared again",
            related=(declared_at(taken.span),),
        )
        return None
    declared = Declared(kind, name.text, name.span, None)
    scope.declared[name.text] = declared
    return declared


def declare_let(scope: Scope, node: s.Let) -> None:
    """A constant, or a name for an expression. The latter is read here once for its own mistakes, whoever uses it."""
    type_ = type_named(scope, node.type)
    value: Const | Named | None = None
    if type_ is not None and depends(scope, node.value):
        fed = reads_container(scope, node.value)
        if read_as(scope, node.value, NAMED_FED if fed else NAMED, type_) is not None:
            value = Named(node.value, type_, *measure_expanded(scope, node.value), of_container=fed)
    elif type_ is not None:
        value = constant(scope, node.value, type_)
    declared = declare(scope, "let", node.name)
    if declared is not None:
        declared.value = value


def constant(scope: Scope, node: s.Expression, type_: Type) -> Const | None:
    """A value that depends on nothing, held as the type says: a fraction of a whole unit is rounded down."""
    found = read(scope, node, CONSTANT, type_)
    if found is None or not no_holes(scope, found):
        return None
    conformed = conform(scope, fold(found), type_)
    if conformed is None:
        return None
    if isinstance(conformed, Const):
        return _held(conformed, type_)
    from policysched.lang.check.constants import evaluated

    value = evaluated(conformed)
    if value is None:
        scope.report("PS221", "this is not a constant", conformed.span, label="depends on something")
        return None
    return _held(Const(value, type_of(conformed), conformed.span), type_)


def _held(found: Const, type_: Type) -> Const:
    value = found.value
    if type_.numeric and isinstance(value, int | float):
        value = float(value) if type_.held_as_float else int(value // 1)
    return Const(value, type_.present(), found.span)


def declare_metric(scope: Scope, node: s.Metric) -> None:
    type_ = type_named(scope, node.type, ("int", "float", "cpu", "bytes", "bandwidth", "ratio", "duration"))
    value = metric(scope, node, type_)
    declared = declare(scope, "metric", node.name)
    if declared is not None:
        declared.value = value


# ── records ────────────────────────────────────────────────────────────────────────────────────────────────────────


def declare_record(scope: Scope, node: s.Record) -> None:
    errors = scope.error_count()
    fields: dict[str, RecordField] = {}
    spans: dict[str, Span] = {}
    for one in node.fields:
        if one.name.text in fields:
            scope.report(
                "PS213",
                f"the record has a field `{one.name.text}` already",
                one.name.span,
                label="declared again",
                related=(declared_at(spans[one.name.text]),),
            )
            continue
        found = _field(scope, one)
        if found is not None:
            fields[found.name], spans[found.name] = found, one.name.span
    declared = declare(scope, "record", node.name)
    if declared is not None and scope.error_count() == errors:
        declared.value = Record(node.name.text, tuple(fields.values()))


def _field(scope: Scope, node: s.RecordField) -> RecordField | None:
    type_ = type_named(scope, node.type, _INPUT_TYPES)
    for clause in node.misplaced:
        scope.report(
            "PS217",
            "a field of a record has no such clause",
            clause.span,
            help="what happens where the JSON is not as the record says stands in the input that reads it",
        )
    absent = node.absent
    if absent is not None and absent.kind == "required":
        scope.report("PS217", "a field is required unless it says `optional` or `default`", absent.span)
    if type_ is None:
        return None
    default = None
    if absent is not None and absent.kind == "default" and absent.value is not None:
        const = constant(scope, absent.value, type_)
        default = None if const is None or isinstance(const.value, tuple) else const.value
    if absent is not None and absent.kind == "optional":
        type_ = type_.absent_allowed()
    key = node.name.text if node.key is None else node.key.value
    return RecordField(node.name.text, type_, key, _unit(scope, node.unit, type_.present()), default)


def _input_type(scope: Scope, node: s.TypeRef) -> Type | None:
    """Of an input: a single value, or `list<NAME>` of a record that is declared above."""
    if node.name.text == "list" and node.argument is not None and node.argument.argument is None:
        name = node.argument.name.text
        declared = scope.declared.get(name)
        if name in scope.broken or (declared is not None and declared.kind == "record"):
            record = None if declared is None else declared.value
            if declared is None or not isinstance(record, Record):
                return None  # a mistake that was reported
            declared.used = True
            return Type(Kind.LIST, element=Type(Kind.RECORD, record=record))
    return type_named(scope, node, _INPUT_TYPES)


# ── inputs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def declare_input(scope: Scope, node: s.Input) -> None:
    errors = scope.error_count()
    type_ = _input_type(scope, node.type)
    source = _source(scope, node.source)
    value = None
    if type_ is not None and source is not None:
        value = _input(scope, node, type_, source)
    declared = declare(scope, "input", node.name)
    if declared is not None and scope.error_count() == errors:
        declared.value = value


_Source = tuple[Literal["pod", "node", "namespace"], str, str | None]
"""Owner, map or attribute, key."""


def _source(scope: Scope, node: s.Expression) -> _Source | None:
    if not isinstance(node, s.Attribute):
        scope.report(
            "PS202",
            "an input is read from a label, an annotation or another string of a pod, a node or a namespace",
            node.span,
            help='such as `pod.labels["app"]`',
        )
        return None
    found = attribute(scope, node, CONDITION)
    if found is None:
        return None
    if found.owner in ("victim", "other") or found.type.kind is not Kind.STRING:
        scope.report(
            "PS202",
            f"`{node.span.text}` is {describe(found.type)}, and an input is read from a string",
            node.span,
            label="has a type already",
            help="read it where it is needed, without an input",
        )
        return None
    owner = cast(Literal["pod", "node", "namespace"], found.owner)
    if (owner, found.path) in ATTRIBUTES:
        return owner, ".".join(found.path), None
    return owner, found.path[0], found.path[-1]


def _input(scope: Scope, node: s.Input, type_: Type, source: _Source) -> p.Input:
    owner, source_map, key = source
    _check_absent(scope, node, can_be_absent=key is not None or node.at is not None)
    _check_invalid(scope, node, type_)
    default = None
    if node.absent is not None and node.absent.kind == "default" and node.absent.value is not None:
        default = constant(scope, node.absent.value, type_)
    required = None
    if (
        node.absent is not None
        and node.absent.kind == "required"
        and isinstance(node.absent.value, s.StringLit)
    ):
        required = node.absent.value.value
    optional = node.absent is not None and node.absent.kind == "optional"
    return p.Input(
        name=node.name.text,
        type=type_.absent_allowed() if optional else type_,
        owner=owner,
        source_map=source_map,
        source_key=key,
        at=_path(scope, node.at),
        unit=_unit(scope, node.unit, type_),
        default=default,
        required_text=required,
        invalid_text=node.invalid.text.value
        if node.invalid is not None and node.invalid.text is not None
        else None,
        invalid_default=node.invalid is not None and node.invalid.kind == "default",
        span=node.name.span,
    )


_PATH = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")


def _path(scope: Scope, node: s.StringLit | None) -> str | None:
    if node is None:
        return None
    if _PATH.fullmatch(node.value):
        return node.value
    scope.report(
        "PS208", "a path is names with points between", node.span, help='such as `at "status.cardList"`'
    )
    return None


def _check_absent(scope: Scope, node: s.Input, *, can_be_absent: bool) -> None:
    if node.absent is None and can_be_absent:
        scope.report(
            "PS214",
            f"nothing says what `{node.name.text}` is where `{node.source.span.text}` is absent",
            node.span,
            label="can be absent",
            help='add `default VALUE`, `optional` or `required "text for people"`',
        )
    if node.absent is not None and not can_be_absent:
        _without_effect(scope, node.absent.span, f"`{node.source.span.text}` is always there")


def _check_invalid(scope: Scope, node: s.Input, type_: Type) -> None:
    if type_ == STRING and node.at is None:
        if node.invalid is not None:
            _without_effect(scope, node.invalid.span, "every text is a string")
        return
    if node.invalid is None:
        scope.report(
            "PS214",
            f"nothing says what happens where the text is not {describe(type_)}",
            node.span,
            label=f"is read as {type_}",
            help='add `invalid reject "text for people"`, or `invalid default` to count it as absent',
        )
    elif node.invalid.kind == "default" and node.absent is None:
        scope.report(
            "PS214",
            "`invalid default` counts the value as absent, and nothing says what it is then",
            node.invalid.span,
            help="add `default VALUE` or `optional`",
        )


def _without_effect(scope: Scope, span: Span, why: str) -> None:
    scope.report("PS310", f"this clause has no effect: {why}", span, help="leave it out")


def _unit(scope: Scope, node: s.StringLit | None, type_: Type) -> str | None:
    if node is None:
        return None
    if check_unit(scope, node.value, node.span, type_):
        return node.value
    return None


def check_unit(scope: Scope, unit: str, span: Span, type_: Type) -> bool:
    units = UNITS.get(type_.kind)
    if units is not None and unit in units:
        return True
    if units is None or type_ == BOOL:
        message, hint = f"{describe(type_)} has no unit", "leave it out"
    else:
        message = f"`{unit}` is no unit of {type_}"
        hint = did_you_mean(unit, units) or f"units of {type_} are {one_of(units)}"
    scope.report("PS207", message, span, label="unknown unit", help=hint)
    return False


def text_of(scope: Scope, node: s.Expression | s.MapLit, what: str) -> str | None:
    if isinstance(node, s.StringLit):
        return node.value
    scope.report("PS202", f"{what} is a quoted text", node.span)
    return None


__all__ = ["check_unit", "constant", "declare_input", "declare_let", "declare_metric", "read_as", "text_of"]
