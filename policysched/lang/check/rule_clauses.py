"""The clauses of a rule by slot, and how an `amend` merges them."""

from dataclasses import dataclass

from policysched.lang.syntax import tree as s


@dataclass(frozen=True, slots=True)
class RuleClauses:
    """The first clause of each slot; the parser reports duplicate and misplaced ones."""

    when: s.WhenClause | None = None
    require: s.RequireClause | None = None
    missing: s.MissingClause | None = None
    scaleup: s.ScaleupClause | None = None
    text: s.MessageClause | None = None
    weight: s.WeightClause | None = None
    value: s.ScoreValueClause | None = None
    normalize: s.NormalizeClause | None = None


def clause_slot(clause: s.Clause) -> str:
    """The field of `RuleClauses` for the clause; an amended clause replaces the one in the same slot."""
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
    by_slot: dict[str, s.Clause] = {}
    for clause in clauses:
        by_slot.setdefault(clause_slot(clause), clause)
    return RuleClauses(**by_slot)  # type: ignore[arg-type]  # slots are field names


_SLOT_ORDER = ("weight", "when", "require", "value", "normalize", "missing", "scaleup", "text")


def merge_clauses(below: tuple[s.Clause, ...], above: tuple[s.Clause, ...]) -> tuple[s.Clause, ...]:
    """The clauses of `below`, replaced by those of `above`, in the canonical order."""
    by_slot = {clause_slot(clause): clause for clause in (*below, *above)}
    return tuple(by_slot[slot] for slot in _SLOT_ORDER if slot in by_slot)
