"""From syntax to typed expressions: names resolved, literals read by the type that is expected of them.

A mistake is reported where it stands and yields None, and what contains it says nothing more. What may be missing and
what is constant are later passes (`flow`, `lang.fold`).
"""

from dataclasses import dataclass
from typing import Literal, cast

from policysched.lang import expr as e
from policysched.lang import syntax as s
from policysched.lang import types as t
from policysched.lang.check.attributes import attribute, like_attribute
from policysched.lang.check.dimensions import (
    DIMENSIONLESS,
    common,
    conversion_help,
    describe,
    product_type,
    same_dimension,
    sum_type,
)
from policysched.lang.check.limits import within_limits
from policysched.lang.check.literals import number
from policysched.lang.check.scope import COUNTED, Declared, Place, Scope, declared_at, did_you_mean
from policysched.lang.check.windows import window
from policysched.lang.program import Input, Metric
from policysched.lang.types import Kind, Type
from policysched.text import Label, Span

ArithOp = Literal["+", "-", "*", "/"]


def read(scope: Scope, node: s.Expression, place: Place, expected: Type | None = None) -> e.Expr | None:
    """A whole expression, with its limits. `expected` only helps to read literals; `conform` demands a type."""
    return Reader(scope, place).read(node, expected) if within_limits(scope, node) else None


def read_condition(scope: Scope, node: s.Expression, place: Place) -> e.Expr | None:
    found = read(scope, node, place, t.BOOL)
    if found is None or e.type_of(found).kind is Kind.BOOL:
        return found
    scope.report(
        "PS202",
        f"this is {describe(e.type_of(found))}, and {place.word} must be true or false",
        found.span,
        label=describe(e.type_of(found)),
        help="compare it with something, such as `== 1`",
    )
    return None


def read_as(scope: Scope, node: s.Expression, place: Place, wanted: Type) -> e.Expr | None:
    """An expression of just this type (a plain number may stand for another kind of plain number)."""
    found = read(scope, node, place, wanted)
    return None if found is None else conform(scope, found, wanted)


def conform(scope: Scope, found: e.Expr, wanted: Type) -> e.Expr | None:
    """The expression where it is of the type (a constant is converted between plain numbers); else a finding."""
    have = e.type_of(found)
    if have.kind is wanted.kind:
        if have.kind is Kind.LIST and have.element != wanted.element:
            return _mismatch(scope, found, wanted)
        return found
    if wanted.kind in (Kind.FLOAT, Kind.RATIO) and have.kind in DIMENSIONLESS:
        if isinstance(found, e.Const):
            return e.Const(float(cast(float, found.value)), wanted, found.span)
        return found
    return _mismatch(scope, found, wanted)


def _mismatch(scope: Scope, found: e.Expr, wanted: Type) -> e.Expr | None:
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


