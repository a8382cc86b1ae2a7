"""`param`: a constant of the policy that the operator may set elsewhere, within limits that the policy states.

From here on it is a constant like a `let`. The value has to be of the type and within the limits wherever it comes
from; a bad one is an error at its own place, so that the policy is refused and what ran before runs on.
"""

import re
from dataclasses import replace
from decimal import Decimal

from policysched.lang.check.constants import check_constant
from policysched.lang.check.declarations import declare_name, resolve_type
from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.parameter_values import ParameterValue
from policysched.lang.check.scope import Scope, declared_here, did_you_mean
from policysched.lang.ir import program as p
from policysched.lang.ir.expr import Const
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
    if declared is None or default is None or scope.error_count() > errors:
        return
    found = p.Parameter(node.name.text, default, default, low, high, choices, "", node.name.span)
    _check_within_limits(scope, found, default, node.default.span, ())
    given = scope.parameter_values.values.get(node.name.text)
    if given is not None and scope.error_count() == errors:
        value = _check_given_value(scope, given, found)
        if value is None:
            return
        found = replace(found, value=value, set_in=given.location)
    if scope.error_count() == errors:
        declared.definition = found


def report_unknown_parameters(scope: Scope) -> None:
    """Report what could not be read, and values for parameters that the policy has not got."""
    for problem in scope.parameter_values.problems:
        scope.add_diagnostic(problem)
    known = [name for name, one in scope.names.items() if one.kind == "param"]
    for name, value in scope.parameter_values.values.items():
        if name in known or name in scope.broken_names:
            continue
        listed = f"it has {', '.join(f'`{one}`' for one in known)}" if known else "it has none"
        scope.report(
            "PS261",
            f"the policy has no parameter `{name}`",
            value.span,
            label="set for nothing",
            help=did_you_mean(name, known) or listed,
        )


# ── limits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_bounds(scope: Scope, node: s.RangeLimit, type_: Type) -> tuple[Const | None, Const | None]:
    if not type_.is_numeric:
        scope.report(
            "PS202",
            f"{describe_type(type_)} has no range",
            node.span,
            help="list the values that it may have: `in [FIRST, SECOND]`",
        )
        return None, None
    low, high = check_constant(scope, node.low, type_), check_constant(scope, node.high, type_)
    if low is not None and high is not None and not _number(low) <= _number(high):
        scope.report("PS208", "the range begins above its end", node.span, label="an empty range")
    return low, high


def _check_choices(scope: Scope, node: s.ChoiceLimit, type_: Type) -> tuple[Const, ...]:
    if type_.kind in (TypeKind.LIST, TypeKind.BOOL):
        scope.report(
            "PS202", f"{describe_type(type_)} has no list of choices", node.span, help="leave it out"
        )
        return ()
    found = [check_constant(scope, item, type_) for item in node.items]
    return tuple(one for one in found if one is not None)


def _check_within_limits(
    scope: Scope, one: p.Parameter, value: Const, span: Span, related: tuple[Label, ...]
) -> bool:
    """Whether the value is within the limits, a finding where it is not."""
    shown = format_value(value.value, one.type)
    if one.low is not None and one.high is not None:
        if _number(one.low) <= _number(value) <= _number(one.high):
            return True
        low, high = format_value(one.low.value, one.type), format_value(one.high.value, one.type)
        said = f"`{one.name}` is from {low} to {high}, and this is {shown}"
    elif one.choices:
        if any(choice.value == value.value for choice in one.choices):
            return True
        said = f"`{one.name}` is one of {', '.join(quote_choice(choice) for choice in one.choices)}, and not `{shown}`"
    else:
        return True
    scope.report("PS260", said, span, label="outside its limits", related=related)
    return False


def quote_choice(choice: Const) -> str:
    return f"`{format_value(choice.value, choice.type)}`"


def _number(value: Const) -> int | float:
    assert isinstance(value.value, int | float), f"{value.value!r} has no order"
    return value.value


# ── what was given ─────────────────────────────────────────────────────────────────────────────────────────────────


def _check_given_value(scope: Scope, given: ParameterValue, one: p.Parameter) -> Const | None:
    """The value as the parameter's type holds it, or None after a finding at its own place."""
    related = (declared_here(one.span),)
    value = _parse_given_text(given.text, one.type)
    if value is None or not _has_literal(value, one.type):
        shown = given.text if isinstance(given.text, str) else f"[{', '.join(given.text)}]"
        wanted, large = describe_type(one.type), _is_too_large(given.text, one.type)
        scope.report(
            "PS260",
            f"`{one.name}` is {wanted}, and this is {_truncate(shown)}{', too large for one' if large else ''}",
            given.span,
            label="too large" if large else f"not {wanted}",
            help=f"its default is {format_value(one.default.value, one.type)}",
            related=related,
        )
        return None
    const = Const(value, one.type, one.span)
    return const if _check_within_limits(scope, one, const, given.span, related) else None


def _truncate(shown: str) -> str:
    if not shown:
        return "empty"
    return f"`{shown}`" if len(shown) <= _QUOTED_CHARACTERS_MAX else f"`{shown[:_QUOTED_CHARACTERS_MAX]}…`"


def _is_too_large(text: str | tuple[str, ...], type_: Type) -> bool:
    """A number of the type's kind, but more than it holds."""
    return (
        isinstance(text, str)
        and type_.is_numeric
        and parse_value_or_failure(text, type_, None) == ParseFailure("large")
    )


_ConstantValue = bool | int | float | str | tuple[int | float | str, ...]


def _parse_given_text(text: str | tuple[str, ...], type_: Type) -> _ConstantValue | None:
    """A single text may stand for a list: its elements with commas between."""
    if type_.kind is not TypeKind.LIST:
        return parse_value(text, type_, None) if isinstance(text, str) else None
    assert type_.element is not None, "a list has elements of a type"
    if isinstance(text, str):
        text = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    items = [parse_value(one, type_.element, None) for one in text]
    if len(items) > _LIST_MAX or any(item is None for item in items):
        return None
    return tuple(item for item in items if item is not None)


def _has_literal(value: _ConstantValue, type_: Type) -> bool:
    """Whether a policy can say it: texts have no sign for a tab, numbers no exponent."""
    if isinstance(value, tuple):
        return all(_has_literal(item, type_.element or type_) for item in value)
    if isinstance(value, str):
        return all(sign.isprintable() or sign == "\n" for sign in value) and not _FORBIDDEN_TEXT.search(value)
    return (
        isinstance(value, bool)
        or type_.kind is TypeKind.QOS
        or len(_literal_digits(abs(value), type_)[0]) <= _DIGITS_MAX
    )


# ── the value as a policy says it ──────────────────────────────────────────────────────────────────────────────────


def with_value_as_default(node: s.ParameterDecl, one: p.Parameter) -> s.ParameterDecl:
    """The declaration with the value in the place of the default. Untouched where nobody set it."""
    return (
        replace(node, default=_literal_expression(one.value.value, one.type, node.span))
        if one.set_in
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
    """Digits and suffix of a literal that is exactly this value."""
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
