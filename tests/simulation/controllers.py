"""The controllers of volumes and of claims for devices by themselves, each a moment late: what they do comes between a
scheduler's decision and its bind."""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from policysched.sandbox.apiserver.errors import Refusal
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import Change
from policysched.sandbox.claim_controller import DEVICE_CLAIMS, ClaimController
from policysched.sandbox.local import Local
from policysched.sandbox.volume_controller import CLAIMS, VOLUMES, VolumeController, released_volume

Json = dict[str, Any]


class Hands:
    """From when it is made, inside a loop, until `stop`. `late_s` is the longest that a controller takes to look."""

    def __init__(self, server: ApiServer, dice: Random, *, late_s: float = 0.5) -> None:
        self._local = Local(server)
        self._dice = dice
        self._late_s = late_s
        self._volumes, self._devices = VolumeController(self._local), ClaimController(self._local)
        self._handlers: dict[str, Callable[[Json], None]] = {
            **self._volumes.handlers,
            **self._devices.handlers,
            "pods": self._pod,
        }
        self._due: dict[tuple[str, str, str], asyncio.TimerHandle] = {}
        self._deaf: list[Callable[[], None]] = [
            self._local.listen(plural, partial(self._changed, plural)) for plural in self._handlers
        ]

    def stop(self) -> None:
        for deafen in self._deaf:
            deafen()
        for handle in self._due.values():
            handle.cancel()

    def _changed(self, plural: str, change: Change) -> None:
        obj = change.entry.obj
        if change.type != "DELETED":
            self._want(plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        elif plural == CLAIMS and (volume := released_volume(obj)) is not None:
            self._want(VOLUMES, "", volume)
        elif plural == "pods":
            for address in (*self._devices.claims_of(obj), *self._orphans(obj)):
                self._want(*address)

    def _want(self, *address: str) -> None:
        plural, namespace, name = address
        if (plural, namespace, name) not in self._due:
            late_s = self._dice.uniform(0, self._late_s)
            self._due[plural, namespace, name] = asyncio.get_running_loop().call_later(
                late_s, self._look, plural, namespace, name
            )

    def _look(self, plural: str, namespace: str, name: str) -> None:
        del self._due[plural, namespace, name]
        obj = self._local.get(plural, namespace, name)
        if obj is None:
            return
        try:
            self._handlers[plural](obj)
            if plural == DEVICE_CLAIMS:
                self._collect(obj)
        except Refusal as refusal:
            if refusal.code not in (404, 409, 422):  # somebody was faster: the next change brings us back
                raise

    def _pod(self, obj: Json) -> None:
        self._volumes.handlers["pods"](obj)
        self._devices.pod(obj)

    # ── claims go with the pods that they were made for ────────────────────────────────────────────────────────────

    def _orphans(self, pod: Json) -> list[tuple[str, str, str]]:
        metadata = pod["metadata"]
        return [
            (DEVICE_CLAIMS, metadata["namespace"], claim["metadata"]["name"])
            for claim in self._local.list(DEVICE_CLAIMS, metadata["namespace"])
            if _owner(claim) == metadata["uid"]
        ]

    def _collect(self, claim: Json) -> None:
        metadata, owner = claim["metadata"], _owner(claim)
        if owner is None or metadata.get("deletionTimestamp"):
            return
        pods = self._local.list("pods", metadata["namespace"])
        if not any(pod["metadata"]["uid"] == owner for pod in pods):
            self._local.delete(DEVICE_CLAIMS, claim)


def _owner(claim: Json) -> str | None:
    return next((one["uid"] for one in claim["metadata"].get("ownerReferences") or ()), None)
