"""Stub extenders with responses from a test, and the effect of these on the explanation of a pod.

They are called through the same chain as real ones (`daemon.extender_chain`).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policysched.daemon.extender_chain import call_extenders
from policysched.kube.extender.client import ExtenderCallFailed, ExtenderEndpoint, ExtenderFilterResult
from policysched.lang.ir.extender_results import (
    ExtenderRejection,
    ExtenderResults,
    add_extender_scores,
    extender_rejection,
)
from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import NodeRuleScore, NodeSubsetVerdict, PlacementExplanation
from policysched.scheduler.commands import CallExtenders
from policysched.scheduler.events import ExtendersAnswered


@dataclass(frozen=True, slots=True)
class StubExtender:
    """`failed_nodes` has the reason by node, `scores` integers from 0 to 10; with `error` every call fails."""

    endpoint: ExtenderEndpoint
    failed_nodes: Mapping[str, str]
    scores: Mapping[str, int]
    error: str | None

    async def filter(
        self, _pod: Mapping[str, Any], nodes: Sequence[str], _whole: Mapping[str, Mapping[str, Any]]
    ) -> ExtenderFilterResult:
        self._raise_if_failing()
        rejected = {
            node: ExtenderRejection(self.failed_nodes[node], resolvable=True)
            for node in nodes
            if node in self.failed_nodes
        }
        return ExtenderFilterResult(tuple(node for node in nodes if node not in rejected), rejected)

    async def prioritize(
        self, _pod: Mapping[str, Any], nodes: Sequence[str], _whole: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, int]:
        self._raise_if_failing()
        return {node: self.scores[node] for node in nodes if node in self.scores}

    def _raise_if_failing(self) -> None:
        if self.error is not None:
            raise ExtenderCallFailed(f"extender {self.endpoint.name}: {self.error}")


def call_stub_extenders(command: CallExtenders, extenders: Mapping[str, StubExtender]) -> ExtendersAnswered:
    """Calls them and returns the event for the scheduler."""
    called = [(extenders[name], wanted) for name, wanted in command.extenders]
    try:
        answers = asyncio.run(call_extenders(called, {}, command.nodes, node_objects={}, calls=Counter()))
    except ExtenderCallFailed as error:
        return ExtendersAnswered(command.call_id, {}, str(error))
    return ExtendersAnswered(command.call_id, answers)


def apply_extender_answers(
    rules: PlacementExplanation,
    among: PlacementExplanation,
    extenders: Sequence[Extender],
    answers: ExtenderResults,
) -> PlacementExplanation:
    """`rules` explains all nodes, `among` only those that no extender rejects."""
    rejected = {
        node: rejection
        for node in rules.feasible
        if (rejection := extender_rejection(node, extenders, answers)) is not None
    }
    totals = add_extender_scores(NodeSubsetVerdict(None, among.totals, {}, 0), extenders, answers)
    scores = dict(among.scores)
    for extender in extenders:
        if extender.weight is not None and extender.name in answers:
            nothing = NodeSubsetVerdict(None, dict.fromkeys(among.totals, 0), {}, 0)
            single_scores = add_extender_scores(nothing, [replace(extender, weight=1)], answers)
            raw = answers[extender.name].scores
            scores[extender.name] = {
                node: NodeRuleScore(raw.get(node), score, extender.weight, extender.weight * score)
                for node, score in single_scores.items()
            }
    return replace(
        rules,
        feasible=among.feasible,
        rejections={**rules.rejections, **{node: (rejection,) for node, rejection in rejected.items()}},
        scores=scores,
        totals=totals,
    )
