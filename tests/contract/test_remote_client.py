"""What the kubelets and controllers of `sandbox --real` are told of objects that change between two looks."""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any, cast

from policysched.kube.client.api import ApiClient
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.real.remote_client import RemoteClient


def never_started(watch: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    watch.close()
    return cast("asyncio.Task[None]", None)


def pod(uid: str, version: int) -> dict[str, Any]:
    metadata = {"namespace": "default", "name": "web", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}}


def test_an_object_that_was_deleted_and_created_again_between_two_looks_is_another_one() -> None:
    api = cast("ApiClient", None)
    client = RemoteClient("localhost:1", ssl.create_default_context(), "", api, never_started)
    changes: list[StoreChange] = []
    client.listen("pods", changes.append)
    pods = client.kind("pods")

    client._on_event(pods, pod("a", 1))
    client._on_event(pods, pod("a", 2))
    client._on_event(pods, pod("b", 5))
    client._on_event(pods, "a")  # the deletion, which a list may tell after the creation

    assert [(change.type, change.entry.obj["metadata"]["uid"]) for change in changes] == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "b"),
    ]
    known = client.get("pods", "default", "web")
    assert known is not None and known["metadata"]["uid"] == "b"
