"""Preemption writes: nominates the pod's node, then marks each victim with the reason and deletes it.

    Evict ──DELETE, dryRun──► PATCH nominatedNodeName ──► for each victim: PATCH DisruptionTarget ──DELETE, by UID──► Evicted
              │ 403               │ gone                     │ 404, another UID: already gone
              └───────────────────┴──────────────────────────┴── 403, another error status, no response for long ──► EvictionRefused

RBAC may allow status writes but not deletes (without `deploy/preemption.yaml`), and a DisruptionTarget condition stays
on a pod that is not deleted. So the first delete in a namespace is a dry run, before anything is written. The nomination
is next: if the pod is gone by then, nothing is evicted for it. Every request can be repeated: a patch is idempotent, and a
delete names the UID. Unlike a bind, an eviction is abandoned after a while, since its reason may no longer hold. Only an
authorizer's 403 is about our permissions; webhooks and admission policies refuse for one namespace. Messages and
order: kube-scheduler 1.36, `pkg/scheduler/framework/preemption`.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from policysched.kube.client.admission import is_denied_by_admission
from policysched.kube.client.api import (
    STRATEGIC_PATCH,
    ApiClient,
    ApiStatusError,
    Conflict,
    Forbidden,
    NotFound,
)
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import METADATA_ONLY
from policysched.kube.leader_election import micro_time
from policysched.kube.write.idempotent_retry import RequestAbandoned, RequestRetrier
from policysched.kube.write.namespace_turns import NamespaceTurns, blame
from policysched.kube.write.recent_keys import RecentKeys
from policysched.model.identifiers import PodUid
from policysched.scheduler.commands import ClearNomination, Evict, Victim
from policysched.scheduler.events import Evicted, EvictionRefused

Json = dict[str, Any]
EvictionOutcome = Evicted | EvictionRefused

REFUSED_LATELY_S = 600.0
DELETABLE_FOR_S = 600.0
"""How long the result of a dry run is used. It expires because namespaces come and go."""
_SERVER_TIMEOUT_PARAMS = {"timeout": "5s"}
_DENIED_BY_AUTHORIZER = re.compile(r'[a-z./]+ "[^"]*" is forbidden: User "')
"""How the API server begins the message of any authorizer's denial. Messages of webhooks and policies begin otherwise."""


@dataclass(frozen=True, slots=True)
class EvictSettings:
    """`retry_timeout_s`: how long one request is retried without a final response; `error_timeout_s`: the same if the server
    answers it with errors, or only others, as if a webhook hangs or fails: the preemptor waits, and could evict other pods."""

    workers: int = 8
    retry_timeout_s: float = 30.0
    error_timeout_s: float = 5.0
    response_timeout_s: float = 7.0
    retry_initial_s: float = 0.1
    retry_max_s: float = 5.0


@dataclass(slots=True)
class EvictCounts:
    """Running totals, for metrics."""

    evicted: int = 0
    refused: int = 0


IsCurrent = Callable[[], bool] | None
"""Whether a decision still holds; None: it always does."""


