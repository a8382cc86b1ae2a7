"""The clauses of a rule by what they are, the last word of an `amend` included."""

from dataclasses import dataclass

from policysched.lang.syntax import tree as s


@dataclass(frozen=True, slots=True)
class Clauses:
    """The first clause of each sort; that there are no more, and none out of place, the parser said."""

    when: s.WhenClause | None = None
    require: s.RequireClause | None = None
    missing: s.MissingClause | None = None
    scaleup: s.ScaleupClause | None = None
    text: s.TextClause | None = None
    weight: s.WeightClause | None = None
    value: s.ValueClause | None = None
    normalize: s.NormalizeClause | None = None


def slot(clause: s.Clause) -> str:
    """Which field of `Clauses` the clause fills: an amended clause replaces the one of the same slot."""
    match clause:
        case s.WhenClause():
            return "when"
        case s.RequireClause():
            return "require"
        case s.MissingClause():
            return "missing"
        case s.ScaleupClause():
            return "scaleup"
        case s.TextClause():
            return "text"
        case s.WeightClause():
            return "weight"
        case s.ValueClause():
            return "value"
        case s.NormalizeClause():
            return "normalize"


def sorted_out(clauses: tuple[s.Clause, ...]) -> Clauses:
    found: dict[str, s.Clause] = {}
    for clause in clauses:
        found.setdefault(slot(clause), clause)
    return Clauses(**found)  # type: ignore[arg-type]  # slot and field agree


_ORDER = ("weight", "when", "require", "value", "normalize", "missing", "scaleup", "text")


def merged(below: tuple[s.Clause, ...], above: tuple[s.Clause, ...]) -> tuple[s.Clause, ...]:
    """`above` laid over `below`, in the order in which a rule is written."""
    found = {slot(clause): clause for clause in below}
    found |= {slot(clause): clause for clause in above}
    return tuple(found[name] for name in _ORDER if name in found)
