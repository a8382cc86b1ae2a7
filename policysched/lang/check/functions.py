"""Functions in expressions: the number and dimensions of their arguments, and their result."""

from policysched.lang.check.dimensions import DIMENSIONLESS, common_type, describe_type, same_dimension
from policysched.lang.check.elements import check_fold
from policysched.lang.check.expression_checker import ExpressionChecker, report_type_mismatch
from policysched.lang.check.scope import did_you_mean, join_alternatives
from policysched.lang.check.traffic import check_traffic_to
from policysched.lang.check.windows import check_window
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import is_floating, type_of
from policysched.lang.parse.foreign_words import FUNCTION_WORDS
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind


def check_call(checker: ExpressionChecker, node: s.CallExpr, expected: Type | None) -> e.Expr | None:
    match node.function.text:
        case "min" | "max" | "clamp" | "abs" as name:
            return _check_selection(checker, node, name, expected)
        case "round" if len(node.args) == 2:
            return _check_round_with_mode(checker, node)
        case "count" if len(node.args) == 1 and isinstance(node.args[0], s.NameExpr):
            return check_fold(
                checker, s.ListFoldExpr(node.function, None, _as_name(node.args[0]), None, node.span)
            )
        case "floor" | "ceil" | "round" as name:
            return _check_plain_number_call(checker, node, name, t.INT)
        case "normal_cdf":
            return _check_normal_cdf(checker, node)
        case "beta_cdf":
            return _check_beta_cdf(checker, node)
        case "sqrt" | "log" | "exp" as name:
            return _check_plain_number_call(checker, node, name, t.FLOAT)
        case "rank":
            return _check_rank(checker, node)
        case "starts_with" | "bucket" | "split":
            return check_text_function(checker, node)
        case "traffic_to":
            return check_traffic_to(checker, node)
        case "window":
            if not checker.context.time:
                return checker.report_not_readable(node.span, "the current time")
            return check_window(checker.scope, node)
        case unknown:
            checker.scope.report(
                "PS210",
                f"unknown function `{unknown}`",
                node.function.span,
                label="unknown function",
                help=FUNCTION_WORDS.get(unknown)
                or did_you_mean(unknown, FUNCTION_NAMES)
                or f"the functions are {', '.join(FUNCTION_NAMES)}",
            )
            return None


def _as_name(node: s.NameExpr) -> s.Identifier:
    return s.Identifier(node.name, node.span)


def _check_argument_count(checker: ExpressionChecker, node: s.CallExpr, low: int, high: int) -> bool:
    count = len(node.args)
    if low <= count <= high:
        return True
    wanted = str(low) if low == high else f"{low} or more"
    noun = "argument" if wanted == "1" else "arguments"
    checker.scope.report("PS209", f"`{node.function.text}` takes {wanted} {noun}, found {count}", node.span)
    return False


def _check_selection(
    checker: ExpressionChecker, node: s.CallExpr, name: e.Function, expected: Type | None
) -> e.Expr | None:
    low, high = {"min": (2, 64), "max": (2, 64), "clamp": (3, 3)}.get(name, (1, 1))
    if not _check_argument_count(checker, node, low, high):
        return None
    args = checker.check_same_type(node.args, expected)
    numeric_args = [
        arg for arg in args if checker.require_numeric(arg, f"`{name}`") is not None and arg is not None
    ]
    if len(numeric_args) < len(args):
        return None
    kinds = [type_of(arg) for arg in numeric_args]
    for arg, kind in zip(numeric_args, kinds, strict=True):
        if not same_dimension(kind, kinds[0]):
            checker.scope.report(
                "PS204",
                f"`{name}` cannot compare {describe_type(kinds[0])} with {describe_type(kind)}",
                arg.span,
                label=describe_type(kind),
            )
            return None
    if name == "abs" and kinds[0].kind is TypeKind.TIMESTAMP:
        checker.scope.report("PS204", "`abs` expects an amount, found a point in time", node.span)
        return None
    return e.Call(
        name, tuple(numeric_args), common_type(kinds), any(map(is_floating, numeric_args)), node.span
    )


def _check_plain_number_call(
    checker: ExpressionChecker, node: s.CallExpr, name: e.Function, result: Type
) -> e.Expr | None:
    if not _check_argument_count(checker, node, 1, 1):
        return None
    arg = _check_plain_number(checker, node, node.args[0])
    return None if arg is None else e.Call(name, (arg,), result, result.is_float64, node.span)


