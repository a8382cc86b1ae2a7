"""The clauses of a rule by what they are, the last word of an `amend` included."""

from dataclasses import dataclass

from policysched.lang.syntax import tree as s


@dataclass(frozen=True, slots=True)
class RuleClauses:
    """The first clause of each sort; that there are no more, and none out of place, the parser said."""

    when: s.WhenClause | None = None
    require: s.RequireClause | None = None
    missing: s.MissingClause | None = None
    scaleup: s.ScaleupClause | None = None
    text: s.MessageClause | None = None
    weight: s.WeightClause | None = None
    value: s.ScoreValueClause | None = None
    normalize: s.NormalizeClause | None = None


def clause_slot(clause: s.Clause) -> str:
    """Which field of `RuleClauses` the clause fills: an amended clause replaces the one of the same slot."""
    match clause:
        case s.WhenClause():
            return "when"
        case s.RequireClause():
            return "require"
        case s.MissingClause():
            return "missing"
        case s.ScaleupClause():
            return "scaleup"
        case s.MessageClause():
            return "text"
        case s.WeightClause():
            return "weight"
        case s.ScoreValueClause():
            return "value"
        case s.NormalizeClause():
            return "normalize"


def clauses_by_slot(clauses: tuple[s.Clause, ...]) -> RuleClauses:
    found: dict[str, s.Clause] = {}
    for clause in clauses:
        found.setdefault(clause_slot(clause), clause)
    return RuleClauses(**found)  # type: ignore[arg-type]  # slot and field agree


_SLOT_ORDER = ("weight", "when", "require", "value", "normalize", "missing", "scaleup", "text")


def merge_clauses(below: tuple[s.Clause, ...], above: tuple[s.Clause, ...]) -> tuple[s.Clause, ...]:
    """`above` laid over `below`, in the order in which a rule is written."""
    found = {clause_slot(clause): clause for clause in below}
    found |= {clause_slot(clause): clause for clause in above}
    return tuple(found[name] for name in _SLOT_ORDER if name in found)
