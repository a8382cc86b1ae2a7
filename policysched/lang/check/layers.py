"""`layer NAME when E { ... }`: the changes that it makes, each checked against the forms that its rule can have by then."""

from dataclasses import dataclass, field

from policysched.lang.check.clauses import slot
from policysched.lang.check.expressions import read_condition
from policysched.lang.check.flow import Known, implied, no_holes
from policysched.lang.check.rules import rule, weight_of
from policysched.lang.check.scope import LAYER, Scope, declared_at
from policysched.lang.check.table import Kind, Table, Written, amended_rule, kind_of
from policysched.lang.ir import program as p
from policysched.lang.ir.constant_folding import fold, is_constant
from policysched.lang.syntax import tree as s

_FIELDS: dict[str, tuple[str, ...]] = {
    "when": ("when",),
    "require": ("rejects", "condition", "missing"),
    "missing": ("missing",),
    "scaleup": ("scaleup",),
    "text": ("template",),
    "weight": ("weight",),
    "value": ("direction", "value", "normalize", "missing"),
    "normalize": ("normalize",),
}
"""Which fields of a rule a clause decides. What a condition does while a metric is missing is part of it."""


_FORMS_CHECKED_MAX = 8
"""How many of the layers above are considered for an `amend`: with hundreds the time would grow with their square."""


@dataclass(slots=True)
class Layers:
    """Checks one layer after the other. `table` is what the rules are where all layers so far apply, `forms` every
    form of a rule that the text gives it."""

    scope: Scope
    table: Table
    forms: dict[tuple[Kind, str], list[Written]]
    names: dict[str, s.Name] = field(default_factory=dict)

    def check(self, node: s.Layer) -> p.Layer | None:
        errors = self.scope.error_count()
        taken = self.names.setdefault(node.name.text, node.name)
        if taken is not node.name:
            self.scope.report(
                "PS213",
                f"there is a layer `{node.name.text}` already",
                node.name.span,
                label="second layer of this name",
                related=(declared_at(taken.span),),
            )
        condition = read_condition(self.scope, node.condition, LAYER)
        known: Known = frozenset()
        if condition is not None:
            no_holes(self.scope, condition)
            known = implied(condition, True)
            condition = fold(condition)
            self.lint(node, condition)
        changes = [change for statement in node.body for change in self.changes(statement, known)]
        if condition is None or self.scope.error_count() > errors:
            return None
        return p.Layer(node.name.text, condition, tuple(changes), node.name.span)

    def lint(self, node: s.Layer, condition: object) -> None:
        if self.scope.set_elsewhere(node.condition.span):
            return
        if is_constant(condition, True):  # type: ignore[arg-type]
            self.scope.report(
                "PS301",
                "this layer applies to every pod",
                node.condition.span,
                help="write its rules outside",
            )
        elif is_constant(condition, False):  # type: ignore[arg-type]
            self.scope.report("PS302", "this layer applies to no pod", node.condition.span)

    def changes(self, node: s.Statement, known: Known) -> list[p.LayerChange]:
        match node:
            case s.Filter() | s.Score():
                return self.set_rule(node, known) if self.table.add(node) else []
            case s.Replace(rule=written):
                return self.set_rule(written, known) if self.table.replace(written) else []
            case s.Reweight():
                changed = self.table.reweight(node)
                return (
                    []
                    if changed is None
                    else [p.SetWeight(node.name.text, weight_of(self.scope, node.weight))]
                )
            case s.Drop():
                return [p.DropRule(node.name.text, kind) for kind in self.table.drop(node)]
            case s.Amend():
                return self.amend(node, known)
            case _:
                raise AssertionError(f"{node} cannot stand in a layer")

    def set_rule(self, node: Written, known: Known) -> list[p.LayerChange]:
        self.forms.setdefault((kind_of(node), node.name.text), []).append(node)
        checked = rule(self.scope, node, known)
        return [] if checked is None else [p.SetRule(checked)]

    def amend(self, node: s.Amend, known: Known) -> list[p.LayerChange]:
        """The new values of the fields that the clauses decide, taken from the newest form of the rule."""
        newest = self.table.amend(node)
        if newest is None:
            return []
        kind = kind_of(newest)
        forms = self.forms.setdefault((kind, node.name.text), [])
        for form in (*forms[:1], *forms[1:][-_FORMS_CHECKED_MAX:]):
            rule(self.scope, amended_rule(form, node), known)
        checked = rule(self.scope, newest, known)
        forms.append(newest)
        if checked is None:
            return []
        fields = [name for clause in node.clauses for name in _FIELDS[slot(clause)]]
        if node.params is not None:
            fields.append("params")
        changes = tuple(
            (name, getattr(checked, name)) for name in dict.fromkeys(fields) if hasattr(checked, name)
        )
        return [p.AmendRule(node.name.text, kind, changes)]
