"""The values of policies' states stand beside the last known good texts in one ConfigMap; neither is lost when the other is written."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from policysched.config.settings import NamespacedName
from policysched.daemon.last_good_store import LastGoodStore
from policysched.kube.client.api import Conflict
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import TransportError
from tests.simulation.virtual_time import run_virtual

PATH = "/api/v1/namespaces/ns/configmaps/kept"


class _Api:
    """One ConfigMap. `written` has what each write left there; the answers to as many writes as `lose` says are lost, and these
    writes wait in `late`."""

    def __init__(self, data: dict[str, str], *, lose: int = 0) -> None:
        self.data = data
        self.version = 1
        self.written: list[dict[str, str]] = []
        self.late: list[list[dict[str, Any]]] = []
        self._lose = lose

    async def get(self, path: str) -> dict[str, Any]:
        assert path == PATH, path
        return self._object()

    async def patch(self, path: str, change: list[dict[str, Any]], kind: str) -> dict[str, Any]:
        assert path == PATH, (path, kind)
        if self._lose:
            self._lose -= 1
            self.late.append(change)
            raise TransportError("no answer")
        return self.arrive(change)

    def arrive(self, change: list[dict[str, Any]]) -> dict[str, Any]:
        """As the API server does: a version that is not the present one is a conflict."""
        given = {operation["path"]: operation["value"] for operation in change}
        if given.get("/metadata/resourceVersion", str(self.version)) != str(self.version):
            raise Conflict(409, "Conflict", "the object has been modified")
        self.version += 1
        self.data = given["/data"]
        self.written.append(self.data)
        return self._object()

    def _object(self) -> dict[str, Any]:
        metadata = {"name": "kept", "namespace": "ns", "uid": "u", "resourceVersion": str(self.version)}
        return {"metadata": metadata, "data": self.data}


def kept(api: _Api) -> LastGoodStore:
    place = NamespacedName("ns", "kept")
    return LastGoodStore(
        api,  # type: ignore[arg-type]
        place,
        random=Random(1),
        connectivity=Connectivity(lambda: 0.0),
        report=lambda _: None,
        run_beside=None,
    )


async def _written(last_good: LastGoodStore) -> None:
    running = asyncio.create_task(last_good.run())
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_states_and_texts_are_saved_without_overwriting_each_other() -> None:
    api = _Api({"a.policy": "policy a version 1", "a.state.json": "old"})
    last_good = kept(api)

    async def action() -> tuple[dict[str, str], dict[str, str]]:
        texts = dict(await last_good.read())
        states = dict(last_good.states)
        last_good.save_states({"a": "new"})
        await _written(last_good)
        last_good.save_policies({"b": "policy b version 1"})
        await _written(last_good)
        return texts, states

    texts, states = asyncio.run(action())

    assert (texts, states) == ({"a.policy": "policy a version 1"}, {"a": "old"})
    assert api.written == [
        {"a.policy": "policy a version 1", "a.state.json": "new"},
        {"b.policy": "policy b version 1", "a.state.json": "new"},
    ]


async def _written_at_last(last_good: LastGoodStore) -> None:
    running = asyncio.create_task(last_good.run())
    async with asyncio.timeout(60.0):
        while last_good.has_pending_write:
            await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_write_that_was_given_up_and_arrives_late_changes_nothing() -> None:
    api = _Api({}, lose=1)
    last_good = kept(api)

    async def action() -> None:
        await last_good.read()
        last_good.save_policies({"a": "policy a version 1"})
        await _written_at_last(last_good)
        last_good.save_states({"a": "learnt"})
        await _written_at_last(last_good)
        (late,) = api.late
        with suppress(Conflict):
            api.arrive(late)

    run_virtual(action())

    assert api.data == {"a.policy": "policy a version 1", "a.state.json": "learnt"}


def test_values_that_another_writer_saved_meanwhile_are_replaced() -> None:
    api = _Api({"a.policy": "policy a version 1"})
    last_good = kept(api)

    async def action() -> None:
        await last_good.read()
        api.arrive([{"op": "add", "path": "/data", "value": {"a.policy": "of another"}}])
        last_good.save_policies({"a": "policy a version 2"})
        await _written_at_last(last_good)

    run_virtual(action())

    assert api.data == {"a.policy": "policy a version 2"}
