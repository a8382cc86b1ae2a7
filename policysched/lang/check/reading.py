"""What reading any expression needs: the reader itself, and what it says of types that do not fit.

Each kind of syntax is read by a function of a module of its own (`names`, `conditions`, `arithmetic`, ...); `expressions` says
which. A mistake is reported where it stands and yields None, and what contains it says nothing more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from policysched.lang.check.dimensions import (
    DIMENSIONLESS,
    conversion_help,
    describe,
)
from policysched.lang.check.scope import Declared, Place, Scope, declared_at
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind, Type
from policysched.text import Span

ReadNode = Callable[["Reader", s.Expression, Type | None], e.Expr | None]


@dataclass(slots=True)
class Reader:
    """Reads one expression in one place."""

    scope: Scope
    place: Place
    read_node: ReadNode

    def read(self, node: s.Expression, expected: Type | None) -> e.Expr | None:
        return self.read_node(self, node, expected)

    def at(self, place: Place) -> "Reader":
        """A reader of the same policy for what stands in another place."""
        return Reader(self.scope, place, self.read_node)

    def condition(self, node: s.Expression, word: str) -> e.Expr | None:
        found = self.read(node, t.BOOL)
        if found is None or e.type_of(found).kind is Kind.BOOL:
            return found
        have = describe(e.type_of(found))
        self.scope.report("PS202", f"`{word}` needs a condition, and this is {have}", found.span, label=have)
        return None

    def numeric(self, found: e.Expr | None, doing: str) -> e.Expr | None:
        if found is None:
            return None
        have = e.type_of(found)
        if have.numeric:
            return found
        self.scope.report(
            "PS202", f"{doing} needs a number, and this is {describe(have)}", found.span, label=describe(have)
        )
        return None

    def pair(self, node: s.Binary) -> tuple[e.Expr, e.Expr] | None:
        """Both sides; a literal is read by the type of the other side, whichever comes first."""
        if self.undecided(node.left) and not self.undecided(node.right):
            right = self.read(node.right, None)
            left = None if right is None else self.read(node.left, e.type_of(right))
        else:
            left = self.read(node.left, None)
            right = self.read(node.right, e.type_of(left)) if left is not None else self.quietly(node.right)
        return None if left is None or right is None else (left, right)

    def quietly(self, node: s.Expression) -> e.Expr | None:
        """Read for its own mistakes, where the other side has one: a literal that needs the other's type says nothing."""
        if not self.undecided(node):
            self.read(node, None)
        return None

    def alike(self, nodes: tuple[s.Expression, ...], expected: Type | None) -> list[e.Expr | None]:
        """All of them, literals by the type of the first that has one of its own. Each is read once."""
        decided = {at: self.read(node, None) for at, node in enumerate(nodes) if not self.undecided(node)}
        for found in decided.values():
            if found is not None:
                expected = e.type_of(found)
                break
        return [decided[at] if at in decided else self.read(node, expected) for at, node in enumerate(nodes)]

    def undecided(self, node: s.Expression) -> bool:
        """Whether the type of the expression depends on what is expected of it."""
        match node:
            case s.NumberLit():
                return True
            case s.Bare(name=name):
                return name not in self.scope.declared and name not in self.scope.broken and name != "now"
            case s.Unary(op="-", operand=operand):
                return self.undecided(operand)
            case s.Binary(op="+" | "-" | "*" | "/", left=left, right=right):
                return self.undecided(left) and self.undecided(right)
            case s.ElseExpr(value=value, fallback=fallback):
                return self.undecided(value) and self.undecided(fallback)
            case s.IfExpr(then=then, otherwise=otherwise):
                return self.undecided(then) and self.undecided(otherwise)
            case s.CallExpr(function=s.Name(text="min" | "max" | "clamp" | "abs"), args=args):
                return all(self.undecided(arg) for arg in args)
            case _:
                return False

    def misplaced(self, span: Span, what: str, declared: Declared | None = None) -> e.Expr | None:
        """Report it; there is no value."""
        self.scope.report(
            "PS220",
            f"{self.place.word} cannot read {what.rstrip(',')}",
            span,
            label="not known here",
            related=() if declared is None else (declared_at(declared.span),),
        )
        return None

    def unlike(self, node: s.Binary, verb: str, left: Type, right: Type) -> e.Expr | None:
        """Report it; there is no value."""
        numeric = left.numeric and right.numeric
        self.scope.report(
            "PS204" if numeric else "PS202",
            f"{describe(left)} cannot be {verb} {describe(right)}",
            node.span,
            label=f"{left.present()} {node.op} {right.present()}",
            help="" if numeric else conversion_help(left, right),
        )
        return None


def conform(scope: Scope, found: e.Expr, wanted: Type) -> e.Expr | None:
    """The expression where it is of the type (a constant is converted between plain numbers); else a finding."""
    have = e.type_of(found)
    if have.kind is wanted.kind:
        if have.kind is Kind.LIST and have.element != wanted.element:
            return mismatch(scope, found, wanted)
        return found
    if wanted.kind in (Kind.FLOAT, Kind.RATIO) and have.kind in DIMENSIONLESS:
        if isinstance(found, e.Const):
            return e.Const(float(cast(float, found.value)), wanted, found.span)
        return found
    return mismatch(scope, found, wanted)


def mismatch(scope: Scope, found: e.Expr, wanted: Type) -> e.Expr | None:
    """Report it; there is no value."""
    have = e.type_of(found)
    code = "PS204" if have.numeric and wanted.numeric else "PS202"
    scope.report(
        code,
        f"this is {describe(have)}, where {describe(wanted)} is expected",
        found.span,
        label=describe(have),
    )
    return None
