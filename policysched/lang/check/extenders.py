"""`extender NAME weight 5 missing neutral`: check the statement itself.

Whether the settings define an extender of that name is checked where the settings are known (PS906).
"""

from collections.abc import Iterable

from policysched.lang.check.rule_clauses import clauses_by_slot
from policysched.lang.check.scope import Scope, declared_here
from policysched.lang.check.scores import check_score_missing, check_weight
from policysched.lang.ir.program import Extender, GangMode, GangSpec
from policysched.lang.syntax import tree as s


def check_extenders(scope: Scope, statements: Iterable[s.ExtenderDecl]) -> tuple[Extender, ...]:
    """The extenders in the order of the text, which is the order of the calls."""
    extenders: dict[str, Extender] = {}
    for node in statements:
        first = extenders.get(node.name.text)
        if first is not None:
            scope.report(
                "PS213",
                f"duplicate extender `{node.name.text}`",
                node.name.span,
                label="declared again",
                related=(declared_here(first.span),),
            )
            continue
        extenders[node.name.text] = _check_extender(scope, node)
    return tuple(extenders.values())


def check_no_whole_gang(scope: Scope, gang: GangSpec | None, extenders: tuple[Extender, ...]) -> None:
    """A whole gang is placed on a trial snapshot that no extender can see; see PS240."""
    if gang is not None and gang.mode is GangMode.WHOLE and extenders:
        scope.report(
            "PS240",
            "a gang in mode `whole` cannot be combined with an extender",
            gang.span,
            label="the extender cannot see a trial placement of the gang",
            related=(declared_here(extenders[0].span),),
            help="use a separate policy without the extender for these gangs, or place members individually: `mode = gate`",
        )


def _check_extender(scope: Scope, node: s.ExtenderDecl) -> Extender:
    clauses = clauses_by_slot(node.clauses)
    weight = None if clauses.weight is None else check_weight(scope, clauses.weight.weight)
    missing = check_score_missing(scope, clauses.missing)
    if weight is not None and clauses.missing is None:
        scope.report(
            "PS214",
            f"the extender `{node.name.text}` has a weight but no `missing` clause",
            node.name.span,
            label="its score can be missing",
            help="add `missing worst`, `neutral`, `best` or a number from 0 to 100",
        )
    if weight is None and clauses.missing is not None:
        scope.report(
            "PS310",
            "`missing` has no effect: the extender has no weight",
            clauses.missing.span,
            help="add a `weight` before it, or remove it",
        )
        missing = None
    return Extender(node.name.text, weight, missing, node.name.span)
