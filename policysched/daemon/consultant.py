"""Carries out `Consult`, off the decision loop: reads the pod as it is now, asks its extenders (`daemon.consultation`), and delivers
what they say."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policysched.daemon.consultation import Calls, consult
from policysched.kube.client.api import Api, ApiProblem
from policysched.kube.extender.client import ExtenderClient, NoExtenderAnswer, Peer
from policysched.kube.watch.resources import NODES, Resource
from policysched.lang.ir.extender_answers import ExtenderAnswer
from policysched.scheduler.commands import Consult
from policysched.scheduler.events import Consulted, NodeGone, NodeSeen
from policysched.scheduler.extenders.terms import ExtenderTerms

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
        self.calls: Calls = Counter()
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
        extenders = [(self._clients[name], wanted) for name, wanted in command.extenders]
        return await consult(extenders, pod, command.nodes, whole=self._whole(), calls=self.calls)

    def _whole(self) -> Mapping[str, Json]:
        return {} if self._shelf is None else self._shelf.nodes
