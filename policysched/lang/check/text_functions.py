"""`starts_with(text, "prefix")`, `bucket(text, 100)` and `split(text, ",")`."""

from policysched.lang.check.expression_checker import ExpressionChecker, report_type_mismatch
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import type_of
from policysched.lang.syntax import tree as s
from policysched.lang.types import kinds as t
from policysched.lang.types.kinds import Type, TypeKind

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
