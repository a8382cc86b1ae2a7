"""What the core can say of itself afterwards: decision records, and the numbers behind the metrics."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from policysched.cluster.samples import Samples
from policysched.model.identifiers import NodeName, PodUid

AttemptResult = Literal["scheduled", "unschedulable", "error"]


@dataclass(frozen=True, slots=True)
class DecisionSample:
    """What a decision knew of one metric: the chosen node's sample and how old it was (None where there was none, or no
    node), and how long ago the metric was polled well (None: never)."""

    value: float | None
    age_ns: int | None
    polled_ago_ns: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """One attempt for one pod, with the policy that made it.

    `node` None: none was found, and `message` says why in the event's words; `counts` has nodes by the text that
    refused them. `score` is the total of the chosen node. `node_count` were looked at, `feasible_count` of them passed. `gang`
    is `namespace/key`. `samples` has every metric that the policy declares. Times in ns since 1970.
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
    node_count: int
    feasible_count: int
    message: str
    counts: Mapping[str, int]
    gang: str | None
    attempt: int
    queued_ns: int
    samples: Mapping[str, DecisionSample]


def decision_samples(
    metrics: Iterable[str], samples: Samples, node: NodeName | None, now_ns: int
) -> Mapping[str, DecisionSample]:
    """Of these metrics, as of now. A sample that is stale by now is shown with its age: it did not count."""
    found: dict[str, DecisionSample] = {}
    for name in metrics:
        polled = samples.get(name)
        one = polled.values.get(node) if polled is not None and node is not None else None
        found[name] = DecisionSample(
            None if one is None else one.value,
            None if one is None or polled is None else now_ns - min(one.at_ns, polled.polled_ns),
            None if polled is None else now_ns - polled.polled_ns,
        )
    return found


@dataclass(frozen=True, slots=True)
class ConfirmedBind:
    """A pod whose bind was confirmed: what the histograms observe."""

    policy: str
    attempts: int
    waited_ns: int  # from its first sight to the confirmation
    duration_ns: int  # from the decision to the confirmation


@dataclass(frozen=True, slots=True)
class FailedBind:
    """A pod whose bind was refused, or found it gone: how long after the decision."""

    policy: str
    duration_ns: int


@dataclass(slots=True)
class SchedulerCounters:
    """Ever growing. `attempts` by (result, policy), `preemption_attempts` pods for which making room was thought of;
    `kubelet_rejections` pods of ours that a kubelet did not take, by (reason, policy); `overcommits` how often a pod that we did
    not place brought a node over what it has;
    `confirmed_binds`, `failed_binds` and `victim_counts` (how many of each eviction) are drained by the reader, and keep the latest 10,000."""

    attempts: dict[tuple[AttemptResult, str], int] = field(default_factory=dict)
    confirmed_binds: deque[ConfirmedBind] = field(default_factory=lambda: deque(maxlen=10_000))
    failed_binds: deque[FailedBind] = field(default_factory=lambda: deque(maxlen=10_000))
    preemption_attempts: int = 0
    kubelet_rejections: dict[tuple[str, str], int] = field(default_factory=dict)
    overcommits: int = 0
    victim_counts: deque[int] = field(default_factory=lambda: deque(maxlen=10_000))

    def count_attempt(self, result: AttemptResult, policy: str) -> None:
        self.attempts[result, policy] = self.attempts.get((result, policy), 0) + 1

    def count_kubelet_rejection(self, reason: str, policy: str) -> None:
        label = reason, policy
        self.kubelet_rejections[label] = self.kubelet_rejections.get(label, 0) + 1

    def drain_confirmed_binds(self) -> list[ConfirmedBind]:
        """The confirmations since the last call, oldest first (the latest 10,000 where nobody asks)."""
        found = list(self.confirmed_binds)
        self.confirmed_binds.clear()
        return found

    def drain_failed_binds(self) -> list[FailedBind]:
        """The binds that came to nothing since the last call."""
        found = list(self.failed_binds)
        self.failed_binds.clear()
        return found

    def drain_victim_counts(self) -> list[int]:
        """How many victims each eviction since the last call had."""
        found = list(self.victim_counts)
        self.victim_counts.clear()
        return found
