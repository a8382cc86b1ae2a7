"""The rules of a policy while its text is applied from top to bottom: new ones at the end, changes in their place.

Everything happens on the syntax, so that a changed rule is checked as if it had been written so. `versions` keeps what a
rule was under each of the layers, because a layer's `amend` may meet any of them.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from policysched.lang.check.clauses import merged, slot
from policysched.lang.check.scope import Scope, declared_at, did_you_mean
from policysched.lang.syntax import tree as s
from policysched.text import Span

Kind = Literal["filter", "score"]
Written = s.Filter | s.Score

_SCORE_SLOTS = frozenset({"weight", "value", "normalize"})
_FILTER_SLOTS = frozenset({"require", "scaleup", "text"})


def kind_of(node: Written) -> Kind:
    return "filter" if isinstance(node, s.Filter) else "score"


@dataclass(slots=True)
class Table:
    """Rules by kind and name, in the order in which each first stood. `broken` are names of rules that did not parse."""

    scope: Scope
    rules: dict[tuple[Kind, str], Written] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()

    def add(self, node: Written) -> bool:
        """A new rule; a finding where its name is taken."""
        key = (kind_of(node), node.name.text)
        taken = self.rules.get(key)
        if taken is not None:
            self.scope.report(
                "PS213",
                f"there is a {key[0]} `{key[1]}` already",
                node.name.span,
                label="second rule of this name",
                help=f"write `amend {key[1]} ...` or `replace {key[0]} {key[1]} ...` to change it",
                related=(declared_at(taken.name.span),),
            )
            return False
        self.rules[key] = node
        return True

    def replace(self, node: Written) -> bool:
        key = (kind_of(node), node.name.text)
        below = self.found(key[1], node.name.span, (key[0],))
        if not below or not self.unlocked(below[0], node.name.span):
            return False
        self.rules[key] = node
        return True

    def amend(self, node: s.Amend) -> Written | None:
        """The merged rule, or None after a finding."""
        below = self.found(node.name.text, node.name.span, self.amended_kinds(node))
        if not below:
            return None
        if len(below) > 1:
            self.scope.report(
                "PS231",
                f"`{node.name.text}` is a filter and a score, and this could mean either",
                node.name.span,
                help=f"restate the one that is meant: `replace filter {node.name.text} ...`",
            )
            return None
        if not self.unlocked(below[0], node.name.span):
            return None
        amended = amended_rule(below[0], node)
        self.rules[kind_of(amended), node.name.text] = amended
        return amended

    def amended_kinds(self, node: s.Amend) -> tuple[Kind, ...]:
        slots = {slot(clause) for clause in node.clauses}
        if slots & _SCORE_SLOTS or node.params:
            return ("score",)
        return ("filter",) if slots & _FILTER_SLOTS else ("filter", "score")

    def reweight(self, node: s.Reweight) -> Written | None:
        below = self.found(node.name.text, node.name.span, ("score",))
        if not below or not self.unlocked(below[0], node.name.span):
            return None
        clause = s.WeightClause(node.weight, node.span)
        changed = replace(below[0], clauses=merged(below[0].clauses, (clause,)))
        self.rules["score", node.name.text] = changed
        return changed

    def drop(self, node: s.Drop) -> tuple[Kind, ...]:
        """Every rule of the name goes, or the one of the kind that is named; the kinds that went."""
        wanted: tuple[Kind, ...] = ("filter", "score")
        if node.kind is not None:
            wanted = ("filter",) if node.kind.text == "filter" else ("score",)
        below = self.found(node.name.text, node.name.span, wanted)
        if not all(self.unlocked(one, node.name.span) for one in below):
            return ()
        kinds = tuple(kind_of(one) for one in below)
        for kind in kinds:
            del self.rules[kind, node.name.text]
        return kinds

    def found(self, name: str, span: Span, kinds: tuple[Kind, ...]) -> list[Written]:
        """The rules of that name and of one of the kinds, a finding where there is none."""
        found = [self.rules[kind, name] for kind in kinds if (kind, name) in self.rules]
        if not found and name not in self.broken:
            what = kinds[0] if len(kinds) == 1 else "rule"
            self.scope.report(
                "PS229",
                f"there is no {what} `{name}` above",
                span,
                label="nothing to change",
                help=did_you_mean(name, [of for kind, of in self.rules if kind in kinds]),
            )
        return found

    def unlocked(self, node: Written, span: Span) -> bool:
        if node.locked:
            self.scope.report(
                "PS230",
                f"the {kind_of(node)} `{node.name.text}` is locked",
                span,
                label="cannot be changed",
                related=(declared_at(node.name.span),),
            )
        return not node.locked


def amended_rule(below: Written, node: s.Amend) -> Written:
    """`below` with the amended clauses; parameters, where given, replace those of the same name."""
    params = below.params
    if node.params is not None:
        given = {param.name.text for param in node.params}
        kept = tuple(param for param in below.params or () if param.name.text not in given)
        params = (*kept, *node.params)
    return replace(below, clauses=merged(below.clauses, node.clauses), params=params)
