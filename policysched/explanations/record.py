"""The record that `explain` returns. Its JSON schema is `schemas/explain.json`."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from policysched.cluster.metric_samples import PairEndpoint, Samples
from policysched.evaluate.placement_explanation import SCORES_PER_STEP, whole
from policysched.explanations.proposals import Proposal
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, FilterRule, included_by, location_of
from policysched.lang.ir.verdict import NodeRejection, OmittedNodes, PlacementExplanation
from policysched.lang.types.units import format_value
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.scheduler.unschedulable_message import (
    filter_error_message,
    pod_rejected_message,
    unavailable_message,
)

_REASONS_PER_STEP = 500
_UNKNOWN_RATIO = 1e9
"""Of a rule that compares no numbers: farther than any that does."""


@dataclass(frozen=True, slots=True)
class AgedSample:
    """`value` in the unit of the metric, without the assumed load of later pods. A stale sample counts as missing."""

    value: float
    age_s: float
    stale: bool


@dataclass(frozen=True, slots=True)
class ExplainedFilter:
    """One rule over all nodes: how many it passes `alone`, and how many are `left` after it and all rules before it."""

    rule: str
    alone: int
    left: int


@dataclass(frozen=True, slots=True)
class ExplainedGang:
    """The gang of the pod: `placed` and `pending` members that exist, of at least `minimum`. `blocked`: fewer than
    the minimum have a node, and no member gets one before as many have."""

    name: str
    minimum: int
    placed: int
    pending: int
    blocked: bool


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """`filters` are the rules that apply to the pod, in evaluation order; `samples` are those of the policy's metrics at
    `now_ns`, and `peers` the names of the pod in pair metrics. `message` says what would happen, or why nothing does,
    including the result of preemption. `placed_on`: where the pod is already; it is explained as if it were pending.
    `proposals`: what would make it fit; `not_tried` names changes of which that is unknown, and is one of the `notes`."""

    program: Program
    pod: Pod
    explanation: PlacementExplanation
    node_count: int
    filters: tuple[FilterRule | BuiltinFilter, ...]
    samples: Samples
    peers: Mapping[str, PairEndpoint]
    now_ns: int
    message: str
    notes: tuple[str, ...]
    placed_on: NodeName | None = None
    gang: ExplainedGang | None = None
    proposals: tuple[Proposal, ...] = ()
    not_tried: str | None = None

    def with_proposals(self, found_proposals: tuple[Proposal, ...]) -> "ExplainResult":
        return replace(self, proposals=found_proposals)

    def record_in_steps(self) -> Generator[None, None, dict[str, Any]]:
        """The JSON output; schema: `schemas/explain.json`."""
        rejected, work = dict[str, list[dict[str, Any]]](), 0
        for node, rejections in sorted(self.explanation.rejections.items()):
            rejected[node] = _reasons(rejections)
            work += len(rejected[node])
            if work >= _REASONS_PER_STEP:
                work = 0
                yield
        scores = yield from _scores_in_steps(self.explanation)
        record = explain_record(
            self.program,
            self.pod,
            self.explanation,
            rejected,
            scores,
            node_count=self.node_count,
            samples=self.samples,
            called=self.peers,
            now_ns=self.now_ns,
        )
        steps = filter_steps(
            self.explanation, node_count=self.node_count, order=[rule.name for rule in self.filters]
        )
        return record | {
            "nodes": self.node_count,
            "placed_on": self.placed_on,
            "gang": None if self.gang is None else asdict(self.gang),
            "filters": [
                {
                    "rule": rule.name,
                    "location": location_of(rule.span),
                    "included_by": included_by(rule.span, self.program.name_span),
                    "alone": step.alone,
                    "left": step.left,
                }
                for rule, step in zip(self.filters, steps, strict=True)
            ],
            "rejected_omitted": _omitted_record(self.explanation.omitted),
            "closest": closest_miss(self.explanation),
            "would_fit": [proposal.record() for proposal in self.proposals],
            "metric_types": {name: str(metric.type) for name, metric in self.program.metrics.items()},
            "message": self.message,
            "notes": list(self.notes),
        }

    record = whole(record_in_steps)


def outage_note(explanation: PlacementExplanation) -> str:
    """The rules that an outage disables."""
    rules = (
        f"rules that do not apply: {', '.join(explanation.disabled_rules)}"
        if explanation.disabled_rules
        else "no rule that applies reads it"
    )
    return (
        f"outage of {', '.join(explanation.metrics_in_outage)}: too many nodes have no fresh sample; {rules}"
    )


def absent_resources_note(pod: Pod, nodes: Iterable[Node]) -> str | None:
    """What the pod requests and no node has."""
    offered = {name for node in nodes for name, amount in node.allocatable.items() if amount}
    absent = sorted(name for name, amount in pod.requests.items() if amount and name not in offered)
    return f"no node offers {', '.join(absent)}" if absent and offered else None


def closest_miss(explanation: PlacementExplanation) -> dict[str, Any] | None:
    """The listed node that the fewest rules reject; among several the one that misses by the smallest share. None if a node
    is feasible, or none was evaluated."""
    if explanation.feasible or not explanation.rejections:
        return None

    def distance(item: tuple[str, tuple[NodeRejection, ...]]) -> tuple[int, float, int, str]:
        node, rejections = item
        ratios = [
            _UNKNOWN_RATIO if rejection.gap is None else rejection.gap.ratio for rejection in rejections
        ]
        return len(rejections), max(ratios), sum(len(rejection.reasons) for rejection in rejections), node

    node, rejections = min(explanation.rejections.items(), key=distance)
    return {"node": node, "rejections": _reasons(rejections)}


def explain_record(
    program: Program,
    pod: Pod,
    explanation: PlacementExplanation,
    rejected: Mapping[str, list[dict[str, Any]]],
    scores: Mapping[str, Any],
    *,
    node_count: int,
    samples: Samples,
    called: Mapping[str, PairEndpoint],
    now_ns: int,
) -> dict[str, Any]:
    """The explanation of one pod in plain JSON values. `called`: the pod's key in each metric between pods."""
    return {
        "format_version": 1,
        "policy": {
            "name": program.name,
            "sha256": program.sha256,
            "params": parameter_values(program),
        },
        "pod": pod.full_name,
        "feasible": sorted(explanation.feasible),
        "rejected": rejected,
        "scores": scores,
        "totals": dict(sorted(explanation.totals.items())),
        "selected": explanation.selected,
        "shadows": [
            {
                "rule": effect.rule,
                "kind": effect.kind,
                "change": effect.change(explanation.selected),
                "rejected": effect.rejected_count,
                "selected": effect.selected,
                "error": effect.error,
            }
            for effect in explanation.shadows
        ],
        "samples": {
            name: {
                node: {"value": sample.value, "age_s": sample.age_s, "stale": sample.stale}
                for node, sample in sorted(
                    (
                        pair_ages(metric, samples, called[name], now_ns)
                        if name in called
                        else sample_ages(metric, samples, now_ns)
                    ).items()
                )
            }
            for name, metric in program.metrics.items()
        },
        "message": decision_message(pod, explanation, node_count=node_count),
    }


