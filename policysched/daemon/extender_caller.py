"""Carries out `CallExtenders`, off the decision loop: reads the pod as it is now, asks its extenders (`daemon.extender_chain`), and delivers
what they say."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policysched.daemon.extender_chain import ExtenderCallCounts, call_extenders
from policysched.kube.client.api import ApiClient, ApiErrors
from policysched.kube.extender.client import ExtenderCallFailed, ExtenderClient, ExtenderEndpoint
from policysched.kube.watch.resources import NODES, WatchedResource
from policysched.lang.ir.extender_results import ExtenderResult
from policysched.scheduler.commands import CallExtenders
from policysched.scheduler.events import ExtendersAnswered, NodeDeleted, NodeUpdated
from policysched.scheduler.policies.extender_capabilities import ExtenderCapabilities

log = logging.getLogger(__name__)

Json = Mapping[str, Any]


@dataclass(slots=True)
class NodeObjectCache:
    """The nodes' JSON as the watch last showed it, for extenders that want whole nodes."""

    nodes: dict[str, Json] = field(default_factory=dict)

    def wrap_resource(
        self, resource: WatchedResource[NodeUpdated | NodeDeleted]
    ) -> WatchedResource[NodeUpdated | NodeDeleted]:
        """The same resource, kept here too."""

        def seen(obj: Json) -> NodeUpdated | NodeDeleted:
            event = resource.updated_event(obj)
            self.nodes[str(obj["metadata"]["name"])] = obj
            return event

        def gone(key: str) -> NodeUpdated | NodeDeleted:
            self.nodes.pop(key, None)
            return resource.deleted_event(key)

        return replace(resource, updated_event=seen, deleted_event=gone)


def extender_capabilities(peers: Mapping[str, ExtenderEndpoint]) -> dict[str, ExtenderCapabilities]:
    """What the core is to know of them."""
    return {
        name: ExtenderCapabilities(
            filters=one.filter is not None,
            scores=one.prioritize is not None,
            resources=one.resources,
            concurrent_calls_max=one.at_once,
        )
        for name, one in peers.items()
    }


class ExtenderCaller:
    """`submit` never waits; `deliver` gets exactly one answer for each. `calls` counts by (extender, verb, outcome):
    `answered` or `failed`."""

    def __init__(
        self,
        clients: Mapping[str, ExtenderClient],
        api: ApiClient,
        deliver: Callable[[ExtendersAnswered], None],
    ) -> None:
        self._clients = clients
        self._api = api
        self._deliver = deliver
        self.calls: ExtenderCallCounts = Counter()
        self._pending: asyncio.Queue[CallExtenders] = asyncio.Queue()
        whole = any(one.endpoint.whole_nodes for one in clients.values())
        self._node_cache = NodeObjectCache() if whole else None

    @property
    def node_resource(self) -> WatchedResource[NodeUpdated | NodeDeleted]:
        """What the mirror is to follow, so that whole nodes are at hand where somebody wants them."""
        return NODES if self._node_cache is None else self._node_cache.wrap_resource(NODES)

    def submit(self, command: CallExtenders) -> None:
        self._pending.put_nowait(command)

    async def run(self) -> None:
        """Until cancelled. The core does not ask more at once than the settings allow."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._handle(await self._pending.get()))

    async def _handle(self, command: CallExtenders) -> None:
        try:
            answers = await self._call(command)
        except ExtenderCallFailed as error:
            self._deliver(ExtendersAnswered(command.call_id, {}, str(error)))
        except ApiErrors as error:
            words = f"the pod cannot be read for its extenders: {error}"
            self._deliver(ExtendersAnswered(command.call_id, {}, words))
        else:
            self._deliver(ExtendersAnswered(command.call_id, answers))

    async def _call(self, command: CallExtenders) -> dict[str, ExtenderResult]:
        path = f"/api/v1/namespaces/{command.namespace}/pods/{command.name}"
        pod = {"apiVersion": "v1", "kind": "Pod", **await self._api.get(path)}
        extenders = [(self._clients[name], wanted) for name, wanted in command.extenders]
        return await call_extenders(
            extenders, pod, command.nodes, whole=self._node_objects(), calls=self.calls
        )

    def _node_objects(self) -> Mapping[str, Json]:
        return {} if self._node_cache is None else self._node_cache.nodes
