"""Calls the extenders of one pod one after the other, as kube-scheduler does.

    filter of the first ──survivors──► filter of the next ... ──survivors──► prioritize of all at once

Ignorable extenders are called last. If another one fails, the whole call fails. No scores are requested when a single
node remains. An extender that fails to score counts as having scored no node.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from policysched.kube.extender.client import ExtenderCallFailed, ExtenderEndpoint, ExtenderFilterResult
from policysched.lang.ir.extender_results import ExtenderRejection, ExtenderResult
from policysched.model.identifiers import NodeName

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
ExtenderCallCounts = Counter[tuple[str, str, str]]
"""By (extender, verb, outcome): `answered` or `failed`."""


class ExtenderClientProtocol(Protocol):
    """An extender client. Both methods raise ExtenderCallFailed."""

    @property
    def endpoint(self) -> ExtenderEndpoint: ...

    async def filter(
        self, pod: Json, nodes: Sequence[str], node_objects: Mapping[str, Json]
    ) -> ExtenderFilterResult: ...

    async def prioritize(
        self, pod: Json, nodes: Sequence[str], node_objects: Mapping[str, Json]
    ) -> dict[str, int]: ...


async def call_extenders(
    extenders: Sequence[tuple[ExtenderClientProtocol, bool]],
    pod: Json,
    nodes: Sequence[NodeName],
    *,
    node_objects: Mapping[str, Json],
    calls: ExtenderCallCounts,
) -> dict[str, ExtenderResult]:
    """`extenders` are pairs of an extender and whether its scores are needed. `node_objects` are the JSON objects of the nodes,
    for extenders that take them. Raises ExtenderCallFailed."""
    chain = _ExtenderChain(pod, tuple(nodes), node_objects, calls)
    for extender, _ in sorted(extenders, key=lambda pair: pair[0].endpoint.ignorable):
        if chain.remaining_nodes:
            await chain.filter(extender)
    if len(chain.remaining_nodes) > 1:
        await asyncio.gather(*(chain.score(extender) for extender, wanted in extenders if wanted))
    names = [extender.endpoint.name for extender, _ in extenders]
    return {
        name: ExtenderResult(chain.rejections.get(name, {}), chain.scores.get(name, {})) for name in names
    }


@dataclass(slots=True)
class _ExtenderChain:
    """The progress of the calls for one pod."""

    pod: Json
    remaining_nodes: tuple[str, ...]
    node_objects: Mapping[str, Json]
    calls: ExtenderCallCounts
    rejections: dict[str, dict[str, ExtenderRejection]] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    async def filter(self, extender: ExtenderClientProtocol) -> None:
        endpoint = extender.endpoint
        if endpoint.filter is None:
            return
        try:
            result = await extender.filter(self.pod, self.remaining_nodes, self.node_objects)
        except ExtenderCallFailed as error:
            self.calls[endpoint.name, "filter", "failed"] += 1
            if not endpoint.ignorable:
                raise
            log.warning(
                "skipped an ignorable extender that failed",
                extra={"extender": endpoint.name, "error": str(error)},
            )
            return
        self.calls[endpoint.name, "filter", "answered"] += 1
        self.rejections[endpoint.name] = dict(result.rejected)
        self.remaining_nodes = tuple(NodeName(node) for node in result.passed)

    async def score(self, extender: ExtenderClientProtocol) -> None:
        name = extender.endpoint.name
        try:
            self.scores[name] = await extender.prioritize(self.pod, self.remaining_nodes, self.node_objects)
        except ExtenderCallFailed as error:
            self.calls[name, "prioritize", "failed"] += 1
            log.warning("an extender returned no scores", extra={"extender": name, "error": str(error)})
        else:
            self.calls[name, "prioritize", "answered"] += 1
