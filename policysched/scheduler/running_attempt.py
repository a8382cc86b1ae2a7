"""What is known of an attempt while it runs, is paused, or is interrupted."""

from dataclasses import dataclass, field
from typing import NamedTuple

from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.model.pods import Pod
from policysched.scheduler.gangs.attempt_state import GangAttemptState
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.steps import Steps

FailedBeside = list[tuple[PendingPod, int, bool]]


@dataclass(slots=True)
class Attempt:
    """`steps` are left; `prepares`: nothing was decided, a slice of the search of devices, of their selectors, of rules or of
    totals over pods is over; `charges_policy_alone`: its time counts for the policy, but not for the namespace; `devices`: what
    the search of devices may take. `cost`: of the steps before; `piece_cost`: of those since the last pause. `elapsed_ns`: see
    `AttemptRunner.account_time`; `attempts_before`: of the entry; `pod`: its representative, which may be placed at the end;
    `was_interrupted`: by others, of them gangs for `gangs_cost`; `refused`, `is_late`, `lost_count`: see `Pause`. `has_failed`: of a gang,
    which an event may have queued again since, or of a pod beside one, which backs off."""

    entry: QueueEntry
    steps: Steps[None]
    attempts_before: int
    pod: Pod
    was_interrupted: bool = False
    gangs_cost: int = 0
    refused: set[QueueEntry] = field(default_factory=set)
    is_late: bool = False
    lost_count: int = 0
    cost: int = 0
    piece_cost: int = 0
    elapsed_ns: int = 0
    prepares: bool = False
    charges_policy_alone: bool = False
    has_failed: bool = False
    devices: SearchAllowance = field(default_factory=SearchAllowance)


class InterruptedAttempt(NamedTuple):
    """The attempt of a gang that is paused, while that of another entry runs."""

    attempt: Attempt
    pause: Pause
    state: GangAttemptState
    failed_beside: FailedBeside
