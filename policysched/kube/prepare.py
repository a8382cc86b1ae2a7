"""Writing what the volumes of a placed pod need: which claim a volume is for, which node a claim's volume is for.

    PrepareVolumes ──PATCH claimRef of each volume──PATCH selected-node of each claim──► VolumesWritten
                          └── 409, 404, 403, another refusal, no answer for long ─────► VolumesRefused

Each patch names the UID and the version that the decision was made on, so that it lands on that very object or not at
all, however late. One whose answer was lost is repeated; if it had landed after all, the repetition is refused as a
conflict, the pod is tried again, and finds what it had written. Volumes come before claims, as in kube-scheduler.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from policysched.cluster.objects import ClaimKey
from policysched.kube.api import (
    MERGE_PATCH,
    Api,
    ApiProblem,
    Refused,
    ServerFault,
    Throttled,
    Unauthorized,
)
from policysched.kube.backoff import Backoff
from policysched.kube.connectivity import Connectivity
from policysched.kube.storage import BOUND_BY_CONTROLLER, SELECTED_NODE
from policysched.schedule.commands import PrepareVolumes, VolumeToBind, VolumeToMake
from policysched.schedule.events import VolumesRefused, VolumesWritten

Json = dict[str, Any]
PrepareOutcome = VolumesWritten | VolumesRefused

_ACTIVITY = "binding volumes"
_REQUEST_LIFE = {"timeout": "5s"}


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """`give_up_s`: how long one patch is repeated while it gets no answer that settles it."""

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


class _GaveUp(Exception):
    """No answer that settles it came in time, or we may not send any more."""


class VolumeWriter:
    """Carries out `PrepareVolumes`, several at a time. `deliver` gets exactly one outcome for each. Nothing is sent while
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
        self._random = random
        self._connectivity = connectivity
        self._settings = settings
        self._may_send = may_send
        self._queue: deque[PrepareVolumes] = deque()
        self._wake = asyncio.Semaphore(0)
        self._active = 0
        self.counts = PrepareCounts()

    @property
    def in_flight(self) -> int:
        """Commands without an outcome."""
        return len(self._queue) + self._active

    def put(self, command: PrepareVolumes) -> None:
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
                outcome = await self._carry_out(command)
            finally:
                self._active -= 1
            if isinstance(outcome, VolumesWritten):
                self.counts.written += 1
            else:
                self.counts.refused += 1
            self._deliver(outcome)

    async def _carry_out(self, command: PrepareVolumes) -> PrepareOutcome:
        versions: dict[str | ClaimKey, int] = {}
        try:
            for volume in command.to_bind:
                versions[volume.volume] = await self._until_settled(volume_path(volume), volume_patch(volume))
            for claim in command.to_make:
                path, body = claim_path(claim), claim_patch(claim, command.node)
                versions[claim.claim] = await self._until_settled(path, body)
        except Refused as error:
            return VolumesRefused(command.uid, error.message, versions)
        except _GaveUp as error:
            return VolumesRefused(command.uid, str(error), versions)
        return VolumesWritten(command.uid, versions)

    async def _until_settled(self, path: str, body: Json) -> int:
        """Repeat a patch until it is answered with yes or a refusal that stands; the version that it made. Raises that
        refusal, or _GaveUp."""
        settings, loop = self._settings, asyncio.get_running_loop()
        backoff = Backoff(self._random, first_s=settings.retry_first_s, longest_s=settings.retry_longest_s)
        gives_up_s = loop.time() + settings.give_up_s
        while True:
            if not self._may_send():
                raise _GaveUp("not leading any more")
            try:
                answer = await self._patch(path, body)
            except ApiProblem as error:
                if isinstance(error, Refused) and not isinstance(
                    error, Unauthorized | Throttled | ServerFault
                ):
                    self._connectivity.worked(_ACTIVITY)
                    raise
                self._connectivity.failed(_ACTIVITY, error)
                wait_s = backoff.failed(error)
                if loop.time() + wait_s > gives_up_s:
                    raise _GaveUp(f"no answer within {settings.give_up_s:g} s: {error}") from error
                await asyncio.sleep(wait_s)
            else:
                self._connectivity.worked(_ACTIVITY)
                return _version(answer)

    def _patch(self, path: str, body: Json) -> Awaitable[Json]:
        timeout_s = self._settings.answer_timeout_s
        return self._api.patch(path, body, MERGE_PATCH, params=_REQUEST_LIFE, timeout_s=timeout_s)


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


def _version(answer: Json) -> int:
    """Of the object as it is now. 0, which every version has reached, where the answer does not say."""
    meta = answer.get("metadata")
    written = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return int(written) if isinstance(written, str) and written.isdecimal() else 0
