"""The reflectors of all kinds together."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import orjson
import pytest

from policysched.daemon.reflectors import ReflectorSet
from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT
from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import ApiRequest, ApiResponse, ApiStream
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.watch.large_objects import RunBeside
from policysched.kube.watch.node_resources import with_node_resources
from policysched.kube.watch.reflector import ReflectorSettings
from policysched.kube.watch.resources import (
    DEVICE_RESOURCES,
    NODES,
    POD_GROUP_RESOURCES,
    PODS,
    pods_within,
)
from policysched.scheduler.events import NodeUpdated, PodUpdated, Synced
from tests.builders import node_manifest, pod_manifest
from tests.hostile import HOSTILE_SPECS
from tests.simulation.virtual_time import run_virtual

EMPTY = orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": []})


def reflector_set(server: Any, post: Any, run_beside: RunBeside | None = None) -> ReflectorSet:
    return ReflectorSet(
        ApiClient(server),
        post,
        random=lambda _name: Random(1),
        connectivity=Connectivity(asyncio.get_running_loop().time),
        settings=ReflectorSettings(),
        run_beside=run_beside,
    )


class Server:
    """Answers lists; a path with one of `missing` is not served, one with `forbidden` is forbidden."""

    def __init__(self, missing: tuple[str, ...], forbidden: str) -> None:
        self.missing, self.forbidden = missing, forbidden

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0.01)
        if self.forbidden in request.path:
            return ApiResponse(403, b"{}")
        return ApiResponse(404, b"{}") if request.path.endswith(self.missing) else ApiResponse(200, EMPTY)

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        @asynccontextmanager
        async def watch() -> AsyncIterator[ApiStream]:
            async def chunks() -> AsyncIterator[bytes]:
                await asyncio.sleep(100.0)
                yield b""

            yield ApiStream(200, {}, chunks())

        return watch()


def test_kinds_that_the_server_does_not_serve_are_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="policysched")
    posted: list[Any] = []
    server = Server(("podgroups", "workloads"), "devicetaintrules")

    async def scenario() -> None:
        reflectors = reflector_set(server, posted.append)
        tasks = [
            asyncio.ensure_future(task)
            for task in reflectors.add_cluster_reflectors((*DEVICE_RESOURCES, *POD_GROUP_RESOURCES)).values()
        ]
        await asyncio.sleep(90.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(scenario())

    lines = [record for record in caplog.records if "optional kinds" in record.getMessage()]
    assert [vars(record)["kinds"] for record in lines] == [
        "DeviceTaintRule (403), PodGroup.scheduling.k8s.io (404), PodGroup.scheduling.volcano.sh (404), "
        "PodGroup.scheduling.x-k8s.io (404), Workload (404)"
    ]
    assert posted.count(Synced()) == 1


class Rewritten(Server):
    """One pod that stays malformed, ten times a second."""

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        @asynccontextmanager
        async def watch() -> AsyncIterator[ApiStream]:
            async def chunks() -> AsyncIterator[bytes]:
                for version in range(2, 1_002):
                    pod = pod_manifest("web", uid="u")
                    pod["metadata"]["resourceVersion"] = str(version)
                    pod["spec"]["tolerations"] = "none"
                    yield orjson.dumps({"type": "MODIFIED", "object": pod}) + b"\n"
                    await asyncio.sleep(0.1)
                await asyncio.sleep(100.0)

            yield ApiStream(200, {}, chunks())

        return watch()


def test_an_object_that_stays_malformed_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Each change is counted."""

    async def scenario() -> dict[str, int]:
        reflectors = reflector_set(Rewritten((), "none"), lambda _: None)
        running = asyncio.ensure_future(reflectors.add_reflector(PODS, lambda _: None, lambda: None))
        await asyncio.sleep(110.0)
        running.cancel()
        return reflectors.malformed

    assert run_virtual(scenario()) == {"Pod": 1_000}
    assert len([record for record in caplog.records if "malformed" in record.getMessage()]) == 2


class WithLargePod(Server):
    """The list of pods has one that names a resource beside thousands of others. Nodes are listed later, and one has the resource."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        if request.path.endswith("/nodes"):
            await asyncio.sleep(5.0)
            return _listed(node_manifest("a", resources={"example.com/z": "1"}))
        requests = HOSTILE_SPECS["resources"](2_500)["containers"][0]["resources"]["requests"]
        resources = {"requests": {**requests, "example.com/z": "7"}}
        spec = {"containers": [{"name": "c", "image": "i", "resources": resources}], "nodeName": "a"}
        return _listed(pod_manifest("large", uid="u", spec=spec))


def _listed(obj: dict[str, Any]) -> ApiResponse:
    obj["metadata"]["resourceVersion"] = "1"
    return ApiResponse(200, orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": [obj]}))


def test_at_a_start_the_resources_of_nodes_are_known_when_large_pods_are_decoded() -> None:
    posted: list[Any] = []

    async def beside(function: Callable[[], Any], /) -> Any:
        return function()

    async def scenario() -> None:
        names = CountedNames()
        resources = (pods_within(DECISION_BUDGET_DEFAULT, names), with_node_resources(NODES, names))
        reflectors = reflector_set(WithLargePod((), "none"), posted.append, beside)
        tasks = [
            asyncio.ensure_future(task) for task in reflectors.add_cluster_reflectors(resources).values()
        ]
        await asyncio.sleep(30.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(scenario())

    assert [type(event) for event in posted] == [NodeUpdated, PodUpdated, Synced]
    assert posted[1].pod.pod.requests["example.com/z"] == 7
