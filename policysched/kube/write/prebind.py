"""Writing what a placed pod needs: which claim a volume is for, which node a claim's volume is for, which devices a claim
has and for whom.

    Prepare ──PATCH claimRef of each volume──PATCH selected-node of each claim──claims for devices──► PreparationWritten
                          └── 409, 404, 403, another refusal, no answer for long ──────────────────► PreparationRefused

Each patch names the UID and the version that the decision was made on, so that it lands on that very object or not at
all, however late. One whose answer was lost is repeated; if it had landed after all, the repetition is refused as a
conflict, the pod is tried again, and finds what it had written. Volumes come before claims, as in kube-scheduler.
Claims for devices have a road of their own (`kube.write.reserve`), for others may write to them meanwhile; so has the one that is
made for a pod's extended resources (`kube.write.extended_claims`). And a claim that gets devices is written until it is answered:
while that may land, they must not be another's.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from policysched.kube.client.api import MERGE_PATCH, Api, Conflict, Refused
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.decode.storage import BOUND_BY_CONTROLLER, SELECTED_NODE
from policysched.kube.write.extended_claims import drop, make
from policysched.kube.write.reserve import NotReserved, deallocate, reserve, unreserve, version_of
from policysched.kube.write.retry import GaveUp, Settling
from policysched.model.devices import Consumer
from policysched.model.objects import PodUid, Preparable
from policysched.scheduler.commands import (
    Deallocate,
    DropClaim,
    Prepare,
    Unreserve,
    VolumeToBind,
    VolumeToMake,
)
from policysched.scheduler.events import ClaimDropped, PreparationRefused, PreparationWritten

log = logging.getLogger(__name__)
Json = dict[str, Any]
PrepareOutcome = PreparationWritten | PreparationRefused | ClaimDropped

_REQUEST_LIFE = {"timeout": "5s"}


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """`give_up_s`: how long one patch is repeated while it gets no answer that settles it, unless it gives devices away."""

    workers: int = 8
    give_up_s: float = 30.0
    answer_timeout_s: float = 7.0
    retry_first_s: float = 0.1
    retry_longest_s: float = 5.0


@dataclass(slots=True)
class PrepareCounts:
    """Running totals, for metrics."""

    written: int = 0
    refused: int = 0


class PreparationWriter:
    """Carries out `Prepare`, several at a time. `deliver` gets exactly one outcome for each, and `ClaimDropped` for claims that are gone. Nothing is sent while
    `may_send` says no."""

    def __init__(
        self,
        api: Api,
        deliver: Callable[[PrepareOutcome], None],
        *,
        random: Random,
        connectivity: Connectivity,
        settings: PrepareSettings = PrepareSettings(),
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._api = api
        self._deliver = deliver
        self._settings = settings
        self.settling = Settling(
            "writing volumes and claims",
            settings,
            random=random,
            connectivity=connectivity,
            may_send=may_send,
        )
        self._may_send = may_send
        self._queue: deque[Prepare | Unreserve | Deallocate | DropClaim] = deque()
        self._wake = asyncio.Semaphore(0)
        self._active = 0
        self._writing: dict[PodUid, asyncio.Event] = {}
        self.counts = PrepareCounts()

    @property
    def in_flight(self) -> int:
        """Commands without an outcome."""
        return len(self._queue) + self._active

    def put(self, command: Prepare | Unreserve | Deallocate | DropClaim) -> None:
        self._queue.append(command)
        self._wake.release()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._wake.acquire()
            command = self._queue.popleft()
            self._active += 1
            try:
                if isinstance(command, DropClaim):
                    await self._drop(command)
                    continue
                if not isinstance(command, Prepare):
                    await self._take_back(command)
                    continue
                self._writing[command.uid] = asyncio.Event()
                try:
                    outcome = await self._carry_out(command)
                finally:
                    self._writing.pop(command.uid).set()
            finally:
                self._active -= 1
            if isinstance(outcome, PreparationWritten):
                self.counts.written += 1
            else:
                self.counts.refused += 1
            self._deliver(outcome)

    async def _take_back(self, command: Unreserve | Deallocate) -> None:
        """Nobody waits for it: where it cannot be done, whoever looks at the claim next sees it as it is."""
        try:
            if isinstance(command, Deallocate):
                await deallocate(self, command)
            else:
                for key, uid in command.claims:
                    await unreserve(self, key, uid, command.uid)
        except (Refused, NotReserved, GaveUp) as error:
            log.info("a claim was left as it was", extra={"why": str(error)})

    async def _drop(self, command: DropClaim) -> None:
        """Its devices are nobody's until it is known to be gone, so this is asked for as long as it takes. It may still be
        being made, where the pod went away meanwhile."""
        if command.uid in self._writing:
            await self._writing[command.uid].wait()
        while True:
            try:
                if await drop(self, command):
                    self._deliver(ClaimDropped(command.claim))
                return
            except Conflict:
                continue  # somebody wrote to it meanwhile
            except (Refused, NotReserved) as error:
                log.info("a claim was left as it was", extra={"why": str(error)})
                return
            except GaveUp as error:
                if not self._may_send():
                    return
                log.info("a claim is still to be taken away", extra={"why": str(error)})

    async def _carry_out(self, command: Prepare) -> PreparationWritten | PreparationRefused:
        versions: dict[Preparable, int] = {}
        try:
            for volume in command.to_bind:
                versions[volume.volume] = await self._patched(volume_path(volume), volume_patch(volume))
            for claim in command.to_make:
                path, body = claim_path(claim), claim_patch(claim, command.node)
                versions[claim.claim] = await self._patched(path, body)
            for devices in command.to_reserve:
                pod = Consumer("", "pods", command.name, command.uid)
                wire = self if devices.allocation is None else _Patient(self)
                versions[devices.claim] = await reserve(wire, devices, pod)
            if command.extended is not None:
                pod = Consumer("", "pods", command.name, command.uid)
                versions[command.extended.claim] = await make(self, command.extended, pod)
        except Refused as error:
            return PreparationRefused(command.uid, error.message, versions)
        except (NotReserved, GaveUp) as error:
            return PreparationRefused(command.uid, str(error), versions)
        return PreparationWritten(command.uid, versions)

    async def _patched(self, path: str, body: Json) -> int:
        """The version that the patch made. Raises as `until_settled`."""
        return version_of(await self.patch(path, body))

    async def patch(self, path: str, body: Json) -> Json:
        """The object as patched. Raises as `until_settled`."""
        return await self.settling.until_settled(
            lambda: self.patched_once(path, body), self._settings.give_up_s
        )

    async def create(self, path: str, body: Json) -> Json:
        """The object as created. Raises as `until_settled`."""
        timeout_s, give_up_s = self._settings.answer_timeout_s, self._settings.give_up_s
        return await self.settling.until_settled(
            lambda: self._api.create(path, body, params=_REQUEST_LIFE, timeout_s=timeout_s), give_up_s
        )

    async def delete(self, path: str, options: Json) -> None:
        """Raises as `until_settled`."""

        async def ask() -> Json:
            await self._api.delete(
                path, options, params=_REQUEST_LIFE, timeout_s=self._settings.answer_timeout_s
            )
            return {}

        await self.settling.until_settled(ask, self._settings.give_up_s)

    async def get(self, path: str) -> Json:
        """The object as it is. Raises as `until_settled`."""
        return await self.settling.until_settled(lambda: self.got_once(path), self._settings.give_up_s)

    async def patched_once(self, path: str, body: Json) -> Json:
        timeout_s = self._settings.answer_timeout_s
        return await self._api.patch(path, body, MERGE_PATCH, params=_REQUEST_LIFE, timeout_s=timeout_s)

    async def got_once(self, path: str) -> Json:
        return await self._api.get(path, timeout_s=self._settings.answer_timeout_s)


class _Patient:
    """Repeats as long as it takes, while we may send."""

    def __init__(self, writer: PreparationWriter) -> None:
        self._writer = writer

    async def patch(self, path: str, body: Json) -> Json:
        return await self._writer.settling.until_settled(
            lambda: self._writer.patched_once(path, body), math.inf
        )

    async def get(self, path: str) -> Json:
        return await self._writer.settling.until_settled(lambda: self._writer.got_once(path), math.inf)


def volume_path(one: VolumeToBind) -> str:
    return f"/api/v1/persistentvolumes/{one.volume}"


def volume_patch(one: VolumeToBind) -> Json:
    annotations = {"annotations": {BOUND_BY_CONTROLLER: "yes"}} if one.mark else {}
    return {
        "metadata": {"uid": one.uid, "resourceVersion": str(one.version), **annotations},
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": one.claim.namespace,
                "name": one.claim.name,
                "uid": one.claim_uid,
            }
        },
    }


def claim_path(one: VolumeToMake) -> str:
    return f"/api/v1/namespaces/{one.claim.namespace}/persistentvolumeclaims/{one.claim.name}"


def claim_patch(one: VolumeToMake, node: str) -> Json:
    return {
        "metadata": {
            "uid": one.uid,
            "resourceVersion": str(one.version),
            "annotations": {SELECTED_NODE: node},
        }
    }
