"""Functions in expressions: how many arguments of which dimension each takes, and what it gives."""

from policysched.lang.check.dimensions import DIMENSIONLESS, common, describe, same_dimension
from policysched.lang.check.elements import over_elements
from policysched.lang.check.reading import Reader, mismatch
from policysched.lang.check.scope import COUNTED, COUNTED_ANYWHERE, did_you_mean, one_of
from policysched.lang.check.traffic import traffic_to
from policysched.lang.check.windows import window
from policysched.lang.ir import expr as e
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Kind, Type


def call(reader: Reader, node: s.CallExpr, expected: Type | None) -> e.Expr | None:
    match node.function.text:
        case "min" | "max" | "clamp" | "abs" as name:
            return _choice(reader, node, name, expected)
        case "round" if len(node.args) == 2:
            return _rounded(reader, node)
        case "count" if len(node.args) == 1 and isinstance(node.args[0], s.Bare):
            return over_elements(
                reader, s.FoldExpr(node.function, None, _name_of(node.args[0]), None, node.span)
            )
        case "floor" | "ceil" | "round" as name:
            return _plain(reader, node, name, t.INT)
        case "normal_cdf":
            return _normal_cdf(reader, node)
        case "beta_cdf":
            return _beta_cdf(reader, node)
        case "sqrt" | "log" | "exp" as name:
            return _plain(reader, node, name, t.FLOAT)
        case "rank":
            return _rank(reader, node)
        case "traffic_to":
            return traffic_to(reader, node)
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


def _name_of(node: s.Bare) -> s.Name:
    return s.Name(node.name, node.span)


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
    arg = _plain_number(reader, node, node.args[0])
    return None if arg is None else e.Call(name, (arg,), result, result.held_as_float, node.span)


def _rounded(reader: Reader, node: s.CallExpr) -> e.Expr | None:
    """`round(x, half_up)`: the mode is a word of the function's, whatever else is called so."""
    arg, mode = _plain_number(reader, node, node.args[0]), node.args[1]
    function = ROUNDINGS.get(mode.name) if isinstance(mode, s.Bare) else None
    if function is None:
        word = mode.name if isinstance(mode, s.Bare) else mode.span.text
        reader.scope.report(
            "PS212",
            f"`{word}` is no way to round",
            mode.span,
            label="unknown word",
            help=did_you_mean(word, ROUNDINGS) or f"it is {one_of(ROUNDINGS)}",
        )
    return None if arg is None or function is None else e.Call(function, (arg,), t.INT, False, node.span)


def _normal_cdf(reader: Reader, node: s.CallExpr) -> e.Expr | None:
    """Three amounts of one dimension: how far the first is from the second, in units of the third."""
    if not _arguments(reader, node, 3, 3):
        return None
    args = [reader.numeric(arg, "`normal_cdf`") for arg in reader.alike(node.args, None)]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    first = e.type_of(known[0])
    for arg in known:
        kind = e.type_of(arg)
        if kind.kind is Kind.TIMESTAMP or not same_dimension(kind, first):
            message = (
                "`normal_cdf` needs amounts, and this is a point in time"
                if kind.kind is Kind.TIMESTAMP
                else f"`normal_cdf` compares {describe(first)} with {describe(kind)}"
            )
            reader.scope.report("PS204", message, arg.span, label=describe(kind))
            return None
    return e.Call("normal_cdf", tuple(known), t.RATIO, True, node.span)


def _beta_cdf(reader: Reader, node: s.CallExpr) -> e.Expr | None:
    if not _arguments(reader, node, 3, 3):
        return None
    args = [_plain_number(reader, node, arg) for arg in node.args]
    known = [arg for arg in args if arg is not None]
    return e.Call("beta_cdf", tuple(known), t.RATIO, True, node.span) if len(known) == len(args) else None


def _plain_number(reader: Reader, node: s.CallExpr, written: s.Expression) -> e.Expr | None:
    name = node.function.text
    arg = reader.numeric(reader.read(written, None), f"`{name}`")
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
    return arg


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
    if not node.on_node:
        return _count_anywhere(reader, node)
    if not reader.place.count:
        return reader.misplaced(node.span, "the pods of a node")
    if node.where is None:
        return e.CountPods(None, node.span)
    where = reader.at(COUNTED).condition(node.where, "where")
    return None if where is None else e.CountPods(where, node.span)


def _count_anywhere(reader: Reader, node: s.CountExpr) -> e.Expr | None:
    assert node.where is not None, f"{node.span.text} has no condition"
    if not reader.place.anywhere:
        return reader.misplaced(node.span, "the pods of the cluster")
    where = reader.at(COUNTED_ANYWHERE).condition(node.where, "where")
    return None if where is None else e.CountAnywhere(where, node.ended, node.span)


ROUNDINGS: dict[str, e.Function] = {
    "half_even": "round",
    "half_up": "round_half_up",
    "half_away": "round_half_away",
    "trunc": "trunc",
    "floor": "floor",
    "ceil": "ceil",
}

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
    "normal_cdf",
    "beta_cdf",
    "rank",
    "window",
    "count",
    "traffic_to",
)
