"""What the text of a team may read, since its messages and the places of its pods tell it.

Of pods of other namespaces it learns what `podAffinity` with a `namespaceSelector` tells everybody: whether labels of placed
pods have given values. A condition with `other.namespace == pod.namespace` admits only pods of the team, so all of them may be
read. Annotations and objects of nodes are for the operator, like metrics. The operator's libraries may read everything,
and a team what these declare; where it would choose the key by a parameter, the library gets a warning.
"""

from collections.abc import Iterator

from policysched.lang.check.scope import REQUEST, ExpressionContext, Scope
from policysched.lang.syntax import tree as s
from policysched.lang.syntax.children import syntax_children
from policysched.text import Span

_OWN_NAMESPACE = ({"other.namespace", "pod.namespace"}, {"other.namespace", "namespace.name"})
_NODE_MAPS = ("annotations", "objects")
_ADMIT_OWN = "begin the condition with `other.namespace == pod.namespace and`, or use a `let` of the operator's libraries"


def refuses_attribute(scope: Scope, node: s.AttributeExpr, context: ExpressionContext) -> bool:
    """Whether the text of a team reads what belongs to the operator; reported. The request of a resource is read of all pods."""
    is_operator_s = node.owner == "node" and node.path[0].text in _NODE_MAPS
    if (is_operator_s or context == REQUEST) and is_settable(scope, node):
        warn_of_settable_key(scope, node.span)
    if not is_operator_s or not _is_of_team(scope, node):
        return False
    _report(
        scope,
        node,
        f"`{node.span.text}`",
        "only the operator's texts read it",
        "use an `input` or `let` of the operator's libraries",
    )
    return True


def refuses_pod_total(scope: Scope, node: s.PodTotalExpr) -> bool:
    """Whether the text of a team reads too much of pods of other namespaces; reported."""
    if node.where is not None and _admits_own_alone(node.where):
        return False
    reads = [read for part in (node.value, node.where) if part is not None for read in _foreign_reads(part)]
    if not _is_of_team(scope, node):
        for read in reads:
            if is_settable(scope, read):
                warn_of_settable_key(scope, read.span)
        return False
    if node.pods.word in (None, "all"):
        label = "also pods that are on no node"
        _report(
            scope,
            node,
            f"`{node.pods.span.text}` of other namespaces",
            label,
            f"count `placed pods`; or {_ADMIT_OWN}",
        )
        return True
    for read in reads:
        label = (
            "only allowed beside `==`, `!=`, `in`, `not in` and in `has`"
            if read.path[0].text in ("labels", "namespace")
            else "only allowed for pods of its own namespace"
        )
        _report(scope, read, f"`{read.span.text}` of pods of other namespaces", label, _ADMIT_OWN)
    return bool(reads)


def is_settable(scope: Scope, node: s.Expression) -> bool:
    """Whether a team that includes the text can set a constant in the expression, or the key that it reads."""
    pending = [node]
    while pending:
        match pending.pop():
            case s.NameExpr(name=name):
                names = [name]
            case s.AttributeExpr(path=path):
                names = [part.text for part in path if part.is_constant_key]
            case operation:
                pending += syntax_children(operation)
                continue
        if not scope.settable_names.isdisjoint(names):
            return True
    return False


def warn_of_settable_key(scope: Scope, span: Span) -> None:
    """A team would choose what is read here, and a library of the operator may read everything."""
    if span.source is scope.library_for_teams:
        scope.report(
            "PS915",
            f"teams can choose which key `{span.text}` reads",
            span,
            label="the parameter is not locked",
            help='write `locked param`, or list the keys that teams may read: `in ["KEY", ...]`',
        )


def _is_of_team(scope: Scope, node: s.Expression) -> bool:
    return scope.team_source is not None and node.span.source is scope.team_source


def _admits_own_alone(condition: s.Expression) -> bool:
    """Whether one of the conditions that all have to hold compares the namespaces: if it is false, so is the whole."""
    pending = [condition]
    while pending:
        match pending.pop():
            case s.BinaryExpr(op="and", left=left, right=right):
                pending += (left, right)
            case s.BinaryExpr(op="==", left=s.AttributeExpr() as left, right=s.AttributeExpr() as right):
                if {_name(left), _name(right)} in _OWN_NAMESPACE:
                    return True
    return False


def _name(node: s.AttributeExpr) -> str:
    return ".".join((node.owner, *(part.text for part in node.path)))


def _foreign_reads(expression: s.Expression) -> Iterator[s.AttributeExpr]:
    """The reads of a counted pod that tell more than whether a label has a given value."""
    pending = [(expression, False)]  # with whether its value is only compared
    while pending:
        node, is_compared = pending.pop()
        match node:
            case s.AttributeExpr(owner="other", path=(s.PathPart(text="node"), *_)):
                pass  # rules read nodes anyway
            case s.AttributeExpr(owner="other", path=(s.PathPart(text="labels" | "namespace"), *_)) if (
                is_compared
            ):
                pass
            case s.AttributeExpr(owner="other"):
                yield node
            case s.BinaryExpr(op="==" | "!=" | "in" | "not in") | s.HasExpr():
                pending += ((child, True) for child in syntax_children(node))
            case s.ElseExpr():
                pending += ((child, is_compared) for child in syntax_children(node))
            case _:
                pending += ((child, False) for child in syntax_children(node))


def _report(scope: Scope, node: s.Expression, what: str, label: str, advice: str) -> None:
    scope.report(
        "PS914", f"a policy that a team owns cannot read {what}", node.span, label=label, help=advice
    )
