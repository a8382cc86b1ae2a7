"""Carries out `Consult`: the extenders of a pod one after the other, as kube-scheduler asks them, off the decision loop.

    GET the pod ──► filter of the first ──survivors──► filter of the next ... ──survivors──► prioritize of all at once

Those that may be left out (`ignorable`) are asked last. Where one that must not be left out gives no answer, that is the
answer. Scores are not asked for a single node that is left, and an extender that gives none scores nobody.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policysched.cluster.objects import NodeName
from policysched.kube.api import Api, ApiProblem
from policysched.kube.extender_client import ExtenderClient, NoExtenderAnswer, Peer
from policysched.kube.resources import NODES, Resource
from policysched.lang.answers import ExtenderAnswer, ExtenderRefusal
from policysched.schedule.commands import Consult
from policysched.schedule.events import Consulted, NodeGone, NodeSeen
from policysched.schedule.extenders import ExtenderTerms

log = logging.getLogger(__name__)

Json = Mapping[str, Any]


@dataclass(slots=True)
class NodeShelf:
    """The nodes' JSON as the watch last showed it, for extenders that want whole nodes."""

    nodes: dict[str, Json] = field(default_factory=dict)

    def beside(self, resource: Resource[NodeSeen | NodeGone]) -> Resource[NodeSeen | NodeGone]:
        """The same resource, kept here too."""

        def seen(obj: Json) -> NodeSeen | NodeGone:
            event = resource.seen(obj)
            self.nodes[str(obj["metadata"]["name"])] = obj
            return event

        def gone(key: str) -> NodeSeen | NodeGone:
            self.nodes.pop(key, None)
            return resource.gone(key)

        return replace(resource, seen=seen, gone=gone)


@dataclass(slots=True)
class _Talk:
    """How far asking about one pod has come."""

    pod: Json
    left: tuple[str, ...]
    refused: dict[str, dict[str, ExtenderRefusal]] = field(default_factory=dict)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)


def terms_of(peers: Mapping[str, Peer]) -> dict[str, ExtenderTerms]:
    """What the core is to know of them."""
    return {
        name: ExtenderTerms(
            filters=one.filter is not None,
            scores=one.prioritize is not None,
            resources=one.resources,
            at_once=one.at_once,
        )
        for name, one in peers.items()
    }


class Consultant:
    """`put` never waits; `deliver` gets exactly one answer for each. `calls` counts by (extender, verb, outcome):
    `answered` or `failed`."""

    def __init__(
        self,
        clients: Mapping[str, ExtenderClient],
        api: Api,
        deliver: Callable[[Consulted], None],
    ) -> None:
        self._clients = clients
        self._api = api
        self._deliver = deliver
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self._waiting: asyncio.Queue[Consult] = asyncio.Queue()
        whole = any(one.peer.whole_nodes for one in clients.values())
        self._shelf = NodeShelf() if whole else None

    @property
    def nodes(self) -> Resource[NodeSeen | NodeGone]:
        """What the mirror is to follow, so that whole nodes are at hand where somebody wants them."""
        return NODES if self._shelf is None else self._shelf.beside(NODES)

    def put(self, command: Consult) -> None:
        self._waiting.put_nowait(command)

    async def run(self) -> None:
        """Until cancelled. The core does not ask more at once than the settings allow."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._answer(await self._waiting.get()))

    async def _answer(self, command: Consult) -> None:
        try:
            answers = await self._ask(command)
        except NoExtenderAnswer as error:
            self._deliver(Consulted(command.number, {}, str(error)))
        except ApiProblem as error:
            words = f"the pod cannot be read for its extenders: {error}"
            self._deliver(Consulted(command.number, {}, words))
        else:
            self._deliver(Consulted(command.number, answers))

    async def _ask(self, command: Consult) -> dict[str, ExtenderAnswer]:
        path = f"/api/v1/namespaces/{command.namespace}/pods/{command.name}"
        pod = {"apiVersion": "v1", "kind": "Pod", **await self._api.get(path)}
        talk = _Talk(pod, command.nodes)
        names = [name for name, _ in command.extenders]
        for name in sorted(names, key=lambda one: self._clients[one].peer.ignorable):
            if talk.left:
                await self._filter(self._clients[name], talk)
        scoring = [self._clients[name] for name, wanted in command.extenders if wanted]
        if len(talk.left) > 1:
            await asyncio.gather(*(self._score(client, talk) for client in scoring))
        return {name: ExtenderAnswer(talk.refused.get(name, {}), talk.scores.get(name, {})) for name in names}

    async def _filter(self, client: ExtenderClient, talk: _Talk) -> None:
        peer = client.peer
        if peer.filter is None:
            return
        try:
            found = await client.filter(talk.pod, talk.left, self._whole())
        except NoExtenderAnswer as error:
            self.calls[peer.name, "filter", "failed"] += 1
            if not peer.ignorable:
                raise
            log.warning("an extender was left out", extra={"extender": peer.name, "why": str(error)})
            return
        self.calls[peer.name, "filter", "answered"] += 1
        talk.refused[peer.name] = dict(found.refused)
        talk.left = tuple(NodeName(node) for node in found.passed)

    async def _score(self, client: ExtenderClient, talk: _Talk) -> None:
        name = client.peer.name
        try:
            talk.scores[name] = await client.prioritize(talk.pod, talk.left, self._whole())
        except NoExtenderAnswer as error:
            self.calls[name, "prioritize", "failed"] += 1
            log.warning("an extender gave no scores", extra={"extender": name, "why": str(error)})
        else:
            self.calls[name, "prioritize", "answered"] += 1

    def _whole(self) -> Mapping[str, Json]:
        return {} if self._shelf is None else self._shelf.nodes
