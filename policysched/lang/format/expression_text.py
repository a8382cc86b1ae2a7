"""Expressions as text, with no more parentheses than their meaning needs.

The levels are those of `policy.lark`, loosest first; an operand of a looser level than its place allows is put in
parentheses. Chains of one operator are walked in a loop, so that a long condition needs no deep stack.
"""

from policysched.lang.syntax import tree as s

CHOICE, EITHER, BOTH, NEGATION, COMPARISON, SUM, TERM, PRODUCT, SIGN, PRIMARY = range(1, 11)

_LEVELS = {"or": EITHER, "and": BOTH, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT}
"""Of the operators that can follow each other; all others compare."""


def expression_text(expression: s.Expression, place: int = CHOICE) -> str:
    """One line. `place` is the tightest level that needs no parentheses there."""
    text = _bare_text(expression)
    return f"({text})" if _level(expression) < place else text


def condition_lines(expression: s.Expression) -> list[str]:
    """The same in several lines, the later ones beginning with `and` or `or`; one line where there is none."""
    if not isinstance(expression, s.Binary) or expression.op not in ("and", "or"):
        return [expression_text(expression)]
    level = _LEVELS[expression.op]
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
        case s.Binary(op=op):
            return _LEVELS.get(op, COMPARISON)
        case s.Unary(op="not"):
            return NEGATION
        case s.Unary():
            return SIGN
        case s.ElseExpr():
            # A text at the end of a rule would be read as the rule's own: `require (pool else "none")`.
            return 0 if _ends_with_text(expression) else TERM
        case s.IfExpr():
            return 0 if _ends_with_text(expression) else CHOICE
        case _:
            return PRIMARY


def _ends_with_text(expression: s.Expression) -> bool:
    while isinstance(expression, s.ElseExpr | s.IfExpr):
        expression = expression.fallback if isinstance(expression, s.ElseExpr) else expression.otherwise
    return isinstance(expression, s.StringLit)


def _then_text(expression: s.Expression) -> str:
    """Between `then` and `else`, where an `else` of its own would end it."""
    text = expression_text(expression, EITHER)
    return f"({text})" if _shows_else(expression) and _level(expression) >= EITHER else text


def _shows_else(expression: s.Expression) -> bool:
    """Whether an `else` stands in it outside of parentheses."""
    pending = [expression]
    while pending:
        match pending.pop():
            case s.ElseExpr():
                return True
            case s.Binary(left=left, right=right):
                pending += (left, right)
            case s.Unary(operand=operand):
                pending.append(operand)
            case _:
                pass
    return False


def _bare_text(expression: s.Expression) -> str:
    match expression:
        case s.NumberLit():
            return number_text(expression)
        case s.StringLit(value=value):
            return string_text(value)
        case s.BoolLit(value=value):
            return "true" if value else "false"
        case s.ListLit(items=items):
            return f"[{_joined(items)}]"
        case s.Bare(name=name):
            return name
        case s.Attribute(owner=owner, path=path):
            return owner + "".join(map(_path_part, path))
        case s.Unary(op="not", operand=operand):
            return f"not {expression_text(operand, NEGATION)}"
        case s.Unary(operand=operand):
            return f"-{expression_text(operand, SIGN)}"
        case s.Binary():
            return _binary_text(expression)
        case s.ElseExpr(value=value, fallback=fallback):
            return f"{expression_text(value, PRODUCT)} else {expression_text(fallback, TERM)}"
        case s.IfExpr(condition=condition, then=then, otherwise=otherwise):
            chosen = f"{_then_text(then)} else {expression_text(otherwise)}"
            return f"if {expression_text(condition)} then {chosen}"
        case s.HasExpr(target=target):
            return f"has {expression_text(target)}"
        case s.CallExpr(function=function, args=args):
            return f"{function.text}({_joined(args)})"
        case s.FoldExpr(function=function, value=value, over=over, where=where):
            what = over.text if value is None else f"{expression_text(value)} over {over.text}"
            filtered = "" if where is None else f" where {expression_text(where)}"
            return f"{function.text}({what}{filtered})"
        case s.AggregateExpr(function=function, value=value, placing=placing):
            after = " after placing" if placing else ""
            return f"{function.text} of {expression_text(value)} over nodes{after}"
        case s.CountExpr(where=where, on_node=on_node, ended=ended):
            place = "pods on node" if on_node else "all pods" if ended else "pods"
            return f"count({place})" if where is None else f"count({place} where {expression_text(where)})"


def _path_part(part: s.PathPart) -> str:
    if part.named:
        return f"[{part.text}]"
    return f"[{string_text(part.text)}]" if part.keyed else f".{part.text}"


def _joined(expressions: tuple[s.Expression, ...]) -> str:
    return ", ".join(expression_text(one) for one in expressions)


def _binary_text(expression: s.Binary) -> str:
    level = _LEVELS.get(expression.op)
    if level is None:
        return f"{expression_text(expression.left, SUM)} {expression.op} {expression_text(expression.right, SUM)}"
    first, rest = _chain(expression, level)
    return expression_text(first, level) + "".join(
        f" {op} {expression_text(right, level + 1)}" for op, right in rest
    )


def _chain(expression: s.Binary, level: int) -> tuple[s.Expression, list[tuple[str, s.Expression]]]:
    """`a + b - c` as `a` and what follows it."""
    rest: list[tuple[str, s.Expression]] = []
    node: s.Expression = expression
    while isinstance(node, s.Binary) and _LEVELS.get(node.op) == level:
        rest.append((node.op, node.right))
        node = node.left
    rest.reverse()
    return node, rest
