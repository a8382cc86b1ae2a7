"""How large one expression may be, measured without recursion, since a hostile one is deeper than Python's stack."""

from policysched.lang.check.scope import LetExpression, Scope
from policysched.lang.ir.declarations import CONTAINER_RECORD
from policysched.lang.syntax import tree as s
from policysched.lang.syntax.children import syntax_children

EXPRESSION_NODES_MAX = 500
EXPANDED_NODES_MAX = 10_000
"""With what the names in an expression stand for."""
EXPRESSION_DEPTH_MAX = 64
RULES_MAX = 500


def check_limits(scope: Scope, node: s.Expression) -> bool:
    """Whether the expression is small enough to check; a finding where it is not."""
    count, depth = measure(node)
    whole, depth_of_whole = measure_expanded(scope, node)
    if count <= EXPRESSION_NODES_MAX and whole > EXPANDED_NODES_MAX:
        scope.report(
            "PS126",
            f"with its names put in their place the expression has {whole} parts, and {EXPANDED_NODES_MAX} is the most",
            node.span,
            help="split it into several rules",
        )
        return False
    if depth <= EXPRESSION_DEPTH_MAX < depth_of_whole:
        scope.report(
            "PS125",
            f"with its names put in their place the expression is nested {depth_of_whole} deep, and {EXPRESSION_DEPTH_MAX} is the most",
            node.span,
        )
        return False
    if count > EXPRESSION_NODES_MAX:
        scope.report(
            "PS126",
            f"the expression has {count} parts, and {EXPRESSION_NODES_MAX} is the most",
            node.span,
            help="split it into several rules, or into `let` declarations",
        )
        return False
    if depth > EXPRESSION_DEPTH_MAX:
        scope.report(
            "PS125",
            f"the expression is nested {depth} deep, and {EXPRESSION_DEPTH_MAX} is the most",
            node.span,
        )
        return False
    return True


def measure(node: s.Expression) -> tuple[int, int]:
    """Parts and depth. A chain of `and` (or `or`) counts as one level; the items of a list are not counted."""
    return measure_expanded(None, node)


def measure_expanded(scope: Scope | None, node: s.Expression) -> tuple[int, int]:
    """The same with what names stand for in the scope."""
    count = deepest = 0
    pending: list[tuple[s.Expression, int]] = [(node, 1)]
    while pending:
        one, depth = pending.pop()
        named = None if scope is None else let_expression_of(scope, one)
        count += 1 if named is None else named.node_count
        deepest = max(deepest, depth if named is None else depth + named.depth - 1)
        pending.extend(
            (child, depth if _is_same_chain(one, child) else depth + 1) for child in _measured_operands(one)
        )
        if count > 100 * EXPRESSION_NODES_MAX:
            break
    return count, deepest


def let_expression_of(scope: Scope, node: s.Expression) -> LetExpression | None:
    """What a name stands for, where it is that of a `let` that depends on something."""
    declared = scope.names.get(node.name) if isinstance(node, s.NameExpr) else None
    return (
        declared.definition
        if declared is not None and isinstance(declared.definition, LetExpression)
        else None
    )


def is_runtime_dependent(scope: Scope, node: s.Expression) -> bool:
    """Whether anything in it is not the same for every pod and node."""
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
            case (s.UnaryExpr() | s.BinaryExpr() | s.ElseExpr() | s.IfExpr() | s.ListLit()) as one:
                pending.extend(_measured_operands(one))
            case _:
                return True
    return False


def reads_container(scope: Scope, node: s.Expression) -> bool:
    """Whether it reads what feeds a state, itself or by names that it has."""
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
            case one:
                pending.extend(_measured_operands(one))
    return False


def _is_same_chain(node: s.Expression, child: s.Expression) -> bool:
    if not isinstance(node, s.BinaryExpr) or not isinstance(child, s.BinaryExpr):
        return False
    return node.op in ("and", "or") and node.op == child.op and child is node.left


def _measured_operands(node: s.Expression) -> tuple[s.Expression, ...]:
    """Its operands, but for the plain items of a list: these are not counted, and are the same for every pod and node."""
    plain = s.StringLit | s.NumberLit | s.NameExpr
    return tuple(
        one for one in syntax_children(node) if not (isinstance(node, s.ListLit) and isinstance(one, plain))
    )
