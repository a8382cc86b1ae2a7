"""Verdicts: the result of an evaluation as the scheduler uses it, cheap when a node is found,
complete when none is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policysched.cluster.devices.binding_conditions import BINDING_TIMEOUT_S
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.lang.ir.verdict import ShadowEffect
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName


@dataclass(frozen=True, slots=True)
class VolumesToBind:
    """What to do about a pod's volumes before it is bound, and how long that may take."""

    choice: VolumeChoice
    timeout_s: int


@dataclass(frozen=True, slots=True)
class PrebindRequirements:
    """What to do for a pod before it is bound; never empty. `devices_timeout_s`: how long devices
    may take to be bound.
    """

    volumes: VolumesToBind | None
    devices: DeviceChoice
    devices_timeout_s: int = BINDING_TIMEOUT_S

    def __or__(self, other: "PrebindRequirements") -> "PrebindRequirements":
        """Both; of two for the same kind the other's."""
        devices = other if other.devices else self
        return PrebindRequirements(other.volumes or self.volumes, devices.devices, devices.devices_timeout_s)


@dataclass(frozen=True, slots=True)
class RejectionCause:
    """What keeps the pod from the nodes that fewest rules reject: `rules` reject one of them, for these `reasons`.
    `sole_rules`: by rule the number of nodes that it alone rejects; without that rule the pod would have a node.
    """

    rules: tuple[str, ...]
    reasons: tuple[str, ...]
    sole_rules: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UnschedulableDiagnosis:
    """Why no node is feasible. `reason_counts`: the number of nodes by reason, each node counted
    under all reasons of the first rule that rejects it. `scaleup_would_not_help`: a new node of
    each kind that exists would be rejected by a rule with `scaleup no`.
    """

    reason_counts: Mapping[str, int]
    scaleup_would_not_help: bool
    requeue_events: frozenset[ClusterEvent]
    cause: RejectionCause | None = None


@dataclass(frozen=True, slots=True)
class NodeTotal:
    """A total score, the node that has it (None: several have), and how many have it."""

    score: int
    node: NodeName | None
    equals: int


@dataclass(frozen=True, slots=True)
class DecisionDetail:
    """What recordings have of a decision beside its result. `rejections`: how many nodes each rule rejects, whatever
    the others say. `best`: the two best totals, greatest first."""

    rejections: Mapping[str, int]
    best: tuple[NodeTotal, ...]


class Verdict:
    """The outcome for one pod. `selected` None: no node. `pod_rejection` is the message where the pod
    is rejected before any node is looked at, `rejected_by` the filter that rejects it (None: an
    input, an unsupported feature, or that it is `over_budget`). `is_error`: that filter failed on a
    node. `score` is the selected node's total.

    Without a node the diagnosis is made at once if the verdict is to be `diagnosed`; otherwise it is made on demand, from the
    cluster as it is then. `detail`, which is made on demand too, is None where no node was looked at. `shadows`: what the shadow rules
    would have changed, where a node is selected.
    """

    __slots__ = (
        "_detail",
        "_diagnose",
        "_diagnosis",
        "feasible_count",
        "feasible_outside_domain",
        "is_error",
        "node_count",
        "over_budget",
        "pod_rejection",
        "rejected_by",
        "score",
        "selected",
        "shadows",
        "valid_until_ns",
    )

    def __init__(
        self,
        *,
        pod_rejection: str | None,
        feasible_count: int,
        node_count: int,
        selected: NodeName | None,
        score: int,
        valid_until_ns: int | None,
        diagnose: Callable[[], UnschedulableDiagnosis],
        feasible_outside_domain: int = 0,
        rejected_by: str | None = None,
        over_budget: bool = False,
        is_error: bool = False,
        detail: Callable[[], DecisionDetail] | None = None,
        shadows: tuple[ShadowEffect, ...] = (),
        diagnosed: bool = True,
    ) -> None:
        self._detail = detail
        self.shadows = shadows
        self.is_error = is_error
        self.over_budget = over_budget
        self.rejected_by = rejected_by
        self.pod_rejection = pod_rejection
        self.feasible_count = feasible_count
        self.node_count = node_count
        self.selected = selected
        self.score = score
        self.valid_until_ns = valid_until_ns
        self.feasible_outside_domain = feasible_outside_domain
        self._diagnose = diagnose
        self._diagnosis = diagnose() if selected is None and diagnosed else None

    def reason_counts(self) -> Mapping[str, int]:
        return self._get_diagnosis().reason_counts

    def scaleup_would_not_help(self) -> bool:
        return self._get_diagnosis().scaleup_would_not_help

    def requeue_events(self) -> frozenset[ClusterEvent]:
        """The events that can make the pod schedulable."""
        return self._get_diagnosis().requeue_events

    def detail(self) -> DecisionDetail | None:
        return None if self._detail is None else self._detail()

    def cause(self) -> RejectionCause | None:
        """None if the pod is rejected before any node is looked at, or there is no node."""
        return self._get_diagnosis().cause

    def _get_diagnosis(self) -> UnschedulableDiagnosis:
        if self._diagnosis is None:
            self._diagnosis = self._diagnose()
        return self._diagnosis

    def __repr__(self) -> str:
        if self.pod_rejection is not None:
            return f"Verdict(rejected: {self.pod_rejection})"
        return f"Verdict({self.selected} with {self.score}, {self.feasible_count} of {self.node_count} nodes)"
