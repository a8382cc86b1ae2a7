"""How large one expression may be, measured without recursion, since a hostile one is deeper than Python's stack."""

from policysched.lang.check.scope import Named, Scope
from policysched.lang.ir.program import CONTAINER
from policysched.lang.syntax import tree as s
from policysched.lang.syntax.operands import operands

NODES_MAX = 500
EXPANDED_MAX = 10_000
"""With what the names in an expression stand for."""
DEPTH_MAX = 64
RULES_MAX = 500


def within_limits(scope: Scope, node: s.Expression) -> bool:
    """Whether the expression is small enough to check; a finding where it is not."""
    count, depth = measure(node)
    whole, depth_of_whole = measure_expanded(scope, node)
    if count <= NODES_MAX and whole > EXPANDED_MAX:
        scope.report(
            "PS126",
            f"with its names put in their place the expression has {whole} parts, and {EXPANDED_MAX} is the most",
            node.span,
            help="split it into several rules",
        )
        return False
    if depth <= DEPTH_MAX < depth_of_whole:
        scope.report(
            "PS125",
            f"with its names put in their place the expression is nested {depth_of_whole} deep, and {DEPTH_MAX} is the most",
            node.span,
        )
        return False
    if count > NODES_MAX:
        scope.report(
            "PS126",
            f"the expression has {count} parts, and {NODES_MAX} is the most",
            node.span,
            help="split it into several rules, or into `let` declarations",
        )
        return False
    if depth > DEPTH_MAX:
        scope.report(
            "PS125", f"the expression is nested {depth} deep, and {DEPTH_MAX} is the most", node.span
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
        named = None if scope is None else named_by(scope, one)
        count += 1 if named is None else named.parts
        deepest = max(deepest, depth if named is None else depth + named.depth - 1)
        pending.extend((child, depth if _same_chain(one, child) else depth + 1) for child in _measured(one))
        if count > 100 * NODES_MAX:
            break
    return count, deepest


def named_by(scope: Scope, node: s.Expression) -> Named | None:
    """What a name stands for, where it is that of a `let` that depends on something."""
    declared = scope.declared.get(node.name) if isinstance(node, s.Bare) else None
    return declared.value if declared is not None and isinstance(declared.value, Named) else None


def depends(scope: Scope, node: s.Expression) -> bool:
    """Whether anything in it is not the same for every pod and node."""
    pending = [node]
    while pending:
        match pending.pop():
            case s.NumberLit() | s.StringLit() | s.BoolLit():
                pass
            case s.Bare(name=name):
                declared = scope.declared.get(name)
                if name == "now" or (declared is not None and declared.kind in ("input", "metric", "state")):
                    return True
                if declared is not None and isinstance(declared.value, Named):
                    return True
            case s.CallExpr(function=function, args=args):
                if function.text in ("window", "traffic_to"):
                    return True
                pending.extend(args)
            case (s.Unary() | s.Binary() | s.ElseExpr() | s.IfExpr() | s.ListLit()) as one:
                pending.extend(_measured(one))
            case _:
                return True
    return False


def reads_container(scope: Scope, node: s.Expression) -> bool:
    """Whether it reads what feeds a state, itself or by names that it has."""
    if CONTAINER.name in scope.declared:
        return False
    pending = [node]
    while pending:
        match pending.pop():
            case s.Attribute(owner=owner) if owner == CONTAINER.name:
                return True
            case s.Bare(name=name):
                declared = scope.declared.get(name)
                if declared is not None and isinstance(declared.value, Named) and declared.value.of_container:
                    return True
            case one:
                pending.extend(_measured(one))
    return False


def _same_chain(node: s.Expression, child: s.Expression) -> bool:
    if not isinstance(node, s.Binary) or not isinstance(child, s.Binary):
        return False
    return node.op in ("and", "or") and node.op == child.op and child is node.left


def _measured(node: s.Expression) -> tuple[s.Expression, ...]:
    """Its operands, but for the plain items of a list: these are not counted, and are the same for every pod and node."""
    plain = s.StringLit | s.NumberLit | s.Bare
    return tuple(
        one for one in operands(node) if not (isinstance(node, s.ListLit) and isinstance(one, plain))
    )
