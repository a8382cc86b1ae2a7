"""The record that `explain` returns. Its JSON schema is `schemas/explain.json`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policysched.cluster.samples import PairEndpoint, Samples
from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import NodeRejection, PlacementExplanation
from policysched.lang.types.units import format_value
from policysched.model.pods import Pod
from policysched.scheduler.unschedulable_message import (
    filter_error_message,
    pod_rejected_message,
    unavailable_message,
)


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


def explain_record(
    program: Program,
    pod: Pod,
    explanation: PlacementExplanation,
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
        "rejected": {
            node: _reasons(rejections) for node, rejections in sorted(explanation.rejections.items())
        },
        "scores": {
            rule: {
                node: {"raw": cell.raw, "score": cell.score, "weight": cell.weight, "weighted": cell.weighted}
                for node, cell in sorted(cells.items())
            }
            for rule, cells in explanation.scores.items()
        },
        "totals": dict(sorted(explanation.totals.items())),
        "selected": explanation.selected,
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
    """The message of the pod's event, worded as in kube-scheduler."""
    if explanation.selected is not None:
        return f"Successfully assigned {pod.full_name} to {explanation.selected}"
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
    rejected: Mapping[str, tuple[NodeRejection, ...]], *, node_count: int, order: list[str]
) -> list[ExplainedFilter]:
    """The rules in the order in which they decide, with the nodes that each leaves."""
    alone = Counter(rejection.rule for rejections in rejected.values() for rejection in rejections)
    deciding = Counter(rejections[0].rule for rejections in rejected.values())
    steps, left = [], node_count
    for rule in order:
        left -= deciding[rule]
        steps.append(ExplainedFilter(rule, alone=node_count - alone[rule], left=left))
    return steps


def _reasons(rejections: tuple[NodeRejection, ...]) -> list[dict[str, str]]:
    return [
        {"rule": rejection.rule, "reason": reason} for rejection in rejections for reason in rejection.reasons
    ]
