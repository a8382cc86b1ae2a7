"""`extender NAME weight 5 missing neutral`: that the statement makes sense. Whether the settings have a service of that name,
only the process that runs the policy knows."""

from collections.abc import Iterable

from policysched.lang.check.rule_clauses import clauses_by_slot
from policysched.lang.check.rules import check_score_missing, check_weight
from policysched.lang.check.scope import Scope, declared_here
from policysched.lang.ir.program import Extender, GangMode, GangSpec
from policysched.lang.syntax import tree as s


def check_extenders(scope: Scope, statements: Iterable[s.ExtenderDecl]) -> tuple[Extender, ...]:
    """In the order of the text, which is the order in which they are asked."""
    found: dict[str, Extender] = {}
    for node in statements:
        first = found.get(node.name.text)
        if first is not None:
            scope.report(
                "PS213",
                f"the extender `{node.name.text}` is asked already",
                node.name.span,
                label="once is enough",
                related=(declared_here(first.span),),
            )
            continue
        found[node.name.text] = _check_extender(scope, node)
    return tuple(found.values())


def check_no_whole_gang(scope: Scope, gang: GangSpec | None, found: tuple[Extender, ...]) -> None:
    """Members are tried on a cluster that is not, which no service outside has seen. In mode `gate` each is placed like any
    other pod."""
    if gang is not None and gang.mode is GangMode.WHOLE and found:
        scope.report(
            "PS240",
            "a gang cannot be placed whole while an extender has to be asked",
            gang.span,
            label="members are tried together, and the extender knows nothing of such a trial",
            related=(declared_here(found[0].span),),
            help="give these gangs a policy of their own, without the extender, or place members one by one: `mode = gate`",
        )


def _check_extender(scope: Scope, node: s.ExtenderDecl) -> Extender:
    clauses = clauses_by_slot(node.clauses)
    weight = None if clauses.weight is None else check_weight(scope, clauses.weight.weight)
    missing = check_score_missing(scope, clauses.missing)
    if weight is not None and clauses.missing is None:
        scope.report(
            "PS214",
            f"nothing says what a node counts that `{node.name.text}` has no score for",
            node.name.span,
            label="its answer can be missing",
            help="add `missing worst`, `neutral`, `best` or a number from 0 to 100",
        )
    if weight is None and clauses.missing is not None:
        scope.report(
            "PS310",
            "this clause has no effect: without a weight no score counts",
            clauses.missing.span,
            help="add a `weight` before it, or leave it out",
        )
        missing = None
    return Extender(node.name.text, weight, missing, node.name.span)
