"""Extenders that answer what a test says, and what their answers do to the explanation of a pod.

They are asked as real ones are (`daemon.consultation`): who refuses what, who may be left out, and when scores are asked for is not
decided here.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policysched.daemon.consultation import consult
from policysched.kube.extender.client import Filtered, NoExtenderAnswer, Peer
from policysched.lang.ir.extender_answers import Answers, ExtenderRefusal, refusal, with_scores
from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import Explanation, Judgement, ScoreCell
from policysched.scheduler.commands import Consult
from policysched.scheduler.events import Consulted


@dataclass(frozen=True, slots=True)
class Canned:
    """`refuses` gives words by node, `scores` whole numbers from 0 to 10; `error` is why it does not answer. What is None
    it is not asked for."""

    peer: Peer
    refuses: Mapping[str, str]
    scores: Mapping[str, int]
    error: str | None

    async def filter(
        self, _pod: Mapping[str, Any], nodes: Sequence[str], _whole: Mapping[str, Mapping[str, Any]]
    ) -> Filtered:
        self._may_fail()
        refused = {
            node: ExtenderRefusal(self.refuses[node], resolvable=True)
            for node in nodes
            if node in self.refuses
        }
        return Filtered(tuple(node for node in nodes if node not in refused), refused)

    async def prioritize(
        self, _pod: Mapping[str, Any], nodes: Sequence[str], _whole: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, int]:
        self._may_fail()
        return {node: self.scores[node] for node in nodes if node in self.scores}

    def _may_fail(self) -> None:
        if self.error is not None:
            raise NoExtenderAnswer(f"extender {self.peer.name}: {self.error}")


def consulted(command: Consult, extenders: Mapping[str, Canned]) -> Consulted:
    """What becomes of asking them."""
    asked = [(extenders[name], wanted) for name, wanted in command.extenders]
    try:
        answers = asyncio.run(consult(asked, {}, command.nodes, whole={}, calls=Counter()))
    except NoExtenderAnswer as error:
        return Consulted(command.number, {}, str(error))
    return Consulted(command.number, answers)


def with_answers(
    rules: Explanation, among: Explanation, extenders: Sequence[Extender], answers: Answers
) -> Explanation:
    """`rules` is what the rules say of all nodes, `among` what they say among those that no extender refuses."""
    refused = {
        node: found for node in rules.feasible if (found := refusal(node, extenders, answers)) is not None
    }
    totals = with_scores(Judgement(None, among.totals, {}, 0), extenders, answers)
    scores = dict(among.scores)
    for one in extenders:
        if one.weight is not None and one.name in answers:
            nothing = Judgement(None, dict.fromkeys(among.totals, 0), {}, 0)
            alone = with_scores(nothing, [replace(one, weight=1)], answers)
            raw = answers[one.name].scores
            scores[one.name] = {
                node: ScoreCell(raw.get(node), score, one.weight, one.weight * score)
                for node, score in alone.items()
            }
    return replace(
        rules,
        feasible=among.feasible,
        rejected={**rules.rejected, **{node: (found,) for node, found in refused.items()}},
        scores=scores,
        totals=totals,
    )