@dataclass(slots=True)
class Reader:
    """Reads one expression in one place."""

    scope: Scope
    place: Place

    def read(self, node: s.Expression, expected: Type | None) -> e.Expr | None:
        match node:
            case s.NumberLit():
                return number(self.scope, node, expected)
            case s.StringLit(value=value, span=span):
                return e.Const(value, t.STRING, span)
            case s.BoolLit(value=value, span=span):
                return e.Const(value, t.BOOL, span)
            case s.ListLit():
                return self.list_literal(node, None if expected is None else expected.element)
            case s.Bare():
                return self.bare(node, expected)
            case s.Attribute():
                return attribute(self.scope, node, self.place)
            case s.Unary(op="not"):
                return self.negation(node)
            case s.Unary():
                return self.minus(node, expected)
            case s.Binary(op="and" | "or"):
                return self.junction(node)
            case s.Binary(op="in" | "not in"):
                return self.membership(node)
            case s.Binary(op="==" | "!=" | "<" | "<=" | ">" | ">="):
                return self.comparison(node)
            case s.Binary(op="+" | "-"):
                return self.sum(node, expected)
            case s.Binary():
                return self.product(node, expected)
            case s.ElseExpr():
                return self.otherwise(node, expected)
            case s.HasExpr():
                return self.has(node)
            case s.CallExpr():
                return self.call(node, expected)
            case s.CountExpr():
                return self.count(node)

    # ── names ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def bare(self, node: s.Bare, expected: Type | None) -> e.Expr | None:
        declared = self.scope.declared.get(node.name)
        if declared is not None:
            declared.used = True
            return self.declared(node, declared)
        if node.name in t.QOS_CLASSES:
            return e.Const(t.QOS_CLASSES.index(node.name), t.QOS, node.span)
        if node.name == "now":
            return self.now(node)
        if node.name in self.scope.broken:
            return None
        near = did_you_mean(node.name, [*self.scope.declared, *(t.QOS_CLASSES if expected == t.QOS else ())])
        related: tuple[Label, ...] = ()
        for name, one in self.scope.declared.items():
            if near == f"did you mean `{name}`?":
                related = (declared_at(one.span),)
        self.scope.report(
            "PS210",
            f"unknown name `{node.name}`",
            node.span,
            label="not declared",
            help=near
            or like_attribute(node.name)
            or f'declare it with `let` or `input`, or write `"{node.name}"` if a string is meant',
            related=related,
        )
        return None

    def declared(self, node: s.Bare, declared: Declared) -> e.Expr | None:
        match declared.value:
            case None:
                return None
            case e.Const(value=value, type=type_):
                return e.Const(value, type_, node.span)
            case Input() as one:
                if one.owner == "node" and not self.place.node:
                    return self.misplaced(node.span, f"`{node.name}`, an input of the node,", declared)
                if one.owner != "node" and not self.place.pod:
                    return self.misplaced(node.span, f"`{node.name}`, an input of the {one.owner},", declared)
                type_ = one.type if one.default is None else one.type.present()
                return e.InputRef(one.name, type_, one.stage, node.span)
            case Metric() as one:
                if not self.place.metrics:
                    return self.misplaced(node.span, f"the metric `{node.name}`", declared)
                return e.MetricRef(one.name, one.type, node.span)

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

    def now(self, node: s.Bare) -> e.Expr | None:
        if not self.place.time:
            return self.misplaced(node.span, "the clock")
        return e.Now(node.span)

    # ── conditions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def condition(self, node: s.Expression, word: str) -> e.Expr | None:
        found = self.read(node, t.BOOL)
        if found is None or e.type_of(found).kind is Kind.BOOL:
            return found
        have = describe(e.type_of(found))
        self.scope.report("PS202", f"`{word}` joins conditions, and this is {have}", found.span, label=have)
        return None

    def negation(self, node: s.Unary) -> e.Expr | None:
        operand = self.condition(node.operand, "not")
        return None if operand is None else e.Not(operand, node.span)

    def junction(self, node: s.Binary) -> e.Expr | None:
        """The whole chain of one operator, without recursion into its left side."""
        parts: list[s.Expression] = []
        left: s.Expression = node
        while isinstance(left, s.Binary) and left.op == node.op:
            parts.append(left.right)
            left = left.left
        parts.append(left)
        items = [self.condition(part, node.op) for part in reversed(parts)]
        known = tuple(item for item in items if item is not None)
        if len(known) < len(items):
            return None
        return e.And(known, node.span) if node.op == "and" else e.Or(known, node.span)

    def comparison(self, node: s.Binary) -> e.Expr | None:
        pair = self.pair(node)
        if pair is None:
            return None
        left, right = pair
        left_type, right_type = e.type_of(left), e.type_of(right)
        op = cast(e.CompareOp, node.op)
        if not same_dimension(left_type, right_type):
            return self.unlike(node, "compared with", left_type, right_type)
        if left_type.kind is Kind.LIST:
            self.scope.report("PS202", "a list cannot be compared", node.op_span, help="ask with `in`")
            return None
        if op not in ("==", "!=") and not left_type.ordered:
            have = describe(left_type)
            self.scope.report(
                "PS202",
                f"`{op}` needs an order, and {have} has none",
                node.op_span,
                help='`rank(x, ["first", "second"])` orders strings' if left_type.kind is Kind.STRING else "",
            )
            return None
        if left == right:
            self.scope.report(
                "PS308",
                "both sides are the same",
                node.span,
                label=f"always {str(op in ('==', '<=', '>=')).lower()}",
            )
        return e.Compare(op, left, right, node.span)

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
            case s.CallExpr(function=s.Name(text="min" | "max" | "clamp" | "abs"), args=args):
                return all(self.undecided(arg) for arg in args)
            case _:
                return False

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

    def membership(self, node: s.Binary) -> e.Expr | None:
        options: e.Expr | None
        if isinstance(node.right, s.ListLit):
            item = self.read(node.left, None)
            options = None
            if item is not None:
                options = self.list_literal(node.right, e.type_of(item).present())
        else:
            options = self.read(node.right, None)
            expected = None if options is None else e.type_of(options).element
            item = self.read(node.left, expected)
        if item is None or options is None:
            return None
        options_type = e.type_of(options)
        if options_type.kind is not Kind.LIST or options_type.element is None:
            self.scope.report(
                "PS202",
                f"`in` needs a list on its right, and this is {describe(options_type)}",
                options.span,
                label=describe(options_type),
                help='write a list, such as `["a", "b"]`',
            )
            return None
        if not same_dimension(e.type_of(item), options_type.element):
            return self.unlike(node, "in", e.type_of(item), options_type)
        found = e.In(item, options, node.span)
        return found if node.op == "in" else e.Not(found, node.span)

    def has(self, node: s.HasExpr) -> e.Expr | None:
        target = self.read(node.target, None)
        if target is None:
            return None
        absent = isinstance(target, e.MetricRef) or e.type_of(target).optional
        if isinstance(target, e.Attr | e.InputRef | e.MetricRef) and absent:
            return e.Has(target, node.span)
        if isinstance(target, e.Attr | e.InputRef | e.Const):
            self.scope.report(
                "PS301",
                f"`{node.target.span.text}` is always there",
                node.span,
                label="always true",
                help="leave the `has` out, or declare the input `optional` and without a default",
            )
            return e.Const(True, t.BOOL, node.span)
        self.scope.report(
            "PS202", "`has` asks for a label, an annotation, an optional input or a metric", target.span
        )
        return None

    def list_literal(self, node: s.ListLit, element: Type | None) -> e.Expr | None:
        """A list of constants of one type, that of its first item where nothing is expected."""
        items: list[e.Const] = []
        broken = False
        for written in node.items:
            found = self.read(written, element)
            if found is None:
                broken = True
                continue
            if not isinstance(found, e.Const) or isinstance(found.value, tuple):
                self.scope.report("PS221", "a list holds constants", found.span, label="not a constant")
                broken = True
                continue
            if element is None:
                element = found.type
            conformed = self.item(found, element)
            if conformed is None:
                broken = True
            else:
                items.append(conformed)
        if broken:
            return None
        values = tuple(item.value for item in items if not isinstance(item.value, tuple))
        return e.Const(values, Type(Kind.LIST, element=element or t.STRING), node.span)

    def item(self, found: e.Const, element: Type) -> e.Const | None:
        if same_dimension(found.type, element) and found.type.kind is not element.kind:
            value = float(cast(float, found.value)) if element.held_as_float else found.value
            return e.Const(value, found.type if found.type.kind is Kind.FLOAT else element, found.span)
        return cast(e.Const | None, conform(self.scope, found, element.present()))

    # ── numbers ────────────────────────────────────────────────────────────────────────────────────────────────────

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

    def minus(self, node: s.Unary, expected: Type | None) -> e.Expr | None:
        operand = self.numeric(self.read(node.operand, expected), "`-`")
        if operand is None:
            return None
        if e.type_of(operand).kind is Kind.TIMESTAMP:
            self.scope.report("PS204", "a point in time has no negative", node.span)
            return None
        return e.Negate(operand, node.span)

    def sum(self, node: s.Binary, expected: Type | None) -> e.Expr | None:
        if self.undecided(node) and expected is not None:
            left, right = self.read(node.left, expected), self.read(node.right, expected)
        else:
            pair = self.timed_pair(node)
            left, right = (None, None) if pair is None else pair
        left, right = self.numeric(left, f"`{node.op}`"), self.numeric(right, f"`{node.op}`")
        if left is None or right is None:
            return None
        result = sum_type(node.op, e.type_of(left), e.type_of(right))
        if result is None:
            verb = "added to" if node.op == "+" else "subtracted from"
            first, second = e.type_of(left), e.type_of(right)
            return self.unlike(node, verb, *((first, second) if node.op == "+" else (second, first)))
        return self.arith(node, left, right, result)

    def timed_pair(self, node: s.Binary) -> tuple[e.Expr, e.Expr] | None:
        """As `pair`; beside a point in time a literal is a duration."""
        if self.undecided(node.right) and not self.undecided(node.left):
            left = self.read(node.left, None)
            if left is None:
                return None
            kind = e.type_of(left)
            right = self.read(node.right, t.DURATION if kind.kind is Kind.TIMESTAMP else kind)
            return None if right is None else (left, right)
        return self.pair(node)

    def arith(self, node: s.Binary, left: e.Expr, right: e.Expr, result: Type) -> e.Expr:
        ratio = node.op == "/" and same_dimension(e.type_of(left), e.type_of(right))
        floating = ratio or e.is_floating(left) or e.is_floating(right)
        return e.Arith(cast(ArithOp, node.op), left, right, result.present(), floating, node.span)

    def product(self, node: s.Binary, expected: Type | None) -> e.Expr | None:
        """A literal beside an operator is a plain number, unless its suffix says more or nothing else has a unit."""
        dimension = expected if expected is not None and expected.kind not in DIMENSIONLESS else None
        if node.op == "/" and self.undecided(node.right) and not self.undecided(node.left):
            left = self.read(node.left, dimension)
            known = None if left is None else e.type_of(left)
            right = self.read(node.right, known if _suffixed(node.right) else None)
        else:
            left = self.read(node.left, dimension if _suffixed(node.left) else None)
            divides = node.op == "/" and left is not None and _suffixed(node.right)
            known = e.type_of(left) if divides and left is not None else dimension
            right = self.read(node.right, known if _suffixed(node.right) else None)
        left, right = self.numeric(left, f"`{node.op}`"), self.numeric(right, f"`{node.op}`")
        if left is None or right is None:
            return None
        result = product_type(node.op, e.type_of(left), e.type_of(right))
        if result is None:
            verb = "multiplied by" if node.op == "*" else "divided by"
            return self.unlike(node, verb, e.type_of(left), e.type_of(right))
        return self.arith(node, left, right, result)

    def otherwise(self, node: s.ElseExpr, expected: Type | None) -> e.Expr | None:
        value = self.read(node.value, expected)
        if value is None:
            self.quietly(node.fallback)
            return None
        fallback = self.read(node.fallback, e.type_of(value).present())
        if fallback is None:
            return None
        left, right = e.type_of(value), e.type_of(fallback)
        if not same_dimension(left, right) or left.kind is Kind.LIST:
            self.scope.report(
                "PS204" if left.numeric and right.numeric else "PS202",
                f"`else` gives {describe(right)} for {describe(left)}",
                fallback.span,
                label=f"{describe(left)} is expected",
            )
            return None
        floating = e.is_floating(value) or e.is_floating(fallback)
        result = common([left, right])
        return e.Else(value, fallback, result if left.numeric else left.present(), floating, node.span)

    # ── functions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, node: s.CallExpr, expected: Type | None) -> e.Expr | None:
        match node.function.text:
            case "min" | "max" | "clamp" | "abs" as name:
                return self.choice(node, name, expected)
            case "floor" | "ceil" | "round" as name:
                return self.plain(node, name, t.INT)
            case "sqrt" | "log" | "exp" as name:
                return self.plain(node, name, t.FLOAT)
            case "rank":
                return self.rank(node)
            case "window":
                if not self.place.time:
                    return self.misplaced(node.span, "the clock")
                return window(self.scope, node)
            case unknown:
                self.scope.report(
                    "PS210",
                    f"unknown function `{unknown}`",
                    node.function.span,
                    label="no such function",
                    help=did_you_mean(unknown, FUNCTIONS) or f"functions are {', '.join(FUNCTIONS)}",
                )
                return None

    def arguments(self, node: s.CallExpr, low: int, high: int) -> bool:
        count = len(node.args)
        if low <= count <= high:
            return True
        wanted = str(low) if low == high else f"{low} or more"
        noun = "argument" if wanted == "1" else "arguments"
        self.scope.report(
            "PS209", f"`{node.function.text}` takes {wanted} {noun}, and here are {count}", node.span
        )
        return False

    def choice(self, node: s.CallExpr, name: e.Function, expected: Type | None) -> e.Expr | None:
        low, high = {"min": (2, 64), "max": (2, 64), "clamp": (3, 3)}.get(name, (1, 1))
        if not self.arguments(node, low, high):
            return None
        args = self.alike(node.args, expected)
        known = [arg for arg in args if self.numeric(arg, f"`{name}`") is not None and arg is not None]
        if len(known) < len(args):
            return None
        kinds = [e.type_of(arg) for arg in known]
        for arg, kind in zip(known, kinds, strict=True):
            if not same_dimension(kind, kinds[0]):
                self.scope.report(
                    "PS204",
                    f"`{name}` compares {describe(kinds[0])} with {describe(kind)}",
                    arg.span,
                    label=describe(kind),
                )
                return None
        if name == "abs" and kinds[0].kind is Kind.TIMESTAMP:
            self.scope.report("PS204", "a point in time has no negative", node.span)
            return None
        return e.Call(name, tuple(known), common(kinds), any(map(e.is_floating, known)), node.span)

    def alike(self, nodes: tuple[s.Expression, ...], expected: Type | None) -> list[e.Expr | None]:
        """All of them, literals by the type of the first that has one of its own. Each is read once."""
        decided = {at: self.read(node, None) for at, node in enumerate(nodes) if not self.undecided(node)}
        for found in decided.values():
            if found is not None:
                expected = e.type_of(found)
                break
        return [decided[at] if at in decided else self.read(node, expected) for at, node in enumerate(nodes)]

    def plain(self, node: s.CallExpr, name: e.Function, result: Type) -> e.Expr | None:
        if not self.arguments(node, 1, 1):
            return None
        arg = self.numeric(self.read(node.args[0], None), f"`{name}`")
        if arg is None:
            return None
        have = e.type_of(arg)
        if have.kind not in DIMENSIONLESS:
            self.scope.report(
                "PS204",
                f"`{name}` needs a plain number, and this is {describe(have)}",
                arg.span,
                label=describe(have),
                help="divide it by one of its own kind first: `node.free.memory / 1Gi`",
            )
            return None
        return e.Call(name, (arg,), result, result.held_as_float, node.span)

    def rank(self, node: s.CallExpr) -> e.Expr | None:
        if not self.arguments(node, 2, 2):
            return None
        item = self.read(node.args[0], t.STRING)
        order = self.read(node.args[1], Type(Kind.LIST, element=t.STRING))
        if item is None or order is None:
            return None
        if e.type_of(item).kind is not Kind.STRING:
            return _mismatch(self.scope, item, t.STRING)
        if (
            not isinstance(order, e.Const)
            or order.type.element != t.STRING
            or not isinstance(order.value, tuple)
        ):
            self.scope.report(
                "PS202",
                "`rank` needs a list of strings to rank by",
                order.span,
                help='such as `["gold", "silver"]`',
            )
            return None
        return e.Rank(item, tuple(str(word) for word in order.value), node.span)

    def count(self, node: s.CountExpr) -> e.Expr | None:
        if not self.place.count:
            return self.misplaced(node.span, "the pods of a node")
        if node.where is None:
            return e.CountPods(None, node.span)
        where = Reader(self.scope, COUNTED).condition(node.where, "where")
        return None if where is None else e.CountPods(where, node.span)


FUNCTIONS = (
    "min",
    "max",
    "clamp",
    "abs",
    "floor",
    "ceil",
    "round",
    "sqrt",
    "log",
    "exp",
    "rank",
    "window",
    "count",
)


def _suffixed(node: s.Expression) -> bool:
    """Whether a literal has a unit, so that a type may be needed to read it."""
    match node:
        case s.NumberLit(suffix=suffix):
            return suffix != ""
        case s.Unary(op="-", operand=operand):
            return _suffixed(operand)
        case s.Binary(op="+" | "-" | "*" | "/", left=left, right=right):
            return _suffixed(left) or _suffixed(right)
        case s.CallExpr(args=args):
            return any(map(_suffixed, args))
        case s.ElseExpr(value=value, fallback=fallback):
            return _suffixed(value) or _suffixed(fallback)
        case _:
            return False
