"""The full result of evaluating a policy for one pod, for explanations and for comparison with the reference.

The fast path of `evaluate` works on arrays and builds these values on demand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class RejectionGap:
    """How far a node is from passing a rule: it has `actual` of `subject` (an expression of the policy, or a resource that
    the pod requests), which misses `limit` by `by`, all three with units. `ratio` is the distance as a share of the limit,
    to compare rules with one another. `shortfalls`: what the pod lacks of each resource, for a filter that accounts them.
    """

    subject: str
    actual: str
    limit: str
    by: str
    ratio: float
    shortfalls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeRejection:
    """Why a rule rejects a node.

    `reasons` have their values filled in (a built-in may have several: `Insufficient cpu`, `Insufficient memory`). In
    `event_reasons` a value that depends on the node is replaced by `…`, so that an event counts nodes with one cause
    together. `resolvable` False: preemption cannot help (UnschedulableAndUnresolvable). `scaleup` False: a new, empty
    node of the same kind would be rejected too. `gaps`: by how much, where the rule compares numbers (one for each resource that
    is short); the reference implementation leaves them out.
    """

    rule: str
    reasons: tuple[str, ...]
    event_reasons: tuple[str, ...]
    resolvable: bool
    scaleup: bool
    gaps: tuple[RejectionGap, ...] = field(default=(), compare=False)

    @property
    def gap(self) -> RejectionGap | None:
        """The largest one."""
        return max(self.gaps, key=lambda gap: gap.ratio, default=None)


@dataclass(frozen=True, slots=True)
class NodeRuleScore:
    """The score of a rule for a node. `raw` is the value before normalisation, in the unit of its type (None where it is
    missing or not a single number), `score` is 0..100, `weighted` is weight * score."""

    raw: int | float | None
    score: int
    weight: int
    weighted: int


@dataclass(frozen=True, slots=True)
class ShadowEffect:
    """What one shadow rule alone would have changed about a decision.

    `rejected_count`: how many candidates the filter rejects (0 for a score). `selected`: the node that would be selected with
    the rule (None: none is left). `error` is set where the rule could not be evaluated; the rest is unknown then.
    """

    rule: str
    kind: Literal["filter", "score"]
    rejected_count: int
    selected: str | None
    error: str = ""

    def change(self, selected: str | None) -> Literal["unchanged", "moved", "pending", "error"]:
        """What becomes of a pod for which `selected` was selected without the rule."""
        if self.error:
            return "error"
        if self.selected == selected:
            return "unchanged"
        return "pending" if self.selected is None else "moved"


@dataclass(frozen=True, slots=True)
class OmittedNodes:
    """Rejected nodes that an explanation counts and does not list. `causes`: how many nodes the same rules reject, the
    deciding one first; of very many causes the most frequent ones. `rejected` and `decided`: the nodes that each rule
    rejects, and those of which it decides, the latter also by `event_reasons`."""

    nodes: int
    causes: tuple[tuple[tuple[str, ...], int], ...]
    rejected: Mapping[str, int]
    decided: Mapping[str, int]
    event_reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """The verdict of every rule on every node for one pod.

    `pod_rejection` is set where the pod is rejected before any node is evaluated (an invalid or absent input, a field
    that no built-in supports); everything else is empty then. `pod_rejected_by` is the filter that rejected the pod on
    every node in PreFilter (such as a claim that does not exist), if one did, or that failed on a node (`is_filter_error`).

    `rejections` lists for each rejected node all rules that reject it, first the deciding one (the first in the policy);
    nodes that it leaves out are in `omitted`.
    `scores` has the feasible nodes by rule; a rule that skipped the pod (a built-in with nothing to score, a `when` that
    is not True) is absent. `totals` has every feasible node. `selected` has the highest total, ties broken by the
    highest `node_hash XOR pod_hash`.

    `metrics_in_outage` are the metrics whose outage disables rules, and `disabled_rules` those rules. The reference
    implementation leaves both empty, and `shadows`, which has the shadow rules that apply to the pod, and omits no node.
    """

    pod_rejection: str | None
    feasible: tuple[str, ...]
    rejections: Mapping[str, tuple[NodeRejection, ...]]
    scores: Mapping[str, Mapping[str, NodeRuleScore]]
    totals: Mapping[str, int]
    selected: str | None
    pod_rejected_by: str | None = None
    is_filter_error: bool = False
    metrics_in_outage: tuple[str, ...] = field(default=(), compare=False)
    disabled_rules: tuple[str, ...] = field(default=(), compare=False)
    shadows: tuple[ShadowEffect, ...] = field(default=(), compare=False)
    omitted: OmittedNodes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NodeSubsetVerdict:
    """The verdict on some nodes only, as if every other node were rejected before all rules. Pods placed on other nodes
    still count (topology spread, affinity).

    `pod_rejection` as in `PlacementExplanation`. Each requested node that exists is either in `totals` or in `rejections`
    (by the deciding rule); both are sorted by name. `total_max` is the highest possible total: 100 times the weights of
    all scores of the active layers.
    """

    pod_rejection: str | None
    totals: Mapping[str, int]
    rejections: Mapping[str, NodeRejection]
    total_max: int
