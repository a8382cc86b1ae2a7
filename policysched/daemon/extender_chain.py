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

from policysched.kube.extender.client import ExtenderCallFailed, ExtenderEndpoint, ExtenderFilterResult
from policysched.lang.ir.extender_results import ExtenderRefusal, ExtenderResult
from policysched.model.identifiers import NodeName

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
ExtenderCallCounts = Counter[tuple[str, str, str]]
"""By (extender, verb, outcome): `answered` or `failed`."""


class CallableExtender(Protocol):
    """Whoever answers. Both raise NoExtenderAnswer."""

    @property
    def endpoint(self) -> ExtenderEndpoint: ...

    async def filter(
        self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]
    ) -> ExtenderFilterResult: ...

    async def prioritize(
        self, pod: Json, nodes: Sequence[str], whole: Mapping[str, Json]
    ) -> dict[str, int]: ...


async def call_extenders(
    extenders: Sequence[tuple[CallableExtender, bool]],
    pod: Json,
    nodes: Sequence[NodeName],
    *,
    whole: Mapping[str, Json],
    calls: ExtenderCallCounts,
) -> dict[str, ExtenderResult]:
    """With each extender whether its scores are wanted. `node_objects` are nodes as JSON, for those that want them.
    Raises NoExtenderAnswer."""
    talk = _ExtenderChain(pod, tuple(nodes), whole, calls)
    for extender, _ in sorted(extenders, key=lambda one: one[0].endpoint.ignorable):
        if talk.remaining_nodes:
            await talk.filter(extender)
    if len(talk.remaining_nodes) > 1:
        await asyncio.gather(*(talk.score(extender) for extender, wanted in extenders if wanted))
    names = [extender.endpoint.name for extender, _ in extenders]
    return {name: ExtenderResult(talk.refusals.get(name, {}), talk.scores.get(name, {})) for name in names}


@dataclass(slots=True)
class _ExtenderChain:
    """How far asking about one pod has come."""

    pod: Json
    remaining_nodes: tuple[str, ...]
    node_objects: Mapping[str, Json]
    calls: ExtenderCallCounts
    refusals: dict[str, dict[str, ExtenderRefusal]] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    async def filter(self, extender: CallableExtender) -> None:
        peer = extender.endpoint
        if peer.filter is None:
            return
        try:
            found = await extender.filter(self.pod, self.remaining_nodes, self.node_objects)
        except ExtenderCallFailed as error:
            self.calls[peer.name, "filter", "failed"] += 1
            if not peer.ignorable:
                raise
            log.warning("an extender was left out", extra={"extender": peer.name, "why": str(error)})
            return
        self.calls[peer.name, "filter", "answered"] += 1
        self.refusals[peer.name] = dict(found.refused)
        self.remaining_nodes = tuple(NodeName(node) for node in found.passed)

    async def score(self, extender: CallableExtender) -> None:
        name = extender.endpoint.name
        try:
            self.scores[name] = await extender.prioritize(self.pod, self.remaining_nodes, self.node_objects)
        except ExtenderCallFailed as error:
            self.calls[name, "prioritize", "failed"] += 1
            log.warning("an extender gave no scores", extra={"extender": name, "why": str(error)})
        else:
            self.calls[name, "prioritize", "answered"] += 1
