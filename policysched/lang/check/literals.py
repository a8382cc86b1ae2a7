"""Number literals, read by the expected type, and the units of a type."""

from collections.abc import Collection

from policysched.lang.check.dimensions import describe_type
from policysched.lang.check.scope import Scope, did_you_mean, join_alternatives
from policysched.lang.ir import expr as e
from policysched.lang.parse.keywords import UNIT_SPELLINGS
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import BOOL, Type, TypeKind
from policysched.lang.types.units import SUFFIXES, UNITS, ParseFailure, kinds_of_suffix, parse_literal
from policysched.text import Span

_PLAIN_NUMBER_KINDS = frozenset({TypeKind.INT, TypeKind.FLOAT, TypeKind.RATIO})
_TYPE_DESCRIPTIONS = {
    TypeKind.CPU: "a cpu amount",
    TypeKind.BYTES: "a size in bytes",
    TypeKind.BANDWIDTH: "a bandwidth",
    TypeKind.RATIO: "a ratio",
    TypeKind.DURATION: "a duration",
    TypeKind.INT: "a whole number",
    TypeKind.FLOAT: "a number",
}
_EXAMPLES = {
    TypeKind.BANDWIDTH: "800Mbps",
    TypeKind.DURATION: "90s",
    TypeKind.CPU: "100m",
    TypeKind.BYTES: "512Mi",
    TypeKind.RATIO: "85%",
}


def check_number(scope: Scope, node: s.NumberLit, expected: Type | None) -> e.Const | None:
    """The constant of a literal.

    If the expected type is not a number, or has another dimension than the suffix, the suffix decides,
    and the caller reports the mismatch.
    """
    kind = _literal_kind(scope, node, expected)
    if kind is None:
        return None
    if kind is TypeKind.INT and ("." in node.digits or "e" in node.digits.lower()):
        kind = TypeKind.FLOAT
    value = parse_literal(node.digits, node.suffix, kind)
    if isinstance(value, ParseFailure):
        _report_unreadable(scope, node, kind, value.reason)
        return None
    if kind is TypeKind.BYTES and node.suffix in ("M", "G", "T") and _looks_binary(node):
        scope.report(
            "PS206",
            f"`{node.digits}{node.suffix}` is a decimal size",
            node.span,
            help=f"use `{node.digits}{node.suffix}i` for the binary unit",
        )
    return e.Const(value, Type(kind), node.span)


def _looks_binary(node: s.NumberLit) -> bool:
    return node.digits in ("64", "128", "256", "512", "1024", "2048", "4096")


def _literal_kind(scope: Scope, node: s.NumberLit, expected: Type | None) -> TypeKind | None:
    """The type of the literal; None after a diagnostic."""
    wanted = expected.kind if expected is not None else None
    if wanted in SUFFIXES and node.suffix in SUFFIXES[wanted]:
        return wanted
    if node.suffix == "":
        return _kind_without_suffix(scope, node, wanted)
    if wanted is TypeKind.BYTES and node.suffix == "m":
        scope.report(
            "PS205",
            f"`{node.digits}m` is a fraction of a byte",
            node.span,
            label="`m` means thousandths",
            help=f"write `{node.digits}Mi` for mebibytes",
        )
        return None
    kinds = kinds_of_suffix(node.suffix)
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        _report_ambiguous_suffix(scope, node, wanted)
    else:
        _report_unknown_suffix(scope, node, wanted)
    return None


def _kind_without_suffix(scope: Scope, node: s.NumberLit, wanted: TypeKind | None) -> TypeKind | None:
    if wanted in (TypeKind.BANDWIDTH, TypeKind.DURATION):
        suffixes = [suffix for suffix in SUFFIXES[wanted] if suffix]
        scope.report(
            "PS207",
            f"expected {_TYPE_DESCRIPTIONS[wanted]}, found `{node.digits}` without a unit",
            node.span,
            label="missing unit",
            help=f"for example `{node.digits}{'s' if wanted is TypeKind.DURATION else 'Mbps'}`; the units are {', '.join(suffixes)}",
        )
        return None
    return TypeKind.INT


