"""The parameters of a built-in, checked against its declaration."""

from typing import cast

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.lang.check.block_params import BlockParams, ParamNode, check_block_params
from policysched.lang.check.scope import Scope
from policysched.lang.ir.rules import BuiltinParamValue
from policysched.lang.syntax import tree as s
from policysched.text import Span


def check_builtin_parameters(
    scope: Scope,
    declaration: BuiltinDeclaration,
    nodes: tuple[s.Param | s.ParamBlock, ...] | None,
    span: Span,
    *,
    scoring: bool,
) -> tuple[tuple[str, BuiltinParamValue], ...] | None:
    """Every parameter with its value, including defaults; None after a diagnostic."""
    errors = scope.error_count()
    known = declaration.parameters if scoring else declaration.filter_parameters
    owner = f"the {'score' if scoring else 'filter'} `{declaration.name}`"
    params = check_block_params(scope, owner, span, nodes or (), [parameter.name for parameter in known])
    values = tuple((parameter.name, _value(scope, params, parameter)) for parameter in known)
    return None if scope.error_count() > errors else values


def _value(scope: Scope, params: BlockParams, parameter: BuiltinParameter) -> BuiltinParamValue:
    written = params.get(parameter.name)
    if written is None:
        return parameter.default
    match parameter.kind:
        case "choice":
            return (
                params.choice(parameter.name, parameter.choices, cast(str, parameter.default))
                or parameter.default
            )
        case "int":
            return _whole_number(scope, written, parameter.name, parameter.low, parameter.high)
        case "weights":
            return _weights(scope, written, parameter)
        case "shape":
            return _shape(scope, written, parameter)
        case "names":
            return _names(scope, written, parameter)
        case "constraints":
            return _constraints(scope, params, written, parameter)


def _whole_number(scope: Scope, node: ParamNode, name: str, low: int, high: int) -> int:
    """A whole number in a range. Out of range: reports a diagnostic and returns `low`."""
    if (
        isinstance(node, s.NumberLit)
        and not node.suffix
        and node.digits.isdecimal()
        and len(node.digits) <= len(str(2**31))
    ):
        value = int(node.digits)
        if low <= value <= high:
            return value
    wanted = str(low) if low == high else f"a whole number from {low} to {high}"
    scope.report("PS208", f"`{name}` must be {wanted}", node.span, label="out of range")
    return low


def _constraints(
    scope: Scope, params: BlockParams, node: ParamNode, parameter: BuiltinParameter
) -> BuiltinParamValue:
    if isinstance(node, s.MapLit) and node.entries:
        return _number_map(scope, node, parameter)
    if isinstance(node, s.NameExpr):
        return params.choice(parameter.name, parameter.choices, cast(str, parameter.default)) or ""
    choices = " or ".join(f"`{choice}`" for choice in parameter.choices)
    scope.report(
        "PS202",
        f"`{parameter.name}` must be {choices}, or a map from topology key to maxSkew",
        node.span,
        help='for example `{"topology.kubernetes.io/zone" = 1}`',
    )
    return ""


def _names(scope: Scope, node: ParamNode, parameter: BuiltinParameter) -> frozenset[str]:
    if not isinstance(node, s.ListLit) or not all(isinstance(item, s.StringLit) for item in node.items):
        scope.report(
            "PS202",
            f"`{parameter.name}` must be a list of strings",
            node.span,
            help='for example `["example.com/gpu"]`',
        )
        return frozenset()
    return frozenset(item.value for item in node.items if isinstance(item, s.StringLit))


def _weights(scope: Scope, node: ParamNode, parameter: BuiltinParameter) -> tuple[tuple[str, int], ...]:
    if not isinstance(node, s.MapLit) or not node.entries:
        scope.report(
            "PS202",
            f"`{parameter.name}` must be a map from name to weight",
            node.span,
            help='for example `{"cpu" = 1, "memory" = 1}`',
        )
        return ()
    return _number_map(scope, node, parameter)


def _number_map(scope: Scope, node: s.MapLit, parameter: BuiltinParameter) -> tuple[tuple[str, int], ...]:
    numbers: dict[str, int] = {}
    for key, value in node.entries:
        if key.value in numbers:
            scope.report("PS213", f"duplicate key `{key.value}`", key.span, label="set again")
        numbers[key.value] = _whole_number(scope, value, key.value, parameter.low, parameter.high)
    return tuple(numbers.items())


def _shape(scope: Scope, node: ParamNode, parameter: BuiltinParameter) -> tuple[tuple[int, int], ...]:
    example = 'for example `{"0" = 0, "100" = 10}`'
    if not isinstance(node, s.MapLit) or not node.entries:
        scope.report(
            "PS202", f"`{parameter.name}` must be a map from percentage to score", node.span, help=example
        )
        return ()
    points: list[tuple[int, int]] = []
    for key, value in node.entries:
        if not (
            key.value.isascii() and key.value.isdecimal() and len(key.value) <= 3 and int(key.value) <= 100
        ):
            scope.report("PS208", f"`{key.value}` is not a percentage from 0 to 100", key.span, help=example)
            continue
        at = int(key.value)
        if points and at <= points[-1][0]:
            scope.report(
                "PS208", "the percentages must be ascending", key.span, label="not above the previous one"
            )
        points.append((at, _whole_number(scope, value, f'"{key.value}"', parameter.low, parameter.high)))
    return tuple(points)
