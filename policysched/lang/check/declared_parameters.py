"""`param`: a constant that the operator can set outside the policy, within limits that the policy declares.

After this check it is a constant like a `let`. Every value must have the type and satisfy the limits,
wherever it is set. An invalid value is an error at its location: the policy is rejected and its previous
version stays active.
"""

import re
from dataclasses import replace
from decimal import Decimal

from policysched.lang.check.constants import check_constant
from policysched.lang.check.declarations import declare_name, resolve_type
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.parameter_values import ParameterValue
from policysched.lang.check.scope import Scope, declared_here, did_you_mean
from policysched.lang.ir.declarations import Parameter
from policysched.lang.ir.expr import Const
from policysched.lang.parse.name_length import STRING_CHARACTERS_MAX
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import QOS_CLASSES, Type, TypeKind
from policysched.lang.types.units import ParseFailure, format_value, parse_value, parse_value_or_failure
from policysched.text import Label, Span

PARAMETER_TYPES = (
    "bool", "int", "float", "string", "cpu", "bytes", "bandwidth", "ratio", "duration", "qos", "list",
)  # fmt: skip
_DIGITS_MAX = 60
_FORBIDDEN_TEXT = re.compile(r"\{\{|\$\{|\$\(|\t")
_LIST_MAX = 1000
_QUOTED_CHARACTERS_MAX = 80


def declare_parameter(scope: Scope, node: s.ParameterDecl) -> None:
    errors = scope.error_count()
    type_ = resolve_type(scope, node.type, PARAMETER_TYPES)
    default = None if type_ is None else check_constant(scope, node.default, type_)
    low = high = None
    choices: tuple[Const, ...] = ()
    if type_ is not None:
        match node.limits:
            case s.RangeLimit():
                low, high = _check_bounds(scope, node.limits, type_)
            case s.ChoiceLimit():
                choices = _check_choices(scope, node.limits, type_)
    declared = declare_name(scope, "param", node.name)
    if not (node.locked or choices):
        scope.settable_names.add(node.name.text)
    if declared is None or default is None or scope.error_count() > errors:
        return
    parameter = Parameter(node.name.text, default, default, low, high, choices, "", node.name.span)
    _check_within_limits(scope, parameter, default, node.default.span, ())
    raw_value = scope.parameter_values.values.get(node.name.text)
    if raw_value is not None and node.locked and not raw_value.by_operator:
        scope.report(
            "PS263",
            f"the parameter `{node.name.text}` is locked",
            raw_value.span,
            label="cannot be set here",
            help=f"remove it; only the settings can set it: `params: {{POLICY: {{{node.name.text}: VALUE}}}}`",
            related=(declared_here(node.name.span),),
        )
        return
    if raw_value is not None and scope.error_count() == errors:
        value = _check_given_value(scope, raw_value, parameter)
        if value is None:
            return
        parameter = replace(parameter, value=value, set_in=raw_value.location)
    if scope.error_count() == errors:
        declared.definition = parameter


def report_unknown_parameters(scope: Scope) -> None:
    """Report unreadable values, and values for parameters that the policy does not declare."""
    for problem in scope.parameter_values.problems:
        scope.add_diagnostic(problem)
    parameter_names = [name for name, declared in scope.names.items() if declared.kind == "param"]
    for name, value in scope.parameter_values.values.items():
        if name in parameter_names or name in scope.broken_names:
            continue
        listed = (
            f"its parameters are {', '.join(f'`{name}`' for name in parameter_names)}"
            if parameter_names
            else "it has no parameters"
        )
        scope.report(
            "PS261",
            f"the policy has no parameter `{name}`",
            value.span,
            label="unknown parameter",
            help=did_you_mean(name, parameter_names) or listed,
        )


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_bounds(scope: Scope, node: s.RangeLimit, type_: Type) -> tuple[Const | None, Const | None]:
    if not type_.is_numeric:
        scope.report(
            "PS202",
            f"{describe_type(type_)} cannot have a range",
            node.span,
            help="list the allowed values: `in [FIRST, SECOND]`",
        )
        return None, None
    low, high = check_constant(scope, node.low, type_), check_constant(scope, node.high, type_)
    if low is not None and high is not None and not _number(low) <= _number(high):
        scope.report("PS208", "the lower bound is above the upper bound", node.span, label="empty range")
    return low, high


def _check_choices(scope: Scope, node: s.ChoiceLimit, type_: Type) -> tuple[Const, ...]:
    if type_.kind in (TypeKind.LIST, TypeKind.BOOL):
        scope.report(
            "PS202", f"{describe_type(type_)} cannot have a list of choices", node.span, help="remove it"
        )
        return ()
    choices = [check_constant(scope, item, type_) for item in node.items]
    return tuple(choice for choice in choices if choice is not None)


def _check_within_limits(
    scope: Scope, parameter: Parameter, value: Const, span: Span, related: tuple[Label, ...]
) -> bool:
    """Whether the value is within the limits; reports it otherwise."""
    written = format_value(value.value, parameter.type)
    if parameter.low is not None and parameter.high is not None:
        if _number(parameter.low) <= _number(value) <= _number(parameter.high):
            return True
        low, high = (
            format_value(parameter.low.value, parameter.type),
            format_value(parameter.high.value, parameter.type),
        )
        message = f"`{parameter.name}` must be between {low} and {high}, found {written}"
    elif parameter.choices:
        if any(choice.value == value.value for choice in parameter.choices):
            return True
        message = f"`{parameter.name}` must be one of {', '.join(quote_choice(choice) for choice in parameter.choices)}, found `{written}`"
    else:
        return True
    scope.report("PS260", message, span, label="outside its limits", related=related)
    return False


