"""Lints on the order of the queue, and on the choice of victims."""

from policysched.lang.check.scope import Scope
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import OrderKey
from policysched.lang.syntax import tree as s
from policysched.text import Label


def lint_order(scope: Scope, node: s.QueueDecl, keys: tuple[OrderKey, ...]) -> None:
    """Report keys after a unique one, keys that stand twice, and the lowest priority first."""
    seen: dict[e.Expr, s.OrderKeyDecl] = {}
    for written, key in zip(node.keys, keys, strict=True):
        repeated = seen.get(key.value)
        unique = next((other for value, other in seen.items() if _is_unique(value)), None)
        before = repeated or unique
        if before is not None:
            scope.report(
                "PS310",
                f"the key `{written.value.span.text}` has no effect",
                written.span,
                label="listed twice" if repeated is not None else "no two pods are equal before it",
                help="remove it" if repeated is not None else f"move it before `{before.value.span.text}`",
                related=(Label(before.span, "already decides the order"),),
            )
        seen.setdefault(key.value, written)
        if _is_priority(key.value) and not key.descending and not written.span.text.endswith("asc"):
            scope.report(
                "PS415",
                "the pods of lowest priority come first",
                written.span,
                label="ascending",
                help="write `pod.priority desc`, or `pod.priority asc` if that is meant",
            )


def _is_unique(value: e.Expr) -> bool:
    return isinstance(value, e.Attr) and value.owner == "pod" and value.path == ("uid",)


def _is_priority(value: e.Expr) -> bool:
    return isinstance(value, e.Attr) and value.owner == "pod" and value.path == ("priority",)


def lint_victims(scope: Scope, condition: e.Expr) -> None:
    """Report a condition that only holds for victims at least as important as the pod."""
    for part in condition.items if isinstance(condition, e.And) else (condition,):
        match part:
            case e.Compare(op=">" | ">=", left=e.Attr() as victim, right=e.Attr() as pod):
                pass
            case e.Compare(op="<" | "<=", left=e.Attr() as pod, right=e.Attr() as victim):
                pass
            case _:
                continue
        if victim.owner == "victim" and pod.owner == "pod" and victim.path == pod.path == ("priority",):
            scope.report(
                "PS417",
                "only pods that are at least as important are evicted",
                part.span,
                label="reversed comparison",
                help="write `victim.priority < pod.priority`",
            )
