"""The volume and resource claim controllers with a random delay, so that they act between a
scheduler's decision and its bind.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.resource_claim_controller import DEVICE_CLAIMS, ResourceClaimController
from policysched.sandbox.volume_controller import CLAIMS, VOLUMES, VolumeController, released_volume

Json = dict[str, Any]


class DelayedControllers:
    """Runs inside a loop until `stop`. `late_s` is the longest delay of a controller."""

    def __init__(self, server: ApiServer, random: Random, *, late_s: float = 0.5) -> None:
        self._local = LocalClient(server)
        self._random = random
        self._delay_max_s = late_s
        self._volumes, self._devices = VolumeController(self._local), ResourceClaimController(self._local)
        self._handlers: dict[str, Callable[[Json], None]] = {
            **self._volumes.handlers,
            **self._devices.handlers,
            "pods": self._reconcile_pod,
        }
        self._timers: dict[tuple[str, str, str], asyncio.TimerHandle] = {}
        self._unsubscribe: list[Callable[[], None]] = [
            self._local.listen(plural, partial(self._changed, plural)) for plural in self._handlers
        ]

    def stop(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for handle in self._timers.values():
            handle.cancel()

    def _changed(self, plural: str, change: StoreChange) -> None:
        obj = change.entry.obj
        if change.type != "DELETED":
            self._enqueue(plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        elif plural == CLAIMS and (volume := released_volume(obj)) is not None:
            self._enqueue(VOLUMES, "", volume)
        elif plural == "pods":
            for address in (*self._devices.reserved_claims(obj), *self._orphaned_claims(obj)):
                self._enqueue(*address)

    def _enqueue(self, *address: str) -> None:
        plural, namespace, name = address
        if (plural, namespace, name) not in self._timers:
            late_s = self._random.uniform(0, self._delay_max_s)
            self._timers[plural, namespace, name] = asyncio.get_running_loop().call_later(
                late_s, self._reconcile, plural, namespace, name
            )

    def _reconcile(self, plural: str, namespace: str, name: str) -> None:
        del self._timers[plural, namespace, name]
        obj = self._local.get(plural, namespace, name)
        if obj is None:
            return
        try:
            self._handlers[plural](obj)
            if plural == DEVICE_CLAIMS:
                self._collect_garbage(obj)
        except StatusError as refusal:
            if refusal.code not in (404, 409, 422):  # another writer was first; the next change retries
                raise

    def _reconcile_pod(self, obj: Json) -> None:
        self._volumes.handlers["pods"](obj)
        self._devices.reconcile_pod(obj)

    # ── claims owned by deleted pods ────────────────────────────────────────────────────────────

    def _orphaned_claims(self, pod: Json) -> list[tuple[str, str, str]]:
        metadata = pod["metadata"]
        return [
            (DEVICE_CLAIMS, metadata["namespace"], claim["metadata"]["name"])
            for claim in self._local.list(DEVICE_CLAIMS, metadata["namespace"])
            if _owner(claim) == metadata["uid"]
        ]

    def _collect_garbage(self, claim: Json) -> None:
        metadata, owner = claim["metadata"], _owner(claim)
        if owner is None or metadata.get("deletionTimestamp"):
            return
        pods = self._local.list("pods", metadata["namespace"])
        if not any(pod["metadata"]["uid"] == owner for pod in pods):
            self._local.delete(DEVICE_CLAIMS, claim)


def _owner(claim: Json) -> str | None:
    return next((reference["uid"] for reference in claim["metadata"].get("ownerReferences") or ()), None)
