"""Prints expressions with the fewest parentheses.

Precedence levels are those of `policy.lark`, loosest first; an operand that binds looser than its position allows gets
parentheses. Chains of one operator are printed in a loop, so that a long condition does not exhaust the stack.
"""

from policysched.lang.syntax import tree as s

(
    CONDITIONAL_LEVEL,
    OR_LEVEL,
    AND_LEVEL,
    NOT_LEVEL,
    COMPARISON_LEVEL,
    SUM_LEVEL,
    ELSE_LEVEL,
    PRODUCT_LEVEL,
    SIGN_LEVEL,
    PRIMARY_LEVEL,
) = range(1, 11)

_OPERATOR_LEVELS = {
    "or": OR_LEVEL,
    "and": AND_LEVEL,
    "+": SUM_LEVEL,
    "-": SUM_LEVEL,
    "*": PRODUCT_LEVEL,
    "/": PRODUCT_LEVEL,
}
"""Levels of the operators that can be chained; all others are comparisons."""


def expression_text(expression: s.Expression, min_level: int = CONDITIONAL_LEVEL) -> str:
    """The expression on one line, in parentheses if its level is below `min_level`."""
    text = _text_without_parentheses(expression)
    return f"({text})" if _level(expression) < min_level else text


def condition_lines(expression: s.Expression) -> list[str]:
    """The expression broken before each outermost `and` or `or`."""
    if not isinstance(expression, s.BinaryExpr) or expression.op not in ("and", "or"):
        return [expression_text(expression)]
    level = _OPERATOR_LEVELS[expression.op]
    first, rest = _chain(expression, level)
    return [
        expression_text(first, level),
        *(f"{op} {expression_text(right, level + 1)}" for op, right in rest),
    ]


def string_text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def number_text(number: s.NumberLit) -> str:
    return number.digits + number.suffix


def _level(expression: s.Expression) -> int:
    match expression:
        case s.BinaryExpr(op=op):
            return _OPERATOR_LEVELS.get(op, COMPARISON_LEVEL)
        case s.UnaryExpr(op="not"):
            return NOT_LEVEL
        case s.UnaryExpr():
            return SIGN_LEVEL
        case s.ElseExpr():
            # A string at the end of a filter would be parsed as its message: `require (pool else "none")`.
            return 0 if _ends_with_string(expression) else ELSE_LEVEL
        case s.IfExpr():
            return 0 if _ends_with_string(expression) else CONDITIONAL_LEVEL
        case _:
            return PRIMARY_LEVEL


def _ends_with_string(expression: s.Expression) -> bool:
    while isinstance(expression, s.ElseExpr | s.IfExpr):
        expression = expression.fallback if isinstance(expression, s.ElseExpr) else expression.otherwise
    return isinstance(expression, s.StringLit)


def _then_text(expression: s.Expression) -> str:
    """The branch between `then` and `else`, in parentheses if it contains a bare `else`."""
    text = expression_text(expression, OR_LEVEL)
    return f"({text})" if _has_bare_else(expression) and _level(expression) >= OR_LEVEL else text


def _has_bare_else(expression: s.Expression) -> bool:
    """Whether it contains an `else` outside of parentheses."""
    pending = [expression]
    while pending:
        match pending.pop():
            case s.ElseExpr():
                return True
            case s.BinaryExpr(left=left, right=right):
                pending += (left, right)
            case s.UnaryExpr(operand=operand):
                pending.append(operand)
            case _:
                pass
    return False


def _text_without_parentheses(expression: s.Expression) -> str:
    match expression:
        case s.NumberLit():
            return number_text(expression)
        case s.StringLit(value=value):
            return string_text(value)
        case s.BoolLit(value=value):
            return "true" if value else "false"
        case s.ListLit(items=items):
            return f"[{_joined(items)}]"
        case s.NameExpr(name=name):
            return name
        case s.AttributeExpr(owner=owner, path=path):
            return owner + "".join(map(_path_part_text, path))
        case s.UnaryExpr(op="not", operand=operand):
            return f"not {expression_text(operand, NOT_LEVEL)}"
        case s.UnaryExpr(operand=operand):
            return f"-{expression_text(operand, SIGN_LEVEL)}"
        case s.BinaryExpr():
            return _binary_text(expression)
        case s.ElseExpr(value=value, fallback=fallback):
            return f"{expression_text(value, PRODUCT_LEVEL)} else {expression_text(fallback, ELSE_LEVEL)}"
        case s.IfExpr(condition=condition, then=then, otherwise=otherwise):
            chosen = f"{_then_text(then)} else {expression_text(otherwise)}"
            return f"if {expression_text(condition)} then {chosen}"
        case s.HasExpr(target=target):
            return f"has {expression_text(target)}"
        case s.CallExpr(function=function, args=args):
            return f"{function.text}({_joined(args)})"
        case s.ListFoldExpr(function=function, value=value, items=items, where=where):
            folded = items.text if value is None else f"{expression_text(value)} over {items.text}"
            condition_text = "" if where is None else f" where {expression_text(where)}"
            return f"{function.text}({folded}{condition_text})"
        case s.AggregateExpr(function=function, value=value, after_placement=after_placement):
            after = " after placing" if after_placement else ""
            return f"{function.text} of {expression_text(value)} over nodes{after}"
        case s.PodTotalExpr(function=function, value=value, pods=pods, where=where):
            counted = (
                _counted_pods_text(pods)
                if value is None
                else f"{expression_text(value)} over {_counted_pods_text(pods)}"
            )
            condition_text = "" if where is None else f" where {expression_text(where)}"
            return f"{function.text}({counted}{condition_text})"


def _counted_pods_text(pods: s.CountedPods) -> str:
    match pods.word:
        case "in":
            assert pods.key is not None, f"{pods.span.text} has no key"
            return f"pods in {expression_text(pods.key)}"
        case "node":
            return "pods on node"
        case None:
            return "pods"
        case word:
            return f"{word} pods"


def _path_part_text(part: s.PathPart) -> str:
    if part.is_constant_key:
        return f"[{part.text}]"
    return f"[{string_text(part.text)}]" if part.is_quoted_key else f".{part.text}"


def _joined(expressions: tuple[s.Expression, ...]) -> str:
    return ", ".join(expression_text(expression) for expression in expressions)


def _binary_text(expression: s.BinaryExpr) -> str:
    level = _OPERATOR_LEVELS.get(expression.op)
    if level is None:
        return f"{expression_text(expression.left, SUM_LEVEL)} {expression.op} {expression_text(expression.right, SUM_LEVEL)}"
    first, rest = _chain(expression, level)
    return expression_text(first, level) + "".join(
        f" {op} {expression_text(right, level + 1)}" for op, right in rest
    )


def _chain(expression: s.BinaryExpr, level: int) -> tuple[s.Expression, list[tuple[str, s.Expression]]]:
    """`a + b - c` as `a` and the list of `+ b` and `- c`."""
    rest: list[tuple[str, s.Expression]] = []
    node: s.Expression = expression
    while isinstance(node, s.BinaryExpr) and _OPERATOR_LEVELS.get(node.op) == level:
        rest.append((node.op, node.right))
        node = node.left
    rest.reverse()
    return node, rest