def parameter_values(program: Program) -> dict[str, str]:
    """The value of each parameter, as written in a policy."""
    return {
        name: format_value(parameter.value.value, parameter.type)
        for name, parameter in program.parameters.items()
    }


def decision_message(pod: Pod, explanation: PlacementExplanation, *, node_count: int) -> str:
    """Where the pod would go, for nothing is assigned here; otherwise the message of its event, worded as in
    kube-scheduler."""
    if explanation.selected is not None:
        return f"{pod.full_name} would go to {explanation.selected}"
    if explanation.pod_rejection is not None and explanation.is_filter_error:
        return filter_error_message(explanation.pod_rejection)
    if explanation.pod_rejection is not None:
        return (
            explanation.pod_rejection
            if explanation.pod_rejected_by is None
            else pod_rejected_message(node_count, explanation.pod_rejection)
        )
    groups = Counter(
        group for rejections in explanation.rejections.values() for group in rejections[0].event_reasons
    )
    if explanation.omitted is not None:
        groups.update(explanation.omitted.event_reasons)
    return unavailable_message(node_count, groups)


def sample_ages(metric: Metric, samples: Samples, now_ns: int) -> dict[str, AgedSample]:
    """By node. The age counts from the sample's time or the last successful poll, whichever is older."""
    polled = samples.get(metric.name)
    if polled is None:
        return {}
    ages_ns = {node: now_ns - min(sample.at_ns, polled.polled_ns) for node, sample in polled.values.items()}
    return {
        node: AgedSample(sample.value, round(ages_ns[node] / 1e9, 3), ages_ns[node] > metric.stale_after_ns)
        for node, sample in polled.values.items()
    }


