"""The binds that are not answered yet, and what was reserved for their pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policysched.evaluate import PrebindRequirements
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey
from policysched.model.pods import Pod
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import GangId, GangMode, QueuedGang
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.queue.prompt_binds import PromptBinds


@dataclass(frozen=True, slots=True)
class InFlightBind:
    """A bind without an answer: its pod and node, the policy text that decided it, and when. `awaited_by`: gangs whose failures
    wait for the answer."""

    pod: PendingPod
    node: NodeName
    policy_sha256: str
    decided_ns: int
    awaited_by: set[GangId] = field(default_factory=set, compare=False)


@dataclass(slots=True)
class GangBindFailure:
    """A gang below its minimum because the bind of `pod` was refused. `cancelled`: its members whose binds are cancelled,
    as far as that is possible. `refusals`: how often the eviction of the bound members was refused; `counted_victims`: those that the
    breaker has counted; `reported`: what events say of them."""

    pod: Pod
    message: str
    cancelled: set[PodUid] = field(default_factory=set)
    refusals: int = 0
    counted_victims: set[PodUid] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True)
class PrebindState:
    """An assumed pod whose claims are not bound yet. `attempt`: what the answer to its writes names. `written_versions` is None
    until then. `withdrawal`: why the pod is withdrawn then."""

    in_flight_bind: InFlightBind
    prebind_work: PrebindRequirements
    deadline_ns: int
    attempt: int
    written_versions: Mapping[PrebindTarget, int] | None = None
    withdrawal: str | None = None


class InFlightBinds:
    """Binds by pod UID, from the assumption to the answer.

    in_flight: every bind without an answer. A bind outlives a pod that is deleted meanwhile.
    prebinding: those of `in_flight` that are not sent yet, because the pod's claims are not bound.
    prompt: those of `in_flight` that are sent, and whose requests do not keep failing.
    reserved_claims: the resource claims, by key and UID, that are reserved for the pod.
    created_claims: the claim that is created for the pod's extended resources.
    decision_ns: how long the decision took, unless it is charged already. In vain if the bind is refused.
    gang_failures: gangs whose binds are being withdrawn, because one was refused, until their bound members are evicted or stay.
    due_gang_failures: those of which an answer was not looked at, and since when, or whose members are to be evicted later. A tenant
        may have hundreds of others.
    unconfirmed_device_writes: attempts whose pods left while their device allocations were written, by number: a pod may come
        back and leave again. The devices stay reserved until the API server answers, because the write may still succeed.
    """

    def __init__(self, prompt: PromptBinds) -> None:
        self.in_flight: dict[PodUid, InFlightBind] = {}
        self.prebinding: dict[PodUid, PrebindState] = {}
        self.prompt = prompt
        self.reserved_claims: dict[PodUid, tuple[tuple[ResourceClaimKey, str], ...]] = {}
        self.created_claims: dict[PodUid, ResourceClaimKey] = {}
        self.decision_ns: dict[PodUid, int] = {}
        self.gang_failures: dict[GangId, GangBindFailure] = {}
        self.due_gang_failures: MovableHeap[GangId] = MovableHeap()
        self.unconfirmed_device_writes: dict[int, PrebindState] = {}
        self._prebind_attempts = 0

    @property
    def sent_count(self) -> int:
        """Binds that were sent and are not answered."""
        return len(self.in_flight) - len(self.prebinding)

    def add(self, bind: InFlightBind) -> InFlightBind:
        """The pod was just assumed, and its bind is sent, unless `begin_prebind` follows."""
        self.in_flight[bind.pod.uid] = bind
        self.prompt.add(bind.pod.uid, bind.pod.namespace)
        return bind

    def note_decision(self, uids: Iterable[PodUid], elapsed_ns: int) -> None:
        """An attempt that took so long placed those of these pods that were not in flight before."""
        placed = [uid for uid in uids if uid in self.in_flight and uid not in self.decision_ns]
        self.decision_ns.update(dict.fromkeys(placed, elapsed_ns // max(1, len(placed))))

    def next_prebind_attempt(self) -> int:
        self._prebind_attempts += 1
        return self._prebind_attempts

    def begin_prebind(self, uid: PodUid, state: PrebindState) -> None:
        self.prebinding[uid] = state
        self.prompt.discard(uid)

    def end_prebind(self, uid: PodUid) -> None:
        """The bind is sent now, or removed."""
        state = self.prebinding.pop(uid)
        if uid in self.in_flight:
            self.prompt.add(uid, state.in_flight_bind.pod.namespace)

    def note_gang_failure(
        self, gang: QueuedGang, pod: Pod, message: str, now_ns: int, *, is_counted: bool = True
    ) -> bool:
        """The bind of `pod` was refused: does that leave its gang below the minimum, as no earlier one did? That is asked again once
        it `is_counted`."""
        is_whole = gang.mode is GangMode.WHOLE and not gang.best_effort
        is_short = not is_counted or len(gang.placed_members) < gang.minimum
        if not is_whole or not is_short or gang.id in self.gang_failures:
            return False
        self.gang_failures[gang.id] = GangBindFailure(pod, message)
        self.due_gang_failures.put(gang.id, now_ns)
        return True

    def end_gang_failure(self, gang_id: GangId) -> GangBindFailure | None:
        self.due_gang_failures.discard(gang_id)
        return self.gang_failures.pop(gang_id, None)

    def remove(self, uid: PodUid, now_ns: int) -> tuple[InFlightBind | None, ResourceClaimKey | None]:
        """Forget the pod's bind. Returns it, and the claim that was created for the pod."""
        self.prompt.discard(uid)
        self.decision_ns.pop(uid, None)
        self.reserved_claims.pop(uid, None)
        bind = self.in_flight.pop(uid, None)
        for gang_id in () if bind is None else bind.awaited_by:
            if gang_id in self.gang_failures and gang_id not in self.due_gang_failures:
                self.due_gang_failures.put(gang_id, now_ns)
        return bind, self.created_claims.pop(uid, None)
