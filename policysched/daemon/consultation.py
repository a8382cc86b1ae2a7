"""One pod, and what its extenders say of it: they are asked one after the other, as kube-scheduler asks them.

    filter of the first ──survivors──► filter of the next ... ──survivors──► prioritize of all at once

Those that may be left out (`ignorable`) are asked last. Where one that must not be left out gives no answer, that is the
answer. Scores are not asked for a single node that is left, and an extender that gives none scores nobody.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from policysched.kube.extender.client import Filtered, NoExtenderAnswer, Peer
from policysched.lang.ir.extender_answers import ExtenderAnswer, ExtenderRefusal
from policysched.model.objects import NodeName

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
Calls = Counter[tuple[str, str, str]]
"""By (extender, verb, outcome): `answered` or `failed`."""


class Extender(Protocol):
    """Whoever answers. Both raise NoExtenderAnswer."""

    @property
    def peer(self) -> Peer: ...

    async def filter(self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]) -> Filtered: ...

    async def prioritize(
        self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]
    ) -> dict[str, int]: ...


async def consult(
    extenders: Sequence[tuple[Extender, bool]],
    pod: Json,
    nodes: Sequence[NodeName],
    *,
    whole: Mapping[str, Json],
    calls: Calls,
) -> dict[str, ExtenderAnswer]:
    """With each extender whether its scores are wanted. `whole` are nodes as JSON, for those that want them.
    Raises NoExtenderAnswer."""
    talk = _Talk(pod, tuple(nodes), whole, calls)
    for extender, _ in sorted(extenders, key=lambda one: one[0].peer.ignorable):
        if talk.left:
            await talk.filter(extender)
    if len(talk.left) > 1:
        await asyncio.gather(*(talk.score(extender) for extender, wanted in extenders if wanted))
    names = [extender.peer.name for extender, _ in extenders]
    return {name: ExtenderAnswer(talk.refused.get(name, {}), talk.scores.get(name, {})) for name in names}


@dataclass(slots=True)
class _Talk:
    """How far asking about one pod has come."""

    pod: Json
    left: tuple[str, ...]
    whole: Mapping[str, Json]
    calls: Calls
    refused: dict[str, dict[str, ExtenderRefusal]] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    async def filter(self, extender: Extender) -> None:
        peer = extender.peer
        if peer.filter is None:
            return
        try:
            found = await extender.filter(self.pod, self.left, self.whole)
        except NoExtenderAnswer as error:
            self.calls[peer.name, "filter", "failed"] += 1
            if not peer.ignorable:
                raise
            log.warning("an extender was left out", extra={"extender": peer.name, "why": str(error)})
            return
        self.calls[peer.name, "filter", "answered"] += 1
        self.refused[peer.name] = dict(found.refused)
        self.left = tuple(NodeName(node) for node in found.passed)

    async def score(self, extender: Extender) -> None:
        name = extender.peer.name
        try:
            self.scores[name] = await extender.prioritize(self.pod, self.left, self.whole)
        except NoExtenderAnswer as error:
            self.calls[name, "prioritize", "failed"] += 1
            log.warning("an extender gave no scores", extra={"extender": name, "why": str(error)})
        else:
            self.calls[name, "prioritize", "answered"] += 1
