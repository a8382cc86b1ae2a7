"""The values of policies' states stand beside the last known good texts in one ConfigMap; neither is lost when the other is written."""

import asyncio
from random import Random
from typing import Any

from policysched.app.policy_feed import LastGood
from policysched.app.settings import Place
from policysched.kube.connectivity import Connectivity

PATH = "/api/v1/namespaces/ns/configmaps/kept"


class _Api:
    """One ConfigMap. `written` has what each write left there."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data = data
        self.written: list[dict[str, str]] = []

    async def get(self, path: str) -> dict[str, Any]:
        assert path == PATH, path
        metadata = {"name": "kept", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
        return {"metadata": metadata, "data": self.data}

    async def patch(self, path: str, change: list[dict[str, Any]], kind: str) -> None:
        assert (path, change[0]["path"]) == (PATH, "/data"), (path, change, kind)
        self.data = change[0]["value"]
        self.written.append(self.data)


def kept(api: _Api) -> LastGood:
    place = Place("ns", "kept")
    return LastGood(api, place, random=Random(1), connectivity=Connectivity(lambda: 0.0))  # type: ignore[arg-type]


async def _written(last_good: LastGood) -> None:
    running = asyncio.create_task(last_good.run())
    for _ in range(50):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_values_are_written_beside_the_texts_that_were_found_and_the_other_way_round() -> None:
    api = _Api({"a.policy": "policy a version 1", "a.state.json": "old"})
    last_good = kept(api)

    async def deed() -> tuple[dict[str, str], dict[str, str]]:
        texts = dict(await last_good.read())
        found = dict(last_good.states)
        last_good.keep_states({"a": "new"})
        await _written(last_good)
        last_good.keep({"b": "policy b version 1"})
        await _written(last_good)
        return texts, found

    texts, found = asyncio.run(deed())

    assert (texts, found) == ({"a.policy": "policy a version 1"}, {"a": "old"})
    assert api.written == [
        {"a.policy": "policy a version 1", "a.state.json": "new"},
        {"b.policy": "policy b version 1", "a.state.json": "new"},
    ]
