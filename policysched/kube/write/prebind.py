"""Writing what a placed pod needs: which claim a volume is for, which node a claim's volume is for, which devices a claim
has and for whom.

    Prepare ──PATCH claimRef of each volume──PATCH selected-node of each claim──claims for devices──► PreparationWritten
                          └── 409, 404, 403, another refusal, no answer for long ──────────────────► PreparationRefused

Each patch names the UID and the version that the decision was made on, so that it lands on that very object or not at
all, however late. One whose answer was lost is repeated; if it had landed after all, the repetition is refused as a
conflict, the pod is tried again, and finds what it had written. Volumes come before claims, as in kube-scheduler.
Claims for devices have a road of their own (`kube.write.resource_claims`), for others may write to them meanwhile; so has the one that is
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

from policysched.kube.client.api import MERGE_PATCH, ApiClient, ApiStatusError, Conflict
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.decode.storage import BOUND_BY_CONTROLLER, SELECTED_NODE
from policysched.kube.write.extended_claims import create_claim, delete_claim
from policysched.kube.write.resource_claims import (
    ClaimNotReserved,
    deallocate_claim,
    reserve_claim,
    resource_version_of,
    unreserve_claim,
)
from policysched.kube.write.retry import RequestAbandoned, RequestRetrier
from policysched.model.devices import ClaimConsumer
from policysched.model.identifiers import PodUid, PrebindTarget
from policysched.scheduler.commands import (
    Deallocate,
    DeleteExtendedClaim,
    Prebind,
    Unreserve,
    VolumeToBind,
    VolumeToProvision,
)
from policysched.scheduler.events import ExtendedClaimDeleted, PrebindRefused, PrebindWritten

log = logging.getLogger(__name__)
Json = dict[str, Any]
PrebindOutcome = PrebindWritten | PrebindRefused | ExtendedClaimDeleted

_SERVER_TIMEOUT_PARAMS = {"timeout": "5s"}


@dataclass(frozen=True, slots=True)
class PrebindSettings:
    """`retry_timeout_s`: how long one patch is repeated while it gets no answer that settles it, unless it gives devices away."""

    workers: int = 8
    retry_timeout_s: float = 30.0
    response_timeout_s: float = 7.0
    retry_initial_s: float = 0.1
    retry_max_s: float = 5.0


@dataclass(slots=True)
class PrebindCounts:
    """Running totals, for metrics."""

    written: int = 0
    refused: int = 0


class PrebindWriter:
    """Carries out `Prebind`, several at a time. `deliver` gets exactly one outcome for each, and `ExtendedClaimDeleted` for claims that are gone. Nothing is sent while
    `may_send` says no."""

    def __init__(
        self,
        api: ApiClient,
        deliver: Callable[[PrebindOutcome], None],
        *,
        random: Random,
        connectivity: Connectivity,
        settings: PrebindSettings = PrebindSettings(),
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._api = api
        self._deliver = deliver
        self._settings = settings
        self.retrier = RequestRetrier(
            "writing volumes and claims",
            settings,
            random=random,
            connectivity=connectivity,
            may_send=may_send,
        )
        self._may_send = may_send
        self._queue: deque[Prebind | Unreserve | Deallocate | DeleteExtendedClaim] = deque()
        self._wake = asyncio.Semaphore(0)
        self._active = 0
        self._prebinding: dict[PodUid, asyncio.Event] = {}
        self.counts = PrebindCounts()

    @property
    def in_flight(self) -> int:
        """Commands without an outcome."""
        return len(self._queue) + self._active

    def put(self, command: Prebind | Unreserve | Deallocate | DeleteExtendedClaim) -> None:
        self._queue.append(command)
        self._wake.release()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.workers):
                group.create_task(self._run_worker())

    async def _run_worker(self) -> None:
        while True:
            await self._wake.acquire()
            command = self._queue.popleft()
            self._active += 1
            try:
                if isinstance(command, DeleteExtendedClaim):
                    await self._delete_claim(command)
                    continue
                if not isinstance(command, Prebind):
                    await self._unreserve(command)
                    continue
                self._prebinding[command.uid] = asyncio.Event()
                try:
                    outcome = await self._prebind(command)
                finally:
                    self._prebinding.pop(command.uid).set()
            finally:
                self._active -= 1
            if isinstance(outcome, PrebindWritten):
                self.counts.written += 1
            else:
                self.counts.refused += 1
            self._deliver(outcome)

    async def _unreserve(self, command: Unreserve | Deallocate) -> None:
        """Nobody waits for it: where it cannot be done, whoever looks at the claim next sees it as it is."""
        try:
            if isinstance(command, Deallocate):
                await deallocate_claim(self, command)
            else:
                for key, uid in command.claims:
                    await unreserve_claim(self, key, uid, command.uid)
        except (ApiStatusError, ClaimNotReserved, RequestAbandoned) as error:
            log.info("a claim was left as it was", extra={"why": str(error)})

    async def _delete_claim(self, command: DeleteExtendedClaim) -> None:
        """Its devices are nobody's until it is known to be gone, so this is asked for as long as it takes. It may still be
        being made, where the pod went away meanwhile."""
        if command.uid in self._prebinding:
            await self._prebinding[command.uid].wait()
        while True:
            try:
                if await delete_claim(self, command):
                    self._deliver(ExtendedClaimDeleted(command.claim))
                return
            except Conflict:
                continue  # somebody wrote to it meanwhile
            except (ApiStatusError, ClaimNotReserved) as error:
                log.info("a claim was left as it was", extra={"why": str(error)})
                return
            except RequestAbandoned as error:
                if not self._may_send():
                    return
                log.info("the claim is not deleted yet; retrying", extra={"why": str(error)})

    async def _prebind(self, command: Prebind) -> PrebindWritten | PrebindRefused:
        versions: dict[PrebindTarget, int] = {}
        try:
            for volume in command.volumes_to_bind:
                versions[volume.volume] = await self._patched_version(
                    persistent_volume_path(volume), claim_ref_patch(volume)
                )
            for claim in command.volumes_to_provision:
                path, body = persistent_volume_claim_path(claim), selected_node_patch(claim, command.node)
                versions[claim.claim] = await self._patched_version(path, body)
            for devices in command.claims_to_reserve:
                pod = ClaimConsumer("", "pods", command.name, command.uid)
                wire = self if devices.allocation is None else _UnlimitedRetries(self)
                versions[devices.claim] = await reserve_claim(wire, devices, pod)
            if command.claim_to_create is not None:
                pod = ClaimConsumer("", "pods", command.name, command.uid)
                versions[command.claim_to_create.claim] = await create_claim(
                    self, command.claim_to_create, pod
                )
        except ApiStatusError as error:
            return PrebindRefused(command.uid, error.message, versions)
        except (ClaimNotReserved, RequestAbandoned) as error:
            return PrebindRefused(command.uid, str(error), versions)
        return PrebindWritten(command.uid, versions)

    async def _patched_version(self, path: str, body: Json) -> int:
        """The version that the patch made. Raises as `until_settled`."""
        return resource_version_of(await self.patch(path, body))

    async def patch(self, path: str, body: Json) -> Json:
        """The object as patched. Raises as `until_settled`."""
        return await self.retrier.retry_until_answered(
            lambda: self.patch_once(path, body), self._settings.retry_timeout_s
        )

    async def create(self, path: str, body: Json) -> Json:
        """The object as created. Raises as `until_settled`."""
        timeout_s, give_up_s = self._settings.response_timeout_s, self._settings.retry_timeout_s
        return await self.retrier.retry_until_answered(
            lambda: self._api.create(path, body, params=_SERVER_TIMEOUT_PARAMS, timeout_s=timeout_s),
            give_up_s,
        )

    async def delete(self, path: str, options: Json) -> None:
        """Raises as `until_settled`."""

        async def ask() -> Json:
            await self._api.delete(
                path, options, params=_SERVER_TIMEOUT_PARAMS, timeout_s=self._settings.response_timeout_s
            )
            return {}

        await self.retrier.retry_until_answered(ask, self._settings.retry_timeout_s)

    async def get(self, path: str) -> Json:
        """The object as it is. Raises as `until_settled`."""
        return await self.retrier.retry_until_answered(
            lambda: self.get_once(path), self._settings.retry_timeout_s
        )

    async def patch_once(self, path: str, body: Json) -> Json:
        timeout_s = self._settings.response_timeout_s
        return await self._api.patch(
            path, body, MERGE_PATCH, params=_SERVER_TIMEOUT_PARAMS, timeout_s=timeout_s
        )

    async def get_once(self, path: str) -> Json:
        return await self._api.get(path, timeout_s=self._settings.response_timeout_s)


class _UnlimitedRetries:
    """Repeats as long as it takes, while we may send."""

    def __init__(self, writer: PrebindWriter) -> None:
        self._writer = writer

    async def patch(self, path: str, body: Json) -> Json:
        return await self._writer.retrier.retry_until_answered(
            lambda: self._writer.patch_once(path, body), math.inf
        )

    async def get(self, path: str) -> Json:
        return await self._writer.retrier.retry_until_answered(lambda: self._writer.get_once(path), math.inf)


def persistent_volume_path(one: VolumeToBind) -> str:
    return f"/api/v1/persistentvolumes/{one.volume}"


def claim_ref_patch(one: VolumeToBind) -> Json:
    annotations = {"annotations": {BOUND_BY_CONTROLLER: "yes"}} if one.mark_bound_by_controller else {}
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


def persistent_volume_claim_path(one: VolumeToProvision) -> str:
    return f"/api/v1/namespaces/{one.claim.namespace}/persistentvolumeclaims/{one.claim.name}"


def selected_node_patch(one: VolumeToProvision, node: str) -> Json:
    return {
        "metadata": {
            "uid": one.uid,
            "resourceVersion": str(one.version),
            "annotations": {SELECTED_NODE: node},
        }
    }
