"""Number literals without the unit that their place suggests: `cpu_util < 85`, `memory >= 512`, `node.pods < 80%`.

Such a number is valid: 85 is the ratio 8500%, 512 is a number of bytes and 80% is 0.8. It is rarely meant.
"""

from policysched.lang.check.scope import Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import type_of, walk
from policysched.lang.parse.keywords import UNIT_SPELLINGS
from policysched.lang.syntax import tree as s
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import SUFFIXES

_BYTES_PLAUSIBLE_MIN = 1024 * 1024
"""Amounts of memory and storage in bytes that are smaller are probably in a larger unit."""


def lint_number_beside(scope: Scope, node: s.Expression, value: e.Expr) -> None:
    """`node` is compared with `value`, or is a bound of its range.

    A product or a quotient is a ratio of any size, so any number can be beside it.
    """
    type_ = type_of(value)
    scaled = any(isinstance(part, e.Arith) and part.op in "*/" for part in walk(value))
    if type_.kind is not TypeKind.RATIO or not scaled:
        lint_number(scope, node, type_)


def lint_number(scope: Scope, node: s.Expression, type_: Type, *, unit: str | None = None) -> None:
    """`node` is a value of the type. `unit` is that of the input whose default it is."""
    if isinstance(node, s.UnaryExpr):
        node = node.operand
    if not isinstance(node, s.NumberLit):
        return
    digits, suffix = node.digits, node.suffix
    if type_.kind is TypeKind.INT and suffix == "%":
        _report(scope, node, f"{float(digits) / 100:g}, compared with a whole number", f"write `{digits}`")
    elif type_.kind is TypeKind.RATIO and suffix == "" and float(digits) > 1:
        percent = f"{float(digits) * 100:.15g}%"
        _report(scope, node, f"the ratio {percent}", f"did you mean `{digits}%`? Otherwise write `{percent}`")
    elif type_.kind is TypeKind.BYTES and suffix == "" and 1 < float(digits) < _BYTES_PLAUSIBLE_MIN:
        meant = UNIT_SPELLINGS.get(unit or "Mi", "")
        if meant not in SUFFIXES[TypeKind.BYTES] or not meant:
            meant = "Mi"
        kilo = f"{float(digits) / 1000:.15g}k"
        _report(
            scope,
            node,
            f"{digits} bytes",
            f"did you mean `{digits}{meant}`? Otherwise write `{kilo}`",
        )


def _report(scope: Scope, node: s.NumberLit, reading: str, advice: str) -> None:
    scope.report(
        "PS313",
        f"`{node.digits}{node.suffix}` is {reading}",
        node.span,
        label="no unit" if not node.suffix else "",
        help=advice,
    )
