"""A built-in in a policy: its parameters, checked against its declaration."""

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
    """Every parameter with its value, defaults included; None after a finding."""
    errors = scope.error_count()
    known = declaration.parameters if scoring else declaration.filter_parameters
    owner = f"the {'score' if scoring else 'filter'} `{declaration.name}`"
    params = check_block_params(scope, owner, span, nodes or (), [one.name for one in known])
    values = tuple((one.name, _value(scope, params, one)) for one in known)
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
    """A whole number in a range; `low` after a finding."""
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
    scope.report("PS208", f"`{name}` is {wanted}", node.span, label="outside its range")
    return low


def _constraints(
    scope: Scope, params: BlockParams, node: ParamNode, parameter: BuiltinParameter
) -> BuiltinParamValue:
    if isinstance(node, s.MapLit) and node.entries:
        return _number_map(scope, node, parameter)
    if isinstance(node, s.NameExpr):
        return params.choice(parameter.name, parameter.choices, cast(str, parameter.default)) or ""
    words = " or ".join(f"`{one}`" for one in parameter.choices)
    scope.report(
        "PS202",
        f"`{parameter.name}` is {words}, or gives maxSkew by topology key",
        node.span,
        help='such as `{"topology.kubernetes.io/zone" = 1}`',
    )
    return ""


def _names(scope: Scope, node: ParamNode, parameter: BuiltinParameter) -> frozenset[str]:
    if not isinstance(node, s.ListLit) or not all(isinstance(one, s.StringLit) for one in node.items):
        scope.report(
            "PS202",
            f"`{parameter.name}` is a list of names",
            node.span,
            help='such as `["example.com/gpu"]`',
        )
        return frozenset()
    return frozenset(one.value for one in node.items if isinstance(one, s.StringLit))


def _weights(scope: Scope, node: ParamNode, parameter: BuiltinParameter) -> tuple[tuple[str, int], ...]:
    if not isinstance(node, s.MapLit) or not node.entries:
        scope.report(
            "PS202",
            f"`{parameter.name}` gives weights by name",
            node.span,
            help='such as `{"cpu" = 1, "memory" = 1}`',
        )
        return ()
    return _number_map(scope, node, parameter)


def _number_map(scope: Scope, node: s.MapLit, parameter: BuiltinParameter) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for key, value in node.entries:
        if key.value in found:
            scope.report("PS213", f"`{key.value}` is given twice", key.span, label="given again")
        found[key.value] = _whole_number(scope, value, key.value, parameter.low, parameter.high)
    return tuple(found.items())


def _shape(scope: Scope, node: ParamNode, parameter: BuiltinParameter) -> tuple[tuple[int, int], ...]:
    example = 'such as `{"0" = 0, "100" = 10}`'
    if not isinstance(node, s.MapLit) or not node.entries:
        scope.report("PS202", f"`{parameter.name}` gives points", node.span, help=example)
        return ()
    points: list[tuple[int, int]] = []
    for key, value in node.entries:
        if not (
            key.value.isascii() and key.value.isdecimal() and len(key.value) <= 3 and int(key.value) <= 100
        ):
            scope.report("PS208", f"`{key.value}` is no percentage from 0 to 100", key.span, help=example)
            continue
        at = int(key.value)
        if points and at <= points[-1][0]:
            scope.report(
                "PS208", "the points must go up in percent", key.span, label="not above the one before"
            )
        points.append((at, _whole_number(scope, value, f'"{key.value}"', parameter.low, parameter.high)))
    return tuple(points)
