"""What an evaluation says, in the form in which the scheduler asks: cheap where a node was found, complete where none was."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policysched.cluster.devices.binding_conditions import BINDING_TIMEOUT_S
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName


@dataclass(frozen=True, slots=True)
class VolumesToBind:
    """What has to be done about a pod's volumes before it is bound, and how long that may take."""

    choice: VolumeChoice
    timeout_s: int


@dataclass(frozen=True, slots=True)
class PrebindRequirements:
    """What has to be done for a pod between its node and its bind: not both nothing. `devices_timeout_s` is how long devices may take
    to be bound."""

    volumes: VolumesToBind | None
    devices: DeviceChoice
    devices_timeout_s: int = BINDING_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class UnschedulableDiagnosis:
    """Why there is none. `reason_counts`: for each reason the nodes that it refuses, a node counted under the first rule that refuses
    it (all of that rule's reasons). `scaleup_would_not_help`: every node is held back only by rules of which the policy says
    that a new node would not help."""

    reason_counts: Mapping[str, int]
    scaleup_would_not_help: bool
    requeue_events: frozenset[ClusterEvent]


class Verdict:
    """`selected` None: no node. `pod_refusal` says why where no node was even looked at, `refused_by` which
    filter says so (None: an input, or a feature that nothing covers). `score` is the selected node's total.

    The reasons are worked out at once where no node was found; where one was, when they are asked for, of the cluster as it is
    then.
    """

    __slots__ = (
        "_diagnose",
        "_diagnosis",
        "feasible_count",
        "feasible_outside_domain",
        "node_count",
        "pod_refusal",
        "refused_by",
        "score",
        "selected",
        "valid_until_ns",
    )

    def __init__(
        self,
        *,
        pod_refusal: str | None,
        feasible_count: int,
        node_count: int,
        selected: NodeName | None,
        score: int,
        valid_until_ns: int | None,
        diagnose: Callable[[], UnschedulableDiagnosis],
        feasible_outside_domain: int = 0,
        refused_by: str | None = None,
    ) -> None:
        self.refused_by = refused_by
        self.pod_refusal = pod_refusal
        self.feasible_count = feasible_count
        self.node_count = node_count
        self.selected = selected
        self.score = score
        self.valid_until_ns = valid_until_ns
        self.feasible_outside_domain = feasible_outside_domain
        self._diagnose = diagnose
        self._diagnosis = diagnose() if selected is None else None

    def reason_counts(self) -> Mapping[str, int]:
        return self._get_diagnosis().reason_counts

    def scaleup_would_not_help(self) -> bool:
        return self._get_diagnosis().scaleup_would_not_help

    def requeue_events(self) -> frozenset[ClusterEvent]:
        """The events that can turn this no into a yes."""
        return self._get_diagnosis().requeue_events

    def _get_diagnosis(self) -> UnschedulableDiagnosis:
        if self._diagnosis is None:
            self._diagnosis = self._diagnose()
        return self._diagnosis

    def __repr__(self) -> str:
        if self.pod_refusal is not None:
            return f"Verdict(refused: {self.pod_refusal})"
        return f"Verdict({self.selected} with {self.score}, {self.feasible_count} of {self.node_count} nodes)"