def pair_ages(metric: Metric, samples: Samples, pod: PairEndpoint, now_ns: int) -> dict[str, AgedSample]:
    """The samples of a metric between pods for this pod, by the peer's `namespace/name`, largest first. Unusable pairs
    are left out."""
    polled = samples.get(metric.name)
    if polled is None:
        return {}
    age_ns = now_ns - polled.polled_ns
    pairs = [(peer, value) for peer, value in polled.pairs.get(pod, {}).items() if value is not None]
    return {
        "/".join(peer): AgedSample(value, round(age_ns / 1e9, 3), age_ns > metric.stale_after_ns)
        for peer, value in sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
    }


def filter_steps(
    explanation: PlacementExplanation, *, node_count: int, order: list[str]
) -> list[ExplainedFilter]:
    """The rules in the order in which they decide, with the nodes that each leaves."""
    listed, omitted = explanation.rejections.values(), explanation.omitted
    rejected = Counter(rejection.rule for rejections in listed for rejection in rejections)
    decided = Counter(rejections[0].rule for rejections in listed)
    if omitted is not None:
        rejected.update(omitted.rejected)
        decided.update(omitted.decided)
    steps, left = [], node_count
    for rule in order:
        left -= decided[rule]
        steps.append(ExplainedFilter(rule, alone=node_count - rejected[rule], left=left))
    return steps


def _scores_in_steps(explanation: PlacementExplanation) -> Generator[None, None, dict[str, Any]]:
    scores, work = dict[str, Any](), 0
    for rule, cells in explanation.scores.items():
        scores[rule] = of_rule = dict[str, Any]()
        for node, cell in sorted(cells.items()):
            fields = {"raw": cell.raw, "score": cell.score, "weight": cell.weight, "weighted": cell.weighted}
            of_rule[node] = fields
            work += 1
            if work >= SCORES_PER_STEP:
                work = 0
                yield
    return scores


def _omitted_record(omitted: OmittedNodes | None) -> dict[str, Any] | None:
    if omitted is None:
        return None
    causes = [{"rules": list(rules), "nodes": count} for rules, count in omitted.causes]
    return {"nodes": omitted.nodes, "causes": causes}


def _reasons(rejections: tuple[NodeRejection, ...]) -> list[dict[str, Any]]:
    return [
        {"rule": rejection.rule, "reason": reason} | _gap_record(rejection, reason)
        for rejection in rejections
        for reason in rejection.reasons
    ]


def _gap_record(rejection: NodeRejection, reason: str) -> dict[str, Any]:
    """Of the resource that the reason names, or the only one."""
    named = [gap for gap in rejection.gaps if reason == f"Insufficient {gap.subject}"]
    gaps = named or (rejection.gaps if len(rejection.reasons) == 1 else ())
    fields = ("subject", "actual", "limit", "by")
    return {"gap": {name: getattr(gaps[0], name) for name in fields}} if gaps else {}
