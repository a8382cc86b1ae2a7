"""PreBind writes: volumes and their claims, the devices and consumers of resource claims. `scheduler.prebind` decides them.

    Prebind ──PATCH nominatedNodeName──PATCH claimRef of each volume──PATCH selected-node of each claim──resource claims──► PrebindWritten
                          └── 409, 404, 403, another error status, no response for long ─────────► PrebindRefused

Each patch names the UID and the version of the decision, so it changes that object or nothing, however late it arrives.
A patch without a response is repeated. If the first one was carried out, the repetition fails with a conflict, and the
next attempt of the pod finds what was written. Volumes are written before claims, as in kube-scheduler. Resource claims
have other writers too (`kube.write.resource_claims`), as does the claim for a pod's extended resources
(`kube.write.extended_claims`). A write that allocates devices is repeated without limit: while it may be carried out, its
devices must not be allocated elsewhere. Meanwhile those of other namespaces go on (`kube.write.namespace_turns`).

A write that was decided before this process stalled never leaves after it, unless an earlier request for it may have left
(`fence`), as for binds: the volume or the devices may be somebody else's by now, and the node full.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from policysched.kube.client.api import ApiClient, ApiStatusError, Conflict
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.write.extended_claims import create_claim, delete_claim
from policysched.kube.write.idempotent_retry import RequestAbandoned, RequestRetrier
from policysched.kube.write.namespace_turns import NamespaceTurns
from policysched.kube.write.prebind_requests import IsCurrent, PrebindRequests
from policysched.kube.write.resource_claims import (
    ClaimNotReserved,
    deallocate_claim,
    reserve_claim,
    resource_version_of,
    unreserve_claim,
)
from policysched.kube.write.volume_patches import (
    claim_ref_patch,
    persistent_volume_claim_path,
    persistent_volume_path,
    selected_node_patch,
)
from policysched.model.devices import ClaimConsumer
from policysched.model.identifiers import PodUid, PrebindTarget
from policysched.scheduler.commands import (
    Deallocate,
    DeleteExtendedClaim,
    Prebind,
    Unreserve,
)
from policysched.scheduler.events import ExtendedClaimDeleted, PrebindRefused, PrebindWritten

log = logging.getLogger(__name__)
Json = dict[str, Any]
PrebindOutcome = PrebindWritten | PrebindRefused | ExtendedClaimDeleted

_Command = Prebind | Unreserve | Deallocate | DeleteExtendedClaim
ALLOCATION_RETRY_S = math.inf


@dataclass(frozen=True, slots=True)
class PrebindSettings:
    """`retry_timeout_s`: how long one patch is retried without a final response, unless it allocates devices."""

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


@dataclass(slots=True, eq=False)
class _Waiting:
    """A command that was not begun."""

    command: _Command
    is_current: IsCurrent

    @property
    def key(self) -> Hashable:
        """Of those of one claim only the latest waits: where requests hang, each attempt of a pod would leave another one."""
        command = self.command
        if isinstance(command, Deallocate | DeleteExtendedClaim):
            return type(command), command.claim
        return self


@dataclass(slots=True, eq=False)
class _Prebinding:
    """One that was begun. `is_superseded`: the pod has a later one, so what has not left is not sent."""

    is_superseded: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Unreserving:
    """`is_sent`: requests may have left. `is_superseded`: the pod has a later `Prebind`."""

    command: Unreserve
    is_sent: bool = False
    is_superseded: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PrebindWriter:
    """Carries out `Prebind`, several at a time and namespaces in turn. `deliver` receives exactly one outcome for each, also
    if its pod has a later one, and `ExtendedClaimDeleted` for deleted claims. Nothing is sent while `may_send` is false, nor writes of a
    `Prebind` while what `fence` returned when it was put is false."""

    def __init__(
        self,
        api: ApiClient,
        deliver: Callable[[PrebindOutcome], None],
        *,
        random: Random,
        connectivity: Connectivity,
        settings: PrebindSettings = PrebindSettings(),
        may_send: Callable[[], bool] = lambda: True,
        fence: Callable[[], IsCurrent] = lambda: None,
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
        self._fence = fence
        self._turns: NamespaceTurns[str] = NamespaceTurns(settings.workers)
        self._waiting: dict[str, dict[Hashable, _Waiting]] = {}  # by namespace, as many as it has turns
        self._waiting_prebinds: dict[PodUid, _Waiting] = {}
        self._prebinding: dict[PodUid, list[_Prebinding]] = {}
        self._unreserving: dict[PodUid, list[_Unreserving]] = {}
        self.counts = PrebindCounts()

    @property
    def in_flight(self) -> int:
        """Commands without an outcome."""
        return len(self._turns)

    def in_flight_in(self, admits: Callable[[str], bool]) -> int:
        """Those of these namespaces that do not take long."""
        return self._turns.prompt(admits)

    def put(self, command: _Command) -> None:
        waiting = _Waiting(command, self._fence() if isinstance(command, Prebind) else None)
        if isinstance(command, Unreserve):
            self._unreserving.setdefault(command.uid, []).append(_Unreserving(command))
        elif isinstance(command, Prebind):  # the pod needs its claims again
            for unreserving in self._unreserving.get(command.uid, ()):
                unreserving.is_superseded = True
            for prebinding in self._prebinding.get(command.uid, ()):
                prebinding.is_superseded = True
            if (earlier := self._waiting_prebinds.get(command.uid)) is not None:
                self._refuse(earlier, "not sent: the pod has a later attempt")
            self._waiting_prebinds[command.uid] = waiting
        elif isinstance(command, DeleteExtendedClaim) and self._abandon_creation(command):
            return
        namespace = _namespace(command)
        in_namespace = self._waiting.setdefault(namespace, {})
        if waiting.key not in in_namespace:
            self._turns.put(namespace, namespace)
        in_namespace[waiting.key] = waiting

    def abandon(self, uid: PodUid) -> None:
        """The pod is gone: its `Prebind` is refused, unless it was begun. In a namespace whose requests hang it may never be
        begun, and what it allocates would be reserved for as long: for any number of pods that come and go."""
        waiting = self._waiting_prebinds.pop(uid, None)
        if waiting is not None:
            self._refuse(waiting, "not sent: the pod is gone")

    def _abandon_creation(self, command: DeleteExtendedClaim) -> bool:
        """Whether the creation of this claim was not begun, and never will be."""
        waiting = self._waiting_prebinds.get(command.uid)
        created = (
            waiting.command.claim_to_create if waiting and isinstance(waiting.command, Prebind) else None
        )
        if created is None or created.claim != command.claim:
            return False
        self.abandon(command.uid)
        self._deliver(ExtendedClaimDeleted(command.claim, ""))
        return True

    def _refuse(self, waiting: _Waiting, reason: str) -> None:
        command = waiting.command
        assert isinstance(command, Prebind), f"{command} waits as a Prebind"
        self._drop(waiting)
        self.counts.refused += 1
        self._deliver(PrebindRefused(command.uid, reason, {}, command.attempt))

    def _drop(self, waiting: _Waiting) -> None:
        namespace = _namespace(waiting.command)
        self._take(namespace, waiting)
        if self._turns.waiting(namespace):  # else its turn has come, and finds nothing
            self._turns.discard(namespace)

    def _take(self, namespace: str, waiting: _Waiting) -> None:
        in_namespace = self._waiting[namespace]
        del in_namespace[waiting.key]
        if not in_namespace:
            del self._waiting[namespace]

    async def run(self) -> None:
        """Until cancelled."""
        await self._turns.run(self._begin_next)

    async def _begin_next(self, namespace: str) -> None:
        waiting = next(iter(self._waiting.get(namespace, {}).values()), None)
        if waiting is None:
            return  # dropped between its turn and this task
        self._take(namespace, waiting)
        await self._carry_out(waiting.command, waiting.is_current)

    async def _carry_out(self, command: _Command, is_current: IsCurrent) -> None:
        if isinstance(command, DeleteExtendedClaim):
            await self._delete_claim(command)
            return
        if not isinstance(command, Prebind):
            await self._unreserve(command)
            return
        self._waiting_prebinds.pop(command.uid, None)
        of_pod, prebinding = self._prebinding.setdefault(command.uid, []), _Prebinding()
        earlier = of_pod.copy()  # of attempts that were withdrawn meanwhile
        of_pod.append(prebinding)
        try:
            for each in earlier:
                await each.ended.wait()
            outcome = await self._prebind(
                command, lambda: not prebinding.is_superseded and (is_current is None or is_current())
            )
        finally:
            prebinding.ended.set()
            of_pod.remove(prebinding)
            if not of_pod:
                del self._prebinding[command.uid]
        if isinstance(outcome, PrebindWritten):
            self.counts.written += 1
        else:
            self.counts.refused += 1
        self._deliver(outcome)

    async def _unreserve(self, command: Unreserve | Deallocate) -> None:
        """Best effort: if it fails, the next attempt reads the claim as it is."""
        try:
            if isinstance(command, Deallocate):
                await deallocate_claim(self._requests(), command)
            else:
                await self._unreserve_claims(command)
        except (ApiStatusError, ClaimNotReserved, RequestAbandoned) as error:
            log.info(
                "cannot release a resource claim; it stays reserved for the pod", extra={"error": str(error)}
            )

    async def _unreserve_claims(self, command: Unreserve) -> None:
        """Until a later `Prebind` of the pod: a request that is repeated would remove what that reserved."""
        waiting = self._unreserving[command.uid]
        unreserving = next(unreserve for unreserve in waiting if unreserve.command is command)
        unreserving.is_sent = not unreserving.is_superseded
        try:
            for key, uid in command.claims:
                if not unreserving.is_superseded:
                    await unreserve_claim(
                        self._requests(), key, uid, command.uid, lambda: not unreserving.is_superseded
                    )
        finally:
            unreserving.ended.set()
            waiting.remove(unreserving)
            if not waiting:
                del self._unreserving[command.uid]

    async def _delete_claim(self, command: DeleteExtendedClaim) -> None:
        """Retried without limit: its devices are unavailable until it is gone. If the pod was deleted meanwhile, the claim
        may still be in creation."""
        for prebinding in self._prebinding.get(command.uid, [])[:]:
            await prebinding.ended.wait()
        while True:
            try:
                deleted = await delete_claim(self._requests(), command)
                if deleted is not None:
                    self._deliver(ExtendedClaimDeleted(command.claim, deleted))
                return
            except Conflict:  # changed by another writer, maybe all the time
                await asyncio.sleep(self._settings.retry_initial_s)
            except (ApiStatusError, ClaimNotReserved) as error:
                log.info(
                    "cannot delete a resource claim; its devices stay allocated",
                    extra={"claim": str(command.claim), "error": str(error)},
                )
                return
            except RequestAbandoned as error:
                if not self._may_send():
                    return
                log.info(
                    "the resource claim is not deleted yet; retrying",
                    extra={"claim": str(command.claim), "error": str(error)},
                )

    async def _prebind(self, command: Prebind, is_current: IsCurrent) -> PrebindWritten | PrebindRefused:
        writes = self._requests(is_current)
        versions: dict[PrebindTarget, int] = {}
        sent = [unreserve for unreserve in self._unreserving.get(command.uid, ()) if unreserve.is_sent]
        for unreserving in sent:
            await unreserving.ended.wait()
        if sent:  # the decision counted on what may be released now
            message = "the claims of an earlier attempt are being released"
            return PrebindRefused(command.uid, message, versions, command.attempt)
        if command.nominate:
            await self._nominate(command, is_current)
        try:
            for volume in command.volumes_to_bind:
                answer = await writes.patch(persistent_volume_path(volume), claim_ref_patch(volume))
                versions[volume.volume] = resource_version_of(answer)
            for claim in command.volumes_to_provision:
                path, body = persistent_volume_claim_path(claim), selected_node_patch(claim, command.node)
                versions[claim.claim] = resource_version_of(await writes.patch(path, body))
            for devices in command.claims_to_reserve:
                pod = ClaimConsumer("", "pods", command.name, command.uid)
                api = writes if devices.allocation is None else replace(writes, timeout_s=ALLOCATION_RETRY_S)
                versions[devices.claim] = await reserve_claim(api, devices, pod)
            if command.claim_to_create is not None:
                pod = ClaimConsumer("", "pods", command.name, command.uid)
                versions[command.claim_to_create.claim] = await create_claim(
                    writes, command.claim_to_create, pod
                )
        except ApiStatusError as error:
            return PrebindRefused(command.uid, error.message, versions, command.attempt)
        except (ClaimNotReserved, RequestAbandoned) as error:
            return PrebindRefused(command.uid, str(error), versions, command.attempt)
        return PrebindWritten(command.uid, versions, command.attempt)

    async def _nominate(self, command: Prebind, is_current: IsCurrent) -> None:
        """Once: the bind does not depend on it."""
        body: Json = {"metadata": {"uid": command.uid}, "status": {"nominatedNodeName": command.node}}
        try:
            path = f"/api/v1/namespaces/{command.namespace}/pods/{command.name}/status"
            await self.retrier.retry_until_answered(
                lambda: self._requests().patch_once(path, body, is_current), 0, is_current
            )
        except (ApiStatusError, RequestAbandoned) as error:
            reason = {"pod": f"{command.namespace}/{command.name}", "error": str(error)}
            log.info("cannot nominate a pod before its claims are bound", extra=reason)

    def _requests(self, is_current: IsCurrent = None) -> PrebindRequests:
        settings = self._settings
        return PrebindRequests(
            self._api, self.retrier, settings.response_timeout_s, settings.retry_timeout_s, is_current
        )


def _namespace(command: _Command) -> str:
    match command:
        case Prebind(namespace=namespace):
            return namespace
        case Unreserve(claims=claims):
            return claims[0][0].namespace if claims else ""
        case Deallocate(claim=claim) | DeleteExtendedClaim(claim=claim):
            return claim.namespace