def quote_choice(choice: Const) -> str:
    return f"`{format_value(choice.value, choice.type)}`"


def _number(value: Const) -> int | float:
    assert isinstance(value.value, int | float), f"{value.value!r} has no order"
    return value.value


# ── values that are set ──────────────────────────────────────────────────────────────────────────────────────────────


def _check_given_value(scope: Scope, raw_value: ParameterValue, parameter: Parameter) -> Const | None:
    """The value in the representation of the type; None after a diagnostic at the location of the value."""
    related = (declared_here(parameter.span),)
    value = _parse_given_text(raw_value.text, parameter.type)
    if value is None or not _has_literal(value, parameter.type):
        written = raw_value.text if isinstance(raw_value.text, str) else f"[{', '.join(raw_value.text)}]"
        wanted, large = describe_type(parameter.type), _is_too_large(raw_value.text, parameter.type)
        scope.report(
            "PS260",
            f"`{parameter.name}` must be {wanted}, found {_truncate(written)}{', which is too large' if large else ''}",
            raw_value.span,
            label="too large" if large else f"not {wanted}",
            help=f"the default is {format_value(parameter.default.value, parameter.type)}",
            related=related,
        )
        return None
    const = Const(value, parameter.type, parameter.span)
    return const if _check_within_limits(scope, parameter, const, raw_value.span, related) else None


def _truncate(written: str) -> str:
    if not written:
        return "an empty string"
    return (
        f"`{written}`" if len(written) <= _QUOTED_CHARACTERS_MAX else f"`{written[:_QUOTED_CHARACTERS_MAX]}…`"
    )


def _is_too_large(text: str | tuple[str, ...], type_: Type) -> bool:
    """Whether it has a string that is too long, or is a number of the type's kind that exceeds the range of the type."""
    return max(map(len, (text,) if isinstance(text, str) else text), default=0) > STRING_CHARACTERS_MAX or (
        isinstance(text, str)
        and type_.is_numeric
        and parse_value_or_failure(text, type_, None) == ParseFailure("large")
    )


_ConstantValue = bool | int | float | str | tuple[int | float | str, ...]


def _parse_given_text(text: str | tuple[str, ...], type_: Type) -> _ConstantValue | None:
    """A single text can be a list: its elements are separated by commas."""
    if type_.kind is not TypeKind.LIST:
        return parse_value(text, type_, None) if isinstance(text, str) else None
    assert type_.element is not None, "a list has elements of a type"
    if isinstance(text, str):
        text = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    items = [parse_value(item, type_.element, None) for item in text]
    if len(items) > _LIST_MAX or any(item is None for item in items):
        return None
    return tuple(item for item in items if item is not None)


def _has_literal(value: _ConstantValue, type_: Type) -> bool:
    """Whether the value has a literal: strings are short and cannot contain tabs, numbers have no exponent."""
    if isinstance(value, tuple):
        return all(_has_literal(item, type_.element or type_) for item in value)
    if isinstance(value, str):
        return (
            len(value) <= STRING_CHARACTERS_MAX
            and all(char.isprintable() or char == "\n" for char in value)
            and not _FORBIDDEN_TEXT.search(value)
        )
    return (
        isinstance(value, bool)
        or type_.kind is TypeKind.QOS
        or len(_literal_digits(abs(value), type_)[0]) <= _DIGITS_MAX
    )


# ── the value as a literal ───────────────────────────────────────────────────────────────────────────────────────────


def with_value_as_default(node: s.ParameterDecl, parameter: Parameter) -> s.ParameterDecl:
    """The declaration with the value as its default; unchanged if the value is not set."""
    return (
        replace(node, default=_literal_expression(parameter.value.value, parameter.type, node.span))
        if parameter.set_in
        else node
    )


def _literal_expression(value: _ConstantValue, type_: Type, span: Span) -> s.Expression:
    match value:
        case tuple():
            element = type_.element
            assert element is not None, "a list has elements of a type"
            return s.ListLit(tuple(_literal_expression(item, element, span) for item in value), span)
        case str():
            return s.StringLit(value, span)
        case bool():
            return s.BoolLit(value, span)
        case _ if type_.kind is TypeKind.QOS:
            return s.NameExpr(QOS_CLASSES[int(value)], span)
        case _:
            number = s.NumberLit(*_literal_digits(abs(value), type_), span)
            return s.UnaryExpr("-", number, span) if value < 0 else number


def _literal_digits(value: float, type_: Type) -> tuple[str, str]:
    """Digits and suffix of the literal for exactly this value."""
    match type_.kind:
        case TypeKind.CPU:
            return str(value), "m"
        case TypeKind.DURATION:
            return format((Decimal(value) / 10**6).normalize(), "f"), "ms"
        case TypeKind.BANDWIDTH:
            return format(Decimal(repr(float(value))), "f"), "bps"
        case TypeKind.FLOAT | TypeKind.RATIO:
            return format(Decimal(repr(float(value))), "f"), ""
        case _:
            return str(value), ""
