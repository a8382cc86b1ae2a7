"""Numbers with suffixes, read by the type that is expected of them."""

from collections.abc import Collection

from policysched.lang.check.scope import Scope, one_of
from policysched.lang.ir import expr as e
from policysched.lang.parse.words import UNIT_WORDS
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Kind, Type
from policysched.lang.types.units import SUFFIXES, Unreadable, kinds_of_suffix, literal_value

_PLAIN = frozenset({Kind.INT, Kind.FLOAT, Kind.RATIO})
_NAMES = {
    Kind.CPU: "a cpu amount",
    Kind.BYTES: "a size in bytes",
    Kind.BANDWIDTH: "a bandwidth",
    Kind.RATIO: "a ratio",
    Kind.DURATION: "a duration",
    Kind.INT: "a whole number",
    Kind.FLOAT: "a number",
}
_EXAMPLES = {
    Kind.BANDWIDTH: "800Mbps",
    Kind.DURATION: "90s",
    Kind.CPU: "100m",
    Kind.BYTES: "512Mi",
    Kind.RATIO: "85%",
}


def number(scope: Scope, node: s.NumberLit, expected: Type | None) -> e.Const | None:
    """The constant that the literal is. Where what is expected is no number, or not of the suffix's dimension, the
    literal is what its suffix says, and whoever asked reports the difference."""
    kind = _kind(scope, node, expected)
    if kind is None:
        return None
    if kind is Kind.INT and ("." in node.digits or "e" in node.digits.lower()):
        kind = Kind.FLOAT
    value = literal_value(node.digits, node.suffix, kind)
    if isinstance(value, Unreadable):
        _unreadable(scope, node, kind, value.why)
        return None
    if kind is Kind.BYTES and node.suffix in ("M", "G", "T") and _looks_binary(node):
        scope.report(
            "PS206",
            f"`{node.digits}{node.suffix}` is {node.suffix}, counted in thousands",
            node.span,
            help=f"memory is usually counted in powers of two: `{node.digits}{node.suffix}i`",
        )
    return e.Const(value, Type(kind), node.span)


def _looks_binary(node: s.NumberLit) -> bool:
    return node.digits in ("64", "128", "256", "512", "1024", "2048", "4096")


def _kind(scope: Scope, node: s.NumberLit, expected: Type | None) -> Kind | None:
    """Which type the literal is of; None after a finding."""
    wanted = expected.kind if expected is not None else None
    if wanted in SUFFIXES and node.suffix in SUFFIXES[wanted]:
        return wanted
    if node.suffix == "":
        return _without_suffix(scope, node, wanted)
    if wanted is Kind.BYTES and node.suffix == "m":
        scope.report(
            "PS205",
            f"`{node.digits}m` is thousandths of a byte",
            node.span,
            label="`m` means thousandths here",
            help=f"`{node.digits}Mi` is {node.digits} mebibytes",
        )
        return None
    kinds = kinds_of_suffix(node.suffix)
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        _ambiguous(scope, node, wanted)
    else:
        _unknown_suffix(scope, node, wanted)
    return None


def _without_suffix(scope: Scope, node: s.NumberLit, wanted: Kind | None) -> Kind | None:
    if wanted in (Kind.BANDWIDTH, Kind.DURATION):
        suffixes = [suffix for suffix in SUFFIXES[wanted] if suffix]
        scope.report(
            "PS207",
            f"`{node.digits}` needs a unit: {_NAMES[wanted]} is expected",
            node.span,
            label="without a unit",
            help=f"such as `{node.digits}{'s' if wanted is Kind.DURATION else 'Mbps'}`; units are {', '.join(suffixes)}",
        )
        return None
    return Kind.INT


def _ambiguous(scope: Scope, node: s.NumberLit, wanted: Kind | None) -> None:
    """`100m` where neither a cpu nor a duration is expected."""
    if wanted is None or wanted in _PLAIN:
        scope.report(
            "PS203",
            f"`{node.digits}{node.suffix}` can be thousandths of a core or minutes",
            node.span,
            label="nothing here says which",
            help=f"give it a type: `let NAME: cpu = {node.digits}m` or `let NAME: duration = {node.digits}m`",
        )
        return
    _unknown_suffix(scope, node, wanted)


def _unknown_suffix(scope: Scope, node: s.NumberLit, wanted: Kind | None) -> None:
    meant = UNIT_WORDS.get(node.suffix)
    if meant is not None and meant in _suffixes(wanted):
        hint = f"write `{node.digits}{meant}`"
        if f"{meant.upper()}i" in SUFFIXES[Kind.BYTES]:
            hint += f", or `{node.digits}{meant.upper()}i` to count in powers of two"
    elif wanted in SUFFIXES:
        known = [suffix for suffix in SUFFIXES[wanted] if suffix]
        hint = f"units of {wanted.value} are {', '.join(known)}" if known else f"{_NAMES[wanted]} has no unit"
    else:
        hint = (
            f"did you mean one of {one_of(_near_suffixes(node.suffix))}?"
            if _near_suffixes(node.suffix)
            else ""
        )
    scope.report(
        "PS207",
        f"`{node.suffix}` is no unit that fits `{node.digits}` here",
        node.span,
        label="unknown unit",
        help=hint,
    )


def _suffixes(wanted: Kind | None) -> Collection[str]:
    """Those of the type that is wanted; all where nothing says which."""
    return (
        SUFFIXES[wanted] if wanted in SUFFIXES else {known for table in SUFFIXES.values() for known in table}
    )


def _near_suffixes(suffix: str) -> list[str]:
    every = {known for table in SUFFIXES.values() for known in table if known}
    return sorted(known for known in every if known.lower() == suffix.lower())


def _unreadable(scope: Scope, node: s.NumberLit, kind: Kind, why: str) -> None:
    text = f"{node.digits}{node.suffix}"
    match why:
        case "fine":
            unit = {Kind.CPU: "thousandths of a core", Kind.BYTES: "bytes", Kind.DURATION: "nanoseconds"}[
                kind
            ]
            message, hint = f"`{text}` is not a whole number of {unit}", "round it to what can be counted"
        case "large":
            message, hint = f"`{text}` is larger than {_NAMES[kind]} can be", ""
        case _:
            message, hint = f"`{text}` is not a number", f"such as `{_EXAMPLES.get(kind, '3')}`"
    scope.report("PS208", message, node.span, help=hint)
