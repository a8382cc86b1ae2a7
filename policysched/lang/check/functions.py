"""Functions in expressions: how many arguments of which dimension each takes, and what it gives."""

from policysched.lang import expr as e
from policysched.lang import syntax as s
from policysched.lang import types as t
from policysched.lang.check.dimensions import DIMENSIONLESS, common, describe, same_dimension
from policysched.lang.check.reading import Reader, mismatch
from policysched.lang.check.scope import COUNTED, did_you_mean
from policysched.lang.check.windows import window
from policysched.lang.types import Kind, Type


def call(reader: Reader, node: s.CallExpr, expected: Type | None) -> e.Expr | None:
    match node.function.text:
        case "min" | "max" | "clamp" | "abs" as name:
            return _choice(reader, node, name, expected)
        case "floor" | "ceil" | "round" as name:
            return _plain(reader, node, name, t.INT)
        case "sqrt" | "log" | "exp" as name:
            return _plain(reader, node, name, t.FLOAT)
        case "rank":
            return _rank(reader, node)
        case "window":
            if not reader.place.time:
                return reader.misplaced(node.span, "the clock")
            return window(reader.scope, node)
        case unknown:
            reader.scope.report(
                "PS210",
                f"unknown function `{unknown}`",
                node.function.span,
                label="no such function",
                help=did_you_mean(unknown, FUNCTIONS) or f"functions are {', '.join(FUNCTIONS)}",
            )
            return None


def _arguments(reader: Reader, node: s.CallExpr, low: int, high: int) -> bool:
    count = len(node.args)
    if low <= count <= high:
        return True
    wanted = str(low) if low == high else f"{low} or more"
    noun = "argument" if wanted == "1" else "arguments"
    reader.scope.report(
        "PS209", f"`{node.function.text}` takes {wanted} {noun}, and here are {count}", node.span
    )
    return False


def _choice(reader: Reader, node: s.CallExpr, name: e.Function, expected: Type | None) -> e.Expr | None:
    low, high = {"min": (2, 64), "max": (2, 64), "clamp": (3, 3)}.get(name, (1, 1))
    if not _arguments(reader, node, low, high):
        return None
    args = reader.alike(node.args, expected)
    known = [arg for arg in args if reader.numeric(arg, f"`{name}`") is not None and arg is not None]
    if len(known) < len(args):
        return None
    kinds = [e.type_of(arg) for arg in known]
    for arg, kind in zip(known, kinds, strict=True):
        if not same_dimension(kind, kinds[0]):
            reader.scope.report(
                "PS204",
                f"`{name}` compares {describe(kinds[0])} with {describe(kind)}",
                arg.span,
                label=describe(kind),
            )
            return None
    if name == "abs" and kinds[0].kind is Kind.TIMESTAMP:
        reader.scope.report("PS204", "a point in time has no negative", node.span)
        return None
    return e.Call(name, tuple(known), common(kinds), any(map(e.is_floating, known)), node.span)


def _plain(reader: Reader, node: s.CallExpr, name: e.Function, result: Type) -> e.Expr | None:
    if not _arguments(reader, node, 1, 1):
        return None
    arg = reader.numeric(reader.read(node.args[0], None), f"`{name}`")
    if arg is None:
        return None
    have = e.type_of(arg)
    if have.kind not in DIMENSIONLESS:
        reader.scope.report(
            "PS204",
            f"`{name}` needs a plain number, and this is {describe(have)}",
            arg.span,
            label=describe(have),
            help="divide it by one of its own kind first: `node.free.memory / 1Gi`",
        )
        return None
    return e.Call(name, (arg,), result, result.held_as_float, node.span)


def _rank(reader: Reader, node: s.CallExpr) -> e.Expr | None:
    if not _arguments(reader, node, 2, 2):
        return None
    item = reader.read(node.args[0], t.STRING)
    order = reader.read(node.args[1], Type(Kind.LIST, element=t.STRING))
    if item is None or order is None:
        return None
    if e.type_of(item).kind is not Kind.STRING:
        return mismatch(reader.scope, item, t.STRING)
    if not isinstance(order, e.Const) or order.type.element != t.STRING or not isinstance(order.value, tuple):
        reader.scope.report(
            "PS202",
            "`rank` needs a list of strings to rank by",
            order.span,
            help='such as `["gold", "silver"]`',
        )
        return None
    return e.Rank(item, tuple(str(word) for word in order.value), node.span)


def count_pods(reader: Reader, node: s.CountExpr) -> e.Expr | None:
    if not reader.place.count:
        return reader.misplaced(node.span, "the pods of a node")
    if node.where is None:
        return e.CountPods(None, node.span)
    where = reader.at(COUNTED).condition(node.where, "where")
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
