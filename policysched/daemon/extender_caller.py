"""Executes `CallExtenders` off the decision loop: reads the current pod, calls its extenders (`daemon.extender_chain`)
and delivers their results."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policysched.daemon.extender_chain import ExtenderCallCounts, call_extenders
from policysched.kube.client.api import ApiClient, ApiErrors, NotFound
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
    """The latest JSON of each node from the watch, for extenders that take whole nodes."""

    nodes: dict[str, Json] = field(default_factory=dict)

    def wrap_resource(
        self, resource: WatchedResource[NodeUpdated | NodeDeleted]
    ) -> WatchedResource[NodeUpdated | NodeDeleted]:
        """The same resource, whose objects are also cached here."""

        def updated(obj: Json) -> NodeUpdated | NodeDeleted:
            event = resource.updated_event(obj)
            self.nodes[str(obj["metadata"]["name"])] = obj
            return event

        def deleted(key: str) -> NodeUpdated | NodeDeleted:
            self.nodes.pop(key, None)
            return resource.deleted_event(key)

        return replace(resource, updated_event=updated, deleted_event=deleted)


def extender_capabilities(endpoints: Mapping[str, ExtenderEndpoint]) -> dict[str, ExtenderCapabilities]:
    """The facts about each extender that the scheduler core needs."""
    return {
        name: ExtenderCapabilities(
            filters=endpoint.filter is not None,
            scores=endpoint.prioritize is not None,
            resources=endpoint.resources,
            concurrent_calls_max=endpoint.concurrent_calls_max,
        )
        for name, endpoint in endpoints.items()
    }


class ExtenderCaller:
    """`submit` never blocks; `deliver` gets exactly one event for each command. `calls` counts by (extender, verb,
    outcome); the outcome is `answered` or `failed`."""

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
        needs_nodes = any(client.endpoint.send_node_objects for client in clients.values())
        self._node_cache = NodeObjectCache() if needs_nodes else None

    @property
    def node_resource(self) -> WatchedResource[NodeUpdated | NodeDeleted]:
        """The resource for the node reflector. It fills the cache of whole nodes if an extender takes them."""
        return NODES if self._node_cache is None else self._node_cache.wrap_resource(NODES)

    def submit(self, command: CallExtenders) -> None:
        self._pending.put_nowait(command)

    async def run(self) -> None:
        """Runs until cancelled. The core limits the calls in flight to what the settings allow."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._handle(await self._pending.get()))

    async def _handle(self, command: CallExtenders) -> None:
        try:
            answers = await self._call(command)
        except ExtenderCallFailed as error:
            self._deliver(ExtendersAnswered(command.call_id, {}, str(error)))
        except ApiErrors as error:
            message = f"cannot read the pod for its extenders: {error}"
            self._deliver(ExtendersAnswered(command.call_id, {}, message))
        else:
            self._deliver(ExtendersAnswered(command.call_id, answers))

    async def _call(self, command: CallExtenders) -> dict[str, ExtenderResult]:
        path = f"/api/v1/namespaces/{command.namespace}/pods/{command.name}"
        pod = {"apiVersion": "v1", "kind": "Pod", **await self._api.get(path)}
        if pod["metadata"]["uid"] != command.uid:
            raise NotFound(404, "NotFound", "it was deleted, and another pod has its name")
        extenders = [(self._clients[name], wanted) for name, wanted in command.extenders]
        return await call_extenders(
            extenders, pod, command.nodes, node_objects=self._node_objects(), calls=self.calls
        )

    def _node_objects(self) -> Mapping[str, Json]:
        return {} if self._node_cache is None else self._node_cache.nodes
