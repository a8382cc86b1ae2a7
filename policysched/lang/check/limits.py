"""Limits on texts and on the size of expressions, which is measured without recursion: input can be deeper than
Python's stack."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from policysched.lang.check.scope import LetExpression, Scope
from policysched.lang.ir.declarations import CONTAINER_RECORD
from policysched.lang.syntax import tree as s
from policysched.lang.syntax.children import syntax_children

EXPRESSION_NODES_MAX = 500
EXPANDED_NODES_MAX = 10_000
"""Including the expansion of `let` names."""
EXPRESSION_DEPTH_MAX = 64
RULES_MAX = 500
INCLUDED_STATEMENTS_MAX = 2_000
"""Statements of all texts that one text includes, their includes among them."""
DIAGNOSTICS_MAX = 500
"""Diagnostics of one text that are reported; the others are counted."""
POLICY_COST_MAX = 10_000
"""Operations of a policy (`lang.ir.cost`). The largest shipped policy has 919. On 1,000 nodes an evaluation at the limit
takes 0.05 to 0.5 s."""

TextGuard = Callable[[str], AbstractContextManager[object]]
"""Entered with its key while a text is parsed or checked; raises `TextLimitExceeded` inside. Guards are nested: that of an
included text suspends that of the text that includes it."""


class TextLimitExceeded(BaseException):
    """The text that is being checked takes too much; the message says of what. Not an `Exception`, since it can be raised
    at any instruction."""


def check_limits(scope: Scope, node: s.Expression) -> bool:
    """Whether the expression is small enough to check; reports it otherwise."""
    count, depth = measure(node)
    expanded, expanded_depth = measure_expanded(scope, node)
    if count <= EXPRESSION_NODES_MAX and expanded > EXPANDED_NODES_MAX:
        scope.report(
            "PS126",
            f"the expression has {expanded} nodes after expanding names, the limit is {EXPANDED_NODES_MAX}",
            node.span,
            help="split it into several rules",
        )
        return False
    if depth <= EXPRESSION_DEPTH_MAX < expanded_depth:
        scope.report(
            "PS125",
            f"the expression is nested {expanded_depth} levels deep after expanding names, the limit is {EXPRESSION_DEPTH_MAX}",
            node.span,
        )
        return False
    if count > EXPRESSION_NODES_MAX:
        scope.report(
            "PS126",
            f"the expression has {count} nodes, the limit is {EXPRESSION_NODES_MAX}",
            node.span,
            help="split it into several rules, or into `let` declarations",
        )
        return False
    if depth > EXPRESSION_DEPTH_MAX:
        scope.report(
            "PS125",
            f"the expression is nested {depth} levels deep, the limit is {EXPRESSION_DEPTH_MAX}",
            node.span,
        )
        return False
    return True


def measure(node: s.Expression) -> tuple[int, int]:
    """Nodes and depth. A chain of `and` (or `or`) is one level; the items of a list are not counted."""
    return measure_expanded(None, node)


def measure_expanded(scope: Scope | None, node: s.Expression) -> tuple[int, int]:
    """Nodes and depth, including the expansion of `let` names."""
    count = deepest = 0
    pending: list[tuple[s.Expression, int]] = [(node, 1)]
    while pending:
        current, depth = pending.pop()
        let = None if scope is None else let_expression_of(scope, current)
        count += 1 if let is None else let.node_count
        deepest = max(deepest, depth if let is None else depth + let.depth - 1)
        pending.extend(
            (child, depth if _is_same_chain(current, child) else depth + 1)
            for child in _measured_operands(current)
        )
        if count > 100 * EXPRESSION_NODES_MAX:
            break
    return count, deepest


def let_expression_of(scope: Scope, node: s.Expression) -> LetExpression | None:
    """The expression of a `let` that is not constant, if the node is its name."""
    declared = scope.names.get(node.name) if isinstance(node, s.NameExpr) else None
    return (
        declared.definition
        if declared is not None and isinstance(declared.definition, LetExpression)
        else None
    )


def is_runtime_dependent(scope: Scope, node: s.Expression) -> bool:
    """Whether the expression can differ between pods or nodes, or over time."""
    pending = [node]
    while pending:
        match pending.pop():
            case s.NumberLit() | s.StringLit() | s.BoolLit():
                pass
            case s.NameExpr(name=name):
                declared = scope.names.get(name)
                if name == "now" or (declared is not None and declared.kind in ("input", "metric", "state")):
                    return True
                if declared is not None and isinstance(declared.definition, LetExpression):
                    return True
            case s.CallExpr(function=function, args=args):
                if function.text in ("window", "traffic_to"):
                    return True
                pending.extend(args)
            case (s.UnaryExpr() | s.BinaryExpr() | s.ElseExpr() | s.IfExpr() | s.ListLit()) as operation:
                pending.extend(_measured_operands(operation))
            case _:
                return True
    return False


def reads_container(scope: Scope, node: s.Expression) -> bool:
    """Whether it reads `container` (a state update), directly or through a `let`."""
    if CONTAINER_RECORD.name in scope.names:
        return False
    pending = [node]
    while pending:
        match pending.pop():
            case s.AttributeExpr(owner=owner) if owner == CONTAINER_RECORD.name:
                return True
            case s.NameExpr(name=name):
                declared = scope.names.get(name)
                if (
                    declared is not None
                    and isinstance(declared.definition, LetExpression)
                    and declared.definition.reads_container
                ):
                    return True
            case other:
                pending.extend(_measured_operands(other))
    return False


def _is_same_chain(node: s.Expression, child: s.Expression) -> bool:
    if not isinstance(node, s.BinaryExpr) or not isinstance(child, s.BinaryExpr):
        return False
    return node.op in ("and", "or") and node.op == child.op and child is node.left


def _measured_operands(node: s.Expression) -> tuple[s.Expression, ...]:
    """The operands, without the plain items of a list: these are constants and do not count."""
    plain = s.StringLit | s.NumberLit | s.NameExpr
    return tuple(
        child
        for child in syntax_children(node)
        if not (isinstance(node, s.ListLit) and isinstance(child, plain))
    )