def _check_round_with_mode(checker: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    """`round(x, half_up)`: the mode is a keyword argument, even if a name is declared like it."""
    arg, mode = _check_plain_number(checker, node, node.args[0]), node.args[1]
    function = ROUNDING_MODES.get(mode.name) if isinstance(mode, s.NameExpr) else None
    if function is None:
        word = mode.name if isinstance(mode, s.NameExpr) else mode.span.text
        checker.scope.report(
            "PS212",
            f"unknown rounding mode `{word}`",
            mode.span,
            label="unknown mode",
            help=did_you_mean(word, ROUNDING_MODES) or f"expected {join_alternatives(ROUNDING_MODES)}",
        )
    return None if arg is None or function is None else e.Call(function, (arg,), t.INT, False, node.span)


def _check_normal_cdf(checker: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    """Three amounts of one dimension: value, mean and standard deviation."""
    if not _check_argument_count(checker, node, 3, 3):
        return None
    args = [checker.require_numeric(arg, "`normal_cdf`") for arg in checker.check_same_type(node.args, None)]
    checked_args = [arg for arg in args if arg is not None]
    if len(checked_args) < len(args):
        return None
    first = type_of(checked_args[0])
    for arg in checked_args:
        kind = type_of(arg)
        if kind.kind is TypeKind.TIMESTAMP or not same_dimension(kind, first):
            message = (
                "`normal_cdf` expects an amount, found a point in time"
                if kind.kind is TypeKind.TIMESTAMP
                else f"`normal_cdf` cannot compare {describe_type(first)} with {describe_type(kind)}"
            )
            checker.scope.report("PS204", message, arg.span, label=describe_type(kind))
            return None
    return e.Call("normal_cdf", tuple(checked_args), t.RATIO, True, node.span)


def _check_beta_cdf(checker: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    if not _check_argument_count(checker, node, 3, 3):
        return None
    args = [_check_plain_number(checker, node, arg) for arg in node.args]
    checked_args = [arg for arg in args if arg is not None]
    return (
        e.Call("beta_cdf", tuple(checked_args), t.RATIO, True, node.span)
        if len(checked_args) == len(args)
        else None
    )


def _check_plain_number(checker: ExpressionChecker, node: s.CallExpr, written: s.Expression) -> e.Expr | None:
    name = node.function.text
    arg = checker.require_numeric(checker.check(written, None), f"`{name}`")
    if arg is None:
        return None
    have = type_of(arg)
    if have.kind not in DIMENSIONLESS:
        checker.scope.report(
            "PS204",
            f"`{name}` expects a plain number, found {describe_type(have)}",
            arg.span,
            label=describe_type(have),
            help="divide it by an amount of the same dimension, for example `node.free.memory / 1Gi`",
        )
        return None
    return arg


def _check_rank(checker: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    if not _check_argument_count(checker, node, 2, 2):
        return None
    item = checker.check(node.args[0], t.STRING)
    order = checker.check(node.args[1], Type(TypeKind.LIST, element=t.STRING))
    if item is None or order is None:
        return None
    if type_of(item).kind is not TypeKind.STRING:
        return report_type_mismatch(checker.scope, item, t.STRING)
    if not isinstance(order, e.Const) or order.type.element != t.STRING or not isinstance(order.value, tuple):
        checker.scope.report(
            "PS202",
            "`rank` expects a constant list of strings",
            order.span,
            help='for example `["gold", "silver"]`',
        )
        return None
    return e.Rank(item, tuple(str(word) for word in order.value), node.span)


ROUNDING_MODES: dict[str, e.Function] = {
    "half_even": "round",
    "half_up": "round_half_up",
    "half_away": "round_half_away",
    "trunc": "trunc",
    "floor": "floor",
    "ceil": "ceil",
}

FUNCTION_NAMES = (
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
    "starts_with",
    "bucket",
    "split",
    "window",
    "count",
    "traffic_to",
)


BUCKETS_MAX = 1_000_000

_EXAMPLES = {
    "starts_with": 'for example `starts_with(node.name, "gpu-")`',
    "bucket": "for example `bucket(pod.name, 100) < 10` for a tenth of all pods",
    "split": 'for example `"a" in split(node.annotations["example.com/zones"], ",")`',
}


def check_text_function(checker: ExpressionChecker, node: s.CallExpr) -> e.Expr | None:
    name = node.function.text
    if len(node.args) != 2:
        checker.scope.report("PS209", f"`{name}` takes 2 arguments, found {len(node.args)}", node.span)
        return None
    text = checker.check(node.args[0], t.STRING)
    argument = checker.check(node.args[1], t.INT if name == "bucket" else t.STRING)
    if text is None or argument is None:
        return None
    if type_of(text).kind is not TypeKind.STRING:
        return report_type_mismatch(checker.scope, text, t.STRING)
    value = argument.value if isinstance(argument, e.Const) else None
    if name == "starts_with" and isinstance(value, str):
        return e.StartsWith(text, value, node.span)
    if name == "split" and isinstance(value, str) and value:
        return e.Split(text, value, Type(TypeKind.LIST, element=t.STRING), node.span)
    if name == "bucket" and type(value) is int and 1 <= value <= BUCKETS_MAX:
        return e.Bucket(text, value, node.span)
    wanted = {
        "starts_with": "string",
        "split": "string that is not empty",
        "bucket": f"number from 1 to {BUCKETS_MAX}",
    }[name]
    checker.scope.report(
        "PS202", f"`{name}` expects a constant {wanted}", argument.span, help=_EXAMPLES[name]
    )
    return None
