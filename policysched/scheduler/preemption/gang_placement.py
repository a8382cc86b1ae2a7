"""Candidates of preemption for a gang: the node of each member, and the victims to evict for it.

`gangs.gang_preemption` is the search.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.evaluate import NodeSelection, Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptFailure, AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.victim_selection import (
    Candidate,
)
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps

PREEMPTION_NEVER = "not eligible due to preemptionPolicy=Never."
PREEMPTION_TOO_EXPENSIVE = "not attempted: the evaluation of this pod exceeds the decision budget."

WAITS_FOR_HELD_CAPACITY = (
    "not tried: there is enough capacity once the hold after a kubelet's rejection ends."
)
VICTIMS_CHANGED = "not carried out: pods that were chosen as victims may not be evicted any more."
NODES_CHANGED = "not carried out: a member does not fit any more on the node that was chosen for it."
BUDGETS_CHANGED = "not carried out: evictions that were chosen violate more disruption budgets by now."
GOES_ON_LATER = "not finished: other pods are scheduled first, then the search goes on."
VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node."

EvaluateMember = Callable[[PendingPod, Overlay, NodeSelection | None], AttemptSuccess | AttemptFailure]
AddToOverlay = Callable[[PendingPod, NodeName, Overlay], object]


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """A node for a member, and the victims to evict there (none if it fits now)."""

    pod: PendingPod
    candidate: Candidate

    @property
    def node(self) -> NodeName:
        return self.candidate.node


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """One placement for each needed member, in the order in which they were added."""

    members: tuple[MemberPlacement, ...]

    @property
    def victims(self) -> list[Pod]:
        return [victim for member in self.members for victim in member.candidate.victims]

    @property
    def disruption(self) -> tuple[int, tuple[Any, ...], int, int]:
        """Sort key, least first: violated budgets, the policy's `order`, highest victim priority, number of victims."""
        victims = self.victims
        return (
            sum(member.candidate.violations for member in self.members),
            max(member.candidate.last_in_order for member in self.members),
            max((victim.priority for victim in victims), default=0),
            len(victims),
        )


@dataclass(frozen=True, slots=True)
class NoGangPlacement:
    """Why there is no placement: kube-scheduler's message for the first member without one.

    `victims_terminating`: victims of an earlier attempt are still terminating; decide after that. `retry_ns`: when the search
    may succeed with nothing changed.
    """

    message: str
    victims_terminating: bool = False
    retry_ns: int | None = None

    @property
    def waits(self) -> bool:
        """Whether nothing else is tried before that."""
        return self.victims_terminating or self.retry_ns is not None


@dataclass(frozen=True, slots=True)
class GangSearchContext:
    """Callbacks of the gang search: eviction rules, state of victims, and evaluation of a member.

    Members with the same entry in `equivalence_keys` get the same verdict. `eviction_rights` are those of the first question,
    until they are forgotten. `reclaims`: the victims borrow quota, whatever their priority, and quotas are judged afterwards.
    """

    equivalence_keys: Mapping[PodUid, Hashable]
    eviction_rights: Callable[[PendingPod], EvictionRights]
    forget_rights: Callable[[], None]
    eviction_blocked: Callable[[Pod], bool]
    may_leave: Callable[[PodUid], bool]
    is_terminating: Callable[[PodUid], bool]
    started_ns: Callable[[PodUid], int | None]
    evaluate: EvaluateMember
    add_to_overlay: AddToOverlay
    reclaims: bool = False


FindGangPlacement = Callable[
    [SchedulerCore, QueuedGang, GangSearchContext, int], Steps[GangPlacement | NoGangPlacement]
]
