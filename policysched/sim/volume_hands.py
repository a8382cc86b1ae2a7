"""The volume controllers by themselves, each a moment late: what they do comes between a scheduler's decision and its bind."""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from policysched.sim.apiserver.errors import Refusal
from policysched.sim.apiserver.server import ApiServer
from policysched.sim.apiserver.store import Change
from policysched.sim.local import Local
from policysched.sim.volumes import CLAIMS, VOLUMES, VolumeController, released_volume

Json = dict[str, Any]


class VolumeHands:
    """From when it is made, inside a loop, until `stop`. `late_s` is the longest that a controller takes to look."""

    def __init__(self, server: ApiServer, dice: Random, *, late_s: float = 0.5) -> None:
        self._local = Local(server)
        self._dice = dice
        self._late_s = late_s
        self._handlers = VolumeController(self._local).handlers
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
        except Refusal as refusal:
            if refusal.code not in (404, 409, 422):  # somebody was faster: the next change brings us back
                raise
