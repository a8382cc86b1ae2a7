"""What evaluating a policy for one pod yields, in full: the form in which plan and oracle are compared and people read.

The fast path of `plan` keeps arrays instead; it makes one of these where somebody asks for reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why one rule refuses one node.

    `reasons` are whole texts with values filled in (a built-in may have several: `Insufficient cpu`, `Insufficient
    memory`). `event_reasons` are the same as an event counts them: a value that depends on the node is written `…`, so
    that nodes refused for one cause count as one. `resolvable` False: evicting pods would not help
    (UnschedulableAndUnresolvable). `scaleup` False: a new, empty node of the same kind would not help either.
    """

    rule: str
    reasons: tuple[str, ...]
    event_reasons: tuple[str, ...]
    resolvable: bool
    scaleup: bool


@dataclass(frozen=True, slots=True)
class NodeRuleScore:
    """One score for one node: `raw` before normalising (held unit; None where missing or not of one number), `score`
    0..100 (a built-in of kube-scheduler normalises to the same range), `weighted` = weight * score."""

    raw: int | float | None
    score: int
    weight: int
    weighted: int


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """`pod_refusal` is set where the pod itself is refused before any node is looked at (an invalid or absent input,
    a feature that no built-in covers); everything else is empty then.

    `pod_refused_by`: the filter that refused the pod as a whole, on whatever node (a claim that is not there), where one did;
    it is said as kube-scheduler says it.

    `refusals` lists for each refused node every rule that refuses it, the deciding one (first in the file) first.
    `scores` has a rule's feasible nodes; a rule that skipped the pod (a built-in with nothing to score, a `when` that
    is not True) is absent. `totals` has every feasible node. `selected` is the greatest total, ties by the greatest
    `node_hash XOR pod_hash`.

    `metrics_in_outage` are the metrics in an outage, where such switch rules off, and `disabled_rules` the rules that do not apply for it. The oracle does not
    name them: what they change, it says.
    """

    pod_refusal: str | None
    feasible: tuple[str, ...]
    refusals: Mapping[str, tuple[NodeRefusal, ...]]
    scores: Mapping[str, Mapping[str, NodeRuleScore]]
    totals: Mapping[str, int]
    selected: str | None
    pod_refused_by: str | None = None
    metrics_in_outage: tuple[str, ...] = field(default=(), compare=False)
    disabled_rules: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class NodeSubsetVerdict:
    """What a policy says of a pod on some nodes alone: as if every other node were refused ahead of all rules, while
    what is placed on the others still counts (spreading, affinity).

    `pod_refusal` as in an Explanation; everything else is empty then. Each node that was asked about and exists is
    either in `totals` or in `refusals` (the rule that decides), both sorted by name. `total_max` is the most that a
    total can be: 100 times the weights of all scores that the layers in force leave, the same whatever is measured.
    """

    pod_refusal: str | None
    totals: Mapping[str, int]
    refusals: Mapping[str, NodeRefusal]
    total_max: int
