"""Counts of what shadow rules would have changed, by policy and rule."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from policysched.lang.ir.verdict import ShadowEffect
from policysched.model.identifiers import NodeName

ShadowChange = Literal["unchanged", "moved", "pending", "error"]


@dataclass(slots=True)
class ShadowCounters:
    """Of placed pods to which the rule applies.

    decisions: by (policy, rule, kind, change). rejected_nodes: candidates that a filter would have rejected, and
    rejected_pods the pods for which it would have rejected any, by (policy, rule). errors: the newest message by (policy, rule).
    """

    decisions: dict[tuple[str, str, str, ShadowChange], int] = field(default_factory=dict)
    rejected_nodes: dict[tuple[str, str], int] = field(default_factory=dict)
    rejected_pods: dict[tuple[str, str], int] = field(default_factory=dict)
    errors: dict[tuple[str, str], str] = field(default_factory=dict)

    def count(self, policy: str, node: NodeName, effects: Iterable[ShadowEffect]) -> list[str]:
        """Count the effects on a decision for `node`; return a message for each rule that fails for the first time."""
        messages = []
        for effect in effects:
            rule = policy, effect.rule
            key = (*rule, effect.kind, effect.change(node))
            self.decisions[key] = self.decisions.get(key, 0) + 1
            if effect.error and rule not in self.errors:
                messages.append(
                    f"shadow {effect.kind} {effect.rule} of policy `{policy}` failed, which changes no decision: {effect.error}"
                )
            if effect.error:
                self.errors[rule] = effect.error
            if effect.kind == "filter" and not effect.error:
                self.rejected_nodes[rule] = self.rejected_nodes.get(rule, 0) + effect.rejected_count
                self.rejected_pods[rule] = self.rejected_pods.get(rule, 0) + (effect.rejected_count > 0)
        return messages
