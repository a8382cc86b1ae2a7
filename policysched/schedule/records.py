"""What the core can say of itself afterwards: decision records, and the numbers behind the metrics."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from policysched.cluster.objects import NodeName, PodUid

Result = Literal["scheduled", "unschedulable", "error"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One attempt for one pod, with the policy that made it.

    `node` None: none was found, and `message` says why in the event's words; `counts` has nodes by the text that
    refused them. `score` is the total of the chosen node. `nodes` were looked at, `feasible` of them passed. `gang`
    is `namespace/key`. Times in ns since 1970.
    """

    id: int
    at_ns: int
    pod: str
    uid: PodUid
    policy: str
    sha256: str
    version: int
    node: NodeName | None
    score: int | None
    nodes: int
    feasible: int
    message: str
    counts: Mapping[str, int]
    gang: str | None
    attempt: int
    queued_ns: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod whose bind was confirmed: what the histograms observe."""

    policy: str
    attempts: int
    waited_ns: int  # from its first sight to the confirmation


@dataclass(slots=True)
class Counters:
    """Ever growing. `attempts` by (result, policy), `preemption_attempts` pods for which making room was thought of;
    `bound` and `victims` (how many of each eviction) are drained by the reader, and keep the latest 10,000."""

    attempts: dict[tuple[Result, str], int] = field(default_factory=dict)
    bound: deque[Bound] = field(default_factory=lambda: deque(maxlen=10_000))
    preemption_attempts: int = 0
    victims: deque[int] = field(default_factory=lambda: deque(maxlen=10_000))

    def count(self, result: Result, policy: str) -> None:
        self.attempts[result, policy] = self.attempts.get((result, policy), 0) + 1

    def drain_bound(self) -> list[Bound]:
        """The confirmations since the last call, oldest first (the latest 10,000 where nobody asks)."""
        found = list(self.bound)
        self.bound.clear()
        return found

    def drain_victims(self) -> list[int]:
        """How many victims each eviction since the last call had."""
        found = list(self.victims)
        self.victims.clear()
        return found