class Evictor:
    """Executes `Evict` and `ClearNomination`: several at a time, those of a pod in order. Namespaces take turns, since that of
    the pod and those of its victims can make it slow (`kube.write.namespace_turns`). `deliver` receives exactly one outcome
    per `Evict`. Nothing is sent while `may_send` is false. Nothing is deleted once the check that `fence` returned at `put`
    is false: this process has stalled since the victims were chosen."""

    def __init__(
        self,
        api: ApiClient,
        deliver: Callable[[EvictionOutcome], None],
        *,
        random: Random,
        connectivity: Connectivity,
        now_ns: Callable[[], int],
        settings: EvictSettings = EvictSettings(),
        may_send: Callable[[], bool] = lambda: True,
        fence: Callable[[], Callable[[], bool] | None] = lambda: None,
    ) -> None:
        self._api = api
        self._deliver = deliver
        self._fence = fence
        self._now_ns = now_ns
        self._settings = settings
        self._retrier = RequestRetrier(
            "evicting pods", settings, random=random, connectivity=connectivity, may_send=may_send
        )
        self._turns: NamespaceTurns[PodUid] = NamespaceTurns(settings.workers)
        self._of_pod: dict[PodUid, deque[tuple[Evict | ClearNomination, IsCurrent]]] = {}
        self._deletable_namespaces = RecentKeys[str](DELETABLE_FOR_S)
        self._refused_lately = RecentKeys[str](REFUSED_LATELY_S)
        self.counts = EvictCounts()

    @property
    def in_flight(self) -> int:
        """Commands without an outcome."""
        return sum(map(len, self._of_pod.values()))

    def in_flight_in(self, admits: Callable[[str], bool]) -> int:
        """Commands without an outcome in these namespaces, except slow ones."""
        return self._turns.prompt(admits)

    def put(self, command: Evict | ClearNomination) -> None:
        of_pod = self._of_pod.setdefault(command.uid, deque())
        if isinstance(command, ClearNomination) and len(of_pod) > 1 and of_pod[-1][0] == command:
            return  # it is not begun; if requests hang, a pod nominated repeatedly would queue many
        of_pod.append((command, self._fence()))
        if len(of_pod) == 1:  # two concurrent writes for a pod could arrive out of order
            self._turns.put(_namespaces(command), command.uid)

    def abandon(self, uid: PodUid) -> None:
        """The pod is gone: drop its commands that are not begun. Otherwise, while requests hang, each pod that comes and goes would
        leave an eviction in the queue, and a victim that is about to leave for as long."""
        of_pod = self._of_pod.get(uid)
        if of_pod is None:
            return
        begun = 0 if self._turns.withdraw(_namespaces(of_pod[0][0]), uid) else 1
        commands = [of_pod.pop()[0] for _ in range(len(of_pod) - begun)]
        if not of_pod:
            del self._of_pod[uid]
        for command in commands:
            if isinstance(command, Evict):
                self.counts.refused += 1
                self._deliver(EvictionRefused(uid, "not sent: the pod is gone"))

    async def run(self) -> None:
        """Until cancelled."""
        await self._turns.run(self._carry_out)

    async def _carry_out(self, uid: PodUid) -> None:
        of_pod = self._of_pod[uid]
        try:
            await self._execute(*of_pod[0])
        finally:
            of_pod.popleft()
            if of_pod:
                self._turns.put(_namespaces(of_pod[0][0]), uid)
            else:
                del self._of_pod[uid]

    async def _execute(self, command: Evict | ClearNomination, is_current: IsCurrent) -> None:
        match command:
            case Evict():
                outcome = await self._evict(command, is_current)
                if isinstance(outcome, Evicted):
                    self.counts.evicted += len(outcome.victims)
                else:
                    self.counts.refused += 1
                self._deliver(outcome)
            case ClearNomination(uid, namespace, name):
                try:  # nobody waits for it: errors are retried as long as hanging requests
                    await self._nominate(uid, namespace, name, None, error_timeout_s=math.inf)
                except (ApiStatusError, RequestAbandoned):
                    return  # gone or unreachable: the scheduler does not depend on the status field

    # ── an eviction ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _evict(self, evict: Evict, is_current: IsCurrent) -> EvictionOutcome:
        deleted: list[PodUid] = []
        gone: list[PodUid] = []
        current: Victim | None = None
        victims = self._refusing_first(evict.victims)
        try:
            for current in victims:
                await self._dry_run_delete(current)
            current = None
            if evict.node is not None:
                await self._nominate(evict.uid, evict.namespace, evict.name, evict.node)
            for current in victims:
                was_there = await self._delete_victim(current, evict, is_current)
                (deleted if was_there else gone).append(current.uid)
        except (ApiStatusError, RequestAbandoned) as error:
            forbidden = isinstance(error, Forbidden) and bool(_DENIED_BY_AUTHORIZER.match(error.message))
            if forbidden:
                self._deletable_namespaces = RecentKeys(DELETABLE_FOR_S)
            is_answer = isinstance(error, ApiStatusError) or error.server_answers
            refused = current if is_answer and not forbidden else None
            if refused is not None:
                self._refused_lately.note(refused.namespace, asyncio.get_running_loop().time())
            refused_uid = None if refused is None else refused.uid
            return EvictionRefused(evict.uid, str(error), forbidden, tuple(deleted), tuple(gone), refused_uid)
        return Evicted(evict.uid, tuple(deleted))

    def _refusing_first(self, victims: tuple[Victim, ...]) -> list[Victim]:
        """Victims in namespaces that refused one lately come first: if they refuse again, no other was deleted in vain."""
        self._refused_lately.expire(asyncio.get_running_loop().time())
        return sorted(victims, key=lambda victim: victim.namespace not in self._refused_lately)

    async def _dry_run_delete(self, victim: Victim) -> None:
        """Raises Forbidden if deletes in the namespace are denied. Other errors are left to the delete itself: the pod is
        gone, or an admission webhook does not support dry runs."""
        self._deletable_namespaces.expire(asyncio.get_running_loop().time())
        if victim.namespace in self._deletable_namespaces:
            return
        try:
            await self._retry(victim.namespace, lambda: self._delete(victim, dry_run=True))
        except Forbidden:
            raise
        except ApiStatusError:
            return
        self._deletable_namespaces.note(victim.namespace, asyncio.get_running_loop().time())

    async def _nominate(
        self,
        uid: PodUid,
        namespace: str,
        name: str,
        node: str | None,
        *,
        error_timeout_s: float | None = None,
    ) -> None:
        """A merge patch with the UID: the server refuses it for another pod of that name."""
        body: Json = {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}}
        patch = partial(self._patch_status, namespace, name, body)
        await self._retry(namespace, patch, error_timeout_s=error_timeout_s)

    async def _delete_victim(self, victim: Victim, evict: Evict, is_current: IsCurrent) -> bool:
        """False: the victim was already gone."""
        try:
            await self._retry(
                victim.namespace,
                lambda: self._patch_status(
                    victim.namespace, victim.name, self._disruption_target_patch(victim, evict)
                ),
                is_current,
            )
            await self._retry(
                victim.namespace, lambda: self._delete(victim, is_current=is_current), is_current
            )
        except ApiStatusError as error:
            if _is_gone(error):
                return False
            raise
        return True

    def _disruption_target_patch(self, victim: Victim, evict: Evict) -> Json:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{evict.scheduler}: {evict.message}",
            "lastTransitionTime": micro_time(self._now_ns())[:19] + "Z",
            **({"observedGeneration": victim.generation} if victim.generation else {}),
        }
        return {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}

    async def _patch_status(self, namespace: str, name: str, body: Json) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        timeout_s = self._settings.response_timeout_s
        await self._api.patch(
            path,
            body,
            STRATEGIC_PATCH,
            params=_SERVER_TIMEOUT_PARAMS,
            timeout_s=timeout_s,
            accept=METADATA_ONLY,
        )

    async def _retry(
        self,
        namespace: str,
        request: Callable[[], Awaitable[None]],
        is_current: IsCurrent = None,
        *,
        error_timeout_s: float | None = None,
    ) -> None:
        """`namespace`: whose webhooks see the request. `error_timeout_s` None: that of the settings. Raises RequestAbandoned, or a
        final ApiStatusError."""
        blame(namespace)
        settings = self._settings
        errors_s = settings.error_timeout_s if error_timeout_s is None else error_timeout_s
        await self._retrier.retry_until_answered(
            request, settings.retry_timeout_s, is_current, error_timeout_s=errors_s
        )

    async def _delete(self, victim: Victim, *, dry_run: bool = False, is_current: IsCurrent = None) -> None:
        path = f"/api/v1/namespaces/{victim.namespace}/pods/{victim.name}"
        body: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": victim.uid},
            **({"dryRun": ["All"]} if dry_run else {}),
        }
        await self._api.delete(
            path,
            body,
            params=_SERVER_TIMEOUT_PARAMS,
            timeout_s=self._settings.response_timeout_s,
            is_current=is_current,
        )


def _namespaces(command: Evict | ClearNomination) -> tuple[str, ...]:
    victims = command.victims if isinstance(command, Evict) else ()
    return (command.namespace, *sorted({victim.namespace for victim in victims}))


def _is_gone(error: ApiStatusError) -> bool:
    """The pod is gone or replaced: a delete then fails with a conflict, a patch with 422 for the UID."""
    is_of_uid = error.status == 422 and "metadata.uid" in error.message
    replaced = is_of_uid and not is_denied_by_admission(error.message)
    return isinstance(error, NotFound | Conflict) or replaced
