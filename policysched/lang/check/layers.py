"""`layer NAME when E { ... }`: its changes, each checked against the versions its rule can have by then."""

from dataclasses import dataclass, field

from policysched.lang.check.expressions import check_condition
from policysched.lang.check.presence import PresentReads, check_always_present, implied_present
from policysched.lang.check.rule_clauses import clause_slot
from policysched.lang.check.rule_table import RuleKind, RuleNode, RuleTable, amend_rule, rule_kind
from policysched.lang.check.rules import check_rule
from policysched.lang.check.scope import LAYER_CONDITION, Scope, declared_here
from policysched.lang.check.scores import check_weight
from policysched.lang.ir.constant_folding import fold_constants, is_constant
from policysched.lang.ir.layers import AmendRule, DropRule, Layer, LayerChange, SetRule, SetWeight
from policysched.lang.syntax import tree as s

_FIELDS_OF_SLOT: dict[str, tuple[str, ...]] = {
    "when": ("when",),
    "require": ("rejects", "condition", "missing"),
    "missing": ("missing",),
    "scaleup": ("scaleup",),
    "text": ("template",),
    "weight": ("weight",),
    "value": ("direction", "value", "normalize", "missing"),
    "normalize": ("normalize",),
}
"""The fields of a rule that a clause sets. `missing` belongs to the condition or value."""


_RULE_VERSIONS_CHECKED_MAX = 8
"""How many earlier versions an `amend` is checked against; more would make hundreds of layers quadratic."""


@dataclass(slots=True)
class LayerChecker:
    """Checks the layers in order.

    `rule_table` has the rules as they are if all layers so far apply, `rule_versions` every version of a
    rule in the text.
    """

    scope: Scope
    rule_table: RuleTable
    rule_versions: dict[tuple[RuleKind, str], list[RuleNode]]
    layer_names: dict[str, s.Identifier] = field(default_factory=dict)

    def check(self, node: s.LayerDecl) -> Layer | None:
        errors = self.scope.error_count()
        previous = self.layer_names.setdefault(node.name.text, node.name)
        if previous is not node.name:
            self.scope.report(
                "PS213",
                f"duplicate layer `{node.name.text}`",
                node.name.span,
                label="declared again",
                related=(declared_here(previous.span),),
            )
        condition = check_condition(self.scope, node.condition, LAYER_CONDITION)
        present: PresentReads = frozenset()
        if condition is not None:
            check_always_present(self.scope, condition)
            present = implied_present(condition, True)
            condition = fold_constants(condition)
            self.lint_condition(node, condition)
        changes = [change for statement in node.body for change in self.statement_changes(statement, present)]
        if condition is None or self.scope.error_count() > errors:
            return None
        return Layer(node.name.text, condition, tuple(changes), node.name.span)

    def lint_condition(self, node: s.LayerDecl, condition: object) -> None:
        if self.scope.names_parameter(node.condition.span):
            return
        if is_constant(condition, True):  # type: ignore[arg-type]
            self.scope.report(
                "PS301",
                "this layer applies to every pod",
                node.condition.span,
                help="move its rules out of the layer",
            )
        elif is_constant(condition, False):  # type: ignore[arg-type]
            self.scope.report("PS302", "this layer applies to no pod", node.condition.span)

    def statement_changes(self, node: s.Statement, present: PresentReads) -> list[LayerChange]:
        match node:
            case s.FilterDecl() | s.ScoreDecl():
                return self.set_rule(node, present) if self.rule_table.add(node) else []
            case s.ReplaceStatement(rule=written):
                return self.set_rule(written, present) if self.rule_table.replace(written) else []
            case s.ReweightStatement():
                changed = self.rule_table.reweight(node)
                return (
                    []
                    if changed is None
                    else [SetWeight(node.name.text, check_weight(self.scope, node.weight))]
                )
            case s.DropStatement():
                return [DropRule(node.name.text, kind) for kind in self.rule_table.drop(node)]
            case s.AmendStatement():
                return self.amend(node, present)
            case _:
                raise AssertionError(f"unexpected statement in a layer: {node}")

    def set_rule(self, node: RuleNode, present: PresentReads) -> list[LayerChange]:
        self.rule_versions.setdefault((rule_kind(node), node.name.text), []).append(node)
        checked = check_rule(self.scope, node, present)
        return [] if checked is None else [SetRule(checked)]

    def amend(self, node: s.AmendStatement, present: PresentReads) -> list[LayerChange]:
        """The new values of the fields that the clauses set, from the newest version of the rule."""
        newest = self.rule_table.amend(node)
        if newest is None:
            return []
        kind = rule_kind(newest)
        versions = self.rule_versions.setdefault((kind, node.name.text), [])
        for version in (*versions[:1], *versions[1:][-_RULE_VERSIONS_CHECKED_MAX:]):
            check_rule(self.scope, amend_rule(version, node), present)
        checked = check_rule(self.scope, newest, present)
        versions.append(newest)
        if checked is None:
            return []
        fields = [name for clause in node.clauses for name in _FIELDS_OF_SLOT[clause_slot(clause)]]
        if node.params is not None:
            fields.append("params")
        changes = tuple(
            (name, getattr(checked, name)) for name in dict.fromkeys(fields) if hasattr(checked, name)
        )
        return [AmendRule(node.name.text, kind, changes)]