def _report_ambiguous_suffix(scope: Scope, node: s.NumberLit, wanted: TypeKind | None) -> None:
    """`100m` if neither a cpu amount nor a duration is expected."""
    if wanted is None or wanted in _PLAIN_NUMBER_KINDS:
        scope.report(
            "PS203",
            f"`{node.digits}{node.suffix}` is ambiguous: thousandths of a core, or minutes",
            node.span,
            label="ambiguous unit",
            help=f"declare a type: `let NAME: cpu = {node.digits}m` or `let NAME: duration = {node.digits}m`",
        )
        return
    _report_unknown_suffix(scope, node, wanted)


def _report_unknown_suffix(scope: Scope, node: s.NumberLit, wanted: TypeKind | None) -> None:
    meant = UNIT_SPELLINGS.get(node.suffix)
    if meant is not None and meant in _suffixes(wanted) and wanted is not TypeKind.TIMESTAMP:
        hint = f"write `{node.digits}{meant}`"
        if wanted is not TypeKind.DURATION and f"{meant.upper()}i" in SUFFIXES[TypeKind.BYTES]:
            hint += f", or `{node.digits}{meant.upper()}i` for the binary unit"
    elif wanted is TypeKind.TIMESTAMP:
        hint = f"an age is `now` less a time: `now - pod.created < {node.digits}{node.suffix}`"
    elif wanted in SUFFIXES:
        suffixes = [suffix for suffix in SUFFIXES[wanted] if suffix]
        hint = (
            f"the units of {wanted.value} are {', '.join(suffixes)}"
            if suffixes
            else f"{_TYPE_DESCRIPTIONS[wanted]} has no unit"
        )
    else:
        hint = (
            f"did you mean one of {join_alternatives(_near_suffixes(node.suffix))}?"
            if _near_suffixes(node.suffix)
            else ""
        )
    scope.report(
        "PS207",
        f"unknown unit `{node.suffix}`",
        node.span,
        label="not a unit that is allowed here",
        help=hint,
    )


def _suffixes(wanted: TypeKind | None) -> Collection[str]:
    """The suffixes of the expected type; all of them if no type is expected."""
    return (
        SUFFIXES[wanted] if wanted in SUFFIXES else {known for table in SUFFIXES.values() for known in table}
    )


def _near_suffixes(suffix: str) -> list[str]:
    suffixes = {known for table in SUFFIXES.values() for known in table if known}
    return sorted(known for known in suffixes if known.lower() == suffix.lower())


def _report_unreadable(scope: Scope, node: s.NumberLit, kind: TypeKind, reason: str) -> None:
    text = f"{node.digits}{node.suffix}"
    match reason:
        case "fine":
            unit = {
                TypeKind.CPU: "thousandths of a core",
                TypeKind.BYTES: "bytes",
                TypeKind.DURATION: "nanoseconds",
            }[kind]
            message, hint = f"`{text}` is not a whole number of {unit}", "round it"
        case "large":
            message, hint = f"`{text}` is too large for {_TYPE_DESCRIPTIONS[kind]}", ""
        case _:
            message, hint = f"malformed number `{text}`", f"for example `{_EXAMPLES.get(kind, '3')}`"
    scope.report("PS208", message, node.span, help=hint)


def check_unit(scope: Scope, unit: str, span: Span, type_: Type) -> bool:
    units = UNITS.get(type_.kind)
    if units is not None and unit in units:
        return True
    if units is None or type_ == BOOL:
        message, hint = f"{describe_type(type_)} has no unit", "remove it"
    else:
        message = f"`{unit}` is not a unit of {type_}"
        hint = did_you_mean(unit, units) or f"the units of {type_} are {join_alternatives(units)}"
    scope.report("PS207", message, span, label="unknown unit", help=hint)
    return False
