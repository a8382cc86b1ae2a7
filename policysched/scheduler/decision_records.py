"""Decision records, and the counters behind the metrics."""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from policysched.cluster.metric_samples import Samples
from policysched.evaluate.verdict import DecisionDetail
from policysched.lang.ir.verdict import ShadowEffect
from policysched.model.identifiers import NodeName, PodUid

AttemptResult = Literal["scheduled", "unschedulable", "error"]
ShadowChange = Literal["unchanged", "moved", "pending", "error"]


@dataclass(frozen=True, slots=True)
class DecisionSample:
    """One metric as a decision read it: the chosen node's sample and its age (None: no sample, or no node), and the time
    since the metric's last successful poll (None: never polled)."""

    value: float | None
    age_ns: int | None
    polled_ago_ns: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """One attempt for one pod, with the policy that made it.

    `node` None: no node was found; `message` is the event's reason, and `counts` has the number of nodes by reason.
    `score` is the total of the chosen node. `node_count` nodes were evaluated, `feasible_count` of them were feasible.
    `gang` is `namespace/key`. `samples` has every metric that the policy declares. `order_key` is the pod's place among those
    of its policy: for each key of `queue by` whether it is missing, and its value; the UID is last. It and `detail` are set
    while decisions are recorded, `detail` for pods that were evaluated. Times in ns since 1970.
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
    order_key: tuple[Any, ...] = ()
    detail: DecisionDetail | None = None


def decision_samples(
    metrics: Iterable[str], samples: Samples, node: NodeName | None, now_ns: int
) -> Mapping[str, DecisionSample]:
    """The samples of these metrics as of now. A stale sample did not count; its age shows that."""
    by_metric: dict[str, DecisionSample] = {}
    for name in metrics:
        polled = samples.get(name)
        sample = polled.values.get(node) if polled is not None and node is not None else None
        by_metric[name] = DecisionSample(
            None if sample is None else sample.value,
            None if sample is None or polled is None else now_ns - min(sample.at_ns, polled.polled_ns),
            None if polled is None else now_ns - polled.polled_ns,
        )
    return by_metric


@dataclass(frozen=True, slots=True)
class ConfirmedBind:
    """A confirmed bind, as the histograms observe it."""

    policy: str
    attempts: int
    waited_ns: int  # from when it was queued first to the confirmation
    duration_ns: int  # from the decision to the confirmation


@dataclass(frozen=True, slots=True)
class FailedBind:
    """A bind that was refused or found its pod gone. `duration_ns` is from the decision to the answer."""

    policy: str
    duration_ns: int


@dataclass(slots=True)
class ShadowCounters:
    """What shadow rules would have changed: counts of placed pods to which the rule applies.

    decisions: by (policy, rule, kind, change). rejected_nodes: candidates that a filter would have rejected, and
    rejected_pods the pods for which it would have rejected any, by (policy, rule). errors: the newest message by (policy, rule).
    """

    decisions: dict[tuple[str, str, str, ShadowChange], int] = field(default_factory=dict)
    rejected_nodes: dict[tuple[str, str], int] = field(default_factory=dict)
    rejected_pods: dict[tuple[str, str], int] = field(default_factory=dict)
    errors: dict[tuple[str, str], str] = field(default_factory=dict)

    def count(self, policy: str, node: NodeName, effects: Iterable[ShadowEffect]) -> list[str]:
        """Count the effects on a decision for `node`; return a message for each rule that fails for the first time."""
        messages = []
        for effect in effects:
            rule = policy, effect.rule
            key = (*rule, effect.kind, effect.change(node))
            self.decisions[key] = self.decisions.get(key, 0) + 1
            if effect.error and rule not in self.errors:
                messages.append(
                    f"shadow {effect.kind} {effect.rule} of policy `{policy}` failed; decisions are not affected: {effect.error}"
                )
            if effect.error:
                self.errors[rule] = effect.error
            if effect.kind == "filter" and not effect.error:
                self.rejected_nodes[rule] = self.rejected_nodes.get(rule, 0) + effect.rejected_count
                self.rejected_pods[rule] = self.rejected_pods.get(rule, 0) + (effect.rejected_count > 0)
        return messages

    def retain_rules(self, policy: str, rules: Container[str]) -> None:
        """Forget what was counted of other rules of the policy."""
        all_counts: tuple[dict[Any, Any], ...] = (
            self.decisions,
            self.rejected_nodes,
            self.rejected_pods,
            self.errors,
        )
        for counts in all_counts:
            for key in [key for key in counts if key[0] == policy and key[1] not in rules]:
                del counts[key]


@dataclass(slots=True)
class SchedulerCounters:
    """Monotonic counters, and the observations of histograms.

    attempts: by (result, policy).
    preemption_attempts: pods for which preemption was tried.
    kubelet_rejections: pods of running policies that a kubelet rejected, by (reason, policy).
    over_budget: attempts that were not evaluated because of `decision_budget`, by policy.
    internal_errors: attempts that raised, by policy (see `internal_errors`).
    overcommits: how often another scheduler's pod exceeded the allocatable of its node.
    confirmed_binds, failed_binds, victim_counts (victims of each eviction): the latest 10,000 that the reader
        has not drained.
    shadows: what shadow rules would have changed.
    """

    attempts: dict[tuple[AttemptResult, str], int] = field(default_factory=dict)
    confirmed_binds: deque[ConfirmedBind] = field(default_factory=lambda: deque(maxlen=10_000))
    failed_binds: deque[FailedBind] = field(default_factory=lambda: deque(maxlen=10_000))
    preemption_attempts: int = 0
    kubelet_rejections: dict[tuple[str, str], int] = field(default_factory=dict)
    over_budget: dict[str, int] = field(default_factory=dict)
    internal_errors: dict[str, int] = field(default_factory=dict)
    overcommits: int = 0
    victim_counts: deque[int] = field(default_factory=lambda: deque(maxlen=10_000))
    shadows: ShadowCounters = field(default_factory=ShadowCounters)

    def count_attempt(self, result: AttemptResult, policy: str) -> None:
        self.attempts[result, policy] = self.attempts.get((result, policy), 0) + 1

    def count_kubelet_rejection(self, reason: str, policy: str) -> None:
        label = reason, policy
        self.kubelet_rejections[label] = self.kubelet_rejections.get(label, 0) + 1

    def count_over_budget(self, policy: str) -> None:
        self.over_budget[policy] = self.over_budget.get(policy, 0) + 1

    def count_internal_error(self, policy: str) -> None:
        self.internal_errors[policy] = self.internal_errors.get(policy, 0) + 1

    def forget(self, policy: str) -> None:
        """Forget what was counted of a policy that is gone."""
        all_counts: tuple[dict[Any, int], ...] = (self.attempts, self.kubelet_rejections)
        for counts in all_counts:
            for key in [key for key in counts if key[1] == policy]:
                del counts[key]
        self.over_budget.pop(policy, None)
        self.internal_errors.pop(policy, None)
        self.shadows.retain_rules(policy, ())

    def drain_confirmed_binds(self) -> list[ConfirmedBind]:
        """The confirmed binds since the last call, oldest first."""
        drained = list(self.confirmed_binds)
        self.confirmed_binds.clear()
        return drained

    def drain_failed_binds(self) -> list[FailedBind]:
        """The failed binds since the last call, oldest first."""
        drained = list(self.failed_binds)
        self.failed_binds.clear()
        return drained

    def drain_victim_counts(self) -> list[int]:
        """The number of victims of each eviction since the last call."""
        drained = list(self.victim_counts)
        self.victim_counts.clear()
        return drained


class DecisionRecords:
    """The latest decisions, oldest first, and the counters. `recorded` takes every decision, and makes that they have their
    detail; None: nobody records."""

    def __init__(self, decision_records_max: int) -> None:
        self.counters = SchedulerCounters()
        self.decisions: deque[Decision] = deque(maxlen=decision_records_max)
        self.recorded: list[Decision] | None = None
        self._count = 0

    @property
    def next_id(self) -> int:
        """Decisions are numbered from 1."""
        return self._count + 1

    @next_id.setter
    def next_id(self, number: int) -> None:
        """A replay that begins in the middle continues with the numbers of the recording."""
        self._count = number - 1

    def add(self, decision: Decision) -> None:
        self._count += 1
        self.decisions.append(decision)
        if self.recorded is not None:
            self.recorded.append(decision)
